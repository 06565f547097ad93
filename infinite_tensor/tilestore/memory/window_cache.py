"""Windows of any number of tensors in memory: all of them, or those that were used last.

What one thread has computed lies side by side, and is worked on row by row, not window by window. Not safe for
threads: the owner holds a lock.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from infinite_tensor.geometry.points import Index
from infinite_tensor.support.allocation import Array, as_array, as_tensor, copied, new_block
from infinite_tensor.tilestore.lru import LRU
from infinite_tensor.values.blend import Blender
from infinite_tensor.values.spec import TensorSpec

_GATHERED_BYTES = 2**24
"""More values of pixels are not gathered at once, before a reduction."""


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
    reducer = spec.reducer
    if reducer is None:
        _fold(spec.blender, rows, target, start)
        return
    begin, shape = reducer.over(start, target.shape)
    longest = max(range(len(start)), key=lambda d: target.shape[d])
    if math.prod(shape) * spec.gathered.dtype.itemsize > _GATHERED_BYTES and target.shape[longest] > 1:
        for part, at in _halves(target, start, longest):
            stop = list(map(operator.add, at, part.shape))
            fold_rows(spec, list(_rows_over(rows, *spec.grid.box(at, stop))), part, at)
        return
    values = as_array(new_block(shape, spec.gathered.dtype, as_tensor(target).device))
    _fold(spec.gathered.blender, [(reducer.lifted(index), windows) for index, windows in rows], values, begin)
    reducer.reduce(values, start, target)


def _fold(blender: Blender, rows: Sequence[tuple[Index, Array]], target: Array, start: Sequence[int]) -> None:
    block = blender.begun(target)
    blender.prepare(block, start)
    for index, windows in rows:
        blender.fold_row(block, start, windows, index)
    blender.finish(block, start, target)


def _halves(target: Array, start: Sequence[int], d: int) -> Iterator[tuple[Array, Index]]:
    """A block cut in two along a dimension, each part with its first pixel."""
    middle = target.shape[d] // 2
    for begin, end in ((0, middle), (middle, target.shape[d])):
        part = target[(slice(None),) * d + (slice(begin, end),)]
        yield part, tuple(a + begin * (at == d) for at, a in enumerate(start))


def _rows_over(
    rows: Iterable[tuple[Index, Array]], low: Sequence[int], high: Sequence[int]
) -> Iterator[tuple[Index, Array]]:
    """What rows hold of a box of windows."""
    for index, windows in rows:
        if all(a <= i < b for i, a, b in zip(index[:-1], low, high, strict=False)):
            first = max(0, low[-1] - index[-1])
            if len(part := windows[first : max(first, high[-1] - index[-1])]):
                yield (*index[:-1], index[-1] + first), part


class AllWindows:
    """Forgets nothing. Windows that were computed together stay together, in a row."""

    max_bytes = max_items = None
    limited = False
    room = 0

    def __init__(self) -> None:
        self._rows: dict[str, dict[Index, Row]] = {}

    @property
    def empty(self) -> bool:
        """Whether there is no window."""
        return not any(self._rows.values())

    @property
    def total_bytes(self) -> int:
        """What all windows take."""
        return sum(row.window_bytes for rows in self._rows.values() for row in rows.values())

    def of(self, tensor_id: str) -> Mapping[Index, Row]:
        """All windows of one tensor. To look at, not to use."""
        return self._rows.get(tensor_id, {})

    def finder(self, tensor_id: str) -> Callable[[Index], Row | None]:
        """What finds a row that holds a window of one tensor, or None."""
        return self._rows.get(tensor_id, {}).get

    def take(self, tensor_id: str, indices: Sequence[Index]) -> dict[Index, Row]:
        """Those of the windows that are here."""
        rows = self._rows.get(tensor_id)
        return {index: rows[index] for index in indices if index in rows} if rows else {}

    def put(self, tensor_id: str, rows: Mapping[Index, Row]) -> None:
        """Keep windows, each with a row that holds it. Of those that are here, what is here stays."""
        kept = self._rows.setdefault(tensor_id, {})
        if not kept.keys().isdisjoint(rows):
            # A read that finds a row takes the windows that follow in it for stored too: none may hold one of another.
            rows = {index: _alone(row, index) for index, row in rows.items() if index not in kept}
        kept.update(rows)

    def forget(self, tensor_id: str) -> None:
        """Forget all windows of a tensor."""
        self._rows.pop(tensor_id, None)

    def drop(self, tensor_id: str, indices: Sequence[Index]) -> None:
        """Forget some windows of a tensor, all of which are here."""
        rows = dict(self._rows.get(tensor_id, {}))
        broken = {id(rows.pop(index)) for index in indices}
        for index, row in rows.items():
            if id(row) in broken:
                # A read that finds a row takes the windows that follow in it for stored as well.
                rows[index] = _alone(row, index)
        self._rows[tensor_id] = rows

    def unordered(self) -> AllWindows:
        """Itself; see `RecentWindows.unordered`."""
        return self

    def ordered(self, max_bytes: int | None, max_items: int | None) -> RecentWindows:
        """The same windows, of which the least recently used are forgotten beyond some limits."""
        recent = RecentWindows(max_bytes, max_items)
        for tensor_id, rows in self._rows.items():
            recent.put(tensor_id, rows)
        return recent


class RecentWindows:
    """Forgets the least recently used windows beyond its limits.

    Parameters
    ----------
    max_bytes, max_items : int or None
        Limits; None is no limit, but for those that are lent.
    """

    def __init__(self, max_bytes: int | None, max_items: int | None) -> None:
        self._windows: LRU[tuple[str, Index], Row] = LRU(max_bytes, max_items)

    @property
    def empty(self) -> bool:
        """Whether there is no window."""
        return not self._windows

    @property
    def max_bytes(self) -> int | None:
        """The most bytes that are kept."""
        return self._windows.max_bytes

    @property
    def max_items(self) -> int | None:
        """The most windows that are kept."""
        return self._windows.max_items

    @property
    def total_bytes(self) -> int:
        """What all windows take."""
        return self._windows.total_bytes

    @property
    def limited(self) -> bool:
        """Whether windows may be forgotten."""
        return self.max_items is not None or self._windows.most_bytes is not None

    @property
    def room(self) -> int:
        """Bytes that the limit leaves; 0 where there is a limit in windows only."""
        most = self._windows.most_bytes
        return 0 if most is None else most - self.total_bytes

    def lend(self, held: threading.Lock, room: int) -> None:
        """While a lock is held, keep no more than what there is now and `room` bytes."""
        self._windows.lend(held, room)

    def of(self, tensor_id: str) -> Mapping[Index, Row]:
        """All windows of one tensor. To look at, not to use."""
        return {index: row for (name, index), row in self._windows.items() if name == tensor_id}

    def finder(self, tensor_id: str) -> Callable[[Index], Row | None]:
        """What finds a row that holds a window of one tensor, or None."""
        get = self._windows.get
        return lambda index: get((tensor_id, index))

    def take(self, tensor_id: str, indices: Sequence[Index]) -> dict[Index, Row]:
        """Those of the windows that are here."""
        found = {index: self._windows.get((tensor_id, index)) for index in indices}
        return {index: row for index, row in found.items() if row is not None}

    def put(self, tensor_id: str, rows: Mapping[Index, Row]) -> None:
        """Keep windows, each by itself: a row would stay as long as any of its windows."""
        for index, row in rows.items():
            self._windows.put((tensor_id, index), _alone(row, index), row.window_bytes)
        self._windows.evict()

    def forget(self, tensor_id: str) -> None:
        """Forget all windows of a tensor."""
        self.drop(tensor_id, list(self.of(tensor_id)))

    def drop(self, tensor_id: str, indices: Sequence[Index]) -> None:
        """Forget some windows of a tensor."""
        for index in indices:
            self._windows.pop((tensor_id, index))

    def ordered(self, max_bytes: int | None, max_items: int | None) -> RecentWindows:
        """Itself, within other limits."""
        self._windows.max_bytes, self._windows.max_items = max_bytes, max_items
        self._windows.evict()
        return self

    def unordered(self) -> AllWindows:
        """The same windows, none of which is forgotten."""
        rows: dict[str, dict[Index, Row]] = {}
        for (tensor_id, index), row in self._windows.items():
            rows.setdefault(tensor_id, {})[index] = row
        unlimited = AllWindows()
        for tensor_id, each in rows.items():
            unlimited.put(tensor_id, each)
        return unlimited


WindowCache: TypeAlias = AllWindows | RecentWindows


def _alone(row: Row, index: Index) -> Row:
    return Row(index, copied(row.window(index)[None]))
