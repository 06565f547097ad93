"""Processes that kill themselves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.moments import Moment, at


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
