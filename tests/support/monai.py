"""What tests beside MONAI share. A module that imports it is skipped where MONAI is not installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

_inferers = pytest.importorskip("monai.inferers", reason="needs the extra monai")


def slid(
    net: Callable[[torch.Tensor], torch.Tensor], image: torch.Tensor, size: Sequence[int], batch_size: int, **how: Any
) -> torch.Tensor:
    """What MONAI makes of an image, channels first; `how` are keyword arguments of `sliding_window_inference`."""
    with torch.inference_mode():
        found: torch.Tensor = _inferers.sliding_window_inference(image[None], tuple(size), batch_size, net, **how)[0]
    return found


def padded(image: torch.Tensor, size: Sequence[int], stride: Sequence[int], mode: Any) -> torch.Tensor:
    """An image, channels first, padded at its far ends until windows fit, so that MONAI moves none inside."""
    extents = image.shape[1:]
    least = [max(0, math.ceil((e - n) / s)) * s + n for e, n, s in zip(extents, size, stride, strict=True)]
    more = [(0, n - e) for e, n in zip(extents, least, strict=True)]
    return torch.from_numpy(np.pad(image.numpy(), [(0, 0), *more], mode=mode))
