"""Every store, every history of reads: the bits of the brute-force reference, and no call of ``f`` too many.

How many cases run is said in `tests/conftest.py`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, note

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    Mask,
    MemoryTileStore,
    Output,
    TensorWindow,
    TileStore,
    ZarrTileStore,
)

# Inside: small regions are read in many blocks, and planned and filled in many steps.
from infinite_tensor.engine import assemble
from infinite_tensor.errors import DependantsRemainWarning
from infinite_tensor.filling import FillPlan, FillReport, cutting, fill
from infinite_tensor.tilestore import layout as tile_layout
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.values import weights
from tests.support import reference
from tests.support.dict_store import DictTileStore
from tests.support.pipelines import Action, Fill, Forget, Pipeline, Read, Selection, Together, box_of, pipelines
from tests.support.reference import Box, Index, Reference, Stage, TooManyWindows, Where, box_at, windows_over
from tests.support.together import fill_together, plan_together, read_together

pytestmark = pytest.mark.filterwarnings(
    "ignore::infinite_tensor.UncoveredPixelsWarning", "ignore:.*wraps around:UserWarning"
)

MOST_WINDOWS = 150
"""A read that needs more is left out: the reference takes its time."""

WORKERS = 3


class Recorded:
    """``f`` as the library gets it: counts its calls, hands out one buffer again and again, spoils its args.

    `stages` are those that it computes: one, or several as a dict.
    """

    def __init__(self, stages: Sequence[Stage], batch_size: int | tuple[int, ...] | None) -> None:
        self.stages = stages
        self.batch_size = batch_size
        self.calls: Counter[Index] = Counter()
        self._of_thread = threading.local()

    @property
    def buffers(self) -> list[torch.Tensor]:
        """One per stage for each thread."""
        if not hasattr(self._of_thread, "buffers"):
            self._of_thread.buffers = [
                torch.empty(size, dtype=dtype) for size, dtype in (stage.returned for stage in self.stages)
            ]
        buffers: list[torch.Tensor] = self._of_thread.buffers
        return buffers

    def __call__(self, ctx: Any, *regions: Any) -> Any:
        if self.batch_size is None:
            return self._told(list(map(torch.Tensor.copy_, self.buffers, self.windows(ctx, regions))))
        allowed = self.batch_size if isinstance(self.batch_size, tuple) else range(1, self.batch_size + 1)
        assert len(ctx) in allowed
        outputs = [self.windows(index, each) for index, *each in zip(ctx, *regions, strict=True)]
        if isinstance(self.batch_size, tuple):
            return self._told([torch.stack(column) for column in zip(*outputs, strict=True)])
        return list(map(self._told, outputs))

    def _told(self, outputs: Sequence[torch.Tensor]) -> Any:
        return outputs[0] if len(outputs) == 1 else {str(n): output for n, output in enumerate(outputs)}

    def windows(self, ctx: Index, regions: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        self.calls[ctx] += 1
        outputs = [stage.f((*ctx, *[0] * (len(stage.shape) - len(ctx))), *regions) for stage in self.stages]
        for region in regions:
            region.zero_()
        return outputs


class History:
    """A pipeline on stores of one kind, beside its reference."""

    def __init__(
        self, pipeline: Pipeline, open_store: Callable[..., TileStore], *, persistent: bool, bounded: bool
    ) -> None:
        self.pipeline = pipeline
        self.open_store = open_store
        self.persistent = persistent
        self.bounded = bounded
        self.reference = Reference(pipeline.stages)
        self.known: list[set[Index]] = [set() for _ in pipeline.stages]
        # Tiles that a mask has left out, each with a window that touches it and is stored in others.
        self.kept_out: list[set[tuple[Index, Index]]] = [set() for _ in pipeline.stages]
        self.functions = [
            Recorded([pipeline.stages[n] for n in self.together(number)], size)
            for number, size in enumerate(pipeline.batch_sizes)
        ]
        elsewhere = () if bounded else pipeline.elsewhere
        self.elsewhere: dict[int, TileStore] = {n: MemoryTileStore() for n in elsewhere}
        self.stores = [self._open(n) for n in range(len(pipeline.tile_sizes))]
        self.tensors: list[InfiniteTensor] = []
        self.build(opens=False)

    def _open(self, number: int) -> TileStore:
        return self.open_store(number, tile_size=self.pipeline.tile_sizes[number], **self.pipeline.options)

    def together(self, stage: int) -> list[int]:
        """The stages that one ``f`` computes with a stage, itself included."""
        beside = self.pipeline.stages[stage].beside
        return [stage] if beside is None else [n for n, s in enumerate(self.pipeline.stages) if s.beside == beside]

    def store_of(self, stage: int) -> TileStore:
        first = self.together(stage)[0]
        return self.elsewhere.get(first, self.stores[first if len(self.stores) > 1 else 0])

    def name_of(self, stage: int) -> str:
        first = self.together(stage)[0]
        return f"stage {stage}" if self.pipeline.stages[stage].beside is None else f"stage {first}/{stage - first}"

    def build(self, *, opens: bool) -> None:
        tensors: list[InfiniteTensor] = []
        while len(tensors) < len(self.pipeline.stages):
            tensors += self._built(len(tensors), tensors, opens=opens)
        self.tensors = tensors

    def _built(self, number: int, tensors: Sequence[InfiniteTensor], *, opens: bool) -> Iterable[InfiniteTensor]:
        """The tensor of a stage, or those of all stages that its ``f`` computes."""
        stage, function, store = self.pipeline.stages[number], self.functions[number], self.store_of(number)
        args, windows = [tensors[n] for n, _ in stage.args], [window for _, window in stage.args]
        name, batch_size = f"stage {number}", self.pipeline.batch_sizes[number]
        given: dict[str, Any] = {"tile_store": store, "tensor_id": name, "batch_size": batch_size}
        given["args_padding"] = stage.paddings or None
        if stage.beside is not None:
            outputs = {
                str(n): Output(s.shape, s.dtype, s.window, s.blend, s.blend_init, s.edge or "drop", reduce=s.reduction)
                for n, s in enumerate(function.stages)
            }
            made: Any = InfiniteTensor.from_multi(function, outputs, args, windows, **given)
            return [made[str(n)] for n in range(len(outputs))]
        # What was cleared and not read since is not there to be opened.
        if opens and name in store.tensor_ids():
            return [store.open(name, function, args, blend=stage.blend, batch_size=batch_size, reduce=stage.reduction)]
        given |= {"dtype": stage.dtype, "blend": stage.blend, "blend_init": stage.blend_init}
        given |= {"edge": stage.edge or "drop", "reduce": stage.reduction}
        return [InfiniteTensor(stage.shape, function, stage.window, args, windows, **given)]

    def reopen(self, how: str) -> None:
        if self.persistent:
            for store in self.stores:
                store.close()
            self.stores = [self._open(n) for n in range(len(self.stores))]
        self.build(opens=how == "open")

    def play(self, action: Action) -> None:
        if isinstance(action, Read):
            self.read(action)
        elif isinstance(action, Forget):
            self.forget(action)
        elif isinstance(action, Fill):
            self.fill(action)
        elif isinstance(action, Together):
            (self.read_together if action.what == "read" else self.fill_together)(action.parts)
        else:
            self.reopen(action.how)

    def forget(self, action: Forget) -> None:
        tensor = self.tensors[action.stage]
        if action.what == "clear_cache":
            tensor.clear_cache()
        else:
            with warnings.catch_warnings():
                # What is computed from it stays right: the same definition gives the same pixels.
                warnings.simplefilter("ignore", DependantsRemainWarning)
                tensor.tile_store.clear_tensor(tensor.tensor_id)
        if action.what == "clear_tensor" or isinstance(tensor.tile_store, MemoryTileStore):
            self.known[action.stage].clear()
            self.kept_out[action.stage].clear()

    def read(self, action: Read) -> None:
        groups = [[s] for s in action.selections] if action.how == "one" else [list(action.selections)]
        for group in groups:
            self._read(action.stage, action.how, group)

    def _read(self, stage: int, how: str, selections: list[Selection]) -> None:
        expressions = [s.expression for s in selections]
        self._check_reads(
            [(stage, selection) for selection in selections],
            lambda: _results(self.tensors[stage], how, expressions),
            once=how != "iter",
        )

    def read_together(self, parts: Sequence[tuple[int, Selection]]) -> None:
        given = self.given(parts)
        self._check_reads(parts, lambda: [result for (result,) in read_together(*given)], once=True)

    def given(self, parts: Sequence[tuple[int, Selection]]) -> list[tuple[InfiniteTensor, object]]:
        return [(self.tensors[n], selection.expression) for n, selection in parts]

    def _check_reads(
        self, parts: Sequence[tuple[int, Selection]], read: Callable[[], list[torch.Tensor]], *, once: bool
    ) -> None:
        try:
            expected = self.reference.missing(runs_of(parts), self.known, MOST_WINDOWS, self._kept_out)
            spanned = boxes_of(parts) if any(self.kept_out) else {}
            allowed = self.reference.missing(spanned, self.known, MOST_WINDOWS, self._kept_out)
        except TooManyWindows:
            return
        fresh = not any(len(store._contents.tiles.entries) for store in self.stores)
        before = [Counter(function.calls) for function in self.functions]
        with mock.patch.object(assemble, "_read_in_steps", wraps=assemble._read_in_steps) as in_steps:
            results = read()
        # What a limited cache has dropped in part may make a read in steps compute upstream windows again.
        once &= fresh or not in_steps.called
        calls = [function.calls - earlier for function, earlier in zip(self.functions, before, strict=True)]
        # A window of a pixel that is read may be made again for a tile that lacks it, of which it holds none.
        expected = [wanted | (made.keys() & more) for wanted, made, more in zip(expected, calls, allowed, strict=True)]
        self._check_calls(calls, expected, once=once)
        assert len(results) == len(parts)
        for (stage, selection), result in zip(parts, results, strict=True):
            note(f"stage {stage}, {selection.expression}")
            self._check_values(stage, selection, result)
            # A result shares no memory with what is stored: the next reads show it.
            result.zero_()

    def fill(self, action: Fill) -> None:
        tensor, region = self.tensors[action.stage], action.selection.expression
        parts, where = [(action.stage, action.selection)], given_as(action)
        self._check_fill(
            parts,
            lambda: tensor.plan(region, where=where),
            lambda: tensor.fill(region, progress=False, where=where),
            action.where,
        )
        if not self.bounded and self._fits(parts, action.where) is not None:
            assert tensor.is_filled(region, where)
            self._check_states(action)

    def _check_states(self, action: Fill) -> None:
        """What coverage, a plan, a report and a view of what is stored tell of a region that has been filled."""
        box, tensor, region = box_of(action.selection), self.tensors[action.stage], action.selection.expression
        if box is None:
            return
        where, layout = given_as(action), self._layout(action.stage)
        parts = dict(parts_of(layout, box))
        states = {tile: self._state(action, tile, part) for tile, part in parts.items()}
        names: list[Any] = ["stored", "missing", "uncovered", *(["skipped"] if action.where is not None else [])]
        for name in names:
            found = tensor.coverage(region, name, where)
            assert found.flatten().tolist() == [state == name for state in states.values()], name
        told = tensor.fill(region, progress=False, where=where)
        (skipped,) = (each.skipped for each in told.tensors if each.tensor_id == tensor.tensor_id)
        assert skipped == (0 if action.where is None else sum(not action.where.takes(part) for part in parts.values()))
        hidden = [parts[tile] for tile, state in states.items() if state in ("missing", "skipped")]
        self._check_view(action, hidden)

    def _state(self, action: Fill, tile: Index, part: Box) -> str:
        """The state of a tile, of which a region has a part."""
        stage = self.pipeline.stages[action.stage]
        layout = self._layout(action.stage)
        whole = layout.start(tile), layout.stop(tile)
        windows = windows_over(stage.shape, stage.window, whole, stage.edge)
        missing = set(windows) - self.known[action.stage] | self._kept_out(action.stage, whole)
        if not missing:
            return "stored" if windows else "uncovered"
        return "missing" if action.where is None or action.where.takes(part) else "skipped"

    def _check_view(self, action: Fill, hidden: Sequence[Box]) -> None:
        """What is stored of a region that has been filled: all but some parts."""
        tensor, stage = self.tensors[action.stage], action.stage
        before = [function.calls.total() for function in self.functions]
        value = tensor.dtype is torch.bool or 5
        result = tensor.stored_only(value)[action.selection.expression]
        assert before == [function.calls.total() for function in self.functions]
        with contextlib.suppress(TooManyWindows):
            self.reference.missing(boxes_of([(stage, action.selection)]), [set()] * len(self.known), MOST_WINDOWS)
            self._check_values(stage, action.selection, result, dict.fromkeys(hidden, value))

    def fill_together(self, parts: Sequence[tuple[int, Selection]]) -> None:
        given = self.given(parts)
        self._check_fill(parts, lambda: plan_together(*given), lambda: fill_together(*given, progress=False))

    def _fits(self, parts: Sequence[tuple[int, Selection]], where: Where | None = None) -> list[set[Index]] | None:
        """The windows that a fill computes of each stage; None for too many."""
        boxes = boxes_of(parts)
        for stage in boxes:
            layout = self._layout(stage)
            if where is not None:
                boxes[stage] = [part for box in boxes[stage] for _, part in parts_of(layout, box) if where.takes(part)]
            if self.store_of(stage)._contents.outlives_process:
                boxes[stage] = [layout.whole(*box) for box in boxes[stage]]
        try:
            return self.reference.missing(boxes, self.known, MOST_WINDOWS, self._kept_out)
        except TooManyWindows:
            return None

    def _check_fill(
        self,
        parts: Sequence[tuple[int, Selection]],
        plan: Callable[[], FillPlan],
        fill: Callable[[], FillReport],
        where: Where | None = None,
    ) -> None:
        expected = self._fits(parts, where)
        if expected is None:
            return
        # Outputs of one f count together: the first may have no window here.
        planned: Counter[str] = Counter()
        for part in plan().tensors:
            planned[part.tensor_id.partition("/")[0]] += part.windows
        before = [Counter(function.calls) for function in self.functions]
        report = fill()
        calls = [function.calls - earlier for function, earlier in zip(self.functions, before, strict=True)]
        ((number, selection), *_), known, kept_out = parts, list(map(set, self.known)), [*self.kept_out]
        self._check_calls(calls, expected, once=False)
        if where is not None:
            made = self.reference.made(number, expected)
            self._keep_out(number, selection, where, made, known[number], kept_out[number])
        # The first output counts what f is called for.
        firsts = [n for n, stage in enumerate(self.reference.stages) if stage.beside in (None, n)]
        assert report.windows == sum(calls[n].total() for n in firsts)
        if not self.bounded:
            assert +planned == +Counter({self.name_of(n).partition("/")[0]: len(expected[n]) for n in firsts})
            assert plan().windows == fill().windows == 0

    def _keep_out(
        self,
        number: int,
        selection: Selection,
        where: Where,
        made: Iterable[Index],
        known: set[Index],
        kept_out: set[tuple[Index, Index]],
    ) -> None:
        """Windows have been made by a fill, and are not stored in tiles that its mask leaves out, but were before."""
        stage, layout, box = self.pipeline.stages[number], self._layout(number), box_of(selection)
        assert box is not None
        taken = {tile for tile, part in parts_of(layout, box) if where.takes(part)}
        for window in made:
            low, high = box_at(stage.window, window)
            ends = [math.inf if extent is None else extent for extent in stage.shape]
            inside = (
                tuple([a if extent is None else max(a, 0) for a, extent in zip(low, stage.shape, strict=True)]),
                tuple([int(min(b, end)) for b, end in zip(high, ends, strict=True)]),
            )
            self.kept_out[number] |= {
                (tile, window)
                for tile, _ in parts_of(layout, inside)
                if tile not in taken and (window not in known or (tile, window) in kept_out)
            }

    def _kept_out(self, number: int, box: Box) -> set[Index]:
        """The windows that a box lacks, though they are known."""
        stage = self.pipeline.stages[number]
        return {
            window
            for tile, part in (parts_of(self._layout(number), box) if self.kept_out[number] else ())
            for window in windows_over(stage.shape, stage.window, part, stage.edge)
            if (tile, window) in self.kept_out[number]
        }

    def _layout(self, number: int) -> TileLayout:
        return self.store_of(number)._contents.layout(self.tensors[number]._spec)

    def _check_calls(self, calls: list[Counter[Index]], expected: list[set[Index]], *, once: bool) -> None:
        for number, (made, wanted) in enumerate(zip(calls, expected, strict=True)):
            if not self.bounded:
                assert made == Counter(wanted), f"stage {number}"
                for n in self.together(number):
                    anew = {*self.reference.made(n, expected)}
                    self.known[n] |= anew
                    self.kept_out[n] = {(tile, window) for tile, window in self.kept_out[n] if window not in anew}
            else:
                assert set(made) <= wanted, f"stage {number}"
                assert not once or made <= Counter(wanted), f"stage {number}"

    def _check_values(
        self, number: int, selection: Selection, result: torch.Tensor, instead: Mapping[Box, int] | None = None
    ) -> None:
        """The bits of a result: those of the reference, with a value instead in some boxes."""
        stage = self.pipeline.stages[number]
        lengths = [1 if isinstance(pixels, int) else len(pixels) for pixels in selection.pixels]
        kept = [n for n, pixels in zip(lengths, selection.pixels, strict=True) if not isinstance(pixels, int)]
        assert result.dtype == stage.dtype
        assert result.shape == torch.Size(kept)
        box = box_of(selection)
        if box is None:
            return
        # What is reduced may be one number that stands for all pixels.
        values, copied = (each.clone() for each in self.reference.region(number, box))
        for part, value in (instead or {}).items():
            inside = tuple(slice(a - low, b - low) for a, b, low in zip(*part, box[0], strict=True))
            values[inside], copied[inside] = value, True
        ranges = [range(p, p + 1) if isinstance(p, int) else p for p in selection.pixels]
        picked = np.ix_(*([p - low for p in pixels] for pixels, low in zip(ranges, box[0], strict=True)))
        mask = torch.from_numpy(copied.numpy()[picked])
        expected = settled_bits(stage, values, copied)[picked]
        np.testing.assert_array_equal(settled_bits(stage, result.reshape(lengths), mask), expected)


def boxes_of(parts: Iterable[tuple[int, Selection]]) -> dict[int, list[Box]]:
    """Per stage, the boxes that selections span."""
    boxes: dict[int, list[Box]] = {}
    for stage, selection in parts:
        box = box_of(selection)
        if box is not None:
            boxes.setdefault(stage, []).append(box)
    return boxes


def runs_of(parts: Iterable[tuple[int, Selection]]) -> dict[int, list[Box]]:
    """Per stage, the boxes of successive pixels that selections pick."""
    runs: dict[int, list[Box]] = {}
    for stage, selection in parts:
        lines = [range(p, p + 1) if isinstance(p, int) else p for p in selection.pixels]
        runs.setdefault(stage, []).extend(reference.boxes_of([p[:: 1 if p.step > 0 else -1] for p in lines]))
    return runs


def parts_of(layout: TileLayout, box: Box) -> Iterator[tuple[Index, Box]]:
    """The tiles that hold a box, in lexicographic order, each with what it holds of it."""
    for tile in itertools.product(*map(range, *layout.box(*box))):
        starts, stops = zip(box, (layout.start(tile), layout.stop(tile)), strict=True)
        yield tile, (tuple(map(max, *starts)), tuple(map(min, *stops)))


def given_as(action: Fill) -> object:
    """The mask of a fill as the library is given it."""
    if action.where is None:
        return None
    values: Any = action.where.values
    if action.kind == "tensor":
        values = torch.from_numpy(values).to(torch.float32)
    elif action.kind == "callable":
        values = action.where.values.__getitem__
    elif action.kind == "infinite":
        pixels = torch.from_numpy(values)
        values = InfiniteTensor(values.shape, lambda _: pixels, TensorWindow(values.shape), dtype=torch.bool)
    return Mask(values, action.where.scale, action.where.origin, action.where.dims)


def _results(tensor: InfiniteTensor, how: str, expressions: list[object]) -> list[torch.Tensor]:
    if how == "one":
        return [tensor[expressions[0]]]
    if how == "list":
        return list(tensor[expressions])
    return [result for ready in tensor.iter_regions(iter(expressions)) for result in ready]


def settled_bits(stage: Stage, values: torch.Tensor, copied: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of each pixel. Where there was arithmetic, what processors leave open is made equal.

    Which NaN a sum of two NaN is, and which of 0.0 and -0.0 is the larger, differs between the vector and the
    scalar instructions of one processor.
    """
    if values.dtype.is_complex:
        values, copied = torch.view_as_real(values), copied.unsqueeze(-1)
    if values.dtype.is_floating_point:
        values = torch.where(~copied & values.isnan(), torch.nan, values)
        if stage.blend in (torch.maximum, torch.minimum):
            values = torch.where(~copied & (values == 0), 0.0, values)
    bits: npt.NDArray[np.uint8] = values.contiguous().unsqueeze(-1).view(torch.uint8).numpy()
    return bits


def _close(stores: Iterable[TileStore]) -> None:
    for store in stores:
        store.close()


def _run(
    pipeline: Pipeline, open_store: Callable[..., TileStore], *, persistent: bool = True, bounded: bool = False
) -> None:
    # The reference lists all windows of a tile, in Python.
    tile_bytes = min(pipeline.block_bytes // 4, 2**12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "_BLOCK_BYTES", pipeline.block_bytes)
        patch.setattr(tile_layout, "_BLENDED_BYTES", tile_bytes)
        patch.setattr(tile_layout, "_ROW_BYTES", tile_bytes)
        patch.setattr(cutting, "_STEP_BYTES", pipeline.block_bytes // 2)
        patch.setattr(fill, "_DEFAULT_HELD", pipeline.block_bytes)
        patch.setattr(weights, "_IN_TILE", pipeline.block_bytes)
        history = History(pipeline, open_store, persistent=persistent, bounded=bounded)
        try:
            for action in pipeline.actions:
                history.play(action)
        finally:
            _close(history.stores)


@given(pipelines())
def test_memory_store(pipeline: Pipeline) -> None:
    _run(pipeline, lambda *_, **__: MemoryTileStore(), persistent=False)


@given(pipelines())
def test_memory_store_with_tiles_of_a_given_size(pipeline: Pipeline) -> None:
    _run(pipeline, lambda _, tile_size, **__: MemoryTileStore(tile_size=tile_size), persistent=False)


@pytest.mark.slow
@given(pipelines())
def test_memory_store_on_several_threads(pipeline: Pipeline) -> None:
    _run(pipeline, lambda *_, **__: MemoryTileStore(workers=WORKERS), persistent=False)


@given(pipelines())
def test_zarr_store_on_several_threads(pipeline: Pipeline) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(pipeline, lambda number, **options: ZarrTileStore(Path(folder, str(number)), workers=WORKERS, **options))


@given(pipelines())
def test_memory_store_with_limits(pipeline: Pipeline) -> None:
    limit = pipeline.options["cache_size_tiles"] or 3
    open_store = lambda *_, **__: MemoryTileStore(pipeline.options["cache_size_bytes"], limit)  # noqa: E731
    _run(pipeline, open_store, persistent=False, bounded=True)


@pytest.mark.slow
@given(pipelines())
def test_zarr_store_in_a_directory(pipeline: Pipeline) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(pipeline, lambda number, **options: ZarrTileStore(Path(folder, str(number)), **options))


@pytest.mark.slow
@given(pipelines())
def test_zarr_store_behind_a_url(pipeline: Pipeline) -> None:
    try:
        _run(pipeline, lambda number, **options: ZarrTileStore(f"memory://properties/{number}", **options))
    finally:
        # A pipeline that computes nothing creates no store.
        with contextlib.suppress(FileNotFoundError):
            fsspec.filesystem("memory").rm("/properties", recursive=True)


@pytest.mark.slow
@given(pipelines())
def test_hdf5_store(pipeline: Pipeline) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(pipeline, lambda number, **options: HDF5TileStore(Path(folder, f"{number}.h5"), **options))


@pytest.mark.slow
@given(pipelines())
def test_dict_store(pipeline: Pipeline) -> None:
    storages: list[dict[Any, Any]] = [{} for _ in pipeline.stages]
    _run(pipeline, lambda number, **options: DictTileStore(storages[number], **options))
