"""Copies of tensors from one store to another: definitions, then tiles, as they are stored where that can be."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index, is_empty
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.support.arguments import checked_flag, checked_id, checked_progress
from infinite_tensor.support.given import quoted
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.memory.contents import MemoryContents
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent.contents import PersistentContents
from infinite_tensor.tilestore.store import TileStore
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.definition import differences
from infinite_tensor.values.functions import changes
from infinite_tensor.values.spec import TensorSpec
from infinite_tensor.views.copied import CopyReport, CopyTally, CopyWatcher, TensorCopy
from infinite_tensor.views.copying_windows import tiles_into_windows, windows_into_tiles, windows_into_windows
from infinite_tensor_stores import shared_store
from infinite_tensor_stores.targets import is_local, local_path

_BATCH_TILES = 256
_BATCH_BYTES = 2**25
"""About so much of pixels is on its way at a time."""

_INTERRUPTED = (
    "The copy was interrupted; what it has moved is there. Call store.copy again with the same arguments to continue."
)


def copy_tensor(
    store: TileStore,
    tensor_id: str,
    other_store: object,
    *,
    upstream: bool,
    region: object,
    overwrite: bool,
    progress: bool | str | CopyWatcher,
) -> CopyReport:
    """`TileStore.copy`; see there."""
    tensor_id, watcher = checked_id(tensor_id), checked_progress(progress)
    source = _checked_contents(store)
    overwrite = checked_flag("overwrite", overwrite)
    jobs, absent = _jobs(source, tensor_id, upstream=checked_flag("upstream", upstream))
    jobs[-1] = jobs[-1].within(region)
    # Last, as it may create one. What a store holds does not keep it alive.
    other = _checked_store(store, other_store)
    target = _checked_contents(other)
    target.check_writable("take a copy")
    in_the_way = _all_in_the_way(jobs, store, other)
    if in_the_way and not overwrite:
        raise _taken(target, *next(iter(in_the_way.items())))
    # What is computed from another comes first, as it would be warned of otherwise.
    for name in reversed(in_the_way):
        other.clear_tensor(name)
    call = store_call()
    try:
        with call.running, CopyTally(watcher) as tally:
            call.begin(source, target)
            source.flush()
            target.flush()
            copies = tuple([_copy(job, source, target, tally) for job in jobs])
            return tally.finish(CopyReport(copies, absent, str(other), tally.seconds))
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_INTERRUPTED)
        raise


_Contents = PersistentContents | MemoryContents


@dataclass(frozen=True)
class _Job:
    """One tensor to copy.

    Attributes
    ----------
    spec : TensorSpec
        The tensor.
    stored : mapping
        Its definition, as it is stored where it comes from.
    record : Record or None
        What that store knows of it; None for one in memory.
    selection : Selection or None
        Which pixels; None for all.
    """

    spec: TensorSpec
    stored: Mapping[str, Any]
    record: Record | None = None
    selection: Selection | None = None

    def within(self, region: object) -> _Job:
        """The same, of a region alone."""
        if region is None:
            return self
        return replace(self, selection=parse(region, self.spec.shape, self.spec.labels))


def _checked_contents(store: TileStore) -> _Contents:
    contents = store.contents
    if not isinstance(contents, PersistentContents | MemoryContents):
        raise ValidationError(f"{store} is not a store that tensors can be copied from or to; save what it is made of")
    contents.check_open()
    return contents


def _checked_store(store: TileStore, other: object) -> TileStore:
    if isinstance(other, str | os.PathLike):
        other = shared_store(other)
    if not isinstance(other, TileStore):
        raise ValidationError(f"other_store must be a TileStore, a path or a URL, got {quoted(other)}")
    if other.contents is store.contents:
        raise ValidationError(f"{store} cannot be copied into itself; give another store")
    return other


def _share_a_place(store: TileStore, other: TileStore) -> bool:
    """Whether two stores are one as far as their addresses tell; those without one may be."""
    if store.address is None or other.address is None or store.address == other.address:
        return True
    if not is_local(store.address) or not is_local(other.address):
        return False
    here, there = local_path(store.address), local_path(other.address)
    return here.exists() and there.exists() and here.samefile(there)


def _check_other(jobs: Sequence[_Job], source: _Contents, target: _Contents) -> None:
    """ValidationError where the tensors of two stores at one place are the same; a copy of all its files is another."""
    for job in jobs:
        tensor_id, incarnation = job.spec.tensor_id, job.stored.get("incarnation")
        if incarnation is None or not target.holds(tensor_id):
            continue
        if target.definition_of(tensor_id).get("incarnation") == incarnation:
            raise ValidationError(
                f"tensor {tensor_id!r} cannot be copied into itself: {source} and {target} are one store"
            )


# Which tensors.


def _jobs(source: _Contents, tensor_id: str, *, upstream: bool) -> tuple[list[_Job], tuple[str, ...]]:
    """A tensor, and before it those that it reads, as far as they are there; and the ids of those that are not."""
    found: dict[str, _Job] = {}
    absent: dict[str, None] = {}
    entered = {tensor_id: _job(source, tensor_id)}
    waiting = [(tensor_id, _named_args(entered[tensor_id]) if upstream else iter(()))]
    # A loop instead of recursion, for deep chains.
    while waiting:
        name, args = waiting[-1]
        for arg, digest in args:
            if arg in entered:
                continue
            if source.digest_of(arg) != digest:
                absent[arg] = None
                continue
            entered[arg] = _job(source, arg)
            waiting.append((arg, _named_args(entered[arg])))
            break
        else:
            found[name] = entered[name]
            waiting.pop()
    return list(found.values()), tuple(absent)


def _named_args(job: _Job) -> Iterator[tuple[str, str]]:
    return ((arg.tensor_id, arg.digest) for arg in job.spec.definition.args if arg.tensor_id is not None)


def _job(source: _Contents, tensor_id: str) -> _Job:
    stored = source.definition_of(tensor_id)
    if isinstance(source, MemoryContents):
        return _Job(source.kept.specs[tensor_id], stored)
    spec = StoredTensor.of(source, tensor_id, stored).spec(tensor_id)
    with source.lock:
        record = source.registry.records.get(tensor_id) or source.registry.record_of(spec)
    # Another process may have cleared it, and created it again.
    source.check_there(record)
    return _Job(spec, stored, record)


def _all_in_the_way(jobs: Sequence[_Job], store: TileStore, other: TileStore) -> dict[str, Sequence[str]]:
    source, target = _checked_contents(store), _checked_contents(other)
    if _share_a_place(store, other):
        _check_other(jobs, source, target)
    found = {job.spec.tensor_id: _in_the_way(job, source, target) for job in jobs}
    return {name: lines for name, lines in found.items() if lines}


def _in_the_way(job: _Job, source: _Contents, target: _Contents) -> Sequence[str]:
    """In what the tensor that has taken the id is another one; nothing where the id is free.

    ValidationError where the target can hold nothing of this one, or is where it comes from.
    """
    spec = job.spec
    if isinstance(target, MemoryContents) and isinstance(source, PersistentContents):
        _check_separable(spec, target)
    if isinstance(source, PersistentContents) and not source.storage.finds_tiles and job.selection is None:
        _check_finite(spec, source)
    if not target.holds(spec.tensor_id):
        return ()
    stored = target.definition_of(spec.tensor_id)
    return _differences(StoredTensor.of(target, spec.tensor_id, stored), spec)


def _taken(target: _Contents, tensor_id: str, lines: Sequence[str]) -> ValidationError:
    listed = "".join(f"\n  {line}" for line in lines)
    return ValidationError(
        f"{target} already holds a tensor {tensor_id!r} with another definition:{listed}\n"
        "Copy into another store, or give overwrite=True, which deletes the tensor that is there."
    )


def _differences(there: StoredTensor, spec: TensorSpec) -> list[str]:
    """In what a tensor that is there differs from one that is to be copied."""
    before, now = there.definition.values(), spec.definition.values()
    if there.tile_size is not None and spec.tile_size is not None:
        before, now = before | {"tile_size": list(there.tile_size)}, now | {"tile_size": list(spec.tile_size)}
    if there.definition.dims is not None and spec.definition.dims is not None:
        before, now = before | {"dims": list(there.definition.dims)}, now | {"dims": list(spec.definition.dims)}
    changed = changes(there.definition.functions.record, spec.definition.functions.record).lines()
    return [*differences(before, now), *(f"{line}, since what is there was computed" for line in changed)]


def _check_separable(spec: TensorSpec, target: MemoryContents) -> None:
    plain = spec.blend in (None, "first", "last") and spec.blend_init is None and spec.reduction is None
    if not (plain and spec.grid.overlap_free):
        raise ValidationError(
            f"tensor {spec.tensor_id!r} cannot be copied to {target}, which keeps windows: what is stored of it is "
            "blended or reduced, and its windows cannot be had back. ZarrTileStore('memory://name') keeps tiles in "
            "memory"
        )


def _check_finite(spec: TensorSpec, source: PersistentContents) -> None:
    if None in spec.shape:
        raise ValidationError(
            f"{source} cannot tell where tiles of tensor {spec.tensor_id!r}, which is unbounded, are stored: its "
            "backend has no _find_tiles. Give region=..., the pixels to copy"
        )


# Its tiles.


def _copy(job: _Job, source: _Contents, target: _Contents, tally: CopyTally) -> TensorCopy:
    spec, selection = job.spec, job.selection
    if isinstance(source, MemoryContents):
        move = windows_into_windows if isinstance(target, MemoryContents) else windows_into_tiles
        return move(spec, source, target, selection, tally)  # type: ignore[arg-type]
    record = job.record
    assert record is not None
    source.check_current(record)
    if isinstance(target, MemoryContents):
        return tiles_into_windows(record, source, target, _stored(record, source, selection), tally)
    with target.lock:
        known = target.registry.records.get(spec.tensor_id)
        if known is None:
            target.registry.create(spec, job.stored)
        else:
            target.check_there(known)
        there = target.registry.record_of(spec)
    copied = _Tiles(record, source, there, target, tally).copy(selection)
    source.check_there(record)
    target.check_there(there)
    target.storage.flush()
    # What was known of incomplete tiles may be less than is stored by now.
    target.tiles.drop_in_progress(spec.tensor_id)
    return copied


def _stored(record: Record, source: PersistentContents, selection: Selection | None) -> tuple[list[Index], list[Index]]:
    """The complete tiles that are stored of a tensor, or of a region, and the incomplete ones, in order."""
    if selection is not None and is_empty(selection.start, selection.stop):
        return [], []
    layout = record.layout
    start, stop = layout.pixels if selection is None else (selection.start, selection.stop)
    complete, begun = source.storage.find(record.spec.tensor_id, *layout.box(start, stop))
    return sorted(complete), sorted(begun - complete)


class _Tiles:
    """Moves the tiles of one tensor between two storages, some at a time, and looks at each again once it is there."""

    def __init__(
        self,
        record: Record,
        source: PersistentContents,
        there: Record,
        target: PersistentContents,
        tally: CopyTally,
    ) -> None:
        self._record = record
        self._source = source
        self._there = there
        self._target = target
        self._tally = tally
        self._tensor_id = tensor_id = record.spec.tensor_id
        encoding = source.storage.encoding(tensor_id)
        self._alike = encoding is not None and encoding == target.storage.encoding(tensor_id)
        self._copied = TensorCopy(tensor_id)
        self._begun_there: set[Index] = set()

    def copy(self, selection: Selection | None) -> TensorCopy:
        """Copy all that is stored, or what is stored of a region."""
        complete, begun = _stored(self._record, self._source, selection)
        self._tally.expect(len(complete) + len(begun))
        there = self._find(complete, begun)
        for some in self._batches(complete):
            missing = [tile for tile in some if tile not in there] if there is not None else self._missing(some)
            self._move(missing)
            self._add(there=len(some) - len(missing))
            self._tally.count(len(some))
        for some in self._batches(begun):
            self._move_partials(some if there is None else [tile for tile in some if tile not in there])
            self._tally.count(len(some))
        return self._copied

    def _find(self, *tiles: Sequence[Index]) -> set[Index] | None:
        """Which tiles of the target are complete, where it can list them."""
        wanted = [tile for some in tiles for tile in some]
        if not wanted or not self._target.storage.finds_tiles:
            return None
        low = [min(along) for along in zip(*wanted, strict=True)]
        high = [max(along) + 1 for along in zip(*wanted, strict=True)]
        complete, self._begun_there = self._target.storage.find(self._tensor_id, low, high)
        return complete

    def _missing(self, tiles: Sequence[Index]) -> list[Index]:
        there = set(self._target.storage.those_there(self._tensor_id, tiles))
        self._begun_there.update(tile for tile in tiles if tile not in there)
        return [tile for tile in tiles if tile not in there]

    def _batches(self, tiles: Sequence[Index]) -> Iterator[Sequence[Index]]:
        length = max(1, min(_BATCH_TILES, _BATCH_BYTES // self._record.layout.tile_bytes))
        return (tiles[begin : begin + length] for begin in range(0, len(tiles), length))

    def _add(self, **more: int) -> None:
        self._copied = replace(
            self._copied, **{name: getattr(self._copied, name) + count for name, count in more.items()}
        )

    def _move(self, tiles: Sequence[Index]) -> None:
        """Move complete tiles that are missing; then what is there of their windows is of no use any more."""
        if not tiles:
            return
        moved = self._move_encoded(tiles) if self._alike else self._move_decoded(tiles)
        begun = [tile for tile in moved if tile in self._begun_there]
        with self._target.storing(self._there) as storage:
            if begun:
                # A backend may know of no more parts than it has read.
                storage.read_partials(self._there, begun)
            storage.write(self._tensor_id, {}, dict.fromkeys(begun), "copy")
        self._add(tiles=len(moved), bytes=sum(moved.values()), damaged=len(tiles) - len(moved))

    def _move_encoded(self, tiles: Sequence[Index]) -> dict[Index, int]:
        found = self._source.storage.read_encoded(self._tensor_id, tiles)
        self._source.check_current(self._record)
        present = {tile: data for tile, data in found.items() if data is not None}
        with self._target.storing(self._there) as storage:
            storage.write_encoded(self._tensor_id, present)
        again = self._target.storage.read_encoded(self._tensor_id, list(present))
        self._target.check_current(self._there)
        _check(self._there, self._target, (tile for tile, data in present.items() if again[tile] != data))
        return {tile: len(data) for tile, data in present.items()}

    def _move_decoded(self, tiles: Sequence[Index]) -> dict[Index, int]:
        found = self._source.storage.read_tiles(self._record, tiles)
        self._source.check_current(self._record)
        present = {tile: block for tile, block in found.items() if block is not None}
        store_blocks(self._there, self._target, present)
        return {tile: block.nbytes for tile, block in present.items()}

    def _move_partials(self, tiles: Sequence[Index]) -> None:
        """Add what is known of incomplete tiles to what is known there."""
        if not tiles:
            return
        target = self._target.storage
        found = self._source.storage.read_partials(self._record, tiles)
        self._source.check_current(self._record)
        known = target.read_partials(self._there, tiles)
        news = {tile: _news(part, known[tile]) for tile, part in found.items() if part is not None}
        parts = {tile: part for tile, part in news.items() if part is not None}
        if parts:
            with self._target.storing(self._there):
                target.write(self._tensor_id, {}, parts, "copy")
            again = target.read_partials(self._there, list(parts))
            self._target.check_current(self._there)
            lacking = [tile for tile, part in parts.items() if not _knows(again[tile], part)]
            # Somebody else may have completed it there meanwhile.
            _check(self._there, self._target, set(lacking) - set(target.those_there(self._tensor_id, lacking)))
        self._add(partial=len(parts), there=len(news) - len(parts), bytes=sum(part.nbytes for part in parts.values()))
        # Somebody else may have completed it here meanwhile.
        gone = [tile for tile, part in found.items() if part is None]
        self._begun_there.update(tile for tile in gone if known[tile] is not None)
        self._move(self._source.storage.those_there(self._tensor_id, gone) if gone else [])


def store_blocks(record: Record, target: PersistentContents, blocks: Mapping[Index, torch.Tensor]) -> None:
    """Store complete tiles, and read them back."""
    with target.storing(record) as storage:
        storage.write(record.spec.tensor_id, blocks, {}, "copy")
    again = target.storage.read_tiles(record, list(blocks))
    target.check_current(record)
    _check(record, target, (tile for tile, block in blocks.items() if not _same_bits(again[tile], block)))


def _check(record: Record, target: PersistentContents, wrong: Iterable[Index]) -> None:
    """StoreError where a tile that was just written is not read back as it was."""
    tiles = sorted(wrong)
    if tiles:
        more = f" and {len(tiles) - 1} more" if len(tiles) > 1 else ""
        raise StoreError(
            f"{target}: tile {tiles[0]}{more} of tensor {record.spec.tensor_id!r} was copied, and is not read back as "
            "it was written; its storage may be damaged. The original is as it was: copy again"
        )


def _same_bits(found: torch.Tensor | None, expected: torch.Tensor) -> bool:
    return found is not None and torch.equal(
        found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
    )


def _news(part: PartialTile, known: PartialTile | None) -> PartialTile | None:
    """What of a part is not known yet; None where all is."""
    if known is None:
        return part
    longer = part.prefix_length > known.prefix_length
    pieces = {index: piece for index, piece in part.pieces.items() if index not in known.pieces}
    if not longer and not pieces:
        return None
    return PartialTile(part.prefix if longer else None, part.prefix_length if longer else 0, pieces)


def _knows(found: PartialTile | None, part: PartialTile) -> bool:
    """Whether what is read back of an incomplete tile holds what was written."""
    if found is None or found.prefix_length < part.prefix_length:
        return False
    if (
        part.prefix is not None
        and found.prefix_length == part.prefix_length
        and not _same_bits(found.prefix, part.prefix)
    ):
        return False
    return all(_same_bits(found.pieces.get(index), piece) for index, piece in part.pieces.items())
