"""Cutting a region into shards: inside, since a million shards cannot be filled."""

from __future__ import annotations

import itertools
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor.filling.cutting import shard_of, shard_of_tiles
from infinite_tensor.tilestore.layout import TileLayout

BOXES = st.lists(st.tuples(st.integers(-(2**50), 2**50), st.integers(1, 12)), min_size=1, max_size=4).map(
    lambda dims: ([low for low, _ in dims], [low + extent for low, extent in dims])
)


def shards(low: list[int], high: list[int], count: int) -> list[tuple[list[int], list[int]]]:
    return [shard_of_tiles(low, high, rank, count) for rank in range(count)]


def extents(low: list[int], high: list[int]) -> list[int]:
    return [b - a for a, b in zip(low, high, strict=True)]


@given(BOXES, st.integers(1, 60))
def test_every_tile_is_in_exactly_one_shard(box: tuple[list[int], list[int]], count: int) -> None:
    found = [
        tile
        for shard in shards(*box, count)
        for tile in itertools.product(*(range(a, b) for a, b in zip(*shard, strict=True)))
    ]
    assert sorted(found) == list(itertools.product(*(range(a, b) for a, b in zip(*box, strict=True))))


@given(BOXES, st.integers(1, 60))
def test_shards_differ_by_less_than_a_factor_of_two(box: tuple[list[int], list[int]], count: int) -> None:
    sizes = [math.prod(extents(*shard)) for shard in shards(*box, count)]
    mean = math.prod(extents(*box)) / count
    assert math.floor(mean) / 2 <= min(sizes)
    assert max(sizes) <= 2 * math.ceil(mean)


def test_shards_of_a_square_are_even_and_nearly_squares() -> None:
    for side, count in itertools.product(range(2, 24), range(2, 48)):
        if 2 * count > side**2:
            continue
        cut = [extents(*shard) for shard in shards([0, 0], [side, side], count)]
        assert max(map(math.prod, cut)) <= 1.5 * math.ceil(side**2 / count), (side, count)
        around = sum(2 * sum(shard) for shard in cut)
        assert around <= 1.25 * 4 * side * math.sqrt(count), (side, count)


def test_pixels_are_cut_between_tiles_and_end_where_the_region_ends() -> None:
    layout = TileLayout((None, 100), (64, 64), torch.float32)
    cut = [shard_of(layout, (-10, 0), (100, 100), rank, 6) for rank in range(6)]
    assert sorted((a, b) for a, b in cut) == [
        ((-10, 0), (0, 64)),
        ((-10, 64), (0, 100)),
        ((0, 0), (64, 64)),
        ((0, 64), (64, 100)),
        ((64, 0), (100, 64)),
        ((64, 64), (100, 100)),
    ]
    first, last = shard_of(layout, (-10, 0), (100, 100), 6, 7)
    assert first == last
