"""What an arg window is given beyond the ends of a finite arg: what `numpy.pad` would put there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    TensorWindow,
    ValidationError,
    sl,
)
from infinite_tensor.errors import RegionError
from tests.support.building import built
from tests.support.counting import Counted
from tests.support.reference import Index

MODES = ("edge", "reflect", "symmetric", "wrap")


def image(shape: Index, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Pixels that differ, as far as the dtype has so many values."""
    numbers = torch.arange(1, int(np.prod(shape)) + 1).reshape(shape)
    return (numbers % 2 == 0) if dtype is torch.bool else numbers.to(dtype)


def source(pixels: torch.Tensor, size: Index | None = None, **options: Any) -> InfiniteTensor:
    """A tensor of these pixels, in windows of some size."""
    window = TensorWindow(size or tuple(pixels.shape))

    def f(ctx: Index) -> torch.Tensor:
        return pixels[tuple(slice(b.start, b.stop) for b in window.get_bounds(ctx))]

    return built(Counted(f), window, shape=tuple(pixels.shape), dtype=pixels.dtype, **options)


def given_to_f(arg: InfiniteTensor, window: TensorWindow, padding: object, ctx: Index) -> torch.Tensor:
    """The region of one window."""
    seen: list[torch.Tensor] = []

    def f(_ctx: Index, region: torch.Tensor) -> torch.Tensor:
        seen.append(region)
        return torch.zeros([1] * len(ctx))

    shape: tuple[None, ...] = (None,) * len(ctx)
    t = built(f, (1,) * len(ctx), (arg, window), shape=shape, args_padding=padding)
    t[ctx]
    return seen[0]


def padded(pixels: npt.NDArray[Any], modes: list[str | tuple[str, Any]], before: Index, after: Index) -> Any:
    """`numpy.pad`, dimension by dimension, those that are constant last."""
    order = sorted(range(pixels.ndim), key=lambda d: isinstance(modes[d], tuple))
    for d in order:
        width = [(0, 0)] * pixels.ndim
        mode: Any = modes[d]
        width[d] = before[d], after[d]
        if isinstance(mode, tuple):
            pixels = np.pad(pixels, width, "constant", constant_values=mode[1])
        else:
            pixels = np.pad(pixels, width, mode)
    return pixels


Case = tuple[Index, list[str | tuple[str, Any]], Index, Index]
"""The shape of an image and its paddings; where a window begins, and its size."""


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    known: list[str | tuple[str, Any]] = [*MODES, ("constant", 0), ("constant", -3)]
    modes = [draw(st.sampled_from(known)) for _ in range(ndim)]
    start = tuple(draw(st.integers(-17, 17)) for _ in range(ndim))
    size = tuple(draw(st.integers(1, 12)) for _ in range(ndim))
    return shape, modes, start, size


@given(_cases())
def test_it_is_what_numpy_pads(case: Case) -> None:
    shape, modes, start, size = case
    pixels = image(shape)
    before, after = (30,) * len(shape), (30,) * len(shape)
    whole = torch.from_numpy(padded(pixels.numpy(), modes, before, after))
    expected = whole[tuple(slice(a + 30, a + 30 + n) for a, n in zip(start, size, strict=True))]
    arg = source(pixels, (1,) * len(shape))
    region = given_to_f(arg, TensorWindow(size, offset=start), [tuple(modes)], (0,) * len(shape))
    assert torch.equal(region, expected)


def test_a_plan_asks_for_the_pixels_that_stand_there_and_no_others() -> None:
    arg = source(torch.arange(20.0), (1,))
    around = TensorWindow((4,), stride=(4,), offset=(-2,))
    t = built(lambda _ctx, r: r, 4, (arg, around), shape=(20,), args_padding="wrap")
    assert [tensor.needed for tensor in t.plan(sl[0:4]).tensors] == [4, 1]
    assert t[0:4].tolist() == [18, 19, 0, 1]
    assert sorted(arg.f.calls) == [(0,), (1,), (18,), (19,)]  # type: ignore[union-attr]


def test_what_is_constant_needs_no_pixel() -> None:
    arg = source(torch.arange(4.0), (1,))
    far = TensorWindow((4,), stride=(4,), offset=(100,))
    t = built(lambda _ctx, r: r, 4, (arg, far), args_padding=("constant", 2.5))
    assert [tensor.tensor_id for tensor in t.plan(sl[0:8]).tensors] == [t.tensor_id]
    assert t[0:8].tolist() == [2.5] * 8
    assert arg.f.calls == []  # type: ignore[union-attr]


def test_a_periodic_image_under_an_endless_canvas() -> None:
    arg = source(torch.arange(5.0), (5,))
    t = built(lambda _ctx, r: r, 3, arg, args_padding="wrap")
    assert t[-7:8].tolist() == [p % 5 for p in range(-7, 8)]
    assert t[10**15 : 10**15 + 4].tolist() == [0, 1, 2, 3]


class TestInvalidation:
    @pytest.mark.parametrize(
        ("mode", "wrong"),
        [
            ("edge", {0, 1, 2}),
            ("wrap", {1, 2, 7}),
            *((mode, {1, 2}) for mode in ("symmetric", "reflect", ("constant", 0))),
        ],
        ids=str,
    )
    def test_windows_that_read_it_beyond_an_end_are_dropped(self, mode: str | tuple[str, int], wrong: set[int]) -> None:
        arg = source(torch.arange(12.0), (1,))
        # Window i reads pixels 2 i - 4 to 2 i - 2.
        reads = TensorWindow((3,), stride=(2,), offset=(-4,))
        f = Counted(lambda _ctx, _r: torch.zeros(1))
        t = built(f, 1, (arg, reads), shape=(8,), args_padding=mode, store=MemoryTileStore(tile_size=1))
        t[...]
        f.calls.clear()
        arg.invalidate(sl[0:1])
        t[...]
        assert {i for (i,) in f.calls} == wrong


class TestErrors:
    def test_what_only_a_read_can_know_is_told_then(self) -> None:
        arg = source(torch.arange(4.0))
        t = built(lambda _ctx, r: r, 4, arg)
        assert t[0:4].tolist() == [0, 1, 2, 3]
        with pytest.raises(RegionError, match="args_padding"):
            t[4:8]

    @pytest.mark.parametrize("stored", [False, True])
    def test_a_plan_tells_it_and_a_fill_does_so_before_it_computes_anything(self, stored: bool) -> None:
        arg, calls = source(torch.arange(40.0)), []

        def f(ctx: Index, region: torch.Tensor) -> torch.Tensor:
            calls.append(ctx)
            return region

        middle = built(f, 4, arg)
        t = built(lambda _ctx, r: r, 4, middle)
        if stored:
            t[0:4]
            calls.clear()
        for cost in (t.plan, t.fill):
            with pytest.raises(RegionError, match="args_padding"):
                cost(sl[0:44])
        assert not calls
        assert t.plan(sl[0:40]).windows == (18 if stored else 21)
        t.fill(sl[0:40], progress=False)

    @pytest.mark.parametrize(
        ("padding", "told"),
        [
            ("mirror", r"args_padding\[0\]"),
            (3, "args_padding"),
            (["edge", "edge"], "entry"),
            ([["edge"]], r"args_padding\[0\]"),
            ([["edge", "mirror"]], r"args_padding\[0\]\[1\]"),
            (("constant", "x"), "args_padding"),
            ([("constant", float("1e40"))], "fit"),
            ([["edge", "edge"]], "dimension"),
        ],
    )
    def test_another_padding_is_refused(self, padding: object, told: str) -> None:
        arg = built(lambda _ctx: torch.zeros(4, 4), (4, 4), shape=(4, None))
        with pytest.raises(ValidationError, match=told):
            built(lambda _ctx, r: r, (4, 4), arg, shape=(4, None), args_padding=padding)

    def test_one_for_all_dimensions_leaves_unbounded_ones_out(self) -> None:
        arg = built(lambda _ctx: torch.zeros(4, 4), (4, 4), shape=(4, None))
        window = TensorWindow((4, 4))
        t = built(lambda _ctx, r: r, window, arg, shape=(4, None), args_padding="edge")
        assert t.args_padding == (("edge", "error"),)

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [(torch.uint8, 0.5), (torch.uint8, 300), (torch.uint8, -1), (torch.bool, 7), (torch.bool, 0.5)],
        ids=str,
    )
    def test_a_constant_must_fit_the_dtype(self, dtype: torch.dtype, value: float) -> None:
        arg, window = source(image((4,), dtype)), TensorWindow((4,))
        with pytest.raises(ValidationError, match=rf"args_padding\[0\] {value} does not fit {dtype}"):
            built(lambda _ctx, r: r, window, arg, shape=(4,), dtype=dtype, args_padding=("constant", value))
