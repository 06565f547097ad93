"""What a large read through a chain holds: its result, what caches may keep, and the working set of one batch."""

from __future__ import annotations

import ctypes
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore
from tests.support.building import built, store_of
from tests.support.interpreters import CONTEXT

MIB = 2**20
DEPTH = 4

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units")


def ramp(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(256.0).expand(256, 256) + ctx[0] - ctx[1]


def soften(_ctx: tuple[int, ...], region: torch.Tensor) -> torch.Tensor:
    return region[2:-2, 2:-2] * 0.5 + region[4:, 2:-2] * 0.5


def chain(store: TileStore) -> InfiniteTensor:
    window, halo = TensorWindow((256, 256)), TensorWindow((260, 260), stride=256, offset=-2)
    t = built(ramp, window, store=store, name="0")
    for number in range(1, DEPTH):
        t = built(soften, window, (t, halo), store=store, name=str(number))
    return t


def growth(kind: str, folder: Path, extent: int, cache: int) -> int:
    """By how much the most memory that this process has held grows while `extent` x `extent` pixels are read."""
    with store_of(kind, folder, 256, cache_size_bytes=cache) as tiles:
        t = chain(tiles)
        t[0:16, 0:16]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert t[0:extent, 0:extent].shape == (extent, extent)
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def check(kind: str, folder: Path, extent: int, cache: int, working_set: int) -> None:
    with ProcessPoolExecutor(1, CONTEXT) as child:
        held = child.submit(growth, kind, folder, extent, cache).result()
    assert held < extent * extent * 4 + cache + working_set


def test_a_large_read_holds_its_result_the_cache_and_little_more(tmp_path: Path) -> None:
    check("zarr", tmp_path, 4096, 16 * MIB, 128 * MIB)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "extent"), [("zarr", 8192), ("memory", 8192), *((kind, 16384) for kind in ("memory", "zarr", "hdf5"))]
)
def test_a_very_large_read_does_so_too(kind: str, extent: int, tmp_path: Path) -> None:
    check(kind, tmp_path, extent, 64 * MIB, 256 * MIB)


class Mallinfo(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks")] + [
        (name, ctypes.c_size_t) for name in ("fsmblks", "uordblks", "fordblks", "keepcost")
    ]


def mapped_for_a_batch() -> int:
    """How many blocks are mapped anew for the output of a batch, once a window has been computed."""
    built(ramp, (256, 256))[0, 0]
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    before: int = mallinfo().hblks
    output = torch.empty(30 * MIB, dtype=torch.uint8)
    mapped: int = mallinfo().hblks
    del output
    return mapped - before


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="other allocators have other rules"
)
def test_what_an_f_returns_takes_pages_that_were_freed_before() -> None:
    # What is mapped is given back as it is freed. A cheap network took up to twice the time for new pages.
    with ProcessPoolExecutor(1, CONTEXT) as child:
        assert child.submit(mapped_for_a_batch).result() == 0
