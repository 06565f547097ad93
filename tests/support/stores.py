"""Cases that a test runs on by default, and those that are slow: stores in memory and in Zarr stand for all stores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sample(cases: Iterable[Any], *default: Any) -> list[Any]:
    """The cases as parameters, of which all are slow but those in `default`: by default memory and Zarr."""
    default = default or ("memory", "zarr")
    return [pytest.param(case, marks=() if case in default else pytest.mark.slow) for case in cases]
