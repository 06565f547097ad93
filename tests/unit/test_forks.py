"""Locks that survive forks and Ctrl-C."""

from __future__ import annotations

import signal

import numpy as np
import pytest

from infinite_tensor.support.forks import Lock
from tests.support.interrupts import finishes, interrupted_by_a_timer


def enter(lock: Lock, times: int) -> None:
    for _ in range(times):
        with lock:
            pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
def test_a_ctrl_c_at_random_moments_leaves_a_lock_free() -> None:
    lock, draw, interrupts = Lock(), np.random.default_rng(0), 0
    with interrupted_by_a_timer() as is_interrupted:
        for _ in range(300):
            interrupts += is_interrupted(draw.uniform(1e-5, 3e-4), lambda: enter(lock, 2000))
            finishes(lambda: enter(lock, 1))
    assert interrupts > 100
