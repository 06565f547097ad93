"""HDF5 gives a file to one process at a time: a store and a program that writes into the same file take turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest

from infinite_tensor import HDF5TileStore, StoreError
from tests.stores.hdf5.files import EXPECTED, make_theirs, pixels, theirs
from tests.support.interpreters import Team

_kept: list[Any] = []


def write_setting(path: Path) -> None:
    with h5py.File(path, "r+") as h5:
        h5.attrs["SETTINGS"] = "changed"


def keep_open(path: Path, mode: str) -> None:
    _kept.append(h5py.File(path, mode))


def test_nobody_else_writes_while_a_store_is_open(tmp_path: Path) -> None:
    path = tmp_path / "world.h5"
    make_theirs(path)
    before = theirs(path)
    with Team(1) as team:
        with HDF5TileStore(path, tile_size=8) as store:
            with pytest.raises(BlockingIOError, match="unable to lock file"):
                team.members[0].call(write_setting, path)
            assert pixels(store) == EXPECTED
        assert theirs(path) == before
        team.members[0].call(write_setting, path)
    with HDF5TileStore(path, "r", tile_size=8) as store:
        assert pixels(store) == EXPECTED
    assert theirs(path) == before | {"@SETTINGS": "changed"}


@pytest.mark.parametrize("theirs_in", ["r", "r+"])
@pytest.mark.parametrize("mode", ["a", "r+", "w"])
def test_a_file_that_another_process_has_open_is_refused_and_left_alone(
    mode: str, theirs_in: str, tmp_path: Path
) -> None:
    path = tmp_path / "world.h5"
    make_theirs(path)
    with Team(1) as team:
        team.members[0].call(keep_open, path, theirs_in)
        before = path.read_bytes()
        with pytest.raises(StoreError, match="is open in another process; HDF5 serves one at a time"):
            HDF5TileStore(path, mode)
        assert path.read_bytes() == before
