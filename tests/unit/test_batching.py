"""Splitting windows into calls."""

from __future__ import annotations

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import ValidationError
from infinite_tensor.geometry.batching import Batching


def test_an_int_gives_full_batches_and_a_rest() -> None:
    assert Batching.of(4).split(10) == [4, 4, 2]
    assert Batching.of(4).split(8) == [4, 4]
    assert Batching.of(None).split(3) == [1, 1, 1]


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8), (1, 3, 4), (1, 5, 7, 9), (1,)])
def test_a_tuple_gives_the_fewest_calls_of_allowed_sizes(sizes: tuple[int, ...]) -> None:
    fewest = {0: 0}
    for count in range(1, 120):
        fewest[count] = 1 + min(fewest[count - size] for size in sizes if size <= count)
        split = Batching.of(sizes).split(count)
        assert sum(split) == count
        assert set(split) <= set(sizes)
        assert len(split) == fewest[count]


@pytest.mark.parametrize(
    "wrong",
    [0, -1, 1.5, True, "4", (), (2, 4), (1, 0), (1, "2"), {1}, (1, True), (True, 2), [[1]], [1, [2]], (1, None)],
)
def test_other_batch_sizes_are_refused(wrong: object) -> None:
    with pytest.raises(ValidationError, match="batch_size"):
        Batching.of(wrong)


def test_splits_are_large_first() -> None:
    split = Batching.of((1, 3, 4)).split(25)
    assert all(a >= b for a, b in itertools.pairwise(split))


def best(sizes: tuple[int, ...], count: int) -> list[int]:
    """Of the fewest calls those with most of the largest size, then of the next: every split is looked at, by size."""
    found: list[tuple[int, ...]] = [()]
    for number in range(1, count + 1):
        ways = [tuple(sorted((size, *found[number - size]), reverse=True)) for size in sizes if size <= number]
        found.append(min(ways, key=lambda way: (len(way), [-size for size in way])))
    return list(found[count])


@given(st.sets(st.integers(2, 40), max_size=5), st.integers(0, 300))
def test_of_the_fewest_calls_those_with_most_large_ones_are_taken(more: set[int], count: int) -> None:
    batching = Batching.of((1, *more))
    assert batching.split(count) == best(batching.sizes, count)
    assert batching.calls(count) == len(batching.split(count))


@given(st.sets(st.integers(2, 40), max_size=5), st.integers(1600, 3200), st.integers(0, 2**70))
def test_what_is_beyond_the_square_of_the_largest_size_fills_calls_of_it(more: set[int], count: int, many: int) -> None:
    batching = Batching.of((1, *more))
    assert batching.calls(count + many * batching.largest) == batching.calls(count) + many


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ((1, 1024), 976 + 576),
        ((1, 3, 1024), 976 + 192),
        ((1, 1023, 1024), 977),
        ((1, 512, 1000), 1000),
        ((1, 7, 1000, 1024), 979),
        (tuple(range(1, 1025)), 977),
        ((1, 600_000, 999_983), 18),
        ((1, *range(8, 968, 8), 1000), 1000),
    ],
)
def test_a_million_windows_are_split_in_little_time_and_memory(sizes: tuple[int, ...], calls: int) -> None:
    tracemalloc.start()
    try:
        assert Batching.of(sizes).calls(10**6) == calls
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * 2**20
    # Each number is split for the first time.
    seconds = []
    for count in range(10**6 - 1, 10**6 - 6, -1):
        begin = time.process_time()
        assert sum(Batching.of(sizes).split(count)) == count
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 0.2


def test_sizes_far_larger_than_a_table_take_no_more_memory() -> None:
    tracemalloc.start()
    try:
        assert Batching.of((1, 2, 10**9)).split(10**9 + 6) == [10**9, 2, 2, 2]
        assert Batching.of((1, 2, 10**9)).calls(15 * 10**8) == 1 + 25 * 10**7
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * 2**20
