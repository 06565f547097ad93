"""Blends that are given by a name, in every store."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    Output,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
)
from tests.support.building import built
from tests.support.reference import Reference, Stage, same_bits
from tests.support.reopening import reopened
from tests.support.stored import DTYPES
from tests.support.stores import sample

WINDOW = TensorWindow((5, 6), stride=(2, 4), offset=(-1, 3))
GAPS = TensorWindow((3, 4), stride=(2, 6))
"""Windows that overlap along the rows, with columns between them that no window covers."""
END = (20, 24)

STORES: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _path: MemoryTileStore(),
    "memory with a limit": lambda _path: MemoryTileStore(cache_size_windows=4),
    "zarr": lambda path: ZarrTileStore(path / "s.zarr", tile_size=7, cache_size_tiles=1, flush_interval=0),
    "hdf5": lambda path: HDF5TileStore(path / "s.h5", tile_size=16, cache_size_tiles=2),
}


class Noise:
    """An ``f`` that can be pickled. Of floats, some pixels are -0.0, and NaN with a payload."""

    def __init__(self, window: TensorWindow, dtype: torch.dtype) -> None:
        self.window = window
        self.dtype = dtype

    def __call__(self, ctx: tuple[int, ...]) -> torch.Tensor:
        """The window at `ctx`."""
        dice = torch.Generator().manual_seed(1000 * ctx[0] + ctx[1] + 10**6)
        if not self.dtype.is_floating_point:
            return (torch.rand(self.window.size, generator=dice) * 100).to(self.dtype)
        noise = torch.randn(self.window.size, generator=dice).to(self.dtype)
        noise[0, 0], noise[-1, -1], noise[0, -1] = -0.0, math.nan, -math.inf
        return noise


@pytest.fixture(params=sample(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TileStore]:
    """A store of each kind."""
    with STORES[request.param](tmp_path) as opened:
        yield opened


def expected(window: TensorWindow, dtype: torch.dtype, blend: Any, blend_init: float | None) -> torch.Tensor:
    return Reference([Stage((None, None), dtype, window, Noise(window, dtype), (), blend, blend_init)]).region(
        0, ((0, 0), END)
    )[0]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_large_unsigned_integers_have_a_max_and_a_min(dtype: torch.dtype, tmp_path: Path) -> None:
    top = 2 ** (8 * dtype.itemsize) - 1
    windows = {0: [top, 1, 2, top], 1: [3, top, 0, 1]}
    f = lambda ctx: torch.tensor(windows[ctx[0]], dtype=dtype)  # noqa: E731
    window = TensorWindow((4,), stride=2)
    for store in (MemoryTileStore(), ZarrTileStore(tmp_path, tile_size=3)):
        for blend, shared in (("max", [3, top]), ("min", [2, top])):
            t = built(
                f,
                window,
                shape=(6,),
                dtype=dtype,
                store=store,
                name=blend,
                blend=blend,
                blend_init=top * (blend == "min"),
            )
            assert t[...].tolist() == [top, 1, *shared, 0, 1]


@pytest.mark.parametrize("blend", ["first", "last"])
@pytest.mark.parametrize(("window", "blend_init"), [(WINDOW, None), (GAPS, None), (GAPS, 2.5)])
@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_one_window_is_kept(store: TileStore, window: TensorWindow, blend: Any, blend_init: float | None) -> None:
    f = Noise(window, torch.float32)
    t = built(f, window, store=store, name="t", blend=blend, blend_init=blend_init)
    right = expected(window, torch.float32, blend, blend_init)
    dice = random.Random(5)  # noqa: S311  (no secret)
    for _ in range(12):
        region = tuple(slice(*sorted(dice.sample(range(end + 1), 2))) for end in END)
        assert same_bits(t[region], right[region].contiguous())
        if dice.random() < 0.4:
            # Without blend=, which is stored.
            t = reopened(store).open("t", f)
            assert t.blend == blend
    assert same_bits(t[0:20, 0:24], right)


@pytest.mark.parametrize("blend", ["first", "last"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_window_is_kept_in_every_dtype(blend: Any, dtype: torch.dtype) -> None:
    t = built(Noise(WINDOW, dtype), WINDOW, dtype=dtype, blend=blend)
    assert same_bits(t[0:20, 0:24], expected(WINDOW, dtype, blend, None))


@pytest.mark.parametrize(("name", "function"), [("max", torch.maximum), ("min", torch.minimum)])
def test_the_name_of_a_function_is_that_function(store: TileStore, name: Any, function: Any) -> None:
    f = Noise(WINDOW, torch.int32)
    options: dict[str, Any] = {"dtype": "int32", "store": store, "name": "t"}
    t = built(f, WINDOW, blend=name, **options)
    assert t.blend is function
    right = expected(WINDOW, torch.int32, function, None)
    assert same_bits(t[0:9, 0:24], right[:9])
    reopened(store)
    # The same definition, and so the same tensor.
    again = built(f, WINDOW, blend=function, **options)
    assert same_bits(again[0:20, 0:24], right)
    assert store.open("t", f, blend=name).blend is function
    assert store.open("t").blend is function


def test_a_maximum_starts_from_blend_init() -> None:
    def below_zero(_ctx: tuple[int, ...]) -> torch.Tensor:
        return torch.full((4,), -3.0)

    window = TensorWindow((4,), stride=2)
    assert built(below_zero, window, blend="max")[0].item() == 0
    lowest = built(below_zero, window, blend="max", blend_init=-math.inf)
    assert lowest[0].item() == -3


def test_another_blend_under_the_same_id_is_named(store: TileStore) -> None:
    f = Noise(WINDOW, torch.float32)
    built(f, WINDOW, store=store, name="t", blend="first")
    with pytest.raises(ValidationError, match="blend: stored 'first', given 'last'"):
        built(f, WINDOW, store=store, name="t", blend="last")
    with pytest.raises(ValidationError, match="blend: stored 'first', given None"):
        built(f, WINDOW, store=store, name="t")
    with pytest.raises(ValidationError, match="blend: stored 'first', given 'last'"):
        store.open("t", f, blend="last")
    with pytest.raises(ValidationError, match="one of 'max', 'min', 'first', 'last'"):
        store.open("t", f, blend="newest")  # type: ignore[arg-type]


@pytest.mark.parametrize("blend", ["first", "last"])
def test_a_pickle_keeps_the_blend(store: TileStore, blend: Any) -> None:
    t = built(Noise(WINDOW, torch.float32), WINDOW, store=store, name="t", blend=blend)
    right = expected(WINDOW, torch.float32, blend, None)
    assert same_bits(t[0:10, 0:10], right[:10, :10].contiguous())
    data = pickle.dumps(t)
    store.flush()
    if isinstance(store, HDF5TileStore):
        store.close()
    loaded = pickle.loads(data)  # noqa: S301  (ours)
    assert loaded.blend == blend
    assert same_bits(loaded[0:20, 0:24], right)
    loaded.tile_store.close()


def test_outputs_of_one_f_keep_windows_of_their_own_choice(store: TileStore) -> None:
    f = Noise(WINDOW, torch.float32)
    names: tuple[Any, ...] = ("first", "last", "max", "min")

    def together(ctx: tuple[int, ...]) -> dict[str, torch.Tensor]:
        return {name: f(ctx).nan_to_num() for name in names}

    def outputs() -> dict[str, Output]:
        return {name: Output((None, None), "float32", WINDOW, blend=name) for name in names}

    made: Any = InfiniteTensor.from_multi(together, outputs(), tile_store=store, tensor_id="world")
    made["first"][0:7, 0:9]
    reopened(store)
    made = InfiniteTensor.from_multi(together, outputs(), tile_store=store, tensor_id="world")
    for name in names:
        stage = Stage((None, None), torch.float32, WINDOW, lambda ctx: f(ctx).nan_to_num(), (), made[name].blend)
        assert torch.equal(made[name][0:20, 0:24], Reference([stage]).region(0, ((0, 0), END))[0])


@pytest.mark.parametrize("blend", ["first", "last"])
def test_windows_in_memory_are_kept_through_a_change_of_dtype(blend: Any) -> None:
    f = Noise(WINDOW, torch.float32)
    t = built(f, WINDOW, blend=blend)
    before = t[0:20, 0:24]
    t.to("cpu", torch.float64)
    assert torch.equal(t[0:20, 0:24].nan_to_num(), before.double().nan_to_num())
