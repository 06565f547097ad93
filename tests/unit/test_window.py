"""Geometry: which windows cover which pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infinite_tensor import TensorWindow, ValidationError


@pytest.mark.parametrize(
    ("window", "index", "bounds"),
    [
        (TensorWindow((4, 6)), (1, -1), [(4, 8), (-6, 0)]),
        (TensorWindow((4, 6), stride=2, offset=-1), (1, 1), [(1, 5), (1, 7)]),
        (TensorWindow((4,), stride=3, offset=1), (-2,), [(-5, -1)]),
        (TensorWindow((4, 2), stride=(4, 1), dimension_map=(0, 0)), (3, 0), [(12, 16), (3, 5)]),
        (TensorWindow((3, 4), offset=(2, 0), dimension_map=(None, 1)), (9, 2), [(2, 5), (8, 12)]),
        (TensorWindow((4, 4), dimension_map=(0, None)), (3,), [(12, 16), (0, 4)]),
    ],
)
def test_where_a_window_is(window: TensorWindow, index: tuple[int, ...], bounds: list[tuple[int, int]]) -> None:
    assert window.get_bounds(index) == tuple(slice(*each) for each in bounds)


def test_an_index_of_too_few_entries_has_no_bounds() -> None:
    with pytest.raises(ValidationError, match=r"must have 2 entries, got \(3,\)"):
        TensorWindow((4, 4)).get_bounds((3,))


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


def test_a_padded_window_has_a_margin_on_each_side_where_it_slides_and_the_same_stride() -> None:
    assert TensorWindow((64, 64)).padded(2) == TensorWindow((68, 68), stride=64, offset=-2)
    assert TensorWindow((8, 6)).padded((0, 1)) == TensorWindow((8, 8), (8, 6), (0, -1))
    window = TensorWindow((3, 8, 8), stride=4, offset=(1, 0, 0), dimension_map=(None, 1, 0))
    assert window.padded(2) == TensorWindow((3, 12, 12), 4, (1, -2, -2), (None, 1, 0))
    assert window.padded((0, 2, 1)) == TensorWindow((3, 12, 10), 4, (1, -2, -1), (None, 1, 0))
    assert TensorWindow((4, 4), dimension_map=(0, 0)).padded(1) == TensorWindow((6, 6), 4, -1, (0, 0))
    for unchanged in (window.padded(0), window.padded(np.int64(0)), window.padded((0, 0, 0))):  # type: ignore[arg-type]
        assert unchanged == window
    still = TensorWindow((4, 4), dimension_map=(None, None))
    assert still.padded(5) == still


@pytest.mark.parametrize(
    "margin", [-1, True, 1.5, "22", None, (1,), (1, 1, 1), (1, -1), pytest.param((1, 1), id="kept"), 2**53, 2**60]
)
def test_a_margin_that_cannot_be_is_refused(margin: Any) -> None:
    with pytest.raises(ValidationError, match=r"margin|window size"):
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


@pytest.mark.parametrize("stored", [None, [], "w", {}, {"stride": [1]}, {"size": None}, {"size": [2], "offset": {}}])
def test_what_is_no_stored_window_is_refused(stored: object) -> None:
    with pytest.raises(ValidationError, match="window"):
        TensorWindow.from_dict(stored)  # type: ignore[arg-type]
