"""Several processes fill and read one Zarr store at once, without a lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.chain import Chain, open_chain_store, random_parts
from tests.support.files_of_a_store import Files
from tests.support.inspection import Inspection
from tests.support.interpreters import Paused, Team
from tests.support.members import (
    fill_at_random,
    fill_parts,
    plain,
    read_stored_plain,
    wait_for_parts,
    write_plain,
)
from tests.support.moments import Moment
from tests.support.stores import sample

EAGER: dict[str, Any] = {"cache_size_tiles": 2}
"""Tiles go to storage half done, and are read back."""


def fill_together(path: Path, round_number: int, options: dict[str, Any]) -> None:
    """Four processes fill one chain, and everything that they computed is there afterwards."""
    with Team(4) as team:
        calls = team.together(*[(fill_at_random, path, 4 * round_number + n, 60, options) for n in range(4)])
    for count in calls:
        assert set(count.values()) == {1}
    inspection = Inspection(path, set().union(*calls))
    inspection.check()
    inspection.clean()


@pytest.mark.parametrize("options", sample([{}, EAGER], EAGER), ids=["large cache", "small cache"])
def test_four_processes_fill_one_chain_and_lose_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    fill_together(tmp_path / "store", 0, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, EAGER], ids=["large cache", "small cache"])
def test_four_processes_fill_one_chain_again_and_again(tmp_path: Path, options: dict[str, Any]) -> None:
    for number in range(1, 31):
        fill_together(tmp_path / str(number), number, options)


def test_a_reader_sees_only_right_pixels_while_another_process_writes(tmp_path: Path) -> None:
    parts = random_parts(0, 60)
    with open_chain_store(tmp_path) as store:
        Chain(store)
    with Team(4) as team:
        _, looks, calls, _ = team.together(
            (fill_parts, tmp_path, parts),
            (wait_for_parts, tmp_path, parts),
            (fill_at_random, tmp_path, 1, 60, {"mode": "r"}),
            (fill_at_random, tmp_path, 2, 60, {"mode": "r", "cache_size_tiles": 2}),
        )
    assert looks > 1
    assert set(calls.values()) == {1}


# Two processes meet at one tile: one waits in the middle of a step while the other takes all of its own.


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
