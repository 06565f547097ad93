"""`map` equals its function applied once to the whole padded input, whatever windows it is computed in."""

from __future__ import annotations

import functools
import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d, interpolate, pad
from zarr.storage import MemoryStore

import infinite_tensor
from infinite_tensor import (
    InfiniteTensor,
    Mask,
    MemoryTileStore,
    ShapeMismatchError,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    sl,
)
from tests.behaviour.test_hostile_arguments import HOSTILE, error_of
from tests.support.interpreters import run
from tests.support.reference import Index

PERIOD = 11
"""Of what is unbounded here: it is finite numbers over and over again."""


def numbers(shape: Sequence[int]) -> torch.Tensor:
    """Small whole numbers, of which sums and products are exact."""
    return torch.from_numpy(np.random.default_rng(len(shape)).integers(-9, 9, tuple(shape))).double()


def source(values: torch.Tensor, unbounded: Sequence[int] = (), window: Index | None = None, **options: Any) -> Any:
    """A tensor of these values, which repeat along some dimensions."""
    shape = tuple(None if d in unbounded else n for d, n in enumerate(values.shape))
    place = TensorWindow(window or tuple(values.shape))

    def f(ctx: Index) -> torch.Tensor:
        found = values
        for d, bounds in enumerate(place.get_bounds(ctx)):
            found = found.index_select(d, torch.arange(bounds.start, bounds.stop) % values.shape[d])
        return found

    return InfiniteTensor(shape, f, place, dtype=values.dtype, edge="clip", **options)


@dataclass(frozen=True)
class Resampled:
    """Weighs the neighbours of each pixel, and changes the resolution; what it returns is cropped, or not.

    Works on the last dimensions; `batched` and `channels` are the ones before them.
    """

    halo: Index
    scale: tuple[Fraction, ...]
    cropped: bool = True

    def __call__(self, region: torch.Tensor) -> torch.Tensor:
        for d, (halo, scale) in enumerate(zip(self.halo, self.scale, strict=True), -len(self.halo)):
            if not self.cropped:
                region = pad(region, [0, 0] * (-1 - d) + [halo, halo])
            weights = torch.arange(1.0, 2 * halo + 2, dtype=region.dtype)
            region = (region.unfold(d, 2 * halo + 1, 1) * weights).sum(-1)
            region = region.repeat_interleave(scale.numerator, d)
            region = region.unfold(d, scale.denominator, scale.denominator).sum(-1)
        return region

    def of_whole(self, values: torch.Tensor, unbounded: Sequence[int], padding: str) -> torch.Tensor:
        """What it makes of all of the values, padded as far as it reaches; of unbounded ones, of one period."""
        array = values.numpy()
        for j, d in enumerate(range(values.ndim - len(self.halo), values.ndim)):
            extent = array.shape[d] * (2 * self.scale[j].denominator if d in unbounded else 1)
            width = [(0, 0)] * array.ndim
            width[d] = (self.halo[j], self.halo[j] + extent - array.shape[d] - extent % -self.scale[j].denominator)
            array = np.pad(array, width, "wrap" if d in unbounded else padding)  # type: ignore[call-overload]
        return Resampled(self.halo, self.scale)(torch.from_numpy(array))


SCALES = [Fraction(1), Fraction(2), Fraction(3), Fraction(1, 2), Fraction(1, 3), Fraction(2, 3)]


@st.composite
def _cases(draw: st.DrawFn) -> tuple[torch.Tensor, list[int], Resampled, dict[str, Any]]:
    ndim = draw(st.integers(1, 3))
    channels = draw(st.integers(0, 2))
    unbounded = [d for d in range(ndim) if draw(st.booleans())]
    extents = [PERIOD if d in unbounded else draw(st.integers(1, 7)) for d in range(ndim)]
    scale = tuple(draw(st.sampled_from(SCALES)) for _ in range(ndim))
    halo = tuple(draw(st.integers(0, 3)) for _ in range(ndim))
    whole = all((h * s).denominator == 1 for h, s in zip(halo, scale, strict=True))
    values = numbers([channels, *extents] if channels else extents)
    fn = Resampled(halo, scale, cropped=not whole or draw(st.booleans()))
    options = {
        "window": tuple(draw(st.integers(1, 4)) * s.denominator for s in scale),
        "padding": draw(st.sampled_from(["reflect", "symmetric", "edge", "wrap", "constant"])),
        "batch_size": draw(st.sampled_from([None, 1, 3])),
        "overlap": draw(st.sampled_from([0, 0.3, 0.5, 0.8])),
        "blend": "last",
        "dims": tuple(range(-ndim, 0)),
    }
    return values, [d + bool(channels) for d in unbounded], fn, options


@given(_cases())
def test_it_equals_the_function_of_the_whole(
    case: tuple[torch.Tensor, list[int], Resampled, dict[str, Any]],
) -> None:
    values, unbounded, fn, options = case
    t = source(values, unbounded).map(fn, halo=fn.halo, scale=fn.scale, **options)
    expected = fn.of_whole(values, unbounded, options["padding"])
    region = []
    for d, (extent, there) in enumerate(zip(t.shape, expected.shape, strict=True)):
        assert (extent is None) == (d in unbounded)
        if extent is None:
            # As far to the left as it is long: there it is the same again.
            region.append(slice(-there, 0))
        else:
            expected = expected.narrow(d, 0, extent)
            region.append(slice(0, extent))
    assert torch.equal(t[tuple(region)], expected)


@given(st.integers(1, 4), st.integers(0, 2), st.integers(0, 2), st.booleans(), st.booleans())
def test_inputs_of_several_resolutions_lie_over_each_other(
    sides: int, halo: int, around: int, unbounded: bool, coarse_first: bool
) -> None:
    fine, coarse = numbers((13, 8)), numbers((2, 5, 3))
    if unbounded:
        fine, coarse = numbers((12, 9)), numbers((2, 4, 3))
    one, other = (
        Resampled((halo, halo), (Fraction(1), Fraction(1))),
        Resampled((around,) * 2, (Fraction(3), Fraction(3))),
    )
    inputs = [source(fine, (0, 1) if unbounded else ()), source(coarse, (1, 2) if unbounded else ())]
    options: dict[str, Any] = {"halo": (halo, around), "scale": (1, 3), "dims": (-2, -1)}
    if coarse_first:
        inputs, options = inputs[::-1], {"halo": (around, halo), "scale": (3, 1), "dims": (-2, -1)}

    def fn(*regions: torch.Tensor) -> torch.Tensor:
        a, b = regions[::-1] if coarse_first else regions
        return one(a) * 100 + other(b).sum(0)

    window = sides if coarse_first else 3 * sides
    t = infinite_tensor.map_windows(fn, *inputs, window=window, channels=(), padding="edge", **options)
    rows, columns = (12, 9) if unbounded else (13, 8)
    expected = one.of_whole(fine, (), "wrap" if unbounded else "edge") * 100
    expected = expected + other.of_whole(coarse, (), "wrap" if unbounded else "edge").sum(0)[:rows, :columns]
    # A last coarse pixel reaches beyond the end.
    assert t.shape == ((None, None) if unbounded else (13, 8))
    assert torch.equal(t[0:rows, 0:columns], expected[:rows, :columns])


@given(st.permutations(range(3)), st.integers(1, 7), st.booleans(), st.integers(0, 2), st.booleans())
def test_inputs_may_have_fewer_dimensions(order: list[int], kept: int, named: bool, halo: int, windowed: bool) -> None:
    # A volume, and what has some of its dimensions: the last ones, if they have no names.
    of_names = [d for d in range(3) if kept & 1 << d] if named else [*range(3 - kept % 3 - (kept % 3 == 0) * 3, 3)]
    values = numbers((5, 6, 7))
    fewer = values.sum([d for d in range(3) if d not in of_names]) if len(of_names) < 3 else values
    names = ("z", "y", "x")
    parts = {"volume": values, "fewer": fewer, "again": fewer + 1}
    dims = {name: names if name == "volume" else [names[d] for d in of_names] for name in parts}
    inputs = {name: source(each, dims=dims[name] if named else None) for name, each in parts.items()}
    called = [[*parts][at] for at in order]

    def summed(regions: dict[str, torch.Tensor]) -> torch.Tensor:
        found = regions["volume"]
        for name in ("fewer", "again"):
            where = tuple(slice(None) if d in of_names else None for d in range(3))
            found = found * 10 + regions[name][where]
        return found

    def fn(*regions: torch.Tensor) -> torch.Tensor:
        return summed(dict(zip(called, regions, strict=True)))

    t = infinite_tensor.map_windows(
        fn,
        *[inputs[name] for name in called],
        halo=halo,
        window=(2, 3, 4) if windowed else None,
        dims=names if named else (-3, -2, -1),
    )
    assert t.shape == (5, 6, 7)
    assert torch.equal(t[...], summed(parts))


FAR = 2**50


@given(
    st.integers(-40, 40),
    st.sampled_from([1, 2, Fraction(1, 2)]),
    st.integers(0, 3),
    st.sampled_from(
        [{}, {"window": 6}, {"window": 8, "overlap": 0.5}, {"batch_size": 1}, {"window": 4, "batch_size": 3}]
    ),
    st.booleans(),
)
def test_a_function_is_told_where_its_region_begins(
    at: int, scale: Any, halo: int, options: dict[str, Any], is_far: bool
) -> None:
    begin, halo = 2 * at + (FAR if is_far else 0), 2 * halo

    def place(region: torch.Tensor, start: Index) -> torch.Tensor:
        assert all(type(n) is int for n in start)
        # How far the region, without its halo, is from where the read begins.
        first = int((start[0] + halo) * Fraction(scale)) - begin
        rows = int((len(region) - 2 * halo) * scale)
        return torch.arange(first, first + rows, dtype=torch.float64)

    def fn(region: torch.Tensor, start: Any) -> torch.Tensor:
        if "batch_size" not in options:
            return place(region, start)
        assert isinstance(start, list)
        return torch.stack([place(*each) for each in zip(region, start, strict=True)])

    t = source(numbers((PERIOD,)), (0,)).map(fn, halo=halo, scale=scale, coordinates=True, blend="last", **options)
    assert torch.equal(t[begin : begin + 9], torch.arange(9, dtype=torch.float64))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_phase_of_joint_diffusion_is_one_call(batch_size: int | None) -> None:
    # Windows of a latent with their noise and a condition at 1/8, which overlap by a half and are blended.
    latent = source(numbers((2, 37, 41)).float(), (1, 2), dims=("c", "y", "x"))
    condition = source(numbers((3, 5, 7)).float(), (1, 2), dims=("c", "y", "x"))

    def denoise(latent: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        large = condition.mean(-3, keepdim=True).repeat_interleave(8, -2).repeat_interleave(8, -1)
        return latent * 0.3 + torch.tanh(large)

    t = infinite_tensor.map_windows(
        denoise, latent, condition, scale=(1, 8), window=32, overlap=0.5, batch_size=batch_size
    )

    def plane(channels: int, size: int, stride: int) -> TensorWindow:
        return TensorWindow((channels, size, size), (channels, stride, stride), dimension_map=(None, 0, 1))

    by_hand = InfiniteTensor(
        (2, None, None),
        lambda _, *regions: denoise(*regions),
        plane(2, 32, 16),
        args=[latent, condition],
        args_windows=[plane(2, 32, 16), plane(3, 4, 2)],
        blend="gaussian",
    )
    assert torch.equal(t[:, -20:70, 3:90], by_hand[:, -20:70, 3:90])


def test_the_dtype_is_that_of_what_the_function_returns() -> None:
    mask, a, b = (source(each, dims=("c", "y", "x")) for each in (PHOTO > 0, PHOTO, -PHOTO))
    chosen = infinite_tensor.map_windows(torch.where, mask, a, b)
    assert torch.equal(chosen[...], PHOTO.abs())
    assert a.map(lambda x: x > 0).dtype is infinite_tensor.map_windows(torch.gt, a, b).dtype is torch.bool
    assert infinite_tensor.map_windows(torch.add, mask, a, window=8).dtype is torch.float32
    calls: list[int] = []

    def compare(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x > 0

    # Whoever counts its calls counts those for windows.
    assert a.map(compare).dtype is torch.float32
    assert not calls


# What a user writes.


class Net(nn.Module):
    """A convolution without padding behind one with it, as there are many; `gain` is all of its weights."""

    def __init__(self, channels: int = 3, gain: float = 1.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, channels, 3, padding=1)
        )
        with torch.no_grad():
            for at, parameter in enumerate(self.parameters()):
                parameter.copy_(gain * torch.linspace(-1, 1 + at, parameter.numel()).reshape(parameter.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.ndim == 4
        assert not torch.is_grad_enabled()
        return self.layers(x)  # type: ignore[no-any-return]


PHOTO = numbers((3, 21, 34)).float()


def photo(**options: Any) -> InfiniteTensor:
    found: InfiniteTensor = source(PHOTO, dims=("c", "y", "x"), **options)
    return found


def padded(margin: int) -> torch.Tensor:
    return torch.from_numpy(np.pad(PHOTO.numpy(), ((0, 0), (margin, margin), (margin, margin)), "reflect"))


@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_a_network_is_given_batches_and_what_it_returns_is_cropped(batch_size: int | None) -> None:
    net = Net(channels=2).eval()
    t = photo().map(net, halo=2, window=8, channels=2, batch_size=batch_size)
    with torch.no_grad():
        whole = net(padded(2)[None])[0][:, 2:-2, 2:-2]
    assert (t.shape, t.dims, t.dtype) == ((2, 21, 34), ("c", "y", "x"), torch.float32)
    assert torch.allclose(t[...], whole, rtol=1e-5, atol=1e-4)


def test_super_resolution() -> None:
    t = photo().map(lambda x: interpolate(x[None], scale_factor=4, mode="bilinear")[0], halo=1, scale=4, window=8)
    whole = interpolate(padded(1)[None], scale_factor=4, mode="bilinear")[0][:, 4:-4, 4:-4]
    assert torch.allclose(t[...], whole, atol=1e-5)


@pytest.mark.parametrize("half", [0.5, Fraction(1, 2), np.float64(0.5)])
def test_what_halves_keeps_a_last_pixel_that_is_there_in_part(half: Any) -> None:
    t = photo().map(nn.AvgPool2d(2).eval(), scale=half)
    assert t.shape == (3, 11, 17)
    # 21 rows: beyond the last one is the one before it.
    assert torch.equal(t[:, 10], (PHOTO[:, 20] + PHOTO[:, 19]).unfold(1, 2, 2).sum(-1) / 4)


def test_a_signal_and_a_volume() -> None:
    signal = source(numbers((50,)))
    assert torch.equal(signal.map(lambda x: x[2:] - x[:-2], halo=1)[1:-1], numbers((50,))[2:] - numbers((50,))[:-2])
    volume = source(numbers((4, 5, 6)), (0, 1, 2))
    assert torch.equal(volume.map(torch.neg, halo=1)[0:4, 0:5, 0:6], -numbers((4, 5, 6)))


@pytest.mark.parametrize(
    ("channels", "fn", "shape", "dims"),
    [
        (None, torch.neg, (3, 21, 34), ("c", "y", "x")),
        (1, lambda x: x[:1], (1, 21, 34), ("c", "y", "x")),
        (5, lambda x: x[[0, 1, 2, 0, 1]], (5, 21, 34), ("c", "y", "x")),
        ((), lambda x: x.mean(0), (21, 34), ("y", "x")),
    ],
)
def test_channels(channels: Any, fn: Callable[..., torch.Tensor], shape: Index, dims: tuple[str, ...]) -> None:
    t = photo().map(fn, channels=channels, window=8)
    assert (t.shape, t.dims) == (shape, dims)
    assert torch.equal(t[...], fn(PHOTO))


def test_channels_of_a_tensor_without_come_first_and_others_stay_where_they_are() -> None:
    heights = source(numbers((9, 9)), dims=("y", "x"))
    t = heights.map(lambda x: torch.stack([x, -x]), channels=2)
    assert (t.shape, t.dims) == ((2, 9, 9), ("c", "y", "x"))
    assert t.map(torch.neg, halo=1).output_window.size == (2, 9, 9)
    last = source(numbers((9, 9, 3)), dims=("y", "x", "band"))
    t = last.map(lambda x: x[1:-1, 1:-1, :1], halo=1, channels=1, window=4)
    assert (t.shape, t.dims) == ((9, 9, 1), ("y", "x", "band"))
    assert torch.equal(t[...], numbers((9, 9, 3))[..., :1])


def test_dtype_device_and_names_are_those_of_the_first_input() -> None:
    t = photo().map(lambda x: x > 0, dtype="bool")
    assert (t.dtype, str(t.device), t.dims) == (torch.bool, "cpu", ("c", "y", "x"))
    other = source(torch.ones(21, 34, dtype=torch.int32), dims=("y", "x"))
    t = infinite_tensor.map_windows(lambda x, y: x * y, other, photo(), dtype=torch.float32, channels=3)
    assert (t.dims, t.args_windows[1].dimension_map) == (("c", "y", "x"), (None, 1, 2))
    assert torch.equal(t[...], PHOTO)


def test_dimensions_correspond_by_name() -> None:
    turned = source(PHOTO.permute(2, 0, 1).contiguous(), dims=("x", "c", "y"))
    t = infinite_tensor.map_windows(
        lambda x, y: x - y.permute(1, 2, 0), photo(), turned, dims=("y", "x"), window=(4, 8)
    )
    assert t[...].abs().max() == 0
    with pytest.raises(
        ValidationError, match=r"slide over \['y', 'x'\] of input 0.* the same order, got \['x', 'y'\] of input 1"
    ):
        infinite_tensor.map_windows(lambda x, y: x - y, photo(), turned)


def test_the_output_is_finite_where_an_input_is() -> None:
    noise = source(numbers((3, 7, 5)), (1, 2), dims=("c", "y", "x"))
    t = infinite_tensor.map_windows(torch.add, noise, photo(), window=8, dtype=torch.float64)
    assert t.shape == (3, 21, 34)
    assert torch.equal(t[...], noise[:, 0:21, 0:34] + PHOTO)


def test_a_blob_is_an_input(tmp_path: Path) -> None:
    with TensorBlob.open(tmp_path / "rows", "w+", dtype="float32", shape=(4,)) as blob:
        blob.write(torch.arange(40.0).reshape(10, 4))
        t = infinite_tensor.map_windows(lambda x: x.sum(1), blob, dims=(0,), channels=())
        assert torch.equal(t[...], torch.arange(40.0).reshape(10, 4).sum(1))


def test_padding_may_differ_along_dimensions_and_inputs() -> None:
    t = photo().map(torch.clone, halo=2, padding=("edge", "wrap"))
    assert t.args_padding == (("error", "edge", "wrap"),)
    t = infinite_tensor.map_windows(torch.add, photo(), photo(), halo=2, padding=["edge", ("constant", 1)])
    assert t.args_padding == (("edge",) * 3, (("constant", 1.0),) * 3)
    with pytest.raises(ValidationError, match=r"must be None, because dimension .* is unbounded"):
        source(PHOTO, (1,)).map(torch.clone, dims=(1, 2), padding=("edge", "wrap"))
    photos = [photo() for _ in range(3)]
    with pytest.raises(ValidationError, match=r"for each input: padding=\(\('edge', 'wrap'\),\) \* 3"):
        infinite_tensor.map_windows(torch.stack, *photos, padding=("edge", "wrap"))
    t = infinite_tensor.map_windows(torch.stack, *photos, padding=(("edge", "wrap"),) * 3)
    assert t.args_padding == (("error", "edge", "wrap"),) * 3


# Over which dimensions windows slide.


@pytest.mark.parametrize(
    ("shape", "dims", "options", "slides"),
    [
        ((None,), None, {}, (0,)),
        ((9,), None, {}, (0,)),
        ((None, None), None, {}, (0, 1)),
        ((3, None, None), None, {}, (1, 2)),
        ((8, 9, 9), None, {"window": (4, 4)}, (1, 2)),
        ((3, 9), None, {"window": (2, 4)}, (0, 1)),
        ((3, 9, 9), ("c", "y", "x"), {}, (1, 2)),
        ((9, 9, 3), ("y", "x", "Channel"), {}, (0, 1)),
        ((9, 9, 3), ("z", "y", "x"), {}, (0, 1, 2)),
        ((9, 9, 3), None, {"dims": (0, 1)}, (0, 1)),
        ((9, 9, 3), None, {"dims": (-3, -2)}, (0, 1)),
        ((9, 9, 3), ("y", "x", "c"), {"dims": ("y",)}, (0,)),
    ],
)
def test_which_dimensions_slide(
    shape: Any, dims: tuple[str, ...] | None, options: dict[str, Any], slides: Index
) -> None:
    values = numbers([PERIOD if n is None else n for n in shape])
    t = source(values, [d for d, n in enumerate(shape) if n is None], dims=dims)
    (window,) = t.map(torch.neg, **{"window": 2, **options}).args_windows
    assert tuple(d for d, k in enumerate(window.dimension_map or range(len(shape))) if k is not None) == slides


@pytest.mark.parametrize(
    ("shape", "dims", "options", "word"),
    [
        ((9, 9), None, {}, "give dims="),
        ((3, 9, 9), None, {"window": 4}, "give dims="),
        ((3, 9, 9), ("c", "y", "x"), {"window": 0}, "window must"),
        ((9, None), None, {"window": 4, "dims": (0,)}, "unbounded"),
        ((None, 9), None, {}, "give dims="),
        ((9, 9, 3), None, {"window": (4, 4)}, "give dims="),
        ((3, 9, 9), ("c", "y", "x"), {"window": (4, 4, 4)}, "3 entries"),
        ((3, 9), None, {"window": (4, 4, 4)}, "3 entries"),
        ((3,), ("c",), {}, "give dims"),
        ((3, 9, 9), None, {"dims": (1, 1)}, "dims must"),
        ((3, 9, 9), None, {"dims": ("y",)}, "dims must"),
        ((3, 9, 9), None, {"dims": (3,)}, "dims must"),
    ],
)
def test_a_guess_that_may_be_wrong_is_an_error_that_asks(
    shape: Any, dims: tuple[str, ...] | None, options: dict[str, Any], word: str
) -> None:
    values = numbers([PERIOD if n is None else n for n in shape])
    t = source(values, [d for d, n in enumerate(shape) if n is None], dims=dims)
    with pytest.raises(ValidationError, match=word):
        t.map(torch.neg, **options)


def size_of(t: InfiniteTensor, *, stored: bool = True, **options: Any) -> tuple[int, ...]:
    store = ZarrTileStore(MemoryStore()) if stored else None
    return t.map(torch.neg, store=store, version=1, **options).output_window.size


def test_windows_are_of_a_sensible_size_by_default() -> None:
    assert size_of(source(numbers((PERIOD,)), (0,))) == (65_536,)
    assert size_of(source(numbers((2, 3)), (0, 1))) == (256, 256)
    assert size_of(source(numbers((2, 3)), (0, 1)), scale=Fraction(1, 3)) == (86, 86)
    assert size_of(source(numbers((2, 3)), (0, 1)), scale=(4, 2)) == (256, 256)
    assert size_of(source(numbers((2, 3)), (0, 1)), scale=1000) == (1000, 1000)
    assert size_of(source(numbers((2, 3)), (0, 1)), halo=10, scale=16) == (256, 256)
    assert size_of(source(numbers((2, 3)), (0, 1)), halo=(43, 42)) == (512, 256)
    assert size_of(source(numbers((2, 3)), (0, 1)), halo=10**6) == (2048, 2048)
    assert size_of(source(numbers((9, 2, 3)), (1, 2)), halo=10**6) == (9, 512, 512)
    assert size_of(source(numbers((2, 3, 4)), (0, 1, 2)), halo=11) == (128, 128, 128)
    assert size_of(source(numbers((2, 3, 4)), (0, 1, 2)), halo=100) == (128, 128, 128)
    assert size_of(source(numbers((PERIOD,)), (0,)), halo=20_000) == (131_072,)
    assert size_of(photo(), halo=100) == (3, 21, 34)
    assert size_of(photo()) == (3, 21, 34)
    plane = source(numbers((2, 3)), (0, 1))
    assert size_of(plane, stored=False) == (64, 64)
    assert size_of(plane, stored=False, halo=(12, 43)) == (128, 256)
    assert size_of(source(numbers((2, 3, 4)), (0, 1, 2)), stored=False, halo=100) == (32, 32, 32)
    tiled = plane.map(torch.neg, store=ZarrTileStore(MemoryStore(), tile_size=48), version=1)
    assert tiled.output_window.size == (48, 48)
    assert photo().map(torch.neg, scale=0.5).output_window.size == (3, 11, 17)
    assert size_of(source(numbers((2, 3, 4)), (0, 1, 2))) == (64, 64, 64)


# What does not fit.


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"window": 7, "scale": 0.5}, "a multiple of 2"),
        ({"halo": -1}, "halo"),
        ({"halo": (1, 2, 3)}, "halo"),
        ({"scale": 0}, "scale"),
        ({"window": (0, 1)}, "window"),
        ({"channels": 0}, "channels"),
        ({"channels": 2, "dims": ("y",)}, "ambiguous"),
    ],
)
def test_an_argument_that_does_not_fit(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        photo().map(torch.neg, **options)


def test_inputs_that_do_not_fit() -> None:
    unbounded, small = source(PHOTO, (1, 2)), source(numbers((3, 5, 5)), dims=("c", "y", "x"))
    inputs: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "at least one tensor"),
        ((photo(), PHOTO), {}, "from_array"),
        ((photo(), photo()), {"halo": (1,)}, "halo"),
        ((photo(), small), {"scale": (1, 4)}, "give scale="),
        ((unbounded, unbounded), {"scale": (1, 4), "window": 10}, "a multiple of 4"),
    ]
    for several, options, message in inputs:
        with pytest.raises(ValidationError, match=message):
            infinite_tensor.map_windows(torch.add, *several, **options)
    with pytest.raises(ValidationError, match="fn must be callable, got 3"):
        photo().map(3)  # type: ignore[arg-type]


Wrong = tuple[Callable[..., Any], dict[str, Any], Index, Index, Index]
WRONG: dict[str, Wrong] = {
    "cropped by less than the halo": (lambda x: x[:, 1:-1, 1:-1], {}, (3, 12, 12), (3, 10, 10), (3, 8, 8)),
    "cropped on one side": (lambda x: x[:, 1:, 1:], {}, (3, 12, 12), (3, 11, 11), (3, 8, 8)),
    "padded": (lambda x: pad(x, (3, 3, 3, 3)), {}, (3, 12, 12), (3, 18, 18), (3, 8, 8)),
    "other channels": (lambda x: x[:1], {}, (3, 12, 12), (1, 12, 12), (3, 8, 8)),
    "no channels": (lambda x: x[0], {}, (3, 12, 12), (12, 12), (3, 8, 8)),
    "channels where there are none": (lambda x: x, {"channels": ()}, (3, 12, 12), (3, 12, 12), (8, 8)),
    "not larger": (lambda x: x, {"scale": 4}, (3, 12, 12), (3, 12, 12), (3, 32, 32)),
    "half a pixel": (lambda x: x[:, ::2, ::2], {"scale": 0.5, "halo": 1}, (3, 10, 10), (3, 5, 5), (3, 4, 4)),
    "a batch where there is none": (lambda x: x[None], {}, (3, 12, 12), (1, 3, 12, 12), (3, 8, 8)),
    "no batch": (lambda x: x[0], {"batch_size": 2}, (2, 3, 12, 12), (3, 12, 12), (2, 3, 8, 8)),
    "another batch": (lambda x: x[:1], {"batch_size": 2}, (2, 3, 12, 12), (1, 3, 12, 12), (2, 3, 8, 8)),
}
"""What `fn` is, and the shapes that it is given, returns, and is to return."""


@pytest.mark.parametrize("name", WRONG)
def test_a_result_of_another_shape_is_an_error(name: str) -> None:
    fn, options, given, returned, wanted = WRONG[name]
    t = source(PHOTO, (1, 2)).map(fn, **{"halo": 2, "window": 8, **options})
    with pytest.raises(ShapeMismatchError) as caught:
        t[..., 0:9, 0:9]
    assert f"for shape {given}, fn must return shape {wanted}" in str(caught.value)
    assert f", got {returned}; give map the halo=" in str(caught.value)
    # What is as large as what was given is cropped, where the halo is whole pixels of the output.
    assert (" including the halo, got " in str(caught.value)) == (name != "half a pixel")
    (note,) = caught.value.__notes__
    assert f"by <lambda> defined in {__file__}:{fn.__code__.co_firstlineno}" in note


@pytest.mark.parametrize("fn", [lambda _x: None, lambda x: (x,), lambda x: x.numpy(), lambda _x: 3])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_result_that_is_no_tensor_is_told_what_to_return(fn: Any, batch_size: int | None) -> None:
    with pytest.raises(ValidationError, match="one dense tensor"):
        photo().map(fn, window=8, batch_size=batch_size)[...]


@pytest.mark.parametrize(("fn", "name"), [(nn.Conv2d(3, 8, 3).eval(), "Conv2d"), (torch.flatten, "flatten")])
def test_what_is_no_function_of_python_is_named(fn: Callable[..., torch.Tensor], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        photo(tensor_id="photo").map(fn)[...]
    (note,) = caught.value.__notes__
    assert note.endswith(f", by {name}")


ARGUMENTS: dict[str, Callable[[Path, InfiniteTensor, Any], object]] = {
    "fn": lambda place, t, value: t.map(value, store=place / "s.zarr"),
    "an input": lambda place, t, value: infinite_tensor.map_windows(torch.add, t, value, store=place / "s.zarr"),
    **{
        name: lambda place, t, value, name=name: t.map(torch.neg, **{"store": place / "s.zarr", name: value})  # type: ignore[misc]
        for name in ("halo", "window", "scale", "channels", "dims", "padding", "batch_size", "dtype", "device", "store")
    },
    "halo of a dimension": lambda place, t, value: t.map(torch.neg, halo=(1, value), store=place / "s.zarr"),
    "version": lambda place, t, value: t.map(torch.neg, version=[value], store=place / "s.zarr"),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_is_refused_by_what_it_is(argument: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    for name, value in HOSTILE.items():
        place = tmp_path / name
        place.mkdir()
        monkeypatch.chdir(place)
        if argument == "store" and isinstance(value, str):
            continue
        error = error_of(lambda value=value, place=place: ARGUMENTS[argument](place, photo(), value))  # type: ignore[misc]
        if error is not None:
            assert isinstance(error, ValidationError), f"{name}: {type(error).__name__}: {error}"
            assert len(str(error)) < 1500, name
            assert not [*place.iterdir()], name
            refused += 1
    assert refused > len(HOSTILE) / 3


# Ids.


def blurred(kernel: torch.Tensor, region: torch.Tensor) -> torch.Tensor:
    return conv2d(region[:, None], kernel[None, None])[:, 0]


@dataclass
class Brighter:
    """An object that is called, with settings, a table, and a method."""

    by: float
    table: torch.Tensor | None = None

    def __call__(self, region: torch.Tensor) -> torch.Tensor:
        return region * self.by if self.table is None else region * self.by + 1

    def method(self, region: torch.Tensor) -> torch.Tensor:
        return self(region)


def adding(n: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x + n


BY = 2.0


def by_a_global(region: torch.Tensor) -> torch.Tensor:
    return region * BY


def id_of(store: ZarrTileStore, fn: Callable[..., Any], image: InfiniteTensor | None = None, **options: Any) -> str:
    return (image or photo(tensor_id="photo")).map(fn, store=store, **options).tensor_id


def test_the_id_is_made_of_all_that_defines_the_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ones = torch.ones(3, 3)
    table = torch.zeros(2)
    given: dict[str, Callable[[], str]] = {
        "kernel": lambda: id_of(store, functools.partial(blurred, ones), halo=1),
        "another kernel": lambda: id_of(store, functools.partial(blurred, 2 * ones), halo=1),
        "halo": lambda: id_of(store, torch.neg),
        "another halo": lambda: id_of(store, torch.neg, halo=1),
        "window": lambda: id_of(store, torch.neg, window=4),
        "padding": lambda: id_of(store, torch.neg, halo=1, padding="edge"),
        "version": lambda: id_of(store, torch.neg, version=1),
        "dtype": lambda: id_of(store, torch.neg, dtype="float64"),
        "function": lambda: id_of(store, torch.abs),
        "code": lambda: id_of(store, lambda x: x + 1),
        "another code": lambda: id_of(store, lambda x: x + 2),
        "closure": lambda: id_of(store, adding(1)),
        "another closure": lambda: id_of(store, adding(2)),
        "object": lambda: id_of(store, Brighter(1.0)),
        "another object": lambda: id_of(store, Brighter(2.0)),
        "another table": lambda: id_of(store, Brighter(1.0, table)),
        "yet another table": lambda: id_of(store, Brighter(1.0, table + 1)),
        "method": lambda: id_of(store, Brighter(1.0).method),
        "another method": lambda: id_of(store, Brighter(2.0).method),
        "network": lambda: id_of(store, Net().eval(), halo=2),
        "another network": lambda: id_of(store, Net(gain=2.0).eval(), halo=2),
        "a global": lambda: id_of(store, by_a_global),
        "image": lambda: id_of(store, torch.neg, photo(tensor_id="another photo")),
        "upstream": lambda: id_of(store, torch.neg, photo().map(torch.neg)),
        "another upstream": lambda: id_of(store, torch.neg, photo().map(torch.abs)),
    }
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        ids = {name: make() for name, make in given.items()}
        monkeypatch.setitem(globals(), "BY", 3.0)
        ids["another global"] = given["a global"]()
        monkeypatch.undo()
        assert len({*ids.values()}) == len(ids)
        assert {name: make() for name, make in given.items()} == {n: i for n, i in ids.items() if n in given}
    names = [ids[name].rpartition("-")[0] for name in ("kernel", "halo", "code", "object", "network")]
    assert names == ["blurred", "neg", "map", "Brighter", "Net"]


def test_what_does_not_decide_values_is_no_part_of_the_id(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        first = id_of(store, torch.neg)
        assert id_of(store, torch.neg, batch_size=4) == first
        assert id_of(store, torch.neg, device="meta") == first


SCRIPT = """
import functools, json, sys
import torch
from infinite_tensor import InfiniteTensor, TensorWindow
calls = []
def twice(kernel, region):
    calls.append(1)
    return torch.nn.functional.conv2d(region[None, None], kernel[None, None])[0, 0]
ramp = InfiniteTensor((None, None), lambda ctx: torch.full((8, 8), float(sum(ctx))), TensorWindow((8, 8)))
kernel = torch.full((3, 3), float(sys.argv[2]))
t = ramp.map(functools.partial(twice, kernel), halo=1, window=8, store=sys.argv[1])
t = t.map(lambda x: x + 1, window=8, store=sys.argv[1])
print(json.dumps({"pixels": t[0:16, 0:16].tolist(), "calls": len(calls), "id": t.tensor_id}))
"""


def test_a_second_run_finds_what_the_first_one_stored(tmp_path: Path) -> None:
    def ran(kernel: int) -> Any:
        done = run("-c", SCRIPT, tmp_path / "s.zarr", kernel, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    first, second, other = ran(1), ran(1), ran(2)
    assert (first["calls"], second["calls"], other["calls"]) == (4, 0, 4)
    assert first["pixels"] == second["pixels"] != other["pixels"]
    assert first["id"] == second["id"] != other["id"]
    with ZarrTileStore(tmp_path / "s.zarr", mode="r") as store:
        opened = store.open(first["id"])
        assert opened[0:16, 0:16].tolist() == first["pixels"]
        assert opened.args[0].output_window.size == (8, 8)


@pytest.mark.parametrize("kind", [MemoryTileStore, ZarrTileStore])
def test_other_weights_under_one_id_are_refused(kind: type, tmp_path: Path) -> None:
    with MemoryTileStore() if kind is MemoryTileStore else ZarrTileStore(tmp_path / "s.zarr") as store:

        def make(fn: Callable[..., Any], **options: Any) -> InfiniteTensor:
            return photo().map(fn, halo=2, store=store, tensor_id="t", **options)

        before = make(Net().eval())[...]
        assert torch.equal(make(Net().eval())[...], before)
        with pytest.raises(ValidationError, match=r"the weights of `fn` have changed\n.*store.clear_tensor\('t', dep"):
            make(Net(gain=2.0).eval())
        with pytest.raises(ValidationError, match="version: stored"):
            make(Net().eval(), version="by hand")


def test_the_code_of_this_library_is_no_part_of_what_a_function_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    mapped = source(numbers((PERIOD,)), (0,)).map(fn)
    before = mapped.to_json()["functions"]
    monkeypatch.setattr(type(mapped.f), "__call__", lambda *_: None)
    assert source(numbers((PERIOD,)), (0,)).map(fn).to_json()["functions"] == before


def test_in_memory_each_map_is_a_tensor_of_its_own() -> None:
    store = MemoryTileStore()
    one, other = (photo().map(Brighter(2.0), store=store) for _ in range(2))
    assert one.tensor_id != other.tensor_id
    assert one.tile_store is store


# The life of such a tensor.


class Counting:
    """Counts its calls; at the top of the module, so that it can be pickled."""

    def __init__(self) -> None:
        self.calls: list[Index] = []

    def __call__(self, region: torch.Tensor) -> torch.Tensor:
        self.calls.append(tuple(region.shape))
        return region[..., 1:-1, 1:-1] - region[..., 2:, 2:]


def unlike_the_next(region: torch.Tensor) -> torch.Tensor:
    return region[..., 1:-1, 1:-1] - region[..., 2:, 2:]


def expected() -> torch.Tensor:
    return unlike_the_next(padded(1))


def test_nothing_is_computed_before_it_is_read_and_each_window_once() -> None:
    fn = Counting()
    t = photo().map(fn, halo=1, window=8)
    assert fn.calls == []
    t[:, 0:8, 0:9]
    t[:, 0:8, 0:16]
    assert fn.calls == [(3, 10, 10)] * 2
    assert torch.equal(t[...], expected())
    assert len(fn.calls) == 3 * 5


def test_chains_threads_shards_and_masks(tmp_path: Path) -> None:
    t = photo(tile_store=tmp_path / "s.zarr", tensor_id="photo").map(torch.neg, window=5).map(torch.neg, window=7)

    def made(source: InfiniteTensor, name: str) -> InfiniteTensor:
        store = ZarrTileStore(tmp_path / name, tile_size=8)
        return source.map(unlike_the_next, halo=1, window=8, store=store)

    assert torch.equal(made(t, "t.zarr").read(..., workers=2), expected())
    other = made(photo(), "u.zarr")
    for rank in range(2):
        other.fill(sl[:, :, :], shard=(rank, 2), progress=False)
    assert other.is_filled(sl[:, :, :])
    assert torch.equal(other.stored_only()[...], expected())
    masked, corner = made(photo(), "v.zarr"), torch.zeros(3, 5, dtype=torch.bool)
    corner[0, 0] = True
    assert masked.fill(sl[:, :, :], where=Mask(corner, scale=8), progress=False).tiles == 1
    assert torch.equal(masked.stored_only()[:, :8, :8], expected()[:, :8, :8])


def test_it_is_pickled_and_opened_by_its_id(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path / "s.zarr", tile_size=8)
    t = photo().map(unlike_the_next, halo=1, window=8, store=store)
    t[:, 0:8, 0:8]
    store.flush()
    opened = ZarrTileStore(tmp_path / "s.zarr").open(t.tensor_id)
    assert (opened.shape, opened.dims, opened.args_windows) == (t.shape, t.dims, t.args_windows)
    assert torch.equal(opened[:, 0:8, 0:8], expected()[:, 0:8, 0:8])
    computing = ZarrTileStore(tmp_path / "s.zarr").open(t.tensor_id, f=t.f, args=t.args)
    assert torch.equal(computing[...], expected())
    top = source(torch.zeros(4, 4), (0, 1)).map(unlike_the_next, halo=1)
    mapped = pickle.loads(pickle.dumps(top.f))  # noqa: S301
    assert torch.equal(mapped((0, 0), torch.ones(66, 66)), torch.zeros(64, 64))


def test_a_map_of_a_network_is_opened_with_its_f(tmp_path: Path) -> None:
    t = photo().map(Net().eval(), halo=2, window=8, store=ZarrTileStore(tmp_path / "s.zarr", tile_size=8))
    before = t[...]
    t.tile_store.flush()
    # Without a FunctionChangedWarning.
    opened = ZarrTileStore(tmp_path / "s.zarr").open(t.tensor_id, f=t.f, args=t.args)
    assert torch.equal(opened[...], before)


def test_members_of_a_group_are_mapped() -> None:
    group = TensorGroup({"heights": source(numbers((9, 9)), (0, 1)), "mask": source(numbers((9, 9)), (0, 1))})
    t = infinite_tensor.map_windows(torch.mul, group["heights"], group["mask"], window=4)
    assert torch.equal(TensorGroup({"product": t})[0:9, 0:9]["product"], numbers((9, 9)) ** 2)


def test_an_input_smaller_than_the_halo() -> None:
    small = source(numbers((2, 1)), dims=("y", "x"))
    for padding, mode in itertools.product(["reflect", "symmetric", "wrap", "edge"], [(7, 5), (1, 9)]):
        fn = Resampled(mode, (Fraction(1), Fraction(1)))
        t = small.map(fn, halo=mode, padding=padding)
        assert torch.equal(t[...], fn.of_whole(numbers((2, 1)), (), padding))
