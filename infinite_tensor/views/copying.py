"""Copying of tensors from one store to another.

Definitions are copied first, then complete tiles. Tiles are not re-encoded if both stores use the same encoding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.progress import Reporting, Tally
from infinite_tensor.geometry.points import Index, is_empty
from infinite_tensor.geometry.regions import Selection, boxes_inside, parse
from infinite_tensor.pipelines.pyramid import clear_levels
from infinite_tensor.support.given import checked_flag, checked_id, checked_progress, quoted
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.support.tables import Tabular, bytes_of, count_if_any, count_of
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.inventory import sources_first
from infinite_tensor.tilestore.layout import Record
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
        The number of tiles moved.
    there : int
        The number of tiles not moved, because the target already had them.
    damaged : int
        The number of tiles left out because they are damaged in the source. They are computed when they are needed.
    bytes : int
        The number of bytes moved. Tiles that were not re-encoded count by their compressed size.
    """

    tensor_id: str
    tiles: int = 0
    there: int = 0
    damaged: int = 0
    bytes: int = 0

    def __add__(self, more: TensorCopy) -> TensorCopy:
        """Add the counts of further tiles of the same tensor."""
        counts = [getattr(self, name) + getattr(more, name) for name in ("tiles", "there", "damaged", "bytes")]
        return TensorCopy(self.tensor_id, *counts)


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
        "there already": ("there", count_if_any),
        "damaged": ("damaged", count_if_any),
        "moved": ("bytes", bytes_of),
    }

    @property
    def tiles(self) -> int:
        """The number of tiles moved, in total."""
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
    originals, absent = _originals(source, tensor_id, upstream=checked_flag("upstream", upstream))
    if region is not None:
        spec = originals[-1].spec
        originals[-1] = replace(originals[-1], selection=parse(region, spec.shape, spec.labels))
    # Last, because this may create a store. The variable keeps the store alive.
    other = _checked_store(store, other_store)
    target = _checked_target(other)
    if _share_a_place(store, other):
        _check_other(originals, source, target)
    in_the_way = {
        original.spec.tensor_id: lines for original in originals if (lines := _in_the_way(original, source, target))
    }
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
            copies = tuple([_copy(original, source, target, tally) for original in originals])
            report = CopyReport(copies, absent, str(other), tally.seconds)
            tally.finish(report)
            return report
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_INTERRUPTED)
        raise


@dataclass(frozen=True)
class _Original:
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


def _check_other(originals: Sequence[_Original], source: Contents, target: Contents) -> None:
    """Check that the target is not the source itself."""
    for original in originals:
        tensor_id, incarnation = original.spec.tensor_id, original.stored.get("incarnation")
        if incarnation is None or not target.holds(tensor_id):
            continue
        if target.stored(tensor_id).fields.get("incarnation") == incarnation:
            raise ValidationError(
                f"tensor {tensor_id!r} cannot be copied into itself: {source} and {target} are the same store"
            )


# Tensors to copy.


def _originals(source: Contents, tensor_id: str, *, upstream: bool) -> tuple[list[_Original], tuple[str, ...]]:
    """Return an original per tensor, upstream tensors first, and the ids of absent upstream tensors."""
    found = {tensor_id: _original(source, tensor_id)}
    absent: dict[str, None] = {}

    def args(name: str) -> Iterator[str]:
        for arg in found[name].spec.definition.args if upstream else ():
            key = arg.tensor_id
            if key is None or key in found:
                continue
            if source.digest_of(key) == arg.digest:
                found[key] = _original(source, key)
                yield key
            else:
                absent[key] = None

    return [found[name] for name in reversed(sources_first([tensor_id], args))], tuple(absent)


def _original(source: Contents, tensor_id: str) -> _Original:
    stored, record = source.open(tensor_id)
    # Another process may have cleared and recreated the tensor.
    source.check_there(record)
    return _Original(replace(stored.spec), stored.fields, record)


def _in_the_way(original: _Original, source: Contents, target: Contents) -> Sequence[str]:
    """Compare a tensor to copy with the tensor of the same id in the target.

    Return one line per difference. There are none if the target has no such tensor. Raise ValidationError if the source
    cannot list the tiles of an unbounded tensor, and no region is given.
    """
    spec = original.spec
    if "_find_tiles" in source.storage.backend.lacks and original.selection is None and None in spec.shape:
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


def _copy(original: _Original, source: Contents, target: Contents, tally: Tally) -> TensorCopy:
    spec, record = original.spec, original.record
    source.check_current(record)
    with target.lock:
        known = target.registry.records.get(spec.tensor_id)
        if known is not None:
            target.check_there(known)
        there = target.registry.record_of(spec, original.stored)
        target.registry.amend(there, spec.definition)
    tiles = _complete(record, source, original.selection)
    tally.expect(len(tiles))
    present = _present(there, target, tiles)
    copied = TensorCopy(spec.tensor_id)
    length = max(1, min(_BATCH_TILES, _BATCH_BYTES // record.layout.tile_bytes))
    for begin in range(0, len(tiles), length):
        batch = tiles[begin : begin + length]
        found = present if present is not None else set(target.storage.find(there, batch))
        missing = [tile for tile in batch if tile not in found]
        sizes = _move(record, source, there, target, missing) if missing else []
        # Tiles that have left a memory store meanwhile are not damaged.
        damaged = len(missing) - len(sizes) if source.outlives_process else 0
        copied += TensorCopy(spec.tensor_id, len(sizes), len(batch) - len(missing), damaged, sum(sizes))
        tally.count(spec.tensor_id, len(batch))
    source.check_there(record)
    target.check_there(there)
    target.storage.flush()
    # The target's cache may have incomplete tiles that the copy has completed.
    target.tiles.drop_stored(spec.tensor_id, in_progress=True)
    return copied


def _complete(record: Record, source: Contents, selection: Selection | None) -> list[Index]:
    if selection is not None and is_empty(selection.start, selection.stop):
        return []
    if selection is None:
        return sorted(source.storage.find_in(record, *record.layout.box(*record.layout.pixels))[0])
    parts = boxes_inside(selection, record.spec.shape)
    found = [source.storage.find_in(record, *record.layout.box(part.start, part.stop))[0] for part in parts]
    return sorted({tile for tiles in found for tile in tiles})


def _present(there: Record, target: Contents, tiles: Sequence[Index]) -> set[Index] | None:
    """List the complete tiles of the target around `tiles`. Return None if its backend cannot list tiles."""
    if not tiles or "_find_tiles" in target.storage.backend.lacks:
        return None
    low = [min(along) for along in zip(*tiles, strict=True)]
    high = [max(along) + 1 for along in zip(*tiles, strict=True)]
    return target.storage.find_in(there, low, high)[0]


def _move(record: Record, source: Contents, there: Record, target: Contents, tiles: Sequence[Index]) -> list[int]:
    """Move tiles that are intact in the source. Return their sizes in bytes."""
    encoding = record.handle.encoding
    is_encoded = encoding is not None and encoding == there.handle.encoding
    read = source.storage.read_encoded if is_encoded else source.storage.read_tiles
    found: dict[Index, Any] = {tile: data for tile, data in read(record, tiles).items() if data is not None}
    source.check_current(record)
    with target.storing(there) as storage:
        if is_encoded:
            storage.write_encoded(there, found)
        else:
            storage.write(there, found, {}, "copy")
    return [len(data) if is_encoded else data.nbytes for data in found.values()]
