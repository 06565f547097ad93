"""Splitting windows into calls."""

from __future__ import annotations

import itertools

import pytest

from infinite_tensor import ValidationError
from infinite_tensor.engine.batching import Batching


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


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "4", (), (2, 4), (1, 0), (1, "2"), {1}])
def test_other_batch_sizes_are_refused(wrong: object) -> None:
    with pytest.raises(ValidationError, match="batch_size"):
        Batching.of(wrong)


def test_splits_are_large_first() -> None:
    split = Batching.of((1, 3, 4)).split(25)
    assert all(a >= b for a, b in itertools.pairwise(split))
