"""How costs grow with sizes: lines through logarithms of times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.measuring import Measurement, Subject
from benchmarks.rows import HDF5, MEMORY, ZARR

FLAT = 0.1
"""The largest exponent that still counts as flat."""


@dataclass(frozen=True)
class Curve:
    """A cost at several sizes.

    Attributes
    ----------
    case : str
        Name by which it is chosen.
    what : str
        What is done.
    points : tuple of Measurement
        One per size.
    per_item : bool
        Whether the cost is that of one of `size` items.
    flat : bool
        Whether it is to be flat.
    """

    case: str
    what: str
    points: tuple[Measurement, ...]
    per_item: bool = False
    flat: bool = True

    def costs(self, values: Sequence[float]) -> list[float]:
        """The cost at each point, of what was measured there."""
        return [
            value / point.size if self.per_item else value for point, value in zip(self.points, values, strict=True)
        ]


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The power of the size with which the cost grows: 0 where it stays the same, 1 where it doubles with the size."""
    slope, _ = np.polyfit(np.log(sizes), np.log(costs), 1)
    return float(slope)


def _points(subject: Subject, workload: str, store: str, sizes: Sequence[int]) -> tuple[Measurement, ...]:
    return tuple([Measurement(subject, workload, store, size) for size in sizes])


def _curves() -> list[Curve]:
    cold, tensors, tiles = "reading.cold_8", "opening.tensors", "opening.tiles"
    per_window, of_tensors, of_tiles = (
        "a new window of 8x8, of so many",
        "open, and read a tile, of so many tensors",
        "open, and read a tile, of so many tiles",
    )
    ours, peer = Subject.OURS, Subject.PEER
    windows = [4**n for n in range(4, 10)]
    return [
        Curve("curve-windows", per_window, _points(peer, cold, MEMORY, windows[:-1]), per_item=True, flat=False),
        Curve("curve-windows", per_window, _points(ours, cold, MEMORY, windows), per_item=True),
        Curve("curve-windows", per_window, _points(ours, cold, ZARR, windows), per_item=True),
        Curve("curve-tensors", of_tensors, _points(peer, tensors, HDF5, _powers(0, 3)), flat=False),
        Curve("curve-tensors", of_tensors, _points(ours, tensors, ZARR, _powers(0, 4))),
        Curve("curve-tensors", of_tensors, _points(ours, tensors, HDF5, _powers(0, 3)), flat=False),
        Curve("curve-tiles", of_tiles, _points(peer, tiles, HDF5, _powers(1, 4)), flat=False),
        Curve("curve-tiles", of_tiles, _points(ours, tiles, ZARR, _powers(1, 6))),
        Curve("curve-tiles", of_tiles, _points(ours, tiles, HDF5, _powers(1, 5)), flat=False),
    ]


def _powers(first: int, last: int) -> list[int]:
    return [10**n for n in range(first, last + 1)]


CURVES = tuple(_curves())
