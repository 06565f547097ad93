"""Copies of tensors from one store to another: definitions, then tiles, as they are stored where that can be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.progress import Tally, Watcher
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.support.given import checked_flag, checked_id, checked_progress, quoted
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.support.tables import Tabular, bytes_of, count_if_any, count_of, shown_id
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.memory.contents import MemoryContents
from infinite_tensor.tilestore.persistent.contents import PersistentContents
from infinite_tensor.tilestore.store import TileStore
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.definition import differences
from infinite_tensor.values.functions import changes
from infinite_tensor.values.spec import TensorSpec
from infinite_tensor.views.moving import TensorCopy, Tiles, windows_into_tiles
from infinite_tensor_stores import shared_store
from infinite_tensor_stores.targets import is_local, local_path

_INTERRUPTED = (
    "The copy was interrupted; what it has moved is there. Call store.copy again with the same arguments to continue."
)


@dataclass(frozen=True)
class CopyReport(Tabular):
    """What a copy has moved. It prints as a table.

    Attributes
    ----------
    tensors : tuple of TensorCopy
        The tensors, each after those that it reads.
    absent : tuple of str
        Ids of upstream tensors that were to be copied too, and that the store does not hold.
    target : str
        Where they were copied to.
    seconds : float
        How long it took.
    """

    tensors: tuple[TensorCopy, ...]
    absent: tuple[str, ...]
    target: str
    seconds: float

    _HEADINGS: ClassVar = ("tensor", "tiles", "partial", "windows", "there already", "damaged", "moved")

    @property
    def tiles(self) -> int:
        """Complete tiles that were moved, of all tensors."""
        return sum(tensor.tiles for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """All that was moved, in bytes."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def _title(self) -> str:
        left = f"; upstream and not in the store: {', '.join(map(repr, self.absent))}" if self.absent else ""
        return f"copied to {self.target} in {self.seconds:.1f} s{left}"

    def _rows(self) -> list[list[str]]:
        return [
            [
                shown_id(each.tensor_id),
                count_of(each.tiles),
                *map(count_if_any, (each.partial, each.windows, each.there, each.damaged)),
                bytes_of(each.bytes),
            ]
            for each in self.tensors
        ]


def copy_tensor(
    store: TileStore,
    tensor_id: str,
    other_store: object,
    *,
    upstream: bool,
    region: object,
    overwrite: bool,
    progress: bool | str | Watcher,
) -> CopyReport:
    """`TileStore.copy`; see there."""
    tensor_id, watcher = checked_id(tensor_id), checked_progress(progress)
    source = _checked_contents(store)
    overwrite = checked_flag("overwrite", overwrite)
    jobs, absent = _jobs(source, tensor_id, upstream=checked_flag("upstream", upstream))
    if region is not None:
        spec = jobs[-1].spec
        jobs[-1] = replace(jobs[-1], selection=parse(region, spec.shape, spec.labels))
    # Last, as it may create one. What a store holds does not keep it alive.
    other = _checked_store(store, other_store)
    target = _checked_target(other)
    if _share_a_place(store, other):
        _check_other(jobs, source, target)
    in_the_way = {job.spec.tensor_id: lines for job in jobs if (lines := _in_the_way(job, source, target))}
    if in_the_way and not overwrite:
        raise _taken(target, *next(iter(in_the_way.items())))
    # What is computed from another comes first, as it would be warned of otherwise.
    for name in reversed(in_the_way):
        other.clear_tensor(name)
    call = store_call()
    try:
        with call.running, Tally(0, watcher, unit="tile") as tally:
            call.begin(source, target)
            source.flush()
            target.flush()
            copies = tuple([_copy(job, source, target, tally) for job in jobs])
            report = CopyReport(copies, absent, str(other), tally.seconds)
            tally.finish(report)
            return report
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


def _checked_contents(store: TileStore) -> _Contents:
    contents = store.contents
    assert isinstance(contents, PersistentContents | MemoryContents)
    contents.check_open()
    return contents


def _checked_target(other: TileStore) -> PersistentContents:
    contents = _checked_contents(other)
    if isinstance(contents, MemoryContents):
        raise ValidationError(
            f"{other} keeps windows, and takes no copies, which are tiles; ZarrTileStore('memory://name') keeps tiles "
            "in memory"
        )
    contents.check_writable("take a copy")
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


def _check_other(jobs: Sequence[_Job], source: _Contents, target: PersistentContents) -> None:
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


def _in_the_way(job: _Job, source: _Contents, target: PersistentContents) -> Sequence[str]:
    """In what the tensor that has taken the id is another one; nothing where the id is free.

    ValidationError where the target can hold nothing of this one, or is where it comes from.
    """
    spec = job.spec
    lists = isinstance(source, MemoryContents) or source.storage.finds_tiles
    if not lists and job.selection is None and None in spec.shape:
        raise ValidationError(
            f"{source} cannot tell where tiles of tensor {spec.tensor_id!r}, which is unbounded, are stored: its "
            "backend has no _find_tiles. Give region=..., the pixels to copy"
        )
    if not target.holds(spec.tensor_id):
        return ()
    stored = target.definition_of(spec.tensor_id)
    return _differences(StoredTensor.of(target, spec.tensor_id, stored), spec)


def _taken(target: PersistentContents, tensor_id: str, lines: Sequence[str]) -> ValidationError:
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


# Its tiles.


def _copy(job: _Job, source: _Contents, target: PersistentContents, tally: Tally) -> TensorCopy:
    spec, selection, record = job.spec, job.selection, job.record
    if isinstance(source, MemoryContents):
        return windows_into_tiles(spec, source, target, selection, tally)
    assert record is not None
    source.check_current(record)
    with target.lock:
        known = target.registry.records.get(spec.tensor_id)
        if known is None:
            target.registry.create(spec, job.stored)
        else:
            target.check_there(known)
        there = target.registry.record_of(spec)
    copied = Tiles(record, source, there, target, tally).copy(selection)
    source.check_there(record)
    target.check_there(there)
    target.storage.flush()
    # What was known of incomplete tiles may be less than is stored by now.
    target.tiles.drop_in_progress(spec.tensor_id)
    return copied
