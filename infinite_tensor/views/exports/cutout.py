"""A region of a tensor as it is exported, and its way into what is written of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import keeping_little, node_of, resolved
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.engine.loop import run_steps
from infinite_tensor.engine.reads import Views
from infinite_tensor.errors import InfiniteTensorError, StoreError, ValidationError
from infinite_tensor.filling.cutting import cut_into_bands
from infinite_tensor.filling.mask import Target
from infinite_tensor.filling.progress import Tally
from infinite_tensor.filling.stored_only import StoredOnly
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.pipelines.sliding import CHANNELS
from infinite_tensor.support.allocation import new_block
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.given import quoted
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.definition import Number
from infinite_tensor.values.meaning import Meaning, nodata_in
from infinite_tensor.views.frame import Frame, shown, shown_dtype, step_of

Pixels: TypeAlias = npt.NDArray[Any]
Place: TypeAlias = tuple[slice, ...]

_HELD_BYTES = 2**26
"""About as much is held of the tensors that are read, and as much may each of their stores keep."""


@dataclass(frozen=True)
class Cutout:
    """A region of a tensor.

    Attributes
    ----------
    frame : Frame
        Which pixels, of which tensor.
    kept : tuple of int
        The dimensions that it has in what is written: those that no int has picked a pixel of.
    fill_value : number or None
        What is written where a tile is not stored, if somebody has given it.
    step : int
        Of how many rows and columns of an image one is written.
    """

    frame: Frame
    kept: tuple[int, ...]
    fill_value: Number | None = None
    step: int = 1

    @classmethod
    def of(cls, tensor: InfiniteTensor, region: object, fill_value: Number | None = None) -> Cutout:
        """What a region means.

        Raises
        ------
        RegionError
            (an IndexError) If it is no region of the tensor.
        ValidationError
            If it is empty, or has steps.
        """
        node = node_of(tensor)
        selection = parse(region, tensor.shape, node.spec.labels)
        if set(selection.steps) - {1} or 0 in selection.shape:
            raise ValidationError(
                "the region of an export must hold pixels, given by ints and slices a:b without a step, got "
                f"{quoted(region)}; for every second pixel of a PNG, give every=2"
            )
        tile = node.contents.layout(node.spec).tile_shape
        frame = Frame(tensor, selection.start, selection.shape, tile, shown_dtype(tensor.dtype))
        return cls(frame, tuple([d for d in range(tensor.ndim) if d not in selection.squeezed]), fill_value)

    @property
    def tensor(self) -> InfiniteTensor:
        """What is exported."""
        return self.frame.tensor

    @property
    def shape(self) -> Index:
        """Extents of what is written."""
        return self.of_kept([-(-n // step) for n, step in zip(self.frame.shape, self.steps, strict=True)])

    @property
    def steps(self) -> Index:
        """Per dimension of the tensor, from one pixel that is written to the next."""
        across = None if self.channels is None else self.kept[self.channels]
        return tuple([1 if d == across or d not in self.kept else self.step for d in range(len(self.frame.shape))])

    @property
    def names(self) -> dict[int, str]:
        """Names of its dimensions, by their numbers in the tensor."""
        return {d: self.tensor.dims[d] for d in self.kept}

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of its dimensions."""
        return self.of_kept(self.tensor.dims)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype; that of bfloat16, which no format has, is float32."""
        return self.frame.dtype

    @property
    def nodata(self) -> float | None:
        """What the file says that pixels without data are; formats have it for real numbers."""
        return nodata_in(self.fill_value, self.tensor.dtype)

    @cached_property
    def meaning(self) -> Meaning:
        """What is known of its pixels beside their values."""
        return self.frame.meaning(self.names)

    def every(self, every: object, max_pixels: object) -> Cutout:
        """The cutout of which fewer rows and columns are written, if it is of an image; see `step_of`."""
        extents = [n for number, n in enumerate(self.shape) if number != self.channels]
        return replace(self, step=step_of(extents, every, max_pixels))

    def picked(self, *, compute: bool, workers: int | None) -> Pixels:
        """All pixels that are written, by one read."""
        end = tuple([a + n for a, n in zip(self.frame.origin, self.frame.shape, strict=True)])
        squeezed = tuple([d for d in range(len(end)) if d not in self.kept])
        selection = Selection(self.frame.origin, end, self.steps, squeezed)
        view = StoredOnly(self.tensor, self.fill_value)
        return shown(self.tensor.read(selection, workers=workers) if compute else view[selection])

    def of_kept(self, entries: Sequence[Any]) -> tuple[Any, ...]:
        """Of entries for each dimension of the tensor, those for the dimensions that are written."""
        return tuple([entries[d] for d in self.kept])

    def place(self, start: Sequence[int], stop: Sequence[int]) -> Place:
        """Where pixels ``[start, stop)`` of the tensor are in what is written."""
        begin = [slice(a - o, b - o) for a, b, o in zip(start, stop, self.frame.origin, strict=True)]
        return self.of_kept(begin)

    def pixels(self, box: torch.Tensor) -> Pixels:
        """A box of the tensor as it is written."""
        array = shown(box)
        return array.reshape(self.of_kept(array.shape))

    @property
    def channels(self) -> int | None:
        """Which dimension of what is written is channels, or bands; None where there is none.

        With three dimensions one is: that of such a name, else the first.
        """
        if len(self.kept) != 3:
            return None
        named = [d for d, name in enumerate(self.dims) if name.lower() in CHANNELS]
        return named[0] if named else 0

    def image(self, form: str) -> tuple[int, int, int]:
        """How many channels, rows and columns it has; ValidationError that names a format if it is no image."""
        if len(self.kept) not in (2, 3):
            raise ValidationError(
                f"format {form!r} holds images, of 2 dimensions or with channels of 3; the region has shape "
                f"{self.shape}: pick a pixel of the others by an int, as in sl[0, :, 0:512, 0:512]"
            )
        extents = list(self.shape)
        bands = 1 if self.channels is None else extents.pop(self.channels)
        return bands, extents[0], extents[1]


class Sink(NamedTuple):
    """Where a cutout is written, box by box.

    Attributes
    ----------
    unit : tuple of int
        Extents, per dimension of the tensor, of the boxes of which whole ones are written.
    put : callable
        ``put(place, pixels)`` writes some pixels, whole units of them.
    has : callable
        Whether those at a place have been written before; most begin anew.
    """

    unit: Index
    put: Callable[[Place, Pixels], object]
    has: Callable[[Place], bool] = lambda _place: False


@contextmanager
def explained(target: str) -> Iterator[None]:
    """StoreError that names what could not be written, and why."""
    try:
        yield
    except InfiniteTensorError:
        raise
    except Exception as error:
        raise StoreError(f"cannot write {target!r}: {type(error).__name__}: {error}") from error


# Step by step, in bounded memory, whatever the region is.

Use: TypeAlias = Callable[[Sequence[int], torch.Tensor], None]
Source: TypeAlias = Callable[[NumberedRegions, Use], None]
"""Calls ``use(start, pixels)`` for each of some boxes of a tensor."""


def computed(tensor: InfiniteTensor, workers: int | None, boxes: NumberedRegions, use: Use) -> None:
    """Pixels as a read gives them: what is missing is computed, and stored."""
    (node,) = resolved([node_of(tensor)])
    spec = node.spec
    with store_call(node.contents, CLAIMS):
        node.contents.flush_if_requested()
        with Views(CLAIMS.reader(workers)) as views:

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
    """Pixels of tiles that are stored, and a fill value elsewhere."""
    for start, stop in zip(boxes.starts.tolist(), boxes.stops.tolist(), strict=True):
        use(start, view[tuple(itertools.starmap(slice, zip(start, stop, strict=True)))])


def units_in(extents: Sequence[int], unit: Sequence[int]) -> int:
    """How many units some pixels are written in."""
    return math.prod(-(-extent // n) for extent, n in zip(extents, unit, strict=True))


@torch.inference_mode(mode=False)
def stream(
    cutout: Cutout, sink: Sink, source: Source, tally: Tally, target: str, part: tuple[Index, Index] | None = None
) -> None:
    """Write all pixels of a cutout that its sink does not have, and count its units.

    Or those of a `part`, pixels ``[start, stop)`` of the tensor, which is cut from the others between units.

    Raises
    ------
    StoreError
        If they cannot be written; it names `target`.
    """
    node, origin = node_of(cutout.tensor), cutout.frame.origin
    end = tuple([a + n for a, n in zip(origin, cutout.frame.shape, strict=True)])
    bands = cut_into_bands(Target(node, *(part or (origin, end))), _HELD_BYTES, unit=sink.unit)

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
