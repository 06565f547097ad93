"""A backend over a folder of files: what a third party writes to have a store of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from infinite_tensor import DamagedDataWarning
from infinite_tensor.tilestore import Damage, Garbage
from infinite_tensor.tilestore.persistent import PartialTile, PersistentTileStore, TensorInfo

Index: TypeAlias = tuple[int, ...]


class FileTileStore(PersistentTileStore):
    """Keeps tensors in a folder, which any number of processes may use at the same time.

    ``tensor-<SHA-256 of the id>.json`` is a definition, and names the folder of the tensor. There ``0.-1`` is a
    complete tile, and each ``0.-1.part-<random>`` a part of a partial one.
    """

    def __init__(self, root: str | os.PathLike[str], **options: Any) -> None:
        self.root = Path(root)
        self._folders: dict[str, Path] = {}
        super().__init__(**options)

    def __str__(self) -> str:
        return f"FileTileStore({str(self.root)!r})"

    # Definitions.

    def _read_definition(self, tensor_id: str) -> dict[str, Any] | None:
        return self._read("tensor", tensor_id)

    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        # A folder of its own: what is still written after a clear_tensor lies beside the next tensor of this id.
        self._create("tensor", tensor_id, {**definition, "folder": secrets.token_hex(8)})

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> None:
        self._folders[tensor_id] = self._folder(definition)

    def _delete_tensor(self, tensor_id: str) -> None:
        self._folders.pop(tensor_id, None)
        definition = self._read_definition(tensor_id)
        self._document("tensor", tensor_id).unlink(missing_ok=True)
        if definition is not None:
            shutil.rmtree(self._folder(definition), ignore_errors=True)

    def _list_tensors(self) -> list[str]:
        return list(self._all("tensor"))

    # Tiles. Of a tensor that is not bound nothing is stored: it is known to a read-only store alone.

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        folder = self._folders.get(tensor_id)
        if folder is None:
            return [None] * len(tile_indices)
        found = [self._merged([folder / _name(tile)]) for tile in tile_indices]
        return [None if tile is None else tile.prefix for tile in found]

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        for tile, pixels in tiles.items():
            self._put(self._folders[tensor_id] / _name(tile), PartialTile(pixels))

    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        folder = self._folders.get(tensor_id)
        logs = {} if folder is None else _logs(folder)
        return [self._merged(logs.get(tile, ())) for tile in tile_indices]

    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        folder = self._folders[tensor_id]
        for tile, part in partials.items():
            if part is not None:
                # A file of its own, under a name that nobody else has: nothing is read, so nothing can be lost.
                self._put(folder / f"{_name(tile)}.part-{secrets.token_hex(8)}", part)
        self._unlink_logs(folder, [tile for tile, part in partials.items() if part is None])

    def _delete_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> None:
        folder = self._folders[tensor_id]
        self._unlink_logs(folder, tile_indices)
        for tile in tile_indices:
            (folder / _name(tile)).unlink(missing_ok=True)

    def _find_tiles(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        folder = self._folders.get(tensor_id)
        if folder is None:
            return set(), set()

        def inside(tiles: Iterable[Index]) -> set[Index]:
            return {tile for tile in tiles if all(a <= i < b for i, a, b in zip(tile, low, high, strict=True))}

        return inside(_complete(folder)), inside(_logs(folder))

    # What can be told of the store.

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:
        folder = self._folder(definition)
        stored = sum(path.stat().st_size for path in _files(folder))
        return TensorInfo(tensor_id, definition, len(_complete(folder)), len(_logs(folder)), stored, str(folder))

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        found = []
        for path in _files(self._folder(self.tensor_definition(tensor_id))):
            try:
                PartialTile.from_bytes(path.read_bytes(), self._place(path))
            except ValueError as error:
                is_part = ".part-" in path.name
                found.append(Damage("partial" if is_part else "tile", _index(path), self._place(path), str(error)))
                if repair:
                    path.unlink(missing_ok=True)
        return found

    def _collect_garbage(self) -> Garbage:
        # The folders first: one that is made from now on may belong to a tensor that is not seen below.
        folders = [path for path in self.root.glob("*") if path.is_dir()]
        used = {self._folder(definition) for definition in self._all("tensor").values()}
        garbage = [path for folder in folders if folder not in used for path in _files(folder)]
        for folder in used:
            complete, logs = _complete(folder), _logs(folder)
            garbage += [path for tile in complete & logs.keys() for path in logs[tile]]
        sizes = [path.stat().st_size for path in garbage]
        for path in garbage:
            path.unlink(missing_ok=True)
        return Garbage(len(garbage), sum(sizes))

    # Groups.

    def _read_group(self, group_id: str) -> dict[str, Any] | None:
        return self._read("group", group_id)

    def _write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        self._create("group", group_id, definition)

    def _delete_group(self, group_id: str) -> None:
        self._document("group", group_id).unlink(missing_ok=True)

    def _list_groups(self) -> list[str]:
        return list(self._all("group"))

    # Files.

    def _document(self, kind: str, name: str) -> Path:
        return self.root / f"{kind}-{hashlib.sha256(name.encode()).hexdigest()}.json"

    def _create(self, kind: str, name: str, definition: dict[str, Any]) -> None:
        beside = self._beside(self.root, json.dumps({"id": name, "definition": definition}).encode())
        # Whole or not at all, as by a rename, but nothing takes the place of a document that is there.
        with contextlib.suppress(FileExistsError):
            self._document(kind, name).hardlink_to(beside)
        beside.unlink()

    def _read(self, kind: str, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self._document(kind, name).read_bytes())["definition"]
        except FileNotFoundError:
            return None
        return found

    def _all(self, kind: str) -> dict[str, dict[str, Any]]:
        documents = [json.loads(path.read_bytes()) for path in self.root.glob(f"{kind}-*.json")]
        return {document["id"]: document["definition"] for document in documents}

    def _folder(self, definition: Mapping[str, Any]) -> Path:
        # A store may be damaged, or an attacker's: what it names lies in it.
        return self.root / Path(definition["folder"]).name

    def _place(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _put(self, path: Path, part: PartialTile) -> None:
        self._beside(path.parent, part.to_bytes(self._place(path))).replace(path)

    def _beside(self, folder: Path, data: bytes) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f"{secrets.token_hex(8)}.new"
        beside.write_bytes(data)
        return beside

    def _merged(self, paths: Iterable[Path]) -> PartialTile | None:
        parts = []
        for path in paths:
            try:
                parts.append(PartialTile.from_bytes(path.read_bytes(), self._place(path)))
            except FileNotFoundError:
                continue
            except ValueError as error:
                warnings.warn(f"{self}: {error}; it is treated as missing", DamagedDataWarning, stacklevel=2)
        return PartialTile.merged(parts)

    def _unlink_logs(self, folder: Path, tiles: Iterable[Index]) -> None:
        logs = _logs(folder)
        for path in [path for tile in tiles for path in logs.get(tile, ())]:
            path.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    """All files but those that are being written."""
    return [path for path in folder.glob("*") if path.suffix != ".new"]


def _complete(folder: Path) -> set[Index]:
    return {_index(path) for path in _files(folder) if ".part-" not in path.name}


def _logs(folder: Path) -> dict[Index, list[Path]]:
    """The parts of each partial tile."""
    logs: dict[Index, list[Path]] = {}
    for path in folder.glob("*.part-*"):
        logs.setdefault(_index(path), []).append(path)
    return logs


def _name(tile: Index) -> str:
    return ".".join(map(str, tile))


def _index(path: Path) -> Index:
    return tuple(map(int, path.name.split(".part-")[0].split(".")))
