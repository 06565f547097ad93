"""Reads of args by windows, with padding beyond the ends of finite dimensions.

A padding maps each pixel outside the arg to a pixel inside. The modes have the names of `numpy.pad`. In a dimension of
n pixels, "edge" maps pixel p to the nearest pixel, and "wrap" maps it to ``p mod n``. "symmetric" mirrors at the outer
borders of the first and the last pixel, "reflect" at their centres. "constant" gives a value instead of a pixel.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from infinite_tensor.geometry.periodic import images_around
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.geometry.window import Shape, TensorWindow, WindowGrid, followed, starts_of
from infinite_tensor.geometry.window_sets import FARTHEST, BoxUnion, readers_of, split

PADDINGS = ("error", "constant", "edge", "reflect", "symmetric", "wrap")

_MOST_IMAGES = 16
"""The maximum number of repeats of a pixel by padding. With more, all windows along the dimension count as readers."""


class ArgReads:
    """Maps windows of a consumer to the pixels of an arg.

    Parameters
    ----------
    window : TensorWindow
        The arg window, indexed by the window index of the consumer.
    shape : tuple of (int or None)
        The shape of the arg.
    paddings : sequence of str or None
        The padding of each dimension, one of `PADDINGS`. None: no window may reach beyond the arg.

    Attributes
    ----------
    padded : dict of int to (int, str)
        The extent and the padding of each dimension with padding.
    """

    def __init__(self, window: TensorWindow, shape: Shape, paddings: Sequence[str] | None) -> None:
        self.window = window
        self.padded = {
            d: (extent, mode)
            for d, (extent, mode) in enumerate(zip(shape, paddings or ["error"] * len(shape), strict=True))
            if extent is not None and mode != "error"
        }
        self._size = np.array(window.size, dtype=np.int64)

    def regions(self, starts: IntArray) -> tuple[IntArray, IntArray]:
        """Return the boxes of pixels read by windows.

        `starts` contains the first pixel of each window, (N, ndim). Boxes are returned as starts and stops. A window
        reads one box, more boxes if it wraps around an end, and no box if it contains only constant padding.
        """
        return self.inside(np.empty(0, np.int64), starts, starts + self._size)[1:]

    def inside(self, numbers: IntArray, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return the boxes of pixels read for boxes that reach into the padding.

        `numbers` has the number of each box, or is empty. Each box in the result has the number of its origin.
        """
        for d, (extent, mode) in self.padded.items():
            if not len(starts) or (starts[:, d].min() >= 0 and stops[:, d].max() <= extent):
                continue
            boxes = []
            for low, high in _images(mode, extent, starts[:, d], stops[:, d]):
                some = low < high
                box = numbers[some] if len(numbers) else numbers, starts[some], stops[some]
                box[1][:, d], box[2][:, d] = low[some], high[some]
                boxes.append(box)
            numbers, starts, stops = (np.concatenate(bounds) for bounds in zip(*boxes, strict=True))
        return numbers, starts, stops

    def boxes(self, start: list[int], stop: list[int]) -> list[tuple[list[int], list[int]]]:
        """Return the boxes of pixels read for one box that may reach into the padding; see `inside`."""
        if not self.padded or not self.leaves(start, list(map(operator.sub, stop, start))):
            return [(start, stop)]
        _, starts, stops = self.inside(np.empty(0, np.int64), np.array([start]), np.array([stop]))
        return list(zip(starts.tolist(), stops.tolist(), strict=True))

    def leaves(self, start: Sequence[int], size: Sequence[int]) -> bool:
        """Whether a box of `size` pixels starting at pixel `start` reaches into the padding."""
        return any(start[d] < 0 or start[d] + size[d] > extent for d, (extent, _) in self.padded.items())

    def parts(self, d: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the intervals of dimension `d` read for an interval of pixels, in reading order.

        The list is empty if the interval contains only constant padding. In each result ``(start, stop)``, ``start`` is
        less than ``stop``, even if pixels are mirrored.
        """
        if d not in self.padded:
            return [(start, stop)]
        extent, mode = self.padded[d]
        images = _images(mode, extent, np.array([start]), np.array([stop]))
        return [(int(low[0]), int(high[0])) for low, high in images if low[0] < high[0]]

    def pixels(self, windows: BoxUnion) -> BoxUnion:
        """Return the pixels read by `windows`.

        If windows leave very many gaps, the result also contains the pixels in the gaps.
        """
        windows = split(self.window, windows)
        starts, stops = starts_of(self.window, windows.low), starts_of(self.window, windows.high - 1) + self._size
        return BoxUnion.of(*self.inside(np.empty(0, np.int64), starts, stops)[1:])

    def hulls(self, starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray, bool]:
        """Return the pixels of the arg needed to read boxes with padding.

        A box may begin or end in the padding. For each box, the pixels are returned as the smallest box around them.
        For example, the padding "wrap" of a dimension of 10 pixels makes the interval ``[-1, 2)`` need the pixels 9, 0
        and 1, so the result is ``[0, 10)``. If a box contains only constant padding, the result is empty. Returns
        starts, stops, and whether all pixels in the results are needed.
        """
        low, high, whole = starts.copy(), stops.copy(), True
        for d, (extent, mode) in self.padded.items():
            (first, last), *more = _images(mode, extent, starts[:, d], stops[:, d])
            for a, b in more:
                around = a < b
                whole &= not around.any()
                first, last = np.where(around, np.minimum(first, a), first), np.where(around, np.maximum(last, b), last)
            low[:, d], high[:, d] = first, last
        return low, high, whole

    def readers(self, pixels: BoxUnion, grid: WindowGrid) -> BoxUnion:
        """Return the windows of `grid` reading any of `pixels`.

        `grid` is the grid of the consumer. The result may also contain windows that read none of the pixels.
        """
        low, high = pixels.low, pixels.high
        for d, (extent, mode) in self.padded.items():
            reach = _reach(grid, self.window, d)
            ends = zip(low[:, d].tolist(), high[:, d].tolist(), strict=True)
            outside = [_outside(mode, extent, a, b, reach) for a, b in ends]
            owner = np.repeat(np.arange(len(low)), [len(images) for images in outside])
            low, high = low[owner], high[owner]
            bounds = np.array([image for images in outside for image in images], dtype=np.int64).reshape(-1, 2)
            low[:, d], high[:, d] = bounds[:, 0], bounds[:, 1]
        return readers_of(BoxUnion.of(low, high), grid, self.window)


def positions(mode: str, extent: int, start: int, size: int) -> IntArray:
    """Find the source pixel of each padded pixel along one dimension.

    Return an array for the `size` pixels beginning at `start`. It has -1 for pixels of constant padding.
    """
    pixels = np.arange(start, start + size, dtype=np.int64)
    if mode == "constant":
        return np.where((pixels >= 0) & (pixels < extent), pixels, -1)
    return _mapped(mode, extent, pixels)


def _mapped(mode: str, extent: int, pixels: IntArray) -> IntArray:
    if mode == "edge":
        inside = np.clip(pixels, 0, extent - 1)
    elif mode == "wrap":
        inside = pixels % extent
    elif mode == "symmetric":
        inside = pixels % (2 * extent)
        inside = np.minimum(inside, 2 * extent - 1 - inside)
    else:
        inside = pixels % max(1, 2 * extent - 2)
        inside = np.minimum(inside, 2 * extent - 2 - inside)
    return inside


def _images(mode: str, extent: int, starts: IntArray, stops: IntArray) -> list[tuple[IntArray, IntArray]]:
    """Map non-empty intervals of pixels to intervals of the arg.

    Returns one pair (starts, stops), or two pairs for "wrap". Intervals in the result may be empty.
    """
    if mode == "constant":
        return [(np.clip(starts, 0, extent), np.clip(stops, 0, extent))]
    if mode == "wrap":
        return images_around(starts, stops, extent)
    first, last = _mapped(mode, extent, starts), _mapped(mode, extent, stops - 1)
    low, high = np.minimum(first, last), np.maximum(first, last)
    if mode != "edge":
        # For an interval with a mirror inside, the image reaches the mirrored end of the arg.
        period = 2 * extent if mode == "symmetric" else max(1, 2 * extent - 2)
        low[(stops - 1) // period > starts // period] = 0
        high[(stops - extent) // period > (starts - extent + 1) // period] = extent - 1
    return [(low, high + 1)]


def _reach(grid: WindowGrid, window: TensorWindow, d: int) -> tuple[int, int]:
    """Return the start and stop of all pixels reached by windows along dimension `d`."""
    k = followed(window)[d]
    first, last = (0, 0) if k is None else tuple(side[k] for side in grid.ends)
    low, high = (i * window.stride[d] + window.offset[d] for i in (first, last))
    return low, high + window.size[d]


def _outside(mode: str, extent: int, low: int, high: int, reach: tuple[int, int]) -> Sequence[tuple[int, int]]:
    """Return all positions, inside the arg or in the padding, with the value of a pixel in ``[low, high)``.

    For example, the padding "wrap" of a dimension of 10 pixels repeats pixel 3 at -7, 13 and 23. The positions are
    returned as intervals. The caller needs no positions outside of `reach`.
    """
    if mode == "constant":
        return [(low, high)]
    if mode == "edge":
        return [(-FARTHEST if low == 0 else low, FARTHEST if high == extent else high)]
    period = {"wrap": extent, "symmetric": 2 * extent}.get(mode, max(1, 2 * extent - 2))
    mirrored = {"wrap": [], "symmetric": [(2 * extent - high, 2 * extent - low)]}.get(
        mode, [(2 * extent - 1 - high, 2 * extent - 1 - low)]
    )
    first, last = reach[0] // period, reach[1] // period
    if last - first > _MOST_IMAGES:
        return [(-FARTHEST, FARTHEST)]
    return [(a + i * period, b + i * period) for i in range(first, last + 1) for a, b in [(low, high), *mirrored]]
