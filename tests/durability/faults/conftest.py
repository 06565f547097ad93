"""The chain of these tests, and the stores that stand on a real disk."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import pytest
import torch

# A conftest is imported before `tests/conftest.py` can skip what needs a package of an extra.
pytest.importorskip("h5py")

from infinite_tensor import HDF5TileStore, TensorWindow, TileStore, ZarrTileStore
from infinite_tensor.tilestore.persistent import PersistentTileStore

# Inside: the end of what writers do in the background.
from infinite_tensor.tilestore.writer import Writer
from tests.durability.faults.disks import SmallDisk, small_disk
from tests.support.chain import Chain, Scrambled
from tests.support.reference import Stage

Open: TypeAlias = Callable[..., PersistentTileStore]

_SQUARE = TensorWindow((8, 8), stride=6)
_PAIR = (
    Stage((None, None), torch.float32, _SQUARE, Scrambled(0, (8, 8), torch.float32)),
    Stage(
        (None, None),
        torch.float32,
        _SQUARE,
        Scrambled(1, (8, 8), torch.float32),
        ((0, TensorWindow((10, 10), stride=6, offset=-1)),),
    ),
)


@pytest.fixture(autouse=True)
def grad_mode() -> Iterator[None]:
    """`torch.no_grad` does not undo itself where a handler of a signal raises between two of its lines."""
    yield
    torch.set_grad_enabled(True)


def pair(store: TileStore) -> Chain:
    """A chain of `ground` and `slope` alone, with larger windows: quick to compute, where storage is what matters."""
    return Chain(store, stages=_PAIR)


def check_stored(store: TileStore, *pixels: torch.Tensor) -> None:
    """Pixels of `slope` from its origin on are there, and nothing is computed for them."""
    again = pair(store)
    for block in pixels:
        assert torch.equal(again.slope[tuple([slice(0, extent) for extent in block.shape])], block)
    assert not again.calls


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


def wait_for_writers() -> None:
    """Until nothing is written in the background, and no thread that did so holds on to a store."""
    for writer in [item for item in gc.get_objects() if isinstance(item, Writer)]:
        writer.drain()
    while any(_writes(frame) for frame in sys._current_frames().values()):
        pass


def _writes(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not Writer._work.__code__:
        frame = frame.f_back
    return frame is not None
