"""An id is cleared and given to another tensor, while another process still writes the old one."""

from __future__ import annotations

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.chain import open_chain_store
from tests.support.files_of_a_store import Files
from tests.support.interpreters import DEADLINE, Paused, Team
from tests.support.members import clear, flush, keep_open, plain, read_plain, write_plain
from tests.support.moments import Moment

EVERYWHERE = (slice(-40, 40), slice(-40, 40))
LEFT, MIDDLE = [((-30, x), (30, x + 15)) for x in (-30, -10)]
OUTCOMES = ("stored", "StoreError", "ValidationError")
"""What may become of an old process's work: its tiles lie unused, or it is told."""


def test_an_old_process_never_writes_into_a_new_tensor(tmp_path: Path) -> None:
    with Team(1) as team:
        old = team.members[0]
        old.call(keep_open, tmp_path)
        old.call(read_plain, "t", 1, LEFT)
        assert old.call(flush) == "stored"
        old.call(read_plain, "t", 1, MIDDLE)
        with open_chain_store(tmp_path) as store:
            store.clear_tensor("t")
            new = plain(store, "t", 2)
            assert new[-20:20, -20:20].unique().tolist() == [2]
            store.flush()
            assert old.call(flush) in OUTCOMES
            store.clear_cache("t")
            assert new[EVERYWHERE].unique().tolist() == [2]
        assert old.call(flush) in OUTCOMES
    with open_chain_store(tmp_path, mode="r") as store:
        assert store.open("t")[EVERYWHERE].unique().tolist() == [2]
    with open_chain_store(tmp_path) as store:
        store.gc()
    assert Files(tmp_path).leavings == []


@pytest.mark.parametrize(
    "moment",
    [
        Moment("read", r"^t-t/zarr\.json$"),
        Moment("write", r"/tiles-\w+/c/"),
        Moment("os.rename", r"/tiles-\w+/c/"),
        Moment("write", r"/partial-\w+/"),
        Moment("os.link", r"/partial-\w+/"),
        Moment("os.remove", r"/partial-\w+/"),
    ],
    ids=lambda moment: f"before {moment.step} {moment.path}",
)
def test_a_tensor_may_be_replaced_at_any_step_of_another_process(tmp_path: Path, moment: Moment) -> None:
    with open_chain_store(tmp_path) as store:
        plain(store, "t", 1)
        with Paused(tmp_path, moment, write_plain, tmp_path, "t", 1, LEFT) as old:
            store.clear_tensor("t")
            new = plain(store, "t", 2)
            assert new[-20:20, -20:20].unique().tolist() == [2]
            store.flush()
            assert old.go_on() in OUTCOMES
        store.clear_cache("t")
        assert new[EVERYWHERE].unique().tolist() == [2]
        store.gc()
    assert Files(tmp_path).leavings == []


def test_a_tensor_is_cleared_although_another_process_adds_to_it_meanwhile(tmp_path: Path) -> None:
    log = r"/partial-\w+/0\.0\.0"
    # The first try finds no folder.
    adds, deletes = Moment("write", rf"{log}/0\.", 2), Moment("os.rmdir", rf"{log}$")
    with (
        Paused(tmp_path, adds, write_plain, tmp_path, "t", 1, ((0, 0), (5, 5))) as old,
        Paused(tmp_path, deletes, clear, tmp_path, "t") as clearing,
    ):
        assert old.go_on() in OUTCOMES
        clearing.go_on()
    with open_chain_store(tmp_path) as store:
        assert plain(store, "t", 2)[EVERYWHERE].unique().tolist() == [2]
        store.gc()
    assert Files(tmp_path).leavings == []


def test_what_is_created_next_survives_two_processes_that_clear_at_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_chain_store(tmp_path) as store:
        plain(store, "t", 1)
    reached, lock = threading.Event(), fcntl.flock

    def reaching(descriptor: int, operation: int) -> None:
        reached.set()
        lock(descriptor, operation)

    def clear_and_create() -> None:
        with open_chain_store(tmp_path) as store:
            store.clear_tensor("t")
            assert plain(store, "t", 2)[EVERYWHERE].unique().tolist() == [2]
        reached.set()

    monkeypatch.setattr(fcntl, "flock", reaching)
    with (
        ThreadPoolExecutor(1) as pool,
        Paused(tmp_path, Moment("os.remove", r"^t-t/zarr\.json$"), clear, tmp_path, "t") as clearing,
    ):
        second = pool.submit(clear_and_create)
        # It is done, or it waits for the first.
        assert reached.wait(DEADLINE)
        clearing.go_on()
        second.result(DEADLINE)
    with open_chain_store(tmp_path, mode="r") as store:
        assert store.open("t")[EVERYWHERE].unique().tolist() == [2]
