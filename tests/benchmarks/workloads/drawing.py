"""Random numbers that belong to places, read anywhere; they run in the environment of this repository."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch

from infinite_tensor import noise

from .stage import Stage

PIXELS = 2**21
"""Of all reads together."""
FAR = 10**9


def uniform(stage: Stage) -> None:
    """Squares of uniform numbers at random places, which no other read has come near."""
    _draw(stage, "uniform")


def normal(stage: Stage) -> None:
    """The same of normal numbers."""
    _draw(stage, "normal")


def uniform_floor(stage: Stage) -> None:
    """As many uniform numbers of one generator of numpy, one after the other."""
    generator = np.random.Generator(np.random.Philox(3))
    _repeat(stage, lambda: generator.random((stage.size, stage.size), np.float32))


def normal_floor(stage: Stage) -> None:
    """The same of normal numbers."""
    generator = np.random.Generator(np.random.Philox(3))
    _repeat(stage, lambda: generator.standard_normal((stage.size, stage.size), np.float32))


def _draw(stage: Stage, kind: Literal["uniform", "normal"]) -> None:
    tensor, side, dice = noise((None, None), seed=3, kind=kind), stage.size, random.Random(0)  # noqa: S311  (some places)

    def read() -> tuple[tuple[slice, slice], torch.Tensor]:
        y, x = dice.randrange(-FAR, FAR), dice.randrange(-FAR, FAR)
        region = slice(y, y + side), slice(x, x + side)
        return region, tensor[region]

    _repeat(stage, read)
    region, pixels = read()
    # By the other way to it, windows.
    ((expected,),) = tensor.iter_regions([region])
    assert torch.equal(pixels, expected)


def _repeat(stage: Stage, draw: Callable[[], object]) -> None:
    count = PIXELS // stage.size**2

    def repeated() -> None:
        for _ in range(count):
            draw()

    stage.timed(repeated, per=count, rounds=5)
