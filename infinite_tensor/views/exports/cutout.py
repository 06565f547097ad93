"""A region of a tensor as it is exported, and where it is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import InfiniteTensorError, StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import parse
from infinite_tensor.pipelines.sliding import CHANNELS
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.given import quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.definition import Number
from infinite_tensor.values.meaning import Meaning
from infinite_tensor.views.frame import Frame, nodata_of, shown, shown_dtype

Pixels: TypeAlias = npt.NDArray[Any]
Place: TypeAlias = tuple[slice, ...]


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
    """

    frame: Frame
    kept: tuple[int, ...]
    fill_value: Number | None = None

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
                f"{quoted(region)}"
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
        return self.of_kept(self.frame.shape)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of its dimensions."""
        return self.of_kept(self.tensor.dims)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype; that of bfloat16, which no format has, is float32."""
        return self.frame.dtype

    @property
    def nodata(self) -> int | float | None:
        """What the file says that pixels without data are; formats have it for real numbers."""
        return nodata_of(self.fill_value, self.tensor.dtype)

    @cached_property
    def meaning(self) -> Meaning:
        """What is known of its pixels beside their values."""
        return self.frame.meaning({d: self.tensor.dims[d] for d in self.kept})

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


class Sink(ABC):
    """Where a cutout is written, box by box.

    Attributes
    ----------
    unit : tuple of int
        Extents, per dimension of the tensor, of the boxes of which whole ones are written.
    """

    unit: Index

    @abstractmethod
    def put(self, place: Place, pixels: Pixels) -> None:
        """Write some pixels, whole units of them."""

    def has(self, place: Place) -> bool:  # noqa: ARG002  (most begin anew)
        """Whether these have been written before."""
        return False


@contextmanager
def explained(target: str) -> Iterator[None]:
    """StoreError that names what could not be written, and why."""
    try:
        yield
    except InfiniteTensorError:
        raise
    except Exception as error:
        raise StoreError(f"cannot write {target!r}: {type(error).__name__}: {error}") from error
