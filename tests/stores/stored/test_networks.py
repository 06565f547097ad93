"""Stores that were written before weights counted: other weights are no warning there, and other code is one.

Beside this file lie a Zarr folder and an HDF5 file that hold the tensors of `tests.support.networks.build`.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from infinite_tensor import FunctionChangedWarning, HDF5TileStore, InfiniteTensor, ZarrTileStore
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor.values.fingerprint import PYTHON
from tests.support.networks import WINDOW, Net, build, closing_over

HERE = Path(__file__).parent


@pytest.fixture(params=["zarr", "hdf5"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], PersistentTileStore]:
    if request.param == "zarr":
        shutil.copytree(HERE / "networks.zarr", tmp_path / "s.zarr")
        return lambda: ZarrTileStore(tmp_path / "s.zarr", tile_size=8)
    shutil.copy(HERE / "networks.h5", tmp_path / "s.h5")
    return lambda: HDF5TileStore(tmp_path / "s.h5", tile_size=8)


@pytest.mark.parametrize("value", [0.5, 0.25])
def test_it_opens_without_a_warning_whatever_the_weights(
    value: float, opened: Callable[[], PersistentTileStore]
) -> None:
    expected = [-1.5, -0.5, 0.5, 1.5, 0.5, 1.5, 2.5, 3.5, 2.5, 3.5, 4.5, 5.5]
    with opened() as store:
        *tensors, below = build(store, Net(value).eval())
        assert [t[-4:8].tolist() for t in tensors] == [expected] * 3
        assert below[-4:8].tolist() == [each / 2 for each in expected]


def test_it_is_filled_further(opened: Callable[[], PersistentTileStore]) -> None:
    with opened() as store:
        more = [t[-16:32] for t in build(store, Net().eval())]
    with opened() as store:
        assert [t[-16:32].tolist() for t in build(store, Net().eval())] == [each.tolist() for each in more]


@pytest.mark.skipif(PYTHON != "3.11", reason="the bytecode of Python 3.11 is what was fingerprinted")
def test_other_code_is_a_warning(opened: Callable[[], PersistentTileStore]) -> None:
    net = Net().eval()
    with opened() as store, pytest.warns(FunctionChangedWarning, match="f of tensor 'closure'"):
        InfiniteTensor((None,), lambda ctx: net.sample(ctx) * 2, WINDOW, tile_store=store, tensor_id="closure")


def test_what_is_added_to_it_has_weights_in_its_fingerprint(opened: Callable[[], PersistentTileStore]) -> None:
    def add(value: float) -> None:
        InfiniteTensor((None,), closing_over(Net(value)), WINDOW, tile_store=store, tensor_id="added")

    with opened() as store:
        add(0.5)
    with opened() as store, warnings.catch_warnings():
        warnings.simplefilter("error")
        add(0.5)
        with pytest.raises(FunctionChangedWarning, match="'added'"):
            add(0.25)
