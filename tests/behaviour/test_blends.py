"""A blended pixel is a pure function of its windows: its bits depend neither on where it lies nor on what was read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

from infinite_tensor import HDF5TileStore, MemoryTileStore, TensorWindow, TileStore, ZarrTileStore
from tests.support.blends import BLENDS
from tests.support.building import built
from tests.support.reference import Reference, Stage

Box: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

SIZE, END = (192, 176), (200, 180)
WINDOW = TensorWindow(SIZE, stride=(96, 88))
"""A window has more pixels than torch works on with one thread."""

STORES: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _path: MemoryTileStore(),
    "memory with a limit": lambda _path: MemoryTileStore(cache_size_windows=5),
    "zarr": lambda path: ZarrTileStore(path / "s.zarr", tile_size=256, cache_size_tiles=1),
    "zarr with small tiles": lambda path: ZarrTileStore(path / "s.zarr", tile_size=77, compressors=None),
    "hdf5": lambda path: HDF5TileStore(path / "s.h5", tile_size=133, compression=None, cache_size_tiles=2),
}

DEFAULT = {("memory with a limit", 1), ("zarr with small tiles", 2)}

CASES = [
    ("logaddexp", torch.float64),
    ("atan2", torch.float32),
    ("pow", torch.float32),
    ("sigmoid", torch.float32),
    ("maximum", torch.float32),
    ("add with alpha", torch.bfloat16),
    ("add with alpha", torch.float16),
    ("divide", torch.complex64),
]


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@cache
def windows_of(dtype: torch.dtype) -> Callable[[tuple[int, ...]], torch.Tensor]:
    """An ``f`` whose windows hold both signs, of zeros too."""

    @cache
    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(SIZE, dtype=dtype, generator=torch.Generator().manual_seed(100 * ctx[0] + ctx[1] + 5000))
        noise[::3, ::2] = 0.0
        noise[::3, ctx[1] % 2 :: 2] *= -1
        return noise

    return f


@cache
def expected_of(name: str, dtype: torch.dtype) -> torch.Tensor:
    """What a read of everything must return."""
    stage = Stage((None, None), dtype, WINDOW, windows_of(dtype), blend=BLENDS[name], blend_init=0.5)
    return Reference([stage]).region(0, ((0, 0), END))[0]


def histories() -> Iterator[list[Box]]:
    """Reads, one after the other: of everything at once, and of parts that begin and end anywhere."""
    dice = random.Random(3)  # noqa: S311  (no secret)
    yield []
    for _ in range(2):
        corners = [[sorted(dice.sample(range(end), 2)) for end in END] for _ in range(6)]
        yield [((rows[0], columns[0]), (rows[1], columns[1])) for rows, columns in corners]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("kind", "threads"),
    [
        pytest.param(kind, threads, marks=() if (kind, threads) in DEFAULT else pytest.mark.slow)
        for kind in STORES
        for threads in (1, 2)
    ],
    indirect=["threads"],
)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_blended_pixel_has_the_same_bits_always(kind: str, name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    expected = expected_of(name, dtype)
    for number, reads in enumerate(histories()):
        folder = tmp_path / str(number)
        folder.mkdir()
        with STORES[kind](folder) as store:
            t = built(windows_of(dtype), WINDOW, store=store, name="t", dtype=dtype, blend=BLENDS[name], blend_init=0.5)
            for low, high in [*reads, ((0, 0), END)]:
                region = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
                assert torch.equal(t[region].view(torch.uint8), expected[region].contiguous().view(torch.uint8))
