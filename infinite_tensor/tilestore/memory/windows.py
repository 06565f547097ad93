"""Windows in memory, and tiles of pixels blended from windows.

Without limits, all windows stay. With limits, the most recently used windows stay. Windows computed together are
adjacent in memory, and are processed in rows.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from weakref import WeakSet

from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window import whole_strides
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.support.allocation import Array, as_array, as_tensor, copied, new_block
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.lru import LRU
from infinite_tensor.values.blend import Blender
from infinite_tensor.values.definition import same
from infinite_tensor.values.spec import TensorSpec

_BLENDED_TILE_BYTES = 2**18
_MOST_BLENDED_BYTES = 2**24
"""The maximum bytes of a tile of blended pixels, for tensors with large windows."""
_GATHERED_BYTES = 2**24
"""The maximum bytes of values gathered at once before a reduction."""


class Row:
    """Array of windows, adjacent along the last coordinate.

    A row with `index` ``(3, 5)`` and 4 windows has the windows ``(3, 5)``, ``(3, 6)``, ``(3, 7)`` and ``(3, 8)``.

    Attributes
    ----------
    index : tuple of int
        The index of the first window.
    windows : array of shape (N, *window size)
        All windows.
    window_bytes : int
        Size of one window in bytes.
    """

    __slots__ = ("index", "window_bytes", "windows")

    def __init__(self, index: Index, windows: Array) -> None:
        self.index = index
        self.windows = windows
        self.window_bytes: int = windows[0].nbytes

    def window(self, index: Index) -> Array:
        """Return the window with the given index."""
        return self.windows[index[-1] - self.index[-1]]


def rows_in(
    box: tuple[Sequence[int], Sequence[int]], row_at: Callable[[Index], Row | None]
) -> list[tuple[Index, Array]] | None:
    """Return all windows of a box, in rows, without a copy.

    The result is a list of pairs ``(index, windows)``. The array `windows` begins with the window at `index`, and
    continues along the last coordinate. Return None if a window is missing. ``row_at(index)`` returns the `Row`
    containing the window at `index`, or None.
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
    """Blend the windows of a region into `target`.

    `start` is the first pixel of the region.
    """
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
    middle = target.shape[d] // 2
    for begin, end in ((0, middle), (middle, target.shape[d])):
        part = target[(slice(None),) * d + (slice(begin, end),)]
        yield part, tuple(a + begin * (at == d) for at, a in enumerate(start))


def _rows_over(
    rows: Iterable[tuple[Index, Array]], low: Sequence[int], high: Sequence[int]
) -> Iterator[tuple[Index, Array]]:
    """Keep only the windows with an index in the box ``[low, high)``."""
    for index, windows in rows:
        if all(a <= i < b for i, a, b in zip(index[:-1], low, high, strict=False)):
            first = max(0, low[-1] - index[-1])
            if len(part := windows[first : max(first, high[-1] - index[-1])]):
                yield (*index[:-1], index[-1] + first), part


class Windows:
    """Windows of any number of tensors, within optional limits.

    If a limit is exceeded, the least recently used windows are dropped. Without limits, windows computed together stay
    in one array, a `Row`. With limits, each window is copied to an array of its own. Otherwise, the array would stay in
    memory until all of its windows are dropped. Not safe for threads: the owner holds a lock.

    Parameters
    ----------
    max_bytes, max_items : int or None
        Limits; None is no limit. `lend` may set a lower limit.
    """

    def __init__(self, max_bytes: int | None, max_items: int | None) -> None:
        self._rows: dict[str, dict[Index, Row]] = {}
        # All windows, in the order of last use. Empty without limits.
        self._used: LRU[tuple[str, Index], None] = LRU(max_bytes, max_items)
        self._in_order = False

    @property
    def max_bytes(self) -> int | None:
        """The limit in bytes."""
        return self._used.max_bytes

    @property
    def max_items(self) -> int | None:
        """The limit for the number of windows."""
        return self._used.max_items

    @property
    def limited(self) -> bool:
        """Whether windows may be dropped."""
        return self.max_items is not None or self._used.most_bytes is not None

    @property
    def empty(self) -> bool:
        """Whether there are no windows."""
        return not any(self._rows.values())

    @property
    def total_bytes(self) -> int:
        """The size of all windows together."""
        return sum(row.window_bytes for rows in self._rows.values() for row in rows.values())

    @property
    def room(self) -> int:
        """The number of bytes left free for blended tiles.

        Without a limit in bytes, this is 0. So no blended tiles are kept if only the number of windows is limited. If
        nothing is limited, blended tiles are kept regardless of this number.
        """
        most = self._used.most_bytes
        return 0 if most is None else most - self._used.total_bytes

    def limit(self, max_bytes: int | None, max_items: int | None) -> None:
        """Change the limits."""
        self._used.max_bytes, self._used.max_items = max_bytes, max_items
        self._keep_limits()

    def lend(self, held: threading.Lock, room: int) -> None:
        """Limit the growth of the windows to `room` bytes while `held` is locked."""
        self._begin_order()
        self._used.lend(held, room)

    def of(self, tensor_id: str) -> Mapping[Index, Row]:
        """Return all windows of a tensor.

        A lookup in the result does not count as a use.
        """
        return self._rows.get(tensor_id, {})

    def finder(self, tensor_id: str) -> Callable[[Index], Row | None]:
        """Return a function for looking up windows of a tensor.

        For a window index, the function returns the `Row` containing the window, or None. Each lookup counts as a use.
        """
        find = self.of(tensor_id).get

        def used(index: Index) -> Row | None:
            self._used.get((tensor_id, index))
            return find(index)

        return used if self._in_order else find

    def take(self, tensor_id: str, indices: Sequence[Index]) -> dict[Index, Row]:
        """Look up windows in memory.

        The result maps each window index to the `Row` containing the window. Missing windows are left out.
        """
        rows, find = self.of(tensor_id), self.finder(tensor_id)
        return {index: row for index in indices if (row := find(index)) is not None} if rows else {}

    def put(self, tensor_id: str, rows: Mapping[Index, Row]) -> None:
        """Keep windows.

        `rows` maps the index of each window to its row. Windows already in memory stay.
        """
        self._keep_limits()
        kept = self._rows.setdefault(tensor_id, {})
        if self._in_order or not kept.keys().isdisjoint(rows):
            # A read also uses the later windows in a row, so rows must not overlap.
            rows = {index: _alone(row, index) for index, row in rows.items() if index not in kept}
        kept.update(rows)
        if self._in_order:
            self._use(tensor_id, rows)
            self._evict()

    def forget(self, tensor_id: str) -> None:
        """Drop all windows of a tensor."""
        self._forget_use(tensor_id, self._rows.pop(tensor_id, {}))

    def drop(self, tensor_id: str, indices: Sequence[Index]) -> None:
        """Drop some windows of a tensor.

        All of these windows must be in memory.
        """
        rows = dict(self.of(tensor_id))
        broken = {id(rows.pop(index)) for index in indices}
        for index, row in rows.items():
            if id(row) in broken:
                # A read also uses the later windows in a row, and some may be dropped windows.
                rows[index] = _alone(row, index)
        self._rows[tensor_id] = rows
        self._forget_use(tensor_id, indices)

    def renew(self) -> None:
        """Make the order of use agree with the windows, in a forked child."""
        before, self._used = self._used, LRU(self.max_bytes, self.max_items)
        if self._in_order:
            rows = {
                (tensor_id, index): row for tensor_id, all_of in self._rows.items() for index, row in all_of.items()
            }
            for key in [*before, *rows]:
                if (row := rows.pop(key, None)) is not None:
                    self._used.put(key, None, row.window_bytes)

    def _keep_limits(self) -> None:
        if self.limited:
            self._begin_order()
            self._evict()
        elif self._in_order:
            self._in_order, self._used = False, LRU()

    def _begin_order(self) -> None:
        if not self._in_order:
            for tensor_id, rows in self._rows.items():
                alone = {index: _alone(row, index) for index, row in rows.items()}
                self._rows[tensor_id] = alone
                self._use(tensor_id, alone)
            self._in_order = True

    def _use(self, tensor_id: str, rows: Mapping[Index, Row]) -> None:
        for index, row in rows.items():
            self._used.put((tensor_id, index), None, row.window_bytes)

    def _forget_use(self, tensor_id: str, indices: Iterable[Index]) -> None:
        for index in indices if self._in_order else ():
            self._used.pop((tensor_id, index))

    def _evict(self) -> None:
        self._used.evict(self._release)

    def _release(self, key: tuple[str, Index], _: None) -> bool:
        del self._rows[key[0]][key[1]]
        return True


def _alone(row: Row, index: Index) -> Row:
    return Row(index, copied(row.window(index)[None]))


def blended_layout(spec: TensorSpec) -> TileLayout:
    """Return the layout of the tiles for blended pixels.

    A tile has about 256 KiB, and is nearly square if the windows are.
    """
    window, shape = spec.grid.window, spec.shape
    tile = [min(size, stride) for size, stride in zip(window.size, window.stride, strict=True)]
    size = spec.dtype.itemsize
    tile = whole_strides(spec.grid, tile, _BLENDED_TILE_BYTES / size, _MOST_BLENDED_BYTES / size)
    extents = [n if extent is None else min(n, extent) for n, extent in zip(tile, shape, strict=True)]
    return TileLayout(shape, tuple(extents), spec.dtype)


class Held:
    """The windows available to a read, and the windows still to come.

    Attributes
    ----------
    spec : TensorSpec
        The spec of the tensor at the start of the read. Once the tensor is cleared, moved or invalidated, the read gets
        no more windows from the cache.
    rows : dict of tuple of int to Row
        The available windows.
    awaited : set of tuple of int
        The missing windows that other reads may compute.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.rows: dict[Index, Row] = {}
        self.awaited: set[Index] = set()


class KeptWindows:
    """Thread-safe cache of windows and blended tiles.

    Contains windows of any number of tensors, within optional limits.

    Attributes
    ----------
    lock : threading.RLock
        Held while anything is looked up or changed.
    specs : dict of str to TensorSpec
        The registered spec of each tensor id. When a tensor is cleared, moved or invalidated, its spec is removed, or
        replaced by another object. So reads in progress notice the change.
    windows : Windows
        The windows of these tensors.
    blended : LRU
        Tiles of blended pixels, in the memory that windows leave free.
    """

    def __init__(self, max_bytes: int | None, max_windows: int | None) -> None:
        self.specs: dict[str, TensorSpec] = {}
        self.windows = Windows(max_bytes, max_windows)
        self._layouts: dict[str, TileLayout] = {}
        self.renew()

    def renew(self) -> None:
        """Drop blended tiles and forget waiting reads, in a forked child.

        Windows stay.
        """
        self.lock = threading.RLock()
        self.windows.renew()
        self.blended: LRU[tuple[str, Index], Array] = LRU()
        self._waiting: WeakSet[Held] = WeakSet()

    def limit(self, max_bytes: int | None, max_windows: int | None) -> None:
        """Set the limits for windows."""
        with self.lock:
            self.windows.limit(max_bytes, max_windows)
            self.shrink_blended()

    def restart(self) -> None:
        """Drop all windows and blended tiles, but keep the limits."""
        with self.lock:
            self.windows, self.blended = Windows(self.windows.max_bytes, self.windows.max_items), LRU()

    def shrink_blended(self) -> None:
        """Limit blended tiles to the memory left free by windows."""
        if self.windows.limited:
            self.blended.max_bytes = max(self.windows.room, 0)
            self.blended.evict()

    def has_room(self, nbytes: int) -> bool:
        """Return whether a blended tile of `nbytes` bytes may be kept."""
        return not self.windows.limited or self.windows.room >= nbytes

    def keeps(self, spec: TensorSpec) -> bool:
        """Return whether `spec` matches the registered tensor with the same id."""
        known = self.specs.get(spec.tensor_id)
        return known is spec or (
            known is not None and known.device == spec.device and same(known.definition, spec.definition)
        )

    def is_current(self, spec: TensorSpec) -> bool:
        """Return whether `spec` is still registered.

        Return False if the tensor was cleared, moved or invalidated.
        """
        return self.specs.get(spec.tensor_id) is spec

    def layout(self, spec: TensorSpec) -> TileLayout:
        """Return the layout of the tiles for blended pixels."""
        with self.lock:
            if not self.keeps(spec):
                # Do not cache the layout, because the next tensor with the same id may have another.
                return blended_layout(spec)
            if spec.tensor_id not in self._layouts:
                self._layouts[spec.tensor_id] = blended_layout(spec)
            return self._layouts[spec.tensor_id]

    def take(self, spec: TensorSpec, indices: Sequence[Index]) -> Mapping[Index, Row]:
        """Look up windows in memory.

        The result maps each window index to the `Row` containing the window. Missing windows are left out. The result
        is empty if `spec` is no longer registered.
        """
        with self.lock:
            return self.windows.take(spec.tensor_id, indices) if self.is_current(spec) else {}

    def put(self, spec: TensorSpec, rows: dict[Index, Row]) -> None:
        """Keep windows, and pass them to waiting reads."""
        with self.lock:
            if not self.is_current(spec):
                return
            self.windows.put(spec.tensor_id, rows)
            self.shrink_blended()
            for held in self._waiting or ():
                if held.spec is spec:
                    for index in held.awaited & rows.keys():
                        held.rows[index] = rows[index]
                    held.awaited -= rows.keys()

    def take_or_await(self, spec: TensorSpec, held: Held, indices: Sequence[Index]) -> None:
        """Pass windows to a read, now or later.

        Windows in memory are passed at once. Missing windows are passed as soon as `put` receives them.
        """
        with self.lock:
            found = self.take(spec, indices)
            held.rows.update(found)
            held.awaited.update([index for index in indices if index not in found])
            self._waiting.add(held)

    def await_no_more(self, held: Held) -> None:
        """Cancel `take_or_await` for a read."""
        with self.lock:
            self._waiting.discard(held)

    def tile(self, spec: TensorSpec, tile: Index) -> Array | None:
        """Return a tile of blended pixels, or None."""
        with self.lock:
            return self.blended.get((spec.tensor_id, tile)) if self.is_current(spec) else None

    def tiles_in(self, tensor_id: str, box: tuple[Sequence[int], Sequence[int]]) -> dict[Index, Array] | None:
        """Return the blended tiles in a box of tile indices.

        Return None if a tile is missing. The caller holds the lock.
        """
        blocks = {}
        for tile in itertools.product(*map(range, *box)):
            block = self.blended.get((tensor_id, tile))
            if block is None:
                return None
            blocks[tile] = block
        return blocks

    def keep_tile(self, spec: TensorSpec, tile: Index, pixels: Array) -> None:
        """Keep a tile of blended pixels."""
        with self.lock:
            if self.is_current(spec):
                self.blended.put((spec.tensor_id, tile), pixels, pixels.nbytes)
                self.shrink_blended()

    def forget_windows(self, tensor_id: str) -> None:
        """Drop all windows and blended tiles of a tensor."""
        with self.lock:
            for key in self.blended:
                if key[0] == tensor_id:
                    self.blended.pop(key)
            self.windows.forget(tensor_id)

    def drop(self, tensor_id: str, indices: Sequence[Index], tiles: BoxUnion) -> None:
        """Drop windows and blended tiles of a tensor.

        The caller holds the lock.
        """
        self.windows.drop(tensor_id, indices)
        for tile in tiles.held([tile for name, tile in self.blended if name == tensor_id]):
            self.blended.pop((tensor_id, tile))

    def forget(self, tensor_id: str) -> None:
        """Drop a tensor and its windows."""
        with self.lock:
            self.forget_windows(tensor_id)
            self.specs.pop(tensor_id, None)
            self._layouts.pop(tensor_id, None)

    def replace(self, spec: TensorSpec, rows: dict[Index, Row]) -> None:
        """Register `spec`, and keep only the windows in `rows`.

        All windows and tiles kept under the id of `spec` are dropped first.
        """
        with self.lock:
            self.forget_windows(spec.tensor_id)
            self.specs[spec.tensor_id] = spec
            self._layouts.pop(spec.tensor_id, None)
            self.windows.put(spec.tensor_id, rows)
            self.shrink_blended()
