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
        """Return advice for an error message: how to get pixels of this `dtype` on this `device` instead."""


class Calling(ABC):
    """An ``f`` that calls functions of a user.

    If a value that one of these functions uses has changed since pixels were stored, an error is raised. For any other
    ``f``, only a warning is issued.

    Attributes
    ----------
    told : bool
        Whether the user has given a `version` for these functions.
    stored : bool
        Whether results are stored for later runs. If not, changes of these functions do not matter.
    looked : Reach or None
        The code and values that these functions use, looked up before their first call. None if not looked up.
    """

    told = True
    stored = True
    looked: Any = None

    @abstractmethod
    def _reaches(self) -> Mapping[str, object]:
        """Return the user's functions and settings, such as the batch size. The keys are their names in messages."""


class RegionWriter(Unmovable):
    """An ``f`` that can write any region of its tensor without computing windows.

    In a memory store, a read on one thread calls `write` and stores nothing. If `copies` is True, windows of a
    memory store are never computed. In all other cases, windows are computed as for any other ``f``.

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
        """Whether `write` works for a tensor with windows of this `size`, `dtype` and `device`.

        Call this only if the windows lie side by side and begin at pixel 0.
        """

    @abstractmethod
    def write(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on. They must have the same bits as the pixels of windows.

        `out` is contiguous, has the dtype and the device of the tensor, and lies entirely within the tensor.
        """
