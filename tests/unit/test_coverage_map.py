"""A map of tiles shows what is stored, at any scale."""

from __future__ import annotations

import numpy as np
import pytest

from infinite_tensor.cli.coverage_map import LETTERS, BoolArray, draw


def drawn(stored: BoolArray, uncovered: BoolArray | None = None, columns: int = 80, rows: int = 40) -> list[str]:
    none = np.zeros_like(stored) if uncovered is None else uncovered
    return draw(stored, none, columns, rows, blocks=True).lines


def test_a_tile_is_a_cell_where_there_is_room() -> None:
    assert drawn(np.array([[True, False], [False, True]])) == ["██░░", "░░██"]


def test_a_cell_over_several_tiles_shows_how_many_are_stored() -> None:
    stored = np.zeros((2, 8), bool)
    stored[:, 2:4], stored[0, 4:6], stored[0, 6] = True, True, True
    assert drawn(stored, columns=8) == ["░░██▓▓▒▒"]
    assert draw(stored, np.zeros_like(stored), 8, 40, blocks=True).scale == 2


def test_a_tile_that_no_window_covers_counts_for_nothing() -> None:
    stored, uncovered = np.array([[True, False, False, False]]), np.array([[False, True, True, True]])
    assert drawn(stored, uncovered, columns=4) == ["██··"]


def test_a_map_is_no_larger_than_there_is_room_and_keeps_its_proportions() -> None:
    lines = drawn(np.ones((100, 30), bool), columns=80, rows=20)
    assert (len(lines), len(lines[0])) == (20, 12)
    lines = drawn(np.ones((3, 1001), bool), columns=21, rows=20)
    assert (len(lines), len(lines[0])) == (1, 20)


@pytest.mark.parametrize(
    ("shape", "dims", "lines"),
    [
        ((2, 3, 4), (1, 2), 3),
        ((2, 1, 4), (0, 2), 2),
        ((1, 1, 4), (1, 2), 1),
        ((5,), (0,), 1),
        ((1, 1), (0, 1), 1),
    ],
)
def test_the_last_two_dimensions_with_several_tiles_are_shown(
    shape: tuple[int, ...], dims: tuple[int, ...], lines: int
) -> None:
    found = draw(np.ones(shape, bool), np.zeros(shape, bool), 80, 40, blocks=True)
    assert (found.dims, len(found.lines)) == (dims, lines)


def test_a_cell_is_over_all_other_dimensions() -> None:
    stored = np.zeros((2, 1, 2), bool)
    stored[0, 0, 0] = True
    assert drawn(np.stack([stored[0], stored[0], stored[1]])[:, :, :].repeat(1, axis=0)) == ["██░░", "██░░", "░░░░"]
    one_of_two = np.array([[[True, False], [True, True]], [[True, True], [False, False]]])
    assert drawn(one_of_two) == ["██▓▓", "▓▓▓▓"]


def test_the_legend_tells_what_is_there_in_letters_where_there_are_no_blocks() -> None:
    found = draw(np.array([[True, False]]), np.zeros((1, 2), bool), 80, 40, blocks=False)
    assert found.lines == [LETTERS[0] * 2 + LETTERS[3] * 2]
    assert found.legend == ["## stored", ".. missing"]
