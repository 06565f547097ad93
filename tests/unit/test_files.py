"""Local files: who enters a folder alone leaves it, whatever comes in between."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from infinite_tensor.support.disks import alone_in
from tests.support.interrupts import interrupted_by_a_timer


def is_free(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_nobody_else_enters_a_folder_meanwhile(tmp_path: Path) -> None:
    with alone_in(tmp_path):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)


def test_a_folder_that_is_not_there_is_entered_all_the_same(tmp_path: Path) -> None:
    with alone_in(tmp_path / "none"):
        pass
    assert list(tmp_path.iterdir()) == []


# Python itself drops an exception that comes where an object is freed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
def test_a_ctrl_c_at_random_moments_leaves_the_folder_free(tmp_path: Path) -> None:
    def enter() -> None:
        for _ in range(10):
            with alone_in(tmp_path):
                pass

    draw, interrupts = np.random.default_rng(0), 0
    with interrupted_by_a_timer() as is_interrupted:
        for _ in range(200):
            interrupts += is_interrupted(draw.uniform(1e-5, 3e-4), enter)
            assert is_free(tmp_path)
    assert interrupts > 10
