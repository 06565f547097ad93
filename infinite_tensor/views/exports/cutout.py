"""Regions to export, and the loop for writing pixels to a sink."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.assemble import open_views
from infinite_tensor.engine.chain import keeping_little, node_of, resolved
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.engine.locality import settle
from infinite_tensor.engine.loop import run_steps
from infinite_tensor.errors import InfiniteTensorError, StoreError, ValidationError
from infinite_tensor.filling.cutting import cut_into_bands
from infinite_tensor.filling.mask import Target
from infinite_tensor.filling.progress import Tally
from infinite_tensor.filling.stored_only import StoredOnly
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.support.allocation import new_block
from infinite_tensor.support.given import quoted
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.arrays import contiguous_box
from infinite_tensor.values.coarse import Coarsening
from infinite_tensor.values.definition import Number
from infinite_tensor.values.meaning import COLOURS, Coordinate, Meaning, nodata_in
from infinite_tensor.views.frame import Frame, Sampling, as_numpy, numpy_dtype, step_of
from infinite_tensor.views.plane import Plane

Pixels: TypeAlias = npt.NDArray[Any]
Place: TypeAlias = tuple[slice, ...]

_HELD_BYTES = 2**26
"""Approximate bytes of pixels in memory at once. Each store may cache as many bytes more."""


@dataclass(frozen=True)
class Cutout:
    """A region of a tensor, to be exported.

    Attributes
    ----------
    frame : Frame
        The tensor, and the box of its pixels.
    fill_value : number or None
        The number to write in place of missing tiles; None if not given.
    step : int
        Every `step`-th row and column of an image is written.
    """

    frame: Frame
    fill_value: Number | None = None
    step: int = 1

    @classmethod
    def of(cls, tensor: InfiniteTensor, region: object, fill_value: Number | None = None) -> Cutout:
        """Return the cutout of a region.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a region of the tensor.
        ValidationError
            If `region` is empty, or has steps.
        """
        node = node_of(tensor)
        selection = parse(region, tensor.shape, node.spec.labels)
        if set(selection.steps) - {1} or 0 in selection.shape:
            raise ValidationError(
                "the region of an export must contain pixels, and consist of ints and slices a:b without a step, got "
                f"{quoted(region)}; give every=2 for every second pixel of a PNG"
            )
        tile = node.contents.layout(node.spec).tile_shape
        dims = {d: name for d, name in enumerate(tensor.dims) if d not in selection.squeezed}
        along = (Sampling(),) * tensor.ndim
        dtype = numpy_dtype(tensor.dtype)
        return cls(Frame(tensor, selection.start, selection.shape, tile, dtype, dims, None, along), fill_value)

    @property
    def tensor(self) -> InfiniteTensor:
        """The exported tensor."""
        return self.frame.tensor

    @property
    def shape(self) -> Index:
        """The shape of the written array."""
        return self.of_kept([-(-n // step) for n, step in zip(self.frame.shape, self.steps, strict=True)])

    @property
    def steps(self) -> Index:
        """The step from one written pixel to the next, per dimension of the tensor."""
        across = None if self.channels is None else self.kept[self.channels]
        return tuple([1 if d == across or d not in self.kept else self.step for d in range(len(self.frame.shape))])

    @property
    def kept(self) -> tuple[int, ...]:
        """The dimensions of the written array: all dimensions not indexed by an int."""
        return tuple(self.frame.dims)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the written dimensions."""
        return self.of_kept(self.tensor.dims)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the written array.

        It is float32 for bfloat16, because no format has bfloat16.
        """
        return self.frame.dtype

    @property
    def nodata(self) -> float | None:
        """The nodata value of the file, or None.

        It is None for complex numbers, because formats have no nodata value for these.
        """
        return nodata_in(self.fill_value, self.tensor.dtype)

    @property
    def meaning(self) -> Meaning:
        """The metadata of the pixels, such as coordinates and units."""
        return self.frame.meaning

    def every(self, every: object, max_pixels: object) -> Cutout:
        """Return a copy with fewer rows and columns; see `step_of`."""
        extents = [n for number, n in enumerate(self.shape) if number != self.channels]
        return replace(self, step=step_of(extents, every, max_pixels))

    def picked(self, *, compute: bool, workers: int | None) -> Pixels:
        """Read all pixels of the written array in one read."""
        end = tuple([a + n for a, n in zip(self.frame.origin, self.frame.shape, strict=True)])
        squeezed = tuple([d for d in range(len(end)) if d not in self.kept])
        selection = Selection(self.frame.origin, end, self.steps, squeezed)
        view = StoredOnly(self.tensor, self.fill_value)
        return as_numpy(self.tensor.read(selection, workers=workers) if compute else view[selection])

    def of_kept(self, entries: Sequence[Any]) -> tuple[Any, ...]:
        """Drop the entries of dimensions indexed by an int.

        `entries` has an entry for each dimension of the tensor, and the result one for each dimension written.
        """
        return tuple([entries[d] for d in self.kept])

    def place(self, start: Sequence[int], stop: Sequence[int]) -> Place:
        """Convert the box ``[start, stop)`` of the tensor to slices of the written array."""
        begin = [slice(a - o, b - o) for a, b, o in zip(start, stop, self.frame.origin, strict=True)]
        return self.of_kept(begin)

    def pixels(self, box: torch.Tensor) -> Pixels:
        """Return a box of pixels as an array of the written dtype and dimensions."""
        array = as_numpy(box)
        return array.reshape(self.of_kept(array.shape))

    @property
    def channels(self) -> int | None:
        """The index of channels or bands among the written dimensions, or None.

        It is None unless there are three dimensions. Channels are what `Plane.of` leaves besides rows and columns.
        """
        return Plane.of(self.of_kept(self.frame.shape), self.dims).others[0] if len(self.kept) == 3 else None

    @property
    def colours(self) -> tuple[str, ...]:
        """The colour of each band, such as "red", or nothing if they are unknown."""
        for fact in self.meaning.of(Coordinate):
            if fact.called == COLOURS and [*fact.dims] == ([] if self.channels is None else [self.channels]):
                return tuple(fact.values.reshape(-1).astype(str).tolist())
        return ()

    def image(self, form: str) -> tuple[int, int, int]:
        """Return the numbers of channels, rows and columns of the image.

        Raise ValidationError unless the cutout has 2 or 3 dimensions.
        """
        if len(self.kept) not in (2, 3):
            raise ValidationError(
                f"format {form!r} is for images of 2 dimensions, or 3 with channels, but the region has shape "
                f"{self.shape}; index the other dimensions by ints, as in sl[0, :, 0:512, 0:512]"
            )
        extents = list(self.shape)
        bands = 1 if self.channels is None else extents.pop(self.channels)
        return bands, extents[0], extents[1]


class Sink(NamedTuple):
    """A destination for the pixels of a cutout, written box by box.

    Attributes
    ----------
    unit : tuple of int
        The size of a unit, such as a chunk of the file, per dimension of the tensor. Only whole units are written.
    put : callable
        ``put(place, pixels)`` writes one or more whole units of pixels.
    has : callable
        ``has(place)`` tells whether pixels were already written, by an interrupted export. Default: never.
    get : callable, optional
        ``get(place)`` reads pixels that were written. Only Zarr has it.
    """

    unit: Index
    put: Callable[[Place, Pixels], object]
    has: Callable[[Place], bool] = lambda _place: False
    get: Callable[[Place], Pixels] | None = None


@contextmanager
def explained(target: str) -> Iterator[None]:
    """Turn errors into a StoreError with the target and the cause."""
    try:
        yield
    except InfiniteTensorError:
        raise
    except Exception as error:
        raise StoreError(f"cannot write {target!r}: {type(error).__name__}: {error}") from error


# Writing in steps, in bounded memory for any size of region.

Use: TypeAlias = Callable[[Sequence[int], torch.Tensor], None]
Source: TypeAlias = Callable[[NumberedRegions, Use], None]
"""A function calling ``use(start, pixels)`` for each box of a list."""


def computed(tensor: InfiniteTensor, workers: int | None, boxes: NumberedRegions, use: Use) -> None:
    """Read boxes, and call `use` with the pixels of each. Missing windows are computed and stored."""
    (node,) = resolved([node_of(tensor)])
    spec = node.spec
    if spec.grid.periods:
        # Boxes may lie across a seam.
        read = itertools.chain.from_iterable(tensor.iter_regions(_regions(boxes), workers=workers))
        for start, pixels in zip(boxes.starts.tolist(), read, strict=True):
            use(start, pixels)
        return
    with store_call(node.contents, CLAIMS):
        node.contents.flush_if_requested()
        with open_views(workers) as views:
            settle(node, (boxes.starts[0].tolist(), boxes.stops[0].tolist()), views)

            def ready(number: int) -> None:
                start, stop = boxes.starts[number].tolist(), boxes.stops[number].tolist()
                pixels = new_block([b - a for a, b in zip(start, stop, strict=True)], spec.dtype, spec.device)
                views.of(node).read(start, pixels)
                if views.moved:
                    raise ValidationError(
                        f"tensor {spec.tensor_id!r} was moved to another dtype or device while it was exported; "
                        "export it again"
                    )
                use(start, pixels)

            run_steps({node: boxes}, [range(n, n + 1) for n in range(len(boxes.numbers))], views, ready)


def stored(view: StoredOnly, boxes: NumberedRegions, use: Use) -> None:
    """Read boxes without computing, and call `use` with the pixels of each. Missing tiles have the fill value."""
    for start, region in zip(boxes.starts.tolist(), _regions(boxes), strict=True):
        use(start, view[region])


def _regions(boxes: NumberedRegions) -> Iterator[tuple[slice, ...]]:
    for start, stop in zip(boxes.starts.tolist(), boxes.stops.tolist(), strict=True):
        yield tuple(map(slice, start, stop))


def units_in(extents: Sequence[int], unit: Sequence[int]) -> int:
    """Return the number of units in a box of pixels. Incomplete units count."""
    return math.prod(-(-extent // n) for extent, n in zip(extents, unit, strict=True))


@torch.inference_mode(mode=False)
def stream(cutout: Cutout, sink: Sink, source: Source, tally: Tally, target: str) -> None:
    """Write the pixels of a cutout to a sink, except pixels already written.

    The progress report `tally` also counts units already written.

    Raises
    ------
    StoreError
        If pixels cannot be written; the message names `target`.
    """
    node, origin = node_of(cutout.tensor), cutout.frame.origin
    end = tuple([a + n for a, n in zip(origin, cutout.frame.shape, strict=True)])
    bands = cut_into_bands(Target(node, origin, end), _HELD_BYTES, unit=sink.unit)

    def use(start: Sequence[int], pixels: torch.Tensor) -> None:
        stop = [a + n for a, n in zip(start, pixels.shape, strict=True)]
        with explained(target):
            sink.put(cutout.place(start, stop), cutout.pixels(pixels))
        tally.count(node, units_in(pixels.shape, sink.unit))

    with keeping_little(node, _HELD_BYTES):
        for band in bands:
            boxes = zip(band.starts.tolist(), band.stops.tolist(), strict=True)
            left = np.array([not sink.has(cutout.place(start, stop)) for start, stop in boxes])
            extents = band.stops[~left] - band.starts[~left]
            tally.count(node, sum(units_in(each, sink.unit) for each in extents.tolist()))
            if left.any():
                source(NumberedRegions.alone(band.starts[left], band.stops[left]), use)


def stream_level(level: Cutout, sink: Sink, finer: Sink, tally: Tally, target: str) -> None:
    """Write a level, computed from the pixels in the sink of the next finer level; otherwise like `stream`."""
    node, frame, f = node_of(level.tensor), level.frame, cast("Coarsening", level.tensor.f)
    read = cast("Callable[[Place], Pixels]", finer.get)
    chunk_bytes = frame.chunk_size * math.prod(f.factor)
    step = list(map(operator.mul, contiguous_box(frame.chunk_counts, chunk_bytes, _HELD_BYTES), frame.chunk_shape))
    for start in itertools.product(*map(range, (0,) * frame.ndim, frame.shape, step)):
        stop = [min(a + n, end) for a, n, end in zip(start, step, frame.shape, strict=True)]
        place = level.place(start, stop)
        if not sink.has(place):
            spans = zip(start, stop, f.factor, cast("Index", f.shape), strict=True)
            below = [slice(a * n, min(b * n, end)) for a, b, n, end in spans]
            with explained(target):
                pixels = torch.from_numpy(read(level.of_kept(below))).to(frame.tensor.dtype)
                pixels = pixels.reshape([part.stop - part.start for part in below])
                sink.put(place, level.pixels(f.over(start, stop, pixels)))
        tally.count(node, units_in([b - a for a, b in zip(start, stop, strict=True)], sink.unit))
