"""A backend over a plain dictionary, whose entries tests can look at and change."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from infinite_tensor.tilestore import Damage, Garbage

# Inside: documents with the right digest.
from infinite_tensor.tilestore.documents import GROUP, name_of, sealed
from infinite_tensor.tilestore.persistent import PartialTile, PersistentTileStore, TensorInfo

Index: TypeAlias = tuple[int, ...]

_CHANGING = threading.Lock()
"""Held while a log is changed, by all stores: several may share a dictionary."""


class DictTileStore(PersistentTileStore):
    """Keeps tiles as entries of `storage`, which outlives the store object.

    An entry is a log of parts; that of a complete tile holds one, which is the whole tile.
    """

    def __init__(self, storage: dict[Any, Any], **options: Any) -> None:
        self.storage = storage
        super().__init__(**options)

    def __str__(self) -> str:
        return f"DictTileStore({len(self.storage)} entries)"

    def _read_documents(self, names: Sequence[str]) -> list[Any]:
        return [_sealed(self.storage.get(self._key_of(name))) for name in names]

    def _create_document(self, name: str, document: dict[str, Any]) -> None:
        group = name.startswith("g-")
        key = (None, "group", document["group_id"]) if group else (document["tensor_id"], "definition")
        self.storage.setdefault(key, json.dumps(document))

    def _delete_document(self, name: str) -> None:
        key = self._key_of(name)
        self.storage.pop(key, None)
        if key is not None and key[0] is not None:
            for mine in [mine for mine in self.storage if mine[0] == key[0]]:
                del self.storage[mine]

    def _list_documents(self, kind: str) -> list[str]:
        return [name for name in map(_name_of, list(self.storage)) if name is not None and name.startswith(kind)]

    def _key_of(self, name: str) -> Any:
        return next((key for key in list(self.storage) if _name_of(key) == name), None)

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        found = [self._read_log((tensor_id, "tile", tile)) for tile in tile_indices]
        return [None if tile is None else tile.prefix for tile in found]

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        for tile, pixels in tiles.items():
            key = (tensor_id, "tile", tile)
            self.storage[key] = (PartialTile(pixels).to_bytes(str(key)),)

    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        return [self._read_log((tensor_id, "partial", tile)) for tile in tile_indices]

    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        for tile, part in partials.items():
            key = (tensor_id, "partial", tile)
            if part is None:
                self.storage.pop(key, None)
            else:
                data = part.to_bytes(str(key))
                with _CHANGING:
                    self.storage[key] = (*self.storage.get(key, ()), data)

    def _delete_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> None:
        for tile in tile_indices:
            for kind in ("partial", "tile"):
                self.storage.pop((tensor_id, kind, tile), None)

    def _find_tiles(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        mine = [key for key, log in list(self.storage.items()) if key[0] == tensor_id and len(key) == 3 and log]
        within = [key for key in mine if all(a <= i < b for i, a, b in zip(key[2], low, high, strict=True))]
        complete = {tile for _, kind, tile in within if kind == "tile"}
        return complete, {tile for _, kind, tile in within if kind == "partial"}

    def _read_log(self, key: tuple[str, str, Index]) -> PartialTile | None:
        return PartialTile.from_log(self.storage.get(key, ()), str(key), self)

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:
        mine = {key: log for key, log in list(self.storage.items()) if key[0] == tensor_id and log}
        logs = {key: log for key, log in mine.items() if key[1] != "definition"}
        complete = sum(key[1] == "tile" for key in logs)
        size = sum(len(part) for log in logs.values() for part in log)
        return TensorInfo(tensor_id, definition, complete, len(logs) - complete, size, "memory")

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        found = []
        for key, log in list(self.storage.items()):
            if key[0] != tensor_id or key[1] == "definition":
                continue
            for part in log:
                try:
                    PartialTile.from_bytes(part, str(key))
                except ValueError as error:
                    found.append(Damage(key[1], key[2], str(key), str(error)))
                    if repair:
                        with _CHANGING:
                            self.storage[key] = tuple(other for other in self.storage[key] if other is not part)
        return found

    def _collect_garbage(self) -> Garbage:
        logs = [key for key in self.storage if key[1] not in ("definition", "group")]
        complete = {(key[0], key[2]) for key in logs if key[1] == "tile" and self.storage[key]}
        garbage = [
            key
            for key in logs
            if (key[0], "definition") not in self.storage or (key[1] == "partial" and (key[0], key[2]) in complete)
        ]
        sizes = [sum(map(len, self.storage.pop(key))) for key in garbage]
        return Garbage(len(garbage), sum(sizes))


def _name_of(key: Any) -> str | None:
    if key[1] == "definition":
        return name_of(key[0])
    return name_of(key[2], GROUP) if key[1] == "group" else None


def _sealed(text: str | None) -> Any:
    """The document as its own writer would have left it: what a test changes has the right digest."""
    if text is None:
        return None
    try:
        found = json.loads(text)
        return sealed(found) if isinstance(found, dict) else ValueError("no JSON object")
    except RecursionError:
        return ValueError("nested too deep")
    except ValueError as error:
        return error
