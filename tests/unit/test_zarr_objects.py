"""Many requests at once, some of which fail."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from infinite_tensor_stores.files import FileStore
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.targets import zarr_store
from infinite_tensor_stores.zarr.objects import Objects, concurrently
from infinite_tensor_stores.zarr.tensor import TileSet


def test_results_come_in_the_order_of_the_arguments() -> None:
    async def late(number: int) -> int:
        await asyncio.sleep(0.001 * (number * 7 % 5))
        return number

    assert concurrently(late, range(200)) == list(range(200))
    assert concurrently(late, []) == []


def test_a_result_may_be_none() -> None:
    assert Objects(MemoryStore).get(["a", "b"]) == [None, None]


def test_a_request_that_fails_takes_no_other_with_it() -> None:
    done: list[int] = []

    async def some_fail(number: int) -> None:
        await asyncio.sleep(0.001)
        if number % 20 == 3:
            raise OSError(f"number {number}")
        done.append(number)

    with pytest.raises(OSError, match="number 3"):
        concurrently(some_fail, range(200))
    assert sorted(done) == [number for number in range(200) if number % 20 != 3]


def test_no_request_is_in_progress_when_an_error_is_raised() -> None:
    running = 0

    async def one_fails(number: int) -> None:
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(0 if number == 0 else 0.02)
            if number == 0:
                raise OSError("first")
        finally:
            running -= 1

    with pytest.raises(OSError, match="first"):
        concurrently(one_fails, range(10))
    assert running == 0


def test_storage_that_answers_nothing_is_not_asked_for_everything() -> None:
    asked: list[int] = []
    ended: list[int] = []

    async def refuse(number: int) -> None:
        asked.append(number)
        try:
            if number == 5:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            raise ConnectionError("down")
        finally:
            ended.append(number)

    with pytest.raises(ConnectionError, match="down"):
        concurrently(refuse, range(10_000))
    assert len(asked) < 200
    assert sorted(ended) == sorted(asked), "also the one that hangs has been ended"


def test_a_request_that_the_storage_cancels_is_an_error() -> None:
    async def cancelled(number: int) -> int:
        if number == 2:
            raise asyncio.CancelledError
        return number

    with pytest.raises(ConnectionError, match="the storage has cancelled the request"):
        concurrently(cancelled, range(5))


def test_an_object_that_is_there_is_not_created_but_recognised() -> None:
    objects = Objects(MemoryStore)
    assert sync(objects.create, "a", b"mine")
    assert not sync(objects.create, "a", b"yours")
    assert sync(objects.create, "a", b"mine")
    assert objects.get(["a"]) == [b"mine"]


def test_of_two_that_create_an_object_in_memory_at_once_one_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fsspec looks for a file first and writes it then."""
    looks, both = MemoryFileSystem.exists, Barrier(2)

    def exists(files: MemoryFileSystem, path: str, **options: Any) -> bool:
        found: bool = looks(files, path, **options)
        # Nobody writes before the other has looked, if that comes at all.
        with suppress(BrokenBarrierError):
            both.wait(0.05)
        return found

    monkeypatch.setattr(MemoryFileSystem, "exists", exists)
    objects = Objects(lambda: zarr_store("memory://two/create", {}, read_only=False))
    for key in map(str, range(5)):
        both.reset()
        created = objects.each(lambda number, key=key: objects.create(key, b"%d" % number), range(2))  # type: ignore[misc]
        (found,) = objects.get([key])
        assert created == [found == b"0", found == b"1"]


def test_a_read_only_folder_is_not_deleted_from(tmp_path: Path) -> None:
    chunk = tmp_path / "t" / "c" / "0" / "0"
    chunk.parent.mkdir(parents=True)
    chunk.touch()
    with pytest.raises(ValueError, match="read-only"):
        sync(lambda: FileStore(tmp_path, read_only=True).delete_dir("t"))
    assert chunk.exists()


# Which tiles a store object has written.


Tiles = list[tuple[int, ...]]


def tiles(dims: int) -> st.SearchStrategy[Tiles]:
    near, far = st.integers(-70, 70), st.integers(-(2**51), 2**51)
    return st.lists(st.tuples(*[near | far] * dims), max_size=30)


@given(st.integers(1, 13).flatmap(lambda dims: st.tuples(tiles(dims), tiles(dims))))
def test_a_tile_set_is_a_set(both: tuple[Tiles, Tiles]) -> None:
    put, asked = both
    found = TileSet()
    found.update(put[::2])
    found.update(put)
    assert [tile in found for tile in put + asked] == [tile in set(put) for tile in put + asked]


def test_a_hundred_thousand_tiles_side_by_side_take_less_than_64_kib() -> None:
    tracemalloc.start()
    try:
        found = TileSet()
        found.update((i, j) for i in range(-50, 50) for j in range(1000))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2**16
    assert (-50, 999) in found
