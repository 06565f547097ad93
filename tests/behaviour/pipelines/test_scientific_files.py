"""`from_array` with arrays of astropy, netCDF4, nibabel and scipy, where these are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import ValidationError, from_array
from tests.behaviour.pipelines.arrays import assert_reads

VALUES = np.arange(48, dtype=np.float32).reshape(6, 8)


def refused_for_a_mask(a: Any) -> str:
    """What the message says to do."""
    with pytest.raises(ValidationError, match="a has a mask, for which there is no place in a tensor; give ") as caught:
        from_array(a)[...]
    return str(caught.value)


def test_masks_of_astropy_are_refused() -> None:
    masked = pytest.importorskip("astropy.utils.masked").Masked
    nddata = pytest.importorskip("astropy.nddata")
    mask = VALUES > 40
    for a in (masked(VALUES, mask), nddata.CCDData(VALUES, mask=mask, unit="adu")):
        assert "a.filled(value)" in refused_for_a_mask(a)
        assert "numpy.where(a.mask, value, a.data)" in refused_for_a_mask(a)
    for a in (masked(VALUES), nddata.CCDData(VALUES, unit="adu"), masked(VALUES, mask).filled(0) + VALUES * mask):
        assert_reads(from_array(a), torch.from_numpy(VALUES))


def test_another_mask_of_an_array_that_a_function_holds_is_noticed() -> None:
    masked = pytest.importorskip("astropy.utils.masked").Masked

    def fingerprint(held: Any) -> Any:
        t = from_array(VALUES, dims=("y", "x")).map(lambda x: x * float(held.filled(1).sum()), window=4)
        return t.to_json()["functions"]

    assert fingerprint(masked(VALUES, VALUES > 3)) == fingerprint(masked(VALUES, VALUES > 3))
    assert fingerprint(masked(VALUES, VALUES > 3)) != fingerprint(masked(VALUES, VALUES > 4))


def a_netcdf4_file(folder: Path) -> Any:
    netcdf4 = pytest.importorskip("netCDF4")
    with netcdf4.Dataset(folder / "a.nc", "w") as file:
        file.createDimension("y", 600)
        file.createDimension("x", 800)
        values = np.arange(480_000).reshape(600, 800)
        file.createVariable("plain", "i4", ("y", "x"), chunksizes=(600, 50))[...] = values
        file.createVariable("masked", "i4", ("y", "x"), fill_value=-1)[...] = np.ma.masked_less(values, 9)
        scaled = file.createVariable("scaled", "i4", ("y", "x"))
        scaled.scale_factor, scaled.add_offset = 0.5, 1.0
        scaled[...] = values
    return netcdf4.Dataset(folder / "a.nc")


def test_a_variable_of_netcdf4_without_masked_elements_is_read_chunk_by_chunk(tmp_path: Path) -> None:
    t = from_array(a_netcdf4_file(tmp_path)["plain"])
    assert t.output_window.size == (600, 400)
    assert torch.equal(t[...], torch.arange(480_000, dtype=torch.int32).reshape(600, 800))


def test_a_variable_of_netcdf4_with_masked_elements_is_refused_until_its_file_is_read_as_it_is(tmp_path: Path) -> None:
    variable = a_netcdf4_file(tmp_path)["masked"]
    assert "call a.set_auto_mask(False) of netCDF4" in refused_for_a_mask(variable)
    variable.set_auto_mask(False)
    assert from_array(variable)[0, 7:11].tolist() == [-1, -1, 9, 10]


def test_a_scaled_variable_of_netcdf4_has_the_dtype_of_its_values(tmp_path: Path) -> None:
    t = from_array(a_netcdf4_file(tmp_path)["scaled"])
    assert torch.equal(t[...], torch.arange(480_000, dtype=torch.float64).reshape(600, 800))


@pytest.mark.parametrize("name", ["scaled.nii", "scaled.nii.gz"])
def test_a_scaled_image_of_nibabel_has_the_dtype_of_its_values(name: str, tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(np.random.default_rng(0).normal(size=(20, 18, 16)).astype("f4"), np.eye(4))
    image.set_data_dtype("int16")
    nibabel.save(image, tmp_path / name)
    proxy = nibabel.load(tmp_path / name).dataobj
    assert proxy.dtype == np.int16
    t = from_array(proxy)
    assert t.dtype is torch.float64
    expected = np.asarray(proxy)
    assert_reads(t, torch.from_numpy(expected.copy()))
    assert t.version == from_array(expected).version


@pytest.mark.parametrize(("name", "block"), [("a.nii", (128, 128, 64, 1)), ("a.nii.gz", (128, 128, 64, 4))])
def test_an_image_of_nibabel_is_read_as_it_stands_in_its_file(
    name: str, block: tuple[int, ...], tmp_path: Path
) -> None:
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(np.zeros((128, 128, 64, 4), np.uint8), np.eye(4)), tmp_path / name)
    assert from_array(nibabel.load(tmp_path / name).dataobj).output_window.size == block


def test_sparse_arrays_of_scipy_are_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    for a in (sparse.csr_array(VALUES), sparse.csr_matrix(VALUES), sparse.coo_matrix(VALUES)):
        with pytest.raises(ValidationError, match=r"a is sparse, got .*; give a\.todense\(\)$"):
            from_array(a)
        assert_reads(from_array(a.todense()), torch.from_numpy(VALUES))
