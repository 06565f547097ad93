"""The base class and the data types for authors of persistent stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infinite_tensor.support import offered_by

if TYPE_CHECKING:
    from infinite_tensor.tilestore.inventory import Damage, Garbage, StoredSize, TensorInfo
    from infinite_tensor.tilestore.partial import PartialTile
    from infinite_tensor.tilestore.persistent.store import PersistentTileStore
    from infinite_tensor.tilestore.stored_definition import FORMAT
else:
    __getattr__, __dir__ = offered_by(
        globals(),
        {
            "infinite_tensor.tilestore.inventory": ["Damage", "Garbage", "StoredSize", "TensorInfo"],
            "infinite_tensor.tilestore.partial": ["PartialTile"],
            "infinite_tensor.tilestore.persistent.store": ["PersistentTileStore"],
            "infinite_tensor.tilestore.stored_definition": ["FORMAT"],
        },
    )

__all__ = ["FORMAT", "Damage", "Garbage", "PartialTile", "PersistentTileStore", "StoredSize", "TensorInfo"]
