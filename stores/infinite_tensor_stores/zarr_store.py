"""Tiles in a Zarr store, on any local or object storage: one group per tensor, one chunk per tile."""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from zarr.abc.store import Store
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.sync import sync

from infinite_tensor.compat import accepts_old_keywords
from infinite_tensor.definition import dtype_of, scalar_from_json
from infinite_tensor.errors import DamagedDataWarning, StoreError
from infinite_tensor.indexing import COORDINATE_LIMIT
from infinite_tensor.tilestore.contract import TensorInfo
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent import FORMAT, PersistentTileStore
from infinite_tensor.window import Index
from infinite_tensor_stores.dtypes import from_stored, stored_dtype, to_stored
from infinite_tensor_stores.names import name_of
from infinite_tensor_stores.targets import check_mode, shown, zarr_store
from infinite_tensor_stores.zarr_chunks import ChunkCodec, array_document
from infinite_tensor_stores.zarr_objects import (
    concurrently,
    create,
    delete_folder,
    delete_parts,
    get_many,
    put_many,
)

_ATTRIBUTE = "infinite_tensor"


@dataclass(frozen=True)
class _Place:
    """Where the tiles of one registered tensor are.

    The incarnation is fixed when the tensor is registered: whoever goes on writing after the id was cleared
    and made anew writes beside the new tensor, never into it.
    """

    name: str
    incarnation: str
    origin: Index
    dtype: torch.dtype
    tile_shape: Index
    codec: ChunkCodec

    @property
    def array(self) -> str:
        return f"{self.name}/tiles-{self.incarnation}"

    def chunk(self, tile: Index) -> str:
        """Key of a complete tile."""
        chunk = [i + o // n for i, o, n in zip(tile, self.origin, self.tile_shape, strict=True)]
        return f"{self.array}/{self.codec.key(chunk)}"

    def partial(self, tile: Index) -> str:
        """Prefix of the log of a partial tile."""
        return f"{self.name}/partial-{self.incarnation}/0.{'.'.join(map(str, tile))}"


class ZarrTileStore(PersistentTileStore):
    """Keeps tensors in a Zarr store (format 3), each as a group with one array of complete tiles.

    Any number of processes may read and write one store without a lock.

    Parameters
    ----------
    target : str, path or zarr Store
        A path, any fsspec URL (``s3://``, ``gs://``, ``memory://``, ...), or a zarr Store.
    mode : str
        ``a`` opens or creates, ``r+`` opens, ``r`` opens and never writes, ``w`` deletes what is there and
        creates, ``w-`` creates and fails where something is.
    tile_size : int or tuple of int
        Extent of a tile, which is a chunk; see `PersistentTileStore`.
    storage_options : dict, optional
        Passed to fsspec. Kept in memory only, never shown.
    compressors : zarr codec, sequence of them, "auto" or None
        How new tensors are compressed. A CRC-32C always follows.
    cache_size_bytes : int or None
        Limit of the cache of tiles in memory, in bytes.
    cache_size_tiles : int or None
        Limit of the cache in tiles.
    flush_interval : float
        Seconds after which windows of incomplete tiles are stored, looked at as windows arrive.

    Examples
    --------
    >>> store = ZarrTileStore("memory://example-map", tile_size=64)
    >>> t = InfiniteTensor(
    ...     (None, None), lambda ctx: torch.ones(64, 64), TensorWindow((64, 64)), tile_store=store, tensor_id="map"
    ... )
    >>> float(t[-100:100, 0:50].sum())
    10000.0
    >>> store.close()
    """

    @accepts_old_keywords
    def __init__(
        self,
        target: str | os.PathLike[str] | Store,
        *,
        mode: str = "a",
        tile_size: int | Sequence[int] = 512,
        storage_options: dict[str, Any] | None = None,
        compressors: Any = "auto",
        cache_size_bytes: int | None = 100 * 2**20,
        cache_size_tiles: int | None = None,
        flush_interval: float = 30.0,
    ) -> None:
        self.target = target
        self.mode = check_mode(mode)
        self._compressors = compressors
        read_only = mode == "r"
        self._store = zarr_store(target, storage_options, read_only)
        self._places: dict[str, _Place] = {}
        self._parts: dict[str, int] = {}
        super().__init__(
            tile_size, cache_size_bytes, cache_size_tiles, flush_interval=flush_interval, read_only=read_only
        )
        self._open_root()

    def __repr__(self) -> str:
        return f"ZarrTileStore({shown(self.target)!r}, mode={self.mode!r})"

    def _open_root(self) -> None:
        try:
            self._open_root_in(self.mode)
        except StoreError:
            raise
        except FileNotFoundError as error:
            raise StoreError(f"{self!r}: there is no store; mode 'a' or 'w' creates one") from error
        except OSError as error:
            raise StoreError(f"{self!r} cannot be opened: {type(error).__name__}: {error}") from error

    def _open_root_in(self, mode: str) -> None:
        document = get_many(self._store, ["zarr.json"])[0]
        ours = None if document is None else _attributes(document, f"{self!r}: zarr.json")
        if document is not None and ours is None:
            raise StoreError(f"{self!r}: there is a Zarr hierarchy that is not of this library; choose another path")
        if ours is not None and ours.get("format", FORMAT) > FORMAT:
            raise StoreError(f"{self!r} has format {ours['format']}, this version reads up to {FORMAT}")
        if mode in ("r", "r+") and ours is None:
            raise StoreError(f"{self!r}: there is no store; mode 'a' or 'w' creates one")
        if mode == "w-" and (ours is not None or not sync(self._store.is_empty(""))):
            raise StoreError(f"{self!r}: there is something already; mode 'a' opens it, 'w' deletes it")
        if mode == "w" and ours is not None:
            sync(self._store.clear())
            ours = None
        elif mode == "w" and not sync(self._store.is_empty("")):
            raise StoreError(f"{self!r}: what is there is not of this library, so mode 'w' does not delete it")
        if ours is None:
            sync(create(self._store, "zarr.json", _group({"format": FORMAT})))

    def _resume(self) -> None:
        self._open_root_in("r" if self.read_only else "a")

    # Definitions.

    def _read_definition(self, tensor_id: str) -> dict[str, Any] | None:
        document = get_many(self._store, [f"{name_of(tensor_id)}/zarr.json"])[0]
        return None if document is None else self._definition_in(document, name_of(tensor_id), tensor_id)

    def _definition_in(self, document: bytes, name: str, tensor_id: str | None = None) -> dict[str, Any]:
        attributes = _attributes(document, f"{self!r}: {name}/zarr.json")
        if attributes is None or (tensor_id is not None and attributes.get("tensor_id") != tensor_id):
            raise StoreError(f"{self!r}: {name}/zarr.json does not define tensor {tensor_id!r}; it may be damaged")
        return attributes

    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        name, incarnation = name_of(tensor_id), secrets.token_hex(8)
        extents, origin = _extents(definition["shape"], definition["tile_size"])
        dtype = dtype_of(definition["dtype"])
        document = array_document(
            extents, definition["tile_size"], stored_dtype(dtype), _fill_value(definition, dtype), self._codecs()
        )
        put_many(self._store, {f"{name}/tiles-{incarnation}/zarr.json": document})
        attributes = {**definition, "incarnation": incarnation, "origin": origin}
        if not sync(create(self._store, f"{name}/zarr.json", _group(attributes))):
            sync(delete_folder(self._store, f"{name}/tiles-{incarnation}"))

    def _codecs(self) -> tuple[Any, ...]:
        if isinstance(self._compressors, str) and self._compressors == "auto":
            return ZstdCodec(level=1), Crc32cCodec()
        if self._compressors is None:
            return (Crc32cCodec(),)
        chosen = self._compressors if isinstance(self._compressors, Sequence) else (self._compressors,)
        return (*chosen, Crc32cCodec())

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> None:
        name, incarnation = name_of(tensor_id), definition["incarnation"]
        document = get_many(self._store, [f"{name}/tiles-{incarnation}/zarr.json"])[0]
        if document is None:
            raise StoreError(f"{self!r}: the array of tensor {tensor_id!r} is gone; clear_tensor it to start anew")
        self._places[tensor_id] = _Place(
            name,
            incarnation,
            tuple(definition["origin"]),
            dtype_of(definition["dtype"]),
            tuple(definition["tile_size"]),
            ChunkCodec(document),
        )

    def _delete_tensor(self, tensor_id: str) -> None:
        name = name_of(tensor_id)
        stored = self._read_definition(tensor_id)
        self._places.pop(tensor_id, None)
        if stored is not None:
            # The definition first: without it the rest is garbage, whatever happens to this process.
            sync(self._store.delete(f"{name}/zarr.json"))
            for kind in ("tiles", "partial"):
                sync(delete_folder(self._store, f"{name}/{kind}-{stored['incarnation']}"))

    # Tiles.

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        place = self._places.get(tensor_id)
        if place is None:
            return [None] * len(tile_indices)
        stored = get_many(self._store, [place.chunk(tile) for tile in tile_indices])
        present = [number for number, data in enumerate(stored) if data is not None]
        tiles: list[torch.Tensor | None] = [None] * len(tile_indices)
        for number, block in zip(present, place.codec.decode([stored[n] or b"" for n in present]), strict=True):
            if isinstance(block, Exception):
                self._warn(f"tile {tile_indices[number]} of tensor {tensor_id!r} is damaged ({block})")
            else:
                tiles[number] = from_stored(block, place.dtype)
        return tiles

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        place = self._places[tensor_id]
        encoded = place.codec.encode([to_stored(tile) for tile in tiles.values()])
        put_many(self._store, dict(zip(map(place.chunk, tiles), encoded, strict=True)))

    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        place = self._places.get(tensor_id)
        if place is None:
            return [None] * len(tile_indices)
        logs: dict[Index, list[bytes]] = {tile: [] for tile in tile_indices}
        growing = list(tile_indices)
        while growing:
            parts = get_many(self._store, [f"{place.partial(tile)}/{len(logs[tile])}" for tile in growing])
            for tile, part in zip(growing, parts, strict=True):
                if part is not None:
                    logs[tile].append(part)
            growing = [tile for tile, part in zip(growing, parts, strict=True) if part is not None]
        for tile, log in logs.items():
            if log:
                self._parts[place.partial(tile)] = len(log)
        return [PartialTile.merged(self._parts_in(place, tile, logs[tile])) for tile in tile_indices]

    def _parts_in(self, place: _Place, tile: Index, log: Sequence[bytes]) -> list[PartialTile]:
        parts = []
        for number, data in enumerate(log):
            try:
                parts.append(PartialTile.from_bytes(data, place.partial(tile)))
            except ValueError as error:
                self._warn(f"part {number}: {error}")
        return parts

    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        place = self._places[tensor_id]

        async def write(item: tuple[Index, PartialTile | None]) -> None:
            prefix = place.partial(item[0])
            if item[1] is None:
                await delete_parts(self._store, prefix, self._parts.pop(prefix, 0))
                return
            data, number = item[1].to_bytes(prefix), self._parts.get(prefix, 0)
            # Another process may have added parts: take the next number that is free.
            while not await create(self._store, f"{prefix}/{number}", data):
                number += 1
            self._parts[prefix] = number + 1

        concurrently(write, partials.items())

    def _warn(self, what: str) -> None:
        warnings.warn(f"{self!r}: {what}; it is treated as missing", DamagedDataWarning, stacklevel=2)

    # What can be told of the store.

    def _list_tensors(self) -> list[str]:
        async def names() -> list[str]:
            return [name async for name in self._store.list_dir("") if name.startswith("t-")]

        found = sync(names())
        documents = zip(found, get_many(self._store, [f"{name}/zarr.json" for name in found]), strict=True)
        return [self._definition_in(data, name)["tensor_id"] for name, data in documents if data is not None]

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:
        name, incarnation = name_of(tensor_id), definition["incarnation"]

        async def keys(prefix: str) -> list[str]:
            return [key async for key in self._store.list_prefix(prefix)]

        chunks = sync(keys(f"{name}/tiles-{incarnation}/c/"))
        parts = sync(keys(f"{name}/partial-{incarnation}/"))
        sizes = concurrently(self._store.getsize, [*chunks, *parts])
        origin, size = definition["origin"], definition["tile_size"]
        complete = {key.split("/c/", 1)[1] for key in chunks}
        # A log that another process has left behind does not make a complete tile partial.
        logs = {key.split("/")[-2] for key in parts}
        partial = {log for log in logs if _chunk_of(log, origin, size) not in complete}
        return TensorInfo(tensor_id, definition, len(chunks), len(partial), sum(sizes), f"{name}/tiles-{incarnation}")

    def _close_backend(self) -> None:
        self._places.clear()
        self._parts.clear()


def _chunk_of(log: str, origin: Sequence[int], size: Sequence[int]) -> str:
    """The end of a chunk's key for the folder that the log of its tile lies in."""
    tile = [int(i) for i in log.split(".")[1:]]
    return "/".join(str(i + o // n) for i, o, n in zip(tile, origin, size, strict=True))


def _group(attributes: Mapping[str, Any]) -> bytes:
    document = {"zarr_format": 3, "node_type": "group", "attributes": {_ATTRIBUTE: attributes}}
    return json.dumps(document, indent=2, allow_nan=False).encode()


def _attributes(document: bytes, where: str) -> dict[str, Any] | None:
    """The attributes of this library in a group; None where it has none."""
    try:
        found = json.loads(document)["attributes"].get(_ATTRIBUTE)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise StoreError(f"{where} is not the metadata of a Zarr group ({error}); it may be damaged") from error
    return found if isinstance(found, dict) else None


def _extents(shape: Sequence[int | None], tile: Sequence[int]) -> tuple[list[int], list[int]]:
    """Extent of the array per dimension, and the array index of pixel 0: in the middle, on a tile's border."""
    middle = [
        0 if extent is not None else -(-COORDINATE_LIMIT // size) * size
        for extent, size in zip(shape, tile, strict=True)
    ]
    return [extent or 2 * half for extent, half in zip(shape, middle, strict=True)], middle


def _fill_value(definition: Mapping[str, Any], dtype: torch.dtype) -> object:
    init = scalar_from_json(definition["blend_init"])
    fill = torch.tensor([0 if init is None else init], dtype=dtype, device="cpu")
    return to_stored(fill)[0].item()
