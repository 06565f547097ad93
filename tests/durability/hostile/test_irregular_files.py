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

# Inside: a file that grows between two moments of one read.
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


REPLACED: dict[str, tuple[Callable[[Path], Path], list[bool], str]] = {
    "chunk": (_chunk, [True, True], rf"tile \(0, 0\) of tensor 't' is damaged \(({REASON})\)"),
    "part of a log": (_part, [True, True], rf"part 0: partial tile .* is damaged \(({REASON})\)"),
    "folder of a log": (lambda path: _part(path).parent, [True], "NotADirectoryError"),
    "definition": (lambda path: path / "t-t" / "zarr.json", [], rf"t-t/zarr.json, is damaged \(({REASON})\)"),
    "array": (lambda path: next(path.glob("t-t/tiles-*/zarr.json")), [True, True], rf"kind='array', .*({REASON})"),
    "root": (lambda path: path / "zarr.json", [], rf"zarr.json of the store is damaged \(({REASON})\)"),
    "group": (lambda path: path / "g-g" / "zarr.json", [True, True], rf"g-g/zarr.json, is damaged \(({REASON})\)"),
    "mark of a second writer": (lambda path: next(path.glob("t-t/partial-*")) / "shared", [True, True], ""),
}
"""What is replaced, whether the reads of two sessions are right, and what is said."""


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("name", REPLACED)
def test_what_never_ends_in_the_place_of_a_file_is_damage(
    name: str, path: Path, member: Member, put: Callable[[Path], object], mode: Any
) -> None:
    find, right, word = REPLACED[name]
    place = find(path)
    if place.is_dir():
        shutil.rmtree(place)
    put(place)
    found = member.call(used, path, mode)
    # A store that is only read is not repaired, and read once.
    assert found.right == right[: 2 if mode == "a" else 1]
    assert found.calls > 0 or name not in ("chunk", "part of a log")
    if mode == "a" or name not in ("array", "folder of a log"):
        assert re.search(word, found.told), found.told


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_to_itself(path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("find", "replace", "mode", "word"),
    [
        (_chunk, folder, "r", r"tile \(0, 0\) of tensor 't' is damaged \(a folder"),
        (lambda path: _part(path).parent.parent, link_to_itself, "a", "NotADirectoryError"),
    ],
)
def test_a_folder_or_a_link_to_itself_is_damage(
    find: Callable[[Path], Path], replace: Callable[[Path], None], mode: str, word: str, path: Path, member: Member
) -> None:
    replace(find(path))
    found = member.call(used, path, mode)
    assert found.right == [True]
    assert re.search(word, found.told), found.told


@pytest.mark.parametrize("most", [9, 10])
def test_a_file_that_grows_while_it_is_read_is_read_whole_or_not_at_all(tmp_path: Path, most: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"begun")
    with opened(path) as (descriptor, found):
        path.write_bytes(b"begun more")
        data = read_opened(descriptor, found, most)
    assert data == b"begun more" if most == 10 else isinstance(data, Unreadable)


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
