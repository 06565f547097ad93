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
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
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
        "tests.durability.crash.test_renaming",
        "tests.stores.blobs.test_kills",
        "tests.support.frozen",
    ]
)

QUIET_FORKS = ("-W", "ignore:This process:DeprecationWarning")
"""For an interpreter that forks while threads run, of which Python warns from 3.12 on."""

DEADLINE = 30.0
"""Seconds after which something hangs."""

_PATIENCE = 120.0


def enter_child() -> None:
    """What every child does first: one thread for torch, and a warning is an error, as it is in pytest."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")


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
        self._connection, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, barrier), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, function: Callable[..., Any], *args: Any, together: bool = False) -> None:
        """Have `function` called; `result` waits for it."""
        self._connection.send((function, args, together))

    def result(self) -> Any:
        """What the function returned; what it raised is raised here."""
        return _result(self._connection)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What `function` returns or raises there."""
        self.begin(function, *args)
        return self.result()

    def stop(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.join(DEADLINE)


def _serve(connection: Connection, barrier: Barrier) -> None:
    enter_child()
    while True:
        try:
            function, args, together = connection.recv()
        except EOFError:
            return
        if together:
            barrier.wait(DEADLINE)
        _answer(connection, function, args)


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
        self._connection, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_pause, args=(theirs, folder, moment, function, args), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        paused = _result(self._connection)
        assert paused == _PAUSED, f"the function returned {paused!r} before the moment came"
        return self

    def go_on(self) -> Any:
        """What the function returns or raises in the end."""
        self._connection.send(None)
        return _result(self._connection)

    def __exit__(self, *_exc: object) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join(DEADLINE)


_PAUSED = "paused"


def _pause(
    connection: Connection, folder: Path, moment: Moment, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    enter_child()

    def wait(_step: str, _path: Path) -> None:
        connection.send((_PAUSED, None, ""))
        connection.recv()

    at(folder, moment, wait)
    _answer(connection, function, args)


def _answer(connection: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        connection.send((function(*args), None, ""))
    except Exception as error:  # noqa: BLE001  (it is the caller's)
        connection.send((None, error, traceback.format_exc()))


def _result(connection: Connection) -> Any:
    """What a process answers; what went wrong there is raised here, with its traceback as a note."""
    if not connection.poll(DEADLINE):
        raise TimeoutError(f"a process has not answered for {DEADLINE} s")
    value, error, trace = connection.recv()
    if error is not None:
        error.add_note(f"in another process:\n{trace}")
        raise error
    return value


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
        opened = os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    # To the end of the process.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=environment.get("PYTHONIOENCODING"), closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    main = sys.modules["__main__"] = ModuleType("__main__")
    if argv[0] == "-c":
        name, source, sys.argv = "<string>", argv[1], ["-c", *argv[2:]]
        sys.path.insert(0, "")
    else:
        name, source, sys.argv = argv[0], Path(argv[0]).read_text(), argv
        sys.path.insert(0, str(Path(name).parent))
        main.__file__ = name
    exec(compile(source, name, "exec"), vars(main))  # noqa: S102  (as Python itself does)
