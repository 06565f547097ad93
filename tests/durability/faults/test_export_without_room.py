"""Exports onto a disk without room: named, and nothing is left in the way of the next one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, StoreError, TensorGroup, TensorWindow, ZarrTileStore, cell_generator, sl
from tests.behaviour.views.exports.scenes import names_in, opened
from tests.durability.faults.disks import small_disk
from tests.durability.faults.test_disk_full import FULL
from tests.support.interpreters import Team
from tests.support.reference import Index
from tests.support.stores import sample

REGION = sl[0:1536, 0:1536]


def noise(folder: Path) -> InfiniteTensor:
    """2.25 MiB that do not compress; the disk has 8, and a TIFF takes 2.4 times its size for a while."""

    def f(ctx: Index) -> torch.Tensor:
        return torch.from_numpy(cell_generator(0, ctx).integers(0, 256, (256, 256), np.uint8))

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
        with pytest.raises(StoreError, match=rf"cannot write '.*out.{form}': (?s:.*)({FULL}|[Ww]rite failed)"):
            t.export(REGION, folder / f"out.{form}", progress=False)
        assert set(names_in(folder)) <= {"ballast", ".out.zarr.partial"}
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


def test_a_disk_on_which_no_file_can_be_large(folder: Path, tmp_path: Path) -> None:
    t = noise(tmp_path)
    t.fill(REGION, progress=False)
    with small_disk("limit", folder) as disk:
        disk.fill(2**20)
        for form in ("npy", "png", "tif"):
            with pytest.raises(StoreError, match=rf"cannot write '.*out.{form}'"):
                t.export(REGION, folder / f"out.{form}", progress=False)
            assert names_in(folder) == []
