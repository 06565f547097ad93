"""Which tiles of a region are stored, drawn with characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

BoolArray: TypeAlias = npt.NDArray[np.bool_]

BLOCKS = ("█", "▓", "▒", "░", "·")
LETTERS = ("#", "=", "-", ".", " ")
"""For a terminal that has no blocks: stored, most of it, some of it, missing, and what no window covers."""

_MEANINGS = ("stored", "half or more", "less than half", "missing", "no window")


@dataclass(frozen=True)
class Drawing:
    """A map of tiles.

    Attributes
    ----------
    lines : list of str
        Its rows.
    legend : list of str
        What each of the characters in it means.
    scale : int
        How many tiles, along either side, a cell of it stands for.
    dims : tuple of int
        The dimension that goes down and the one that goes to the right; one alone goes to the right.
    """

    lines: list[str]
    legend: list[str]
    scale: int
    dims: tuple[int, ...]


def draw(
    stored: npt.NDArray[np.bool_], uncovered: npt.NDArray[np.bool_], columns: int, rows: int, *, blocks: bool
) -> Drawing:
    """A map of at most some columns and rows of the terminal, each cell of which is two columns wide.

    Of more than two dimensions it shows the last two along which there are several tiles, and a cell is over all
    others.
    """
    dims = _dims_of(stored.shape)
    have, none = (_onto(each, dims) for each in (stored, uncovered))
    size = math.prod(stored.shape) // max(1, have.size)
    scale = max(1, -(-have.shape[1] // max(1, columns // 2)), -(-have.shape[0] // max(1, rows)))
    have, none, all_ = (_summed(each, scale) for each in (have, none, np.full(have.shape, size)))
    with np.errstate(invalid="ignore"):
        share = have / (all_ - none)
    kinds = np.select([none == all_, share == 1, share >= 0.5, share > 0], [4, 0, 1, 2], default=3)
    signs = BLOCKS if blocks else LETTERS
    lines = ["".join(signs[kind] * 2 for kind in row) for row in kinds.tolist()]
    present = [kind for kind in range(len(signs)) if (kinds == kind).any()]
    legend = [f"{signs[kind] * 2} {_MEANINGS[kind]}" for kind in present]
    return Drawing(lines, legend, scale, dims)


def _dims_of(shape: Sequence[int]) -> tuple[int, ...]:
    several = [d for d, count in enumerate(shape) if count > 1]
    rest = [d for d in range(len(shape)) if d not in several]
    # The last ones; where there are too few, those with one tile fill up.
    return tuple(sorted((several[-2:] + rest[::-1])[:2]))


def _onto(tiles: BoolArray, dims: Sequence[int]) -> npt.NDArray[Any]:
    """How many tiles over each place of two dimensions there are."""
    others = tuple(d for d in range(tiles.ndim) if d not in dims)
    counts: npt.NDArray[Any] = tiles.sum(axis=others, dtype=np.int64)
    return counts.reshape(-1, counts.shape[-1]) if counts.ndim else counts.reshape(1, 1)


def _summed(counts: npt.NDArray[Any], scale: int) -> npt.NDArray[Any]:
    """Sums over squares of `scale` tiles; those at the ends may be smaller."""
    for axis in (0, 1):
        counts = np.add.reduceat(counts, np.arange(0, counts.shape[axis], scale), axis=axis)
    return counts
