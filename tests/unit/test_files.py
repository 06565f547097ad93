"""Local files: who enters a folder alone leaves it, whatever comes in between."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
from pathlib import Path

import pytest

from infinite_tensor.errors import WeakerStorageWarning
from infinite_tensor.support.disks import alone_in
from tests.support.interrupts import LIBRARY, interrupted_at


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


def test_a_folder_that_cannot_be_locked_is_entered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOTSUP, "not here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    entered = False
    with pytest.warns(WeakerStorageWarning, match="no locks"), alone_in(tmp_path):
        entered = True
    assert entered


def test_a_ctrl_c_at_any_line_leaves_the_folder_free(tmp_path: Path) -> None:
    code = (*LIBRARY, contextlib.__file__)
    for number in itertools.count(1):
        interrupted = True
        with contextlib.suppress(KeyboardInterrupt):
            with interrupted_at(number, of=code), alone_in(tmp_path):
                pass
            interrupted = False
        assert is_free(tmp_path), number
        if not interrupted:
            break
    assert number > 5
