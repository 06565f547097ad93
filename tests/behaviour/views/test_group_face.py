"""A group of tensors as a Zarr group."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import xarray
import zarr

from infinite_tensor import InfiniteTensor, RegionError, TensorGroup, TensorWindow, sl
from tests.support.dict_store import DictTileStore


def tensor_of(size: int, value: float, shape: tuple[int | None, ...] = (None, None)) -> InfiniteTensor:
    channels = (3,) if len(shape) == 3 else ()
    window = TensorWindow((*channels, size, size), dimension_map=(None, 0, 1) if channels else None)
    dims = ("c", "y", "x")[-len(shape) :]
    store = DictTileStore({}, tile_size=8)
    return InfiniteTensor(
        shape, lambda ctx: torch.full(window.size, value + ctx[-1]), window, dims=dims, tile_store=store
    )


@pytest.fixture
def group() -> TensorGroup:
    return TensorGroup(
        {
            "rgb": tensor_of(8, 100.0, (3, None, None)),
            "coarse": tensor_of(8, 200.0),
            "extra": TensorGroup({"mask": tensor_of(8, 300.0)}),
        },
        scale={"coarse": Fraction(1, 4)},
    )


def test_it_has_an_array_for_each_tensor(group: TensorGroup) -> None:
    region = sl[0:32, -16:16]
    face = group.as_zarr(region)
    read = group[region]
    assert isinstance(face, zarr.Group)
    for key, pixels in (
        ("rgb", read["rgb"].movedim(-1, 0)),
        ("coarse", read["coarse"]),
        ("extra/mask", read["extra"]["mask"]),
    ):
        assert np.array_equal(face[key][...], pixels.numpy()), key


def test_without_a_region_it_shows_all_of_each() -> None:
    face = TensorGroup({"a": tensor_of(8, 0.0, (3, None, None)), "b": tensor_of(8, 1.0)}).as_zarr()
    assert face["a"].shape == (3, 2**31, 2**31)
    assert face["b"].shape == (2**31, 2**31)


def test_dimensions_with_other_pixels_have_other_names(group: TensorGroup) -> None:
    face = group.as_zarr(sl[0:32, 0:32])
    assert face["rgb"].metadata.dimension_names == ("c", "y", "x")
    assert face["coarse"].metadata.dimension_names == ("coarse_y", "coarse_x")
    assert face["coarse_x"][...].tolist() == list(range(8))


def test_xarray_opens_it(group: TensorGroup) -> None:
    region = sl[0:32, 0:32]
    tree = xarray.open_datatree(group.as_zarr(region).store, engine="zarr")
    assert np.array_equal(tree["rgb"].values.transpose(1, 2, 0), group[region]["rgb"].numpy())
    assert np.array_equal(tree["extra/mask"].values, group[region]["extra"]["mask"].numpy())
    data = xarray.open_zarr(group.as_zarr(region).store)
    assert set(data.data_vars) == {"rgb", "coarse"}


@pytest.mark.parametrize("region", [sl[0:32], sl[0:32, 1:33]])
def test_a_region_must_be_one_of_the_group(group: TensorGroup, region: Any) -> None:
    with pytest.raises(RegionError):
        group.as_zarr(region)
