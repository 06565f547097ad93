"""Tensors as arrays of xarray, Dask, numpy and torch."""

from __future__ import annotations

import copy
import pickle
import sys
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import torch
import xarray

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    Output,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    open_store,
    sl,
)
from infinite_tensor.errors import RegionError
from tests.behaviour.views.shown import pixels_of, ramp, ramp_of, tensor_of
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.interpreters import CONTEXT
from tests.support.reference import Index

REGION = sl[-5:9, 2:10]
TRUTH = ramp_of(range(-5, 9), range(2, 10))


NAMES: list[Any] = [
    lambda t: t.to_dask().name,
    lambda t: dask.array.asarray(t).name,
    lambda t: t.to_dask(sl[0:5, 0:3], chunks=2).name,
    lambda t: dask.array.from_array(t.as_zarr()).name,
    lambda t: dask.array.from_zarr(t.as_zarr()).name,
    lambda t: t.to_xarray().chunk(4).data.name,
]
"""How Dask may be given a tensor, and what it calls it then."""


def store_in(folder: Path, kind: str) -> TileStore:
    if kind == "memory":
        return MemoryTileStore()
    return open_store(folder / f"a.{kind}", tile_size=4)


KINDS = ["memory", "zarr", "h5"]


def chain_in(store: TileStore) -> tuple[list[int], InfiniteTensor, InfiniteTensor]:
    """A tensor of the last of some numbers, which are made here, and one that adds 1 to it."""
    made, window = [1], TensorWindow((4, 4))
    t = tensor_of(lambda _ctx: torch.full((4, 4), float(made[-1])), (8, 4), tile_store=store)
    below = InfiniteTensor((8, 4), lambda _ctx, x: x + 1, window, [t], [window], tile_store=store, tensor_id="below")
    return made, t, below


def name_of_stored(folder: Path, kind: str, *, drop: bool) -> str:
    with store_in(folder, kind) as opened:
        _, t, below = chain_in(opened)
        name: str = below.to_dask().name
        if drop:
            t.invalidate()
    return name


class TestXarray:
    """A `DataArray`, which computes what is used of it."""

    def test_it_has_the_names_and_coordinates_of_the_pixels(self) -> None:
        array = tensor_of().to_xarray(REGION)
        assert array.name == "height"
        assert array.dims == ("y", "x")
        assert array.dtype == np.dtype("float32")
        assert array.y.values.tolist() == list(range(-5, 9))
        assert array.sel(y=-3, x=5).item() == -2995
        assert np.array_equal(array.values, TRUTH)

    @pytest.mark.parametrize(
        "key",
        [
            *(np.s_[:, :], np.s_[3:9:2, -1], np.s_[::-2, 5:1:-1], np.s_[4, 4], np.s_[5:5, :]),
            *(np.s_[[3, 1, 1], :], np.s_[[0, 13], [1, 7]], np.s_[-1, [0]]),
        ],
    )
    def test_it_is_indexed_as_what_is_in_memory(self, key: Any) -> None:
        t = tensor_of()
        assert t.to_xarray(REGION)[key].equals(t.to_xarray(REGION, lazy=False)[key])

    def test_what_is_not_used_is_not_computed(self) -> None:
        f = Counted(ramp)
        array = tensor_of(f).to_xarray(REGION)
        part = array.sel(y=slice(0, 3), x=slice(4, 7))
        assert f.calls == []
        assert float(part.mean()) == 1505.5
        assert f.calls == [(0, 1)]

    def test_other_coordinates(self) -> None:
        array = tensor_of().to_xarray(REGION, {"x": np.linspace(0, 1, 8)})
        assert array.sel(x=1.0, y=0).item() == 9
        assert array.y.values[0] == -5

    @pytest.mark.parametrize(
        ("label", "expected"),
        [(slice(-10, -8), [-10, -9, -8]), (slice(-10, 10, 8), [-10, -2, 6]), (5.0, 5), ([5, 3], [5, 3]), (-3, -3)],
        ids=str,
    )
    def test_labels_are_found_among_very_many_without_making_them(self, label: Any, expected: Any) -> None:
        array = tensor_of().to_xarray(sl[-(2**30) : 2**30, 0:1])
        tracemalloc.start()
        try:
            found = array.sel(y=label)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found.y.values.tolist() == expected
        assert most < 2**25

    def test_some_of_very_many_pixels_are_like_any_others(self) -> None:
        t = tensor_of()
        some = t.to_xarray(sl[-(2**30) : 2**30, 2:10]).sel(y=slice(-5, 8))
        assert some.identical(t.to_xarray(REGION))
        assert (some + t.to_xarray(sl[0:20, 2:10])).y.values.tolist() == list(range(9))

    def test_very_many_pixels_are_aligned_with_as_many_of_the_same_coordinates(self) -> None:
        t = tensor_of()
        first, second = (t.to_xarray(sl[-(2**40) : 2**40, 0:4]) for _ in range(2))
        assert first.sel(y=-(2**39), x=3).item() == np.float32(-1000.0 * 2**39 + 3)
        assert xarray.align(first, second, join="exact")[0].shape == (2**41, 4)

    @pytest.mark.parametrize("key", [np.s_[:, :], np.s_[3:9:2, -1], np.s_[::-2, [5, 1, 1]], np.s_[4, 4], np.s_[4]])
    def test_it_is_transposed_without_being_read(self, key: Any) -> None:
        f = Counted(ramp)
        lazy, read = tensor_of(f).to_xarray(REGION), tensor_of().to_xarray(REGION, lazy=False)
        turned = lazy[key].T
        assert f.calls == []
        assert turned.equals(read[key].T)
        assert lazy.T[::2, 3:5].T[1].equals(read.T[::2, 3:5].T[1])

    def test_what_is_written_into_it_is_a_copy(self) -> None:
        t = tensor_of()
        array = t.to_xarray(REGION)
        array[0, 0] = 7
        assert array[0, 0].item() == 7
        assert np.array_equal(t.to_xarray(REGION).values, TRUTH)

    @pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda array: array.copy(deep=True)])
    def test_a_copy_reads_the_same_tensor(self, way: Any) -> None:
        calls = []

        # A function is never copied.
        def f(ctx: Index) -> torch.Tensor:
            calls.append(ctx)
            return ramp(ctx)

        array = tensor_of(f, tile_store=MemoryTileStore()).to_xarray(REGION)
        assert np.array_equal(array.values, TRUTH)
        assert np.array_equal(way(array).values, TRUTH)
        assert len(calls) == len(set(calls))

    def test_it_is_pickled_with_its_tensor(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path, tile_size=4) as store:
            array = tensor_of(tile_store=store).to_xarray(REGION)
            sent = pickle.loads(pickle.dumps(array))  # noqa: S301  (our own)
            assert np.array_equal(sent.values, TRUTH)

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "xarray", None)
        with pytest.raises(ImportError, match="pip install xarray"):
            tensor_of().to_xarray(REGION)

    @pytest.mark.parametrize("coords", [{"x": [1, 2]}, {"z": [1]}])
    def test_coordinates_that_do_not_fit(self, coords: Any) -> None:
        with pytest.raises(ValidationError, match="coords must"):
            tensor_of().to_xarray(REGION, coords)

    def test_by_default_it_shows_what_a_face_shows(self) -> None:
        finite, t = tensor_of(shape=(8, 4)), tensor_of(shape=(None, 8))
        assert np.array_equal(finite.to_xarray().values, np.asarray(finite))
        array, face = t.to_xarray(), t.as_zarr()
        assert array.shape == face.shape == (2**31, 8)
        assert array.sel(y=-(2**30), x=3).item() == face[0, 3]

    def test_all_of_a_tensor_without_bounds_is_an_error(self) -> None:
        for view in (tensor_of().to_xarray, tensor_of().to_dask, tensor_of().as_zarr):
            with pytest.raises(RegionError, match="unbounded"):
                view(...)


class TestDask:
    """A `dask.array`, each chunk of which is a read."""

    def test_its_chunks_are_tiles(self) -> None:
        array = tensor_of().to_dask(REGION)
        assert array.chunks == ((1, 4, 4, 4, 1), (2, 4, 2))
        assert np.array_equal(array.compute(), TRUTH)

    @pytest.mark.parametrize("chunks", [5, (7, 8), "auto", -1, ((4, 10), 3)])
    def test_other_chunks(self, chunks: Any) -> None:
        array = tensor_of().to_dask(REGION, chunks)
        assert np.array_equal(array.compute(), TRUTH)
        if chunks == 5:
            assert array.chunksize == (5, 5)

    @pytest.mark.parametrize("chunks", ["tile", 0.5, (3,), (4, 4, 4), ((3, 3), 8)])
    def test_chunks_that_do_not_fit(self, chunks: Any) -> None:
        with pytest.raises(ValidationError, match="chunks must"):
            tensor_of().to_dask(REGION, chunks)

    @pytest.mark.parametrize("chunks", [0, -2, (2, 0), True, {0: 0}, ((14, 0), 8), ((15, -1), 8)])
    def test_chunks_of_no_pixels(self, chunks: Any) -> None:
        with pytest.raises(ValidationError, match="chunks"):
            tensor_of().to_dask(REGION, chunks)

    @pytest.mark.parametrize("chunks", ["tiles", 1, (2**10, 2**10), {0: 2**10, 1: 1}])
    def test_more_chunks_than_dask_holds(self, chunks: Any) -> None:
        with pytest.raises(ValidationError, match="smaller region"):
            tensor_of().to_dask(sl[0 : 2**40, 0 : 2**21], chunks)

    def test_what_is_not_used_is_not_computed(self) -> None:
        f = Counted(ramp)
        array = tensor_of(f).to_dask(REGION)
        assert f.calls == []
        assert array[5, 2].compute() == 4
        assert set(f.calls) == {(0, 1)}

    def test_tensors_of_one_id_are_not_taken_for_each_other(self) -> None:
        ones = tensor_of(lambda _ctx: torch.ones(4, 4))
        assert np.array_equal((tensor_of().to_dask(REGION) - ones.to_dask(REGION)).compute(), TRUTH - 1)

    @pytest.mark.parametrize("kind", KINDS)
    def test_after_a_drop_its_name_is_another_one(self, kind: str, tmp_path: Path) -> None:
        """Of what is computed from the tensor too, and however Dask is given it: it would serve blocks from before."""
        made, t, below = chain_in(store_in(tmp_path, kind))
        before = [name(each) for name in NAMES for each in (t, below)]
        assert [name(each) for name in NAMES[:3] for each in (t, below)] == before[:6]
        for region in (None, sl[0:1, 0:1]):
            below.to_dask().compute()
            made.append(len(made) + 1)
            t.invalidate(region)
            after = [name(each) for name in NAMES for each in (t, below)]
            assert not set(before) & set(after)
            before += after
            assert dask.array.asarray(below)[0, 0].compute() == made[-1] + 1

    def test_outputs_of_one_f_have_other_names_after_a_drop_of_one(self) -> None:
        window = TensorWindow((4, 4))
        outputs = dict.fromkeys("ab", Output((8, 4), "float32", window))
        group: Any = InfiniteTensor.from_multi(lambda _ctx: dict.fromkeys("ab", torch.ones(4, 4)), outputs)
        before = group["b"].to_dask().name
        group["a"].invalidate()
        assert group["b"].to_dask().name != before

    @pytest.mark.parametrize("kind", KINDS[1:])
    def test_what_is_stored_has_one_name_in_all_processes(self, kind: str, tmp_path: Path) -> None:
        before = name_of_stored(tmp_path, kind, drop=False)
        with ProcessPoolExecutor(1, CONTEXT) as child:
            assert child.submit(name_of_stored, tmp_path, kind, drop=False).result() == before
            assert child.submit(name_of_stored, tmp_path, kind, drop=True).result() == before
        assert name_of_stored(tmp_path, kind, drop=False) != before

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(dask, "array")
        monkeypatch.setitem(sys.modules, "dask.array", None)
        with pytest.raises(ImportError, match="pip install"):
            tensor_of().to_dask(REGION)

    def test_functions_that_make_arrays_take_a_finite_tensor(self) -> None:
        f = Counted(ramp)
        t, truth = tensor_of(f, shape=(8, 4)), ramp_of(range(8), range(4))
        array = dask.array.asarray(t)
        assert f.calls == []
        assert array.chunks == ((4, 4), (4,))
        assert np.array_equal(array.compute(), truth)
        assert np.array_equal(dask.array.concatenate([t, array]).compute(), np.concatenate([truth, truth]))
        with pytest.raises(RegionError, match="unbounded"):
            dask.array.asarray(tensor_of())

    def test_bfloat16_becomes_float32(self) -> None:
        t = tensor_of(lambda ctx: ramp(ctx).bfloat16(), dtype=torch.bfloat16)
        assert t.to_dask(REGION).dtype == np.float32
        assert np.array_equal(t.to_dask(REGION).compute(), t[REGION].float().numpy())


class TestNumpyAndTorch:
    """Finite tensors as what is in memory."""

    @pytest.mark.parametrize(
        "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
    )
    def test_torch_takes_a_finite_tensor(self, dtype: torch.dtype) -> None:
        t = tensor_of(lambda ctx: ramp(ctx).to(dtype), shape=(8, 4), dtype=dtype)
        taken = torch.as_tensor(t)
        assert taken.dtype == dtype
        assert torch.equal(taken, t[...])
        assert torch.equal(torch.utils.dlpack.from_dlpack(t), t[...])
        assert torch.as_tensor(t, dtype=torch.complex64).dtype == torch.complex64

    def test_numpy_takes_a_finite_tensor(self) -> None:
        t = tensor_of(shape=(8, 4))
        truth = ramp_of(range(8), range(4))
        assert np.array_equal(np.asarray(t), truth)
        assert np.array_equal(np.from_dlpack(t), truth)
        assert np.asarray(t, np.int16).dtype == np.int16

    @pytest.mark.parametrize("take", [torch.as_tensor, np.asarray, np.from_dlpack])
    @pytest.mark.parametrize("store", [MemoryTileStore, lambda: DictTileStore({}, tile_size=4)])
    def test_what_is_written_into_it_changes_nothing_else(self, take: Any, store: Any) -> None:
        t = tensor_of(shape=(8, 4), tile_store=store())
        for _ in range(2):
            taken = take(t)
            taken[...] = -1
            assert np.array_equal(pixels_of(t, ...), ramp_of(range(8), range(4)))

    def test_it_is_always_a_copy(self) -> None:
        t = tensor_of(shape=(8, 4))
        for take in (np.asarray, np.from_dlpack):
            with pytest.raises((ValueError, BufferError), match="without a copy"):
                take(t, copy=False)

    def test_an_unbounded_tensor_is_no_array(self) -> None:
        with pytest.raises(TypeError, match="unbounded"):
            torch.as_tensor(tensor_of())
