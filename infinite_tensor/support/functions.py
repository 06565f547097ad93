"""Base classes for an ``f`` of this library with special abilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch


class FunctionCaller(ABC):
    """An ``f`` calling functions of the user.

    If a value used by these functions has changed since pixels were stored, an error is raised. For any other ``f``,
    only a warning is issued.

    Attributes
    ----------
    told : bool
        Whether the user has given a `version` for these functions.
    stored : bool
        Whether results are stored for later runs. If not, changes of these functions do not matter.
    snapshot : Snapshot
        The code and values used by these functions before the first call.
    """

    told = True
    stored = True
    snapshot: Any = None

    @abstractmethod
    def _reaches(self) -> Mapping[str, object]:
        """Return the functions and values given by the user, for the fingerprint of ``f``.

        Each key is the name to use in messages, as in ``{"net": net}``.
        """


class RegionWriter(ABC):
    """An ``f`` able to write any region of its tensor without computing windows, with a fixed dtype and device.

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
        """Whether pixels are only copied from memory.

        Stored windows would only duplicate such pixels.
        """
        return False

    @abstractmethod
    def instead(self, dtype: torch.dtype, device: torch.device) -> str:
        """Tell how to get pixels of `dtype` on `device`, for an error message."""

    @abstractmethod
    def writes(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
        """Whether `write` works for windows of `size`, `dtype` and `device`.

        Call this only if the windows lie side by side and begin at pixel 0.
        """

    @abstractmethod
    def write(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on.

        The pixels must match the pixels computed by windows, bit for bit. `out` is contiguous, has the dtype and the
        device of the tensor, and lies entirely within the tensor.
        """


class Formula(ABC):
    """An ``f`` able to compute any region of its tensor from regions of the args, not only windows.

    Attributes
    ----------
    is_formula : bool
        Whether regions are computed where they are read, and nothing is kept. If not, windows are computed as for any
        other ``f``.
    is_local : bool
        Whether results are known not to depend on pixels beyond those that a window reads.
    asks : bool
        Whether `over` gets, for each arg, a function ``read(start, size)`` in place of a region. It reads what lies
        under a part of the region, so that only what is asked for is computed.
    """

    is_formula = False
    is_local = False
    asks = False

    @abstractmethod
    def over(self, start: Sequence[int], size: Sequence[int], *regions: Any) -> torch.Tensor:
        """Compute a region of `size` pixels from pixel `start` on, from regions of the args.

        A region of an arg is larger by as much as for a window.
        """
