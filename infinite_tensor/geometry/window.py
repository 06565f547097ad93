"""Geometry of windows: pixels of a window, and windows of a region.

The windows over a box of pixels form a box of window indices. So geometry is interval arithmetic for each window
coordinate. `TensorWindow` is the public class. `WindowGrid` combines a window with the shape of a tensor.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.periodic import Periodic, boxes_around
from infinite_tensor.geometry.points import (
    COORDINATE_LIMIT,
    LARGEST,
    MOST_AT_ONCE,
    UNBOUNDED,
    Index,
    IntArray,
    as_tuples,
    check_count,
    is_empty,
    points_of_box,
    points_of_boxes,
    unique_points,
)
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.given import as_index, members, quoted, word

Shape: TypeAlias = tuple[int | None, ...]
"""The extent of each dimension, which may be `Periodic`; None for an unbounded one."""

EdgeName: TypeAlias = Literal["drop", "clip", "all"]
Edge: TypeAlias = tuple[str, ...]
"""An entry of `EDGES`, or `WRAP`, for each dimension. Matters for finite dimensions only."""

EDGES = get_args(EdgeName)
"""Rules for windows reaching past a finite dimension.

"drop": no such window exists. "clip": just enough such windows exist to cover the dimension. "all": every such window
exists if it touches the tensor. The parts of windows outside of the tensor are discarded.
"""

WRAP = "wrap"
"""The edge of a periodic dimension: windows reaching past one end go on at the other."""

MOST_DIMENSIONS = 32
"""The maximum number of dimensions of a window. HDF5 has the same limit, and numpy allows 64."""

MOST_OVERLAP = 2**17
"""The maximum number of windows over a pixel. All must be computed before the pixel is complete."""


def _integers(name: str, value: object, dims: int | None, minimum: int | None) -> Index:
    """Convert `value` to a tuple of ints. An int is repeated `dims` times."""
    single = as_index(value)
    if single is not None and dims is not None:
        value = (single,) * dims
    entries = members(value)
    if entries is None:
        one = "" if single is None else f"; give ({single},) for one dimension, or ({single}, {single}) for two"
        raise ValidationError(f"{name} must be a tuple of ints, got {quoted(value)}{one}")
    if dims is not None and len(entries) != dims:
        raise ValidationError(f"{name} must have one entry per dimension of the window ({dims}), got {quoted(value)}")
    numbers = [number for number in map(as_index, entries) if number is not None]
    if len(numbers) != len(entries) or (minimum is not None and min(numbers, default=minimum) < minimum):
        kind = {None: "ints", 0: "non-negative ints", 1: "positive ints"}[minimum]
        raise ValidationError(f"{name} must contain only {kind}, got {quoted(value)}")
    if max(map(abs, numbers), default=0) > LARGEST:
        raise ValidationError(f"{name} must contain only ints from -2**53 to 2**53, got {quoted(value)}")
    return tuple(numbers)


@dataclass(frozen=True, init=False)
class TensorWindow:
    """A sliding window: index ``i`` covers ``[i*stride + offset, i*stride + offset + size)`` per dimension.

    Parameters
    ----------
    size : tuple of int
        Extent of one window in pixels, one entry per dimension of the tensor.
    stride : int or tuple of int, optional
        Distance in pixels between neighbouring windows. Default: `size`, so that windows lie side by side.
    offset : int or tuple of int, optional
        Pixel at which window 0 starts. Default: 0.
    dimension_map : tuple of (int or None), optional
        ``dimension_map[d] = k`` makes dimension ``d`` follow window coordinate ``k``; dimensions that
        share one coordinate move together, as along a diagonal. ``None`` keeps dimension ``d`` at
        ``[offset, offset + size)``. Default: dimension ``d`` follows coordinate ``d``.

    Raises
    ------
    ValidationError
        If an entry is not an int, a size or stride is not positive, or the lengths differ.

    Examples
    --------
    >>> TensorWindow((64, 64), stride=32).get_bounds((0, -1))
    (slice(0, 64, None), slice(-32, 32, None))
    """

    size: Index
    stride: Index
    offset: Index
    dimension_map: tuple[int | None, ...] | None

    def __init__(
        self,
        size: Sequence[int],
        stride: int | Sequence[int] | None = None,
        offset: int | Sequence[int] | None = None,
        dimension_map: Sequence[int | None] | None = None,
    ) -> None:
        sizes = _integers("window size", size, None, 1)
        if not sizes:
            raise ValidationError("window size must have at least one entry, got ()")
        if len(sizes) > MOST_DIMENSIONS:
            raise ValidationError(f"window size must have at most {MOST_DIMENSIONS} entries, got {len(sizes)}")
        dims = len(sizes)
        put = object.__setattr__
        put(self, "size", sizes)
        put(self, "stride", sizes if stride is None else _integers("window stride", stride, dims, 1))
        put(self, "offset", (0,) * dims if offset is None else _integers("window offset", offset, dims, None))
        mapped = None if dimension_map is None else _checked_map(dimension_map, dims)
        put(self, "dimension_map", None if mapped == tuple(range(dims)) else mapped)

    @property
    def ndim(self) -> int:
        """The number of dimensions, the same as for the tensor."""
        return len(self.size)

    def get_bounds(self, window_index: Sequence[int]) -> tuple[slice, ...]:
        """Return the pixels of the window at `window_index`, as one slice per dimension.

        Raises
        ------
        ValidationError
            If the index has too few entries.
        """
        coordinates = coordinates_of(self)
        if len(window_index) < coordinates:
            raise ValidationError(
                f"the index of a window {self!r} must have {coordinates} entries, got {quoted(window_index)}"
            )
        return tuple(
            slice(start, start + size) for start, size in zip(self.start(window_index), self.size, strict=True)
        )

    def start(self, window_index: Sequence[int]) -> Index:
        """Return the first pixel of the window at `window_index`."""
        # `followed` would be too slow: each window of a read calls this several times.
        follows = self.dimension_map or range(len(self.size))
        return tuple(
            [
                offset if k is None else window_index[k] * stride + offset
                for k, stride, offset in zip(follows, self.stride, self.offset, strict=True)
            ]
        )

    def intersecting_windows(
        self,
        pixel_slices: Sequence[slice],
        tensor_shape: Shape | None = None,
        edge: str | Sequence[str | None] = "drop",
    ) -> Iterator[Index]:
        """Yield the indices of all windows intersecting a region, in lexicographic order.

        Parameters
        ----------
        pixel_slices : sequence of slice
            The region: one slice with start and stop per dimension. Steps are ignored.
        tensor_shape : tuple of (int or None), optional
            Default: every dimension is unbounded.
        edge : str or sequence of str
            What happens to windows that reach past a finite dimension, as for `InfiniteTensor`.

        Yields
        ------
        tuple of int
            A window index, with one entry per dimension.

        Raises
        ------
        ValidationError
            If `pixel_slices` or `tensor_shape` does not have one entry per dimension, a slice lacks its start or stop,
            or `edge` is invalid.
        """
        shape = (None,) * self.ndim if tensor_shape is None else members(tensor_shape)
        if shape is None or len(shape) != self.ndim:
            raise ValidationError(
                f"tensor_shape must have one int or None per dimension of the window ({self.ndim}), got "
                f"{quoted(tensor_shape)}"
            )
        slices = [s for s in members(pixel_slices) or () if isinstance(s, slice)]
        starts, stops = [as_index(s.start) for s in slices], [as_index(s.stop) for s in slices]
        if len(slices) != self.ndim or None in starts or None in stops:
            raise ValidationError(
                f"pixel_slices must have one slice with a start and a stop per dimension of the window ({self.ndim}), "
                f"got {quoted(pixel_slices)}"
            )
        grid = WindowGrid(self, shape, checked_edge(edge, shape))
        start, stop = [n for n in starts if n is not None], [n for n in stops if n is not None]
        if grid.around:
            boxes = boxes_around(np.array([start]), np.array([stop]), grid.periods)
            return iter(as_tuples(grid.windows(*boxes)))
        low, high = grid.box(start, stop)
        return itertools.product(*map(range, low, high))

    def padded(self, margin: int | Sequence[int]) -> TensorWindow:
        """Return the window with `margin` more pixels on each side.

        Use the result for an arg read with a halo. Window ``i`` of the result covers the pixels of window ``i`` and the
        margin around them. Stride and `dimension_map` are unchanged.

        Parameters
        ----------
        margin : int or tuple of int
            The number of pixels, 0 or more. A tuple has one entry per dimension. An int applies to all dimensions that
            follow a window coordinate, but not to dimensions that `dimension_map` keeps in place. Give 0 for a finite
            dimension that follows a coordinate but has only one window. For example,
            ``TensorWindow((3, 64, 64)).padded((0, 2, 2))`` is for an arg of shape ``(3, None, None)``.

        Raises
        ------
        ValidationError
            If an entry is not an int or is negative, if the number of entries is wrong, or if a dimension that stays in
            place gets a margin.

        Examples
        --------
        >>> TensorWindow((64, 64)).padded(2)
        TensorWindow((68, 68), stride=(64, 64), offset=(-2, -2))
        """
        follows = followed(self)
        margins = _integers("margin", margin, self.ndim, 0)
        if as_index(margin) is not None:
            margins = tuple(0 if k is None else n for k, n in zip(follows, margins, strict=True))
        for d, (k, n) in enumerate(zip(follows, margins, strict=True)):
            if k is None and n:
                raise ValidationError(
                    f"margin must be 0 for dimension {d}, because {self!r} stays in place along this dimension, got "
                    f"{quoted(margin)}"
                )
        return TensorWindow(
            [size + 2 * n for size, n in zip(self.size, margins, strict=True)],
            self.stride,
            [offset - n for offset, n in zip(self.offset, margins, strict=True)],
            self.dimension_map,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the window as a dict for JSON.

        `from_dict` is the inverse.
        """
        return {
            "size": list(self.size),
            "stride": list(self.stride),
            "offset": list(self.offset),
            "dimension_map": None if self.dimension_map is None else list(self.dimension_map),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorWindow:
        """Create a window from the result of `to_dict`.

        Raise ValidationError if `data` does not describe a window.
        """
        if not isinstance(data, Mapping) or "size" not in data:
            raise ValidationError(f"a window must be a dict with a size, got {quoted(data)}")
        return cls(data["size"], data.get("stride"), data.get("offset"), data.get("dimension_map"))

    def __repr__(self) -> str:
        parts = [repr(self.size)]
        if self.stride != self.size:
            parts.append(f"stride={self.stride}")
        if any(self.offset):
            parts.append(f"offset={self.offset}")
        if self.dimension_map is not None:
            parts.append(f"dimension_map={self.dimension_map}")
        return f"TensorWindow({', '.join(parts)})"


def _checked_map(dimension_map: Sequence[int | None], dims: int) -> tuple[int | None, ...]:
    given = members(dimension_map)
    if given is None or len(given) != dims:
        raise ValidationError(
            f"dimension_map must have one entry per dimension of the window ({dims}), got {quoted(dimension_map)}"
        )
    entries: list[int | None] = []
    for entry in given:
        number = None if entry is None else as_index(entry)
        if entry is not None and (number is None or number < 0):
            raise ValidationError(
                f"dimension_map must contain window coordinates (ints from 0) or None, got {quoted(dimension_map)}"
            )
        entries.append(number)
    return tuple(entries)


def checked_edge(edge: object, shape: Shape) -> Edge | None:
    """Return the user's `edge` as a tuple with one entry per dimension.

    The entry of an unbounded dimension is "drop", and that of a periodic one `WRAP`. Return None if all entries are
    "drop".

    Raises
    ------
    ValidationError
        If `edge` is not one of `EDGES`, and not a sequence with an entry of `EDGES` or None per dimension, or also
        `WRAP` for a periodic one.
    """
    given = (edge,) * len(shape) if isinstance(edge, str) else members(edge)
    entries = [None if entry is None else word(entry) or "" for entry in given or ()]
    wraps = [isinstance(n, Periodic) for n in shape]
    if len(entries) != len(shape) or any(
        entry not in (*EDGES, None, *[WRAP] * is_periodic) for entry, is_periodic in zip(entries, wraps, strict=True)
    ):
        raise ValidationError(
            f'edge must be "drop", "clip" or "all", or a sequence with one of these per dimension ({len(shape)}), got '
            f"{quoted(edge)}"
        )
    known = tuple(
        [
            WRAP if is_periodic else entry if entry and n is not None else "drop"
            for entry, n, is_periodic in zip(entries, shape, wraps, strict=True)
        ]
    )
    return None if {*known} == {"drop"} else known


def followed(window: TensorWindow) -> tuple[int | None, ...]:
    """Return the window coordinate followed by each dimension.

    A dimension that stays in place has None.
    """
    mapped = window.dimension_map
    return tuple(range(len(window.size))) if mapped is None else mapped


def whole_strides(grid: WindowGrid, tile: Sequence[int], pixels: float, most: float) -> list[int]:
    """Return the shape of a box of whole tiles with about `pixels` pixels.

    `tile` is the shape of a tile: for ``(64, 64)`` and 65536 pixels, the box is ``(256, 256)``. Dimensions with a
    single window keep the extent of a tile. `most` is the maximum number of pixels. A larger box is halved along the
    longest extent until it fits, and may become smaller than a tile.
    """
    sizes, room = list(tile), pixels / math.prod(tile)
    for number, d in enumerate(sorted(grid.moving, key=lambda d: -sizes[d])):
        strides = max(1, round(room ** (1 / (len(grid.moving) - number))))
        sizes[d] *= strides
        room /= strides
    return halved(sizes, most)


def halved(extents: Sequence[int], most: float) -> list[int]:
    """Halve the longest extent of a box, until there are no more pixels than the maximum `most`."""
    parts = list(extents)
    while math.prod(parts) > most:
        longest = parts.index(max(parts))
        parts[longest] = -(-parts[longest] // 2)
    return parts


def starts_of(window: TensorWindow, indices: IntArray) -> IntArray:
    """Return the first pixel of each window.

    `indices` has shape (N, coordinates), and the result has shape (N, ndim).
    """
    columns = [
        np.full(len(indices), offset, dtype=np.int64) if k is None else indices[:, k] * stride + offset
        for k, stride, offset in zip(followed(window), window.stride, window.offset, strict=True)
    ]
    return np.stack(columns, axis=1)


def coordinates_of(window: TensorWindow) -> int:
    """Return the minimum number of entries in a window index.

    For example, if a dimension follows window coordinate 2, an index has at least 3 entries.
    """
    return max((k + 1 for k in followed(window) if k is not None), default=0)


def narrow(window: TensorWindow, starts: IntArray, stops: IntArray, low: IntArray, high: IntArray) -> None:
    """Shrink boxes of windows in place, each to the windows intersecting a region.

    There are N boxes and N regions. Box n is ``[low[n], high[n])``, and region n is ``[starts[n], stops[n])``. If no
    window remains, ``high`` may end up below ``low``.
    """
    for d, (k, size, stride, offset) in enumerate(
        zip(followed(window), window.size, window.stride, window.offset, strict=True)
    ):
        a, b = starts[:, d], stops[:, d]
        outside = b <= a
        if k is None:
            outside = outside | (a >= offset + size) | (b <= offset)
        else:
            np.maximum(low[:, k], -((offset + size - 1 - a) // stride), out=low[:, k])
            np.minimum(high[:, k], (b - 1 - offset) // stride + 1, out=high[:, k])
        high[outside] = low[outside]


_MOST_ALONG_DIAGONAL = 2**18
"""With more windows than this along a diagonal, pixels are not counted: all pixels count as covered."""


def _just_enough(size: int, stride: int, offset: int, extent: int) -> tuple[int, int]:
    """Return the first and the last window needed to cover ``[0, extent)``.

    The first one is the last window that starts at pixel 0 or before. The last one is the first window, from there on,
    that reaches pixel ``extent - 1``. With gaps between windows, both may lie outside of the tensor.
    """
    first = -offset // stride
    return first, max(first, -((size + offset - extent) // stride))


def _covered(dims: Sequence[tuple[int, int, int, int]], first: int, last: int) -> int:
    """Count the pixels covered by the windows `first` to `last`.

    `dims` contains (size, stride, offset, extent) for each dimension. All dimensions follow the same window coordinate,
    or all stay in place.
    """
    if len(dims) == 1:
        ((size, stride, offset, extent),) = dims
        begin, end = first * stride + offset, last * stride + offset + size
        if stride <= size:
            return min(end, extent) - max(begin, 0)
        return (last - first + 1) * size - max(0, -begin) - max(0, end - extent)
    if last - first >= _MOST_ALONG_DIAGONAL:
        return math.prod(extent for *_, extent in dims)
    windows = np.arange(first, last + 1)[:, None]
    size, stride, offset, extent = np.array(dims, dtype=np.int64).T
    low, high = np.maximum(windows * stride + offset, 0), np.minimum(windows * stride + offset + size, extent)
    # The windows over a pixel are consecutive. Subtract the pixels shared by neighbours.
    shared = np.maximum(high[:-1] - low[1:], 0)
    return int((high - low).prod(axis=1).sum() - shared.prod(axis=1).sum())


def _clip(starts: IntArray, stops: IntArray, extents: Mapping[int, int]) -> None:
    """Clip boxes in place to the extent of each dimension in `extents`."""
    for d, extent in extents.items():
        np.maximum(starts[:, d], 0, out=starts[:, d])
        np.minimum(stops[:, d], extent, out=stops[:, d])


class WindowGrid:
    """The windows on a tensor of a given shape.

    Boxes of windows are half-open: ``low <= index < high`` for each window coordinate. A coordinate followed by no
    dimension is always 0.

    Along a periodic dimension, a window may lie at two *places*: window 9 of 10 reaches past the end, and covers the
    first pixels as -1. ``f`` computes windows. Pixels are blended, and tiles are stored, by places. Without periodic
    dimensions, both are the same.

    Parameters
    ----------
    window : TensorWindow
        The size and position of the windows.
    shape : tuple of (int or None)
        Shape of the tensor.
    edge : tuple of str, optional
        One of `EDGES`, or `WRAP`, for each dimension. Default: "drop" for all dimensions.

    Attributes
    ----------
    first, last : list of int
        The first and the last place, for each window coordinate.
    periods : dict of int to int
        The extent of each periodic dimension.
    around : dict of int to int
        The number of windows once around, for each window coordinate that a periodic dimension follows.
    dimensions : list of (int or None, int, int, int, int or None)
        For each dimension: the window coordinate, the size, stride and offset of the window, and the extent of the
        tensor.
    """

    def __init__(self, window: TensorWindow, shape: Shape, edge: Edge | None = None) -> None:
        self.window = window
        self.shape = shape
        self.ndim = window.ndim
        self._followed = followed(window)
        self.dimensions = list(zip(self._followed, window.size, window.stride, window.offset, shape, strict=True))
        finite = {d: extent for d, extent in enumerate(shape) if extent is not None}
        self._edge = edge or ("drop",) * len(shape)
        self._clipped = {d: extent for d, extent in finite.items() if self._edge[d] != "drop"}
        self.periods = {d: extent for d, extent in finite.items() if self._edge[d] == WRAP}
        self.around = {
            k: extent // window.stride[d] for d, extent in self.periods.items() if (k := self._followed[d]) is not None
        }
        self.first, self.last = self._extent()
        self._stop = [last + 1 for last in self.last]

    def _extent(self) -> tuple[list[int], list[int]]:
        moving = {k for k, *_ in self.dimensions}
        first = [-UNBOUNDED if k in moving else 0 for k in range(self.ndim)]
        last = [UNBOUNDED if k in moving else 0 for k in range(self.ndim)]
        exists = True
        for d, (k, size, stride, offset, extent) in enumerate(self.dimensions):
            if extent is None:
                continue
            # The least number of pixels a window needs in the dimension: all pixels, or one.
            least = size if d not in self._clipped else 1
            if k is None:
                exists &= least - size <= offset <= extent - least
            else:
                first[k] = max(first[k], -((offset + size - least) // stride))
                last[k] = min(last[k], (extent - least - offset) // stride)
        enough: dict[int, list[tuple[int, int]]] = {}
        for d, extent in self._clipped.items():
            k, size, stride, offset, _ = self.dimensions[d]
            if k is not None and self._edge[d] == "clip":
                enough.setdefault(k, []).append(_just_enough(size, stride, offset, extent))
        for k, bounds in enough.items():
            first[k] = max(first[k], min(low for low, _ in bounds))
            last[k] = min(last[k], max(high for _, high in bounds))
        if not exists:
            last[0] = first[0] - 1
        return first, last

    def bounds(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """Return the starts and stops of the pixels of each place.

        `indices` has shape (N, coordinates), and the results have shape (N, ndim). With other edges than "drop", pixels
        outside of the tensor are left out.
        """
        starts = starts_of(self.window, indices)
        stops = starts + np.array(self.window.size, dtype=np.int64)
        _clip(starts, stops, self._clipped)
        return starts, stops

    def pixels(self, low: IntArray, high: IntArray) -> tuple[IntArray, IntArray]:
        """Return the boxes of pixels of N boxes of windows, each of which covers one box without gaps.

        Pixels outside of the tensor are left out. Across the end of a periodic dimension, a box becomes two.
        """
        starts = starts_of(self.window, low)
        stops = starts_of(self.window, high - 1) + np.array(self.window.size, dtype=np.int64)
        _clip(starts, stops, {d: extent for d, extent in self._clipped.items() if d not in self.periods})
        return boxes_around(starts, stops, self.periods)

    def inside(self, start: Sequence[int], stop: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Clip the region ``[start, stop)`` to the tensor.

        Dimensions with the edge "drop" stay unchanged.
        """
        if not self._clipped:
            return start, stop
        low, high = list(start), list(stop)
        for d, extent in self._clipped.items():
            low[d], high[d] = max(low[d], 0), min(high[d], extent)
        return low, high

    def box(self, start: Sequence[int], stop: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the box of all places intersecting a region of pixels.

        The region is ``[start, stop)``. The result is ``(low, high)``: an intersecting window has an index with
        ``low <= index < high``.
        """
        low, high = list(self.first), list(self._stop)
        for (k, size, stride, offset, _), a, b in zip(self.dimensions, start, stop, strict=True):
            if b <= a or (k is None and not (a < offset + size and offset < b)):
                return low, list(low)
            if k is not None:
                low[k] = max(low[k], -((offset + size - 1 - a) // stride))
                high[k] = min(high[k], (b - 1 - offset) // stride + 1)
        return low, list(map(max, low, high))

    def boxes(self, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
        """Like `box`, for N regions at once.

        `starts` and `stops` have shape (N, ndim). The two results have shape (N, coordinates).
        """
        low = np.array([self.first], dtype=np.int64).repeat(len(starts), axis=0)
        high = np.array([self._stop], dtype=np.int64).repeat(len(starts), axis=0)
        narrow(self.window, starts, stops, low, high)
        return low, np.maximum(low, high)

    def indices(self, starts: IntArray, stops: IntArray) -> list[Index]:
        """Like `windows`, as tuples, for a grid without periodic dimensions, such as one of tiles."""
        if len(starts) == 1:
            low, high = self.box(starts[0].tolist(), stops[0].tolist())
            check_count(math.prod(map(operator.sub, high, low)), MOST_AT_ONCE)
            return list(itertools.product(*map(range, low, high)))
        return as_tuples(self.windows(starts, stops))

    def windows(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Return the windows intersecting any of N regions, in lexicographic order."""
        if len(starts) == 1:
            return self.windows_at(points_of_box(*self.box(starts[0].tolist(), stops[0].tolist())))
        points, _ = points_of_boxes(*self.boxes(starts, stops))
        return self.windows_at(unique_points(points))

    def windows_at(self, places: IntArray) -> IntArray:
        """Return the windows that lie at `places`, each once, in lexicographic order."""
        if not self.around:
            return places
        windows = places.copy()
        for k, count in self.around.items():
            windows[:, k] %= count
        return unique_points(windows)

    def places(self, windows: IntArray) -> tuple[IntArray, IntArray | None]:
        """Return the places of windows, and which of the windows lies at each; None if each lies at one place."""
        if not self.around:
            return windows, None
        places, owner = windows, np.arange(len(windows))
        for k, count in self.around.items():
            turns = np.arange((self.first[k] - count + 1) // count, self.last[k] // count + 1) * count
            at = places[:, k, None] + turns
            which, turn = np.nonzero((at >= self.first[k]) & (at <= self.last[k]))
            places, owner = places[which], owner[which]
            places[:, k] = at[which, turn]
        return places, owner

    @property
    def ends(self) -> tuple[list[int], list[int]]:
        """The first and the last window, for each coordinate."""
        first, last = list(self.first), list(self.last)
        for k, count in self.around.items():
            first[k], last[k] = 0, count - 1
        return first, last

    def covers(self, start: Sequence[int], stop: Sequence[int]) -> bool:
        """Whether windows cover every pixel of a region.

        If several dimensions follow the same window coordinate, the result may be False for a covered region.
        """
        if self._everywhere:
            return True
        low, high = self.box(start, stop)
        if is_empty(low, high):
            return False
        for (k, size, stride, offset, _), a, b in zip(self.dimensions, start, stop, strict=True):
            c, count = (0, 1) if k is None else (low[k], high[k] - low[k])
            if count > 1 and (stride > size or self._followed.count(k) > 1):
                return False
            begin = offset + (0 if k is None else c * stride)
            if begin > a or begin + (count - 1) * stride + size < b:
                return False
        return True

    @cached_property
    def _everywhere(self) -> bool:
        return self._followed == tuple(range(self.ndim)) and all(
            extent is None and stride <= size for _, size, stride, _, extent in self.dimensions
        )

    def exist(self, indices: IntArray) -> npt.NDArray[np.bool_]:
        """Return an array of bools: whether each window in `indices` exists.

        Windows beyond the pixels that a read can reach count as missing.
        """
        first, last = self.ends
        exist = np.asarray(((indices >= first) & (indices <= last)).all(axis=1))
        for k, size, stride, offset, _ in self.dimensions:
            if k is not None:
                # Indices are compared instead of pixels, because products of indices could overflow.
                low = -((COORDINATE_LIMIT + offset + size - 1) // stride)
                high = (COORDINATE_LIMIT - 1 - offset) // stride
                exist &= (indices[:, k] >= low) & (indices[:, k] <= high)
        return exist

    def alone(self, d: int) -> WindowGrid:
        """Return the grid for a tensor with dimension `d` as the only dimension."""
        k, size, stride, offset, extent = self.dimensions[d]
        window = TensorWindow((size,), stride, offset, (None if k is None else 0,))
        return WindowGrid(window, (extent,), self._edge[d : d + 1])

    @cached_property
    def moving(self) -> list[int]:
        """The dimensions with more than one window."""
        return [d for d, k in enumerate(self._followed) if k is not None and self.first[k] < self.last[k]]

    @property
    def empty(self) -> bool:
        """Whether there is no window at all."""
        return any(last < first for first, last in zip(self.first, self.last, strict=True))

    @property
    def block(self) -> Index:
        """The extents of the block of pixels for `uncovered`.

        An unbounded dimension counts with a stride if there are gaps between its windows, and with 1 otherwise.
        """
        return tuple(
            [
                extent if extent is not None else stride if stride > size and self._followed.count(k) == 1 else 1
                for k, size, stride, _, extent in self.dimensions
            ]
        )

    @property
    def uncovered(self) -> int:
        """The number of pixels in `block` covered by no window.

        The number may be too low if very many windows lie along a diagonal.
        """
        block, covered = self.block, 1
        moved: dict[int, list[tuple[int, int, int, int]]] = {}
        for (k, size, stride, offset, extent), length in zip(self.dimensions, block, strict=True):
            if extent is not None:
                moved.setdefault(-1 if k is None else k, []).append((size, stride, offset, extent))
            elif length > 1:
                covered *= size
        if self.empty:
            return math.prod(block)
        counts = (_covered(dims, *((self.first[k], self.last[k]) if k >= 0 else (0, 0))) for k, dims in moved.items())
        return math.prod(block) - covered * math.prod(counts)

    @cached_property
    def row_dim(self) -> int | None:
        """The dimension following the last window coordinate.

        None if no dimension follows the last coordinate, or several dimensions do.
        """
        followers = [d for d, k in enumerate(self._followed) if k == self.ndim - 1]
        return followers[0] if len(followers) == 1 else None

    def moved(self, start: Sequence[int], count: int) -> list[int]:
        """Return the position `count` windows further along a row: `start` moved along `row_dim`."""
        assert self.row_dim is not None
        moved = list(start)
        moved[self.row_dim] += count * self.window.stride[self.row_dim]
        return moved

    @cached_property
    def overlap(self) -> int:
        """The largest number of windows over a pixel."""
        counts = [max(0, last - first + 1) for first, last in zip(self.first, self.last, strict=True)]
        for k, size, stride, _, _ in self.dimensions:
            if k is not None:
                counts[k] = min(counts[k], -(-size // stride))
        return math.prod(counts)

    @cached_property
    def overlap_free(self) -> bool:
        """Whether every pixel is covered by at most one window."""
        separated = {k for k, size, stride, _, _ in self.dimensions if k is not None and stride >= size}
        return all(k in separated for k in range(self.ndim) if self.first[k] < self.last[k])
