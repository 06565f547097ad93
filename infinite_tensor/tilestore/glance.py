"""What is at hand of some pixels of a tensor, for a picture: nothing is computed for it, stored, or kept."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.geometry.points import Index, as_tuples, points_of_box
from infinite_tensor.geometry.window import WindowGrid

MOST_WINDOWS = 2**14
"""A box that more windows cover is not looked into."""
_UNKNOWN = 2**20
"""A window that is not known weighs more than all that are."""


@dataclass(frozen=True)
class StoredSize:
    """How much is stored of a tensor.

    Attributes
    ----------
    tiles : int
        Its complete tiles; in memory, its windows.
    bytes : int or None
        Their size in bytes as they are stored; None where that would take a request each.
    counted : bool
        Whether these are all. Otherwise there are more, which were not counted.
    pending : int
        Tiles in memory that are incomplete, or still on their way to storage.
    """

    tiles: int
    bytes: int | None
    counted: bool = True
    pending: int = 0


@dataclass(frozen=True)
class Glance:
    """Some pixels of a tensor, as far as they are at hand.

    Attributes
    ----------
    pixels : torch.Tensor
        The pixels of a box, on the CPU. Those that are not at hand may hold anything.
    known : bool array
        Of its shape: which of them are at hand.
    damaged : int
        How many complete tiles are in storage that cannot be read.
    """

    pixels: torch.Tensor
    known: npt.NDArray[np.bool_]
    damaged: int = 0


def windows_at_hand(
    grid: WindowGrid, start: Sequence[int], stop: Sequence[int], knows: Callable[[Index], bool]
) -> tuple[list[Index], npt.NDArray[np.bool_]]:
    """The known windows over the pixels ``[start, stop)``, in lexicographic order, and which pixels need no others.

    None of them where more windows cover the box than are worth looking at.
    """
    shape = list(map(operator.sub, stop, start))
    low, high = grid.box(start, stop)
    if not 0 < math.prod(map(operator.sub, high, low)) <= MOST_WINDOWS:
        return [], np.zeros(shape, dtype=bool)
    windows = points_of_box(low, high)
    known = np.array([knows(index) for index in as_tuples(windows)], dtype=bool)
    starts, stops = grid.bounds(windows)
    bounds = np.clip(starts - start, 0, shape), np.clip(stops - start, 0, shape)
    # Each window adds its weight from its first pixel on, and takes it off again behind its last one.
    covered = np.zeros([n + 1 for n in shape], dtype=np.int64)
    for corner in itertools.product((0, 1), repeat=len(shape)):
        at = tuple(bounds[side][:, d] for d, side in enumerate(corner))
        np.add.at(covered, at, np.where(known, 1, _UNKNOWN) * (-1) ** sum(corner))
    for d in range(len(shape)):
        np.cumsum(covered, axis=d, out=covered)
    weights = covered[tuple(slice(n) for n in shape)]
    return as_tuples(windows[known]), (weights > 0) & (weights < _UNKNOWN)
