"""Base classes for an ``f`` of this library that can do more than compute windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch


class Unmovable(ABC):
    """An ``f`` that returns only one dtype on one device. So its tensor cannot be moved to another dtype or device."""

    @abstractmethod
    def instead(self, dtype: torch.dtype, device: torch.device) -> str:
        """Return the advice for users who try to move its tensor, for a message."""


class Calling(ABC):
    """An ``f`` that calls functions of a user.

    If values that these functions use have changed since pixels were stored, an error is raised. For any other ``f``,
    this is only a warning.

    Attributes
    ----------
    told : bool
        Whether the user has given a version, which identifies the parts of these functions that cannot be inspected.
    stored : bool
        Whether its results are stored for later runs, so that changes of these functions matter.
    looked : Reach or None
        Everything that these functions used before the first call; None if that could not be inspected.
    """

    told = True
    stored = True
    looked: Any = None

    @abstractmethod
    def _reaches(self) -> Mapping[str, object]:
        """Return the user's functions, and everything that determines their arguments, by their names in messages."""


class RegionWriter(Unmovable):
    """An ``f`` that can write any region of its tensor without computing windows.

    A read of pixels that are not in memory computes only these pixels, and keeps none of them. Reads by other tensors,
    streams, fills, and reads on several threads compute windows, as for any other ``f``, unless `copies` is True.

    Attributes
    ----------
    meaning : Meaning or None
        The metadata of the pixels.
    """

    meaning: Any = None

    @property
    def copies(self) -> bool:
        """Whether it only copies pixels that are already in memory. Stored windows would only duplicate them."""
        return False

    @abstractmethod
    def writes(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
        """Whether it can write regions of a tensor whose windows have this size and lie side by side, from 0 on."""

    @abstractmethod
    def write(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Write the pixels from `start` on into `out`. They must have the same bits as in windows.

        `out` is contiguous, has the dtype and the device of the tensor, and lies entirely within the tensor.
        """
