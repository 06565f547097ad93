"""HDF5 promises less: what was flushed is there after a kill, if nothing was being written."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from infinite_tensor import HDF5TileStore, TensorGroup
from tests.durability.crash.opening import killed_at
from tests.durability.crash.victims import fill_and_idle
from tests.durability.crash.witness import Witness
from tests.stores.hdf5.files import EXPECTED, make_theirs, pixels, tensor, theirs


@pytest.mark.parametrize("seed", range(2))
def test_a_file_holds_all_that_was_flushed_after_kills_while_idle(tmp_path: Path, seed: int) -> None:
    witness = Witness(tmp_path / "store.h5")
    for number in range(4):
        assert witness.see(fill_and_idle, 100 * seed + number) == -signal.SIGKILL
        assert witness.flushed
        witness.check()
    witness.fill()


def _nothing(_path: Path) -> None:
    """No file."""


def _world(path: Path) -> None:
    """A store in a file of somebody else's."""
    make_theirs(path)
    with HDF5TileStore(path, tile_size=8) as store:
        assert pixels(store) == pixels(store, "second") == EXPECTED
        TensorGroup({"height": tensor(store)}).save(store, "world")


@pytest.mark.parametrize("step", [pytest.param(9, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("begin", "mode"), [(_nothing, "a"), (Path.touch, "r+"), (make_theirs, "a"), (make_theirs, "w"), (_world, "w")]
)
def test_a_kill_before_any_line_of_opening_leaves_what_is_theirs_and_a_file_that_opens(
    begin: Callable[[Path], None], mode: str, step: int, tmp_path: Path
) -> None:
    for number in itertools.count(1, step):
        path = tmp_path / f"{number}.h5"
        begin(path)
        before = theirs(path) if path.exists() and path.stat().st_size else {}
        killed = killed_at(number, path, mode)
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
        if not killed:
            break
    assert number > 40
