"""Code that torch compiles. A module that uses it has the fixture too: ``fresh = compiling.fresh``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing that another test has compiled."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is traced into one graph; generating code takes seconds, and a compiler."""
    return torch.compile(function, fullgraph=True, backend="aot_eager")
