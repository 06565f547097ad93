"""Several processes fill and read one Zarr store at once, without a lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.chain import Chain, open_chain_store, random_parts
from tests.support.inspection import Inspection
from tests.support.interpreters import Team
from tests.support.members import collect_garbage, fill_at_random, fill_parts, wait_for_parts
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


@pytest.mark.slow
def test_garbage_is_collected_while_other_processes_fill(tmp_path: Path) -> None:
    with open_chain_store(tmp_path) as store:
        Chain(store)
    with Team(3) as team:
        *calls, _ = team.together(
            (fill_at_random, tmp_path, 1, 60, EAGER),
            (fill_at_random, tmp_path, 2, 60, EAGER),
            (collect_garbage, tmp_path, 20),
        )
    inspection = Inspection(tmp_path, set().union(*calls))
    inspection.check()
    inspection.clean()
