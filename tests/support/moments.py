"""Moments at which a process is stopped or kills itself: right before it reads or changes a file of a store."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

CHANGES = frozenset(["write", "os.rename", "os.link", "os.remove", "os.rmdir"])
"""All that changes what is stored. A new folder does not: what comes to be in it does."""

Act: TypeAlias = Callable[[str, Path], object]
"""What is done: is given the step, and the file that it begins with."""


@dataclass(frozen=True)
class Moment:
    """The beginning of a step that a process takes with a file in the folder of a store.

    Attributes
    ----------
    step : str
        ``read`` or ``write`` (a file is about to be opened), or the audit event that Python raises: ``os.rename``,
        ``os.link``, ``os.remove`` or ``os.rmdir``; empty for any change.
    path : str
        Regular expression that is found in the path that is read, comes to be or goes away, relative to the folder.
    number : int
        Which of the steps that fit, counted from 1.
    """

    step: str
    path: str
    number: int = 1


def at(folder: Path, moment: Moment, act: Act) -> Callable[[], int]:
    """Act at `moment`, in this process. Returns what tells how many changes there were in the folder so far.

    There is no way back, so this is for processes that end with it.
    """
    root = folder.absolute()
    fitting, changes = itertools.count(1), itertools.count()

    def audit(event: str, args: tuple[Any, ...]) -> None:
        step = _step(event, args)
        if step is None:
            return
        path = _path(step, args)
        if not path.is_relative_to(root):
            return
        if step in CHANGES:
            next(changes)
        if step != moment.step and (moment.step or step not in CHANGES):
            return
        if re.search(moment.path, path.relative_to(root).as_posix()) and next(fitting) == moment.number:
            act(step, Path(os.fsdecode(args[0])))

    sys.addaudithook(audit)
    return lambda: next(changes)


def _step(event: str, args: tuple[Any, ...]) -> str | None:
    if event == "open" and isinstance(args[0], str | os.PathLike):
        return "write" if args[2] & (os.O_WRONLY | os.O_RDWR) else "read"
    return event if event in CHANGES else None


def _path(step: str, args: tuple[Any, ...]) -> Path:
    path = Path(os.fsdecode(args[1 if step in ("os.rename", "os.link") else 0]))
    # Folders are removed bottom up, relative to an open one.
    folder = args[-1] if step in ("os.remove", "os.rmdir") else -1
    return path if folder == -1 else Path(f"/proc/self/fd/{folder}").readlink() / path


@dataclass(frozen=True)
class Kill:
    """When a process kills itself, and whether it leaves a half-written file.

    Attributes
    ----------
    moment : Moment
        The step that it does not live to take.
    torn : bool
        Whether a temporary file that is about to be moved into place is cut in half.
    """

    moment: Moment
    torn: bool = False

    def arm(self, folder: Path) -> Callable[[], int]:
        """Have this process kill itself. Returns what tells how many changes there were in the folder so far."""
        return at(folder, self.moment, self._strike)

    def _strike(self, step: str, path: Path) -> None:
        if self.torn and step in ("os.rename", "os.link"):
            os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)


NEVER = Kill(Moment("never", ""))


def before(step: str, path: str, number: int = 1, *, torn: bool = False) -> Kill:
    """A kill before a step, see `Moment`."""
    return Kill(Moment(step, path, number), torn)
