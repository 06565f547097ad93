"""The PNG writer, read back by pillow."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from infinite_tensor.views.png import png

_RANDOM = np.random.default_rng(1)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 7, 3), (5, 7, 4), (1, 1), (300, 1, 4)])
def test_another_program_reads_what_was_written(shape: tuple[int, ...]) -> None:
    pixels = _RANDOM.integers(0, 256, shape, np.uint8)
    read = np.asarray(Image.open(io.BytesIO(png(pixels))))
    assert np.array_equal(read, pixels.reshape(read.shape))


def test_16_bits() -> None:
    pixels = _RANDOM.integers(0, 2**16, (4, 6), np.uint16)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(pixels)))), pixels)


def test_a_view_with_other_strides() -> None:
    pixels = _RANDOM.integers(0, 256, (6, 8, 3), np.uint8)[::-2, ::3]
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(pixels)))), pixels)
