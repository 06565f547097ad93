"""kill -9 before every change to a store while it is created, and in mode 'w'."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from infinite_tensor import ZarrTileStore
from tests.durability.crash.victims import create_all, empty, zeros_in
from tests.support.chain import TILE
from tests.support.interpreters import exit_code
from tests.support.moments import Kill, before

_FEWEST_CHANGES = 8


def after_each_kill(
    folder: Path, victim: Callable[[Path, Kill], None], prepare: Callable[[Path], object]
) -> Iterator[Path]:
    """Places in which `victim` was killed, before its first change in one, before its second in the next, and so on."""
    for number in itertools.count(1):
        path = folder / f"killed before change {number}"
        prepare(path)
        code = exit_code(victim, path, before("", "", number, torn=True))
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            assert number > _FEWEST_CHANGES
            return
        yield path


def check(path: Path) -> None:
    """The store is opened, filled and swept as if nothing had happened."""
    with ZarrTileStore(path, tile_size=TILE) as store:
        assert set(store.tensor_ids()) <= {"t"}
        assert torch.equal(zeros_in(store)[0:3, 0:3], torch.zeros(3, 3))
        store.gc()
        assert store.verify("t") == []
    assert not list(path.rglob("*.partial"))


def files(path: Path) -> list[str]:
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())


def test_a_store_that_was_being_created_is_opened_or_emptied(tmp_path: Path) -> None:
    for path in after_each_kill(tmp_path, create_all, Path.mkdir):
        other = shutil.copytree(path, path.with_suffix(".emptied"))
        check(path)
        with ZarrTileStore(other, mode="w") as store:
            store.gc()
        assert files(other) == ["zarr.json"]


def test_mode_w_that_is_killed_leaves_whole_tensors_or_none_and_every_photograph(tmp_path: Path) -> None:
    photographs = ["holiday/sea.jpg", "sea.jpg", "t-shirts/blue.jpg"]

    def beside_photographs(path: Path) -> None:
        with ZarrTileStore(path, tile_size=TILE) as store:
            zeros_in(store)[0:9, 0:9]
        for key in photographs:
            (path / key).parent.mkdir(exist_ok=True)
            (path / key).write_bytes(b"the sea")

    for path in after_each_kill(tmp_path, empty, beside_photographs):
        with ZarrTileStore(path, tile_size=TILE, mode="r") as store:
            assert all(store.verify(tensor_id) == [] for tensor_id in store.tensor_ids())
        check(path)
        ZarrTileStore(path, mode="w").close()
        assert files(path) == [*photographs, "zarr.json"]
