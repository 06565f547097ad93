"""kill -9 while a group is filled, saved and exported: nothing is lost, and nothing is there by half."""

from __future__ import annotations

import re
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from infinite_tensor import (
    FunctionChangedWarning,
    InfiniteTensor,
    MemoryTileStore,
    Output,
    StoreError,
    TensorGroup,
    TensorWindow,
    TileStore,
    ZarrTileStore,
    sl,
)
from tests.durability.crash.victims import Called, Done, Flushed
from tests.durability.crash.witness import Witness, survive_every_change
from tests.support.interpreters import enter_child
from tests.support.moments import NEVER, Kill, before

OUTPUTS = {
    "rgb": Output(
        (3, None, None), torch.float32, TensorWindow((3, 6, 6), stride=(3, 4, 4), dimension_map=(None, 0, 1))
    ),
    "mask": Output((None, None), torch.bool, TensorWindow((4, 4))),
}
READ = [sl[0:8, 0:8], sl[0:8, 4:14], sl[-4:8, 0:14]]
"""What is read, with a flush after each."""
EXPORTED = [sl[0:8, 0:14], sl[0:8, 0:6]]
"""What the first export holds, and the one that takes its place."""


def build(store: TileStore, called: Callable[[tuple[int, int]], object]) -> TensorGroup:
    """An image whose windows overlap, and a mask."""

    def f(ctx: tuple[int, int]) -> TensorDict:
        called(ctx)
        picture = torch.arange(108.0).reshape(3, 6, 6) + 100 * ctx[0] + ctx[1]
        return TensorDict({"rgb": picture, "mask": picture[0, :4, :4] % 3 == 0})

    with warnings.catch_warnings():
        # What it calls differs, what it computes does not.
        warnings.simplefilter("ignore", FunctionChangedWarning)
        return InfiniteTensor.from_multi(f, OUTPUTS, tile_store=store, tensor_id="world")


def open_tiles(path: Path) -> ZarrTileStore:
    """The store of the group."""
    return ZarrTileStore(path / "store", tile_size=8)


def do_everything(sending: Connection, path: Path, kill: Kill) -> None:
    """Fill, save and export a group, the same every time, unless killed before."""
    enter_child()
    changes = kill.arm(path)
    with open_tiles(path) as store:
        group = build(store, lambda ctx: sending.send(Called((0, ctx))))
        for region in READ:
            group[region]
            store.flush()
            sending.send(Flushed())
        group.save(store, "saved")
        for region in EXPORTED:
            group.save_tensordict(region, path / "memmap", overwrite=(path / "memmap").exists())
    sending.send(Done(changes()))


EXPECTED: TensorGroup = build(MemoryTileStore(), lambda _ctx: None)
LEFT = re.compile(r"\.memmap\.\w+\.(partial|former)")
"""What an export that was killed leaves."""


def same(found: TensorDictBase, expected: TensorDictBase) -> bool:
    return all(torch.equal(found[key], expected[key]) for key in ("rgb", "mask"))


def check(witness: Witness) -> None:
    _check_store(witness)
    _check_exports(witness.path)


def _check_store(witness: Witness) -> None:
    if not (witness.path / "store").exists():
        assert not witness.flushed
        return
    with open_tiles(witness.path) as store:
        calls: list[tuple[int, int]] = []
        group = build(store, calls.append)
        for region in READ:
            assert same(group[region], EXPECTED[region])
        assert len(calls) == len(set(calls))
        assert not {(0, ctx) for ctx in calls} & witness.flushed
        try:
            saved = store.open_group("saved")
        except StoreError as error:
            assert "contains no group" in str(error)  # noqa: PT017  (there may be one)
            assert store.group_ids() == []
        else:
            assert same(saved[READ[0]], EXPECTED[READ[0]])
        assert not any(store.verify(tensor_id) for tensor_id in store.tensor_ids())


def _check_exports(folder: Path) -> None:
    formers = list(folder.glob(".memmap.*.former"))
    if (folder / "memmap").exists():
        found = TensorDict.load_memmap(folder / "memmap")
        assert any(same(found, EXPECTED[region]) for region in EXPORTED)
    elif formers:
        assert same(TensorDict.load_memmap(formers[0]), EXPECTED[EXPORTED[0]])
    assert all(path.name in ("store", "memmap") or LEFT.fullmatch(path.name) for path in folder.iterdir())


def survive(folder: Path, kill: Kill) -> None:
    """A process that is killed, and one that does everything after it."""
    folder.mkdir()
    witness = Witness(folder)
    assert witness.see(do_everything, kill) == -signal.SIGKILL
    check(witness)
    assert witness.see(do_everything, NEVER) == 0
    check(witness)
    assert same(TensorDict.load_memmap(folder / "memmap"), EXPECTED[EXPORTED[1]])


@pytest.mark.parametrize(
    "kill",
    [
        before("os.rename", r"t-world.*rgb/tiles-\w+/c/"),
        before("os.rename", r"t-world.*mask/tiles-\w+/c/", 2, torn=True),
        before("os.link", r"^store/g-saved/zarr\.json$", torn=True),
        before("os.rename", r"^memmap$"),
        before("os.rename", r"^memmap$", 2),
    ],
    ids=str,
)
def test_a_group_survives_a_kill_at_a_weak_moment(tmp_path: Path, kill: Kill) -> None:
    survive(tmp_path / "world", kill)


@pytest.mark.slow
def test_a_group_survives_a_kill_at_every_change(tmp_path: Path) -> None:
    survive_every_change(tmp_path, do_everything, survive)
