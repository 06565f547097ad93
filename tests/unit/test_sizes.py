"""Sizes in bytes, as users write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import HDF5TileStore, InfiniteTensor, MemoryTileStore, TensorWindow, ValidationError, ZarrTileStore
from infinite_tensor.geometry.batching import Batching
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
        with pytest.raises(ValidationError, match=r"max_memory must be at least \d+ MiB, got 1000 B: one step"):
            t.fill(slice(64, 128), max_memory="1kB")
        with pytest.raises(ValidationError, match=r"max_memory must be a positive number of bytes.*'1 k'"):
            t.fill(slice(0, 64), max_memory="1 k")


def _ones(_ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(8)


# Batch sizes: splitting windows into calls.


def split(batching: Batching, count: int) -> list[int]:
    """The sizes of the calls that take so many windows."""
    sizes = []
    while count:
        sizes.append(batching.first(count))
        count -= sizes[-1]
    return sizes


def test_an_int_gives_full_batches_and_a_rest() -> None:
    assert split(Batching.of(4), 10) == [4, 4, 2]
    assert split(Batching.of(4), 8) == [4, 4]
    assert split(Batching.of(None), 3) == [1, 1, 1]


def test_a_tuple_gives_as_many_calls_of_the_largest_size_as_may_be_then_of_the_next() -> None:
    assert split(Batching.of((1, 2, 4, 8)), 31) == [8, 8, 8, 4, 2, 1]
    assert split(Batching.of((1, 3, 4)), 6) == [4, 1, 1]


@given(st.sets(st.integers(2, 40), max_size=5), st.integers(0, 300))
def test_all_windows_are_in_calls_of_allowed_sizes(more: set[int], count: int) -> None:
    batching = Batching.of((1, *more))
    sizes = split(batching, count)
    assert sum(sizes) == count
    assert set(sizes) <= {1, *more}
    assert batching.calls(count) == len(sizes)


@pytest.mark.parametrize(
    "wrong",
    [0, -1, 1.5, True, "4", (), (2, 4), (1, 0), (1, "2"), {1}, (1, True), (True, 2), [[1]], [1, [2]], (1, None)],
)
def test_other_batch_sizes_are_refused(wrong: object) -> None:
    with pytest.raises(ValidationError, match="batch_size"):
        Batching.of(wrong)
