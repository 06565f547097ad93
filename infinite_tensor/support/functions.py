"""Functions that compute windows: what an ``f`` of this library may be beyond one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch


class Unmovable(ABC):
    """Returns windows of one dtype on one device, so that its tensor cannot be moved to others."""

    @abstractmethod
    def instead(self, dtype: torch.dtype, device: torch.device) -> str:
        """What users do rather than to move its tensor there, for a message."""


class Calling(ABC):
    """Calls functions of a user; other values of these than those that are stored are an error, not a warning.

    Attributes
    ----------
    told : bool
        Whether a user has said, by a version, what it calls, as far as that cannot be seen.
    stored : bool
        Whether what it computes is to be found again, so that it matters what it calls.
    looked : Reach or None
        What it was found to reach before it was called, if it may have been called by now.
    """

    told = True
    stored = True
    looked: Any = None

    @abstractmethod
    def _reaches(self) -> Mapping[str, object]:
        """The functions, by what messages call them, and what else decides what they are given."""


class RegionWriter(Unmovable):
    """Can write any region of its tensor, and needs no windows for that.

    A read of what is not in memory then computes just the pixels that are asked for, and nothing is kept of them. What
    other tensors read, streams and fills take its windows, as those of any ``f``; so does a read on several threads.
    Nothing does if it `copies`.

    Attributes
    ----------
    meaning : Meaning or None
        What is known of the pixels beside their values.
    """

    meaning: Any = None

    @property
    def copies(self) -> bool:
        """Whether it only copies what lies in memory, so that to keep windows would be to hold pixels twice."""
        return False

    @abstractmethod
    def writes(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
        """Whether it does for a tensor of windows of this size, side by side from 0 on."""

    @abstractmethod
    def write(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Write the pixels from `start` on into `out`, with the bits that they have in windows.

        `out` is contiguous, of the dtype and on the device of the tensor, and all of it lies in the tensor.
        """
