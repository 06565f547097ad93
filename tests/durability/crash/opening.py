"""A process that is killed while it opens an HDF5 file."""

from __future__ import annotations

import os
import signal
import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from infinite_tensor import HDF5TileStore
from tests.support.interpreters import CONTEXT, DEADLINE, enter_child


def killed_at(number: int, path: Path, mode: str) -> bool:
    """Have a process open and close a file, killed before the `number`-th line that it comes to; whether it was."""
    process = CONTEXT.Process(target=_open, args=(number, path, mode), daemon=True)
    process.start()
    process.join(DEADLINE)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _open(number: int, path: Path, mode: str) -> None:
    enter_child()
    passed = 0

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal passed
        if not _is_of_the_backend(frame.f_code.co_filename):
            return None
        if event == "line":
            passed += 1
            if passed == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    HDF5TileStore(path, mode, tile_size=8).close()
    sys.settrace(None)


@cache
def _is_of_the_backend(file: str) -> bool:
    """Kept for each file: Python tells of every call that is made."""
    return Path(file).parent.name == "hdf5"
