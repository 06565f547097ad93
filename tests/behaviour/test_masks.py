"""Filling what a mask takes of a region, and seeing what is stored and nothing else."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable
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
from tests.support.building import built, each_store, store_of
from tests.support.clusters import chain, cluster, computed
from tests.support.counting import Constant, Counted
from tests.support.reference import Index, same_bits
from tests.support.stores import sample

pytestmark = pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")

TILE = 4
WINDOW = TensorWindow((4, 4))


store = each_store("zarr", "hdf5", tile_size=TILE, default=("zarr",))


@pytest.fixture(name="f")
def _f() -> Counted:
    return Counted()


@pytest.fixture(name="t")
def _t(store: TileStore, f: Counted) -> InfiniteTensor:
    """A tensor whose windows are its tiles."""
    return built(f, WINDOW, store=store, name="t")


def box(rows: int, columns: int) -> tuple[slice, slice]:
    return slice(0, rows), slice(0, columns)


def pixels_of(shape: Index, *wanted: Index) -> torch.Tensor:
    """A mask that takes some pixels."""
    values = torch.zeros(shape, dtype=torch.bool)
    for place in wanted:
        values[place] = True
    return values


class TestWhichTiles:
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
    def test_a_pixel_of_the_mask_takes_every_tile_under_it(
        self, store: TileStore, scale: float, origin: float, pixel: int, tiles: set[int]
    ) -> None:
        f = Counted(Constant((4,)))
        where = Mask(lambda pixels: pixels[0].start <= pixel < pixels[0].stop, scale, origin)
        built(lambda ctx: f((*ctx, 0)), 4, store=store).fill(sl[0:48], where=where, progress=False)
        assert {index for index, _ in f.calls} == tiles

    @pytest.mark.parametrize(
        ("names", "dims", "tile"),
        [
            ("cyx", None, (0, 0, 1)),
            ("yxc", (0, 1), (0, 1, 0)),
            ("yxc", (-2, -3), (1, 0, 0)),
            ("cyx", ("x", "y"), (0, 1, 0)),
            ("cyx", ("x", 1), (0, 1, 0)),
            ("cyx", (np.str_("x"), -2), (0, 1, 0)),
        ],
    )
    def test_a_mask_lies_over_its_own_dimensions(self, store: TileStore, names: str, dims: Any, tile: Index) -> None:
        size = tuple(3 if name == "c" else 4 for name in names)
        shape, f = [3 if name == "c" else None for name in names], Counted(Constant(size))
        t = built(f, size, shape=shape, store=store, dims=tuple(names))
        region = tuple(slice(None) if name == "c" else slice(0, 8) for name in names)
        t.fill(region, where=Mask([[0, 1], [0, 0]], scale=4, dims=dims), progress=False)
        assert f.calls == [tile]

    def test_in_memory_no_window_beyond_the_region_is_computed(self) -> None:
        f = Counted(Constant((64, 64)))
        t = built(f, (64, 64), store=MemoryTileStore(tile_size=256))
        assert t.coverage(sl[0:64, 192:576]).shape == (1, 3)
        where = Mask([1, 1, 1, 1, 0, 0, 0, 0, 1], scale=64)
        t.fill(sl[0:64, 192:576], where=where, progress=False)
        assert set(f.calls) == {(0, 3), (0, 8)}
        assert t.is_filled(sl[0:64, 192:576], where)


def lazily(values: torch.Tensor) -> InfiniteTensor:
    return built(lambda _: values, values.shape, shape=values.shape, dtype=values.dtype)


class Asked:
    """A mask that takes what begins at 4, and notes what it is asked for."""

    def __init__(self) -> None:
        self.pixels: list[tuple[slice, ...]] = []

    def __call__(self, pixels: tuple[slice, ...]) -> bool:
        self.pixels.append(pixels)
        return bool(pixels[0].start == 4)


class Source:
    """A mask that a function of rows and columns makes, and that notes the shapes of what is read of it."""

    def __init__(self, shape: Index, values: Callable[[Any, Any], Any]) -> None:
        self.shape = shape
        self.values = values
        self.read: list[Index] = []

    def __getitem__(self, pixels: tuple[slice, ...]) -> Any:
        rows, columns = (np.arange(each.start, each.stop) for each in pixels)
        self.read.append((len(rows), len(columns)))
        return self.values(rows, columns)


class TestKindsOfMasks:
    WANTED = torch.tensor([[0, 3, 0], [0, 0, 0], [0, 0, -1]])

    @pytest.mark.parametrize(
        "kind", ["list", "numpy", "int8", "bfloat16", "lazy", "zarr", "hdf5", "memmap", "callable"]
    )
    def test_all_kinds_take_the_same_tiles(self, t: InfiniteTensor, f: Counted, kind: str, tmp_path: Path) -> None:
        values = self.WANTED.numpy()
        np.save(tmp_path / "mask.npy", values)
        kinds: dict[str, Callable[[], Any]] = {
            "list": self.WANTED.tolist,
            "numpy": lambda: values,
            "int8": lambda: self.WANTED.to(torch.int8),
            "bfloat16": lambda: self.WANTED.to(torch.bfloat16),
            "lazy": lambda: lazily(self.WANTED),
            "zarr": lambda: zarr.create_array(tmp_path / "mask", data=values),
            "hdf5": lambda: h5py.File(tmp_path / "mask.h5", "w").create_dataset("mask", data=values),
            "memmap": lambda: np.load(tmp_path / "mask.npy", mmap_mode="r"),
            "callable": lambda: lambda pixels: self.WANTED[pixels],
        }
        t.fill(box(12, 12), where=Mask(kinds[kind](), scale=4), progress=False)
        assert set(f.calls) == {(0, 1), (2, 2)}

    def test_a_callable_is_asked_once_for_what_the_region_has_of_a_tile(self, t: InfiniteTensor, f: Counted) -> None:
        wanted = Asked()
        t.fill(sl[2:8, 0:5], where=wanted, progress=False)
        rows, columns = [slice(2, 4), slice(4, 8)], [slice(0, 4), slice(4, 5)]
        assert wanted.pixels == list(itertools.product(rows, columns))
        assert set(f.calls) == {(1, 0), (1, 1)}

    def test_a_lazy_mask_may_be_unbounded_and_computes_what_is_needed(self, t: InfiniteTensor, f: Counted) -> None:
        drawn = Counted(lambda ctx: torch.full((2, 2), ctx == (0, -1)))
        wanted = built(drawn, (2, 2), dtype=torch.bool)
        t.fill(sl[0:8, -8:8], where=Mask(wanted, scale=2), progress=False)
        assert set(drawn.calls) == set(itertools.product(range(2), range(-2, 2)))
        assert set(f.calls) == {(0, -1)}

    def test_of_a_large_mask_what_lies_over_the_region_is_read(self, t: InfiniteTensor, f: Counted) -> None:
        huge = Source((10**6, 10**6), lambda rows, columns: np.logical_and.outer(rows == 1003, columns >= 1014))
        t.fill(sl[1000:1020, 1000:1020], where=huge, progress=False)
        assert set(f.calls) == {(250, 253), (250, 254)}
        assert sum(map(math.prod, huge.read)) == 400

    @pytest.mark.parametrize(
        ("where", "message"),
        [
            (3, "InfiniteTensor"),
            ("mask.png", "mask"),
            (np.ones((2, 2, 2)), "shape"),
            (Mask(np.ones((8, 8)), dims=(0,)), r"dims=\(0,\)"),
            (Mask(np.ones((8, 8)), dims=(0, 2)), "repetition"),
            (Mask(np.ones((8, 8)), dims=(0, -2)), "repetition"),
            (Mask(np.ones((8, 8)), scale=(1, 1, 1)), "dimension"),
            (Mask(np.ones((8, 8)), origin=(1,)), "dimension"),
            (np.full((8, 8), "yes"), "contain"),
            (lambda _: None, "contain"),
            (lambda _: torch.ones(2, device="meta"), "values"),
            ([[1, 1], [1]], "contain"),
            (torch.ones(8, 8).to_sparse(), r"to_dense\(\)"),
            (torch.ones(8, 8, device="meta"), "values"),
            (np.ma.masked_equal(np.ones((8, 8)), 1), r"a\.filled\(value\)"),
            (TensorGroup({"t": lazily(torch.ones(8, 8))}, dims=(0, 1)), "contain"),
            (Mask(np.ones((8, 8)), dims=("y", "x")), "number"),
            (Mask(np.ones((8, 8)), dims=("dim_1", 1)), "dimension"),
            (np.ones((8, 7)), "dimension"),
            (Mask(np.ones((9, 9)), origin=(0, 0.5)), r"0.5:9.5"),
            (Mask(np.ones((2, 2)), scale=(4, 3.5)), "dimension"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, t: InfiniteTensor, f: Counted, where: object, message: str) -> None:
        calls: list[Callable[..., object]] = [t.fill, t.plan, t.is_filled, t.coverage]
        for call in calls:
            with pytest.raises(ValidationError, match=message):
                call(box(8, 8), where=where)
        assert not f.calls

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"scale": 0}, "scale"),
            ({"scale": (4, -1)}, "scale"),
            *(({"scale": wrong}, "finite") for wrong in ("4", math.nan, None)),
            ({"origin": math.inf}, "origin"),
            ({"dims": "yx"}, "dimensions"),
        ],
    )
    def test_bad_arguments_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ValidationError, match=message):
            Mask(np.ones((2, 2)), **options)

    def test_a_source_that_gives_another_shape_than_was_asked_for_is_told(self, t: InfiniteTensor) -> None:
        with pytest.raises(ValidationError, match="return"):
            t.fill(box(8, 8), where=Source((8, 8), lambda *_: torch.ones(3, 8)), progress=False)


CHECKS = Mask((np.indices((8, 8)).sum(axis=0) % 2 == 0), scale=4)
"""Every other tile of 32x32 pixels."""


class TestSkipped:
    def test_wanted_tiles_that_lie_apart_share_a_batch(self, store: TileStore, f: Counted) -> None:
        t = built(f, WINDOW, store=store, name="t", batch_size=8)
        plan = t.plan(box(32, 32), where=CHECKS)
        t.fill(box(32, 32), where=CHECKS, progress=False)
        assert (f.batches, plan.calls) == ([8] * 4, 4)

    def test_progress_expects_what_is_wanted(self, t: InfiniteTensor) -> None:
        told: list[Progress] = []
        t[0:4, 0:4]
        t.fill(box(32, 32), where=CHECKS, progress=told.append)
        assert (told[-1].done, told[-1].total) == (31, 31)
        assert all(each.total <= 32 for each in told)

    def test_a_read_only_store_need_hold_what_is_wanted_alone(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=TILE) as store:
            built(Constant(), WINDOW, store=store, name="t").fill(box(32, 32), where=CHECKS, progress=False)
        with ZarrTileStore(tmp_path, mode="r") as store:
            t = built(Constant(), WINDOW, store=store, name="t")
            assert t.fill(box(32, 32), where=CHECKS, progress=False).windows == 0
            for where in (None, Mask(pixels_of((8, 8), (0, 0), (7, 0)), scale=4)):
                with pytest.raises(ValidationError, match="read-only"):
                    t.fill(box(32, 32), where=where, progress=False)

    def test_a_group_has_its_mask_at_the_scale_of_each_tensor(self, store: TileStore) -> None:
        fine, coarse = Counted(), Counted()
        tensors = {"fine": built(fine, WINDOW, store=store, name="fine")}
        tensors["coarse"] = built(coarse, WINDOW, store=store, name="coarse")
        group = TensorGroup(tensors, scale={"coarse": 0.5})
        where, region = Mask([[0, 0], [1, 0]], scale=16, origin=(0, 8)), sl[0:32, 8:40]
        report = group.fill(region, where=where, progress=False)
        assert set(fine.calls) == set(itertools.product(range(4, 8), range(2, 6)))
        assert set(coarse.calls) == set(itertools.product(range(2, 4), range(1, 3)))
        skipped = {"fine": 48, "coarse": 12}
        assert {tensor.tensor_id: tensor.skipped for tensor in report.tensors} == skipped
        assert group.is_filled(region, where)
        assert {key: int(found.sum()) for key, found in group.coverage(region, "skipped", where).items()} == skipped
        with pytest.raises(ValidationError, match="region"):
            group.plan(sl[0:32, 0:40], where=where)

    def test_tensors_of_one_id_in_two_stores_are_told_apart(self, tmp_path: Path) -> None:
        stores = {str(size): ZarrTileStore(tmp_path / str(size), tile_size=size) for size in (4, 8)}
        group = TensorGroup({key: built(Constant(), WINDOW, store=store, name="t") for key, store in stores.items()})
        where = Mask([[1, 0], [0, 0]], scale=8)
        report = group.fill(box(16, 16), where=where, progress=False)
        skipped = [int(each.sum()) for each in group.coverage(box(16, 16), "skipped", where).values()]
        assert skipped == [12, 3]
        assert [tensor.skipped for tensor in report.tensors] == skipped

    def test_of_a_tensor_that_has_two_names_each_window_runs_once(self, t: InfiniteTensor, f: Counted) -> None:
        group = TensorGroup({"fine": t, "coarse": t}, scale={"coarse": 0.5})
        # Tiles (0..1, 0..1) and (2..3, 2..3) are wanted of fine; of coarse, whose region is 12x8, (0, 0) and (1, 1).
        plan = group.plan(box(24, 16), where=Mask(np.eye(3, 2), scale=8))
        assert plan.windows == 8
        where = Mask([[1, 0], [0, 0]], scale=8)
        report = group.fill(box(16, 16), where=where, progress=False)
        assert set(f.calls) == set(itertools.product(range(2), range(2)))
        assert (report.windows, report.skipped) == (4, 12 + 3)

    @pytest.mark.parametrize(
        ("where", "of_bands", "of_turned"),
        [
            (Mask([[0, 1], [0, 0]], scale=4), {(0, 0, 1)}, {(1, 0), (1, 1)}),
            (Mask([0, 1], scale=4, dims=(1,)), {(0, 0, 1), (0, 1, 1)}, {(1, 0), (1, 1), (1, 2), (1, 3)}),
        ],
    )
    def test_the_mask_of_a_group_follows_the_dimensions_that_its_tensors_share(
        self, store: TileStore, where: Mask, of_bands: set[Index], of_turned: set[Index]
    ) -> None:
        bands, turned = Counted(Constant((3, 4, 4))), Counted()
        tensors = {"bands": built(bands, (3, 4, 4), shape=(3, None, None), store=store, name="bands")}
        tensors["turned"] = built(turned, WINDOW, store=store, name="turned")
        group = TensorGroup(tensors, dims={"turned": (1, 0)}, scale={"turned": (2, 1)})
        group.fill(box(8, 8), where=where, progress=False)
        assert set(bands.calls) == of_bands
        assert set(turned.calls) == of_turned

    def test_a_dimension_of_a_group_has_the_name_that_its_tensors_agree_on(self, store: TileStore) -> None:
        def made(name: str, dims: Any) -> tuple[InfiniteTensor, Counted]:
            f = Counted()
            return built(f, WINDOW, store=store, name=name, dims=dims), f

        (named, of_named), (turned, of_turned) = made("named", ("y", "x")), made("turned", ("x", "dim_1"))
        tensors = {"named": named, "turned": turned, "plain": made("plain", None)[0]}
        group = TensorGroup(tensors, dims={"turned": (1, 0)})
        group.fill(box(8, 8), where=Mask([0, 1], scale=4, dims=("x",)), progress=False)
        assert set(of_named.calls) == {(0, 1), (1, 1)}
        assert set(of_turned.calls) == {(1, 0), (1, 1)}
        disagreeing = TensorGroup({"named": named, "turned": turned})
        with pytest.raises(ValidationError, match="'x'"):
            disagreeing.plan(box(8, 8), where=Mask([0, 1], scale=4, dims=("y",)))
        one_name_twice = TensorGroup({"a": made("a", ("x", "dim_1"))[0], "b": made("b", ("dim_0", "x"))[0]})
        with pytest.raises(ValidationError, match="'x'"):
            one_name_twice.plan(box(8, 8), where=Mask([0, 1], scale=4, dims=("x",)))


@pytest.fixture(scope="module")
def client() -> Any:
    with cluster() as client:
        yield client


@pytest.mark.slow
def test_a_cluster_computes_what_is_wanted_and_no_more(client: Client, tmp_path: Path) -> None:
    wanted, region = Mask(np.random.default_rng(2).random((4, 4)) < 0.4, scale=64), box(256, 256)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    stores = ZarrTileStore(tmp_path / "alone", tile_size=64), ZarrTileStore(tmp_path / "store", tile_size=64)
    with stores[0], stores[1]:
        alone, t = chain(stores[0], tmp_path / "a"), chain(stores[1], tmp_path / "b")
        plan = alone.plan(region, where=wanted, shards=8)
        skipped = alone.fill(region, where=wanted, progress=False).skipped
        report = t.fill(region, where=wanted, client=client, progress=False)
        assert report.windows == plan.windows
        assert report.skipped == skipped > 0
        assert [{*counts} for counts in computed(tmp_path / "b")] == [{*counts} for counts in computed(tmp_path / "a")]
        for state in ("stored", "missing", "skipped"):
            assert torch.equal(t.coverage(region, state, wanted), alone.coverage(region, state, wanted))
        assert torch.equal(t.stored_only()[region], alone.stored_only()[region])


class TestStoredOnly:
    def test_it_shows_whole_tiles_and_computes_nothing(self, t: InfiniteTensor, f: Counted) -> None:
        t.fill(box(32, 32), where=CHECKS, progress=False)
        calls = list(f.calls)
        view = t.stored_only(-1)
        expected = torch.full((40, 44), -1.0)
        for i, j in calls:
            expected[4 * i : 4 * i + 4, 4 * j + 4 : 4 * j + 8] = Constant()((i, j))
        assert torch.equal(view[0:40, -4:40], expected)
        assert torch.equal(view[3, -4:40:5], expected[3, ::5])
        assert [part.shape for part in view[[sl[0:2, 0:3], sl[5, 5]]]] == [(2, 3), ()]
        assert [part.shape for part in view[[sl[0:2, 0:3]]]] == [(2, 3)]
        assert [view[0:0, 0:3].shape, view[3:3, 0:3].shape] == [(0, 3)] * 2
        assert f.calls == calls

    def test_what_is_shown_is_the_readers_own_in_inference_mode_too(self, t: InfiniteTensor) -> None:
        t[0:4, 0:4]
        with torch.inference_mode():
            shown = t.stored_only()[0:4, 0:4]
        assert not shown.is_inference()
        shown += 7
        assert t.stored_only()[0:4, 0:4].eq(0).all()

    @pytest.mark.parametrize("kind", sample(["zarr", "hdf5", "memory"]))
    def test_a_whole_tile_shows_beside_one_that_lacks_windows_over_both(self, kind: str, tmp_path: Path) -> None:
        f = Counted(lambda ctx: torch.full((48, 48), float(ctx[0] - ctx[1])))
        window = TensorWindow((48, 48), stride=32, offset=-8)
        t = built(f, window, store=store_of(kind, tmp_path, 64), name="t")
        region = box(1024, 1024)
        read = t[region]
        t.fill(region, progress=False)
        t.invalidate(sl[200:300, 200:300])
        whole = t.coverage(region, "stored")
        assert whole.any()
        assert not whole.all()
        calls = len(f.calls)
        shown = whole.repeat_interleave(1024 // whole.shape[0], 0).repeat_interleave(1024 // whole.shape[1], 1)
        assert torch.equal(t.stored_only(-7)[region], torch.where(shown, read, -7.0))
        assert len(f.calls) == calls

    @pytest.mark.parametrize("kind", ["zarr", "memory"])
    def test_windows_that_are_missing_are_not_listed(self, kind: str, tmp_path: Path) -> None:
        """There may be as many as pixels."""
        window = TensorWindow((3, 3), stride=1)
        t = built(Constant(), window, dtype="uint8", store=store_of(kind, tmp_path, 512), name="t")
        assert t.stored_only(7)[box(4096, 4096)].eq(7).all()

    def test_it_shows_later_what_is_stored_later(self, t: InfiniteTensor) -> None:
        view = t.stored_only(5)
        assert view[4:8, 4:8].eq(5).all()
        t[4:8, 4:8]
        assert view[4:8, 4:8].eq(101).all()
        t.invalidate(sl[4:8, 4:8])
        assert view[4:8, 4:8].eq(5).all()

    def test_it_shows_what_other_processes_store_later(self, tmp_path: Path) -> None:
        """Whatever of it was looked at before: nothing of a tile, or some of its windows."""
        here, there = (ZarrTileStore(tmp_path, tile_size=8) for _ in range(2))
        t, other = (built(Constant(), WINDOW, store=store, name="t") for store in (here, there))
        other[0:4, 0:4]
        there.flush()
        view = t.stored_only(-1)
        assert view[0:8, 0:16].eq(-1).all()
        other.fill(box(8, 16), progress=False)
        assert torch.equal(view[0:8, 0:16], other[0:8, 0:16])

    def test_it_needs_no_f(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=TILE) as store:
            built(Constant(), WINDOW, store=store, name="t")[4:8, 4:8]
        with ZarrTileStore(tmp_path, mode="r") as store:
            view = store.open("t").stored_only()
            assert view[2:6, 4:8].tolist() == [[0.0] * 4] * 2 + [[101.0] * 4] * 2

    def test_another_process_may_be_handed_it(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=TILE) as store:
            t = built(Constant(), WINDOW, store=store, name="t")
            t[4:8, 4:8]
            store.flush()
            view = pickle.loads(pickle.dumps(t.stored_only(7)))  # noqa: S301  (our own)
            assert torch.equal(view[2:6, 4:8], t.stored_only(7)[2:6, 4:8])

    def test_a_damaged_tile_is_missing(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=TILE) as store:
            built(Counted(), WINDOW, store=store, name="t")[0:4, 0:8]
        *_, right = sorted(path for path in tmp_path.rglob("c/*/*") if path.is_file())
        right.write_bytes(b"damaged")
        with ZarrTileStore(tmp_path) as store:
            f = Counted()
            t = built(f, WINDOW, store=store, name="t")
            with pytest.warns(DamagedDataWarning):
                shown = t.stored_only(3)[0:4, 0:8]
            assert shown.tolist() == [[0.0] * 4 + [3.0] * 4] * 4
            assert not f.calls

    def test_it_is_what_the_tensor_is(self) -> None:
        t = built(Constant(), WINDOW, shape=(8, None), name="t", dtype="float16", dims=("y", "x"))
        view = t.stored_only()
        assert (view.shape, view.ndim, view.dtype, view.device, view.fill_value) == ((8, None), 2, t.dtype, t.device, 0)
        assert repr(view).startswith("StoredOnly(shape=(8, None), dtype=torch.float16, tensor_id='t', fill_value=0, ")
        with pytest.raises(RegionError, match=r"\('y'\)"):
            view[9, 0]
        t.to(torch.float32)
        assert view[0:1, 0:1].dtype == torch.float32

    @pytest.mark.parametrize(
        ("dtype", "value"), [("bool", True), ("bool", 1), ("complex64", 1j), ("float32", math.nan)]
    )
    def test_other_values_are_shown(self, dtype: str, value: Any) -> None:
        t = built(lambda _ctx: torch.ones(4), 4, dtype=dtype)
        assert same_bits(t.stored_only(value)[0:3], torch.full((3,), value, dtype=t.dtype))

    @pytest.mark.parametrize(
        ("dtype", "wrong"),
        [
            ("uint8", [256, 0.5]),
            ("bool", [7, math.nan, "black", [0], torch.tensor(1.0)]),
            ("int16", [math.nan]),
            ("float32", [1j, "0", "black", [0], torch.tensor(1.0)]),
        ],
    )
    def test_a_value_that_the_dtype_does_not_have_is_refused(self, dtype: str, wrong: list[Any]) -> None:
        t = built(lambda _ctx: torch.ones(4), 4, dtype=dtype)
        for value in wrong:
            with pytest.raises(ValidationError, match="fill_value" if np.isscalar(value) else "must be a number, got"):
                t.stored_only(value)
