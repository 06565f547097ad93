"""Splitting windows into calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import ValidationError
from infinite_tensor.geometry.batching import Batching


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
