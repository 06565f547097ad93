"""Windows side by side: what one thread has computed is worked on row by row, not window by window."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from infinite_tensor.geometry.points import Index
from infinite_tensor.support.arrays import Array
from infinite_tensor.values.spec import TensorSpec


class Row:
    """Windows that follow each other along the last coordinate.

    Attributes
    ----------
    index : tuple of int
        The first of them.
    windows : array of shape (N, *window size)
        All of them.
    window_bytes : int
        Size of one in bytes.
    """

    __slots__ = ("index", "window_bytes", "windows")

    def __init__(self, index: Index, windows: Array) -> None:
        self.index = index
        self.windows = windows
        self.window_bytes: int = windows[0].nbytes

    def window(self, index: Index) -> Array:
        """One of the windows."""
        return self.windows[index[-1] - self.index[-1]]


def rows_in(
    box: tuple[Sequence[int], Sequence[int]], row_at: Callable[[Index], Row | None]
) -> list[tuple[Index, Array]] | None:
    """The windows of a box in lexicographic order, as rows with their first index; None where one is missing.

    ``row_at(index)`` finds a row that holds a window.
    """
    low, high = box
    rows = []
    for lead in itertools.product(*map(range, low[:-1], high[:-1])):
        last = low[-1]
        while last < high[-1]:
            row = row_at((*lead, last))
            if row is None:
                return None
            skipped = last - row.index[-1]
            windows = row.windows[skipped : skipped + high[-1] - last]
            rows.append(((*lead, last), windows))
            last += len(windows)
    return rows


def fold_rows(spec: TensorSpec, rows: Sequence[tuple[Index, Array]], target: Array, start: Sequence[int]) -> None:
    """Blend all windows of a region, which begins at pixel `start`, into `target`."""
    spec.blender.prepare(target, start)
    for index, windows in rows:
        spec.blender.fold_row(target, start, windows, index)
