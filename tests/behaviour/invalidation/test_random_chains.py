"""Random chains of random geometry: what is dropped, and what runs again, is what the model says."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import given, note
from hypothesis import strategies as st

from infinite_tensor import HDF5TileStore, InfiniteTensor, MemoryTileStore, TileStore, ZarrTileStore

# Inside: how windows are counted along a dimension.
from tests.behaviour.invalidation.model import Model
from tests.support.dict_store import DictTileStore
from tests.support.pipelines import Pipeline, pipelines
from tests.support.reference import Box, Index, Padding, TooManyWindows
from tests.support.reference import follows as followed

_Step: TypeAlias = tuple[str, int, Box]
"""``read``, ``change`` of a region, change of ``all``, or ``reopen``; the number of a stage; a region of it."""

_History: TypeAlias = "tuple[Pipeline, list[_Step]]"


pytestmark = pytest.mark.filterwarnings(
    "ignore::infinite_tensor.UncoveredPixelsWarning", "ignore:.*wraps around:UserWarning"
)


@st.composite
def _boxes(draw: st.DrawFn, shape: tuple[int | None, ...]) -> Box:
    low = [draw(st.integers(-8, 8) if extent is None else st.integers(0, extent - 1)) for extent in shape]
    longest = {1: 20, 2: 8, 3: 4}[len(shape)]
    high = [a + draw(st.integers(1, longest if n is None else n - a)) for a, n in zip(low, shape, strict=True)]
    return tuple(low), tuple(high)


@st.composite
def _histories(draw: st.DrawFn) -> _History:
    """A chain, and what happens to it."""
    pipeline = draw(pipelines())
    steps = []
    for _ in range(draw(st.integers(3, 9))):
        what = draw(st.sampled_from(["read", "read", "read", "change", "change", "all", "reopen"]))
        number = draw(st.integers(0, len(pipeline.stages) - 1))
        steps.append((what, number, draw(_boxes(pipeline.stages[number].shape))))
    return pipeline, steps


def _may_drop_more(pipeline: Pipeline, steps: list[_Step]) -> bool:
    """Whether endlessly many windows may be wrong that leave gaps or lie along a diagonal.

    What reads only from between them is then dropped as well.
    """
    apart = endless = False
    for stage in pipeline.stages:
        window, follows = stage.window, followed(stage.window)
        apart |= any(stride > size for stride, size in zip(window.stride, window.size, strict=True))
        apart |= len(set(follows)) < len(follows)
        endless |= any(set(range(len(stage.shape))) - set(followed(arg)) for _, arg in stage.args)
        # A pixel has so many images that all windows are taken to read it.
        apart |= (endlessly := any(map(_repeats, stage.paddings)))
        endless |= endlessly
    return apart and (endless or any(what == "all" for what, _, _ in steps))


def _repeats(padding: Padding | None) -> bool:
    return not {"wrap", "reflect", "symmetric"}.isdisjoint(padding or ())


def _call(model: nullcontext[Model], number: int, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
    # A look at a function does not reach what was read and dropped: objects of the standard library count for nothing.
    return model.enter_result.counting(number, ctx, *regions)


class _Play:
    """A history on stores of one kind, beside its model."""

    def __init__(self, pipeline: Pipeline, open_store: Callable[..., TileStore], *, exact: bool) -> None:
        self._exact = exact
        self._changed = False
        self._pipeline = pipeline
        self._open_store = open_store
        self._memory = {number: MemoryTileStore() for number in pipeline.elsewhere}
        self._stores = self._opened()
        self._model = Model(pipeline.stages)
        self._functions = [partial(_call, nullcontext(self._model), number) for number in range(len(pipeline.stages))]
        self._tensors = self._built()
        self._model.tiles = [t.tile_store._contents.layout(t._spec).tile_shape for t in self._tensors]

    def _opened(self) -> list[TileStore]:
        sizes = self._pipeline.tile_sizes
        return [self._open_store(number, tile_size=size, cache_size_bytes=None) for number, size in enumerate(sizes)]

    def _built(self) -> list[InfiniteTensor]:
        tensors: list[InfiniteTensor] = []
        for number, stage in enumerate(self._model.stages):
            store = self._memory.get(number, self._stores[number % len(self._stores)])
            f, args, windows = self._functions[number], [tensors[n] for n, _ in stage.args], [w for _, w in stage.args]
            options: dict[str, Any] = {"dtype": stage.dtype, "tile_store": store, "tensor_id": f"stage {number}"}
            options |= {"blend": stage.blend, "edge": stage.edge or "drop", "args_padding": stage.paddings or None}
            tensors.append(InfiniteTensor(stage.shape, f, stage.window, args, windows, **options))
        return tensors

    def reopen(self) -> None:
        if any(isinstance(store, MemoryTileStore) for store in self._stores):
            return
        for store in self._stores:
            store.close()
        self._stores = self._opened()
        self._tensors = self._built()

    def read(self, number: int, box: Box) -> None:
        try:
            expected = self._model.computed_by(number, box)
        except TooManyWindows:
            return
        self._model.calls = [Counter() for _ in self._tensors]
        result = self._tensors[number][tuple(slice(a, b) for a, b in zip(*box, strict=True))]
        for made, wanted in zip(self._model.calls, expected, strict=True):
            assert made == wanted if self._exact else made >= wanted
            assert set(made.values()) <= {1}
        assert torch.equal(result, self._model.value(number, box))

    def change(self, number: int, box: Box | None) -> None:
        dropped = self._model.change(number, box)
        region = None if box is None else tuple(slice(a, b) for a, b in zip(*box, strict=True))
        told = self._tensors[number].invalidate(region)
        found = Counter({one.tensor_id: one.tiles for one in told.tensors})
        wanted = Counter({f"stage {n}": count for n, count in enumerate(dropped)})
        # What was dropped without need before is not there to be dropped.
        assert found == wanted if self._exact else found >= wanted or self._changed
        self._changed = True

    def play(self, steps: list[_Step]) -> None:
        try:
            for what, number, box in steps:
                note(f"{what} of stage {number}: {box}")
                if what == "read":
                    self.read(number, box)
                elif what == "reopen":
                    self.reopen()
                else:
                    self.change(number, box if what == "change" else None)
            for number, stage in enumerate(self._model.stages):
                self.read(number, (tuple(0 for _ in stage.shape), tuple(min(n or 4, 4) for n in stage.shape)))
        finally:
            for store in self._stores:
                store.close()


def _run(history: _History, open_store: Callable[..., TileStore]) -> None:
    pipeline, steps = history
    _Play(pipeline, open_store, exact=not _may_drop_more(pipeline, steps)).play(steps)


@pytest.mark.slow
@given(_histories())
def test_random_chains_in_memory(history: _History) -> None:
    _run(history, lambda _, tile_size, **__: MemoryTileStore(tile_size=tile_size))


@given(_histories())
@pytest.mark.slow
def test_random_chains_in_zarr(history: _History) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(history, lambda number, **options: ZarrTileStore(Path(folder, str(number)), **options))


@pytest.mark.slow
@given(_histories())
def test_random_chains_in_hdf5(history: _History) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(history, lambda number, **options: HDF5TileStore(Path(folder, f"{number}.h5"), **options))


@pytest.mark.slow
@given(_histories())
def test_random_chains_in_a_third_party_store(history: _History) -> None:
    storages: list[dict[Any, Any]] = [{} for _ in history[0].stages]
    _run(history, lambda number, **options: DictTileStore(storages[number], **options))
