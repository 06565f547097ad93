"""Watching a fill."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from infinite_tensor.engine.chain import Node
from infinite_tensor.errors import ValidationError
from infinite_tensor.support.visits import running_f


@dataclass(frozen=True)
class Progress:
    """How far a fill has come.

    Attributes
    ----------
    done : int
        Windows that have been computed, of all tensors.
    total : int
        Windows that it is expected to compute in all: fewer as it meets what was stored before.
    seconds : float
        How long it has been at it.
    """

    done: int
    total: int
    seconds: float


Watcher: TypeAlias = Callable[[Progress], object]


class Tally(AbstractContextManager["Tally"]):
    """Counts the windows of a fill, and shows them.

    Parameters
    ----------
    total : int
        Windows to compute, if nothing turns out to be stored.
    progress : bool, "always" or callable
        True shows a bar where standard error is a terminal, or in a notebook; "always" anywhere; False nowhere; a
        callable is called with a `Progress`, by one thread at a time, about ten times a second at most.
    steps : int
        How many steps the work has.
    """

    def __init__(self, total: int, progress: bool | str | Watcher, steps: int = 1) -> None:
        self.total = self._most = total
        self._steps = self._left = steps
        self.windows: Counter[Node] = Counter()
        self._begun = time.monotonic()
        self._told = -1.0
        self._lock = threading.Lock()
        self._watcher = checked_progress(progress) if callable(progress) else None
        self._bar: Any = None
        if progress == "always" or (progress is True and _is_watched()):
            # Which takes as long to import as all the rest.
            from tqdm.auto import tqdm  # noqa: PLC0415

            self._bar = tqdm(total=total, unit="window", smoothing=0.1)

    @property
    def seconds(self) -> float:
        """How long it has been at it."""
        return time.monotonic() - self._begun

    def count(self, node: Node, windows: int) -> None:
        """So many windows of a tensor are there."""
        with self._lock:
            self.windows[node] += windows
            if self._bar is not None:
                self._bar.update(windows)
            if self._watcher is not None and self.seconds - self._told >= _TELL_SECONDS:
                self._tell()

    def pass_steps(self, count: int) -> None:
        """So many steps are done: what they have not computed was stored, and is not expected any more."""
        with self._lock:
            self._left -= count
            self.total = self.windows.total() + self._most * self._left // self._steps
            if self._bar is not None:
                self._bar.total = self.total

    def _tell(self) -> None:
        assert self._watcher is not None
        self._told = self.seconds
        # The user's: it may use any store.
        with running_f():
            self._watcher(Progress(self.windows.total(), self.total, self._told))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._watcher is not None and kind is None:
            with self._lock:
                self._tell()


_TELL_SECONDS = 0.1


def _is_watched() -> bool:
    """Whether somebody sees standard error: on a terminal, or in a notebook."""
    return (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules


def checked_progress(progress: object) -> Any:
    """`progress` as `fill` takes it; ValidationError for anything else."""
    if not isinstance(progress, bool) and progress != "always" and not callable(progress):
        raise ValidationError(f'progress must be a bool, "always" or a callable, got {progress!r}')
    return progress
