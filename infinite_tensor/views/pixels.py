"""What libraries of arrays slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import node_of
from infinite_tensor.geometry.points import Index
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.frame import Frame, shown, shown_dtype


class Pixels:
    """A frame of a tensor as an array of numpy is sliced; each slice reads the box that it spans.

    Attributes
    ----------
    tensor : InfiniteTensor
        What is read.
    frame : Frame
        Where element 0 is, and how many there are.
    """

    def __init__(self, tensor: InfiniteTensor, frame: Frame) -> None:
        self.tensor = tensor
        self.frame = frame
        self.dtype = shown_dtype(tensor.dtype)

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
            picked = range(extent)[entry if isinstance(entry, slice) else slice(entry, entry + 1)]
            if not picked:
                return self._empty(key)
            low, high = min(picked[0], picked[-1]), max(picked[0], picked[-1])
            box.append(slice(first + low, first + high + 1))
            left.append(slice(None, None, picked.step) if isinstance(entry, slice) else 0)
        return shown(self.tensor[tuple(box)])[tuple(left)]

    def _empty(self, key: tuple[int | slice, ...]) -> npt.NDArray[Any]:
        slices = [(entry, extent) for entry, extent in zip(key, self.shape, strict=True) if isinstance(entry, slice)]
        return np.empty([len(range(extent)[entry]) for entry, extent in slices], self.dtype)

    def __dask_tokenize__(self) -> object:
        spec = node_of(self.tensor).spec
        return "infinite_tensor", spec.tensor_id, spec.definition.digest, self.frame
