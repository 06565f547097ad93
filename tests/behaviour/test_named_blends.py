"""Blends that are given by a name, in every store."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    HDF5TileStore,
    MemoryTileStore,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
)
from tests.support.building import built
from tests.support.reference import Reference, Stage, same_bits
from tests.support.stores import sample

WINDOW = TensorWindow((5, 6), stride=(2, 4), offset=(-1, 3))
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


def test_another_blend_under_the_same_id_is_named(store: TileStore) -> None:
    f = Noise(WINDOW, torch.float32)
    built(f, WINDOW, store=store, name="t", blend="first")
    with pytest.raises(ValidationError, match="'first'"):
        built(f, WINDOW, store=store, name="t", blend="last")
    with pytest.raises(ValidationError, match="'first'"):
        built(f, WINDOW, store=store, name="t")
    with pytest.raises(ValidationError, match="'first'"):
        store.open("t", f, blend="last")
    with pytest.raises(ValidationError, match="'first'"):
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
