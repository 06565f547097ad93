"""Filling what a mask takes of a region, and seeing what is stored and nothing else."""

from __future__ import annotations

import gc
import io
import itertools
import math
import pickle
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import zarr
from distributed import Client

from infinite_tensor import (
    DamagedDataWarning,
    HDF5TileStore,
    InfiniteTensor,
    Mask,
    MemoryTileStore,
    TensorGroup,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    sl,
)
from infinite_tensor.errors import RegionError
from infinite_tensor.filling import Progress
from infinite_tensor.filling import mask as mask_module
from infinite_tensor.filling import plan as plan_module
from infinite_tensor.filling import stored_only as stored_only_module
from tests.support.clusters import chain, cluster, computed
from tests.support.counting import Constant, Counted
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index, same_bits
from tests.support.stores import sample

pytestmark = pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")

TILE = 4
WINDOW = TensorWindow((4, 4))
HALO = TensorWindow((6, 6), stride=4, offset=-1)


@pytest.fixture(params=sample(["zarr", "hdf5"]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    if request.param == "zarr":
        return ZarrTileStore(tmp_path / "s.zarr", tile_size=TILE)
    return HDF5TileStore(tmp_path / "s.h5", tile_size=TILE)


def counted(store: TileStore, shape: Sequence[int | None] = (None, None)) -> tuple[InfiniteTensor, Counted]:
    """A tensor whose windows are its tiles."""
    f = Counted()
    return InfiniteTensor(shape, f, WINDOW, tile_store=store, tensor_id="t"), f


def box(rows: int, columns: int) -> tuple[slice, slice]:
    return slice(0, rows), slice(0, columns)


class TestWhichTiles:
    def test_one_wanted_pixel_has_its_whole_tile_computed(self, store: TileStore) -> None:
        t, f = counted(store)
        wanted = torch.zeros(12, 12)
        wanted[5, 11] = 1
        report = t.fill(box(12, 12), where=wanted, progress=False)
        assert f.calls == [(1, 2)]
        assert (report.windows, report.tiles, report.skipped) == (1, 1, 8)
        assert torch.equal(t[4:8, 8:12], Constant()((1, 2)))
        assert f.calls == [(1, 2)]

    def test_what_lies_beyond_the_region_is_not_wanted_for_itself(self, store: TileStore) -> None:
        t, f = counted(store)
        wanted = np.zeros((8, 8), dtype=bool)
        wanted[3, 3] = wanted[0, 5] = True
        t.fill(sl[0:3, 0:6], where=wanted, progress=False)
        assert f.calls == [(0, 1)]

    @pytest.mark.parametrize(
        ("scale", "tiles"),
        [(4, {(1, 0)}), (8, {(2, 0), (2, 1), (3, 0), (3, 1)}), (2, {(0, 0)}), ((8, 4), {(2, 0), (3, 0)})],
    )
    def test_a_scale_says_how_many_pixels_one_of_the_mask_stands_for(
        self, store: TileStore, scale: object, tiles: set[Index]
    ) -> None:
        t, f = counted(store)
        wanted = torch.zeros(8, 8, dtype=torch.bool)
        wanted[1, 0] = True
        t.fill(box(16, 16), where=Mask(wanted, scale), progress=False)
        assert set(f.calls) == tiles

    @pytest.mark.parametrize(
        ("scale", "origin", "pixel", "tiles"),
        [
            (1, 0, 8, {2}),
            (1, -1, 8, {1}),
            (1, 3, 8, {2}),
            (Fraction(3, 2), 0, 8, {3}),  # 12 to 13.5
            (1.5, -0.5, 8, {2, 3}),  # 11.5 to 13
            (1 / 3, 0, 12, {1}),  # 4 to 4.33
            (1e-6, 0, 5_000_000, {1}),  # 5 to 5.000001
            (Fraction(1, 10**6), 0, 5_000_000, {1}),
            (4, 0.25, 8, {8, 9}),  # 32.25 to 36.25
            (4, -0.25, 8, {7, 8}),  # 31.75 to 35.75
            (np.float32(0.5), np.int64(4), 8, {2}),
        ],
    )
    def test_a_pixel_of_the_mask_takes_every_tile_that_it_lies_over(
        self, tmp_path: Path, scale: float, origin: float, pixel: int, tiles: set[int]
    ) -> None:
        f = Counted(lambda _ctx: torch.ones(4))
        t = InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=ZarrTileStore(tmp_path, tile_size=TILE))
        where = Mask(lambda pixels: pixels[0].start <= pixel < pixels[0].stop, scale, origin)
        t.fill(sl[0:48], where=where, progress=False)
        assert {index for (index,) in f.calls} == tiles

    def test_a_mask_lies_over_the_last_dimensions_or_those_that_are_named(self, tmp_path: Path) -> None:
        wanted = torch.tensor([[0, 1], [0, 0]])
        for shape, window, dims, expected in (
            ((3, None, None), (3, 4, 4), None, {(0, 0, 1)}),
            ((None, None, 3), (4, 4, 3), (0, 1), {(0, 1, 0)}),
            ((None, None, 3), (4, 4, 3), (-2, -3), {(1, 0, 0)}),
        ):
            f = Counted(lambda _ctx, size=window: torch.ones(size))
            store = ZarrTileStore(tmp_path / f"{dims}", tile_size=TILE)
            t = InfiniteTensor(shape, f, TensorWindow(window), tile_store=store)
            region = tuple(slice(0, 8) if extent is None else slice(None) for extent in shape)
            t.fill(region, where=Mask(wanted, scale=4, dims=dims), progress=False)
            assert set(f.calls) == expected

    @pytest.mark.parametrize("dims", [("x", "y"), ("x", 1), (np.str_("x"), -2)])
    def test_dimensions_may_be_told_by_their_names(self, dims: Any, tmp_path: Path) -> None:
        f = Counted(Constant((3, 4, 4)))
        store = ZarrTileStore(tmp_path, tile_size=TILE)
        t = InfiniteTensor((3, None, None), f, TensorWindow((3, 4, 4)), tile_store=store, dims=("c", "y", "x"))
        t.fill(sl[:, 0:8, 0:8], where=Mask([[0, 1], [0, 0]], scale=4, dims=dims), progress=False)
        assert f.calls == [(0, 1, 0)]

    def test_negative_coordinates_are_reached_by_an_origin(self, store: TileStore) -> None:
        t, f = counted(store)
        t.fill(sl[-8:0, -4:0], where=Mask([[0], [1]], scale=4, origin=(-8, -4)), progress=False)
        assert f.calls == [(-1, -1)]

    def test_the_end_of_a_finite_dimension_may_cut_a_pixel_of_the_mask(self, store: TileStore) -> None:
        t, f = counted(store, (8, 8))
        t.fill(..., where=Mask([[0, 0], [0, 1]], scale=6), progress=False)
        assert set(f.calls) == {(1, 1)}

    def test_in_memory_a_tile_counts_as_far_as_it_lies_in_the_region(self) -> None:
        f = Counted(lambda _ctx: torch.ones(256, 256))
        t = InfiniteTensor((None, None), f, TensorWindow((256, 256)), tile_store=MemoryTileStore())
        report = t.fill(box(512, 300), where=Mask([[0, 1], [0, 0]], scale=256), progress=False)
        assert f.calls == [(0, 1)]
        assert report.skipped == 3
        assert t.coverage(box(512, 300), "skipped", Mask([[0, 1], [0, 0]], scale=256)).tolist() == [
            [True, False],
            [True, True],
        ]

    def test_in_memory_no_window_beyond_the_region_is_computed(self) -> None:
        f = Counted(lambda _ctx: torch.ones(64, 64))
        t = InfiniteTensor((None, None), f, TensorWindow((64, 64)), tile_store=MemoryTileStore())
        assert t.coverage(sl[0:64, 192:576]).shape == (1, 3)
        where = Mask([1, 1, 1, 1, 0, 0, 0, 0, 1], scale=64)
        t.fill(sl[0:64, 192:576], where=where, progress=False)
        assert set(f.calls) == {(0, 3), (0, 8)}
        assert t.is_filled(sl[0:64, 192:576], where)


def lazily(values: torch.Tensor) -> InfiniteTensor:
    return InfiniteTensor(values.shape, lambda _: values, TensorWindow(values.shape), dtype=values.dtype)


class Asked:
    """A mask that takes what begins at 4, and notes what it is asked for."""

    def __init__(self) -> None:
        self.pixels: list[tuple[slice, ...]] = []

    def __call__(self, pixels: tuple[slice, ...]) -> bool:
        self.pixels.append(pixels)
        return bool(pixels[0].start == 4)


class TestKindsOfMasks:
    WANTED = torch.tensor([[0, 3, 0], [0, 0, 0], [0, 0, -1]])

    @pytest.mark.parametrize(
        "kind", ["list", "numpy", "int8", "bfloat16", "lazy", "zarr", "hdf5", "memmap", "callable"]
    )
    def test_whatever_holds_it_a_mask_takes_the_same_tiles(self, kind: str, tmp_path: Path) -> None:
        kinds: dict[str, Callable[[], Any]] = {
            "list": self.WANTED.tolist,
            "numpy": self.WANTED.numpy,
            "int8": lambda: self.WANTED.to(torch.int8),
            "bfloat16": lambda: self.WANTED.to(torch.bfloat16),
            "lazy": lambda: lazily(self.WANTED),
            "zarr": lambda: zarr.create_array(tmp_path / "mask", data=self.WANTED.numpy()),
            "hdf5": lambda: h5py.File(tmp_path / "mask.h5", "w").create_dataset("mask", data=self.WANTED.numpy()),
            "memmap": lambda: _memmap(tmp_path / "mask.npy", self.WANTED.numpy()),
            "callable": lambda: lambda pixels: self.WANTED[pixels],
        }
        t, f = counted(ZarrTileStore(tmp_path / "store", tile_size=TILE))
        t.fill(box(12, 12), where=Mask(kinds[kind](), scale=4), progress=False)
        assert set(f.calls) == {(0, 1), (2, 2)}

    def test_a_callable_is_asked_once_for_each_tile_with_what_it_is_in_the_region(self, tmp_path: Path) -> None:
        wanted = Asked()
        t, f = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        t.fill(sl[2:8, 0:5], where=wanted, progress=False)
        rows, columns = [slice(2, 4), slice(4, 8)], [slice(0, 4), slice(4, 5)]
        assert wanted.pixels == list(itertools.product(rows, columns))
        assert set(f.calls) == {(1, 0), (1, 1)}

    def test_a_callable_of_some_dimensions_is_asked_of_these_alone(self, tmp_path: Path) -> None:
        wanted = Asked()
        t, f = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        t.fill(box(8, 12), where=Mask(wanted, dims=(1,)), progress=False)
        assert wanted.pixels == [(slice(0, 4),), (slice(4, 8),), (slice(8, 12),)]
        assert set(f.calls) == {(0, 1), (1, 1)}

    def test_of_the_pixels_that_a_callable_answers_with_one_is_enough(self, tmp_path: Path) -> None:
        wanted = torch.zeros(8, 8)
        wanted[2, 5] = 1
        t, f = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        t.fill(box(8, 8), where=lambda pixels: wanted[pixels], progress=False)
        assert f.calls == [(0, 1)]

    def test_a_lazy_mask_may_be_unbounded_and_computes_what_lies_over_the_region(self, tmp_path: Path) -> None:
        drawn = Counted(lambda ctx: torch.full((2, 2), ctx == (0, -1)))
        wanted = InfiniteTensor((None, None), drawn, TensorWindow((2, 2)), dtype=torch.bool)
        t, f = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        t.fill(sl[0:8, -8:8], where=Mask(wanted, scale=2), progress=False)
        assert set(drawn.calls) == set(itertools.product(range(2), range(-2, 2)))
        assert set(f.calls) == {(0, -1)}

    def test_of_a_large_mask_pieces_are_read_that_lie_over_the_region(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mask_module, "_PIECE", 64)
        read: list[int] = []

        class Huge:
            shape = (10**6, 10**6)

            def __getitem__(self, pixels: tuple[slice, ...]) -> np.ndarray[Any, Any]:
                rows, columns = (np.arange(each.start, each.stop) for each in pixels)
                read.append(len(rows) * len(columns))
                wanted: np.ndarray[Any, Any] = np.logical_and.outer(rows == 1003, columns >= 1014)
                return wanted

        t, f = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        t.fill(sl[1000:1020, 1000:1020], where=Huge(), progress=False)
        assert set(f.calls) == {(250, 253), (250, 254)}
        assert sum(read) == 400
        assert max(read) <= 64

    def test_of_a_fine_mask_a_tile_is_read_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mask_module, "_PIECE", 64)
        read: list[tuple[int, ...]] = []

        class Fine:
            shape = (160, 80)

            def __getitem__(self, pixels: tuple[slice, ...]) -> torch.Tensor:
                read.append(tuple(each.stop - each.start for each in pixels))
                return torch.ones(read[-1])

        t, f = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        t.fill(box(4, 8), where=Mask(Fine(), scale=(Fraction(1, 40), Fraction(1, 10))), progress=False)
        assert read == [(160, 40), (160, 40)]
        assert set(f.calls) == {(0, 0), (0, 1)}

    @pytest.mark.parametrize(
        ("where", "message"),
        [
            (3, "a mask must be a tensor, an array, an InfiniteTensor or a callable, got 3"),
            ("mask.png", "a mask must be a tensor"),
            (np.ones((2, 2, 2)), r"this has shape \(2, 2, 2\)"),
            (Mask(np.ones((8, 8)), dims=(0,)), r"this has shape \(8, 8\), and dims=\(0,\)"),
            (Mask(np.ones((8, 8)), dims=(0, 2)), "different numbers or names of what is filled"),
            (Mask(np.ones((8, 8)), dims=(0, -2)), r"different numbers .* dims=\(0, -2\)"),
            (Mask(np.ones((8, 8)), scale=(1, 1, 1)), r"scale of a mask must have one entry per dimension of it \(2\)"),
            (Mask(np.ones((8, 8)), origin=(1,)), "origin of a mask must have one entry per dimension"),
            (np.full((8, 8), "yes"), "a mask must hold bools or numbers"),
            (lambda _: None, "a mask must hold bools or numbers, got None"),
            (lambda _: torch.ones(2, device="meta"), "a mask must be a dense tensor that holds its values"),
            ([[1, 1], [1]], r"a mask must hold bools or numbers, got \[\[1, 1\], \[1\]\]"),
            (torch.ones(8, 8).to_sparse(), r"a mask must be a dense tensor .*to_dense\(\)"),
            (torch.ones(8, 8, device="meta"), "a mask must be a dense tensor that holds its values"),
            (
                np.ma.masked_equal(np.ones((8, 8)), 1),
                r"an array of wanted pixels has a mask, .*give a\.filled\(value\)",
            ),
            (TensorGroup({"t": lazily(torch.ones(8, 8))}, dims=(0, 1)), "a mask must hold bools or numbers"),
            (
                Mask(np.ones((8, 8)), dims=("y", "x")),
                r"names of what is filled, \('dim_0', 'dim_1'\)",
            ),
            (Mask(np.ones((8, 8)), dims=("dim_1", 1)), "different numbers"),
            (np.ones((8, 7)), "along dimension 1 its 7 pixels lie over 0:7, and the region is 0:8"),
            (Mask(np.ones((9, 9)), origin=(0, 0.5)), "along dimension 1 its 9 pixels lie over 0.5:9.5"),
            (Mask(np.ones((2, 2)), scale=(4, 3.5)), "along dimension 1 its 2 pixels lie over 0:7"),
        ],
    )
    def test_a_mask_that_does_not_fit_is_refused_before_anything_is_computed(
        self, tmp_path: Path, where: object, message: str
    ) -> None:
        t, f = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        calls: list[Callable[..., object]] = [t.fill, t.plan, t.is_filled, t.coverage]
        for call in calls:
            with pytest.raises(ValidationError, match=message):
                call(box(8, 8), where=where)
        assert not f.calls

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scale": 0}, "scale must be positive, got 0"),
            ({"scale": (4, -1)}, "scale must be positive"),
            ({"scale": "4"}, "scale of a mask must be a finite number"),
            ({"scale": math.nan}, "scale of a mask must be a finite number"),
            ({"scale": None}, "scale of a mask must be a finite number"),
            ({"origin": math.inf}, "origin of a mask must be a finite number"),
            ({"dims": "yx"}, "dims of a mask must be a tuple of numbers or names of dimensions, got 'yx'"),
        ],
    )
    def test_bad_arguments_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            Mask(np.ones((2, 2)), **options)

    def test_a_source_that_gives_another_shape_than_was_asked_for_is_told(self, tmp_path: Path) -> None:
        class Short:
            shape = (8, 8)

            def __getitem__(self, _pixels: object) -> torch.Tensor:
                return torch.ones(3, 8)

        t, _ = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        with pytest.raises(ValidationError, match=r"the mask gave shape \(3, 8\) for .*, and that is \(8, 8\)"):
            t.fill(box(8, 8), where=Short(), progress=False)

    def test_of_no_pixels_nothing_is_wanted(self, tmp_path: Path) -> None:
        t, f = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        for region in (sl[0:0, 0:8], sl[3:3, 0:8]):
            for where in (np.ones((2, 2)), None):
                assert t.fill(region, where=where, progress=False).windows == 0
                assert t.is_filled(region, where)
                assert t.coverage(region, where=where).shape == (0, 0)
        assert not f.calls


def _memmap(path: Path, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    np.save(path, values)
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]


CHECKS = Mask((np.indices((8, 8)).sum(axis=0) % 2 == 0), scale=4)
"""Every other tile of 32x32 pixels."""


def with_halo(store: TileStore) -> tuple[InfiniteTensor, list[Counted]]:
    """A tensor that reads a border of one pixel around each window of another one."""
    functions = [Counted(), Counted(lambda _ctx, region: region[1:-1, 1:-1] + region[2:, 2:])]
    source = InfiniteTensor((None, None), functions[0], WINDOW, tile_store=store, tensor_id="source")
    t = InfiniteTensor((None, None), functions[1], WINDOW, [source], [HALO], tile_store=store, tensor_id="t")
    return t, functions


class TestSkipped:
    def test_it_is_a_state_of_its_own_in_coverage_and_report(self, store: TileStore) -> None:
        t, _ = counted(store, (16, 18))
        where = Mask([[1, 0, 0], [0, 0, 0]], scale=8)
        t[4:8, 4:8], t[12, 12]
        region = sl[:, :]
        plan, report = t.plan(region, where=where), t.fill(region, where=where, progress=False)
        skipped = t.coverage(region, "skipped", where)
        # Two columns of pixels lie in tiles that no window covers.
        assert skipped.tolist() == [
            [False, False, True, True, False],
            [False, False, True, True, False],
            [True, True, True, True, False],
            [True, True, True, False, False],
        ]
        assert t.coverage(region, "uncovered", where)[:, 4].all()
        assert torch.equal(t.coverage(region, "stored", where), ~skipped & ~t.coverage(region, "uncovered"))
        assert not t.coverage(region, "missing", where).any()
        assert t.coverage(region, where=where).all()
        assert report.skipped == report.tensors[-1].skipped
        assert plan.tensors[-1].tiles == 3
        assert "skipped" in str(report)

    def test_without_a_mask_nothing_is_skipped(self, store: TileStore) -> None:
        t, _ = counted(store)
        with pytest.raises(ValidationError, match=r"state must be None or one of 'stored', .* give where="):
            t.coverage(box(8, 8), "skipped")
        assert t.coverage(box(8, 8), "missing").all()

    def test_a_later_fill_without_the_mask_computes_it(self, store: TileStore) -> None:
        t, f = counted(store)
        t.fill(box(32, 32), where=CHECKS, progress=False)
        assert t.is_filled(box(32, 32), CHECKS)
        assert not t.is_filled(box(32, 32))
        assert t.fill(box(32, 32), progress=False).windows == 32
        assert set(f.counts.values()) == {1}
        assert not t.coverage(box(32, 32), "skipped", CHECKS).any()

    def test_reading_it_computes_it(self, store: TileStore) -> None:
        t, f = counted(store)
        t.fill(box(32, 32), where=CHECKS, progress=False)
        before = len(f.calls)
        assert torch.equal(t[0:4, 4:8], Constant()((0, 1)))
        assert f.calls[before:] == [(0, 1)]

    def test_a_second_fill_with_the_mask_computes_nothing(self, store: TileStore) -> None:
        t, functions = with_halo(store)
        first, second = (t.fill(box(32, 32), where=CHECKS, progress=False) for _ in range(2))
        assert first.windows == sum(f.counts.total() for f in functions)
        assert second.windows == 0

    @pytest.mark.parametrize("stored", [[(0, 0)], [(2, 0), (0, 2)], [(0, 0), (4, 0), (0, 4)], [(7, 7)]], ids=str)
    def test_whatever_is_stored_before_the_rest_is_computed(self, store: TileStore, stored: list[Index]) -> None:
        t, f = counted(store)
        for i, j in stored:
            t[4 * i, 4 * j]
        assert t.fill(box(32, 32), where=CHECKS, progress=False).windows == 32 - len(stored)
        assert t.is_filled(box(32, 32), CHECKS)
        assert set(f.counts.values()) == {1}

    def test_wanted_tiles_that_lie_apart_share_a_batch(self, store: TileStore) -> None:
        batches: list[int] = []

        def f(windows: list[Index]) -> list[torch.Tensor]:
            batches.append(len(windows))
            return list(map(Constant(), windows))

        t = InfiniteTensor((None, None), f, WINDOW, tile_store=store, tensor_id="t", batch_size=8)
        plan = t.plan(box(32, 32), where=CHECKS)
        t.fill(box(32, 32), where=CHECKS, progress=False)
        assert (batches, plan.calls) == ([8] * 4, 4)

    def test_no_value_depends_on_a_mask(self, store: TileStore, tmp_path: Path) -> None:
        t, _ = with_halo(store)
        t.fill(box(30, 30), where=CHECKS, progress=False)
        plain, _ = with_halo(ZarrTileStore(tmp_path / "plain", tile_size=5))
        assert torch.equal(t[box(40, 40)], plain[box(40, 40)])

    def test_of_tensors_upstream_what_wanted_tiles_need_is_computed(self, store: TileStore) -> None:
        t, (source, own) = with_halo(store)
        where = Mask([[0, 1], [0, 0]], scale=16)
        plan = t.plan(box(32, 32), where=where)
        report = t.fill(box(32, 32), where=where, progress=False)
        assert set(own.calls) == set(itertools.product(range(4), range(4, 8)))
        assert set(source.calls) == set(itertools.product(range(-1, 5), range(3, 9)))
        assert [tensor.windows for tensor in plan.tensors] == [tensor.windows for tensor in report.tensors] == [36, 16]
        assert [tensor.skipped for tensor in report.tensors] == [0, 48]

    def test_a_plan_of_more_windows_than_it_can_look_at_is_a_bound(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        t, _ = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        for most, found in ((32, (32, True)), (31, (64, False))):
            monkeypatch.setattr(plan_module, "_MOST_NAMED", most)
            plan = t.plan(box(32, 32), where=CHECKS)
            assert (plan.windows, plan.exact) == found

    def test_where_all_is_wanted_a_mask_changes_nothing(self, store: TileStore, tmp_path: Path) -> None:
        t, functions = with_halo(store)
        plain, expected = with_halo(ZarrTileStore(tmp_path / "plain", tile_size=TILE))
        everything = np.ones((32, 32))
        assert t.plan(box(32, 32), where=everything).tensors == plain.plan(box(32, 32)).tensors
        t.fill(box(32, 32), where=everything, progress=False)
        plain.fill(box(32, 32), progress=False)
        assert [f.calls for f in functions] == [f.calls for f in expected]

    def test_where_nothing_is_wanted_nothing_is_computed(self, store: TileStore) -> None:
        t, functions = with_halo(store)
        nothing = np.zeros((32, 32))
        assert t.plan(box(32, 32), where=nothing).windows == 0
        report = t.fill(box(32, 32), where=nothing, progress=False)
        assert (report.windows, report.skipped) == (0, 64)
        assert t.is_filled(box(32, 32), nothing)
        assert not any(f.calls for f in functions)

    def test_a_region_that_takes_many_steps_computes_nothing_twice(self, tmp_path: Path) -> None:
        """However little the stores keep: what a step needs of a tensor upstream is held."""
        functions = [Counted(lambda _ctx: torch.ones(64, 64)), Counted(lambda _ctx, region: region[1:-1, 1:-1])]
        upstream = MemoryTileStore(cache_size_bytes=1)
        source = InfiniteTensor((None, None), functions[0], TensorWindow((64, 64)), tile_store=upstream)
        store = ZarrTileStore(tmp_path, tile_size=128, cache_size_bytes=1)
        halo = TensorWindow((66, 66), stride=64, offset=-1)
        t = InfiniteTensor((None, None), functions[1], TensorWindow((64, 64)), [source], [halo], tile_store=store)
        wanted = np.random.default_rng(1).random((40, 40)) < 0.6
        report = t.fill(box(5120, 5120), where=Mask(wanted, scale=128), progress=False)
        assert report.skipped == np.count_nonzero(~wanted)
        assert len(functions[1].calls) == 4 * np.count_nonzero(wanted)
        assert [set(f.counts.values()) for f in functions] == [{1}, {1}]

    def test_shards_fill_what_is_wanted_together(self, store: TileStore) -> None:
        t, f = counted(store)
        reports = [t.fill(box(32, 32), where=CHECKS, progress=False, shard=(rank, 3)) for rank in range(3)]
        assert set(f.counts.values()) == {1}
        assert len(f.calls) == 32
        assert t.is_filled(box(32, 32), CHECKS)
        # As each shard sees its own part alone.
        assert sum(report.skipped for report in reports) == 32

    def test_every_shard_refuses_a_mask_that_does_not_cover_the_whole_region(self, store: TileStore) -> None:
        t, f = counted(store)
        for rank in range(4):
            with pytest.raises(ValidationError, match=r"12 pixels lie over 0:12, and the region is 0:16"):
                t.fill(box(16, 16), where=np.ones((16, 12)), progress=False, shard=(rank, 4))
        assert not f.calls

    def test_a_ctrl_c_loses_nothing(self, store: TileStore) -> None:
        def interrupt(ctx: Index) -> None:
            if ctx == (4, 4) and f.counts[ctx] == 1:
                raise KeyboardInterrupt

        f = Counted(told=interrupt)
        t = InfiniteTensor((None, None), f, WINDOW, tile_store=store, tensor_id="t")
        with pytest.raises(KeyboardInterrupt):
            t.fill(box(32, 32), where=CHECKS, progress=False)
        t.fill(box(32, 32), where=CHECKS, progress=False)
        assert f.counts.total() == 33
        assert t.is_filled(box(32, 32), CHECKS)

    def test_progress_expects_what_is_wanted(self, tmp_path: Path) -> None:
        told: list[Progress] = []
        t, _ = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        t[0:4, 0:4]
        t.fill(box(32, 32), where=CHECKS, progress=told.append)
        assert (told[-1].done, told[-1].total) == (31, 31)
        assert all(each.total <= 32 for each in told)

    def test_a_bar_ends_with_what_the_mask_has_left_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shown = io.StringIO()
        monkeypatch.setattr(sys, "stderr", shown)
        t, _ = counted(ZarrTileStore(tmp_path, tile_size=TILE))
        t.fill(box(32, 32), where=CHECKS, progress="always")
        assert shown.getvalue().rstrip().endswith("32 tiles stored, 32 skipped by the mask]")

    def test_a_read_only_store_need_hold_what_is_wanted_alone(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=TILE) as store:
            t, f = counted(store)
            t.fill(box(32, 32), where=CHECKS, progress=False)
        with ZarrTileStore(tmp_path, mode="r") as store:
            t = InfiniteTensor((None, None), f, WINDOW, tile_store=store, tensor_id="t")
            assert t.fill(box(32, 32), where=CHECKS, progress=False).windows == 0
            stored_and_not = np.zeros((8, 8))
            stored_and_not[0, 0] = stored_and_not[7, 0] = 1
            for where in (None, Mask(stored_and_not, scale=4)):
                with pytest.raises(ValidationError, match="is read-only, and lacks some of tensor 't'"):
                    t.fill(box(32, 32), where=where, progress=False)

    def test_a_group_has_its_mask_at_the_scale_of_each_tensor(self, tmp_path: Path) -> None:
        fine, coarse = Counted(), Counted()
        store = ZarrTileStore(tmp_path, tile_size=TILE)
        tensors = {
            "fine": InfiniteTensor((None, None), fine, WINDOW, tile_store=store, tensor_id="fine"),
            "coarse": InfiniteTensor((None, None), coarse, WINDOW, tile_store=store, tensor_id="coarse"),
        }
        group = TensorGroup(tensors, scale={"coarse": 0.5})
        where = Mask([[0, 0], [1, 0]], scale=16, origin=(0, 8))
        region = sl[0:32, 8:40]
        report = group.fill(region, where=where, progress=False)
        assert set(fine.calls) == set(itertools.product(range(4, 8), range(2, 6)))
        assert set(coarse.calls) == set(itertools.product(range(2, 4), range(1, 3)))
        assert {tensor.tensor_id: tensor.skipped for tensor in report.tensors} == {"fine": 48, "coarse": 12}
        assert group.is_filled(region, where)
        assert {key: int(found.sum()) for key, found in group.coverage(region, "skipped", where).items()} == {
            "fine": 48,
            "coarse": 12,
        }
        with pytest.raises(ValidationError, match="does not cover the region"):
            group.plan(sl[0:32, 0:40], where=where)

    def test_tensors_of_one_id_in_two_stores_are_told_apart(self, tmp_path: Path) -> None:
        stores = {str(size): ZarrTileStore(tmp_path / str(size), tile_size=size) for size in (4, 8)}
        group = TensorGroup({key: counted(store)[0] for key, store in stores.items()})
        where = Mask([[1, 0], [0, 0]], scale=8)
        report = group.fill(box(16, 16), where=where, progress=False)
        skipped = [int(each.sum()) for each in group.coverage(box(16, 16), "skipped", where).values()]
        assert skipped == [12, 3]
        assert [tensor.skipped for tensor in report.tensors] == skipped

    def test_of_a_tensor_that_has_two_names_each_window_runs_once(self, store: TileStore) -> None:
        t, f = counted(store)
        group = TensorGroup({"fine": t, "coarse": t}, scale={"coarse": 0.5})
        # Tiles (0..1, 0..1) and (2..3, 2..3) are wanted of fine; of coarse, whose region is 12x8, (0, 0) and (1, 1).
        plan = group.plan(box(24, 16), where=Mask(np.eye(3, 2), scale=8))
        assert plan.windows == 8
        where = Mask([[1, 0], [0, 0]], scale=8)
        report = group.fill(box(16, 16), where=where, progress=False)
        assert set(f.calls) == set(itertools.product(range(2), range(2)))
        assert (report.windows, report.skipped) == (4, 12 + 3)

    def test_the_mask_of_a_group_follows_the_dimensions_that_its_tensors_share(self, tmp_path: Path) -> None:
        def made(shape: Sequence[int | None], size: Index, name: str) -> tuple[InfiniteTensor, Counted]:
            f = Counted(Constant(size))
            store = ZarrTileStore(tmp_path / name, tile_size=TILE)
            return InfiniteTensor(shape, f, TensorWindow(size), tile_store=store), f

        for where, of_bands, of_turned in (
            (Mask([[0, 1], [0, 0]], scale=4), {(0, 0, 1)}, {(1, 0), (1, 1)}),
            (Mask([0, 1], scale=4, dims=(1,)), {(0, 0, 1), (0, 1, 1)}, {(1, 0), (1, 1), (1, 2), (1, 3)}),
        ):
            bands, band_calls = made((3, None, None), (3, 4, 4), f"bands {where.dims}")
            turned, turned_calls = made((None, None), (4, 4), f"turned {where.dims}")
            group = TensorGroup({"bands": bands, "turned": turned}, dims={"turned": (1, 0)}, scale={"turned": (2, 1)})
            group.fill(box(8, 8), where=where, progress=False)
            assert set(band_calls.calls) == of_bands
            assert set(turned_calls.calls) == of_turned

    def test_a_dimension_of_a_group_has_the_name_that_its_tensors_agree_on(self, tmp_path: Path) -> None:
        def made(name: str, dims: Any) -> tuple[InfiniteTensor, Counted]:
            f = Counted()
            store = ZarrTileStore(tmp_path / name, tile_size=TILE)
            return InfiniteTensor((None, None), f, WINDOW, tile_store=store, dims=dims), f

        (named, of_named), (turned, of_turned) = made("named", ("y", "x")), made("turned", ("x", "dim_1"))
        group = TensorGroup(
            {"named": named, "turned": turned, "plain": made("plain", None)[0]}, dims={"turned": (1, 0)}
        )
        group.fill(box(8, 8), where=Mask([0, 1], scale=4, dims=("x",)), progress=False)
        assert set(of_named.calls) == {(0, 1), (1, 1)}
        assert set(of_turned.calls) == {(1, 0), (1, 1)}
        disagreeing = TensorGroup({"named": named, "turned": turned})
        with pytest.raises(ValidationError, match=r"names of what is filled, \('dim_0', 'x'\)"):
            disagreeing.plan(box(8, 8), where=Mask([0, 1], scale=4, dims=("y",)))
        one_name_twice = TensorGroup({"a": made("a", ("x", "dim_1"))[0], "b": made("b", ("dim_0", "x"))[0]})
        with pytest.raises(ValidationError, match=r"names of what is filled, \('x', 'x'\)"):
            one_name_twice.plan(box(8, 8), where=Mask([0, 1], scale=4, dims=("x",)))


@pytest.fixture(scope="module")
def client() -> Any:
    with cluster() as client:
        yield client


def test_a_cluster_computes_what_is_wanted_and_no_more(client: Client, tmp_path: Path) -> None:
    wanted = Mask(np.random.default_rng(2).random((4, 4)) < 0.4, scale=64)
    with ZarrTileStore(tmp_path / "alone", tile_size=64) as store:
        (tmp_path / "a").mkdir()
        alone = chain(store, tmp_path / "a")
        plan = alone.plan(box(256, 256), where=wanted, shards=8)
        skipped = alone.fill(box(256, 256), where=wanted, progress=False).skipped
        with ZarrTileStore(tmp_path / "store", tile_size=64) as other:
            (tmp_path / "b").mkdir()
            t = chain(other, tmp_path / "b")
            report = t.fill(box(256, 256), where=wanted, client=client, progress=False)
            assert report.windows == plan.windows
            assert report.skipped == skipped > 0
            assert [{*counts} for counts in computed(tmp_path / "b")] == [
                {*counts} for counts in computed(tmp_path / "a")
            ]
            for state in ("stored", "missing", "skipped"):
                assert torch.equal(
                    t.coverage(box(256, 256), state, wanted), alone.coverage(box(256, 256), state, wanted)
                )
            assert torch.equal(t.stored_only()[box(256, 256)], alone.stored_only()[box(256, 256)])


class TestStoredOnly:
    def test_it_shows_whole_tiles_and_computes_nothing(self, store: TileStore) -> None:
        t, f = counted(store)
        t.fill(box(32, 32), where=CHECKS, progress=False)
        calls = list(f.calls)
        view = t.stored_only(-1)
        expected = torch.full((32, 32), -1.0)
        for i, j in calls:
            expected[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] = Constant()((i, j))
        assert torch.equal(view[box(32, 32)], expected)
        assert torch.equal(
            view[3, -4:40:5], torch.cat([torch.full((1,), -1.0), expected[3, 1::5], torch.full((1,), -1.0)])
        )
        assert [part.shape for part in view[[sl[0:2, 0:3], sl[5, 5]]]] == [(2, 3), ()]
        assert [part.shape for part in view[[sl[0:2, 0:3]]]] == [(2, 3)]
        assert [view[0:0, 0:3].shape, view[3:3, 0:3].shape] == [(0, 3)] * 2
        assert f.calls == calls

    def test_tiles_that_are_looked_up_one_by_one_are_shown_together(
        self, store: TileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stored_only_module, "_AT_ONCE_BYTES", 1)
        t, _ = counted(store)
        t.fill(box(8, 8), where=Mask([[1, 0], [0, 1]], scale=4), progress=False)
        shown = t.stored_only(-1)[box(8, 8)]
        assert shown[::4, ::4].tolist() == [[0, -1], [-1, 101]]

    def test_what_is_shown_is_the_readers_own_in_inference_mode_too(self, store: TileStore) -> None:
        t, _ = counted(store)
        t[0:4, 0:4]
        with torch.inference_mode():
            shown = t.stored_only()[0:4, 0:4]
        assert not shown.is_inference()
        shown += 7
        assert t.stored_only()[0:4, 0:4].eq(0).all()

    def test_a_tile_of_which_some_windows_are_stored_is_missing(self, tmp_path: Path) -> None:
        f = Counted(lambda _ctx: torch.ones(4, 4))
        store = ZarrTileStore(tmp_path, tile_size=8)
        t = InfiniteTensor((None, None), f, WINDOW, tile_store=store, tensor_id="t")
        t[0:4, 0:16]
        for how in (store.flush, t.clear_cache):
            assert t.stored_only(7)[0:8, 0:16].eq(7).all()
            how()
        t[0:8, 0:8]
        assert t.stored_only(7)[0:8, 0:8].eq(1).all()

    @pytest.mark.parametrize("kind", sample(["zarr", "hdf5", "memory"]))
    def test_a_whole_tile_shows_beside_one_that_lacks_windows_over_both(self, kind: str, tmp_path: Path) -> None:
        stores: dict[str, Callable[[], TileStore]] = {
            "zarr": lambda: ZarrTileStore(tmp_path / "s.zarr", tile_size=64),
            "hdf5": lambda: HDF5TileStore(tmp_path / "s.h5", tile_size=64),
            "memory": MemoryTileStore,
        }
        f = Counted(lambda ctx: torch.full((48, 48), float(ctx[0] - ctx[1])))
        window = TensorWindow((48, 48), stride=32, offset=-8)
        t = InfiniteTensor((None, None), f, window, tile_store=stores[kind](), tensor_id="t")
        region = box(1024, 1024)
        read = t[region]
        t.fill(region, progress=False)
        t.invalidate(sl[200:300, 200:300])
        whole = t.coverage(region, "stored")
        assert whole.any()
        assert not whole.all()
        calls, tile = len(f.calls), 1024 // len(whole)
        shown = whole.repeat_interleave(tile, 0).repeat_interleave(tile, 1)
        assert torch.equal(t.stored_only(-7)[region], torch.where(shown, read, -7.0))
        assert len(f.calls) == calls

    @pytest.mark.parametrize("kind", ["zarr", "memory"])
    def test_windows_that_are_missing_are_not_listed(self, kind: str, tmp_path: Path) -> None:
        """There may be as many as pixels."""
        store = ZarrTileStore(tmp_path, tile_size=512) if kind == "zarr" else MemoryTileStore()
        window = TensorWindow((3, 3), stride=1)
        t = InfiniteTensor((None, None), Counted(), window, dtype="uint8", tile_store=store, tensor_id="t")
        assert t.stored_only(7)[box(4096, 4096)].eq(7).all()

    def test_what_no_window_covers_is_what_a_read_returns(self, store: TileStore) -> None:
        t, _ = counted(store, (6, 12))
        view = t.stored_only(9)
        assert view[4:, :].eq(0).all()
        assert view[:4, :].eq(9).all()

    def test_it_shows_later_what_is_stored_later(self, store: TileStore) -> None:
        t, _ = counted(store)
        view = t.stored_only(5)
        assert view[4:8, 4:8].eq(5).all()
        t[4:8, 4:8]
        assert view[4:8, 4:8].eq(101).all()
        t.invalidate(sl[4:8, 4:8])
        assert view[4:8, 4:8].eq(5).all()

    def test_it_shows_what_other_processes_store_later(self, tmp_path: Path) -> None:
        """Whatever of it was looked at before: nothing of a tile, or some of its windows."""
        here, there = (ZarrTileStore(tmp_path, tile_size=8) for _ in range(2))
        t, other = counted(here)[0], counted(there)[0]
        other[0:4, 0:4]
        there.flush()
        view = t.stored_only(-1)
        assert view[0:8, 0:16].eq(-1).all()
        other.fill(box(8, 16), progress=False)
        assert torch.equal(view[0:8, 0:16], other[0:8, 0:16])

    def test_of_what_is_missing_nothing_stays_in_memory(self) -> None:
        store = DictTileStore({}, tile_size=1, cache_size_bytes=1)
        t = InfiniteTensor((None, None), Counted(), WINDOW, tile_store=store, tensor_id="t")
        view = t.stored_only(-1)
        view[0:2, 0:2]
        tracemalloc.start()
        try:
            for row in range(0, 1000, 10):
                view[row : row + 1, 0:20]
            gc.collect()  # tuples that Python itself keeps for later
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken < 2**17  # 2,000 tiles

    def test_it_needs_no_f(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=TILE) as store:
            counted(store)[0][4:8, 4:8]
        with ZarrTileStore(tmp_path, mode="r") as store:
            view = store.open("t").stored_only()
            assert view[2:6, 4:8].tolist() == [[0.0] * 4] * 2 + [[101.0] * 4] * 2

    def test_another_process_may_be_handed_it(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=TILE) as store:
            t = InfiniteTensor((None, None), Constant(), WINDOW, tile_store=store, tensor_id="t")
            t[4:8, 4:8]
            store.flush()
            view = pickle.loads(pickle.dumps(t.stored_only(7)))  # noqa: S301  (our own)
            assert torch.equal(view[2:6, 4:8], t.stored_only(7)[2:6, 4:8])

    @pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
    @pytest.mark.parametrize("value", ["black", [0], torch.tensor(1.0)])
    def test_what_is_no_number_is_refused(self, value: Any, dtype: torch.dtype) -> None:
        t = InfiniteTensor((None, None), Constant(), WINDOW, dtype=dtype)
        with pytest.raises(ValidationError, match="fill_value must be a number, got"):
            t.stored_only(value)

    def test_a_flush_that_was_asked_for_is_carried_out_before_it_is_read(self, tmp_path: Path) -> None:
        store = ZarrTileStore(tmp_path, tile_size=8)
        t, _ = counted(store)
        t[0:4, 0:4]
        store._contents.request_flush()
        t.stored_only()[0:4, 0:4]
        with ZarrTileStore(tmp_path, mode="r") as other:
            assert other.tensor_info("t").tiles_partial == 1

    def test_a_damaged_tile_is_missing(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=TILE) as store:
            counted(store)[0][0:4, 0:8]
        *_, right = sorted(path for path in tmp_path.rglob("c/*/*") if path.is_file())
        right.write_bytes(b"damaged")
        with ZarrTileStore(tmp_path) as store:
            t, f = counted(store)
            with pytest.warns(DamagedDataWarning):
                shown = t.stored_only(3)[0:4, 0:8]
            assert shown.tolist() == [[0.0] * 4 + [3.0] * 4] * 4
            assert not f.calls

    def test_it_is_what_the_tensor_is(self) -> None:
        t = InfiniteTensor(
            (8, None),
            Counted(lambda _ctx: torch.ones(4, 4).half()),
            WINDOW,
            dtype="float16",
            tensor_id="t",
            dims=("y", "x"),
        )
        view = t.stored_only()
        assert (view.shape, view.ndim, view.dtype, view.device, view.fill_value) == ((8, None), 2, t.dtype, t.device, 0)
        assert repr(view).startswith("StoredOnly(shape=(8, None), dtype=torch.float16, tensor_id='t', fill_value=0, ")
        with pytest.raises(RegionError, match=r"dimension 0 \('y'\)"):
            view[9, 0]
        t.to(torch.float32)
        assert view[0:1, 0:1].dtype == torch.float32

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [
            ("uint8", 256),
            ("uint8", 0.5),
            ("bool", 7),
            ("bool", math.nan),
            ("int16", math.nan),
            ("float32", 1j),
            ("float32", "0"),
        ],
    )
    def test_a_value_that_the_dtype_does_not_have_is_refused(self, dtype: str, value: Any) -> None:
        t = InfiniteTensor((None,), lambda _ctx: torch.ones(4), TensorWindow((4,)), dtype=dtype)
        with pytest.raises(ValidationError, match="fill_value"):
            t.stored_only(value)

    @pytest.mark.parametrize(
        ("dtype", "value"), [("bool", True), ("bool", 1), ("complex64", 1j), ("float32", math.nan)]
    )
    def test_other_values_are_shown(self, dtype: str, value: Any) -> None:
        t = InfiniteTensor((None,), lambda _ctx: torch.ones(4), TensorWindow((4,)), dtype=dtype)
        assert same_bits(t.stored_only(value)[0:3], torch.full((3,), value, dtype=t.dtype))
