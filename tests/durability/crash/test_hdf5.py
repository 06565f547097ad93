"""HDF5 promises less: what was flushed is there after a kill, if nothing was being written."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, TensorGroup, TensorWindow
from infinite_tensor.testing.fixtures import handle_of
from tests.durability.crash.victims import fill_and_idle
from tests.durability.crash.witness import Witness
from tests.stores.hdf5.files import EXPECTED, make_theirs, pixels, tensor, theirs
from tests.support.interpreters import enter_child, exit_code
from tests.support.interrupts import lines_seen
from tests.support.stores import sample

steps = pytest.mark.parametrize("step", sample([29, 1], 29), ids=["some", "all"])


@pytest.mark.parametrize("seed", sample(range(2), 0))
def test_a_file_holds_all_that_was_flushed_after_kills_while_idle(tmp_path: Path, seed: int) -> None:
    witness = Witness(tmp_path / "store.h5")
    for number in range(4):
        assert witness.see(fill_and_idle, 100 * seed + number) == -signal.SIGKILL
        assert witness.flushed
        witness.check()
    witness.fill()


def _write(store: HDF5TileStore, row: int) -> None:
    """Write so many tiles that their structures do not fit into HDF5's usual cache."""
    block = torch.ones(8, 8)
    for begin in range(0, 15_000, 1000):
        handle_of(store, "map").write_tiles({(row, begin + number): block for number in range(1000)})


def _write_and_die(path: Path) -> None:
    enter_child()
    store = HDF5TileStore(path, tile_size=8, compression=None, flush_interval=1e9)
    t = tensor(store)
    t[0:128, 0:128]
    store.flush()
    _write(store, 100)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_kill_between_flushes_leaves_the_file_as_the_last_flush_did(tmp_path: Path) -> None:
    path = tmp_path / "store.h5"
    assert exit_code(_write_and_die, path) == -signal.SIGKILL
    with HDF5TileStore(path, tile_size=8, compression=None) as store:
        t = tensor(store)
        _write(store, 200)
    with HDF5TileStore(path, "r") as store:
        assert store.verify("map") == []
        found = store.open("map")[0:128:4, 0:128:4].tolist()
        assert found == [[100.0 * y + x for x in range(32)] for y in range(32)]
        assert t is not None


def _change_and_die(path: Path, change: Callable[[HDF5TileStore], object]) -> None:
    enter_child()
    store = HDF5TileStore(path, tile_size=8, compression=None, flush_interval=1e9)
    kept = tensor(store)
    change(store)
    # Where HDF5 has free room.
    kept[0:128, 0:128]
    store._contents.tiles.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _name_dims(store: HDF5TileStore) -> None:
    InfiniteTensor((None, None), _zeros, TensorWindow((4, 4)), tile_store=store, tensor_id="second", dims=("y", "x"))


def _clear(store: HDF5TileStore) -> None:
    store.clear_tensor("second")


def _zeros(_ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.zeros(4, 4)


@pytest.mark.parametrize(
    ("change", "left"),
    [(_name_dims, ["map", "second"]), (_clear, ["map"])],
    ids=["definition", "tensor"],
)
def test_a_kill_finds_nothing_written_over_what_was_replaced_or_cleared(
    change: Callable[[HDF5TileStore], object], left: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "store.h5"
    with HDF5TileStore(path, tile_size=8, compression=None) as store:
        tensor(store)[0:8, 0:8]
        InfiniteTensor((None, None), _zeros, TensorWindow((4, 4)), tile_store=store, tensor_id="second")[0:64, 0:64]
    assert exit_code(_change_and_die, path, change) == -signal.SIGKILL
    with HDF5TileStore(path, "r") as store:
        assert store.tensor_ids() == left
        assert [store.verify(tensor_id) for tensor_id in left] == [[]] * len(left)


def _nothing(_path: Path) -> None:
    """No file."""


def _world(path: Path) -> None:
    """A store in a file of somebody else's."""
    make_theirs(path)
    with HDF5TileStore(path, tile_size=8) as store:
        assert pixels(store) == pixels(store, "second") == EXPECTED
        TensorGroup({"height": tensor(store)}).save(store, "world")


def _use(number: int, use: Callable[[Path], None], path: Path) -> None:
    """Use a file, and be killed before the `number`-th line of the backend."""
    enter_child()
    lines = itertools.count(1)

    def see(_frame: FrameType) -> None:
        if next(lines) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    with lines_seen(lambda frame: _is_of_the_backend(frame.f_code.co_filename), see):
        use(path)


def _open(path: Path, mode: Any) -> None:
    HDF5TileStore(path, mode, tile_size=8).close()


@cache
def _is_of_the_backend(file: str) -> bool:
    """Kept for each file: Python tells of every call that is made."""
    return Path(file).parent.name == "hdf5"


@steps
@pytest.mark.parametrize(
    ("begin", "mode"), [(_nothing, "w"), (Path.touch, "r+"), (make_theirs, "a"), (make_theirs, "w"), (_world, "w")]
)
def test_a_kill_before_any_line_of_opening_leaves_what_is_theirs_and_a_file_that_opens(
    begin: Callable[[Path], None], mode: Any, step: int, tmp_path: Path
) -> None:
    for number in itertools.count(1, step):
        path = tmp_path / f"{number}.h5"
        begin(path)
        before = theirs(path) if path.exists() and path.stat().st_size else {}
        code = exit_code(_use, number, partial(_open, mode=mode), path)
        assert code in (0, -signal.SIGKILL)
        with HDF5TileStore(path, tile_size=8) as store:
            assert set(store.tensor_ids()) <= {"map", "second"}
            assert set(store.group_ids()) <= {"world"}
            assert [store.verify(tensor_id) for tensor_id in store.tensor_ids()] == [[]] * len(store.tensor_ids())
            assert pixels(store) == EXPECTED
            store.gc()
        assert theirs(path) == before
        with HDF5TileStore(path, "w", tile_size=8) as store:
            assert store.tensor_ids() == store.group_ids() == []
        assert theirs(path) == before
        path.unlink()
        if code == 0:
            break
    assert number > 40
