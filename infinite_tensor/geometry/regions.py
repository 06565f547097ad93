"""Parses the index in ``tensor[...]`` into a region, and cuts regions into blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, NamedTuple, Self, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import torch

from infinite_tensor.errors import RegionError
from infinite_tensor.geometry.periodic import Periodic, boxes_around, is_endless
from infinite_tensor.geometry.points import COORDINATE_LIMIT, Index, IntArray
from infinite_tensor.geometry.window import Shape, TensorWindow, followed
from infinite_tensor.support.allocation import IN_PARTS, is_lack_of_memory, new_block, out_of_memory
from infinite_tensor.support.given import as_index, quoted

Region: TypeAlias = SupportsIndex | slice | EllipsisType | tuple[Any, ...]
"""The index for reading a single region."""

_SUPPORTED = "give ints, slices or Ellipsis"


class _RegionBuilder:
    """Builds regions: ``sl[0:512, 5]`` is the region of ``tensor[0:512, 5]``."""

    def __getitem__(self, indices: object) -> tuple[object, ...]:
        return indices if isinstance(indices, tuple) else (indices,)

    def __repr__(self) -> str:
        return "sl"


sl = _RegionBuilder()


class Selection(NamedTuple):
    """A box of pixels to read, with steps between wanted pixels.

    Attributes
    ----------
    start, stop : tuple of int
        The box ``[start, stop)`` in pixels, one entry per dimension.
    steps : tuple of int
        The step between wanted pixels in each dimension. A negative step also reverses the result.
    squeezed : tuple of int
        Dimensions indexed with an int, and dropped from the result.
    """

    start: Index
    stop: Index
    steps: Index
    squeezed: Index

    @property
    def shape(self) -> Index:
        """The shape of the box in pixels."""
        return tuple([b - a for a, b in zip(self.start, self.stop, strict=True)])

    @property
    def pixels(self) -> tuple[range, ...]:
        """The wanted pixels in each dimension, in ascending order."""
        return tuple([range(a, b, abs(step)) for a, b, step in zip(self.start, self.stop, self.steps, strict=True)])

    @property
    def size(self) -> Index:
        """The number of wanted pixels in each dimension."""
        return tuple(map(len, self.pixels)) if self.is_thinned else self.shape

    @property
    def is_thinned(self) -> bool:
        """Whether the box contains unwanted pixels."""
        return self.steps.count(1) < len(self.steps) and (max(self.steps) > 1 or min(self.steps) < -1)

    def pick(self, pixels: torch.Tensor) -> torch.Tensor:
        """Convert the wanted `pixels` to the result of the read.

        `pixels` must have all dimensions, with pixels in ascending order.

        Raises
        ------
        OutOfMemoryError
            If there is no memory for the copy, as needed for a negative step.
        """
        if min(self.steps) < 0:
            # torch flips no unsigned integers, so their bits are flipped as signed ones.
            bits = pixels.view(_SIGNED[pixels.dtype]) if pixels.dtype in _SIGNED else pixels
            try:
                pixels = bits.flip([d for d, step in enumerate(self.steps) if step < 0]).view(pixels.dtype)
            except RuntimeError as error:
                if not is_lack_of_memory(error, pixels.device):
                    raise
                raise out_of_memory(pixels.shape, pixels.dtype, IN_PARTS) from error
        if self.squeezed:
            pixels = pixels.reshape([n for d, n in enumerate(pixels.shape) if d not in self.squeezed])
        return pixels


def parts_inside(selection: Selection, shape: Shape) -> list[tuple[Selection, tuple[slice, ...]]]:
    """Cut a selection where a periodic dimension begins again.

    Return parts with pixels from 0 to the extent, each with its place among the wanted pixels.
    """
    cut = []
    for pixels, extent in zip(selection.pixels, shape, strict=True):
        along, first = [], 0
        while isinstance(extent, Periodic) and first < len(pixels):
            begin = pixels[first] // extent * extent
            end = min(len(pixels), (begin + extent - 1 - pixels.start) // pixels.step + 1)
            along.append((pixels[first] - begin, pixels[end - 1] - begin + 1, slice(first, end)))
            first = end
        cut.append(along or [(pixels.start, pixels.stop, slice(None))])
    parts = []
    for part in itertools.product(*cut):
        start, stop, place = zip(*part, strict=True)
        parts.append((selection._replace(start=start, stop=stop), place))
    return parts


def boxes_inside(selection: Selection, shape: Shape) -> list[Selection]:
    """Return the box of a selection in boxes with pixels from 0 to the extent of each periodic dimension."""
    periods = {d: extent for d, extent in enumerate(shape) if isinstance(extent, Periodic)}
    if not periods or 0 in selection.shape:
        return [selection]
    start, stop = (np.array([side], dtype=np.int64) for side in (selection.start, selection.stop))
    starts, stops = boxes_around(start, stop, periods)
    boxes = zip(starts.tolist(), stops.tolist(), strict=True)
    return [selection._replace(start=tuple(a), stop=tuple(b)) for a, b in boxes]


def box_inside(selection: Selection, shape: Shape, what: str) -> Selection:
    """Like `boxes_inside`, where only a single box is possible.

    Raise RegionError for a selection across the seam of a periodic dimension. `what` names it in the message.
    """
    boxes = boxes_inside(selection, shape)
    if len(boxes) > 1:
        region = ", ".join(f"{a}:{b}" for a, b in zip(selection.start, selection.stop, strict=True))
        raise RegionError(
            f"{what} must not lie across the seam of a periodic dimension, got [{region}] of shape {shape}; give one "
            "region for each side of the seam"
        )
    return boxes[0]


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def parse(indices: object, shape: Shape, labels: Sequence[object] | None = None) -> Selection:
    """Parse the index of ``tensor[indices]`` for a tensor of `shape`.

    A `Selection` is returned unchanged. `labels` are names of the dimensions for error messages. Default: numbers.

    Raises
    ------
    RegionError
        (an IndexError) If an index is of an unsupported kind or out of range, or if a slice over an unbounded or
        periodic dimension lacks a start or a stop.
    """
    if isinstance(indices, Selection):
        return indices
    entries = _expand(indices if isinstance(indices, tuple) else (indices,), shape)
    starts, stops, steps, squeezed = [], [], [], []
    for d, (entry, extent, label) in enumerate(zip(entries, shape, labels or range(len(shape)), strict=True)):
        if isinstance(entry, slice):
            start, stop, step = _box_of_slice(entry, label, extent)
        else:
            start = _coordinate(entry, label, extent)
            stop, step = start + 1, 1
            squeezed.append(d)
        if is_endless(extent) and start < stop and (start < -COORDINATE_LIMIT or stop > COORDINATE_LIMIT):
            raise RegionError(
                f"dimension {label}: pixels {quoted(start)}..{quoted(stop - 1)} reach beyond the limit of 2**51: "
                f"coordinates go from -{COORDINATE_LIMIT} to {COORDINATE_LIMIT - 1}"
            )
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    return Selection(tuple(starts), tuple(stops), tuple(steps), tuple(squeezed))


def _expand(indices: Sequence[object], shape: Shape) -> list[object]:
    ellipses = [i for i, entry in enumerate(indices) if entry is Ellipsis]
    if len(ellipses) > 1:
        raise RegionError(f"an index can have one Ellipsis only, got {_show(indices)}")
    given = len(indices) - len(ellipses)
    if given > len(shape):
        raise RegionError(f"too many indices: the tensor has {len(shape)} dimensions, got {given} in {_show(indices)}")
    at = ellipses[0] if ellipses else len(indices)
    whole = [slice(0, n) if isinstance(n, Periodic) else slice(None) for n in shape[at : at + len(shape) - given]]
    return [*indices[:at], *whole, *indices[at + 1 :]]


def _box_of_slice(entry: slice, label: object, extent: int | None) -> tuple[int, int, int]:
    if is_endless(extent) and entry.step is None and type(entry.start) is type(entry.stop) is int:
        # A fast path, because most reads are of this kind.
        return (entry.start, entry.stop, 1) if entry.start < entry.stop else (0, 0, 1)
    start, stop, step = (_slice_part(part, entry, label) for part in (entry.start, entry.stop, entry.step))
    step = 1 if step is None else step
    if step == 0:
        raise RegionError(f"dimension {label}: slice step cannot be zero, got {_show_one(entry)}")
    if extent is not None and not isinstance(extent, Periodic):
        pixels = range(*slice(start, stop, step).indices(extent))
    elif start is None or stop is None:
        kind, example = ("unbounded", 512) if extent is None else ("periodic", extent)
        raise RegionError(
            f"dimension {label} is {kind}: a slice over it needs a start and a stop, as in 0:{example}, "
            f"got {_show_one(entry)}"
        )
    else:
        pixels = range(start, stop, step)
    if not pixels:
        return 0, 0, step
    return min(pixels[0], pixels[-1]), max(pixels[0], pixels[-1]) + 1, step


def _slice_part(part: object, entry: slice, label: object) -> int | None:
    number = None if part is None else as_index(part)
    if part is not None and number is None:
        raise RegionError(f"dimension {label}: a slice takes ints, got {_show_one(entry)}")
    return number


def _coordinate(entry: object, label: object, extent: int | None) -> int:
    number = as_index(entry)
    if number is None:
        many = isinstance(entry, list)
        hint = "; for several regions, use one call per region, or read tensor[[...]]" if many else ""
        raise RegionError(
            f"dimension {label}: cannot index with {type(entry).__name__} {quoted(entry)}; {_SUPPORTED}{hint}"
        )
    if extent is None or is_endless(extent):
        return number
    if not -extent <= number < extent:
        raise RegionError(
            f"index {quoted(number)} is out of range for dimension {label} with size {extent}; give an int from "
            f"{-extent} to {extent - 1}"
        )
    return number % extent


def _show(indices: Sequence[object]) -> str:
    return f"[{', '.join(map(_show_one, indices))}]"


def _show_one(entry: object) -> str:
    if entry is Ellipsis:
        return "..."
    if not isinstance(entry, slice):
        return repr(entry)
    start, stop = ("" if part is None else repr(part) for part in (entry.start, entry.stop))
    return f"{start}:{stop}" + ("" if entry.step is None else f":{entry.step!r}")


T = TypeVar("T")


class Block(NamedTuple):
    """One block of a selection.

    Attributes
    ----------
    start, shape : tuple of int
        The first pixel and the extent of the block.
    place : tuple of slice
        The position of the wanted pixels in the result.
    """

    start: Index
    shape: Index
    place: tuple[slice, ...]


@dataclass(frozen=True)
class SelectionBlocks:
    """Boxes of pixels to read for a selection, in lexicographic order.

    A block contains wanted pixels and the gaps in between. Along a dimension with a step larger than the windows, each
    wanted pixel is a separate block. So every window over a block contains a wanted pixel.

    Attributes
    ----------
    selection : Selection
        The pixels to read.
    window : TensorWindow
        The windows of the tensor.
    far : tuple of bool
        Whether the step is larger than the windows, for each dimension.
    lows, highs : tuple of sequence of int
        The starts and stops of blocks, for each dimension.
    """

    selection: Selection
    window: TensorWindow
    far: tuple[bool, ...]
    lows: tuple[Sequence[int], ...]
    highs: tuple[Sequence[int], ...]

    @classmethod
    def of(cls, selection: Selection, window: TensorWindow) -> Self:
        """Return the blocks of a selection, as few as possible."""
        pixels = selection.pixels
        far = tuple([along.step > size for along, size in zip(pixels, window.size, strict=True)])
        lows = [along if is_far else [along.start] for along, is_far in zip(pixels, far, strict=True)]
        highs = [
            range(along.start + 1, along.stop + 1, along.step) if is_far else [along.stop]
            for along, is_far in zip(pixels, far, strict=True)
        ]
        return cls(selection, window, far, tuple(lows), tuple(highs))

    def cut(self, most: int) -> Self:
        """Cut the blocks into smaller blocks, at borders of windows.

        `most` is the desired maximum number of pixels in a block. A larger block remains if it contains no further
        border.
        """
        lows, highs = list(self.lows), list(self.highs)
        left = math.prod([b[0] - a[0] for is_far, a, b in zip(self.far, lows, highs, strict=True) if not is_far])
        for d, (k, wanted) in enumerate(zip(followed(self.window), self.selection.pixels, strict=True)):
            if k is not None and not self.far[d] and left > max(1, most):
                extent, stride = highs[d][0] - lows[d][0], self.window.stride[d]
                unit = -(-wanted.step // stride) * stride
                rows = max(unit, most * extent // left // unit * unit)
                offset = self.window.offset[d]
                cells = range((wanted[0] - offset) // rows + 1, (wanted[-1] - offset) // rows + 1)
                # The first wanted pixel of each block, at a border or after it.
                after = [-((wanted[0] - cell * rows - offset) // wanted.step) for cell in cells]
                lows[d] = [wanted[0], *[wanted[number] for number in after]]
                highs[d] = [*[low - wanted.step + 1 for low in lows[d][1:]], highs[d][0]]
                left = -(-left * min(rows, extent) // extent)
        return replace(self, lows=tuple(lows), highs=tuple(highs))

    @property
    def pixels(self) -> int:
        """The number of pixels to compute for all blocks.

        If a dimension is marked in `far`, a block has a single pixel along the dimension, but a whole window must be
        computed. So the block counts with the size of a window.
        """
        along = zip(self.far, self.lows, self.highs, self.window.size, strict=True)
        return math.prod([len(low) * size if is_far else high[-1] - low[0] for is_far, low, high, size in along])

    def bounds(self) -> tuple[IntArray, IntArray]:
        """Return the starts and stops of blocks, each of shape (N, ndim)."""
        return _product(self.lows), _product(self.highs)

    def __len__(self) -> int:
        return math.prod(map(len, self.lows))

    def __iter__(self) -> Iterator[Block]:
        along = [
            [
                (a, b - a, slice((a - pixels.start) // pixels.step, (b - 1 - pixels.start) // pixels.step + 1))
                for a, b in ends
            ]
            for pixels, ends in zip(self.selection.pixels, map(zip, self.lows, self.highs), strict=True)
        ]
        for parts in itertools.product(*along):
            yield Block(*zip(*parts, strict=True))

    def fill(self, block: Block, out: torch.Tensor, read: Callable[[Index, torch.Tensor], T]) -> T:
        """Read a block, and copy the wanted pixels to `out`.

        `out` is the result of the whole selection. ``read(start, box)`` must fill `box` with pixels,
        beginning at pixel `start`. The return value of `read` is returned.
        """
        target = out[block.place]
        if target.shape == block.shape:
            return read(block.start, target)
        box = new_block(block.shape, out.dtype, out.device, IN_PARTS)
        found = read(block.start, box)
        target.copy_(box[tuple([slice(None, None, pixels.step) for pixels in self.selection.pixels])])
        return found


def _product(ends: Sequence[Sequence[int]]) -> IntArray:
    if math.prod(map(len, ends)) == 1:
        return np.array([[each[0] for each in ends]], dtype=np.int64)
    columns = np.meshgrid(*[np.array(each, dtype=np.int64) for each in ends], indexing="ij")
    return np.stack(columns, axis=-1).reshape(-1, len(ends))
