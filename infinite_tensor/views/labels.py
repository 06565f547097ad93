"""Numbers of classes, which pictures show in colours of their own."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

MOST_LABELS = 20
"""So many have a colour of their own."""
COLOURS = bytes.fromhex(
    "1f77b4aec7e8ff7f0effbb782ca02c98df8ad62728ff98969467bdc5b0d58c564bc49c94e377c2f7b6d27f7f7fc7c7c7bcbd22dbdb8d17becf9edae5"
)
"""The red, green and blue of each: those of matplotlib's map tab20."""


def are_labels(values: npt.NDArray[Any]) -> bool:
    """Whether pixels are classes: a few whole numbers from 0 on."""
    return values.dtype.kind in "iu" and (not values.size or (values.min() >= 0 and values.max() < MOST_LABELS))
