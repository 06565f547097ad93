"""`Readable`: what is read by regions between brackets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, overload

from infinite_tensor.geometry.regions import Region

Pixels_co = TypeVar("Pixels_co", covariant=True)


class Readable(ABC, Generic[Pixels_co]):
    """Reads of regions, each as a tensor or a TensorDict."""

    @abstractmethod
    def _read(self, regions: Sequence[object], workers: int | None) -> Sequence[Pixels_co]:
        """Read regions together."""

    @overload
    def __getitem__(self, indices: list[Any]) -> list[Pixels_co]: ...
    @overload
    def __getitem__(self, indices: Region) -> Pixels_co: ...
    @overload
    def __getitem__(self, indices: object) -> Any: ...

    def __getitem__(self, indices: object) -> Any:
        """Read a region, or a list of regions together.

        Parameters
        ----------
        indices : int, slice, Ellipsis or tuple of them, or a list of such regions
            A negative number is a coordinate in an unbounded dimension and counts from the end in a finite
            one. A slice over an unbounded dimension needs both ends; steps may be negative. With steps, only
            windows that contain a pixel of the result are computed. `sl` creates regions.

        Returns
        -------
        torch.Tensor or TensorDict, or a list of them
            Pixels of `dtype` on `device`, in new memory; of a group or its view, a TensorDict.

        Raises
        ------
        RegionError
            (an IndexError) If `indices` is not a valid region.
        TileAccessError
            If pixels are missing and the tensor was opened without ``f``.
        """
        return list(self._read(indices, None)) if isinstance(indices, list) else self._read([indices], None)[0]
