"""Files that version 0.4 has written: complete tiles are taken over, and the tensors continue with them.

The files beside this one were written by ``write_files.py``, which declares the same tensors with either version.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from infinite_tensor import (
    DamagedDataWarning,
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    Reduction,
    StoreError,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    copy_from_04,
)
from tests.stores.version04 import write_files
from tests.stores.version04.write_files import CALLS, OVERLAPPING, READ, chain, mapped, oblong, value
from tests.support.dict_store import DictTileStore
from tests.support.reference import same_bits

HERE = Path(__file__).parent


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
def test_complete_tiles_come_over_and_nothing_else(tmp_path: Path, name: str) -> None:
    path, moved = file_of(name, tmp_path), 0
    with store_in(tmp_path, name) as store:
        for tensor_id, tensor in READ[name][0](store).items():
            complete = complete_in(path, tensor)
            (copied,) = copy_from_04(path, tensor, progress=False).tensors
            with h5py.File(path) as file:
                there = len(file[f"tensors/{tensor_id}/tiles"])
            assert (copied.tiles, copied.left) == (len(complete), there - len(complete))
            info = store.tensor_info(tensor_id)
            assert (info.tiles_complete, info.tiles_partial) == (len(complete), 0)
            for start, pixels in complete.items():
                assert same_bits(tensor[box_of(start, pixels)], torch.from_numpy(pixels))
            moved += copied.tiles
    assert moved
    assert CALLS == []


@pytest.mark.parametrize("name", ["chain", "shapes", "oblong"])
def test_the_script_continues_and_gives_what_it_would_without_the_file(tmp_path: Path, name: str) -> None:
    path = file_of(name, tmp_path)
    tensors, tile_size, _ = READ[name]
    fresh = tensors(ZarrTileStore(tmp_path / "fresh.zarr", tile_size=tile_size))
    with store_in(tmp_path, name) as store:
        continued = tensors(store)
        for tensor in continued.values():
            copy_from_04(path, tensor, progress=False)
        for tensor_id, tensor in continued.items():
            region = tuple(slice(-9, 20) if extent is None else slice(None) for extent in tensor.shape)
            # Windows are full of integers, whose sums are the same in any order.
            assert same_bits(tensor[region], fresh[tensor_id][region])


def test_a_region_of_complete_tiles_calls_f_zero_times(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        tensors = chain(store)
        for tensor in tensors.values():
            copy_from_04(file_of("chain", tmp_path), tensor, progress=False)
        assert tensors["top"][0:8, 0:8].shape == (8, 8)
        assert CALLS == []


def test_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = file_of("chain", tmp_path)
    before = path.read_bytes()
    with store_in(tmp_path) as store:
        copy_from_04(path, chain(store)["below"], progress=False)
    assert path.read_bytes() == before


def test_copying_again_moves_nothing_and_then_what_is_missing(tmp_path: Path) -> None:
    path = file_of("chain", tmp_path)
    with store_in(tmp_path) as store:
        tensor = chain(store)["below"]
        (first,) = copy_from_04(path, tensor, progress=False).tensors
        (again,) = copy_from_04(path, tensor, progress=False).tensors
        assert (again.tiles, again.there, again.left) == (0, first.tiles, first.left)
        store._delete_tiles("below", [(0, 0)])
        (third,) = copy_from_04(path, tensor, progress=False).tensors
        assert (third.tiles, third.there) == (1, first.tiles - 1)


def test_tiles_come_into_any_store_that_keeps_tiles(tmp_path: Path) -> None:
    path = file_of("chain", tmp_path)
    for store in (HDF5TileStore(tmp_path / "new.h5", tile_size=8), DictTileStore({}, tile_size=8)):
        tensor = chain(store)["below"]
        assert copy_from_04(path, tensor, progress=False).tiles == len(complete_in(path, tensor))
        store.close()


def test_a_tensor_may_have_another_id_by_now(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    renamed = InfiniteTensor((None, None), value, OVERLAPPING, tile_store=store, tensor_id="ground")
    assert copy_from_04(file_of("chain", tmp_path), renamed, tensor_id="below", progress=False).tiles > 0


def test_what_an_open_tensor_has_in_memory_does_not_hide_what_comes_over(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        tensor = chain(store)["below"]
        tensor[3:4, 3:4]
        copy_from_04(file_of("chain", tmp_path), tensor, progress=False)
        before = len(CALLS)
        tensor[0:8, 0:8]
        assert len(CALLS) == before


# What is refused.


def test_what_differs_is_listed_and_nothing_is_copied(tmp_path: Path) -> None:
    path = file_of("chain", tmp_path)
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
        r"(?s)dtype: stored 'float32', given 'float64'.*output_window.stride: stored \[4, 4\], given \[5, 5\].*"
        r"tile_size: stored \[8, 8\], given \[16, 16\].*clear_tensor\('below'\)"
    )
    with pytest.raises(ValidationError, match=differing):
        copy_from_04(path, other, progress=False)
    assert store.tensor_info("below").tiles_complete == 0


def test_another_arg_is_a_difference_and_an_arg_without_an_id_is_none(tmp_path: Path) -> None:
    path, store = file_of("chain", tmp_path), store_in(tmp_path)
    other = InfiniteTensor((None, None), value, OVERLAPPING, tile_store=store, tensor_id="other")
    unnamed = InfiniteTensor((None, None), value, OVERLAPPING)

    def top(name: str, arg: InfiniteTensor) -> InfiniteTensor:
        return InfiniteTensor(
            (None, None), write_files.doubled, OVERLAPPING, (arg,), (OVERLAPPING,), tile_store=store, tensor_id=name
        )

    with pytest.raises(ValidationError, match=r"args: stored \['below'\], given \['other'\]"):
        copy_from_04(path, top("a", other), tensor_id="top", progress=False)
    assert copy_from_04(path, top("b", unnamed), tensor_id="top", progress=False).tiles > 0


def test_a_tensor_that_tiles_a_finite_dimension_has_other_tiles(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path / "new.zarr", tile_size=(1, 8, 8))
    tensor = InfiniteTensor(
        (3, None, None),
        write_files.coloured,
        TensorWindow((3, 6, 6), stride=(3, 4, 4)),
        tile_store=store,
        tensor_id="channels",
    )
    with pytest.raises(ValidationError, match=r"tile_size: stored \[8, 8\], given \[1, 8, 8\]"):
        copy_from_04(file_of("shapes", tmp_path), tensor, progress=False)


def test_windows_with_a_dimension_map_are_refused(tmp_path: Path) -> None:
    tensor = mapped(store_in(tmp_path, "mapped"))["t"]
    with pytest.raises(ValidationError, match=r"have a dimension_map, under which version 0\.4 counted windows"):
        copy_from_04(file_of("mapped", tmp_path), tensor, progress=False)


@pytest.mark.parametrize(
    "options", [{"blend": "mean"}, {"blend": "last"}, {"reduce": Reduction("argmax", in_channels=2)}], ids=str
)
def test_blends_that_version_04_did_not_know_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    dtype = torch.int64 if "reduce" in options else torch.float32
    tensor = InfiniteTensor(
        (None, None), value, OVERLAPPING, dtype=dtype, tile_store=store_in(tmp_path), tensor_id="below", **options
    )
    with pytest.raises(ValidationError, match=r"in a way that version 0\.4 did not know"):
        copy_from_04(file_of("chain", tmp_path), tensor, progress=False)


def test_bad_arguments_are_told(tmp_path: Path) -> None:
    path, store = file_of("chain", tmp_path), store_in(tmp_path)
    tensor = chain(store)["below"]
    store.close()
    in_memory = chain(MemoryTileStore())["below"]
    reading = chain(ZarrTileStore(tmp_path / "new.zarr", mode="r"))["below"]
    (tmp_path / "text.h5").write_text("no HDF5 file")
    with HDF5TileStore(tmp_path / "current.h5"):
        pass
    with h5py.File(tmp_path / "foreign.h5", "w"):
        pass
    for file, given, options, kind, told in (
        (5, tensor, {}, ValidationError, "filepath must be a path, got 5"),
        (path, torch.ones(3), {}, ValidationError, "tensor must be an InfiniteTensor"),
        (path, in_memory, {}, ValidationError, "must be on a store that keeps tiles"),
        (path, reading, {}, ValidationError, "is read-only: it cannot take tiles over"),
        (path, tensor, {"progress": 3}, ValidationError, "progress must be"),
        (path, tensor, {}, StoreError, "is closed"),
    ):
        with pytest.raises(kind, match=told):
            copy_from_04(file, given, **options)  # type: ignore[arg-type]
    with store:
        tensor = chain(store)["below"]
        for name, named, told in (
            ("missing.h5", {}, "there is no file"),
            ("text.h5", {}, "cannot be opened as an HDF5 file"),
            ("current.h5", {}, "is a store of this version"),
            ("foreign.h5", {}, "is no file of version 0.4"),
            ("chain.h5", {"tensor_id": "x"}, r"holds no tensor 'x'; it holds \['below', 'maps/of/heights', 'top'\]"),
            ("chain.h5", {"tensor_id": "maps"}, "holds no tensor 'maps'"),
        ):
            with pytest.raises(StoreError, match=told):
                copy_from_04(tmp_path / name, tensor, progress=False, **named)
        assert store.tensor_info("below").tiles_complete == 0


def test_a_store_names_the_way_over_when_it_refuses_such_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"copy_from_04\(path, tensor\) takes over"):
        HDF5TileStore(file_of("chain", tmp_path))


# Damage.


def test_a_tile_that_lost_the_list_of_its_windows_is_left_out(tmp_path: Path) -> None:
    # A process that was killed between the two writes leaves that.
    path = file_of("oblong", tmp_path)
    with h5py.File(path, "r+") as file:
        del file["tensors/t/tiles/0_0"].attrs["contributions"]
    with store_in(tmp_path, "oblong") as store:
        (copied,) = copy_from_04(path, oblong(store)["t"], progress=False).tensors
    assert (copied.tiles, copied.left, copied.damaged) == (0, 2, 0)


def test_a_tile_that_cannot_be_read_is_told_and_left_out(tmp_path: Path) -> None:
    path = file_of("oblong", tmp_path)
    with h5py.File(path, "r+") as file:
        tiles = file["tensors/t/tiles"]
        windows = tiles["0_0"].attrs["contributions"]
        del tiles["0_0"]
        tiles.create_dataset("0_0", data=np.zeros((3, 3), np.float32)).attrs["contributions"] = windows
        tiles.create_group("7_7")
        tiles.create_dataset("no tile", data=1)
    with store_in(tmp_path, "oblong") as store, pytest.warns(DamagedDataWarning, match=r"tile \(0, 0\) .* \(3, 3\)"):
        (copied,) = copy_from_04(path, oblong(store)["t"], progress=False).tensors
    assert (copied.tiles, copied.damaged) == (0, 1)


def test_metadata_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = file_of("oblong", tmp_path)
    with store_in(tmp_path, "oblong") as store:
        tensor = oblong(store)["t"]
        for meta in ("{", "[]", "{}"):
            with h5py.File(path, "r+") as file:
                file["tensors/t/metadata"].attrs["meta"] = meta
            with pytest.raises(StoreError, match="what describes tensor 't' cannot be read"):
                copy_from_04(path, tensor, progress=False)


def test_a_tensor_that_is_cleared_while_tiles_come_over_is_an_error(tmp_path: Path) -> None:
    with store_in(tmp_path) as store:
        tensor = chain(store)["top"]
        with pytest.raises(StoreError, match="was cleared"):
            copy_from_04(file_of("chain", tmp_path), tensor, progress=lambda _: store.clear_tensor("top"))
        assert "top" not in store


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[Any] = []
    with store_in(tmp_path) as store:
        report = copy_from_04(file_of("chain", tmp_path), chain(store)["below"], progress=told.append)
    assert told[-1].report is report
    assert told[-1].done == told[-1].total == report.tiles + report.tensors[0].left
    assert "left out" in str(report)
