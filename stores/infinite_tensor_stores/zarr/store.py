"""Tiles in a Zarr store, on any local or object storage: one group per tensor, one chunk per tile."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from zarr.abc.store import Store
from zarr.storage import LocalStore

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.failures import cleared_elsewhere, remade_elsewhere, warn_of_damage
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.report import Damage, Garbage, TensorInfo
from infinite_tensor_stores.binding import BindingStore
from infinite_tensor_stores.documents import name_of
from infinite_tensor_stores.dtypes import from_stored, stored_dtype, to_stored
from infinite_tensor_stores.files import LARGEST_DOCUMENT, content
from infinite_tensor_stores.targets import (
    DEFAULT_TIMEOUT,
    absolute,
    check_concurrency,
    check_mode,
    check_timeout,
    is_in_memory,
    shown,
    zarr_store,
)
from infinite_tensor_stores.zarr.codec import ChunkCodec, codecs_of
from infinite_tensor_stores.zarr.definitions import (
    check_root,
    definitions_in,
    delete_group,
    delete_tensor,
    groups_in,
    read_definition,
    read_group,
    tensors_in,
    write_definition,
    write_group,
)
from infinite_tensor_stores.zarr.layout import DOCUMENT, Place, array_document, attributes_in
from infinite_tensor_stores.zarr.objects import DEFAULT_CONCURRENCY, concurrently, disconnect, get_many, put_encoded
from infinite_tensor_stores.zarr.root import open_root
from infinite_tensor_stores.zarr.tiles import Logs, Writers, described, logged_in, logs_of, part_of, tiles_in
from infinite_tensor_stores.zarr.upkeep import Sweep, damages, place_in


class _Bound(NamedTuple):
    """Where a tensor lies, how its tiles are encoded, who writes them, and the logs of those that are not complete."""

    place: Place
    codec: ChunkCodec
    writers: Writers
    logs: Logs


class ZarrTileStore(BindingStore[_Bound]):
    """Keeps tensors in a Zarr store (format 3), each as a group with one array of complete tiles.

    Any number of processes may read and write one store without a lock.

    Parameters
    ----------
    target : str, path or zarr Store
        A path, any fsspec URL (``s3://``, ``gs://``, ``memory://``, ...), or a zarr Store. A relative path is taken
        from the folder that is current now, and stays the place that it is.
    mode : str
        ``a`` opens or creates, ``r+`` opens, ``r`` opens and never writes, ``w`` deletes what is there and
        creates, ``w-`` creates and fails where something is.
    tile_size : int or tuple of int, optional
        Extent of a tile, which is a chunk; see `PersistentTileStore`. Default: 512 for new tensors, what they are
        stored with for others.
    storage_options : dict, optional
        Passed to fsspec. Kept in memory only, never shown.
    timeout : float
        Seconds within which S3 is reported when it is down or hangs, attempts to reach it again included. What
        `storage_options` say of time-outs and retries wins. Other storages, and a zarr Store that is given as
        `target`, have options of their own.
    concurrency : int
        How many requests one read or write has under way at a time, from 1 to 256.
    compressors : zarr codec, sequence of them, "auto" or None
        How new tensors are compressed: Zstandard and Blosc, one or several of them, or gzip alone; None does not
        compress. A CRC-32C always follows. Earlier versions took any codec: a tensor of another one opens where that is
        named here, since damage may make it take any amount of memory.
    cache_size_bytes : int or None
        Limit of the cache of tiles in memory, in bytes.
    cache_size_tiles : int or None
        Limit of the cache in tiles.
    flush_interval : float
        Seconds after which windows of incomplete tiles are stored, looked at as windows arrive.
    workers : int
        On how many threads a read runs ``f``.

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

    def __init__(
        self,
        target: str | os.PathLike[str] | Store,
        *,
        mode: str = "a",
        tile_size: int | Sequence[int] | None = None,
        storage_options: dict[str, Any] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        concurrency: int = DEFAULT_CONCURRENCY,
        compressors: Any = "auto",
        cache_size_bytes: int | None = 100 * 2**20,
        cache_size_tiles: int | None = None,
        flush_interval: float = 30.0,
        workers: int = 1,
    ) -> None:
        self.target = absolute(target)
        self.mode = check_mode(mode)
        self._compressors = compressors
        read_only = mode == "r"
        self._storage_options = storage_options
        self._timeout = check_timeout(timeout)
        self.concurrency = check_concurrency(concurrency)
        self._opened: Store | None = zarr_store(self.target, storage_options, read_only, self._timeout)
        # Fixed when a tensor is registered: whoever goes on writing after the id was cleared and made anew writes
        # beside the new tensor, never into it.
        self._bound = {}
        self._created: str | None = None
        super().__init__(
            tile_size,
            cache_size_bytes,
            cache_size_tiles,
            flush_interval=flush_interval,
            read_only=read_only,
            workers=workers,
        )
        open_root(self._store, self.mode, self)

    def __repr__(self) -> str:
        return f"ZarrTileStore({shown(self.target)!r}, mode={self.mode!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference: the target and the options, its credentials too; never what waits to be stored."""
        own = {
            "storage_options": self._storage_options,
            "timeout": self._timeout,
            "concurrency": self.concurrency,
            "compressors": self._compressors,
        }
        mode = "r" if self.read_only else "r+"
        return partial(type(self), mode=mode, **own, **self._options()), (self.target,)

    @property
    def address(self) -> str | None:
        """The target, without credentials that a URL may hold; None for a zarr Store that is no folder."""
        addressed = not isinstance(self.target, Store) or isinstance(self.target, LocalStore)
        return shown(self.target) if addressed else None

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether the target is anywhere but in the memory of this process."""
        return not is_in_memory(self._store)

    @property
    def _store(self) -> Store:
        """The zarr Store; in a forked child a new one, since connections do not survive a fork."""
        opened = self._opened
        if opened is None:
            self._opened = opened = zarr_store(self.target, self._storage_options, self.read_only, self._timeout)
        return opened

    def _renew_after_fork(self) -> None:
        super()._renew_after_fork()
        self._opened = None
        self._created = None
        for bound in self._bound.values():
            bound.writers.leave()

    def _resume(self) -> None:
        open_root(self._store, "a" if self.mode in ("w", "w-") else self.mode, self)

    # Definitions.

    def _read_definition(self, tensor_id: str) -> dict[str, Any] | None:
        return read_definition(self._store, tensor_id, self)

    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        self._created = write_definition(self._store, tensor_id, definition, self._compressors, self)

    def _delete_tensor(self, tensor_id: str) -> None:
        self._bound.pop(tensor_id, None)
        delete_tensor(self._store, tensor_id, self)

    def _binding(self, tensor_id: str, definition: Mapping[str, Any]) -> _Bound:  # noqa: ARG002  (the definition names it)
        place = Place.of(definition)
        # Once: whoever binds the tensor again does not know what has been written since.
        founder, self._created = place.definition["incarnation"] == self._created, None
        writers = Writers(place.shared, founder=founder)
        return _Bound(place, self._codec_of(place), writers, Logs(self.concurrency))

    def _codec_of(self, place: Place) -> ChunkCodec:
        codec = ChunkCodec(array_document(place.definition))
        if not codec.is_bounded:
            self._check_chosen(place)
        return codec

    def _check_chosen(self, place: Place) -> None:
        """StoreError unless the codecs of a tensor are those that this store was given."""
        chosen = codecs_of(stored_dtype(place.layout.dtype), place.layout.tile_shape, self._compressors)
        names, chosen_names = ([one["name"] for one in codecs] for codecs in (place.definition["codecs"], chosen))
        if names != chosen_names:
            raise StoreError(
                f"{self!r}: tensor {place.definition['tensor_id']!r} is stored with {', '.join(names)}: damage there "
                "may take any amount of memory. If you trust the store, name them in compressors=... when you open it"
            )

    # Groups of tensors.

    def _read_group(self, group_id: str) -> dict[str, Any] | None:
        return read_group(self._store, group_id, self)

    def _write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        write_group(self._store, group_id, definition, self)

    def _delete_group(self, group_id: str) -> None:
        delete_group(self._store, group_id, self)

    def _list_groups(self) -> list[str]:
        return groups_in(self._store, self.concurrency, self)

    # Tiles.

    def _read_bound_tiles(
        self, tensor_id: str, bound: _Bound, tile_indices: Sequence[Index]
    ) -> list[torch.Tensor | None]:
        place, codec = bound.place, bound.codec
        candidates = self._candidates(bound, tile_indices)
        found = get_many(self._store, list(map(place.chunk, candidates)), self.concurrency, most=codec.most_bytes)
        present = {tile: data for tile, data in zip(candidates, found, strict=True) if data is not None}
        blocks = codec.decode(list(present.values()))
        tiles: dict[Index, torch.Tensor] = {}
        for tile, block in zip(present, blocks, strict=True):
            if isinstance(block, Exception):
                warn_of_damage(self, f"tile {tile} of tensor {tensor_id!r} is damaged ({block})")
            else:
                tiles[tile] = from_stored(block, place.layout.dtype)
        return [tiles.get(tile) for tile in tile_indices]

    def _candidates(self, bound: _Bound, tile_indices: Sequence[Index]) -> list[Index]:
        """Those of some tiles of which something may be stored."""
        doubt = bound.writers.doubt(tile_indices)
        return bound.writers.candidates(tile_indices, get_many(self._store, doubt) if doubt else [])

    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        place, codec, writers, _ = self._bound[tensor_id]
        self._check_place(tensor_id, place, *get_many(self._store, [place.group]))
        writers.will_write(self._store, tiles)
        blocks = {place.chunk(tile): to_stored(block) for tile, block in tiles.items()}
        put_encoded(self._store, blocks, codec.encode, self.concurrency)

    def _read_bound_partials(
        self, tensor_id: str, bound: _Bound, tile_indices: Sequence[Index]
    ) -> list[PartialTile | None]:
        place, _, writers, bound_logs = bound
        doubt = writers.doubt(tile_indices)
        # Where nothing is in doubt, the parts are asked for with the definition.
        keys = doubt or [part_of(place.log(tile)) for tile in tile_indices]
        most = max(place.largest_part, LARGEST_DOCUMENT)
        document, *found = get_many(self._store, [place.group, *keys], self.concurrency, most=most)
        self._check_place(tensor_id, place, document)
        tiles = writers.candidates(tile_indices, found if doubt else [])
        logs = [place.log(tile) for tile in tiles]
        first = get_many(self._store, [*map(part_of, logs)], self.concurrency, most=most) if doubt else found
        parts = bound_logs.read(self._store, dict(zip(logs, first, strict=True)), most)
        return [PartialTile.merged(self._parts_in(log, parts.get(log, ()))) for log in map(place.log, tile_indices)]

    def _parts_in(self, log: str, stored: Sequence[bytes]) -> list[PartialTile]:
        parts = []
        for number, data in enumerate(stored):
            try:
                parts.append(PartialTile.from_bytes(content(data), log))
            except ValueError as error:
                warn_of_damage(self, f"part {number}: {error}")
        return parts

    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        place, _, writers, logs = self._bound[tensor_id]
        self._check_place(tensor_id, place, *get_many(self._store, [place.group]))
        writers.will_write(self._store, [tile for tile, part in partials.items() if part is not None])
        parts = {place.log(tile): part for tile, part in partials.items()}
        logs.write(self._store, {log: None if part is None else part.to_bytes(log) for log, part in parts.items()})

    def _delete_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> None:
        place, _, _, logs = self._bound[tensor_id]
        self._check_place(tensor_id, place, *get_many(self._store, [place.group]))
        # Before they go: part 1 of a log that has lost its part 0 would never be found.
        logs.forget(map(place.log, tile_indices))
        logs.delete(self._store, logs_of(self._store, place, set(tile_indices)))
        concurrently(self._store.delete, map(place.chunk, tile_indices), self.concurrency)

    def _has_bound_tiles(self, bound: _Bound, tile_indices: Sequence[Index]) -> list[bool]:
        candidates = self._candidates(bound, tile_indices)
        found = concurrently(self._store.exists, map(bound.place.chunk, candidates), self.concurrency)
        there = dict(zip(candidates, found, strict=True))
        return [there.get(tile, False) for tile in tile_indices]

    def _find_bound_tiles(
        self, bound: _Bound, low: Sequence[int], high: Sequence[int]
    ) -> tuple[set[Index], set[Index]]:
        return tiles_in(self._store, bound.place, low, high, self.concurrency)

    def _find_bound_partials(self, bound: _Bound, low: Sequence[int], high: Sequence[int]) -> set[Index]:
        return logged_in(self._store, bound.place, low, high)

    def _check_place(self, tensor_id: str, place: Place, document: bytes | None) -> None:
        """StoreError if `document`, found where the tensor's definition was, no longer defines what lies at `place`."""
        bound = self._bound.get(tensor_id)
        if bound is None or bound.place is not place:
            # Cleared here, in the meantime: the caller knows.
            return
        if document is None:
            raise cleared_elsewhere(self, tensor_id)
        try:
            found = attributes_in(document)
        except ValueError:
            # Damaged, which `verify` reports.
            return
        if found is not None and found.get("incarnation") != place.definition["incarnation"]:
            raise remade_elsewhere(self, tensor_id)

    # What can be told of the store.

    def _list_tensors(self) -> list[str]:
        return tensors_in(self._store, self.concurrency, self)

    def _read_definitions(self) -> dict[str, dict[str, Any]]:
        return definitions_in(self._store, self.concurrency, self)

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:  # noqa: ARG002  (the definition names it)
        return described(self._store, Place.of(definition), self.concurrency)

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        name = name_of(tensor_id)
        (document,) = get_many(self._store, [f"{name}/{DOCUMENT}"])
        if document is None:
            # An error, unless it is a tensor that a read-only store knows and may not create.
            self.tensor_definition(tensor_id)
            return []
        place = place_in(self._store, name, document, self)
        if isinstance(place, Damage):
            return [place]
        return list(damages(self._store, place, self._codec_of(place), self.concurrency, repair=repair))

    def _collect_garbage(self) -> Garbage:
        check_root(self._store, self)
        sweep = Sweep(self._store, self.concurrency)
        collected = sweep.run()
        for bound in list(self._bound.values()):
            bound.logs.forget(sweep.logs)
        return collected

    def _close_backend(self) -> None:
        self._bound.clear()
        disconnect(self._store)
