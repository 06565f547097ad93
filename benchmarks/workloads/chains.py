"""Tensors that are computed from other tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from infinite_tensor import InfiniteTensor, TensorWindow

from . import functions, loops
from .reading import plane, timed_fill
from .stage import Stage

EXTENT = 1024
WINDOW = 64
STEPS = 5
HALO = 2
BATCH = 16

_ACROSS = EXTENT // WINDOW
CALLS_OF_CHAIN = sum((_ACROSS + 2 * step) ** 2 for step in range(STEPS + 1))
"""A window with a halo needs all windows around it, in each step."""


def step(
    store: Any, name: str, function: Callable[..., Any], args: Sequence[InfiniteTensor], halo: int, **options: Any
) -> InfiniteTensor:
    """A tensor of which each window is computed from the same window of each arg, with a halo."""
    window = TensorWindow((WINDOW, WINDOW))
    region = TensorWindow((WINDOW + 2 * halo,) * 2, stride=(WINDOW, WINDOW), offset=(-halo, -halo))
    return InfiniteTensor(
        (None, None),
        function,
        window,
        args=tuple(args),
        args_windows=(region,) * len(args),
        tile_store=store,
        tensor_id=name,
        **options,
    )


def chain(stage: Stage) -> None:
    """Six tensors, each but the first from the one before, with a halo; per call of f."""
    store = stage.store()
    tensor = plane(store, functions.patterned(WINDOW, WINDOW), WINDOW)
    for number in range(STEPS):
        tensor = step(store, f"step-{number}", functions.shifted, [tensor], HALO)
    pixels = timed_fill(stage, store, lambda: tensor[0:EXTENT, 0:EXTENT], per=CALLS_OF_CHAIN)
    assert torch.equal(pixels, _chained())


def chain_floor(stage: Stage) -> None:
    """The same calls on planes in memory."""
    pixels = stage.timed(_chained, per=CALLS_OF_CHAIN)
    # The corner of the last step is a corner of the first, as far away as all steps shift it.
    margin = STEPS * WINDOW
    base = _base(margin)
    assert pixels[0, 0] == base[margin - STEPS * HALO, margin + STEPS * HALO]


def _chained() -> torch.Tensor:
    pixels = _base(STEPS * WINDOW)
    for _ in range(STEPS):
        pixels = loops.stepped(functions.shifted, pixels, WINDOW, HALO)
    return pixels


def diamond(stage: Stage) -> None:
    """Five tensors: three from the first, with a halo, and the last from these three."""
    store = stage.store()
    base = plane(store, functions.patterned(WINDOW, WINDOW), WINDOW)
    branches = [step(store, f.__name__, f, [base], HALO) for f in _BRANCHES]
    tensor = step(store, "joined", functions.joined, branches, 0)
    pixels = timed_fill(stage, store, lambda: tensor[0:EXTENT, 0:EXTENT])
    assert torch.equal(pixels, _joined())


_BRANCHES = functions.shifted, functions.doubled, functions.mirrored


def diamond_floor(stage: Stage) -> None:
    """The same calls on planes in memory."""
    stage.timed(_joined)


def _joined() -> torch.Tensor:
    base = _base(WINDOW)
    branches = [loops.stepped(function, base, WINDOW, HALO) for function in _BRANCHES]
    result = torch.empty(EXTENT, EXTENT)
    for top in range(0, EXTENT, WINDOW):
        for left in range(0, EXTENT, WINDOW):
            part = slice(top, top + WINDOW), slice(left, left + WINDOW)
            result[part] = functions.joined((top // WINDOW, left // WINDOW), *[branch[part] for branch in branches])
    return result


def convolution(stage: Stage) -> None:
    """Batches of 16 windows through two convolutions."""
    store = stage.store()
    base = plane(store, functions.patterned(WINDOW, WINDOW), WINDOW)
    tensor = step(store, "convolved", functions.convolved, [base], HALO, batch_size=BATCH)
    pixels = timed_fill(stage, store, lambda: tensor[0:EXTENT, 0:EXTENT])
    # A network may give other last bits in a batch of another composition.
    torch.testing.assert_close(pixels, _convolved())


def convolution_floor(stage: Stage) -> None:
    """The same batches on a plane in memory."""
    stage.timed(_convolved)


def _convolved() -> torch.Tensor:
    result = torch.empty(EXTENT, EXTENT)
    found = loops.regions(_base(WINDOW), WINDOW, HALO)
    for begin in range(0, len(found), BATCH):
        windows, regions = zip(*found[begin : begin + BATCH], strict=True)
        for (row, column), pixels in zip(windows, functions.convolved(windows, regions), strict=True):
            top, left = row * WINDOW, column * WINDOW
            result[top : top + WINDOW, left : left + WINDOW] = pixels
    return result


def _base(margin: int) -> torch.Tensor:
    return loops.blended(functions.patterned(WINDOW, WINDOW), 2, -margin, EXTENT + margin, WINDOW, WINDOW)
