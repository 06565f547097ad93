"""A group of tensors as a Zarr group."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import xarray
import zarr

from infinite_tensor import InfiniteTensor, TensorGroup, TensorWindow, ValidationError, sl
from tests.behaviour.views.shown import NO_NAMES, member, names_of
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index


def tensor_of(size: int, value: float, shape: tuple[int | None, ...] = (None, None)) -> InfiniteTensor:
    channels = (3,) if len(shape) == 3 else ()
    window = TensorWindow((*channels, size, size), dimension_map=(None, 0, 1) if channels else None)
    dims = ("c", "y", "x")[-len(shape) :]
    store = DictTileStore({}, tile_size=8)

    def f(ctx: Index) -> torch.Tensor:
        return torch.full(window.size, value + ctx[-1])

    return InfiniteTensor(shape, f, window, dims=dims, tile_store=store)


@pytest.fixture
def group() -> TensorGroup:
    coarse, extra = tensor_of(8, 200.0), {"mask": tensor_of(8, 300.0)}
    tensors = {"rgb": tensor_of(8, 100.0, (3, None, None)), "coarse": coarse, "extra": extra}
    return TensorGroup(tensors, scale={"coarse": Fraction(1, 4)})


def test_it_has_an_array_for_each_tensor(group: TensorGroup) -> None:
    region = sl[0:32, -16:16]
    face = group.as_zarr(region)
    read = group[region]
    assert isinstance(face, zarr.Group)
    pixels = {"rgb": read["rgb"].movedim(-1, 0), "coarse": read["coarse"], "extra/mask": read["extra", "mask"]}
    for key, expected in pixels.items():
        assert np.array_equal(member(face, key)[...], expected.numpy()), key


def test_without_a_region_it_shows_all_of_each() -> None:
    face = TensorGroup({"a": tensor_of(8, 0.0, (3, None, None)), "b": tensor_of(8, 1.0)}).as_zarr()
    assert member(face, "a").shape == (3, 2**31, 2**31)
    assert member(face, "b").shape == (2**31, 2**31)


def test_dimensions_with_other_pixels_have_other_names(group: TensorGroup) -> None:
    face = group.as_zarr(sl[0:32, 0:32])
    assert names_of(member(face, "rgb")) == ("c", "y", "x")
    assert names_of(member(face, "coarse")) == ("coarse_y", "coarse_x")
    assert np.array_equal(member(face, "coarse_x")[...], np.arange(8))


def opened(group: TensorGroup, region: object) -> xarray.DataTree:
    # xarray says only in its documentation that it takes stores of zarr.
    store: Any = group.as_zarr(region).store
    return xarray.open_datatree(store, engine="zarr")


def values(tree: xarray.DataTree, path: str) -> Any:
    found = tree[path]
    assert isinstance(found, xarray.DataArray)
    return found.values


def test_xarray_opens_it(group: TensorGroup) -> None:
    region = sl[0:32, 0:32]
    tree = opened(group, region)
    assert np.array_equal(values(tree, "rgb").transpose(1, 2, 0), group[region]["rgb"].numpy())
    assert np.array_equal(values(tree, "extra/mask"), group[region]["extra"]["mask"].numpy())
    data = xarray.open_zarr(group.as_zarr(region).store)
    assert set(data.data_vars) == {"rgb", "coarse"}


def test_an_array_may_be_named_like_a_dimension() -> None:
    group = TensorGroup({"x": tensor_of(8, 0.0), "a": tensor_of(8, 1.0), "y": {"b": tensor_of(8, 2.0)}})
    region = sl[0:16, 0:16]
    face = group.as_zarr(region)
    assert names_of(member(face, "x")) == ("y", "x_x")
    tree = opened(group, region)
    for path in ("x", "a", "y/b"):
        assert np.array_equal(values(tree, path), group[region][tuple(path.split("/"))].numpy()), path


def test_a_group_may_be_named_like_the_folder_of_chunks() -> None:
    group = TensorGroup({"a": TensorGroup({"c": {"b": tensor_of(8, 5.0)}}), "c": tensor_of(8, 7.0)})
    face = group.as_zarr(sl[0:16, 0:16])
    assert np.array_equal(member(face, "a/c/b")[0], [5.0] * 8 + [6.0] * 8)
    assert np.array_equal(member(face, "c")[0], [7.0] * 8 + [8.0] * 8)


@pytest.mark.parametrize("key", NO_NAMES)
def test_a_name_must_be_one_of_an_array(key: str) -> None:
    with pytest.raises(ValidationError, match="cannot be the path of a Zarr array"):
        TensorGroup({key: tensor_of(8, 0.0)}).as_zarr(sl[0:8, 0:8])


def test_of_a_coarser_tensor_all_pixels_over_a_region_are_shown(group: TensorGroup) -> None:
    region = sl[0:32, 1:33]
    shown = np.asarray(group.as_zarr(region)["coarse"])
    coarse: Any = group["coarse"]
    assert np.array_equal(shown, coarse[0:8, 0:9].numpy())
