"""A backend over a SQLite database: what a third party writes to have a store of its own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from infinite_tensor.tilestore.persistent import PartialTile, PersistentTileStore

Index = tuple[int, ...]

TABLES = """
CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, content TEXT NOT NULL, incarnation TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS tiles (
    tensor TEXT REFERENCES documents (incarnation) ON DELETE CASCADE, tile TEXT, pixels BLOB, PRIMARY KEY (tensor, tile)
);
CREATE TABLE IF NOT EXISTS parts (
    tensor TEXT REFERENCES documents (incarnation) ON DELETE CASCADE, tile TEXT, part BLOB
);
CREATE INDEX IF NOT EXISTS logs ON parts (tensor, tile);
"""


class SQLiteTileStore(PersistentTileStore):
    """Keeps tensors in one file, which any number of processes may use at the same time."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        self.path = Path(path).absolute()
        self._incarnations: dict[str, str] = {}
        super().__init__(**options)
        if not self.read_only:
            with self._database() as database:
                database.executescript(TABLES)

    def __str__(self) -> str:
        return f"SQLiteTileStore({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(SQLiteTileStore, read_only=self.read_only, **self._options()), (self.path,)

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection of this call, since none can be shared by threads or survives a fork; one transaction."""
        mode = "ro" if self.read_only else "rwc"
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=60)) as database:
            database.execute("PRAGMA foreign_keys = ON")
            with database:
                yield database

    # Definitions of tensors and groups.

    def _read_documents(self, names: Sequence[str]) -> list[dict[str, Any] | ValueError | None]:
        with self._database() as database:
            found = [database.execute("SELECT content FROM documents WHERE name = ?", (name,)) for name in names]
            return [None if (row := rows.fetchone()) is None else _parsed(row[0]) for rows in found]

    def _create_document(self, name: str, document: dict[str, Any]) -> None:
        with self._database() as database:
            row = name, json.dumps(document), document.get("incarnation")
            database.execute("INSERT OR IGNORE INTO documents VALUES (?, ?, ?)", row)

    def _delete_document(self, name: str) -> None:
        with self._database() as database:
            # The tiles of its tensor go with it.
            database.execute("DELETE FROM documents WHERE name = ?", (name,))

    def _list_documents(self, kind: str) -> list[str]:
        with self._database() as database:
            return [name for (name,) in database.execute("SELECT name FROM documents") if name.startswith(kind)]

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> None:
        # Not the id: who still writes after the tensor was cleared is refused, also where it was created again.
        self._incarnations[tensor_id] = definition["incarnation"]

    # Tiles. Of a tensor that is not bound nothing is stored: it is known to a read-only store alone.

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        found = self._parts("SELECT pixels FROM tiles WHERE tensor = ? AND tile = ?", tensor_id, tile_indices)
        return [None if tile is None else tile.prefix for tile in found]

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        rows = self._rows(tensor_id, {tile: PartialTile(pixels) for tile, pixels in tiles.items()})
        with self._database() as database:
            database.executemany("INSERT OR REPLACE INTO tiles VALUES (?, ?, ?)", rows)

    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        return self._parts("SELECT part FROM parts WHERE tensor = ? AND tile = ?", tensor_id, tile_indices)

    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        rows = self._rows(tensor_id, {tile: part for tile, part in partials.items() if part is not None})
        with self._database() as database:
            database.executemany("INSERT INTO parts VALUES (?, ?, ?)", rows)
            self._delete(database, ["parts"], tensor_id, [tile for tile, part in partials.items() if part is None])

    def _delete_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> None:
        with self._database() as database:
            self._delete(database, ["parts", "tiles"], tensor_id, tile_indices)

    def _parts(self, query: str, tensor_id: str, tiles: Sequence[Index]) -> list[PartialTile | None]:
        incarnation = self._incarnations.get(tensor_id)
        with self._database() as database:
            logs = [[part for (part,) in database.execute(query, (incarnation, str(tile)))] for tile in tiles]
        return [PartialTile.from_log(log, f"{incarnation}/{tile}", self) for tile, log in zip(tiles, logs, strict=True)]

    def _rows(self, tensor_id: str, parts: Mapping[Index, PartialTile]) -> list[tuple[str, str, bytes]]:
        incarnation = self._incarnations[tensor_id]
        return [(incarnation, str(tile), part.to_bytes(f"{incarnation}/{tile}")) for tile, part in parts.items()]

    def _delete(
        self, database: sqlite3.Connection, tables: Iterable[str], tensor_id: str, tiles: Iterable[Index]
    ) -> None:
        rows = [(self._incarnations[tensor_id], str(tile)) for tile in tiles]
        for table in tables:
            database.executemany(f"DELETE FROM {table} WHERE tensor = ? AND tile = ?", rows)  # noqa: S608


def _parsed(content: str) -> dict[str, Any] | ValueError:
    try:
        found: dict[str, Any] = json.loads(content)
    except ValueError as error:
        return error
    return found
