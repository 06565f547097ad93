"""Several processes create one store, and one tensor in it, at the same moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.chain import open_chain_store
from tests.support.files_of_a_store import Files
from tests.support.interpreters import Paused, Team
from tests.support.members import create, create_in, create_in_path, keep_open, open_and_create, plain
from tests.support.moments import Moment
from tests.support.stores import sample

RACES = 30


def race(team: Team, tensor_id: str, numbers: list[int]) -> list[str | None]:
    """Every member creates a tensor under one id, each its own number."""
    return team.together(*[(create, tensor_id, number) for number in numbers])


@pytest.mark.parametrize(
    "numbers", sample([[1, 2], [1, 2, 3, 4], [1, 2, 1, 2], [7, 7, 7, 7]], [1, 2, 1, 2], [7, 7, 7, 7]), ids=str
)
def test_of_processes_that_create_tensors_at_once_one_wins_and_equal_ones_share_it(
    tmp_path: Path, numbers: list[int]
) -> None:
    with Team(len(numbers)) as team:
        team.together(*[(keep_open, tmp_path)] * len(numbers))
        for number in range(RACES):
            places = race(team, f"race {number}", numbers)
            won = {version for version, place in zip(numbers, places, strict=True) if place is not None}
            assert len(won) == len({place for place in places if place is not None}) == 1
            refused = {version for version, place in zip(numbers, places, strict=True) if place is None}
            assert refused == set(numbers) - won
            with open_chain_store(tmp_path, mode="r") as store:
                assert store.tensor_definition(f"race {number}")["version"] == min(won)
                assert plain(store, f"race {number}", min(won))[-9:9, -9:9].unique().tolist() == list(won)
    assert Files(tmp_path).leavings == []


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    "moment",
    [
        Moment("write", r"^t-t/tiles-\w+/zarr\."),
        Moment("os.rename", r"^t-t/tiles-\w+/zarr\.json$"),
        Moment("write", r"^t-t/zarr\."),
        Moment("os.link", r"^t-t/zarr\.json$"),
    ],
    ids=lambda moment: f"before {moment.step} {moment.path}" if isinstance(moment, Moment) else None,
)
def test_a_process_that_is_overtaken_while_it_creates_a_tensor_yields(
    tmp_path: Path, moment: Moment, number: int
) -> None:
    with Paused(tmp_path, moment, create_in_path, tmp_path, "t", number) as slow, open_chain_store(tmp_path) as store:
        place = create_in(store, "t", 1)
        assert slow.go_on() == (place if number == 1 else None)
    assert Files(tmp_path).leavings == []


def check_root(path: Path) -> None:
    found = json.loads((path / "zarr.json").read_bytes())["attributes"]
    assert found == {"infinite_tensor": {"format": 1}}


def test_processes_that_create_a_store_at_once_share_it(tmp_path: Path) -> None:
    with Team(4) as team:
        for number in range(RACES):
            path = tmp_path / str(number)
            listed = team.together(*[(open_and_create, path, name) for name in "abcd"])
            assert all(name in ids for name, ids in zip("abcd", listed, strict=True))
            check_root(path)
            assert sorted(Files(path).tensors) == list("abcd")
            assert Files(path).leavings == []


@pytest.mark.parametrize("step", ["read", "write", "os.link"])
def test_a_process_that_is_overtaken_while_it_creates_a_store_shares_it(tmp_path: Path, step: str) -> None:
    path = tmp_path / "s.zarr"
    with Paused(path, Moment(step, r"^zarr\."), open_and_create, path, "a") as slow:
        assert open_and_create(path, "b") == ["b"]
        assert sorted(slow.go_on()) == ["a", "b"]
    check_root(path)
    assert Files(path).leavings == []
