"""Copies from and to memory, where windows are kept as ``f`` returned them, and no tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index, IntArray, as_tuples, inside, is_empty
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.support.allocation import as_array, as_tensor
from infinite_tensor.tilestore.contents import Access
from infinite_tensor.tilestore.layout import Record
from infinite_tensor.tilestore.memory.contents import MemoryContents
from infinite_tensor.tilestore.memory.window_cache import Row
from infinite_tensor.tilestore.persistent.contents import PersistentContents
from infinite_tensor.values.spec import TensorSpec
from infinite_tensor.views.copied import CopyTally, TensorCopy

_BATCH_BYTES = 2**24
_MOST_AT_ONCE = 1024


def windows_into_windows(
    spec: TensorSpec, source: MemoryContents, target: MemoryContents, selection: Selection | None, tally: CopyTally
) -> TensorCopy:
    """From memory to memory. Windows are never changed, so both may hold the same ones."""
    with target.lock:
        there = target.registered(spec)
    windows = _kept_windows(spec, source, selection)
    tally.expect(len(windows))
    moved = found = size = 0
    for some in _batches(windows, spec):
        rows = _rows(spec, source, some)
        missing = {index: row for index, row in rows.items() if not target.kept.take(there, [index])}
        target.kept.put(there, missing)
        moved, size = moved + len(missing), size + sum(row.window_bytes for row in missing.values())
        found += len(rows)
        tally.count(len(some))
    source.check_current(spec)
    target.check_current(there)
    return TensorCopy(spec.tensor_id, windows=moved, there=found - moved, bytes=size)


def windows_into_tiles(
    spec: TensorSpec, source: MemoryContents, target: PersistentContents, selection: Selection | None, tally: CopyTally
) -> TensorCopy:
    """From memory into tiles: windows that are missing there are blended in, as those of a read are."""
    on_cpu = replace(spec, device=torch.device("cpu"))
    with target.lock:
        record = target.registry.record_of(on_cpu)
    target.check_there(record)
    windows = _kept_windows(spec, source, selection)
    tally.expect(len(windows))
    moved = size = 0
    taken: list[Index] = []
    with closing(target.access(on_cpu)) as access:
        for some in _batches(windows, spec):
            rows = _rows(spec, source, some)
            taken += rows
            wanted = _among(access.add(*_bounds(spec, some)), rows.keys())
            if wanted:
                blocks = [as_tensor(rows[index].window(index)).to("cpu") for index in wanted]
                access.deposit(np.array(wanted, dtype=np.int64), as_array(torch.stack(blocks)))
                moved, size = moved + len(blocks), size + sum(block.nbytes for block in blocks)
            access.keep(None)
            tally.count(len(some))
    source.check_current(spec)
    target.check_current(record)
    target.flush()
    _check_stored(on_cpu, target, taken)
    target.check_there(record)
    return TensorCopy(spec.tensor_id, windows=moved, there=len(taken) - moved, bytes=size)


def tiles_into_windows(
    record: Record,
    source: PersistentContents,
    target: MemoryContents,
    stored: tuple[list[Index], list[Index]],
    tally: CopyTally,
) -> TensorCopy:
    """From tiles into memory: windows that no other one overlaps, so that their pixels are as ``f`` returned them."""
    spec, layout = record.spec, record.layout
    with target.lock:
        there = target.registered(spec)
    tiles = [*stored[0], *stored[1]]
    tally.expect(len(tiles))
    moved = found = size = 0
    with closing(source.access(spec)) as access:
        for tile in tiles:
            region = np.array([[layout.start(tile)], [layout.stop(tile)]], dtype=np.int64)
            # A window over several tiles is moved with the last of them.
            windows = [index for index in as_tuples(spec.grid.points(*region)) if not target.kept.take(there, [index])]
            missing = set(as_tuples(access.add(*_bounds(spec, windows)))) if windows else set()
            rows = {index: _row(spec, access, index) for index in windows if index not in missing}
            target.kept.put(there, rows)
            moved, size = moved + len(rows), size + sum(row.window_bytes for row in rows.values())
            found += len(spec.grid.points(*region)) - len(windows)
            access.keep(None)
            tally.count(1)
    source.check_there(record)
    target.check_current(there)
    return TensorCopy(spec.tensor_id, windows=moved, there=found, bytes=size)


def _row(spec: TensorSpec, access: Access, index: Index) -> Row:
    """One window of tiles that know it; beyond the ends of the tensor, where nothing is stored of it, zeros."""
    window = torch.zeros(spec.grid.window.size, dtype=spec.dtype, device="cpu")
    (start,), (stop,) = _bounds(spec, [index])
    at = spec.grid.window.start(index)
    inner = window[tuple([slice(a - o, b - o) for a, b, o in zip(start.tolist(), stop.tolist(), at, strict=True)])]
    block = torch.empty(inner.shape, dtype=spec.dtype, device="cpu")
    access.read(start.tolist(), block)
    inner.copy_(block)
    return Row(index, as_array(window[None]))


def _kept_windows(spec: TensorSpec, source: MemoryContents, selection: Selection | None) -> list[Index]:
    """The windows in memory, or those over a region, in order."""
    with source.lock:
        windows = sorted(source.kept.windows.of(spec.tensor_id)) if source.kept.keeps(spec) else []
    if selection is None:
        return windows
    if is_empty(selection.start, selection.stop):
        return []
    box = spec.grid.box(selection.start, selection.stop)
    return [index for index in windows if inside(index, *box)]


def _batches(windows: Sequence[Index], spec: TensorSpec) -> Iterator[Sequence[Index]]:
    size = int(np.prod(spec.gathered.definition.output_window.size)) * spec.gathered.dtype.itemsize
    length = max(1, min(_MOST_AT_ONCE, _BATCH_BYTES // max(1, size)))
    return (windows[begin : begin + length] for begin in range(0, len(windows), length))


def _rows(spec: TensorSpec, source: MemoryContents, windows: Sequence[Index]) -> dict[Index, Row]:
    """Those of some windows that are still there, each by itself: a row of many would keep the others alive."""
    taken = source.kept.take(spec, windows)
    return {index: Row(index, row.window(index)[None]) for index, row in taken.items()}


def _bounds(spec: TensorSpec, windows: Sequence[Index]) -> tuple[IntArray, IntArray]:
    """The pixels of windows, as far as they lie inside of the tensor."""
    starts, stops = spec.grid.bounds(np.array(windows, dtype=np.int64))
    for d, extent in enumerate(spec.shape):
        if extent is not None:
            np.clip(starts[:, d], 0, extent, out=starts[:, d])
            np.clip(stops[:, d], 0, extent, out=stops[:, d])
    return starts, stops


def _among(points: IntArray, wanted: object) -> list[Index]:
    return [index for index in as_tuples(points) if index in wanted]  # type: ignore[operator]


def _check_stored(spec: TensorSpec, target: PersistentContents, windows: Sequence[Index]) -> None:
    """StoreError where storage does not give a window back that was to be copied; its checksums tell of damage."""
    target.tiles.drop_stored(spec.tensor_id)
    with closing(target.access(spec)) as access:
        for some in _batches(windows, spec):
            lacking = _among(access.add(*_bounds(spec, some)), set(some))
            if lacking:
                raise StoreError(
                    f"{target}: window {lacking[0]} of tensor {spec.tensor_id!r} was copied, and is not read back; "
                    "its storage may be damaged. The original is as it was: copy again"
                )
            access.keep(None)
