"""Work on several threads, as long as any can be started: inside, to see that calls overlap."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque

import pytest

from infinite_tensor.support.threads import begin, on_threads


def test_calls_on_threads_overlap_and_give_their_results_in_order() -> None:
    together = threading.Barrier(4, timeout=20)
    threads = set()

    def call(number: int) -> int:
        if number % 10 == 0:
            together.wait()
            threads.add(threading.get_ident())
        return number * number

    assert on_threads(call, range(40), threads=4) == [number * number for number in range(40)]
    assert len(threads) == 4


def test_an_error_on_a_thread_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        on_threads(lambda number: 1 // (number - 7), range(8), threads=2)


def test_where_no_thread_can_be_started_the_caller_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> int:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("infinite_tensor.support.threads._idle", deque())
    monkeypatch.setattr("_thread.start_new_thread", start)
    assert begin(lambda: None) is None
    assert set(on_threads(lambda _: threading.get_ident(), range(9), threads=4)) == {threading.get_ident()}


def test_a_process_ends_after_its_threads_have_let_go_of_what_they_hold() -> None:
    free_tensors_at_the_end = """
import threading, numpy, torch
from infinite_tensor.support.threads import begin

class Work:
    def __init__(self):
        self.tensors = [torch.from_numpy(numpy.ones(1)) for _ in range(100_000)]
    def __call__(self):
        called.set()

called = threading.Event()
begin(Work())
called.wait()
"""
    command = [sys.executable, "-c", free_tensors_at_the_end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
