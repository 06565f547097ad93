"""Conversion of pixels to colours.

Labels are coloured by a palette, and other numbers by a scale. Three channels are red, green and blue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from infinite_tensor.values.meaning import Meaning, PixelCode

Array = npt.NDArray[Any]

MOST_LABELS = 20
"""The number of labels with their own colour."""
PALETTE = bytes.fromhex(
    "1f77b4aec7e8ff7f0effbb782ca02c98df8ad62728ff98969467bdc5b0d58c564bc49c94e377c2f7b6d27f7f7fc7c7c7bcbd22dbdb8d17becf9edae5"
)
"""The red, green and blue of each label, from matplotlib's colour map tab20."""
_MOST_GIVEN = 2**12
_UNKNOWN = 128
"""Grey for labels without a colour."""


class Labels(NamedTuple):
    """The colours and the names of labels.

    Attributes
    ----------
    colours : numpy.ndarray of uint8
        The red, green and blue of each label, of shape (N, 3).
    names : mapping of int to str
        The names of labels that have one.
    is_given : bool
        Whether the tensor has these colours, so that all its pixels are labels.
    """

    colours: Array
    names: Mapping[int, str]
    is_given: bool

    @classmethod
    def of(cls, meaning: Meaning | None) -> Labels:
        """Return the labels of a tensor: its own, from `describe` or a raster with a palette, or those of tab20."""
        codes = {} if meaning is None else {code.called: code.value for code in meaning.of(PixelCode)}
        entries = [entry for entry in codes.get("colour map", ()) if 0 <= entry[0] < _MOST_GIVEN]
        if not entries:
            return cls(np.frombuffer(PALETTE, np.uint8).reshape(-1, 3), {}, is_given=False)
        colours = np.full((max(entry[0] for entry in entries) + 1, 3), _UNKNOWN, np.uint8)
        for value, *colour in entries:
            colours[value] = colour[:3]
        names = [each.replace("_", " ") for each in str(codes.get("flag_meanings", "")).split()]
        return cls(colours, dict(zip(codes.get("flag_values", ()), names, strict=False)), is_given=True)

    def fit(self, values: Array) -> bool:
        """Whether pixels are labels."""
        return self.is_given or are_labels(values)


def magnitudes(values: Array) -> Array:
    """Return complex numbers as absolute values, and others as they are."""
    return np.abs(values) if np.iscomplexobj(values) else values


def are_labels(values: Array) -> bool:
    """Whether pixels are labels: integers from 0 to 19."""
    return values.dtype.kind in "iu" and (not values.size or (values.min() >= 0 and values.max() < MOST_LABELS))


def range_of(parts: Iterable[Array]) -> tuple[float, float] | None:
    """Return the smallest and the largest finite number in some arrays.

    Return None if there are no finite numbers.
    """
    finite = [part[np.isfinite(part)] for part in parts]
    ends = [(float(part.min()), float(part.max())) for part in finite if part.size]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None


def full_range(dtype: np.dtype[Any], *, rgb: bool = False) -> tuple[float, float] | None:
    """Return the ends of the colour scale for a dtype.

    Return None if the ends depend on the pixels.
    """
    if dtype == np.uint8:
        return 0.0, 255.0
    return (0.0, 1.0) if dtype.kind == "b" or (rgb and dtype.kind == "f") else None


def scaled(values: Array, ends: tuple[float, float], most: int = 255) -> Array:
    """Scale values to integers: ``ends[0]`` becomes 0, and ``ends[1]`` becomes the integer `most`.

    Values outside are clipped. NaN becomes 0.
    """
    low, high = ends
    if values.dtype == np.uint8 and (low, high, most) == (0, 255, 255):
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        found = np.clip((values.astype(np.float64) - low) / (high - low or 1.0), 0, 1) * most
    return np.nan_to_num(np.rint(found)).astype(np.uint8)


def rgba(values: Array, ends: tuple[float, float]) -> Array:
    """Return pixels of three channels as red, green, blue and opacity. A pixel with a NaN is transparent."""
    found = np.empty((*values.shape[:2], 4), np.uint8)
    found[..., :3] = scaled(values, ends)
    found[..., 3] = np.where(np.isnan(values).any(-1), 0, 255)
    return found
