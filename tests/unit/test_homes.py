"""Many requests at once, some of which fail: inside, since no storage fails as told."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from fsspec.asyn import get_loop
from fsspec.implementations.memory import MemoryFileSystem
from zarr.storage import MemoryStore

from infinite_tensor.support.interrupts import store_call
from infinite_tensor_stores.homes import FileHome, StoreHome
from infinite_tensor_stores.many import each, on_loop
from infinite_tensor_stores.targets import home_of


@pytest.fixture(params=["threads", "loop"])
def ask(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Any]]]:
    """Makes many requests, on threads or on an event loop."""
    if request.param == "threads":
        yield lambda call, arguments: each(call, arguments, 32)
        return

    async def later(call: Callable[[int], Any], argument: int) -> Any:
        await asyncio.sleep(0.001 * (argument * 7 % 5))
        return call(argument)

    loop = get_loop()
    yield lambda call, arguments: on_loop(loop, partial(later, call), arguments, 32)


Ask = Callable[[Callable[[int], Any], Iterable[int]], list[Any]]


def test_results_come_in_the_order_of_the_arguments(ask: Ask) -> None:
    def late(number: int) -> int:
        time.sleep(0.0001 * (number * 7 % 5))
        return number

    assert ask(late, range(200)) == list(range(200))
    assert ask(late, []) == []


def test_a_request_that_fails_takes_no_other_with_it(ask: Ask) -> None:
    done: list[int] = []

    def some_fail(number: int) -> None:
        if number % 20 == 3:
            raise OSError(f"number {number}")
        done.append(number)

    with pytest.raises(OSError, match="number"):
        ask(some_fail, range(200))
    assert sorted(done) == [number for number in range(200) if number % 20 != 3]


def test_storage_that_answers_nothing_is_not_asked_for_everything() -> None:
    asked: list[int] = []

    async def refuse(number: int) -> None:
        asked.append(number)
        raise ConnectionError("down")

    with pytest.raises(ConnectionError, match="down"):
        on_loop(get_loop(), refuse, range(10_000), 32)
    assert len(asked) < 200


def test_a_request_that_the_storage_cancels_has_failed() -> None:
    async def cancelled(_: int) -> None:
        raise asyncio.CancelledError

    with pytest.raises(ConnectionError, match="the storage has cancelled the request"):
        on_loop(get_loop(), cancelled, range(3), 2)


def test_after_a_ctrl_c_no_request_is_under_way() -> None:
    begun, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    async def long(_: int) -> None:
        begun.set()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            cancelled.set()
        finally:
            await asyncio.sleep(0.05)
            ended.set()

    def press() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt), store_call():
        on_loop(get_loop(), long, [1], 2)
    assert cancelled.is_set()
    assert ended.is_set()


def test_on_the_thread_of_the_loop_nothing_waits_for_itself() -> None:
    loop = get_loop()

    async def ask(_: int) -> None:
        on_loop(loop, ask, [1], 1)

    with pytest.raises(RuntimeError, match="would wait for itself"):
        on_loop(loop, ask, [1], 1)


def test_an_object_that_is_there_is_not_created_but_recognised() -> None:
    home = StoreHome(MemoryStore())
    assert home.get(["a"]) == [None]
    assert home.create({"a": b"mine"}) == [True]
    assert home.create({"a": b"yours", "b": b""}) == [False, True]
    assert home.create({"a": b"mine"}) == [True]
    assert home.get(["a"]) == [b"mine"]


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
    home = home_of("memory://two/create", {}, read_only=False)
    for key in map(str, range(5)):
        both.reset()
        created = each(lambda number, key=key: home.create({key: b"%d" % number}), range(2), 2)  # type: ignore[misc]
        (found,) = home.get([key])
        assert created == [[found == b"0"], [found == b"1"]]


def test_a_read_only_folder_is_not_deleted_from(tmp_path: Path) -> None:
    chunk = tmp_path / "t" / "c" / "0" / "0"
    chunk.parent.mkdir(parents=True)
    chunk.touch()
    with pytest.raises(ValueError, match="read-only"):
        FileHome(tmp_path, read_only=True).delete_folders(["t"])
    assert chunk.exists()
