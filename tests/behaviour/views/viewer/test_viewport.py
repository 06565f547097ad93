"""Which tiles of which level a part of a plane needs, in which order, and within which budget."""

from __future__ import annotations

import itertools

import pytest

from infinite_tensor import ValidationError
from infinite_tensor.views.painter import runs
from infinite_tensor.views.plane import Plane, Tile
from infinite_tensor.views.viewer.viewport import MOST_TILES, Budget, Viewport, coarsest


def test_tiles_are_those_that_are_seen_and_the_nearest_to_the_middle_come_first() -> None:
    tiles = Viewport(-100, 0, 400, 900, 900).tiles(0, (None, None))
    assert set(tiles) == {Tile(0, row, column) for row in (-1, 0, 1) for column in range(4)}
    assert tiles[:2] == [Tile(0, 0, 1), Tile(0, 0, 2)]
    assert tiles[-1] in {Tile(0, row, column) for row in (-1, 1) for column in (0, 3)}


def test_a_tile_reaches_half_a_pixel_further_than_its_pixels() -> None:
    assert Viewport(-0.4, -0.4, 0.4, 0.4, 8).tiles(0, (None, None)) == [Tile(0, 0, 0)]
    assert len(Viewport(-0.6, -0.6, 0.4, 0.4, 8).tiles(0, (None, None))) == 4


def test_of_a_finite_plane_there_are_no_tiles_outside_and_the_last_ones_are_cut() -> None:
    tiles = Viewport(-5000, -5000, 5000, 5000, 1000).tiles(1, (700, 1025))
    assert set(tiles) == {Tile(1, row, column) for row in (0, 1) for column in (0, 1, 2)}
    assert Tile(1, 1, 2).box((700, 1025)) == (slice(256, 350), slice(512, 513))
    assert Tile(1, 0, 3).box((700, 1025)) is None


@pytest.mark.parametrize(("zoom", "level"), [(6, 0), (0, 0), (-0.4, 0), (-0.6, 1), (-2, 2), (-9, 5)])
def test_a_pixel_of_the_level_is_about_one_of_the_screen_up_to_the_coarsest(zoom: float, level: int) -> None:
    width = 1000 / 2**zoom
    assert Viewport(0, 0, width / 2, width, 1000).level(5) == level


def test_a_very_large_screen_has_a_coarser_level_rather_than_too_many_tiles() -> None:
    view = Viewport(0, 0, 8000, 8000, 8000)
    assert len(view.tiles(view.level(6), (None, None))) <= MOST_TILES


def test_far_away_tiles_are_exact() -> None:
    far = 10**15
    (tile,) = Viewport(far, -far - 10, far + 10, -far - 1, 10).tiles(0, (None, None))
    box = tile.box((None, None))
    assert box is not None
    assert box[0].start <= far < box[0].stop
    assert box[1].start < -far - 5 < box[1].stop


def test_the_coarsest_level_shows_all_of_a_finite_plane() -> None:
    assert coarsest((512, 300), 0) == 0
    assert coarsest((6000, 8000), 0) == 4
    assert coarsest((None, 300), 0) == 6
    assert coarsest((None, None), 8) == 9


@pytest.mark.parametrize(
    ("shape", "dims", "rows", "columns", "at"),
    [
        ((None, None), ("dim_0", "dim_1"), 0, 1, (None, None)),
        ((3, 9, 9), ("c", "y", "x"), 1, 2, (None, None, None)),
        ((9, 9, 3), ("dim_0", "dim_1", "dim_2"), 0, 1, (None, None, None)),
        ((7, 9, 9), ("dim_0", "dim_1", "dim_2"), 1, 2, (0, None, None)),
        ((3, 9, 9), ("z", "y", "x"), 1, 2, (0, None, None)),
        ((9, 5, 8), ("x", "t", "y"), 2, 0, (None, 0, None)),
    ],
)
def test_the_plane_is_y_and_x_or_the_last_dimensions_beside_colours(
    shape: tuple[int | None, ...], dims: tuple[str, ...], rows: int, columns: int, at: tuple[int | None, ...]
) -> None:
    plane = Plane.of(shape, dims)
    assert (plane.rows, plane.columns, plane.at) == (rows, columns, at)


def test_one_dimension_is_no_plane() -> None:
    with pytest.raises(ValidationError, match="two dimensions"):
        Plane.of((None,), ("x",))


def test_a_budget_counts_windows_and_pixels_of_level_0() -> None:
    near, far = [Tile(0, 0, column) for column in range(4)], [Tile(3, 0, column) for column in range(4)]
    assert Budget(64).allows(near, 64 * 64)
    assert not Budget(63).allows(near, 64 * 64)
    assert not Budget(64).allows(far, 64 * 64)
    assert Budget(64).allows(far, 64 * 64, 64)
    assert Budget(1).allows(near, 0)
    assert not Budget(1, pixels=4 * 2**16 - 1).allows(near, 0)


def test_neighbours_are_read_together_and_nothing_else_is() -> None:
    square = [Tile(0, row, column) for row in range(3) for column in range(4)]
    assert [len(group) for group in runs(square)] == [12]
    corner = [tile for tile in square if tile.row == 2 or tile.column == 3]
    groups = runs(corner)
    assert sorted(itertools.chain(*groups)) == sorted(corner)
    for group in groups:
        rows, columns = {tile.row for tile in group}, {tile.column for tile in group}
        assert len(group) == len(rows) * len(columns) == (max(rows) - min(rows) + 1) * (max(columns) - min(columns) + 1)
    assert runs([]) == []
