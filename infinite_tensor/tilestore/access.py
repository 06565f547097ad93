"""The contract of one read with a store: `Access`, the read's view of one tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.geometry.points import IntArray
from infinite_tensor.support.allocation import Array


class Access(ABC):
    """What one read needs of one tensor, held until its last use.

    A read adds the regions it wants, deposits the windows that were missing, and then reads the regions.
    What an access holds it holds by itself, so the limits of the store's cache never get in the way of a
    read that is in progress. Several threads of a read may use it at a time, but for `add`, `keep` and `close`.
    """

    @abstractmethod
    def add(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Look up what is stored of regions ``[start, stop)``, and say which windows must be computed.

        Parameters
        ----------
        starts, stops : int64 array of shape (N, ndim)
            The regions in pixels.

        Returns
        -------
        int64 array of shape (M, ndim)
            Indices of the windows that are not stored, in lexicographic order.
        """

    @abstractmethod
    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Look again for windows that `add` reported: which are still not there.

        Without input or output. What other reads deposit of these from now on is held here too.
        """

    @abstractmethod
    def deposit(self, windows: IntArray, outputs: Array) -> None:
        """Store finished windows.

        Parameters
        ----------
        windows : int64 array of shape (N, ndim)
            Their indices.
        outputs : array of shape (N, *window size)
            The windows, checked; they are the store's from now on.
        """

    @abstractmethod
    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Write the pixels from `start` on into `out`; the region was added and all its windows are there."""

    @abstractmethod
    def keep(self, start: Sequence[int] | None) -> None:
        """Release what lies before pixel `start` in any dimension: no later region begins before it.

        None releases everything. What is released is looked up again when it is added again.
        """

    @property
    @abstractmethod
    def outdated(self) -> bool:
        """Whether windows of the tensor have been dropped since, so that nothing deposited here is stored any more."""

    @abstractmethod
    def detach(self) -> None:
        """Store nothing of what is deposited here; nothing has been added yet."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; the limits of the cache hold again."""
