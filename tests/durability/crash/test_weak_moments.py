"""kill -9 at the moments when a store is half changed, each of them on purpose."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow
from tests.durability.crash.victims import collect_garbage, do_everything
from tests.durability.crash.witness import Witness
from tests.support.chain import CANVASES, MAP, NAMES, open_chain_store
from tests.support.files_of_a_store import Files
from tests.support.moments import NEVER, Kill, before
from tests.support.reference import region
from tests.support.stores import sample

LOG = r"/partial-\w+/[^/]+"

CREATING = {
    "root half written": before("os.link", r"^zarr\.json$", torn=True),
    "array not begun": before("write", r"^t-slope/tiles-\w+/zarr\."),
    "array half written": before("os.rename", r"^t-slope/tiles-\w+/zarr\.json$", torn=True),
    "array there, definition not begun": before("write", r"^t-slope/zarr\."),
    "definition half written": before("os.link", r"^t-slope/zarr\.json$", torn=True),
    "definition there under two names": before("os.remove", r"^t-slope/zarr\.\w+\.partial$"),
}

STORING = {
    "log half begun": before("os.link", rf"{LOG}/0$", 3, torn=True),
    "log begun under two names": before("os.remove", rf"{LOG}/0\.\w+\.partial$", 3),
    "next part not begun": before("write", rf"{LOG}/1\.\w+\.partial$"),
    "next part half written": before("os.link", rf"{LOG}/2$", torn=True),
    "next part written, not there": before("os.link", rf"{LOG}/1$", 2),
    "chunk half written": before("os.rename", r"/tiles-\w+/c/", 4, torn=True),
    "chunk written, not there": before("os.rename", r"/tiles-\w+/c/", 2),
    "chunk there, log of one part there": before("os.remove", rf"{LOG}/\d+$"),
    "chunk there, log of two parts there": before("os.remove", rf"{LOG}/1$"),
    "chunk there, first of two parts there": before("os.remove", rf"{LOG}/0$", 2),
    "chunk there, folder of its log there": before("os.rmdir", LOG),
    "sums of a mean not there": before("os.link", r"^t-haze/partial-\w+/[^/]+/0$", 2),
    "more sums of a mean half written": before("os.link", r"^t-haze/partial-\w+/[^/]+/1$", torn=True),
    "chunk of a mean there, its sums there": before("os.remove", r"^t-haze/partial-\w+/[^/]+/0$"),
}

CLEARING = {
    "definition there": before("os.remove", r"^t-map/zarr\.json$"),
    "definition gone, all else there": before("os.remove", r"^t-map/(tiles|partial)-\w+/(zarr\.json|c/.*|[^/]+/\d+)$"),
    "a chunk next to go": before("os.remove", r"^t-map/tiles-\w+/c/"),
    "a log next to go": before("os.remove", r"^t-map/partial-\w+/.*/0$", 5),
    "all gone, created again, definition not there": before("os.link", r"^t-map/zarr\.json$", 2),
}


def parametrized(*groups: dict[str, Kill]) -> pytest.MarkDecorator:
    """Moments of each kind by default, and those beside them as slow ones."""
    kills = {name: kill for group in groups for name, kill in group.items()}
    return pytest.mark.parametrize("kill", sample(kills.values(), *[*kills.values()][::2]), ids=kills.keys())


@parametrized(CREATING, STORING)
def test_a_kill_loses_nothing_flushed_and_leaves_no_wrong_pixel(tmp_path: Path, kill: Kill) -> None:
    witness = Witness(tmp_path / "store")
    assert witness.see(do_everything, kill) == -signal.SIGKILL
    witness.check()
    witness.clean()


@parametrized(CLEARING)
def test_a_kill_while_a_tensor_is_cleared_leaves_all_of_it_or_nothing(tmp_path: Path, kill: Kill) -> None:
    witness = Witness(tmp_path / "store")
    assert witness.see(do_everything, kill) == -signal.SIGKILL
    with open_chain_store(witness.path) as store:
        if NAMES[MAP] in store.tensor_ids():
            witness.flushed |= witness.cleared
    witness.check()
    with open_chain_store(witness.path) as store:
        store.clear_tensor(NAMES[MAP])
        new = InfiniteTensor(
            (2, None, None),
            lambda _ctx: torch.full((2, 6, 6), -1.0),
            TensorWindow((2, 6, 6)),
            tile_store=store,
            tensor_id=NAMES[MAP],
        )
        assert new[region(CANVASES[MAP])].unique().tolist() == [-1]
        store.gc()
    assert Files(witness.path).leavings == []


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_kill_while_garbage_is_collected_leaves_the_rest_to_the_next_time(tmp_path: Path, number: int) -> None:
    witness = Witness(tmp_path / "store")
    assert witness.see(do_everything, CLEARING["definition gone, all else there"]) == -signal.SIGKILL
    assert witness.see(collect_garbage, before("os.remove", "", number)) == -signal.SIGKILL
    assert Files(witness.path).leavings != []
    witness.check()
    witness.clean()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 9))
def test_kills_before_every_change_to_a_store(tmp_path: Path, first: int) -> None:
    whole = Witness(tmp_path / "whole")
    assert whole.see(do_everything, NEVER) == 0
    whole.clean()
    for number in range(first, whole.changes + 1, 8):
        witness = Witness(tmp_path / f"killed before change {number}")
        # Which change is which may differ a little from run to run: storage is written to by several threads.
        assert witness.see(do_everything, before("", "", number, torn=True)) in (-signal.SIGKILL, 0)
        witness.check()
        witness.clean()
