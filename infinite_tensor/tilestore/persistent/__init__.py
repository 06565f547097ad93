"""Stores that outlive the process: what authors of backends subclass."""

from infinite_tensor.tilestore.glance import StoredSize
from infinite_tensor.tilestore.inventory import Damage, Garbage, TensorInfo
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent.store import PersistentTileStore
from infinite_tensor.tilestore.stored_definition import FORMAT

__all__ = ["FORMAT", "Damage", "Garbage", "PartialTile", "PersistentTileStore", "StoredSize", "TensorInfo"]
