"""The stores that stand on a real disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from infinite_tensor import HDF5TileStore, ZarrTileStore
from infinite_tensor.tilestore.persistent import PersistentTileStore
from tests.support.disks import SmallDisk, small_disk

Open: TypeAlias = Callable[..., PersistentTileStore]


@pytest.fixture(params=["zarr", "hdf5"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of which kind a store is."""
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the disk is."""
    path = tmp_path / "disk"
    path.mkdir()
    return path


@pytest.fixture(params=["tmpfs", "limit"])
def disk(request: pytest.FixtureRequest, folder: Path) -> Iterator[SmallDisk]:
    """A small disk, real or a limit on the size of files."""
    with small_disk(request.param, folder) as small:
        yield small


@pytest.fixture
def open_store(kind: str, folder: Path) -> Open:
    """Opens one store again and again."""
    cls, name = (ZarrTileStore, "s.zarr") if kind == "zarr" else (HDF5TileStore, "s.h5")
    return partial(cls, folder / name, tile_size=32)
