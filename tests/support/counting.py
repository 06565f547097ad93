"""An ``f`` that notes what it is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.support.elsewhere import Elsewhere
from tests.support.reference import Index


@dataclass(frozen=True)
class Constant:
    """An ``f`` whose windows are full of 100 times their first index plus their second."""

    size: Index = (4, 4)

    def __call__(self, ctx: Index) -> torch.Tensor:
        """The window at `ctx`."""
        return torch.full(self.size, 100.0 * ctx[0] + ctx[1])


class Counted:
    """Computes what `f` does, and notes which windows it is asked for.

    Parameters
    ----------
    f : callable
        Of one window; a batch is computed window by window.
    told : callable, optional
        Called with each window before it is computed.

    Attributes
    ----------
    calls : list of tuple of int
        The windows, in the order of the calls.
    batches : list of int
        How many windows each batch had.
    """

    # Who listens is no part of what is computed.
    _told: Elsewhere[Callable[[Index], object] | None] = Elsewhere()

    def __init__(self, f: Callable[..., Any] = Constant(), told: Callable[[Index], object] | None = None) -> None:
        self.f = f
        self.calls: list[Index] = []
        self.batches: list[int] = []
        self._told = told

    @property
    def counts(self) -> Counter[Index]:
        """How often it was asked for each window."""
        return Counter(self.calls)

    def __call__(self, ctx: Any, *regions: Any) -> Any:
        """A window, or a list of those of a batch."""
        if isinstance(ctx, list):
            self.batches.append(len(ctx))
            return [self(index, *each) for index, *each in zip(ctx, *regions, strict=True)]
        # Appending is safe on any number of threads.
        self.calls.append(ctx)
        if self._told is not None:
            self._told(ctx)
        return self.f(ctx, *regions)
