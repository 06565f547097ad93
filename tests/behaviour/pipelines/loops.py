"""The loop over the windows of a picture that `predict` is compared with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import torch

Sizes = tuple[int, ...]


def gaussian(size: Sequence[int], scale: float = 0.125) -> torch.Tensor:
    weights = torch.ones(())
    for n in size:
        at = torch.arange(-(n - 1) / 2, (n - 1) / 2 + 1)
        weights = weights.unsqueeze(-1) * torch.exp(at**2 / (-2 * (n * scale) ** 2))
    return weights.clamp(min=max(weights.min().item(), 1e-3))


def looped(
    net: Callable[[torch.Tensor], torch.Tensor],
    picture: torch.Tensor,
    window: Sizes,
    stride: Sizes,
    scale: Fraction = Fraction(1),
    weigh: Callable[[Sizes], torch.Tensor] = gaussian,
) -> torch.Tensor:
    """What it makes of a picture, channels first: padded at its far ends, given in batches of 4, and blended."""
    extents = picture.shape[1:]
    counts = [max(0, math.ceil((e - n) / s)) + 1 for e, n, s in zip(extents, window, stride, strict=True)]
    more = [(c - 1) * s + n - e for c, s, n, e in zip(counts, stride, window, extents, strict=True)]
    padded = torch.from_numpy(np.pad(picture.numpy(), [(0, 0), *[(0, max(0, m)) for m in more]], mode="reflect"))
    whole = [math.ceil(n * scale) for n in padded.shape[1:]]
    weights, summed, divisor = weigh(tuple(int(n * scale) for n in window)), None, torch.zeros(whole)
    for index in itertools.product(*map(range, counts)):
        places = [(i * s, i * s + n) for i, s, n in zip(index, stride, window, strict=True)]
        read, place = tuple(slice(*ends) for ends in places), tuple(slice(*(int(e * scale) for e in p)) for p in places)
        with torch.no_grad():
            scores = net(padded[(slice(None), *read)].expand(4, -1, *window).clone())[0].clone()
        if summed is None:
            summed = torch.zeros(len(scores), *whole)
        blended = summed[(slice(None), *place)] + scores * weights
        summed[(slice(None), *place)] = torch.where(divisor[place] == 0, scores * weights, blended)
        divisor[place] += weights
    assert summed is not None
    return (summed / divisor)[(slice(None), *[slice(0, math.ceil(n * scale)) for n in extents])]
