"""Real processes that start fast: forks of a server that has imported everything and opened nothing.

Starting Python and torch anew takes seconds; a fork of the server takes milliseconds. The server has no
threads, so what it forks is as good as freshly started.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch

from tests.support.moments import Moment, at

CONTEXT = multiprocessing.get_context("forkserver")
# pytest is the main module, which every child imports.
CONTEXT.set_forkserver_preload(
    [
        "pytest",
        "torch.utils.data",
        "distributed",
        "h5py",
        "PIL.PngImagePlugin",
        "infinite_tensor.datasets",
        "infinite_tensor.modules",
        "tests.support.members",
        "tests.durability.crash.victims",
        "tests.durability.crash.test_copies",
        "tests.durability.crash.test_exports",
        "tests.durability.crash.test_groups",
        "tests.durability.crash.test_hdf5",
        "tests.durability.crash.test_invalidation",
        "tests.stores.blobs.test_kills",
        "tests.support.frozen",
    ]
)

QUIET_FORKS = ("-W", "ignore:This process:DeprecationWarning")
"""For an interpreter that forks while threads run, of which Python warns from 3.12 on."""

DEADLINE = 30.0
"""Seconds after which something hangs."""

_PATIENCE = 120.0


_barrier: list[Barrier] = []


def enter_child(*barrier: Barrier) -> None:
    """What every child does first: one thread for torch, and a warning is an error, as it is in pytest."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    _barrier[:] = barrier


def exit_code(function: Callable[..., object], *args: Any) -> int:
    """How a process ends that calls a function: by 0, or by the negative number of a signal."""
    process = CONTEXT.Process(target=function, args=args, daemon=True)
    process.start()
    process.join(DEADLINE)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


class Member:
    """A process that calls functions, one after the other; what they keep in globals stays.

    Parameters
    ----------
    barrier : Barrier
        Where the members of a team wait for each other before what `begin` is told to do ``together``.
    """

    def __init__(self, barrier: Barrier) -> None:
        self._pool = ProcessPoolExecutor(1, CONTEXT, enter_child, (barrier,))
        self._call: Future[Any] | None = None

    def begin(self, function: Callable[..., Any], *args: Any, together: bool = False) -> None:
        """Have `function` called; `result` waits for it."""
        self._call = (
            self._pool.submit(_at_the_barrier, function, *args) if together else self._pool.submit(function, *args)
        )

    def result(self) -> Any:
        """What the function returned; what it raised is raised here."""
        assert self._call is not None
        return self._call.result(DEADLINE)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What `function` returns or raises there."""
        self.begin(function, *args)
        return self.result()

    def stop(self) -> None:
        """End the process."""
        for process in self._pool._processes.values():
            process.kill()
        self._pool.shutdown()


def _at_the_barrier(function: Callable[..., Any], *args: Any) -> Any:
    assert _barrier
    _barrier[0].wait(DEADLINE)
    return function(*args)


class Team:
    """Some processes that act at once."""

    def __init__(self, size: int) -> None:
        # Kept: without its owner a barrier is gone before slow members find it.
        self._barrier = CONTEXT.Barrier(size)
        self.members = [Member(self._barrier) for _ in range(size)]

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        """Have every member make its call ``(function, *args)`` at the same moment; the results."""
        for member, (function, *args) in zip(self.members, calls, strict=True):
            member.begin(function, *args, together=True)
        return [member.result() for member in self.members]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for member in self.members:
            member.stop()


class Paused:
    """A process that calls a function, and waits at a moment of it until it may `go_on`.

    Parameters
    ----------
    folder : Path
        The folder of a store.
    moment : Moment
        The step in that folder before which the process waits.
    function, *args
        What it calls.
    """

    def __init__(self, folder: Path, moment: Moment, function: Callable[..., Any], *args: Any) -> None:
        self._barrier = CONTEXT.Barrier(2)
        self._member = Member(self._barrier)
        self._member.begin(_pause, folder, moment, function, *args)

    def __enter__(self) -> Self:
        self._barrier.wait(DEADLINE)
        return self

    def go_on(self) -> Any:
        """What the function returns or raises in the end."""
        self._barrier.wait(DEADLINE)
        return self._member.result()

    def __exit__(self, *_exc: object) -> None:
        self._member.stop()


def _pause(folder: Path, moment: Moment, function: Callable[..., Any], *args: Any) -> Any:
    def wait(_step: str, _path: Path) -> None:
        for _ in range(2):
            _barrier[0].wait(DEADLINE)

    at(folder, moment, wait)
    return function(*args)


def run(*arguments: object, cwd: Path | None = None, patience: float = _PATIENCE) -> subprocess.CompletedProcess[str]:
    """What ``python arguments...`` returns and prints; the first is the path of a script, or ``-c`` before its code.

    For tests of what a script does with the library: one of how it starts, ends or imports needs an interpreter of its
    own.
    """
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder, name) for name in ("stdout", "stderr")]
        code = start(arguments, [os.devnull, *printed], cwd=cwd)(patience)
        return subprocess.CompletedProcess(list(map(str, arguments)), code, *(path.read_text() for path in printed))


def start(
    arguments: Sequence[object],
    streams: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Callable[[float], int]:
    """Begin ``python arguments...`` between three files or devices; what is returned waits for its exit code."""
    argv = list(map(str, arguments))
    process = CONTEXT.Process(target=_become, args=(argv, cwd or Path.cwd(), streams, dict(environment)))
    process.start()

    def wait(patience: float) -> int:
        process.join(patience)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(argv, patience)
        return process.exitcode

    return wait


def _become(argv: list[str], cwd: Path, streams: Sequence[str | Path], environment: dict[str, str]) -> None:
    """Run a script as the main module."""
    # Its own processes are started as in any other interpreter.
    multiprocessing.set_start_method(None, force=True)
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), number)
    os.environ.clear()
    os.environ.update(environment)
    # To the end of the process.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=environment.get("PYTHONIOENCODING"), closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    code = argv[0] == "-c"
    sys.argv = ["-c", *argv[2:]] if code else argv
    sys.path.insert(0, "" if code else str(Path(argv[0]).parent))
    main = sys.modules["__main__"] = ModuleType("__main__")
    source = argv[1] if code else Path(argv[0]).read_text()
    if not code:
        main.__file__ = argv[0]
    exec(compile(source, "<string>" if code else argv[0], "exec"), vars(main))  # noqa: S102  (as Python itself does)
