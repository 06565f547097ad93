"""A backend over a plain dictionary: what a third party writes to have a store of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from infinite_tensor.tilestore.persistent import PartialTile, PersistentTileStore, TensorInfo

Index: TypeAlias = tuple[int, ...]


class DictTileStore(PersistentTileStore):
    """Keeps tiles as entries of `storage`, which outlives the store object."""

    def __init__(self, storage: dict[Any, Any], **options: Any) -> None:
        self.storage = storage
        super().__init__(**options)

    def __repr__(self) -> str:
        return f"DictTileStore({len(self.storage)} entries)"

    def _read_definition(self, tensor_id: str) -> dict[str, Any] | None:
        stored = self.storage.get((tensor_id, "definition"))
        return None if stored is None else json.loads(stored)

    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        self.storage.setdefault((tensor_id, "definition"), json.dumps(definition))

    def _delete_tensor(self, tensor_id: str) -> None:
        self.storage.pop((tensor_id, "definition"), None)
        for key in [key for key in self.storage if key[0] == tensor_id]:
            del self.storage[key]

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        found = [self.storage.get((tensor_id, "tile", tile)) for tile in tile_indices]
        return [None if tile is None else tile.clone() for tile in found]

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        for tile, pixels in tiles.items():
            self.storage[tensor_id, "tile", tile] = pixels.clone()

    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        logs = [self.storage.get((tensor_id, "partial", tile), ()) for tile in tile_indices]
        return [
            PartialTile.merged(PartialTile.from_bytes(part, f"{tensor_id} {tile}") for part in log)
            for tile, log in zip(tile_indices, logs, strict=True)
        ]

    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        for tile, part in partials.items():
            if part is None:
                self.storage.pop((tensor_id, "partial", tile), None)
            else:
                log = self.storage.get((tensor_id, "partial", tile), ())
                self.storage[tensor_id, "partial", tile] = (*log, part.to_bytes(f"{tensor_id} {tile}"))

    def _list_tensors(self) -> list[str]:
        return [key[0] for key in list(self.storage) if key[1] == "definition"]

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:
        mine = {key: value for key, value in list(self.storage.items()) if key[0] == tensor_id}
        tiles = [value for key, value in mine.items() if key[1] == "tile"]
        logs = [value for key, value in mine.items() if key[1] == "partial"]
        size = sum(tile.nbytes for tile in tiles) + sum(len(part) for log in logs for part in log)
        return TensorInfo(tensor_id, definition, len(tiles), len(logs), size, "memory")
