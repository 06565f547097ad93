"""Two processes meet at one tile: one waits in the middle of a step while the other takes all of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chain import open_chain_store
from tests.support.files_of_a_store import Files
from tests.support.interpreters import Paused
from tests.support.members import plain, read_stored_plain, write_plain
from tests.support.moments import Moment

LOG = r"/partial-\w+/0\.0\.0"
"""Of the tile over pixels 0 to 8 in both dimensions, which four windows of 5 x 5 cover."""


@pytest.mark.parametrize("path", [rf"{LOG}/0$", rf"{LOG}/1$", rf"{LOG}/2$"])
def test_what_was_flushed_is_found_while_another_process_completes_the_tile(tmp_path: Path, path: str) -> None:
    with open_chain_store(tmp_path) as store:
        t = plain(store, "t", 7)
        for x in (0, 5):
            assert t[0:5, x].unique().tolist() == [7]
            store.flush()
        with Paused(tmp_path, Moment("read", path), read_stored_plain, tmp_path, "t", ((0, 0), (5, 8))) as reader:
            assert t[0:8, 0:8].unique().tolist() == [7]
            store.flush()
            assert store.tensor_info("t").tiles_complete == 1
            assert reader.go_on() == [7]


@pytest.mark.parametrize("step", ["write", "os.link", "os.remove"])
def test_a_process_may_add_to_a_tile_that_another_one_completes(tmp_path: Path, step: str) -> None:
    with open_chain_store(tmp_path) as store:
        t = plain(store, "t", 7)
        assert t[0:5, 0].unique().tolist() == [7]
        store.flush()
        with Paused(tmp_path, Moment(step, rf"{LOG}/1"), write_plain, tmp_path, "t", 7, ((0, 5), (5, 8))) as other:
            assert t[0:8, 0:8].unique().tolist() == [7]
            store.flush()
            assert other.go_on() == "stored"
        info = store.tensor_info("t")
        assert (info.tiles_complete, info.tiles_partial) == (1, len(Files(tmp_path).tensors["t"].logs))
        assert read_stored_plain(tmp_path, "t", ((0, 0), (8, 8))) == [7]
        store.gc()
    assert Files(tmp_path).leavings == []
