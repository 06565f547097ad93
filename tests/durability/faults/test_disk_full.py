"""A disk without room: named, survived, and nothing that was stored is harmed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    StoreError,
    TensorGroup,
    TensorWindow,
    ZarrTileStore,
    sl,
    window_rng,
)
from infinite_tensor.errors import DependantsRemainWarning
from tests.behaviour.views.exports.scenes import names_in, opened
from tests.durability.faults.conftest import Open, check_stored, pair
from tests.durability.faults.disks import SmallDisk, small_disk
from tests.support.interpreters import Team
from tests.support.reference import Index
from tests.support.stores import sample

FULL = r"(No space left on device|File too large)"


def test_what_has_no_room_is_named_kept_and_stored_once_there_is_room(disk: SmallDisk, open_store: Open) -> None:
    store = open_store()
    chain = pair(store)
    before = chain.slope[0:64, 0:64]
    store.flush()
    disk.fill()
    pixels = chain.slope[0:160, 0:64]
    named = (
        rf"TileStore\(.*\) could not store tile \(-?\d+, -?\d+\)( and \d+ more)? of tensor '(slope|ground)': .*{FULL}"
    )
    for _ in range(2):
        with pytest.raises(StoreError, match=named):
            store.flush()
    calls = chain.calls.copy()
    assert torch.equal(chain.slope[0:160, 0:64], pixels)
    assert chain.calls == calls
    with open_store(mode="r") as reader:
        stored = pair(reader)
        assert torch.equal(stored.slope[0:64, 0:64], before)
        assert not stored.calls
    disk.free()
    store.close()
    with open_store() as store:
        check_stored(store, pixels)


@pytest.mark.parametrize("disk", ["tmpfs"], indirect=True)
def test_a_disk_that_gets_full_in_the_middle_of_a_batch(disk: SmallDisk, kind: str, open_store: Open) -> None:
    store = open_store()
    chain = pair(store)
    before = chain.slope[0:64, 0:64]
    store.flush()
    disk.fill(leaving={"zarr": 2**17, "hdf5": 2**20 + 2**18}[kind])
    pixels = chain.slope[0:320, 0:64]
    with pytest.raises(StoreError, match=FULL):
        store.close()
    disk.free()
    store.close()
    with open_store() as store:
        check_stored(store, before, pixels)


@pytest.mark.parametrize("mode", ["a", "w", "w-"])
def test_no_room_for_a_store(disk: SmallDisk, open_store: Open, mode: str) -> None:
    disk.fill()
    # Mode "a" creates the store with its first tensor.
    with pytest.raises(StoreError, match=FULL), open_store(mode=mode) as store:
        pair(store)
    disk.free()
    with open_store(mode=mode) as store:
        pixels = pair(store).slope[0:40, 0:40]
    with open_store(mode="r") as store:
        assert torch.equal(pair(store).slope[0:40, 0:40], pixels)


def test_no_room_for_a_tensor(disk: SmallDisk, open_store: Open) -> None:
    def other() -> InfiniteTensor:
        return InfiniteTensor((4,), lambda _ctx: torch.ones(4), TensorWindow((4,)), tile_store=store, tensor_id="other")

    store = open_store()
    chain = pair(store)
    before = chain.slope[0:64, 0:64]
    store.flush()
    disk.fill()
    for _ in range(2):
        with pytest.raises(StoreError, match=rf"TileStore\(.*\) could not register tensor 'other': .*{FULL}"):
            other()
    assert store.tensor_ids() == ["ground", "slope"]
    disk.free()
    assert other()[0:4].tolist() == [1] * 4
    store.close()
    with open_store() as store:
        check_stored(store, before)
        assert store.open("other")[0:4].tolist() == [1] * 4


def test_a_tensor_can_be_cleared_to_make_room(disk: SmallDisk, open_store: Open) -> None:
    store = open_store()
    chain = pair(store)
    before = chain.slope[0:64, 0:64]
    store.flush()
    disk.fill()
    with pytest.warns(DependantsRemainWarning, match="'slope'"):
        store.clear_tensor("ground")
    assert store.tensor_ids() == ["slope"]
    disk.free()
    store.close()
    with open_store() as store:
        check_stored(store, before)


def test_an_hdf5_file_gives_back_the_room_that_it_took_and_did_not_need(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    store = HDF5TileStore(path, tile_size=32)
    chain = pair(store)
    chain.slope[0:64, 0:64]
    store.flush()
    assert path.stat().st_size < 2**19
    store.close()
    assert path.stat().st_size < 2**19


# Exports: named, and nothing is left in the way of the next one.


REGION = sl[0:1536, 0:1536]


def noise(folder: Path) -> InfiniteTensor:
    """2.25 MiB that do not compress; the disk has 8, and a TIFF takes 2.4 times its size for a while."""

    def f(ctx: Index) -> torch.Tensor:
        return torch.from_numpy(window_rng(0, ctx).integers(0, 256, (256, 256), np.uint8))

    store = ZarrTileStore(folder / "tiles", tile_size=256)
    return InfiniteTensor((None, None), f, TensorWindow((256, 256)), dtype="uint8", tile_store=store, tensor_id="t")


@pytest.mark.parametrize("leaving", sample([0, 2**10, 2**20, 2**21], 2**10, 2**20))
@pytest.mark.parametrize("form", ["zarr", "npy", "png", "tif"])
def test_a_full_disk_is_named_and_a_later_export_succeeds(
    form: str, leaving: int, folder: Path, tmp_path: Path
) -> None:
    t = noise(tmp_path)
    with small_disk("tmpfs", folder) as disk:
        disk.fill(leaving)
        with pytest.raises(StoreError, match=rf"cannot write '.*out.{form}': (?s:.*){FULL}"):
            t.export(REGION, folder / f"out.{form}", progress=False)
        assert {re.sub(r"[0-9a-f]{16}", "N", name) for name in names_in(folder)} <= {"ballast", ".out.zarr.N.partial"}
        disk.free()
        t.export(REGION, folder / f"out.{form}", progress=False)
        assert np.array_equal(opened(folder / f"out.{form}"), t[REGION].numpy())
        assert names_in(folder) == [f"out.{form}"]


def save(folder: Path, scratch: Path) -> None:
    TensorGroup({"t": noise(scratch)}).save_tensordict(REGION, folder / "saved")


def test_a_saved_tensordict_without_room_is_an_error_and_kills_no_process(folder: Path, tmp_path: Path) -> None:
    with small_disk("tmpfs", folder) as disk:
        disk.fill(2**20)
        with Team(1) as team, pytest.raises(StoreError, match="No space left"):
            team.members[0].call(save, folder, tmp_path)
        assert names_in(folder) == ["ballast"]
