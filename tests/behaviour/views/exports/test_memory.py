"""What an export takes of memory: steps and what stores may keep, however large the region is."""

from __future__ import annotations

import ctypes
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, ZarrTileStore, sl
from tests.support.interpreters import CONTEXT
from tests.support.reference import Index

MB = 10**6
FORMS = ["zarr", "npy", "tif"]

_M_MMAP_THRESHOLD = -3
"""An option of glibc's ``mallopt``."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units")


def woven(ctx: Index) -> torch.Tensor:
    y, x = (torch.arange(512, dtype=torch.int32) + 512 * i for i in ctx)
    return ((3 * y[:, None] ^ 5 * x) % 256).to(torch.uint8)


def growth(folder: Path, extent: int, form: str, kept: str, **options: Any) -> int:
    """By how much the most memory that this process has held grows while `extent` x `extent` pixels are exported."""
    # Otherwise glibc keeps the holes between what ``f`` needs for a moment: up to 200 MB, as the threads happen to run.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**17)
    store: TileStore = ZarrTileStore(folder / "tiles") if kept == "zarr" else MemoryTileStore()
    t = InfiniteTensor((None, None), woven, TensorWindow((512, 512)), dtype="uint8", tile_store=store, tensor_id="t")
    t.export(sl[0:600, 0:600], folder / f"small.{form}", progress=False, **options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    t.export(sl[0:extent, 0:extent], folder / f"out.{form}", progress=False, **options)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.mark.parametrize("kept", [pytest.param("zarr", marks=pytest.mark.slow), "memory"])
@pytest.mark.parametrize("form", [FORMS[0], *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS[1:])])
def test_an_image_of_400_mb_takes_less_than_300_mb(form: str, kept: str, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, CONTEXT) as child:
        assert child.submit(growth, tmp_path, 20_000, form, kept).result() < 300 * MB


@pytest.mark.slow
def test_levels_take_no_more_memory_of_a_larger_image(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, CONTEXT) as child:
        assert child.submit(growth, tmp_path, 20_000, "zarr", "zarr", pyramid="nearest").result() < 300 * MB
