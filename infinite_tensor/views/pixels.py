"""What libraries of arrays slice."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.views.frame import Frame


class Pixels:
    """A frame that is sliced like an array of numpy; each slice is a read.

    Attributes
    ----------
    frame : Frame
        Where element 0 is, and how many there are.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.dtype = frame.dtype

    @property
    def shape(self) -> Index:
        """Elements per dimension."""
        return self.frame.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __getitem__(self, key: tuple[int | slice, ...]) -> npt.NDArray[Any]:
        starts, stops, steps = [], [], []
        for entry, first, extent in zip(key, self.frame.origin, self.shape, strict=True):
            elements = range(extent)
            picked = elements[entry] if isinstance(entry, slice) else [elements[entry]]
            ends = (first + min(picked[0], picked[-1]), first + max(picked[0], picked[-1]) + 1) if picked else (0, 0)
            starts.append(ends[0])
            stops.append(ends[1])
            steps.append(picked.step if isinstance(picked, range) else 1)
        squeezed = tuple([d for d, entry in enumerate(key) if not isinstance(entry, slice)])
        return self.frame.read(Selection(tuple(starts), tuple(stops), tuple(steps), squeezed))

    def __dask_tokenize__(self) -> object:
        return "infinite_tensor", self.frame.token
