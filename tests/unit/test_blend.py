"""Folding windows into pixels: inside, since which rows are folded together shows in no pixel, unless it is wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import TensorWindow, ValidationError
from infinite_tensor.geometry.window import WindowGrid
from infinite_tensor.support.allocation import as_array
from infinite_tensor.values.blend import Blender
from tests.support.blends import BLENDS, CASES, alone


def test_a_sum_keeps_negative_zero_and_nan_payloads() -> None:
    blender = Blender(WindowGrid(TensorWindow((2,), stride=1), (3,)), torch.float32, None, None)
    odd = np.array([0x80000000, 0x7FC12345], dtype=np.uint32).view(np.float32)
    target = np.zeros(2, dtype=np.float32)
    blender.fold(target, (0,), odd, (0,), (0,))
    assert target.view(np.uint32).tolist() == [0x80000000, 0x7FC12345]


def test_a_blend_may_write_into_its_arguments() -> None:
    def careless(existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        return existing.copy_(incoming.mul_(2))

    blender = Blender(WindowGrid(TensorWindow((2,)), (None,)), torch.float32, careless, None)
    window = np.ones(2, dtype=np.float32)
    target = np.zeros(2, dtype=np.float32)
    blender.fold(target, (0,), window, (0,), (0,))
    assert target.tolist() == [2, 2]
    assert window.tolist() == [1, 1]


def halved(existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    return existing / 2 + incoming


@st.composite
def folds(draw: st.DrawFn) -> tuple[WindowGrid, list[int], list[int]]:
    """The windows of a tensor, and a region of it."""
    ndim = draw(st.integers(1, 3))
    size, stride, offset = (draw(st.tuples(*[st.integers(*limits)] * ndim)) for limits in ((1, 6), (1, 7), (-3, 3)))
    followed = draw(st.none() | st.tuples(*[st.sampled_from([*range(ndim), None])] * ndim))
    shape = draw(st.tuples(*[st.none() | st.integers(6, 20)] * ndim))
    start = [draw(st.integers(0, 9 if n is None else n - 1)) for n in shape]
    stop = [draw(st.integers(a + 1, a + 14 if n is None else n)) for a, n in zip(start, shape, strict=True)]
    return WindowGrid(TensorWindow(size, stride, offset, followed), shape), start, stop


@given(
    folds(),
    st.sampled_from([(None, None), (None, 0), (torch.maximum, -1), (halved, 0.25), ("first", None), ("last", -1)]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.data(),
)
def test_a_row_of_windows_is_folded_as_one_after_the_other(
    fold: tuple[WindowGrid, list[int], list[int]], blend: tuple[Any, Any], dtype: torch.dtype, data: st.DataObject
) -> None:
    grid, start, stop = fold
    blender = Blender(grid, dtype, *blend)
    low, high = grid.box(start, stop)
    windows = {
        index: torch.randn(grid.window.size, generator=torch.Generator().manual_seed(number)).to(dtype)
        for number, index in enumerate(itertools.product(*map(range, low, high)))
    }
    one_by_one, by_rows = (
        torch.zeros([b - a for a, b in zip(start, stop, strict=True)], dtype=dtype) for _ in range(2)
    )
    for target in (one_by_one, by_rows):
        blender.prepare(as_array(target), start)
    for index, window in windows.items():
        blender.fold(as_array(one_by_one), start, as_array(window), grid.window.start(index), index)
    for lead in itertools.product(*map(range, low[:-1], high[:-1])):
        last = low[-1]
        while last < high[-1]:
            count = data.draw(st.integers(1, high[-1] - last))
            row = torch.stack([windows[*lead, last + i] for i in range(count)])
            blender.fold_row(as_array(by_rows), start, as_array(row), (*lead, last))
            last += count
    assert torch.equal(one_by_one.view(torch.uint8), by_rows.view(torch.uint8))


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """So many threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_pixel_is_blended_alike_wherever_in_a_block_it_lies(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    existing, incoming = (torch.randn(61, dtype=dtype, generator=generator) * 2 for _ in range(2))
    # Of these the sign is easily lost.
    existing[0], incoming[0], existing[1], incoming[1] = 0.0, -0.0, -0.0, 0.0
    expected = alone(BLENDS[name], existing, incoming)
    for size, first in itertools.product([(1,), (7, 9), (3, 64), (5, 11, 17), (190, 180)], [0, 1, 30]):
        pixels = (torch.arange(math.prod(size)) + first) % len(existing)
        # A part of a larger block, as most are.
        target = torch.zeros([extent + 3 for extent in size], dtype=dtype)
        part = target[tuple([slice(extent) for extent in size])]
        part[...] = existing[pixels].reshape(size)
        blender = Blender(WindowGrid(TensorWindow(size), (None,) * len(size)), dtype, BLENDS[name], 0)
        origin = (0,) * len(size)
        blender.fold(as_array(part), origin, as_array(incoming[pixels].reshape(size)), origin, origin)
        assert torch.equal(part.flatten().view(torch.uint8), expected[pixels].view(torch.uint8)), (size, first)


def test_what_a_blend_of_a_large_block_returns_is_checked_to_the_end() -> None:
    def fickle(existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        return existing + incoming if len(existing) == 16384 else existing.double()

    blender = Blender(WindowGrid(TensorWindow((300, 220)), (None, None)), torch.float32, fickle, None)
    target = np.zeros((300, 220), dtype=np.float32)
    with pytest.raises(ValidationError, match="float64"):
        blender.fold(target, (0, 0), np.ones((300, 220), dtype=np.float32), (0, 0), (0, 0))
    assert not target.any()
