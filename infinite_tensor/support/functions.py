"""Base classes for an ``f`` of this library that can do more than compute windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch


class Unmovable(ABC):
    """An ``f`` that returns one dtype on one device only, so that its tensor cannot be moved to others."""

    @abstractmethod
    def instead(self, dtype: torch.dtype, device: torch.device) -> str:
        """Return the advice for users who try to move its tensor, for a message."""


class Calling(ABC):
    """An ``f`` that calls functions of a user.

    If values that these use differ from those that stored pixels were computed with, that is an error; for another
    ``f`` it is a warning.

    Attributes
    ----------
    told : bool
        Whether the user has identified, by a version, what it calls, as far as that cannot be inspected.
    stored : bool
        Whether its results are stored to be found again, so that it matters what it calls.
    looked : Reach or None
        What it reached before its first call; None if that could not be inspected.
    """

    told = True
    stored = True
    looked: Any = None

    @abstractmethod
    def _reaches(self) -> Mapping[str, object]:
        """Return the functions, by their names in messages, and all else that determines their arguments."""


class RegionWriter(Unmovable):
    """An ``f`` that can write any region of its tensor without computing windows.

    A read of pixels that are not in memory computes just these pixels, and keeps none of them. Reads by other tensors,
    streams, fills and reads on several threads use its windows, as those of any ``f``, unless it `copies`.

    Attributes
    ----------
    meaning : Meaning or None
        The metadata of the pixels.
    """

    meaning: Any = None

    @property
    def copies(self) -> bool:
        """Whether it only copies pixels that are in memory, so that storing windows would keep them twice."""
        return False

    @abstractmethod
    def writes(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
        """Whether it can write regions of a tensor with windows of this size, side by side from 0 on."""

    @abstractmethod
    def write(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Write the pixels from `start` on into `out`, bit for bit as in windows.

        `out` is contiguous, has the dtype and the device of the tensor, and lies entirely within the tensor.
        """
