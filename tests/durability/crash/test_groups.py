"""kill -9 while a group is filled, saved and exported: nothing is lost, and nothing is there by half."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import PersistentTensorDict, TensorDict, TensorDictBase

from infinite_tensor import MemoryTileStore, StoreError, TensorGroup
from tests.durability.crash.grouping import EXPORTED, READ, build, do_everything, open_tiles
from tests.durability.crash.witness import Witness
from tests.support.kills import NEVER, Kill, before
from tests.support.moments import Moment

EXPECTED: TensorGroup = build(MemoryTileStore(), lambda _ctx: None)
OPEN: dict[str, Callable[[Path], TensorDictBase]] = {
    "memmap": TensorDict.load_memmap,
    "file.h5": PersistentTensorDict.from_h5,
}
LEFT = re.compile(r"\.(memmap|file\.h5)\.\w+\.(partial|former)")
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
            assert "holds no group" in str(error)  # noqa: PT017  (there may be one)
            assert store.group_ids() == []
        else:
            assert same(saved[READ[0]], EXPECTED[READ[0]])
        assert not any(store.verify(tensor_id) for tensor_id in store.tensor_ids())


def _check_exports(folder: Path) -> None:
    for name, open_export in OPEN.items():
        formers = list(folder.glob(f".{name}.*.former"))
        if (folder / name).exists():
            found = open_export(folder / name)
            assert any(same(found, EXPECTED[region]) for region in EXPORTED)
        elif formers:
            assert same(open_export(formers[0]), EXPECTED[EXPORTED[0]])
    assert all(path.name in ("store", *OPEN) or LEFT.fullmatch(path.name) for path in folder.iterdir())


def survive(folder: Path, kill: Kill) -> None:
    """A process that is killed, and one that does everything after it."""
    folder.mkdir()
    witness = Witness(folder)
    assert witness.see(do_everything, kill) == -signal.SIGKILL
    check(witness)
    assert witness.see(do_everything, NEVER) == 0
    check(witness)
    for name, open_export in OPEN.items():
        assert same(open_export(folder / name), EXPECTED[EXPORTED[1]])


@pytest.mark.parametrize(
    "kill",
    [
        before("os.rename", r"t-world.*rgb/tiles-\w+/c/"),
        before("os.rename", r"t-world.*mask/tiles-\w+/c/", 2, torn=True),
        before("os.link", r"^store/g-saved/zarr\.json$", torn=True),
        before("os.rename", r"^memmap$"),
        before("os.link", r"^file\.h5$"),
        before("os.rename", r"^memmap$", 2),
        before("os.link", r"^file\.h5$", 2),
    ],
    ids=str,
)
def test_a_group_survives_a_kill_at_a_weak_moment(tmp_path: Path, kill: Kill) -> None:
    survive(tmp_path / "world", kill)


@pytest.mark.slow
def test_a_group_survives_a_kill_at_every_change(tmp_path: Path) -> None:
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    witness = Witness(folder)
    assert witness.see(do_everything, NEVER) == 0
    assert witness.changes > 50
    for number in range(1, witness.changes + 1):
        survive(tmp_path / str(number), Kill(Moment("", "", number)))
