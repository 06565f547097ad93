"""What has been read, as a file or in figures."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import click
import numpy as np
import torch

from infinite_tensor.cli.output import note, shown_number
from infinite_tensor.support.publishing import publish, synchronize, unfinished_file

SUFFIXES = (".npy", ".png")
_CHANNELS = (1, 3, 4)


def as_array(values: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor as numpy holds it, which has no bfloat16."""
    return (values.float() if values.dtype is torch.bfloat16 else values).numpy()


def figures_of(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The smallest and largest number and the mean of those that are finite, and how many are not."""
    if not values.size or np.iscomplexobj(values):
        return {}
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    found: dict[str, Any] = {}
    if finite.size:
        found = {"min": finite.min().item(), "max": finite.max().item(), "mean": float(finite.mean(dtype=np.float64))}
    return found | ({"not finite": values.size - finite.size} if finite.size < values.size else {})


def save(values: np.ndarray[Any, Any], path: Path, *, labels: bool) -> None:
    """Write an array as NPY, or as a picture to look at; the file is whole, or not there.

    `labels` says that the numbers are known to be labels; small ones are taken for labels anyway.
    """
    if path.suffix.lower() == ".npy":
        _write(path, lambda file: np.save(file, values))
        return
    try:
        from PIL import Image  # noqa: PLC0415  (it comes with an extra)
    except ImportError as error:
        raise ImportError("a PNG needs the package pillow: pip install pillow") from error
    values = _in_rows(values)
    shown_as_labels = _are_labels(values, _MOST_LABELS if labels else _FEW_LABELS)
    picture = Image.fromarray(values.astype(np.uint8) if shown_as_labels else _pixels(values))
    if shown_as_labels:
        picture.putpalette(_palette())
        note(f"each label has a colour: {shown_number(int(values.min()))} to {shown_number(int(values.max()))}")
    _write(path, lambda file: picture.save(file, "PNG"))


def _write(path: Path, write: Callable[[BinaryIO], None]) -> None:
    try:
        with unfinished_file(path) as unfinished:
            with unfinished.open("wb") as file:
                write(file)
            synchronize(unfinished)
            publish(unfinished, path, overwrite=True)
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from error


_FEW_LABELS, _MOST_LABELS = 32, 256
"""Whole numbers below the first are taken for labels; a palette has as many as the second."""


def _are_labels(values: np.ndarray[Any, Any], count: int) -> bool:
    return bool(values.ndim == 2 and values.dtype.kind in "iu" and values.min() >= 0 and values.max() < count)


def _palette() -> bytes:
    """The colours of labels: 0 is black, and hues of neighbours lie far apart, by the golden ratio."""
    hues = [colorsys.hsv_to_rgb(0.618034 * n % 1, 0.85 - 0.35 * (n % 2), 1 - 0.2 * (n % 3)) for n in range(1, 256)]
    return bytes([0, 0, 0, *(round(255 * part) for hue in hues for part in hue)])


def _in_rows(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of rows and columns, with three or four channels last."""
    if values.ndim == 3 and values.shape[0] in _CHANNELS:
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if not values.size or np.iscomplexobj(values) or not (values.ndim == 2 or values.shape[2:] in ((3,), (4,))):
        raise click.UsageError(
            f"a PNG is made of real numbers, in rows and columns with 1, 3 or 4 channels, and the region has shape "
            f"{values.shape}: give an int for other dimensions, or write a .npy file"
        )
    return values


def _pixels(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers as bytes: colours that are bytes as they are, others from black to white."""
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    return np.ascontiguousarray(values) if values.dtype == np.uint8 and values.ndim == 3 else _stretched(values)


def _stretched(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers from the smallest to the largest as bytes from 0 to 255; what is not finite is 0."""
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    low, high = (numbers[finite].min(), numbers[finite].max()) if finite.any() else (0.0, 0.0)
    note(f"black is {shown_number(float(low))}, white is {shown_number(float(high))}")
    return np.where(finite, (numbers - low) * (255 / (high - low or 1)), 0).round().astype(np.uint8)
