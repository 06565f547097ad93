"""What an arg window is given beyond the ends of a finite arg: what `numpy.pad` would put there."""

from __future__ import annotations

import itertools
from pathlib import Path
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
    Output,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    sl,
)
from infinite_tensor.errors import RegionError
from infinite_tensor.tilestore.stored_definition import definition_of
from tests.support.building import built, store_of
from tests.support.counting import Counted
from tests.support.reference import Index
from tests.support.stored import DTYPES
from tests.support.stores import sample

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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", [*MODES, ("constant", 1)], ids=str)
def test_all_dtypes_are_padded(mode: str | tuple[str, int], dtype: torch.dtype) -> None:
    pixels = image((3, 2), dtype)
    region = given_to_f(source(pixels), TensorWindow((7, 5), offset=(-2, -2)), mode, (0, 0))
    modes: list[str | tuple[str, Any]] = [("constant", -1) if isinstance(mode, tuple) else mode] * 2
    numbers = padded(np.arange(6).reshape(3, 2), modes, (2, 2), (2, 1))
    for place in itertools.product(range(7), range(5)):
        number = int(numbers[place])
        expected = torch.ones((), dtype=dtype) if number < 0 else pixels[divmod(number, 2)]
        assert torch.equal(region[place], expected)


@pytest.fixture(params=sample(["memory", "memory-limited", "zarr", "hdf5"]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    if request.param == "memory-limited":
        return MemoryTileStore(cache_size_windows=2)
    return store_of(request.param, tmp_path, 3)


def blurred(arg: InfiniteTensor, store: TileStore, padding: object, **options: Any) -> InfiniteTensor:
    """Sums of 3x3 pixels around each, in windows of 4x4 that are clipped."""

    def f(_ctx: Any, region: Any) -> Any:
        regions = region if isinstance(region, list) else [region]
        sums = [r.unfold(0, 3, 1).unfold(1, 3, 1).sum((-1, -2)) for r in regions]
        return sums if isinstance(region, list) else sums[0]

    window = TensorWindow((4, 4))
    around = TensorWindow((6, 6), stride=(4, 4), offset=(-1, -1))
    options |= {"edge": "clip", "args_padding": padding}
    return built(f, window, (arg, around), shape=arg.shape, store=store, **options)


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("mode", [*MODES, ("constant", 5)], ids=str)
def test_a_chain_of_halos_over_an_image(mode: str | tuple[str, int], batch_size: int | None, store: TileStore) -> None:
    pixels = image((10, 7))
    arg = source(pixels, (5, 7), store=store, name="source")
    expected = pixels
    tensors = [arg]
    for depth in range(3):
        whole = padded(expected.numpy(), [mode, mode], (1, 1), (1, 1))
        expected = torch.from_numpy(whole).unfold(0, 3, 1).unfold(1, 3, 1).sum((-1, -2))
        tensors.append(blurred(tensors[-1], store, mode, name=f"blur {depth}", batch_size=batch_size))
    assert torch.equal(tensors[-1][7:9, 2:6], expected[7:9, 2:6])
    tensors[-1].fill(sl[:, :], progress=False)
    assert torch.equal(tensors[-1][...], expected)


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


def test_a_plan_needs_nothing_of_what_is_constant_beside_what_is_stored() -> None:
    below = source(torch.arange(4.0), (1,))
    middle = built(lambda _ctx, r: r, 1, below, shape=(4,))
    far = TensorWindow((4,), stride=(4,), offset=(100,))
    t = built(lambda _ctx, r: r, 4, (middle, far), args_padding="constant")
    t[0:4]
    assert {tensor.tensor_id: tensor.windows for tensor in t.plan(sl[0:8]).tensors if tensor.windows} == {
        t.tensor_id: 1
    }


def test_a_periodic_image_under_an_endless_canvas() -> None:
    arg = source(torch.arange(5.0), (5,))
    t = built(lambda _ctx, r: r, 3, arg, args_padding="wrap")
    assert t[-7:8].tolist() == [p % 5 for p in range(-7, 8)]
    assert t[10**15 : 10**15 + 4].tolist() == [0, 1, 2, 3]


def test_each_arg_and_each_dimension_has_its_own() -> None:
    first, second = source(image((2, 3))), source(image((2, 3)))
    window = TensorWindow((4, 5), offset=(-1, -1))
    seen: list[torch.Tensor] = []

    def f(_ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        seen.extend(regions)
        return torch.zeros(1, 1)

    padding = [("wrap", ("constant", 9)), "edge"]
    t = built(f, (1, 1), (first, window), (second, window), args_padding=padding)
    t[0, 0]
    pixels = image((2, 3)).numpy()
    assert torch.equal(seen[0], torch.from_numpy(padded(pixels, ["wrap", ("constant", 9)], (1, 1), (1, 1))))
    assert torch.equal(seen[1], torch.from_numpy(np.pad(pixels, 1, "edge")))
    assert t.args_padding == (("wrap", ("constant", 9)), ("edge", "edge"))


def test_several_outputs_read_padded_args() -> None:
    arg = source(torch.arange(4.0))
    outputs = {"a": Output((4,), torch.float32, TensorWindow((4,)))}
    group = InfiniteTensor.from_multi(
        lambda _ctx, r: {"a": r[2:6] + r[0]}, outputs, [arg], [TensorWindow((8,), offset=(-2,))], args_padding="edge"
    )
    assert group["a"][...].tolist() == [0, 1, 2, 3]


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


class TestStored:
    def test_it_is_part_of_the_definition(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "s.zarr", tile_size=3) as store:
            arg = source(image((10, 7)), store=store, name="source")
            expected = blurred(arg, store, "reflect", name="blur")[...]
            with pytest.raises(ValidationError, match=r"args\[0\].padding: stored \['reflect', .*\], given \['w"):
                blurred(arg, store, "wrap", name="blur")
            opened = store.open("blur")
            assert opened.args_padding == (("reflect", "reflect"),)
            assert torch.equal(opened[...], expected)

    def test_a_reopened_tensor_goes_on_with_it(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "s.zarr", tile_size=3) as store:
            arg = source(image((10, 7)), store=store, name="source")
            made = blurred(arg, store, ("constant", -1), name="blur")
            made[0, 0]
            f = made.f
        with ZarrTileStore(tmp_path / "s.zarr") as store:
            opened = store.open("blur", f, [source(image((10, 7)), store=store, name="source")])
            assert torch.equal(opened[...], blurred(source(image((10, 7))), MemoryTileStore(), ("constant", -1))[...])

    def test_without_it_nothing_is_stored_of_it(self) -> None:
        arg = source(image((10, 7)))
        window = TensorWindow((5, 7))
        plain = built(lambda _ctx, r: r, window, arg, shape=(10, 7))
        same = built(lambda _ctx, r: r, window, arg, shape=(10, 7), args_padding="error")
        assert "padding" not in plain.to_json()["args"][0]  # type: ignore[index, operator]
        assert same.to_json()["args"] == plain.to_json()["args"]

    @pytest.mark.parametrize(
        "padding",
        [3, "edge", ["edge"], ["edge"] * 3, ["mirror", "edge"], [["constant"], "edge"], [["edge", 1], "edge"], [{}, 1]],
    )
    def test_a_stored_one_is_checked(self, padding: object) -> None:
        stored: dict[str, Any] = blurred(source(image((10, 7))), MemoryTileStore(), "edge").to_json()
        assert definition_of(stored).args[0].padding is not None
        stored["args"][0]["padding"] = padding
        with pytest.raises(ValidationError, match="padding"):
            definition_of(stored)


class TestErrors:
    def test_a_window_that_leaves_an_arg_is_told_of_padding(self) -> None:
        arg = source(torch.arange(4.0))
        with pytest.raises(RegionError, match=r'reads pixels \[-1, 5\) in dimension 0 .* args_padding .*"reflect"'):
            built(lambda _ctx, r: r, 4, (arg, TensorWindow((6,), offset=(-1,))), shape=(4,))

    def test_what_only_a_read_can_know_is_told_then(self) -> None:
        arg = source(torch.arange(4.0))
        t = built(lambda _ctx, r: r, 4, arg)
        assert t[0:4].tolist() == [0, 1, 2, 3]
        with pytest.raises(RegionError, match=r"set args_padding \(padding in map and predict\) to "):
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
            with pytest.raises(RegionError, match=r"reads pixels \[\d+, 44\) in dimension 0 .*args_padding"):
                cost(sl[0:44])
        assert not calls
        assert t.plan(sl[0:40]).windows == (18 if stored else 21)
        t.fill(sl[0:40], progress=False)

    @pytest.mark.parametrize(
        ("padding", "told"),
        [
            ("mirror", 'args_padding\\[0\\] must be "error", "edge"'),
            (3, "args_padding must be"),
            (["edge", "edge"], r"one entry per arg \(1\)"),
            ([["edge"]], r"args_padding\[0\] must be .* per dimension \(2\)"),
            ([["edge", "mirror"]], r"args_padding\[0\]\[1\] must be"),
            (("constant", "x"), "args_padding must be"),
            ([("constant", float("1e40"))], "does not fit"),
            ([["edge", "edge"]], "must be None, because dimension 1 of .* is unbounded"),
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
