"""Coarser pixels, against a reference that knows blocks and nothing of windows."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
import xarray
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st

from infinite_tensor import (
    InfiniteTensor,
    Mask,
    MemoryTileStore,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
    from_raster,
    predict,
    sl,
)
from infinite_tensor.filling.fill import Request, prepare
from infinite_tensor.geometry.regions import parse
from infinite_tensor.pipelines.pyramid import stored_levels
from infinite_tensor.values.coarse import Coarsening

Pair = tuple[int, int]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64)


def of_block(values: list[Any], method: str, dtype: torch.dtype) -> Any:
    """What the pixels of one block become, in lexicographic order."""
    if method == "nearest":
        return values[0]
    if method == "mode":
        return min(values, key=lambda value: (-values.count(value), value))
    known = [value for value in values if not math.isnan(value)] if dtype.is_floating_point else values
    if not known:
        return math.nan
    if method != "mean":
        return max(known) if method == "max" else min(known)
    if not dtype.is_floating_point:
        return round(torch.tensor(sum(known), dtype=torch.float64).item() / len(known))
    total = torch.zeros((), dtype=torch.float64 if dtype is torch.float64 else torch.float32)
    for value in known:
        total += value
    return (total / len(known)).item()


def reference(pixels: torch.Tensor, factors: Sequence[int], method: str) -> torch.Tensor:
    out = torch.empty([-(-n // k) for n, k in zip(pixels.shape, factors, strict=True)], dtype=pixels.dtype)
    for at in itertools.product(*map(range, out.shape)):
        block = pixels[tuple(slice(i * k, (i + 1) * k) for i, k in zip(at, factors, strict=True))]
        out[at] = of_block(block.flatten().tolist(), method, pixels.dtype)
    return out


def methods_of(dtype: torch.dtype) -> list[Any]:
    kinds = ["mean"] if dtype.is_floating_point else ["mode"] if dtype is torch.bool else ["mean", "mode"]
    return ["max", "min", "nearest", *kinds]


def drawn(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        pixels = torch.randn(*shape, generator=generator, dtype=torch.float64) * 100
        pixels[torch.rand(*shape, generator=generator) < 0.3] = math.nan
        return pixels.to(dtype)
    low = 0 if dtype in (torch.bool, torch.uint8, torch.uint16, torch.uint32) else -3
    return torch.randint(low, 2 if dtype is torch.bool else 5, shape, generator=generator).to(dtype)


CUTS = [((7, 9), (2, 2)), ((3, 8, 5), (1, 3, 2)), ((11,), (4,)), ((6, 6), (1, 6))]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_pixels_are_those_of_the_reference(dtype: torch.dtype) -> None:
    for seed, (shape, factors) in enumerate(CUTS):
        pixels = drawn(shape, dtype, seed)
        for method in methods_of(dtype):
            coarse = from_array(pixels).coarsen(factors, method)[...]
            expected = reference(pixels, factors, method)
            assert coarse.dtype == dtype
            assert np.array_equal(coarse.double(), expected.double(), equal_nan=True), (shape, method)


def plane(store: Any = None, tensor_id: str | None = None, **options: Any) -> InfiniteTensor:
    """Halves, so that sums are exact; windows overlap."""

    def f(ctx: Sequence[int]) -> torch.Tensor:
        y, x = ctx[0] * 96, ctx[1] * 120
        return (torch.arange(y, y + 128)[:, None] * 3 % 7 + torch.arange(x, x + 128) * 5 % 11) / 2

    window = TensorWindow((128, 128), stride=(96, 120))
    return InfiniteTensor((None, None), f, window, tile_store=store, tensor_id=tensor_id, **options)


@settings(max_examples=4, deadline=None)
@given(
    st.tuples(*[st.integers(-700, 700)] * 2),
    st.tuples(*[st.integers(1, 60)] * 2),
    st.sampled_from([(2, 2), (3, 1), (2, 5)]),
)
def test_any_region_of_a_tensor_without_end(start: Pair, size: Pair, factor: Pair) -> None:
    t, region = plane(), tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))
    fine = t[tuple(slice(part.start * k, part.stop * k) for part, k in zip(region, factor, strict=True))]
    expected = fine.view(size[0], factor[0], size[1], factor[1]).double().mean((1, 3)).float()
    assert torch.allclose(t.coarsen(factor)[region], expected, rtol=1e-6, atol=0)


def test_an_int_is_for_dimensions_of_space() -> None:
    def shape(dims: Sequence[str] | None, *extents: int) -> tuple[int | None, ...]:
        return from_array(torch.zeros(extents), dims=dims).coarsen(2).shape

    assert shape(("c", "y", "x"), 4, 6, 8) == (4, 3, 4)
    assert shape(("z", "y", "x"), 4, 6, 8) == (2, 3, 4)
    assert shape(("y", "x", "c"), 4, 6, 8) == (2, 3, 8)
    assert shape(None, 4, 6, 8) == (4, 3, 4)
    assert shape(None, 5) == (3,)
    with pytest.raises(ValidationError, match="none of the dimensions"):
        shape(("time", "c"), 4, 4)


@pytest.mark.parametrize("factor", [0, -2, 2.5, "2", (2,), (2, 0), (2, 2, 2), None, [None, 2]])
def test_factors_that_are_none_are_told(factor: Any) -> None:
    with pytest.raises(ValidationError, match="factor must be a positive int, or a tuple of 2"):
        plane().coarsen(factor)


def test_what_would_take_hours_for_a_pixel_is_told_to_be_done_in_steps() -> None:
    with pytest.raises(
        ValidationError,
        match=r"factor must combine at most .*, got 16,777,216 pixels; .*t\.coarsen\(64\)\.coarsen\(64\)",
    ):
        plane().coarsen(4096)
    assert plane().coarsen((1, 2**16)).shape == (None, None)


NO_METHODS: dict[str, Any] = {"bool": "mean", "float32": "mode", "complex64": "mean", "uint64": "max", "int8": "sum"}


@pytest.mark.parametrize("dtype", NO_METHODS)
def test_methods_that_do_not_fit_are_told(dtype: str) -> None:
    with pytest.raises(ValidationError, match=r"method must be one of|cannot be coarsened by"):
        from_array(torch.zeros(4, 4).to(getattr(torch, dtype))).coarsen(2, NO_METHODS[dtype])


def test_an_integer_mean_is_rounded_to_even_and_does_not_overflow() -> None:
    pixels = torch.tensor([[1, 2, 200, 255], [3, 4, 255, 255]], dtype=torch.uint8)
    assert from_array(pixels).coarsen(2)[...].tolist() == [[2, 241]]
    halves = torch.tensor([[0, 1, 1, 2, -1, 0, -1, -2]], dtype=torch.int16)
    assert from_array(halves).coarsen((1, 2))[...].tolist() == [[0, 2, 0, -2]]


def test_it_is_stored_and_opened_without_an_f(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s", tile_size=64) as store:
        t = plane(store, "t")
        t.fill(sl[-512:512, 0:512], progress=False)
        t.coarsen(2, "max", store=store, tensor_id="coarse")
        expected = plane().coarsen(2, "max")[-16:24, 0:32]
    with ZarrTileStore(tmp_path / "s", mode="r") as store:
        again = store.open("coarse", args=[store.open("t")])
        assert torch.equal(again[-16:24, 0:32], expected)
        assert torch.equal(store.open("coarse")[-16:24, 0:32], expected)


@pytest.mark.parametrize("said", [{"factor": [2, 2]}, 5, {"factor": [2], "method": "max"}, {"factor": 2, "method": 3}])
def test_a_version_that_says_no_coarsening_makes_none(said: Any) -> None:
    store, window = MemoryTileStore(), TensorWindow((4, 4))
    options: dict[str, Any] = {"tile_store": store, "tensor_id": "t", "version": {"infinite_tensor.coarsen": said}}
    InfiniteTensor((None, None), lambda _, pixels: pixels, window, [plane(store, "p")], [window], **options)
    assert store.open("t").f is None


@pytest.mark.parametrize("shape", [(5, 3), (9, 17), (1, 13), (33, 7), (64, 64)])
def test_a_mean_stays_a_mean_where_extents_are_odd(shape: tuple[int, int]) -> None:
    pixels = torch.rand(shape, dtype=torch.float64)
    store = MemoryTileStore()
    for k, level in enumerate(from_array(pixels).pyramid(7, store=store), 1):
        size = 2**k
        corners = itertools.product(range(0, shape[0], size), range(0, shape[1], size))
        parts = [pixels[y : y + size, x : x + size].mean() for y, x in corners]
        assert level.shape == (-(-shape[0] // size), -(-shape[1] // size))
        assert torch.allclose(level[...].flatten(), torch.stack(parts), rtol=1e-12, atol=0)


def test_levels_end_where_nothing_is_long_and_lie_beside_their_tensor(tmp_path: Path) -> None:
    store, window = ZarrTileStore(tmp_path / "s"), TensorWindow((2, 256, 256))
    how: dict[str, Any] = {"edge": "clip", "tile_store": store, "tensor_id": "a/b", "dims": ("c", "y", "x")}
    t = InfiniteTensor((2, 1030, 3000), lambda _: torch.zeros(2, 256, 256), window, **how)
    levels = t.pyramid()
    assert [level.tensor_id for level in levels] == ["a/b/level-1", "a/b/level-2", "a/b/level-3"]
    assert [level.shape for level in levels] == [(2, 515, 1500), (2, 258, 750), (2, 129, 375)]
    assert all(level.tile_store is store for level in levels)
    assert t.pyramid(1, "max", store=MemoryTileStore())[0].tensor_id == "a/b/level-1"
    with pytest.raises(ValidationError, match="a/b/level-1"):
        t.pyramid(1, "max")


def test_levels_of_what_has_no_end_or_stores_nothing_are_asked_for() -> None:
    with pytest.raises(ValidationError, match="levels must be given"):
        plane().pyramid()
    with pytest.raises(ValidationError, match=r"has no store for levels; give store="):
        from_array(torch.zeros(4, 4)).pyramid(1)
    with pytest.raises(ValidationError, match="levels must be a positive int"):
        plane().pyramid(0)


Box = tuple[slice, ...]
TILE = 32


def made(store: Any, calls: list[tuple[int, ...]], shape: Sequence[int | None] = (None, None)) -> InfiniteTensor:
    """Random pixels, whose windows overlap and cross the borders of tiles."""

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        calls.append(ctx)
        return torch.rand(40, 24, generator=torch.Generator().manual_seed(hash(ctx) % 2**31))

    window = TensorWindow((40, 24), stride=(30, 20))
    return InfiniteTensor(shape, f, window, tile_store=store, tensor_id="t", blend="mean", edge="clip")


def complete(tensor: InfiniteTensor, box: Box) -> np.ndarray[Any, Any]:
    """Which pixels of a region, which begins with a tile, lie in complete tiles."""
    found = tensor.coverage(box, state="stored").numpy()
    for d, n in enumerate(tensor.tile_store.tensor_definition(tensor.tensor_id)["tile_size"]):
        found = found.repeat(n, d)
    return found[tuple(slice(part.stop - part.start) for part in box)]


def over_whole(known: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which pixels of a level lie in windows of 256 over such pixels alone."""
    rows, columns = (-(-n // 512) for n in known.shape)
    grown = np.pad(known, [(0, -n % 512) for n in known.shape], constant_values=True)
    windows = grown.reshape(rows, 512, columns, 512).all((1, 3))
    return windows.repeat(256, 0).repeat(256, 1)[: -(-known.shape[0] // 2), : -(-known.shape[1] // 2)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("shape", "region"),
    [
        ((None, None), sl[0:1024, 0:1024]),
        ((None, None), sl[-537:1091, 5:1300]),
        ((None, 600), sl[-8:1080, 0:600]),
        ((1100, 700), sl[0:1100, 0:700]),
        ((1100, 700), sl[500:1100, 100:700]),
    ],
)
def test_a_fill_computes_of_levels_what_lies_over_what_it_fills(
    shape: tuple[int | None, ...], region: Box, masked: bool, tmp_path: Path
) -> None:
    calls: list[tuple[int, ...]] = []
    with ZarrTileStore(tmp_path / "s", tile_size=TILE) as store:
        t = made(store, calls, shape)
        where = Mask(lambda pixels: pixels[0].start > 40, dims=(0, 1)) if masked else None
        t.fill(region, progress=False, where=where)
        before = sorted(calls)
        report = t.fill(region, progress=False, where=where, pyramid=True)
        assert sorted(calls) == before, "what is filled is enough"
        below = t
        for level in t.pyramid(len(report.tensors) - 1):
            whole = tuple(slice(-512, 512) if extent is None else slice(0, extent) for extent in level.shape)
            fine = tuple(slice(-1024, 1024) if extent is None else slice(0, extent) for extent in below.shape)
            assert np.array_equal(complete(level, whole), over_whole(complete(below, fine)))
            below = level


def test_a_method_other_than_that_of_stored_levels_is_told(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path) as store:
        t = made(store, [], (100, 100))
        (level,) = t.pyramid(1, "max")
        with pytest.raises(ValidationError, match=r"method must be 'max', .*, got 'mean'; give method='max'"):
            t.pyramid(1, "mean")
        assert t.pyramid(1)[0].version == level.version
        store.clear_tensor(level.tensor_id)
        assert t.pyramid(1)[0].shape == (50, 50)


def test_a_fill_of_levels_stores_what_reads_would(tmp_path: Path) -> None:
    calls: list[tuple[int, ...]] = []
    with ZarrTileStore(tmp_path / "s", tile_size=TILE) as store:
        t = made(store, calls, (1500, 1100))
        report = t.fill(sl[...], progress=False, pyramid=True, max_memory="300MB")
        levels = t.pyramid()
        assert [each.tensor_id for each in report.tensors] == ["t", *(level.tensor_id for level in levels)]
        found = [level[...] for level in levels]
        assert all(level.is_filled(sl[...]) for level in levels)
    read = made(MemoryTileStore(), [], (1500, 1100))
    assert all(torch.equal(*pair) for pair in zip(found, [level[...] for level in read.pyramid()], strict=True))
    assert len(calls) == len(set(calls))


@pytest.mark.parametrize(("side", "tile", "most"), [(2048, 128, "78MiB"), (2500, 100, "100MB")])
def test_levels_of_more_than_fits_into_memory_are_filled_from_those_below(
    side: int, tile: int, most: str, tmp_path: Path
) -> None:
    pixels, calls = drawn((2560, 2560), torch.float32, 0).nan_to_num(), Counter[tuple[int, ...]]()

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        calls[ctx] += 1
        return pixels[ctx[0] * 256 : ctx[0] * 256 + 256, ctx[1] * 256 : ctx[1] * 256 + 256]

    with ZarrTileStore(tmp_path / "s", tile_size=tile) as store:
        t = InfiniteTensor((side, side), f, TensorWindow((256, 256)), edge="clip", tile_store=store, tensor_id="t")
        report = t.fill(sl[...], progress=False, pyramid=True, max_memory=most)
        assert report.bands > 1
        assert set(calls.values()) == {1}
        levels, read = t.pyramid(), from_array(pixels[:side, :side]).pyramid(store=MemoryTileStore())
        assert len(report.tensors) == 1 + len(levels)
        assert all(level.is_filled(sl[...]) for level in levels)
        assert all(torch.equal(filled[...], of_all[...]) for filled, of_all in zip(levels, read, strict=True))


@pytest.mark.parametrize("shape", [(10_000, 12_000), (300, 400_000), (9_000, 700)])
@pytest.mark.parametrize("most", [160 * 2**20, 2**30])
def test_a_fill_of_levels_plans_for_the_memory_that_it_may_take(shape: Pair, most: int, tmp_path: Path) -> None:
    window = TensorWindow((256, 256))
    with ZarrTileStore(tmp_path / "s", tile_size=256) as store:
        t = InfiniteTensor(shape, torch.zeros, window, edge="clip", tile_store=store, tensor_id="t")
        job = prepare([Request(t, parse(..., shape))], most, None, [t.pyramid(5)])
        assert job.peak_memory <= most


def test_a_mask_bounds_what_is_stored_beside_levels_as_without_them(tmp_path: Path) -> None:
    stored = []
    for pyramid in (False, True):
        with ZarrTileStore(tmp_path / str(pyramid), tile_size=TILE) as store:
            t, where = made(store, []), Mask(lambda pixels: pixels[0].start < 1024, dims=(0, 1))
            t.fill(sl[0:1100, 0:1100], progress=False, where=where, pyramid=pyramid)
            info = store.tensor_info("t")
            stored.append((info.tiles_complete, info.tiles_partial))
    assert stored[0] == stored[1] == (32 * 35, 0)


def test_a_shard_has_no_levels(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="a shard cannot fill levels"):
        made(ZarrTileStore(tmp_path / "s"), []).fill(sl[0:9, 0:9], shard=(0, 2), pyramid=True)
    with pytest.raises(ValidationError, match="pyramid must be True, False or a method"):
        made(ZarrTileStore(tmp_path / "s"), []).fill(sl[0:9, 0:9], pyramid=3)  # type: ignore[arg-type]


def test_levels_of_labels_have_the_mode_after_shards_too(tmp_path: Path) -> None:
    net, image = torch.nn.Conv2d(3, 4, 3, padding=1), torch.rand(3, 700, 600)
    options: dict[str, Any] = {"window": 128, "dims": ("c", "y", "x"), "reduce": "argmax", "progress": False}
    for rank in range(2):
        predict(net, image, tmp_path / "s.zarr", shard=(rank, 2), **options)
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        labels = store.open("prediction")
        labels.fill(..., pyramid=True, progress=False)
        (level,) = labels.pyramid()
        assert torch.equal(level[...], reference(labels[...], (2, 2), "mode"))


def test_what_is_invalidated_is_dropped_of_levels_too(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s", tile_size=256) as store:
        t = made(store, [], (2048, 2048))
        t.fill(sl[...], progress=False, pyramid=True)
        t.invalidate(sl[600:610, 1000:1001])
        first, second = t.pyramid(2)
        gone = np.argwhere(first.coverage(sl[...], state="missing").numpy())
        assert gone.tolist() == [[1, 1]]
        assert np.argwhere(second.coverage(sl[...], state="missing").numpy()).tolist() == [[0, 0]]


@pytest.mark.slow
def test_labels_of_a_prediction_have_the_mode_and_an_overwrite_takes_levels_along(tmp_path: Path) -> None:
    net = torch.nn.Conv2d(3, 4, 3, padding=1)
    image = torch.rand(3, 700, 1100)
    options: dict[str, Any] = {"window": 128, "dims": ("c", "y", "x"), "reduce": "argmax", "pyramid": True}
    labels = predict(net, image, tmp_path / "s", progress=False, **options)
    store = labels.tile_store
    (level, coarser) = (store.open(f"prediction/level-{k}") for k in (1, 2))
    assert torch.equal(level[0:350, 0:550], reference(labels[0:700, 0:1100], (2, 2), "mode"))
    before = coarser[...]
    with torch.no_grad():
        net.weight.neg_()
    again = predict(net, image, tmp_path / "s", overwrite=True, progress=False, **options)
    fresh = reference(again[0:100, 0:100], (2, 2), "mode")
    assert torch.equal(store.open("prediction/level-1")[0:50, 0:50], fresh)
    assert not torch.equal(store.open("prediction/level-2")[...], before)


def raster(path: Path, pixels: np.ndarray[Any, Any], **profile: Any) -> Path:
    """A raster of 10 m a pixel, from (1000, 2000) on."""
    bands, height, width = pixels.shape
    transform = Affine(10, 0, 1000, 0, -10, 2000)
    shape = {"count": bands, "height": height, "width": width, "dtype": pixels.dtype}
    with rasterio.open(path, "w", driver="GTiff", transform=transform, crs="EPSG:32633", **shape, **profile) as file:
        file.write(pixels)
    return path


@pytest.mark.parametrize("method", ["mean", "max", "min", "mode"])
def test_nodata_of_a_raster_counts_nowhere_and_stays_nodata(method: Any, tmp_path: Path) -> None:
    pixels = np.array([[[255, 1, 255, 255, 7], [2, 2, 255, 255, 255], [255, 9, 3, 3, 255]]], dtype=np.uint8)
    coarse = from_raster(raster(tmp_path / "r.tif", pixels, nodata=255)).coarsen(2, method)
    first = {"mean": 2, "max": 2, "min": 1, "mode": 2}[method]
    assert coarse[...].tolist() == [[[first, 255, 7], [9, 3, 255]]]
    coarse.export(sl[...], tmp_path / "coarse.tif", progress=False)
    with rasterio.open(tmp_path / "coarse.tif") as file:
        assert file.nodata == 255
        assert file.transform == Affine(20, 0, 1000, 0, -20, 2000)


SAID = [
    ("float32", np.array([-9999.0]), -9999),
    ("float32", "-9999", -9999),
    ("float32", math.inf, math.inf),
    ("float16", -9999.0, -10000),
    ("int64", "-9999", -9999),
    ("int32", -9999.0, -9999),
    ("float32", [-9999.0, -1.0], None),
    ("float32", "none", None),
    ("int32", 1e20, None),
    ("int32", 2**64, None),
    ("int32", -9998.5, None),
    ("int64", math.inf, None),
    ("uint8", -1, None),
]


@pytest.mark.filterwarnings(
    "ignore::rasterio.errors.NotGeoreferencedWarning", "ignore::infinite_tensor.MeaningLostWarning"
)
@pytest.mark.parametrize(("dtype", "said", "nodata"), SAID, ids=str)
def test_what_is_said_of_nodata_is_the_same_for_means_statistics_and_files(
    dtype: str, said: Any, nodata: float | None, tmp_path: Path
) -> None:
    pixels = np.array([[1, 2, 3 if nodata is None else nodata, 4], [5, 7, 8, 9]], dtype)
    t = from_array(xarray.DataArray(pixels, dims=("y", "x"), attrs={"missing_value": said}))
    store = MemoryTileStore()
    for coarse in t.coarsen(2, store=store, tensor_id="c"), store.open("c", args=[t]):
        assert coarse[...].tolist() == [[3.75 if t.dtype.is_floating_point else 4, 6 if nodata is None else 7]]
    known = pixels if nodata is None else pixels[pixels != nodata]
    found = t.stats()
    assert (found.nodata, found.mean) == (8 - known.size, known.mean(dtype=float))
    t.export(sl[...], tmp_path / "out.tif", progress=False)
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.nodata == nodata


@pytest.mark.parametrize("value", [-0.0, 0.0])
def test_the_sign_of_a_zero_is_that_of_its_block(value: float) -> None:
    pixels = torch.full((5, 7), value)
    alone = from_array(pixels.clone()).coarsen(2)[...]
    pixels[0, :2] = math.nan
    beside = from_array(pixels).coarsen(2)[...]
    assert alone.signbit().unique().tolist() == [math.copysign(1, value) < 0]
    assert torch.equal(alone.signbit(), beside.signbit())


def test_levels_of_a_raster_know_where_they_are(tmp_path: Path) -> None:
    pixels = np.arange(3 * 37 * 41, dtype=np.float32).reshape(3, 37, 41)
    levels = from_raster(raster(tmp_path / "r.tif", pixels, nodata=-1)).pyramid(3, store=tmp_path / "s")
    levels[2].export(sl[...], tmp_path / "coarse.tif", progress=False)
    with rasterio.open(tmp_path / "coarse.tif") as file:
        assert file.shape == (5, 6)
        assert file.transform == Affine(80, 0, 1000, 0, -80, 2000)
        assert file.read(2)[4, 5] == pixels[1, 32:, 40:].mean()


def test_names_of_dimensions_of_space_are_read_without_case_and_others_are_refused_with_what_to_do() -> None:
    pixels = torch.zeros(4, 6)
    assert from_array(pixels, dims=("Y", "x")).coarsen(2).shape == (2, 3)
    with pytest.raises(ValidationError, match=r'one factor per dimension.*rename\(lat="y", lon="x"\)'):
        from_array(pixels, dims=("lat", "lon")).pyramid(2, store=MemoryTileStore())


class TestSources:
    """Levels that are computed from coarser tensors."""

    @staticmethod
    def world(store: Any = None) -> tuple[InfiniteTensor, InfiniteTensor, list[tuple[int, ...]]]:
        """Return pixels, a tensor that is coarser by 4 and 1000 higher, and the shapes of the regions of pixels."""
        calls: list[tuple[int, ...]] = []

        def near(pixels: torch.Tensor) -> torch.Tensor:
            calls.append(tuple(pixels.shape))
            return pixels

        def above(pixels: torch.Tensor) -> torch.Tensor:
            return pixels + 1000

        fine = plane().map(near, store=store, tensor_id=None if store is None else "fine")
        return fine, plane().coarsen(4).map(above), calls

    def test_a_level_is_computed_from_the_coarsest_that_divides_it(self) -> None:
        fine, far, calls = self.world()
        expected = plane().coarsen(4).coarsen(3)[-20:30, 7:50] + 1000
        assert torch.equal(fine.coarsen(12, sources={2: plane().coarsen(2), 4: far})[-20:30, 7:50], expected)
        assert calls == []

    def test_levels_from_it_on_know_nothing_below(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "s.zarr") as store:
            fine, far, calls = self.world(store)
            levels = fine.pyramid(4, sources={4: far})
            for k in (2, 3, 4):
                at = (slice(-9, 40), slice(100, 130))
                expected = plane().coarsen(4).coarsen(2 ** (k - 2))[at] + 1000
                assert torch.equal(levels[k - 1][at], expected)
            assert calls == []
            assert torch.equal(levels[0][0:9, 0:9], plane().coarsen(2)[0:9, 0:9])
            assert calls

    def test_pyramids_of_the_tensor_take_them_from_then_on(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "s.zarr") as store:
            fine, far, calls = self.world(store)
            fine.pyramid(3, sources={4: far})
            seen = stored_levels(fine)
            assert [level.f.scale for level in seen if isinstance(level.f, Coarsening)] == [(2, 2), (4, 4), (8, 8)]
            assert torch.equal(seen[2][0:9, 0:9], plane().coarsen(8)[0:9, 0:9] + 1000)
            assert calls == []
            assert not torch.equal(fine.coarsen(8)[0:9, 0:9], seen[2][0:9, 0:9])
            fine.fill((slice(0, 4096), slice(0, 4096)), pyramid=True)
            assert torch.equal(store.open("fine/level-3")[0:512, 0:512], plane().coarsen(8)[0:512, 0:512] + 1000)

    def test_another_process_finds_them_where_their_source_is_stored(self, tmp_path: Path) -> None:
        for name, number in (("far", 2), (None, 1)):
            with ZarrTileStore(tmp_path / f"{name}.zarr") as store:
                fine, far, _ = self.world(store)
                known = far if name is None else far.map(torch.neg, store=store, tensor_id=name)
                read = fine.pyramid(2, sources={4: known})[1][0:9, 0:9]
            with ZarrTileStore(tmp_path / f"{name}.zarr", mode="r") as store:
                levels = stored_levels(store.open("fine"))
                assert len(levels) == number
                assert torch.equal(store.open("fine/level-2")[0:9, 0:9], read)
                if name is not None:
                    assert torch.equal(store.open("fine").pyramid(2)[1][0:9, 0:9], read)

    def test_ends_count_as_if_the_level_came_from_the_tensor(self) -> None:
        pixels = drawn((37, 22), torch.int16, 1)
        fine = from_array(pixels)
        halves = from_array(fine.coarsen(2, "max")[...])
        assert torch.equal(fine.coarsen(6, "max", sources={2: halves})[...], fine.coarsen(6, "max")[...])

    @pytest.mark.parametrize(
        ("sources", "told"),
        [
            ({2: torch.zeros(4, 4)}, r"sources\[2\] must be an InfiniteTensor"),
            ({2: from_array(torch.zeros(4, 4))}, r"must have shape \(None, None\), .* it has shape \(4, 4\)"),
            ({2: plane(dtype="float64")}, r"torch.float32 .* torch.float64"),
            ([plane()], "must be a dict of a factor and a coarser tensor"),
        ],
    )
    def test_others_are_told(self, sources: Any, told: str) -> None:
        with pytest.raises(ValidationError, match=told):
            plane().coarsen(4, sources=sources)

    def test_a_pyramid_needs_powers_of_two(self) -> None:
        with pytest.raises(ValidationError, match=r"coarser by 2, 4, 8 and so on.*got \(3, 3\)"):
            plane().pyramid(3, store=MemoryTileStore(), sources={3: plane().coarsen(3)})
