"""What libraries of arrays slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.geometry.points import Index
from infinite_tensor.views.frame import Frame


class Pixels:
    """A frame that is sliced like an array of numpy; each slice reads the box of pixels that it spans.

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
        box: list[slice] = []
        left: list[int | slice] = []
        for entry, first, extent in zip(key, self.frame.origin, self.shape, strict=True):
            elements = range(extent)
            picked = elements[entry] if isinstance(entry, slice) else [elements[entry]]
            if not picked:
                return self._empty(key)
            low, high = min(picked[0], picked[-1]), max(picked[0], picked[-1])
            box.append(slice(first + low, first + high + 1))
            left.append(slice(None, None, entry.step) if isinstance(entry, slice) else 0)
        return self.frame.read(tuple(box))[tuple(left)]

    def _empty(self, key: tuple[int | slice, ...]) -> npt.NDArray[Any]:
        slices = [(entry, extent) for entry, extent in zip(key, self.shape, strict=True) if isinstance(entry, slice)]
        return np.empty([len(range(extent)[entry]) for entry, extent in slices], self.dtype)

    def __dask_tokenize__(self) -> object:
        return "infinite_tensor", self.frame.token
