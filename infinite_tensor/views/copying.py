"""Copying of tensors from one store to another.

Definitions are copied first, then tiles. Tiles are not re-encoded if both stores use the same encoding.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.filling.progress import Reporting, Tally
from infinite_tensor.geometry.points import Index, is_empty
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.pipelines.pyramid import clear_levels
from infinite_tensor.support.given import checked_flag, checked_id, checked_progress, quoted
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.support.tables import Tabular, bytes_of, count_if_any, count_of
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.inventory import sources_first
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.store import TileStore, contents_of
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.definition import differences
from infinite_tensor.values.functions import changes
from infinite_tensor.values.spec import TensorSpec
from infinite_tensor_stores import shared_store
from infinite_tensor_stores.targets import is_local, local_path

_INTERRUPTED = (
    "The copy was interrupted; copied tiles are kept. Call store.copy again with the same arguments to continue."
)
_BATCH_TILES = 256
_BATCH_BYTES = 2**25
"""Approximate bytes of pixels to move at a time."""


@dataclass(frozen=True)
class TensorCopy:
    """The part of a `CopyReport` about one tensor.

    Attributes
    ----------
    tensor_id : str
        The id of the tensor.
    tiles : int
        The number of complete tiles moved.
    partial : int
        The number of incomplete tiles with moved windows.
    there : int
        The number of tiles not moved, because the target already had them.
    damaged : int
        The number of tiles left out because they are damaged in the source. They are computed when they are needed.
    bytes : int
        The number of bytes moved. Tiles that were not re-encoded count by their compressed size.
    """

    tensor_id: str
    tiles: int = 0
    partial: int = 0
    there: int = 0
    damaged: int = 0
    bytes: int = 0


@dataclass(frozen=True, repr=False)
class CopyReport(Tabular):
    """The report of a copy. It prints as a table.

    Attributes
    ----------
    tensors : tuple of TensorCopy
        The copied tensors, upstream tensors first.
    absent : tuple of str
        Ids of upstream tensors not copied because the store does not contain them.
    target : str
        The target store.
    seconds : float
        How long the copy took.
    """

    tensors: tuple[TensorCopy, ...]
    absent: tuple[str, ...]
    target: str
    seconds: float

    _COLUMNS: ClassVar = {
        "tiles": ("tiles", count_of),
        "partial": ("partial", count_if_any),
        "there already": ("there", count_if_any),
        "damaged": ("damaged", count_if_any),
        "moved": ("bytes", bytes_of),
    }

    @property
    def tiles(self) -> int:
        """The number of complete tiles moved, in total."""
        return sum(tensor.tiles for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """The number of bytes moved, in total."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def _title(self) -> str:
        left = f"; upstream tensors not in the store: {', '.join(map(repr, self.absent))}" if self.absent else ""
        return f"copied to {self.target} in {self.seconds:.1f} s{left}"


def copy_tensor(
    store: TileStore,
    tensor_id: str,
    other_store: object,
    *,
    upstream: bool,
    region: object,
    overwrite: bool,
    progress: Reporting,
) -> CopyReport:
    """See `TileStore.copy`."""
    tensor_id, watcher = checked_id(tensor_id), checked_progress(progress)
    source = _checked_contents(store)
    overwrite = checked_flag("overwrite", overwrite)
    jobs, absent = _jobs(source, tensor_id, upstream=checked_flag("upstream", upstream))
    if region is not None:
        spec = jobs[-1].spec
        jobs[-1] = replace(jobs[-1], selection=parse(region, spec.shape, spec.labels))
    # Last, because this may create a store. The variable keeps the store alive.
    other = _checked_store(store, other_store)
    target = _checked_target(other)
    if _share_a_place(store, other):
        _check_other(jobs, source, target)
    in_the_way = {job.spec.tensor_id: lines for job in jobs if (lines := _in_the_way(job, source, target))}
    if in_the_way and not overwrite:
        raise _taken(target, *next(iter(in_the_way.items())))
    # Clear tensors before their args, because the opposite order warns.
    for name in reversed(in_the_way):
        clear_levels(other, name)
        other.clear_tensor(name)
    try:
        with Tally(0, watcher, unit="tile") as tally, store_call(source, target):
            source.flush()
            target.flush()
            copies = tuple([_copy(job, source, target, tally) for job in jobs])
            report = CopyReport(copies, absent, str(other), tally.seconds)
            tally.finish(report)
            return report
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_INTERRUPTED)
        raise


@dataclass(frozen=True)
class _Job:
    """One tensor to copy.

    Attributes
    ----------
    spec : TensorSpec
        The tensor.
    stored : mapping
        Its definition, as stored in the source.
    record : Record or None
        The tensor as registered with the source store.
    selection : Selection or None
        The pixels to copy; None for all.
    """

    spec: TensorSpec
    stored: Mapping[str, Any]
    record: Record
    selection: Selection | None = None


def _checked_contents(store: TileStore) -> Contents:
    contents = contents_of(store)
    contents.check_open()
    return contents


def _checked_target(other: TileStore) -> Contents:
    contents = _checked_contents(other)
    if not contents.outlives_process:
        raise ValidationError(
            f"{other} stores nothing, so nothing can be copied into it; use ZarrTileStore('memory://name')"
        )
    contents.check_writable("take a copy")
    return contents


def _checked_store(store: TileStore, other: object) -> TileStore:
    if isinstance(other, str | os.PathLike):
        other = shared_store(other)
    if not isinstance(other, TileStore):
        raise ValidationError(f"other_store must be a TileStore, a path or a URL, got {quoted(other)}")
    if contents_of(other) is contents_of(store):
        raise ValidationError(f"{store} cannot be copied into itself; give another store")
    return other


def _share_a_place(store: TileStore, other: TileStore) -> bool:
    """Whether two stores may be in the same location, by their addresses.

    True if a store has no address.
    """
    if store.address is None or other.address is None or store.address == other.address:
        return True
    if not is_local(store.address) or not is_local(other.address):
        return False
    here, there = local_path(store.address), local_path(other.address)
    return here.exists() and there.exists() and here.samefile(there)


def _check_other(jobs: Sequence[_Job], source: Contents, target: Contents) -> None:
    """Check that the target is not the source itself."""
    for job in jobs:
        tensor_id, incarnation = job.spec.tensor_id, job.stored.get("incarnation")
        if incarnation is None or not target.holds(tensor_id):
            continue
        if target.stored(tensor_id).fields.get("incarnation") == incarnation:
            raise ValidationError(
                f"tensor {tensor_id!r} cannot be copied into itself: {source} and {target} are the same store"
            )


# Tensors to copy.


def _jobs(source: Contents, tensor_id: str, *, upstream: bool) -> tuple[list[_Job], tuple[str, ...]]:
    """Return a job per tensor, upstream tensors first, and the ids of absent upstream tensors."""
    found = {tensor_id: _job(source, tensor_id)}
    absent: dict[str, None] = {}

    def args(name: str) -> Iterator[str]:
        for arg in found[name].spec.definition.args if upstream else ():
            key = arg.tensor_id
            if key is None or key in found:
                continue
            if source.digest_of(key) == arg.digest:
                found[key] = _job(source, key)
                yield key
            else:
                absent[key] = None

    return [found[name] for name in reversed(sources_first([tensor_id], args))], tuple(absent)


def _job(source: Contents, tensor_id: str) -> _Job:
    stored, record = source.open(tensor_id)
    # Another process may have cleared and recreated the tensor.
    source.check_there(record)
    return _Job(replace(stored.spec), stored.fields, record)


def _in_the_way(job: _Job, source: Contents, target: Contents) -> Sequence[str]:
    """Compare a tensor to copy with the tensor of the same id in the target.

    Return one line per difference. There are none if the target has no such tensor. Raise ValidationError if the source
    cannot list the tiles of an unbounded tensor, and no region is given.
    """
    spec = job.spec
    if "_find_tiles" in source.storage.backend.lacks and job.selection is None and None in spec.shape:
        raise ValidationError(
            f"{source} cannot list the tiles of the unbounded tensor {spec.tensor_id!r}: its backend has no "
            "_find_tiles. Give the pixels to copy as region=..."
        )
    if not target.holds(spec.tensor_id):
        return ()
    return _differences(target.stored(spec.tensor_id), spec)


def _taken(target: Contents, tensor_id: str, lines: Sequence[str]) -> ValidationError:
    listed = "".join(f"\n  {line}" for line in lines)
    return ValidationError(
        f"{target} already contains a tensor {tensor_id!r} with another definition:{listed}\n"
        "Copy into another store, or give overwrite=True to delete the existing tensor."
    )


def _differences(there: StoredTensor, spec: TensorSpec) -> list[str]:
    before, now = there.definition.values(), spec.definition.values()
    if there.spec.tile_size is not None and spec.tile_size is not None:
        before, now = before | {"tile_size": list(there.spec.tile_size)}, now | {"tile_size": list(spec.tile_size)}
    if there.definition.dims is not None and spec.definition.dims is not None:
        before, now = before | {"dims": list(there.definition.dims)}, now | {"dims": list(spec.definition.dims)}
    changed = changes(there.definition.functions.record, spec.definition.functions.record).lines()
    return [*differences(before, now), *(f"{line}, since the existing tensor was computed" for line in changed)]


# Tiles.


def _copy(job: _Job, source: Contents, target: Contents, tally: Tally) -> TensorCopy:
    spec, selection, record = job.spec, job.selection, job.record
    source.check_current(record)
    with target.lock:
        known = target.registry.records.get(spec.tensor_id)
        if known is not None:
            target.check_there(known)
        there = target.registry.record_of(spec, job.stored)
        target.registry.amend(there, spec.definition)
    copied = Tiles(record, source, there, target, tally).copy(selection)
    source.check_there(record)
    target.check_there(there)
    target.storage.flush()
    # The target's cache lacks windows added to incomplete tiles by the copy.
    target.tiles.drop_stored(spec.tensor_id, in_progress=True)
    return copied


def _stored(record: Record, source: Contents, selection: Selection | None) -> tuple[list[Index], list[Index]]:
    if selection is not None and is_empty(selection.start, selection.stop):
        return [], []
    layout = record.layout
    start, stop = layout.pixels if selection is None else (selection.start, selection.stop)
    complete, begun = source.storage.find_in(record, *layout.box(start, stop))
    return sorted(complete), sorted(begun - complete)


class Tiles:
    """Copier for the tiles of one tensor, in batches.

    Each copy is read back and compared with the original.
    """

    def __init__(self, record: Record, source: Contents, there: Record, target: Contents, tally: Tally) -> None:
        self._record = record
        self._source = source
        self._there = there
        self._target = target
        self._tally = tally
        self._tensor_id = tensor_id = record.spec.tensor_id
        encoding = record.handle.encoding
        self._alike = encoding is not None and encoding == there.handle.encoding
        self._copied = TensorCopy(tensor_id)
        self._begun_there: set[Index] = set()

    def copy(self, selection: Selection | None) -> TensorCopy:
        """Copy all stored tiles, or only the tiles of a region."""
        complete, begun = _stored(self._record, self._source, selection)
        self._tally.expect(len(complete) + len(begun))
        there = self._find(complete, begun)
        for some in self._batches(complete):
            missing = [tile for tile in some if tile not in there] if there is not None else self._missing(some)
            self._move(missing)
            self._add(there=len(some) - len(missing))
            self._tally.count(self._tensor_id, len(some))
        for some in self._batches(begun):
            self._move_partials(some if there is None else [tile for tile in some if tile not in there])
            self._tally.count(self._tensor_id, len(some))
        return self._copied

    def _find(self, *tiles: Sequence[Index]) -> set[Index] | None:
        """Look up tiles in the target. Return the complete tiles, or None if the target cannot list tiles."""
        wanted = [tile for some in tiles for tile in some]
        if not wanted or "_find_tiles" in self._target.storage.backend.lacks:
            return None
        low = [min(along) for along in zip(*wanted, strict=True)]
        high = [max(along) + 1 for along in zip(*wanted, strict=True)]
        complete, self._begun_there = self._target.storage.find_in(self._there, low, high)
        return complete

    def _missing(self, tiles: Sequence[Index]) -> list[Index]:
        there = set(self._target.storage.find(self._there, tiles))
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
        """Copy complete tiles. Then delete the partial tiles of the target at the same indices."""
        if not tiles:
            return
        moved = self._move_encoded(tiles) if self._alike else self._move_decoded(tiles)
        begun = [tile for tile in moved if tile in self._begun_there]
        with self._target.storing(self._there) as storage:
            if begun:
                # Read first, because a backend may delete only known parts.
                storage.read_partials(self._there, begun)
            storage.write(self._there, {}, dict.fromkeys(begun), "copy")
        # Tiles that have left a memory store meanwhile are not damaged.
        damaged = len(tiles) - len(moved) if self._source.outlives_process else 0
        self._add(tiles=len(moved), bytes=sum(moved.values()), damaged=damaged)

    def _move_encoded(self, tiles: Sequence[Index]) -> dict[Index, int]:
        found = self._source.storage.read_encoded(self._record, tiles)
        self._source.check_current(self._record)
        present = {tile: data for tile, data in found.items() if data is not None}
        with self._target.storing(self._there) as storage:
            storage.write_encoded(self._there, present)
        again = self._target.storage.read_encoded(self._there, list(present))
        self._target.check_current(self._there)
        _check(self._there, self._target, (tile for tile, data in present.items() if again[tile] != data))
        return {tile: len(data) for tile, data in present.items()}

    def _move_decoded(self, tiles: Sequence[Index]) -> dict[Index, int]:
        found = self._source.storage.read_tiles(self._record, tiles)
        self._source.check_current(self._record)
        present = {tile: block for tile, block in found.items() if block is not None}
        _store_blocks(self._there, self._target, present)
        return {tile: block.nbytes for tile, block in present.items()}

    def _move_partials(self, tiles: Sequence[Index]) -> None:
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
                target.write(self._there, {}, parts, "copy")
            again = target.read_partials(self._there, list(parts))
            self._target.check_current(self._there)
            lacking = [tile for tile, part in parts.items() if not _knows(again[tile], part)]
            # Another writer may have completed a tile in the target meanwhile.
            _check(self._there, self._target, set(lacking) - set(target.find(self._there, lacking)))
        self._add(partial=len(parts), there=len(news) - len(parts), bytes=sum(part.nbytes for part in parts.values()))
        # Another writer may have completed a tile in the source meanwhile.
        gone = [tile for tile, part in found.items() if part is None]
        self._begun_there.update(tile for tile in gone if known[tile] is not None)
        self._move(self._source.storage.find(self._record, gone) if gone else [])


def _store_blocks(record: Record, target: Contents, blocks: Mapping[Index, torch.Tensor]) -> None:
    with target.storing(record) as storage:
        storage.write(record, blocks, {}, "copy")
    again = target.storage.read_tiles(record, list(blocks))
    target.check_current(record)
    _check(record, target, (tile for tile, block in blocks.items() if not _same_bits(again[tile], block)))


def _check(record: Record, target: Contents, wrong: Iterable[Index]) -> None:
    tiles = sorted(wrong)
    if tiles:
        more = f" and {len(tiles) - 1} more" if len(tiles) > 1 else ""
        raise StoreError(
            f"{target}: tile {tiles[0]}{more} of tensor {record.spec.tensor_id!r} was copied, but not read back as "
            "written; the storage may be damaged. The original is unchanged: copy again"
        )


def _same_bits(found: torch.Tensor | None, expected: torch.Tensor) -> bool:
    return found is not None and torch.equal(
        found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
    )


def _news(part: PartialTile, known: PartialTile | None) -> PartialTile | None:
    """Return the windows missing in the target's copy of a partial tile.

    `part` is the tile in the source, and `known` in the target. Return None if no windows are missing.
    """
    if known is None:
        return part
    longer = part.prefix_length > known.prefix_length
    pieces = {index: piece for index, piece in part.pieces.items() if index not in known.pieces}
    if not longer and not pieces:
        return None
    return PartialTile(part.prefix if longer else None, part.prefix_length if longer else 0, pieces)


def _knows(found: PartialTile | None, part: PartialTile) -> bool:
    """Whether the partial tile `found`, read back, contains all windows of `part`, just written."""
    if found is None or found.prefix_length < part.prefix_length:
        return False
    if (
        part.prefix is not None
        and found.prefix_length == part.prefix_length
        and not _same_bits(found.prefix, part.prefix)
    ):
        return False
    return all(_same_bits(found.pieces.get(index), piece) for index, piece in part.pieces.items())
