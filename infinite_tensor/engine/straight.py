"""What a read holds of a tensor whose pixels lie in memory already: nothing."""

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
    """No window is ever missing: pixels are written where they are wanted.

    Parameters
    ----------
    writer : RegionWriter
        It copies them.
    stored : Access
        What the store would hold of the tensor, which tells whether its windows have been dropped.
    """

    def __init__(self, writer: RegionWriter, stored: Access) -> None:
        self._writer = writer
        self._stored = stored

    def add(self, starts: IntArray, stops: IntArray) -> IntArray:  # noqa: ARG002
        """No window is missing."""
        return np.empty((0, starts.shape[1]), dtype=np.int64)

    def whole(self, tiles: Sequence[Index]) -> list[Index]:
        """All tiles may be read."""
        return list(tiles)

    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """None is."""
        return np.zeros(len(windows), dtype=bool)

    def deposit(self, windows: IntArray, outputs: Array) -> None:  # noqa: ARG002
        """Never called, since none is missing."""
        raise AssertionError

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Copy the pixels."""
        with running_f():
            self._writer.write(start, out)

    def keep(self, start: Sequence[int] | None) -> None:
        """Release nothing: nothing is held."""

    @property
    def outdated(self) -> bool:
        """Whether windows have been dropped since: what was computed from the pixels before is not stored any more."""
        return self._stored.outdated

    def detach(self) -> None:
        """Store nothing, as ever."""

    def close(self) -> None:
        """End the look at the store."""
        self._stored.close()
