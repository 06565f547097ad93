"""A network with outputs of several resolutions, over images whose extents do not divide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.nn import functional
from zarr.storage import MemoryStore

from infinite_tensor import (
    InfiniteTensor,
    Mask,
    Output,
    TensorGroup,
    TensorWindow,
    ZarrTileStore,
    from_array,
    predict,
    sl,
)
from infinite_tensor.errors import RegionError
from tests.behaviour.pipelines.loops import Sizes, looped
from tests.support.stores import sample

pytest.importorskip("tensordict")


SCALES = {"double": Fraction(2), "full": Fraction(1), "half": Fraction(1, 2), "quarter": Fraction(1, 4)}


def resized(batch: torch.Tensor, scale: Fraction) -> torch.Tensor:
    """Two channels of other values, at another resolution."""
    values = torch.cat([batch, (5 * batch).sin()], 1)
    if scale == 2:
        for dim in range(2, batch.ndim):
            values = values.repeat_interleave(2, dim)
        return values
    pool = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[batch.ndim - 3]
    return pool(values, int(1 / scale))


class Net:
    """It returns outputs of these names, in this order, and counts its calls."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self._calls: list[int] = []

    @property
    def calls(self) -> int:
        return len(self._calls)

    def __call__(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        self._calls.append(len(batch))
        return {name: resized(batch, SCALES[name]) for name in self.names}


def alone(name: str, picture: torch.Tensor, **how: Any) -> torch.Tensor:
    """What a network makes of a picture that has this output and no other."""
    found: torch.Tensor = predict(lambda batch: resized(batch, SCALES[name]), picture, progress=False, **how)[...]
    return found


def together(net: Net, picture: Any, target: Any = None, **how: Any) -> TensorGroup:
    """What a network makes of a picture with all its outputs."""
    found = predict(net, picture, target, progress=False, **how)
    assert isinstance(found, TensorGroup)
    return found


def image(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def over(region: Sequence[slice], scale: Fraction) -> tuple[slice, ...]:
    """The pixels of a tensor that lie over a region, in pixels that are `1 / scale` times as fine."""
    return tuple(slice(math.floor(part.start * scale), math.ceil(part.stop * scale)) for part in region)


def small_tiles() -> ZarrTileStore:
    return ZarrTileStore(MemoryStore(), tile_size=8)


DIMS = ("c", "y", "x")
CASES = [
    pytest.param((1, 133), (32,), 0.5, id="signal"),
    pytest.param((1, 67, 50), (16, 16), 0.5, id="image"),
    pytest.param((1, 7, 59), (16, 16), 0.25, id="image lower than a window"),
    pytest.param((1, 16, 35), (16, 16), 0.5, id="image as high as a window"),
    pytest.param((1, 5, 6), (16, 16), 0.5, id="image within a window"),
    pytest.param((1, 13, 9, 18), (8, 8, 8), 0.5, id="volume"),
]


@pytest.mark.parametrize(
    "order", sample([("full", "half"), ("quarter", "half"), ("half", "double")], ("half", "double")), ids=str
)
@pytest.mark.parametrize(("shape", "window", "overlap"), CASES)
def test_each_output_is_what_it_is_alone(
    order: tuple[str, ...], shape: Sizes, window: Sizes, overlap: float, tmp_path: Path
) -> None:
    picture, how = image(*shape), {"window": window, "overlap": overlap}
    expected = {name: alone(name, picture, **how) for name in order}
    net = Net(*order)
    found = together(net, picture, small_tiles(), **how)
    calls = net.calls
    finest = max(SCALES[name] for name in order)
    assert found.shape == tuple(math.ceil(n * finest) for n in shape[1:])
    assert found.is_filled(...)
    assert found.plan(...).windows == 0
    place, same = found[...], found[tuple(slice(0, n) for n in found.shape)]
    found.export(..., tmp_path / "all.zarr", progress=False)
    exported = zarr.open_group(tmp_path / "all.zarr", mode="r")
    for name in order:
        assert torch.equal(found[name][...], expected[name])
        assert torch.equal(place[name].movedim(-1, 0), expected[name])
        assert torch.equal(same[name].movedim(-1, 0), expected[name])
        assert np.array_equal(np.asarray(exported[name]), expected[name].numpy())
    assert net.calls == calls


@pytest.mark.parametrize("name", sample(SCALES, "double", "half"))
@pytest.mark.parametrize(("shape", "window", "overlap"), CASES)
def test_one_output_is_what_the_loop_makes(name: str, shape: Sizes, window: Sizes, overlap: float) -> None:
    picture, stride = image(*shape), tuple(int(n * (1 - overlap)) for n in window)
    mean = alone(name, picture, window=window, overlap=overlap, blend="mean")
    scale = SCALES[name]
    expected = looped(lambda batch: resized(batch, scale), picture, window, stride, scale, torch.ones)
    torch.testing.assert_close(mean, expected)


@pytest.mark.parametrize(
    "order", sample([("full", "half", "quarter"), ("quarter", "half", "full")], ("quarter", "half", "full")), ids=str
)
@pytest.mark.parametrize(
    ("region", "pixels"),
    [
        (sl[1:2, 3:5], (slice(1, 2), slice(3, 5))),
        (sl[66:67, 49:50], (slice(66, 67), slice(49, 50))),
        (sl[5, 0:50], (slice(5, 6), slice(0, 50))),
        (sl[60:90], (slice(60, 67), slice(0, 50))),
        (sl[..., 3:9], (slice(0, 67), slice(3, 9))),
    ],
    ids=str,
)
def test_a_region_is_in_pixels_of_the_finest_output_and_is_widened_for_the_others(
    order: tuple[str, ...], region: Any, pixels: tuple[slice, ...]
) -> None:
    net, picture = Net(*order), image(1, 67, 50)
    found = together(net, picture, small_tiles(), window=16, dims=DIMS, region=region)
    calls = net.calls
    assert found.is_filled(region)
    assert not found.is_filled(...)
    place = found[pixels]
    assert net.calls == calls
    for name in order:
        expected = alone(name, picture, window=16, dims=DIMS)
        assert torch.equal(place[name].movedim(-1, 0), expected[(slice(None), *over(pixels, SCALES[name]))])


@pytest.mark.parametrize(
    ("shape", "order"),
    [((1, 67, 50), ("full", "half")), ((1, 7, 59), ("quarter", "full")), ((1, 16, 35), ("half", "full"))],
    ids=str,
)
@pytest.mark.parametrize("part", [None, sl[0:7, 3:30]], ids=["whole", "region"])
@pytest.mark.parametrize("kind", sample(["array", "coarse", "tensor", "callable"], "array"))
def test_a_mask_lies_over_each_output(kind: str, part: Any, order: tuple[str, ...], shape: Sizes) -> None:
    wanted = torch.zeros(shape[1:], dtype=torch.bool)
    wanted[-1, -1] = wanted[2, 20] = True
    where: Any = {
        "array": wanted,
        "coarse": Mask(functional.max_pool2d(wanted[None].float(), 5, ceil_mode=True)[0], scale=5),
        "tensor": from_array(wanted),
        "callable": lambda pixels: wanted[pixels].any(),
    }[kind]
    net, picture = Net(*order), image(*shape)
    how: dict[str, Any] = {"window": 16, "dims": DIMS}
    target = ZarrTileStore(MemoryStore(), tile_size=4)
    found = together(net, picture, target, region=part, where=where, **how)
    region = ... if part is None else part
    assert found.is_filled(region, where)
    assert not found.is_filled(...)
    calls = net.calls
    for name in order:
        expected, scale = alone(name, picture, **how), SCALES[name]
        pixel = (math.floor(2 * scale), math.floor(20 * scale))
        assert torch.equal(found[name][(slice(None), *pixel)], expected[(slice(None), *pixel)])
        if part is None:
            assert torch.equal(found[name][:, -1, -1], expected[:, -1, -1])
    assert net.calls == calls
    skipped = found.coverage(region, "skipped", where)
    assert all(skipped[name].any() for name in order)


def test_pixels_of_each_are_reduced() -> None:
    picture, how = image(1, 67, 51), {"window": 16, "dims": DIMS}
    for names in (("full", "half", "quarter"), ("quarter", "half", "full")):
        found = together(Net(*names), picture, reduce={"half": "argmax", "full": "argmax"}, **how)
        for name in names:
            scores = alone(name, picture, **how)
            assert torch.equal(found[name][...], scores if name == "quarter" else scores.argmax(0).to(torch.uint8))


def test_it_is_the_same_group_when_it_is_continued_with_outputs_in_another_order(tmp_path: Path) -> None:
    picture, how = image(1, 67, 50), {"window": 16, "dims": DIMS}
    names = ("full", "double", "half")
    begun = together(Net(*names), picture, tmp_path / "s.zarr", region=sl[0:9, 0:9], **how)
    again = together(Net(*names), picture, tmp_path / "s.zarr", region=sl[0:9, 0:9], **how)
    assert begun.shape == again.shape == (134, 100)
    assert [again.scale(name) for name in names] == [begun.scale(name) for name in names]


def test_a_source_without_ends_has_whole_pixels_of_each() -> None:
    window = TensorWindow((1, 8, 8))
    base = InfiniteTensor((1, None, None), lambda ctx: torch.full((1, 8, 8), ctx[1] + 0.5 * ctx[2]), window)
    net = Net("quarter", "full")
    found = together(net, base, small_tiles(), window=(16, 16), region=sl[-3:7, 5:6])
    calls = net.calls
    place = found[-3:7, 5:6]
    assert net.calls == calls
    assert place["quarter"].shape == (3, 1, 2)
    assert torch.equal(place["quarter"].movedim(-1, 0), found["quarter"][:, -1:2, 1:2])


@pytest.mark.parametrize("names", [("full", "half"), ("half", "full")], ids=str)
def test_outputs_of_one_f_keep_their_extents(names: tuple[str, ...]) -> None:
    extents, outputs = {"full": (129, 50), "half": (65, 25)}, dict[str, Output]()
    for name in names:
        side = int(16 * SCALES[name])
        outputs[name] = Output(extents[name], torch.float32, TensorWindow((side, side)), edge="clip")

    def f(ctx: Sizes) -> dict[str, torch.Tensor]:
        rows, columns = (torch.arange(16.0) + 16 * i for i in ctx)
        values = 100 * rows[:, None] + columns
        return {"full": values, "half": values[::2, ::2]}

    values = 100 * torch.arange(129.0)[:, None] + torch.arange(50.0)
    expected = {"full": values, "half": values[::2, ::2]}
    group = InfiniteTensor.from_multi(f, outputs, tile_store=small_tiles())
    plan, report = group.plan(...), group.fill(..., progress=False)
    assert plan.calls == 9 * 4
    assert report.windows == plan.windows == 9 * 4
    for name in names:
        assert torch.equal(group[...][name], expected[name])
        assert group.is_filled(...)


@pytest.mark.parametrize("rows", [5, 16])
def test_outputs_of_one_f_share_a_dimension_of_a_single_window(rows: int) -> None:
    outputs = {
        "scores": Output((3, rows, 50), torch.float32, TensorWindow((3, 16, 16), None, 0, (None, 0, 1)), edge="clip"),
        "labels": Output((rows, 50), torch.float32, TensorWindow((16, 16)), edge="clip"),
    }
    both = {"scores": torch.ones(3, 16, 16), "labels": torch.ones(16, 16)}
    group = InfiniteTensor.from_multi(lambda _ctx: both, outputs)
    assert group.shape == (rows, 50)
    assert group[1:3, 0:20].batch_size == (2, 20)


@pytest.mark.parametrize("target", [None, "s.zarr"])
@pytest.mark.parametrize(
    ("region", "net"),
    [
        (sl[67:80, 0:5], Net("full")),
        (sl[0:5, 50:], Net("full", "half")),
        (sl[5:5, 0:5], Net("full")),
        (sl[9:3], lambda batch: resized(batch, Fraction(1))),
    ],
)
def test_a_region_outside_of_the_prediction_is_refused_with_its_extent(
    region: Any, net: Callable[..., Any], target: str | None, tmp_path: Path
) -> None:
    with pytest.raises(RegionError, match=r"region=.* contains no pixel of the prediction; .* extents \(67, 50\)"):
        predict(net, image(1, 67, 50), target and tmp_path / target, window=(16, 16), region=region, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_region_outside_of_a_coarser_prediction_is_refused_with_that_extent() -> None:
    with pytest.raises(RegionError, match=r"extents \(34, 25\) of the prediction"):
        alone("half", image(1, 67, 50), window=(16, 16), region=sl[40:50])
