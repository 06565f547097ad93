"""A weighted mean has the bits of the formula, in every store, after any history of reads and fills."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    TensorWindow,
    TileAccessError,
    TileStore,
    ValidationError,
    WeightedMean,
)
from tests.support.blends import COMPLEX, REAL
from tests.support.building import VARIED, built
from tests.support.reference import Box, Index, Reference, Stage, region, same_bits
from tests.support.stores import sample

pytestmark = pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")


@dataclass(frozen=True)
class Noise:
    """An ``f`` of random values, some of them negative zeros, infinite or NaN."""

    size: Index
    dtype: torch.dtype

    def __call__(self, ctx: Index) -> torch.Tensor:
        """The window at `ctx`."""
        values = torch.randn(self.size, generator=torch.Generator().manual_seed(zlib.crc32(repr(ctx).encode())))
        values = values.to(self.dtype)
        flat = values.reshape(-1)
        flat[:3] = torch.tensor([-0.0, torch.inf, torch.nan][: len(flat)], dtype=self.dtype)
        return values


Case = tuple[tuple[int | None, ...], TensorWindow, Box]

CASES: dict[str, Case] = {
    "half": ((None, None), TensorWindow((8, 12), stride=(4, 6)), ((-9, -20), (21, 17))),
    "three quarters": ((None, None), TensorWindow((8, 12), stride=(2, 3)), ((-3, -20), (11, 7))),
    "seven eighths": ((None,), TensorWindow((16,), stride=2), ((-40,), (70,))),
    "no divisor": ((None, None), TensorWindow((7, 5), stride=(3, 4), offset=(2, -1)), ((-11, 3), (14, 30))),
    "with gaps": ((None, None), TensorWindow((3, 6), stride=(5, 2)), ((-6, 0), (12, 20))),
    "finite": ((23, 40), TensorWindow((8, 8), stride=3), ((0, 0), (23, 40))),
    "channels": ((3, None, 30), TensorWindow((3, 6, 8), stride=(3, 3, 4)), ((0, -4, 0), (3, 20, 30))),
    "kept": ((None, None), TensorWindow((4, 8), stride=3, offset=(2, 0), dimension_map=(None, 1)), ((0, 0), (9, 31))),
    "diagonal": ((None, None), TensorWindow((6, 8), stride=(2, 3), dimension_map=(0, 0)), ((-3, -8), (13, 17))),
    "clipped": ((23, 40), TensorWindow((8, 9), stride=(3, 4), offset=(-2, 0)), ((0, 0), (23, 40))),
    "clipped, larger than the tensor": ((5, 7, None), TensorWindow((8, 7, 6), 3), ((0, 0, -4), (5, 7, 13))),
    "volume": ((9, None, None), TensorWindow((4, 6, 6), stride=(2, 3, 4)), ((0, -3, 0), (9, 9, 12))),
}

MEANS = [*map(WeightedMean, ("mean", "linear", "hann", "gaussian")), WeightedMean("gaussian", sigma_scale=0.02)]


def make(case: str, store: TileStore, blend: Any, dtype: torch.dtype = torch.float32) -> InfiniteTensor:
    shape, window, _ = CASES[case]
    edge = "clip" if case.startswith("clipped") else "drop"
    f = Noise(window.size, dtype)
    return built(f, window, shape=shape, store=store, name="t", dtype=dtype, blend=blend, edge=edge)


def expected(case: str, blend: WeightedMean, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The pixels of the whole region of a case."""
    shape, window, box = CASES[case]
    edge = ("clip",) * len(shape) if case.startswith("clipped") else None
    return Reference([Stage(shape, dtype, window, Noise(window.size, dtype), blend=blend, edge=edge)]).region(0, box)[0]


def settled(pixels: torch.Tensor) -> torch.Tensor:
    """Pixels in which one NaN stands for all: which it is, processors leave open."""
    real = torch.view_as_real(pixels) if pixels.is_complex() else pixels
    return torch.where(real.isnan(), torch.nan, real)


def part_of(pixels: torch.Tensor, box: Box, part: Box) -> torch.Tensor:
    inner = [tuple(a - low for a, low in zip(end, box[0], strict=True)) for end in part]
    return pixels[region((inner[0], inner[1]))]


@pytest.mark.parametrize("kind", sample(["memory", "zarr with small tiles"], "zarr with small tiles"))
@pytest.mark.parametrize("case", sample(["three quarters", "channels"], "three quarters"))
@pytest.mark.parametrize("blend", MEANS, ids=repr)
@pytest.mark.parametrize("dtype", sample([*REAL, *COMPLEX], torch.bfloat16, torch.complex64))
def test_every_dtype_has_a_mean(kind: str, case: str, blend: WeightedMean, dtype: torch.dtype, tmp_path: Path) -> None:
    box = CASES[case][2]
    with VARIED[kind](tmp_path) as store:
        t = make(case, store, blend, dtype)
        t[region(box)][...] = 0
        assert same_bits(settled(t[region(box)]), settled(expected(case, blend, dtype)))


@pytest.mark.parametrize("kind", ["memory", "zarr"])
def test_given_weights_are_used_as_they_are(kind: str, tmp_path: Path) -> None:
    blend = WeightedMean(0.5 + torch.rand(8, 12, generator=torch.Generator().manual_seed(1)))
    with VARIED[kind](tmp_path) as store:
        pixels = make("three quarters", store, blend)[region(CASES["three quarters"][2])]
    assert same_bits(settled(pixels), settled(expected("three quarters", blend)))


OVERLAPS = [(16, 8), (16, 4), (16, 2), (64, 8)]


@pytest.mark.parametrize(("size", "stride"), OVERLAPS)
@pytest.mark.parametrize("blend", MEANS, ids=repr)
@pytest.mark.parametrize("dtype", sample(REAL, torch.float16))
def test_a_constant_stays_constant(size: int, stride: int, blend: WeightedMean, dtype: torch.dtype) -> None:
    constant = torch.tensor(0.7391, dtype=dtype)
    window = TensorWindow((size, size), stride=stride)
    t = built(lambda _: constant.expand(size, size).clone(), window, dtype=dtype, blend=blend)
    pixels = t[-size : 2 * size, 0:size]
    if dtype in (torch.float16, torch.bfloat16):
        assert bool((pixels == constant).all())
    else:
        over_a_pixel = (size // stride) ** 2
        unit = torch.finfo(dtype).eps / 2  # of numbers from 0.5 to 1
        assert (pixels - constant).abs().max().item() <= (over_a_pixel / 2 + 3) * unit


@pytest.mark.parametrize("mean", [WeightedMean("hann"), WeightedMean("gaussian", 0.02)], ids=repr)
def test_nothing_is_divided_by_zero_where_weights_are_least(mean: WeightedMean) -> None:
    # One window alone: in its corners both sums are as small as they can be.
    window = TensorWindow((512, 4, 512), stride=(256, 2, 256))
    t = built(lambda _: torch.full((512, 4, 512), 3.0), window, shape=(512, 4, 512), blend=mean)
    pixels = t[:, :, :]
    assert pixels.sub(3).abs().max() <= 2 * 2.0**-22


# Identity.


@pytest.mark.parametrize("kind", ["zarr", "hdf5"])
@pytest.mark.parametrize("blend", MEANS, ids=repr)
def test_a_mean_of_a_kind_is_found_again_without_being_given(kind: str, blend: WeightedMean, tmp_path: Path) -> None:
    box = CASES["half"][2]
    with VARIED[kind](tmp_path) as store:
        make("half", store, blend)[0:3, 0:5]
    with VARIED[kind](tmp_path) as store:
        t = store.open("t", HALF)
        assert t.blend == blend
        assert same_bits(settled(t[region(box)]), settled(expected("half", blend)))


HALF = Noise(CASES["half"][1].size, torch.float32)


@pytest.mark.parametrize("kind", ["zarr", "hdf5"])
def test_given_weights_are_needed_again_only_where_windows_must_be_blended(kind: str, tmp_path: Path) -> None:
    blend = WeightedMean(torch.linspace(1, 2, 12))
    box = CASES["half"][2]
    pixels = settled(expected("half", blend))
    with VARIED[kind](tmp_path) as store:
        make("half", store, blend).fill((slice(0, 8), slice(0, 8)), progress=False)
    with VARIED[kind](tmp_path) as store:
        t = store.open("t")
        part = (0, 0), (8, 8)
        assert same_bits(settled(t[region(part)]), part_of(pixels, box, part))
        with pytest.raises(TileAccessError):
            t[region(box)]
        with pytest.raises(ValidationError, match=r"blend=WeightedMean\(weights\)"):
            store.open("t", HALF)
        with pytest.raises(ValidationError, match=r"blend.weights"):
            store.open("t", HALF, blend=WeightedMean(torch.linspace(1, 3, 12)))
    with VARIED[kind](tmp_path) as store:
        t = store.open("t", HALF, blend=blend)
        assert same_bits(settled(t[region(box)]), pixels)


def test_weights_that_do_not_fit_the_window_are_refused_on_reopening_too(tmp_path: Path) -> None:
    weights = torch.linspace(1, 2, 12)
    with VARIED["zarr"](tmp_path) as store:
        make("half", store, WeightedMean(weights))
    with VARIED["zarr"](tmp_path) as store:
        # The digest of these is the same.
        with pytest.raises(ValidationError, match="broadcast"):
            store.open("t", HALF, blend=WeightedMean(weights[None, None]))
        assert store.open("t", HALF, blend=WeightedMean(weights[None]))[0, 0].isfinite()


@pytest.mark.parametrize("kind", ["memory", "zarr"])
def test_other_weights_under_the_same_id_are_refused_with_both(kind: str, tmp_path: Path) -> None:
    with VARIED[kind](tmp_path) as store:
        make("half", store, "gaussian")
        with pytest.raises(ValidationError, match=r"blend.sigma_scale"):
            make("half", store, WeightedMean("gaussian", 0.2))
        with pytest.raises(ValidationError, match=r"blend.weights"):
            make("half", store, "hann")
        with pytest.raises(ValidationError, match=r"blend: stored \{'weights': 'gaussian'.*given None"):
            make("half", store, None)


# Moving.


@pytest.mark.parametrize("kind", ["memory", "zarr"])
def test_moved_to_integers_it_is_refused_and_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    with VARIED[kind](tmp_path) as store:
        t = make("half", store, "gaussian")
        before = t[0:8, 0:8]
        with pytest.raises(ValidationError, match=r"torch\.int32"):
            t.to(torch.int32)
        assert t.dtype == torch.float32
        assert same_bits(settled(t[0:8, 0:8]), settled(before))
