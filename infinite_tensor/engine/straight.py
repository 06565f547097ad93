"""Access to a tensor with all pixels in memory.

A read keeps no second copy of the pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.geometry.points import Index, IntArray
from infinite_tensor.support.allocation import Array
from infinite_tensor.support.functions import RegionWriter
from infinite_tensor.support.interrupts import running_f
from infinite_tensor.tilestore.contents import Access


class StraightAccess(Access):
    """Access for copying pixels directly to the result.

    No window is ever missing.

    Parameters
    ----------
    writer : RegionWriter
        Copies the pixels.
    stored : Access
        The access to the tensor's store. It knows whether windows were dropped.
    """

    def __init__(self, writer: RegionWriter, stored: Access) -> None:
        self._writer = writer
        self._stored = stored

    def add(self, starts: IntArray, stops: IntArray) -> IntArray:  # noqa: ARG002
        """Return no windows, because none is ever missing."""
        return np.empty((0, starts.shape[1]), dtype=np.int64)

    def whole(self, tiles: Sequence[Index]) -> list[Index]:
        """Return all tiles, because every tile can be read."""
        return list(tiles)

    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Return False for each window, because none is ever absent."""
        return np.zeros(len(windows), dtype=bool)

    def deposit(self, windows: IntArray, outputs: Array) -> None:  # noqa: ARG002
        """Never called, because no window is missing."""
        raise AssertionError

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on, by a call of the writer."""
        with running_f():
            self._writer.write(start, out)

    def keep(self, start: Sequence[int] | None) -> None:
        """Do nothing, because there is nothing to release."""

    @property
    def outdated(self) -> bool:
        """Whether windows were dropped since the access was opened.

        If so, results must no longer be stored.
        """
        return self._stored.outdated

    def detach(self) -> None:
        """Do nothing, because nothing is ever stored."""

    def close(self) -> None:
        """Close the access to the store."""
        self._stored.close()
