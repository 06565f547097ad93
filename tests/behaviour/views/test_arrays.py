"""Tensors as arrays of xarray, Dask, numpy and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array
import numpy as np
import pytest
import torch
import xarray

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, sl
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index

REGION = sl[-5:9, 2:10]
TRUTH = np.array([[1000.0 * y + x for x in range(2, 10)] for y in range(-5, 9)], np.float32)


def ramp(ctx: Index) -> torch.Tensor:
    y, x = (torch.arange(4.0) + 4 * i for i in ctx)
    return 1000 * y[:, None] + x


def tensor_of(
    f: Callable[..., Any] = ramp, shape: tuple[int | None, ...] = (None, None), **options: Any
) -> InfiniteTensor:
    options = {"tile_store": DictTileStore({}, tile_size=4), "dims": ("y", "x"), "tensor_id": "height"} | options
    return InfiniteTensor(shape, f, TensorWindow((4, 4)), **options)


class TestXarray:
    """A `DataArray`, which computes what is used of it."""

    def test_it_has_the_names_and_coordinates_of_the_pixels(self) -> None:
        array = tensor_of().to_xarray(REGION)
        assert (array.name, array.dims, array.dtype) == ("height", ("y", "x"), np.float32)
        assert array.y.values.tolist() == list(range(-5, 9))
        assert array.sel(y=-3, x=5).item() == -2995
        assert np.array_equal(array.values, TRUTH)

    @pytest.mark.parametrize(
        "key",
        [
            np.s_[:, :],
            np.s_[3:9:2, -1],
            np.s_[::-2, 5:1:-1],
            np.s_[4, 4],
            np.s_[5:5, :],
            np.s_[[3, 1, 1], :],
            np.s_[[0, 13], [1, 7]],
            np.s_[-1, [0]],
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

    def test_without_lazy_all_is_computed_now(self) -> None:
        f = Counted(ramp)
        array = tensor_of(f).to_xarray(REGION, lazy=False)
        assert len(f.calls) == 5 * 3
        assert np.array_equal(array.values, TRUTH)

    def test_all_of_a_finite_tensor(self) -> None:
        t = tensor_of(shape=(8, 4))
        assert np.array_equal(t.to_xarray().values, np.asarray(t))

    def test_other_coordinates(self) -> None:
        array = tensor_of().to_xarray(REGION, {"x": np.linspace(0, 1, 8)})
        assert array.sel(x=1.0, y=0).item() == 9
        assert array.y.values[0] == -5

    @pytest.mark.parametrize("coords", [{"x": [1, 2]}, {"z": [1]}])
    def test_coordinates_that_do_not_fit(self, coords: Any) -> None:
        with pytest.raises(ValidationError, match="coords must"):
            tensor_of().to_xarray(REGION, coords)

    def test_a_tensor_without_bounds_needs_a_region(self) -> None:
        with pytest.raises(ValueError, match="unbounded"):
            tensor_of().to_xarray()

    def test_a_face_is_opened_as_a_dataset(self) -> None:
        data = xarray.open_zarr(tensor_of().as_zarr(REGION).store)
        assert data["height"].sel(y=0, x=9).compute().item() == 9
        assert np.array_equal(data["height"].values, TRUTH)


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

    def test_what_is_not_used_is_not_computed(self) -> None:
        f = Counted(ramp)
        array = tensor_of(f).to_dask(REGION)
        assert f.calls == []
        assert array[5, 2].compute() == 4
        assert set(f.calls) == {(0, 1)}

    def test_equal_arrays_have_equal_names(self) -> None:
        t = tensor_of()
        assert t.to_dask(REGION).name == t.to_dask(REGION).name
        assert t.to_dask(REGION).name != t.to_dask(sl[0:4, 0:4]).name
        assert t.to_dask(REGION).name != tensor_of(tensor_id="other").to_dask(REGION).name

    def test_it_takes_a_face(self) -> None:
        array = dask.array.from_array(tensor_of().as_zarr(REGION))
        assert np.array_equal((array - 1).compute(), TRUTH - 1)

    def test_bfloat16_becomes_float32(self) -> None:
        t = tensor_of(lambda ctx: ramp(ctx).bfloat16(), dtype=torch.bfloat16)
        assert t.to_dask(REGION).dtype == np.float32
        assert np.array_equal(t.to_dask(REGION).compute(), t[REGION].float().numpy())


class TestNumpyAndTorch:
    """Finite tensors as what is in memory."""

    def test_torch_takes_a_finite_tensor(self) -> None:
        t = tensor_of(shape=(8, 4))
        assert torch.equal(torch.as_tensor(t), t[...])
        assert torch.equal(torch.from_dlpack(t), t[...])
        assert np.array_equal(np.from_dlpack(t), t[...].numpy())

    def test_numpy_has_bfloat16_as_float32(self) -> None:
        t = tensor_of(lambda ctx: ramp(ctx).bfloat16(), shape=(8, 4), dtype=torch.bfloat16)
        assert np.array_equal(np.asarray(t), t[...].float().numpy())
        assert torch.equal(torch.as_tensor(t), t[...])

    def test_how_much_there_is(self) -> None:
        t = tensor_of(shape=(8, 4))
        assert (t.numel(), t.nbytes) == (32, 128)
        for ask in (lambda: tensor_of().numel(), lambda: tensor_of().nbytes, lambda: torch.as_tensor(tensor_of())):
            with pytest.raises(TypeError, match="unbounded"):
                ask()
