"""Processes that write a blob until they are killed, and what they were promised until then."""

from __future__ import annotations

import random
import signal
from multiprocessing.connection import Connection
from typing import Any

import torch

from infinite_tensor import TensorBlob
from tests.support.interpreters import CONTEXT, DEADLINE, enter_child

WIDTH = 5


def rows(first: int, count: int) -> torch.Tensor:
    """Rows that hold their own number."""
    return torch.arange(first, first + count, dtype=torch.int64)[:, None].expand(-1, WIDTH)


def write_at_random(sending: Connection, target: str, seed: int, storage_options: dict[str, Any] | None = None) -> None:
    """Append rows, overwrite some by themselves, flush, truncate and reopen, for ever.

    Sends the least and the most rows that a reader may find from now on.
    """
    enter_child()
    rng = random.Random(seed)  # noqa: S311
    blob = TensorBlob.open(target, "r+", storage_options=storage_options)
    least = len(blob)
    while True:
        step = rng.random()
        if step < 0.6:
            count = rng.choice([1, 1, 2, 7, 30])
            sending.send((least, len(blob) + count))
            blob.seek(0, 2)
            blob.write(rows(len(blob), count))
        elif step < 0.7 and len(blob):
            at = rng.randrange(len(blob))
            blob[at:] = rows(at, len(blob) - at)
        elif step < 0.73:
            kept = rng.randrange(len(blob) + 1)
            sending.send((min(least, kept), len(blob)))
            least = blob.truncate(kept)
            sending.send((least, least))
        elif step < 0.76:
            blob.close()
            least = len(TensorBlob.open(target, storage_options=storage_options))
            blob = TensorBlob.open(target, "r+", storage_options=storage_options)
            sending.send((least, least))
        else:
            blob.flush()
            least = len(blob)
            sending.send((least, least))


def kill_at_random(
    target: str, seed: int, messages: int, delay: float = 0.0, storage_options: dict[str, Any] | None = None
) -> tuple[int, int]:
    """Have a process write a blob, and kill it `delay` seconds after some messages.

    Returns the least and the most rows that there may be now, going by what it told last.
    """
    receiving, sending = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=write_at_random, args=(sending, target, seed, storage_options), daemon=True)
    process.start()
    sending.close()
    told = [(0, 0)]
    try:
        for _ in range(messages):
            assert receiving.poll(DEADLINE), "the process hangs"
            told.append(receiving.recv())
        process.join(delay)
    finally:
        process.kill()
        process.join(DEADLINE)
    assert process.exitcode == -signal.SIGKILL
    while receiving.poll():
        try:
            told.append(receiving.recv())
        except EOFError:
            break
    # What it was about to do when it was killed may have been done, or not.
    return min(least for least, _ in told[-2:]), max(most for _, most in told[-2:])
