"""Values of pixels as colours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

RAMP = ("#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")
"""The colours of matplotlib's viridis, from the lowest value to the highest."""
_ANCHORS = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in RAMP], np.float64)
_PERCENTILES = (2, 98)


def as_reals(values: npt.NDArray[np.generic]) -> FloatArray:
    """Values as real numbers: of complex ones how large they are."""
    return np.abs(values).astype(np.float64) if np.iscomplexobj(values) else values.astype(np.float64)


def contrast(values: FloatArray) -> tuple[float, float]:
    """From which value to which colours should run; from 0 to 1 where there is no finite one."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    low, high = (float(bound) for bound in np.percentile(finite, _PERCENTILES))
    # Where nearly all values are the same, the few others are what there is to see.
    return (low, high) if low < high else (float(finite.min()), float(finite.max()))


def scaled(values: FloatArray, low: float, high: float) -> FloatArray:
    """Values between 0 and 1; in the middle where there is only one."""
    if low == high:
        return np.where(np.isnan(values), np.nan, 0.5)
    # Half of each, as the largest floats lie too far apart.
    return np.clip((values / 2 - low / 2) / (high / 2 - low / 2), 0, 1)


def ramp(levels: FloatArray) -> npt.NDArray[np.uint8]:
    """Levels from 0 to 1 as RGBA; one that is not a number is transparent."""
    known = ~np.isnan(levels)
    at = np.where(known, levels, 0) * (len(_ANCHORS) - 1)
    places = np.arange(len(_ANCHORS))
    colours = [np.interp(at, places, _ANCHORS[:, part]).round() for part in range(3)]
    return np.stack([*colours, np.where(known, 255, 0)], axis=-1).astype(np.uint8)


def as_colours(values: npt.NDArray[np.generic]) -> FloatArray:
    """Three channels, the last dimension, as colours from 0 to 1: as they are where they may be, else with contrast."""
    reals = as_reals(values)
    if values.dtype == np.uint8:
        return reals / 255
    finite = reals[np.isfinite(reals)]
    low, high = (0.0, 1.0) if not finite.size or (finite.min() >= 0 and finite.max() <= 1) else contrast(reals)
    return scaled(reals, low, high)
