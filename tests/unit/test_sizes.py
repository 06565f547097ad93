"""Sizes in bytes, as users write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, MemoryTileStore, TensorWindow, ValidationError, ZarrTileStore
from infinite_tensor.support.given import checked_bytes


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (None, None),
        (1, 1),
        (np.int64(7), 7),
        ("1B", 1),
        ("400MB", 400 * 10**6),
        ("400MiB", 400 * 2**20),
        ("64 kB", 64_000),
        ("64KiB", 65_536),
        ("1.5GB", 1_500_000_000),
        ("1.5 GiB", 3 * 2**29),
        ("0.1kB", 100),
        ("2tb", 2 * 10**12),
        ("2TIB", 2**41),
        ("1pb", 10**15),
        ("1PiB", 2**50),
        ("1EB", 10**18),
        ("1eib", 2**60),
        (" 3 MB\n", 3_000_000),
        # Exact, where a float is not.
        ("9007199.254740993GB", 9_007_199_254_740_993),
        ("1.9999B", 1),
    ],
)
def test_a_size_is_a_number_and_a_unit(written: object, meant: int | None) -> None:
    assert checked_bytes("size", written) == meant


@pytest.mark.parametrize(
    "written",
    [0, -1, True, 1.5, b"4MB", "", "400", "MB", "4 M", "4MBit", "4 MB/s", "-4MB", "+4MB", "4,5MB", ".5MB", "4.MB",
     "0MB", "0.1B", "1e3MB", "4  MB", "4MB 4MB", "infMB", "nanB", "\N{ARABIC-INDIC DIGIT FOUR}MB",
     "9" * 5000 + "MB", "4\0MB"],
)  # fmt: skip
def test_what_is_no_size_is_refused(written: object) -> None:
    with pytest.raises(
        ValidationError, match=r"most must be a positive number of bytes, such as .*'400MB'.*got"
    ) as caught:
        checked_bytes("most", written)
    assert len(str(caught.value)) < 400


def test_limits_of_every_store_are_sizes(tmp_path: Any) -> None:
    memory = MemoryTileStore("2MB")
    assert memory.cache_size_bytes == 2_000_000
    memory.cache_size_bytes = "1KiB"
    assert memory.cache_size_bytes == 1024
    for store in (
        ZarrTileStore(tmp_path / "s.zarr", cache_size_bytes="2MB"),
        HDF5TileStore(tmp_path / "s.h5", cache_size_bytes="2MB"),
    ):
        with store:
            assert store._contents.cache_limit == 2_000_000
    for make in (MemoryTileStore, lambda **options: ZarrTileStore(tmp_path / "t.zarr", **options)):
        with pytest.raises(ValidationError, match=r"cache_size_bytes must be a positive number of bytes.*'2 apples'"):
            make(cache_size_bytes="2 apples")


def test_max_memory_is_a_size(tmp_path: Any) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=8, cache_size_bytes="1kB") as store:
        t = InfiniteTensor((None,), _ones, TensorWindow((8,)), tile_store=store, tensor_id="t")
        assert str(t.plan(slice(0, 64), max_memory="300MB")) == str(t.plan(slice(0, 64), max_memory=3 * 10**8))
        assert t.fill(slice(0, 64), max_memory="0.3 GB").windows == 8
        with pytest.raises(ValidationError, match="max_memory is 1000 B, but the caches"):
            t.fill(slice(64, 128), max_memory="1kB")
        with pytest.raises(ValidationError, match=r"max_memory must be a positive number of bytes.*'1 k'"):
            t.fill(slice(0, 64), max_memory="1 k")


def _ones(_ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(8)
