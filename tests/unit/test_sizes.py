"""Sizes in bytes, as users write them, and sizes of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import HDF5TileStore, MemoryTileStore, ValidationError, ZarrTileStore
from tests.support.building import built, line
from tests.support.counting import Counted


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
        ("1.5 GiB", 3 * 2**29),
        ("0.1kB", 100),
        ("2TIB", 2**41),
        ("1pb", 10**15),
        ("1eib", 2**60),
        (" 3 MB\n", 3_000_000),
        # Exact, where a float is not.
        ("9007199.254740993GB", 9_007_199_254_740_993),
        ("1.9999B", 1),
    ],
)
def test_a_size_is_a_number_and_a_unit(written: Any, meant: int | None) -> None:
    assert MemoryTileStore(cache_size_bytes=written).cache_size_bytes == meant


@pytest.mark.parametrize(
    "written",
    [0, -1, True, 1.5, b"4MB", "", "400", "MB", "4 M", "4MBit", "4 MB/s", "-4MB", "+4MB", "4,5MB", ".5MB", "4.MB",
     "0MB", "0.1B", "1e3MB", "4  MB", "4MB 4MB", "infMB", "nanB", "\N{ARABIC-INDIC DIGIT FOUR}MB",
     "9" * 5000 + "MB", "4\0MB"],
)  # fmt: skip
def test_what_is_no_size_is_refused(written: Any) -> None:
    with pytest.raises(ValidationError, match=r"cache_size_bytes .*'400MB'") as caught:
        MemoryTileStore(cache_size_bytes=written)
    assert len(str(caught.value)) < 400


def test_limits_of_stores_and_of_memory_are_sizes(tmp_path: Path) -> None:
    for store in (
        ZarrTileStore(tmp_path / "s.zarr", tile_size=8, cache_size_bytes="1kB"),
        HDF5TileStore(tmp_path / "s.h5", tile_size=8, cache_size_bytes="1kB"),
    ):
        with store:
            t = line(store)
            assert str(t.plan(slice(0, 64), max_memory="300MB")) == str(t.plan(slice(0, 64), max_memory=3 * 10**8))
            assert t.fill(slice(0, 64), max_memory="0.3 GB").windows == 16
            for wrong in ("1kB", "1 k"):
                with pytest.raises(ValidationError, match="max_memory"):
                    t.fill(slice(64, 128), max_memory=wrong)


# Batch sizes: splitting windows into calls.


def split(batch_size: Any, count: int) -> list[int]:
    """The sizes of the calls that take so many windows."""
    f = Counted(lambda _ctx: torch.ones(1))
    built(f, 1, batch_size=batch_size)[0:count]
    return f.batches or [1] * len(f.calls)


@pytest.mark.parametrize(
    ("batch_size", "sizes"),
    [
        (4, [4, 4, 2]),
        (4, [4, 4]),
        (None, [1, 1, 1]),
        ((1, 2, 4, 8), [8, 8, 8, 4, 2, 1]),
        ((1, 3, 4), [4, 1, 1]),
    ],
)
def test_there_are_as_many_calls_of_the_largest_size_as_may_be(batch_size: Any, sizes: list[int]) -> None:
    assert split(batch_size, sum(sizes)) == sizes


@given(st.sets(st.integers(2, 40), max_size=5), st.integers(0, 300))
def test_all_windows_are_in_calls_of_allowed_sizes(more: set[int], count: int) -> None:
    sizes = split((1, *more), count)
    assert sum(sizes) == count
    assert set(sizes) <= {1, *more}


@pytest.mark.parametrize(
    "wrong",
    [0, -1, 1.5, True, "4", (), (2, 4), (1, 0), (1, "2"), {1}, (1, True), (True, 2), [[1]], [1, [2]], (1, None)],
)
def test_other_batch_sizes_are_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="batch_size"):
        split(wrong, 1)
