"""Stores that released versions have written are read, and continued, by every later one."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import TensorBlob, TileStore, open_store, sl
from tests.stores.frozen import writing

RELEASES = sorted(Path(__file__).parent.glob("*.zip"))
ROWS, COLUMNS = torch.arange(-20, 20), torch.arange(10, 40)
PLANE = 1000 * ROWS[:, None] + COLUMNS
HALVES = ((torch.arange(20)[:, None] // 8 + 2 * (torch.arange(30) // 8)) / 2).bfloat16()

every_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
every_store = pytest.mark.parametrize("name", writing.STORES)


def test_there_are_stores_of_a_release() -> None:
    assert RELEASES


@every_release
@every_store
def test_all_that_was_stored_is_read_without_f(release: Path, name: str, tmp_path: Path) -> None:
    with opened(release, name, tmp_path, "r") as store:
        levels = {f"halves/level-{at}" for at in (1, 2)}
        assert {*store.tensor_ids()} == {"plane", "sums", "hann", "halves", "twice", "labels", *levels}
        assert [store.verify(each) for each in store.tensor_ids()] == [[]] * 8
        assert torch.equal(store.open("plane")[writing.FILLED], PLANE)
        assert torch.equal(store.open("twice")[writing.FILLED], 2 * PLANE)
        assert torch.equal(store.open("sums")[writing.FILLED], torch.full((40, 30), 4.0))
        assert torch.equal(store.open("halves")[...], HALVES)
        torch.testing.assert_close(store.open("hann")[...], torch.ones(30, 30))
        assert torch.equal(store.open("labels")[...], (torch.arange(28) >= 14).long().expand(20, 28))
        assert store.open("plane").dims == ("y", "x")
        assert store.open("halves").version == {"seed": 3}


@every_release
@every_store
def test_levels_are_found_again(release: Path, name: str, tmp_path: Path) -> None:
    with opened(release, name, tmp_path, "r") as store:
        for step, level in zip((2, 4), store.open("halves").pyramid(2), strict=True):
            assert torch.equal(level.stored_only()[...], HALVES[::step, ::step])
            assert level.is_filled(...)


@every_release
@every_store
def test_a_group_is_found_again(release: Path, name: str, tmp_path: Path) -> None:
    with opened(release, name, tmp_path, "r") as store:
        read = store.open_group("scene")[writing.FILLED]
        assert torch.equal(read["plane"], PLANE)
        assert torch.equal(read["more", "twice"], 2 * PLANE)


@every_release
@every_store
def test_the_script_that_filled_it_continues_it(release: Path, name: str, tmp_path: Path) -> None:
    with opened(release, name, tmp_path, "a") as store:
        # Declared as then: definitions and fingerprints of f fit, or this would raise or warn.
        tensors = writing.tensors(store)
        partly = tensors.pop("sums")
        assert all(each.is_filled(writing.FILLED if each.shape == (None, None) else ...) for each in tensors.values())
        assert partly.plan(writing.FILLED).tensors[0].stored == 11 * 9
        needed = sl[-32:32, 0:48]
        assert torch.equal(partly[needed], torch.full((64, 48), 4.0))
        assert torch.equal(tensors["plane"][needed], 1000 * torch.arange(-32, 32)[:, None] + torch.arange(48))


@every_release
def test_a_blob_is_read_and_appended_to(release: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(release, tmp_path)
    rows = torch.arange(30.0).view(10, 3)
    with TensorBlob.open(tmp_path / "rows.blob", "a") as blob:
        blob.write(rows[:2])
    with TensorBlob.open(tmp_path / "rows.blob") as blob:
        assert torch.equal(blob.read(), torch.cat([rows, rows[:2]]))


def opened(release: Path, name: str, folder: Path, mode: Any) -> TileStore:
    shutil.unpack_archive(release, folder)
    return open_store(folder / name, mode=mode)
