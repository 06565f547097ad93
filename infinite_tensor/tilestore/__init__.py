"""Stores keep the windows of tensors: in memory here, on disk and object storage in `persistent`."""

from infinite_tensor.tilestore.inventory import Damage, Garbage, TensorInfo
from infinite_tensor.tilestore.memory import MemoryTileStore
from infinite_tensor.tilestore.store import TileStore

__all__ = ["Damage", "Garbage", "MemoryTileStore", "TensorInfo", "TileStore"]
