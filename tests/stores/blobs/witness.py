"""Kills a process that writes a blob, and notes what it was promised."""

from __future__ import annotations

import signal
from typing import Any

from tests.stores.blobs.victims import write_at_random
from tests.support.interpreters import CONTEXT, DEADLINE


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
