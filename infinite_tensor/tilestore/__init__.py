"""Stores for the windows of tensors, in memory, on disk and on object storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infinite_tensor.support import offered_by

if TYPE_CHECKING:
    from infinite_tensor.tilestore.inventory import Damage, Garbage, TensorInfo
    from infinite_tensor.tilestore.memory import MemoryTileStore
    from infinite_tensor.tilestore.store import TileStore
else:
    __getattr__, __dir__ = offered_by(
        globals(),
        {
            "infinite_tensor.tilestore.inventory": ["Damage", "Garbage", "TensorInfo"],
            "infinite_tensor.tilestore.memory": ["MemoryTileStore"],
            "infinite_tensor.tilestore.store": ["TileStore"],
        },
    )

__all__ = ["Damage", "Garbage", "MemoryTileStore", "TensorInfo", "TileStore"]
