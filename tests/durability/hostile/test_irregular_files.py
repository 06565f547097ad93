"""Files that never end, or that block who opens them, in the place of what a store reads.

All is done in a process of its own, which may take little memory and is waited for no longer than a while.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import HDF5TileStore, StoreError, TensorGroup, ZarrTileStore
from infinite_tensor_stores.files import Unreadable, opened, read_opened
from tests.support.bounds import limit_memory
from tests.support.building import overlapping
from tests.support.counting import Counted
from tests.support.interpreters import Member, Team
from tests.support.irregular import IRREGULAR, REASON
from tests.support.stores import sample

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")

_MOST_MEMORY = 4 * 2**30
_REGION = (slice(0, 9), slice(0, 9))


@pytest.fixture
def member() -> Iterator[Member]:
    with Team(1) as team:
        yield team.members[0]


@pytest.fixture(params=sample(IRREGULAR, "a FIFO", "a file of 64 GiB"))
def put(request: pytest.FixtureRequest) -> Callable[[Path], object]:
    """Puts something that is no file to read in the place of a file."""

    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        IRREGULAR[request.param](path)

    return put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a complete tile, partial ones, a mark of a second writer, and a group."""
    path = tmp_path / "s.zarr"
    for region in ((slice(0, 8), slice(0, 8)), _REGION):
        with ZarrTileStore(path, tile_size=8) as store:
            tensor = overlapping(store, Counted())
            tensor[region]
            with suppress(StoreError):
                TensorGroup({"t": tensor}).save(store, "g")
    return path


@dataclass
class Used:
    """What came of using a store in all ways: texts of what was returned, warned of and raised, and some values."""

    told: str = ""
    calls: int = 0
    right: list[bool] = field(default_factory=list)


def used(path: Path, mode: Any = "a") -> Used:
    limit_memory(_MOST_MEMORY)
    found = Used()
    f = Counted()

    def attempt(action: Callable[[], object]) -> None:
        try:
            told = str(action())
        except StoreError as error:
            told = str(error)
        found.told += f"{told}\n"

    def read(store: ZarrTileStore) -> None:
        expected = _expected()
        found.right.append(torch.equal(overlapping(store, f)[_REGION], expected))
        store.flush()

    def use() -> None:
        with ZarrTileStore(path, mode=mode, tile_size=8) as store:
            for action in (store.tensor_ids, store.group_ids, lambda: store.open_group("g"), lambda: read(store)):
                attempt(action)
            attempt(lambda: store.tensor_info("t"))
            if mode != "r":
                attempt(store.gc)
                attempt(lambda: store.verify("t", repair=True))
        found.calls = len(f.calls)
        if mode != "r":
            with ZarrTileStore(path, mode=mode, tile_size=8) as store:
                attempt(lambda: read(store))
                attempt(lambda: store.verify("t"))

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        attempt(use)
    found.told += "\n".join(str(warning.message) for warning in warned)
    return found


def _expected() -> torch.Tensor:
    store = ZarrTileStore("memory://irregular", mode="w", tile_size=8)
    pixels: torch.Tensor = overlapping(store, Counted())[_REGION]
    return pixels


def _chunk(path: Path) -> Path:
    return next(file for file in path.glob("t-t/tiles-*/c/**/*") if file.is_file())


def _part(path: Path) -> Path:
    return next(path.glob("t-t/partial-*/0.1.1/0"))


def test_the_store_that_is_used_is_right(path: Path, member: Member) -> None:
    found = member.call(used, path)
    assert (found.calls, found.right) == (0, [True, True]), found.told


def test_a_link_to_a_regular_file_is_read(path: Path, member: Member) -> None:
    for file in (_chunk(path), _part(path), path / "t-t" / "zarr.json", path / "zarr.json", path / "g-g" / "zarr.json"):
        elsewhere = path.parent / f"{file.name} elsewhere"
        file.rename(elsewhere.with_stem(f"{file.parent.name} {file.stem}"))
        file.symlink_to(elsewhere.with_stem(f"{file.parent.name} {file.stem}"))
    found = member.call(used, path)
    assert (found.calls, found.right) == (0, [True, True]), found.told


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_chunk_is_computed_again(path: Path, member: Member, put: Callable[[Path], object], mode: Any) -> None:
    chunk = _chunk(path)
    put(chunk)
    found = member.call(used, path, mode)
    assert found.right == [True, True] if mode == "a" else [True]
    assert found.calls > 0
    assert _tells(found, rf"tile \(0, 0\) of tensor 't' is damaged \(({REASON})\)")


def test_a_folder_in_the_place_of_a_chunk_is_damage(path: Path, member: Member) -> None:
    chunk = _chunk(path)
    chunk.unlink()
    chunk.mkdir()
    found = member.call(used, path, "r")
    assert found.right == [True]
    assert _tells(found, r"tile \(0, 0\) of tensor 't' is damaged \(a folder, not a regular file\)")


def test_a_part_of_a_log_is_computed_again(path: Path, member: Member, put: Callable[[Path], object]) -> None:
    put(_part(path))
    found = member.call(used, path)
    assert found.right == [True, True]
    assert found.calls > 0
    assert _tells(found, rf"part 0: partial tile .* is damaged \(({REASON})\)")


def test_what_lies_in_the_place_of_a_folder_of_a_log_is_no_log_without_end(
    path: Path, member: Member, put: Callable[[Path], object]
) -> None:
    folder = _part(path).parent
    shutil.rmtree(folder)
    put(folder)
    found = member.call(used, path)
    assert found.right == [True]
    assert _tells(found, rf"NotADirectoryError: .*'{re.escape(str(folder))}'")


def test_a_link_to_itself_in_the_place_of_all_logs_holds_no_log(path: Path, member: Member) -> None:
    folder = _part(path).parent.parent
    shutil.rmtree(folder)
    folder.symlink_to(folder)
    found = member.call(used, path)
    assert found.right == [True]
    assert _tells(found, rf"NotADirectoryError: .*'{re.escape(str(folder))}'")


def test_a_definition_is_damaged_and_stays_so(path: Path, member: Member, put: Callable[[Path], object]) -> None:
    definition = path / "t-t" / "zarr.json"
    put(definition)
    found = member.call(used, path)
    assert found.right == []
    assert _tells(found, rf"the definition of tensor 't', t-t/zarr.json, is damaged \(({REASON})\)")


def test_the_document_of_an_array_is_restored_by_a_repair(
    path: Path, member: Member, put: Callable[[Path], object]
) -> None:
    document = next(path.glob("t-t/tiles-*/zarr.json"))
    put(document)
    found = member.call(used, path)
    assert found.right == [True, True]
    assert _tells(found, rf"Damage\(kind='array', .*({REASON})")


def test_a_root_is_damaged(path: Path, member: Member, put: Callable[[Path], object]) -> None:
    put(path / "zarr.json")
    for mode in ("a", "r"):
        assert _tells(member.call(used, path, mode), rf"zarr.json of the store is damaged \(({REASON})\)")


def test_a_group_is_damaged(path: Path, member: Member, put: Callable[[Path], object]) -> None:
    put(path / "g-g" / "zarr.json")
    found = member.call(used, path)
    assert found.right == [True, True]
    assert _tells(found, rf"group 'g', g-g/zarr.json, is damaged \(({REASON})\); delete it with clear_group\('g'\)")


def test_the_mark_of_a_second_writer_counts(path: Path, member: Member, put: Callable[[Path], object]) -> None:
    put(next(path.glob("t-t/partial-*")) / "shared")
    assert member.call(used, path).right == [True, True]


@pytest.mark.parametrize("most", [9, 10])
def test_a_file_that_grows_while_it_is_read_is_read_whole_or_not_at_all(tmp_path: Path, most: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"begun")
    with opened(path) as (descriptor, found):
        path.write_bytes(b"begun more")
        data = read_opened(descriptor, found, most)
    if most == 10:
        assert data == b"begun more"
    else:
        assert isinstance(data, Unreadable)
        assert data.reason == "10 bytes, but at most 9 are allowed"


def hdf5_opened(path: Path, mode: Any) -> str:
    try:
        HDF5TileStore(path, mode=mode).close()
    except StoreError as error:
        return str(error)
    return "opened"


@pytest.mark.parametrize("mode", ["a", "r+", "r", "w"])
@pytest.mark.parametrize("kind", ["a FIFO", "a link to a FIFO", "a link to /dev/zero"])
def test_what_is_no_file_is_no_hdf5_file(tmp_path: Path, member: Member, kind: str, mode: Any) -> None:
    path = tmp_path / "s.h5"
    IRREGULAR[kind](path)
    assert "is not a regular file; choose another path" in member.call(hdf5_opened, path, mode)
    assert path.exists()


def _tells(found: Used, pattern: str) -> bool:
    assert re.search(pattern, found.told), found.told
    return True
