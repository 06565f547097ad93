"""Blends of two tensors in which rounding plays a part, and their values for one pixel at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

Blend: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)


def sigmoid_mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """More of `b` where `b` is large."""
    weight = torch.sigmoid(b)
    return a * (1 - weight) + b * weight


BLENDS: dict[str, Blend] = {
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "pow": lambda a, b: torch.pow(a.abs() + 0.5, b),
    "sigmoid": sigmoid_mean,
    "add with alpha": lambda a, b: torch.add(a, b, alpha=0.3),
    "sub with alpha": lambda a, b: torch.sub(a, b, alpha=0.7),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "geometric mean": lambda a, b: torch.sqrt(a.abs() * b.abs()),
    "exp": lambda a, b: torch.exp(a - b),
    "log": lambda a, b: torch.log(a.abs() + b.abs() + 0.1),
    "tanh": lambda a, b: torch.tanh(a * b),
    "sin": lambda a, b: torch.sin(a) + torch.cos(b),
    "erf": lambda a, b: torch.erf(a) - b,
    "divide": lambda a, b: a / (b * b + 0.1),
    "remainder": lambda a, b: torch.remainder(a, b.abs() + 0.1),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.3),
    "softplus": lambda a, b: torch.nn.functional.softplus(a + b),
    "gelu": lambda a, b: torch.nn.functional.gelu(a) + b,
    "sum": torch.add,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
}

OF_COMPLEX = ("pow", "add with alpha", "sub with alpha", "lerp", "exp", "tanh", "sin", "divide", "sum")

CASES = [(name, dtype) for name in BLENDS for dtype in (*REAL, *(COMPLEX if name in OF_COMPLEX else ()))]


def alone(blend: Blend, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``blend(a, b)`` for each pixel of two flat blocks by itself: in a block of 64 that holds nothing else."""
    return torch.cat([blend(a[i].repeat(64), b[i].repeat(64))[:1] for i in range(len(a))])
