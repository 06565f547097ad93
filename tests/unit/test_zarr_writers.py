"""What a store object knows of the others that write a tensor."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor_stores.zarr.tensor import TileSet

Tiles = list[tuple[int, ...]]


def tiles(dims: int) -> st.SearchStrategy[Tiles]:
    near, far = st.integers(-70, 70), st.integers(-(2**51), 2**51)
    return st.lists(st.tuples(*[near | far] * dims), max_size=30)


@given(st.integers(1, 13).flatmap(lambda dims: st.tuples(tiles(dims), tiles(dims))))
def test_a_tile_set_is_a_set(both: tuple[Tiles, Tiles]) -> None:
    put, asked = both
    found = TileSet()
    found.update(put[::2])
    found.update(put)
    assert [tile in found for tile in put + asked] == [tile in set(put) for tile in put + asked]


def test_a_hundred_thousand_tiles_side_by_side_take_less_than_64_kib() -> None:
    tracemalloc.start()
    try:
        found = TileSet()
        found.update((i, j) for i in range(-50, 50) for j in range(1000))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2**16
    assert (-50, 999) in found
