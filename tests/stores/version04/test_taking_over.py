"""Files that version 0.4 has written: an example takes their complete tiles over, and the tensors continue with them.

The files beside this one were written by ``write_files.py``, which declares the same tensors with either version.
"""

from __future__ import annotations

import gzip
import itertools
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, StoreError, TensorWindow, ValidationError, ZarrTileStore
from infinite_tensor.testing.fixtures import handle_of
from tests.stores.version04 import write_files
from tests.stores.version04.write_files import CALLS, OVERLAPPING, READ, chain, mapped, value
from tests.support.dict_store import DictTileStore
from tests.support.reference import same_bits

HERE = Path(__file__).parent
take_over = runpy.run_path(str(HERE.parents[2] / "examples" / "take_over_04.py"))["take_over"]


@pytest.fixture(autouse=True)
def calls() -> list[tuple[int, ...]]:
    CALLS.clear()
    return CALLS


def file_of(name: str, folder: Path) -> Path:
    path = folder / f"{name}.h5"
    path.write_bytes(gzip.decompress((HERE / f"{name}.h5.gz").read_bytes()))
    return path


def store_in(folder: Path, name: str = "chain") -> ZarrTileStore:
    return ZarrTileStore(folder / "new.zarr", tile_size=READ[name][1])


def complete_in(path: Path, tensor: InfiniteTensor) -> dict[tuple[int, ...], np.ndarray[Any, Any]]:
    """The tiles of a file that hold every window over them, by brute force."""
    found = {}
    with h5py.File(path) as file:
        group = file[f"tensors/{tensor.tensor_id}/tiles"]
        sizes = file[f"tensors/{tensor.tensor_id}/metadata"].attrs["tile_size"].tolist()
        for name, dataset in group.items():
            along, size = iter(map(int, name.split("_"))), iter(sizes)
            start, stop = [], []
            for extent in tensor.shape:
                n = next(size) if extent is None else extent
                start.append(next(along) * n if extent is None else 0)
                stop.append(start[-1] + n)
            known = {tuple(map(int, window.split("_"))) for window in dataset.attrs["contributions"]}
            if covering(tensor.output_window, tensor.shape, start, stop) <= known:
                found[tuple(start)] = dataset[()]
    return found


def box_of(start: Sequence[int], pixels: np.ndarray[Any, Any]) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(start, pixels.shape, strict=True))


def covering(
    window: TensorWindow, shape: Sequence[int | None], start: Sequence[int], stop: Sequence[int]
) -> set[tuple[int, ...]]:
    """The windows that touch a box, and lie in the tensor."""
    found = set()
    for index in itertools.product(range(-20, 20), repeat=len(shape)):
        bounds = window.get_bounds(index)
        inside = all(n is None or (b.start >= 0 and b.stop <= n) for b, n in zip(bounds, shape, strict=True))
        if inside and all(b.start < y and x < b.stop for b, x, y in zip(bounds, start, stop, strict=True)):
            found.add(index)
    return found


@pytest.mark.parametrize("name", ["chain", "shapes", "oblong"])
def test_complete_tiles_come_over_and_the_script_continues(tmp_path: Path, name: str) -> None:
    path, all_moved = file_of(name, tmp_path), 0
    tensors, tile_size, _ = READ[name]
    fresh = tensors(ZarrTileStore(tmp_path / "fresh.zarr", tile_size=tile_size))
    before = path.read_bytes()
    with store_in(tmp_path, name) as store:
        continued = tensors(store)
        for tensor_id, tensor in continued.items():
            complete = complete_in(path, tensor)
            with h5py.File(path) as file:
                there = len(file[f"tensors/{tensor_id}/tiles"])
            assert take_over(path, tensor) == (len(complete), there - len(complete))
            info = store.tensor_info(tensor_id)
            assert (info.tiles_complete, info.tiles_partial) == (len(complete), 0)
            for start, pixels in complete.items():
                assert same_bits(tensor[box_of(start, pixels)], torch.from_numpy(pixels))
            all_moved += len(complete)
        assert CALLS == []
        for tensor_id, tensor in continued.items():
            region = tuple(slice(-9, 20) if extent is None else slice(None) for extent in tensor.shape)
            # Windows are full of integers, whose sums are the same in any order.
            assert same_bits(tensor[region], fresh[tensor_id][region])
    assert all_moved
    assert path.read_bytes() == before


def test_what_is_there_is_not_moved_again(tmp_path: Path) -> None:
    path = file_of("chain", tmp_path)
    with store_in(tmp_path) as store:
        tensor = chain(store)["below"]
        moved, left = take_over(path, tensor)
        assert take_over(path, tensor) == (0, left)
        handle_of(store, "below").delete_tiles([(0, 0)])
        assert take_over(path, tensor) == (1, left)
    assert moved


def test_tiles_come_into_any_store_that_keeps_tiles_under_another_id(tmp_path: Path) -> None:
    path = file_of("chain", tmp_path)
    for store in (HDF5TileStore(tmp_path / "new.h5", tile_size=8), DictTileStore({}, tile_size=8)):
        ground = InfiniteTensor((None, None), value, OVERLAPPING, tile_store=store, tensor_id="ground")
        ground[3:4, 3:4]
        assert take_over(path, ground, "below")[0] > 0
        CALLS.clear()
        assert ground[0:8, 0:8].shape == (8, 8)
        assert CALLS == []
        store.close()


def test_what_differs_is_listed_and_nothing_is_copied(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path / "new.zarr", tile_size=16)
    other = InfiniteTensor(
        (None, None),
        lambda _: torch.zeros(6, 6, dtype=torch.float64),
        TensorWindow((6, 6), stride=5),
        dtype=torch.float64,
        tile_store=store,
        tensor_id="below",
    )
    differing = (
        r"(?s)dtype: stored float32, given float64.*output_window: .*tile_size: stored \[8, 8\], given \[16, 16\]"
    )
    with pytest.raises(ValidationError, match=differing):
        take_over(file_of("chain", tmp_path), other)
    assert store.tensor_info("below").tiles_complete == 0


def test_another_arg_is_a_difference_and_an_arg_without_an_id_is_none(tmp_path: Path) -> None:
    path, store = file_of("chain", tmp_path), store_in(tmp_path)
    arg = InfiniteTensor((None, None), value, OVERLAPPING, tile_store=store, tensor_id="other")
    top = InfiniteTensor(
        (None, None), write_files.doubled, OVERLAPPING, (arg,), (OVERLAPPING,), tile_store=store, tensor_id="top"
    )
    with pytest.raises(ValidationError, match=r"args: stored \['below'\], given \['other'\]"):
        take_over(path, top)
    assert take_over(file_of("shapes", tmp_path), top, "twice")[0] > 0


def test_windows_with_a_dimension_map_are_refused(tmp_path: Path) -> None:
    tensor = mapped(store_in(tmp_path, "mapped"))["t"]
    with pytest.raises(ValidationError, match=r"version 0\.4 counted windows with a dimension_map"):
        take_over(file_of("mapped", tmp_path), tensor)


def test_a_store_names_the_way_over_when_it_refuses_such_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"with examples/take_over_04\.py"):
        HDF5TileStore(file_of("chain", tmp_path))
