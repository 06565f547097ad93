"""Calls without gradients, after which torch computes them as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def without_gradients(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function returns under `torch.no_grad`.

    A Ctrl-C between what `torch.no_grad` does first and the ``with`` that would undo it leaves the thread without
    gradients: so the mode is set again here.
    """
    mode = torch.is_grad_enabled()
    try:
        with torch.no_grad():
            return function(*args, **kwargs)
    finally:
        torch.set_grad_enabled(mode=mode)


def outside_inference_mode(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function returns that makes tensors which are written to later, perhaps outside of the caller's mode.

    A Ctrl-C does not leave the thread in another mode either.
    """
    before, mode = torch.is_inference_mode_enabled(), torch.inference_mode(mode=False)
    try:
        with mode:
            return function(*args, **kwargs)
    finally:
        if torch.is_inference_mode_enabled() != before:
            mode.__exit__(None, None, None)
