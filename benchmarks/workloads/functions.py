"""Functions that compute windows. Each returns a fresh tensor at every call, and the same one for the same window.

They are made once per process, so that a store that is opened again meets the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch

Window = tuple[int, ...]
Function = Callable[[Window], torch.Tensor]

_KINDS = 7
"""Windows that differ, so that one in the place of another is noticed."""

_SEED = 20


@cache
def patterned(*size: int) -> Function:
    """Windows of small integers: sums of them are exact in any order."""
    return _cycle(torch.randint(0, 256, (_KINDS, *size), generator=_dice()).float())


@cache
def noisy(*size: int) -> Function:
    """Windows of random floats, which hardly compress."""
    return _cycle(torch.rand(_KINDS, *size, generator=_dice()))


@cache
def flat(*size: int) -> Function:
    """Windows of one number each, which compress to almost nothing."""
    return _cycle(torch.arange(_KINDS).reshape(-1, *[1] * len(size)).expand(_KINDS, *size).float())


@cache
def heavy(extent: int, products: int) -> Function:
    """Windows that take long: a chain of matrix products."""
    matrices = torch.rand(_KINDS, extent, extent, generator=_dice())

    def product(window: Window) -> torch.Tensor:
        matrix = matrices[_kind(window)]
        result = matrix
        for _ in range(products):
            result = (result @ matrix) / extent
        return result

    return product


def shifted(_window: Window, region: torch.Tensor) -> torch.Tensor:
    """What lies up and to the right, out of a region with a halo of 2."""
    return region[:-4, 4:].clone()


def mirrored(_window: Window, region: torch.Tensor) -> torch.Tensor:
    """What lies down and to the left, out of a region with a halo of 2."""
    return region[4:, :-4].clone()


def doubled(_window: Window, region: torch.Tensor) -> torch.Tensor:
    """The middle of a region with a halo of 2, times 2."""
    return region[2:-2, 2:-2] * 2


def joined(_window: Window, left: torch.Tensor, middle: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Three regions as one."""
    return left + middle - right


torch.manual_seed(_SEED)
_NETWORK = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 1, 3))


def convolved(_windows: Sequence[Window], regions: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A batch of regions with a halo of 2 through two convolutions."""
    with torch.no_grad():
        return list(_NETWORK(torch.stack(list(regions))[:, None])[:, 0].unbind())


def _cycle(kinds: torch.Tensor) -> Function:
    def window_of(window: Window) -> torch.Tensor:
        return kinds[_kind(window)].clone()

    return window_of


def _kind(window: Window) -> int:
    return (3 * window[0] + window[-1]) % _KINDS


def _dice() -> torch.Generator:
    return torch.Generator().manual_seed(_SEED)
