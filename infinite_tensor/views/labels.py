"""Numbers of classes, which pictures show in colours of their own."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

MOST_LABELS = 20
"""So many have a colour of their own."""


def are_labels(values: npt.NDArray[Any]) -> bool:
    """Whether pixels are classes: a few whole numbers from 0 on."""
    return values.dtype.kind in "iu" and (not values.size or (values.min() >= 0 and values.max() < MOST_LABELS))
