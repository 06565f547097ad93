"""Geometry: which windows cover which pixels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from infinite_tensor import TensorWindow, ValidationError
from infinite_tensor.geometry.points import points_of_boxes, unique_points
from infinite_tensor.geometry.window import WindowGrid, checked_edge
from infinite_tensor.support.given import as_index
from tests.support.reference import Index, box_at, shared_by, windows_over


def test_stride_defaults_to_size_and_offset_to_zero() -> None:
    window = TensorWindow((4, 6))
    assert window.stride == (4, 6)
    assert window.offset == (0, 0)


def test_int_stride_and_offset_are_broadcast() -> None:
    window = TensorWindow((4, 6), stride=2, offset=-1)
    assert (window.stride, window.offset) == ((2, 2), (-1, -1))


def test_bounds_of_negative_window_index() -> None:
    assert TensorWindow((4,), stride=3, offset=1).get_bounds((-2,)) == (slice(-5, -1),)


def test_dimensions_that_share_a_coordinate_move_together() -> None:
    window = TensorWindow((4, 2), stride=(4, 1), dimension_map=(0, 0))
    assert window.get_bounds((3, 0)) == (slice(12, 16), slice(3, 5))


def test_unmapped_dimension_stays_at_its_offset() -> None:
    window = TensorWindow((3, 4), offset=(2, 0), dimension_map=(None, 1))
    assert window.get_bounds((9, 2)) == (slice(2, 5), slice(8, 12))


def test_an_index_of_too_few_entries_has_no_bounds() -> None:
    with pytest.raises(ValidationError, match=r"must have 2 entries, got \(3,\)"):
        TensorWindow((4, 4)).get_bounds((3,))
    assert TensorWindow((4, 4), dimension_map=(0, None)).get_bounds((3,)) == (slice(12, 16), slice(0, 4))


def test_intersecting_windows_come_in_lexicographic_order() -> None:
    window = TensorWindow((4, 4), stride=2)
    found = list(window.intersecting_windows((slice(0, 2), slice(-1, 1))))
    assert found == sorted(found) == [(y, x) for y in (-1, 0) for x in (-2, -1, 0)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (((slice(0, 4),),), r"pixel_slices must have one slice .* per dimension of the window \(2\), got \(slice"),
        (((slice(0, 4), slice(None)),), "pixel_slices must have one slice with a start and a stop"),
        (((slice(0, 4), 5),), "pixel_slices must have one slice"),
        (((slice(0, 4), slice(0, 4)), (None,)), r"tensor_shape must have one int or None .* \(2\), got \(None,\)"),
        (((slice(0, 4), slice(0, 4)), (4, 4), "wrap"), 'edge must be "drop", "clip" or "all"'),
    ],
)
def test_what_is_no_region_to_list_windows_of_is_refused(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TensorWindow((4, 4)).intersecting_windows(*arguments)


def test_windows_that_reach_past_a_finite_dimension_do_not_exist() -> None:
    window = TensorWindow((4,), stride=3, offset=-1)
    assert list(window.intersecting_windows((slice(0, 10),), (10,))) == [(1,), (2,)]


def test_a_window_larger_than_a_finite_dimension_does_not_exist() -> None:
    assert list(TensorWindow((4,)).intersecting_windows((slice(0, 3),), (3,))) == []


def test_an_unmapped_dimension_that_misses_the_region_leaves_no_window() -> None:
    window = TensorWindow((2, 4), dimension_map=(None, 1))
    assert list(window.intersecting_windows((slice(5, 6), slice(0, 4)))) == []


def test_windows_are_equal_and_hashed_by_value() -> None:
    assert TensorWindow((4, 4), 2) == TensorWindow([4, 4], (2, 2), 0)
    assert len({TensorWindow((4, 4)), TensorWindow((4, 4), stride=4)}) == 1
    assert TensorWindow((4, 4)) != TensorWindow((4, 4), 3)


def test_a_map_that_changes_nothing_is_no_map() -> None:
    assert TensorWindow((4, 4), dimension_map=(0, 1)) == TensorWindow((4, 4))


def test_a_padded_window_has_a_margin_on_each_side_and_the_same_stride() -> None:
    assert TensorWindow((64, 64)).padded(2) == TensorWindow((68, 68), stride=64, offset=-2)
    assert TensorWindow((8, 6), stride=3, offset=(1, -5)).padded(2) == TensorWindow((12, 10), 3, (-1, -7))
    assert TensorWindow((8, 6)).padded((0, 1)) == TensorWindow((8, 8), (8, 6), (0, -1))


def test_a_padded_window_keeps_its_map_and_grows_only_where_it_slides() -> None:
    window = TensorWindow((3, 8, 8), stride=4, offset=(1, 0, 0), dimension_map=(None, 1, 0))
    assert window.padded(2) == TensorWindow((3, 12, 12), 4, (1, -2, -2), (None, 1, 0))
    assert window.padded((0, 2, 1)) == TensorWindow((3, 12, 10), 4, (1, -2, -1), (None, 1, 0))
    diagonal = TensorWindow((4, 4), dimension_map=(0, 0))
    assert diagonal.padded(1) == TensorWindow((6, 6), 4, -1, (0, 0))


def test_a_window_of_which_nothing_slides_has_no_margin() -> None:
    window = TensorWindow((4, 4), dimension_map=(None, None))
    assert window.padded(5) == window


@pytest.mark.parametrize("window", [TensorWindow((4, 6), 3, 1), TensorWindow((3, 4), dimension_map=(None, 0))])
def test_each_padded_window_covers_the_window_and_its_margin(window: TensorWindow) -> None:
    for index in itertools.product(range(-2, 3), repeat=2):
        for d, (inner, outer) in enumerate(
            zip(window.get_bounds(index), window.padded(3).get_bounds(index), strict=True)
        ):
            margin = 0 if window.dimension_map is not None and window.dimension_map[d] is None else 3
            assert (outer.start, outer.stop) == (inner.start - margin, inner.stop + margin)


def test_a_margin_of_nothing_changes_nothing() -> None:
    window = TensorWindow((4, 6), 3, 1)
    assert window.padded(0) == window.padded((0, 0)) == window
    assert window.padded(np.int64(0)) == window  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("margin", "said"),
    [
        (-1, "margin must contain only non-negative ints"),
        (True, "margin must be a tuple of ints"),
        (1.5, "margin must be a tuple of ints"),
        ("22", "margin must be a tuple of ints"),
        (None, "margin must be a tuple of ints"),
        ((1,), "margin must have one entry per dimension of the window"),
        ((1, 1, 1), "margin must have one entry per dimension of the window"),
        ((1, -1), "margin must contain only non-negative ints"),
        ((1, 1), r"margin must be 0 for dimension 0, because TensorWindow.* stays in place.*, got \(1, 1\)"),
        (2**53, "window size must contain only ints from -2"),
        (2**60, "margin must contain only ints from -2"),
    ],
)
def test_a_margin_that_cannot_be_is_refused(margin: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TensorWindow((4, 4), dimension_map=(None, 1)).padded(margin)


def test_dict_round_trip() -> None:
    window = TensorWindow((4, 2), (3, 1), (-1, 5), (1, None))
    assert TensorWindow.from_dict(window.to_dict()) == window


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((4,), "window size must be a tuple"),
        (((),), "at least one entry"),
        (((0, 4),), "positive ints"),
        (((4.0,),), "positive ints"),
        (((True,),), "positive ints"),
        (((4,), 0), "window stride"),
        (((4,), (1, 1)), "one entry per dimension of the window"),
        (((4,), 1, 0.5), "window offset"),
        (((4,), 1, 0, (0, 1)), "dimension_map"),
        (((4,), 1, 0, (-1,)), "dimension_map"),
        (((4,), 1, 0, 0), "dimension_map"),
        (((4,), 2**70), r"from -2\*\*53 to 2\*\*53"),
    ],
)
def test_bad_windows_are_refused(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TensorWindow(*arguments)  # type: ignore[arg-type]


def test_many_boxes_give_what_one_box_gives() -> None:
    window = TensorWindow((5, 3, 2), (2, 4, 1), (1, -7, 0), (2, 0, 0))
    grid = WindowGrid(window, (None, 40, None))
    rng = np.random.default_rng(0)
    starts = rng.integers(-30, 30, (200, 3))
    stops = starts + rng.integers(0, 9, (200, 3))
    low, high = grid.boxes(starts, stops)
    for n in range(200):
        one = [range(a, b) for a, b in zip(*grid.box(starts[n].tolist(), stops[n].tolist()), strict=True)]
        many = [range(a, b) for a, b in zip(low[n].tolist(), high[n].tolist(), strict=True)]
        assert list(itertools.product(*one)) == list(itertools.product(*many))


def finite_grids(ndim: int) -> Iterator[tuple[WindowGrid, list[Index]]]:
    """Windows of all kinds on small finite tensors, with the indices of those that are found by looking at each."""
    rng = np.random.default_rng(ndim)
    for _ in range(200):
        shape = tuple(rng.integers(1, 8, ndim).tolist())
        size, stride, offset = (rng.integers(low, 6, ndim).tolist() for low in (1, 1, -6))
        follows = [None if k == ndim else k for k in rng.integers(0, ndim + 1, ndim).tolist()]
        window, edge = TensorWindow(size, stride, offset, follows), rng.choice(["drop", "clip", "all"], ndim).tolist()
        windows = windows_over(shape, window, ((0,) * ndim, shape), edge)
        yield WindowGrid(window, shape, checked_edge(edge, shape)), windows


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_there_are_just_the_windows_that_shape_and_edge_allow(ndim: int) -> None:
    for grid, windows in finite_grids(ndim):
        low, high = grid.box((0,) * ndim, [extent or 0 for extent in grid.shape])
        assert list(itertools.product(*map(range, low, high))) == windows
        assert grid.empty == (not windows)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_windows_cover_what_lies_in_the_tensor_and_the_rest_is_counted(ndim: int) -> None:
    for grid, windows in finite_grids(ndim):
        covered = np.zeros([extent or 0 for extent in grid.shape], dtype=bool)
        for index in windows:
            start, stop = box_at(grid.window, index)
            inside = [max(0, a) for a in start], list(map(min, stop, covered.shape))
            assert [side.tolist() for side in grid.bounds(np.array([index]))] == [[inside[0]], [inside[1]]]
            assert tuple(map(list, grid.inside(start, stop))) == inside
            covered[tuple(map(slice, *inside))] = True
        assert grid.uncovered == np.count_nonzero(~covered)


def test_along_a_diagonal_of_more_windows_than_can_be_counted_all_counts_as_covered() -> None:
    window = TensorWindow((2, 2**20), stride=1, dimension_map=(0, 0))
    assert WindowGrid(window, (2**21, 2**19), ("clip", "clip")).uncovered == 0


@pytest.mark.parametrize(
    ("window", "shape"),
    [
        (TensorWindow((3, 4), stride=2), (None, None)),
        (TensorWindow((3, 4), stride=(4, 4)), (None, None)),
        (TensorWindow((3, 2), stride=2, offset=1), (9, 8)),
        (TensorWindow((3, 2), stride=1, dimension_map=(0, 0)), (None, None)),
        (TensorWindow((2, 3), offset=(1, 0), dimension_map=(None, 1)), (None, None)),
        (TensorWindow((2, 3), offset=(-1, 0), dimension_map=(None, 1)), (2, None)),
    ],
)
def test_what_is_said_to_be_covered_is_covered(window: TensorWindow, shape: tuple[int | None, ...]) -> None:
    grid = WindowGrid(window, shape)
    said = 0
    for start in itertools.product(range(4), repeat=2):
        for extent in itertools.product(range(1, 5), repeat=2):
            stop = [a + n for a, n in zip(start, extent, strict=True)]
            covered = np.zeros(extent, dtype=bool)
            low, high = grid.box(start, stop)
            for index in itertools.product(*map(range, low, high)):
                covered[shared_by(window, index, (start, tuple(stop)))[0]] = True
            said += grid.covers(start, stop)
            assert covered.all() or not grid.covers(start, stop)
            assert grid.covers(start, stop) or not covered.all() or window.dimension_map == (0, 0)
    assert said or shape == (2, None) or window.dimension_map == (0, 0)


@pytest.mark.parametrize(
    ("window", "shape", "most"),
    [
        (TensorWindow((3, 4), stride=2), (None, None), 4),
        (TensorWindow((7, 4), stride=(2, 3)), (None, None), 8),
        (TensorWindow((3, 4), stride=(4, 4)), (None, None), 1),
        (TensorWindow((7, 7), stride=1), (9, None), 21),
        (TensorWindow((9, 9), stride=1), (8, None), 0),
        (TensorWindow((6, 2), stride=1, dimension_map=(0, 0)), (None, None), 2),
        (TensorWindow((2, 6), stride=1, dimension_map=(None, 1)), (2, None), 6),
    ],
)
def test_the_overlap_is_the_most_windows_over_one_pixel(
    window: TensorWindow, shape: tuple[int | None, ...], most: int
) -> None:
    grid = WindowGrid(window, shape)
    assert grid.overlap == most
    pixels = itertools.product(*(range(9 if extent is None else extent) for extent in shape))
    counts = [len(list(window.intersecting_windows([slice(a, a + 1) for a in pixel], shape))) for pixel in pixels]
    assert max(counts) == most


@pytest.mark.parametrize("stored", [None, [], "w", {}, {"stride": [1]}, {"size": None}, {"size": [2], "offset": {}}])
def test_what_is_no_stored_window_is_refused(stored: object) -> None:
    with pytest.raises(ValidationError, match="window"):
        TensorWindow.from_dict(stored)  # type: ignore[arg-type]


def test_points_of_boxes_name_their_box() -> None:
    low, high = np.array([[0, 5], [2, 2], [1, 0]]), np.array([[2, 6], [2, 9], [2, 2]])
    points, owner = points_of_boxes(low, high)
    assert points.tolist() == [[0, 5], [1, 5], [1, 0], [1, 1]]
    assert owner.tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("spread", [3, 1000, 2**40, 2**61])
def test_unique_points_are_sorted_however_far_apart(spread: int) -> None:
    rows = np.random.default_rng(1).integers(-3, 4, (60, 2)) * spread
    assert list(map(tuple, unique_points(rows).tolist())) == sorted(set(map(tuple, rows.tolist())))


def test_only_exact_integers_are_indices() -> None:
    assert as_index(np.int64(3)) == 3
    assert [as_index(value) for value in (True, np.True_, 3.0, "3", None, np.array([3]))] == [None] * 6
