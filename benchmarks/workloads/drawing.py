"""Random numbers that belong to places, read anywhere; they run in the environment of this repository."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch

from infinite_tensor import noise

from .stage import Stage

PIXELS = 2**21
"""Of all reads together."""
FAR = 10**9


def _draw(stage: Stage, kind: Literal["uniform", "normal"]) -> None:
    """Squares of numbers at random places, which no other read has come near."""
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


def _draw_by_numpy(stage: Stage, kind: str) -> None:
    """As many numbers of one generator, one after the other."""
    draw = getattr(np.random.Generator(np.random.Philox(3)), {"uniform": "random", "normal": "standard_normal"}[kind])
    _repeat(stage, lambda: draw((stage.size, stage.size), np.float32))


def _repeat(stage: Stage, draw: Callable[[], object]) -> None:
    count = PIXELS // stage.size**2

    def repeated() -> None:
        for _ in range(count):
            draw()

    stage.timed(repeated, per=count, rounds=5)


uniform, normal = partial(_draw, kind="uniform"), partial(_draw, kind="normal")
uniform_floor, normal_floor = partial(_draw_by_numpy, kind="uniform"), partial(_draw_by_numpy, kind="normal")
