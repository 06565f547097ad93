"""How far a fill, an export or a copy has come, and in the end what it has done."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from infinite_tensor.engine.chain import Node
from infinite_tensor.support.given import checked_progress
from infinite_tensor.support.interrupts import running_f
from infinite_tensor.support.tables import Tabular, bytes_of, count_if_any, count_of


@dataclass(frozen=True)
class Progress:
    """How far a fill, an export or a copy has come.

    Attributes
    ----------
    done : int
        Windows that have been computed, of all tensors. Of an export or a copy, tiles that are there.
    total : int
        Windows that it is expected to compute in all: fewer as it meets what was stored before. Of an export or a copy,
        tiles; a copy counts those of the tensors that it has looked at so far.
    seconds : float
        How long it has been at it.
    report : FillReport, CopyReport or None
        In the last call, at the end of a fill or a copy that was not interrupted: what it has done.
    """

    done: int
    total: int
    seconds: float
    report: Any = None


Watcher: TypeAlias = Callable[[Progress], object]


class Tally(AbstractContextManager["Tally"]):
    """Counts what work has done, and shows it: by a bar, by lines in a log, or by a function of a user.

    Parameters
    ----------
    total : int
        Windows to compute, if nothing turns out to be stored.
    progress : bool, "always" or callable
        True shows a bar where standard error is a terminal, or in a notebook, and elsewhere a line there each minute;
        "always" shows a bar anywhere; False nothing; a callable is called with a `Progress`, by one thread at a time,
        about ten times a second at most, and at the end.
    parts : int
        How many parts the work has that take about as many windows each.
    unit : str
        What is counted, where that is not windows.
    """

    def __init__(self, total: int, progress: bool | str | Watcher, parts: int = 1, *, unit: str = "window") -> None:
        self._begun = time.monotonic()
        self._told = -1.0
        checked = checked_progress(progress)
        self._watcher: Watcher | None = checked if callable(checked) else None
        # A log is told of what is left, and not that nothing is.
        self._tells_end = self._watcher is not None
        self._every = _TELL_SECONDS
        self._bar: Any = None
        if progress == "always" or (progress is True and is_watched()):
            # Which takes as long to import as all the rest.
            from tqdm.auto import tqdm  # noqa: PLC0415

            self._bar = tqdm(total=total, unit=unit, smoothing=0.1)
        elif progress is True:
            self._watcher, self._every, self._told = _line_in(unit), LINE_SECONDS, 0.0
        self.total = self._most = total
        self._parts = self._left = max(1, parts)
        self.windows: Counter[Any] = Counter()
        self._report: Tabular | None = None
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """How long it has been at it."""
        return time.monotonic() - self._begun

    def expect(self, count: int) -> None:
        """So many more are to come."""
        with self._lock:
            self._set_total(self.total + count)

    def count(self, tensor: Node | str, windows: int) -> None:
        """So many windows of a tensor are there."""
        with self._lock:
            self.windows[tensor] += windows
            if self._bar is not None:
                self._bar.update(windows)
            if self._watcher is not None and self.seconds - self._told >= self._every:
                self._tell()

    def pass_parts(self, count: int) -> None:
        """So many parts are done: what they have not computed was stored, and is not expected any more."""
        with self._lock:
            self._left -= count
            self._set_total(self.windows.total() + self._most * self._left // self._parts)

    def _set_total(self, total: int) -> None:
        self.total = total
        if self._bar is not None:
            self._bar.total = total

    def finish(self, report: Tabular) -> None:
        """All is done: the last that is shown says so."""
        self._report = report
        if self._bar is not None and isinstance(report, FillReport):
            self._bar.set_postfix_str(_tiles_of(report), refresh=False)

    def _tell(self) -> None:
        assert self._watcher is not None
        self._told = self.seconds
        # The user's: it may use any store.
        with running_f():
            self._watcher(Progress(self.windows.total(), self.total, self._told, self._report))

    def __exit__(self, kind: object, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._tells_end and kind is None:
            with self._lock:
                self._tell()


_TELL_SECONDS = 0.1
LINE_SECONDS = 60.0


def _line_in(unit: str) -> Callable[[Any], object]:
    """Writes a line to standard error, for a log."""

    def write(progress: Any) -> None:
        done, total = progress.done, progress.total
        # A log that cannot be written to must not end hours of work.
        with suppress(OSError, ValueError, AttributeError):
            if done:
                left = progress.seconds * max(0, total - done) / done
                sys.stderr.write(f"{count_of(done)} of {count_of(total)} {unit}s, about {_minutes(left)} left\n")
                sys.stderr.flush()

    return write


def _minutes(seconds: float) -> str:
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def is_watched() -> bool:
    """Whether somebody sees standard error: on a terminal, or in a notebook."""
    return (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules


@dataclass(frozen=True)
class TensorReport:
    """One tensor's part of a `FillReport`.

    Attributes
    ----------
    tensor_id : str
        Its id.
    windows : int
        Windows that were computed.
    tiles : int
        Complete tiles that were stored.
    bytes : int
        All that was stored, in bytes, not compressed.
    skipped : int
        Tiles of the region that the mask leaves out.
    """

    tensor_id: str
    windows: int
    tiles: int
    bytes: int
    skipped: int = 0


@dataclass(frozen=True)
class FillReport(Tabular):
    """What a fill has done.

    Attributes
    ----------
    tensors : tuple of TensorReport
        The tensors of the chain, each after those that it reads.
    seconds : float
        How long it took.
    bands : int
        In how many parts the regions were worked through one after the other.
    """

    tensors: tuple[TensorReport, ...]
    seconds: float
    bands: int = 1

    _COLUMNS: ClassVar = {
        "windows": ("windows", count_of),
        "tiles": ("tiles", count_of),
        "stored": ("bytes", bytes_of),
        "skipped": ("skipped", count_if_any),
    }

    @property
    def windows(self) -> int:
        """Windows that were computed, of all tensors."""
        return sum(tensor.windows for tensor in self.tensors)

    @property
    def tiles(self) -> int:
        """Complete tiles that were stored, of all tensors."""
        return sum(tensor.tiles for tensor in self.tensors)

    @property
    def skipped(self) -> int:
        """Tiles that the mask leaves out, of all tensors that were filled."""
        return sum(tensor.skipped for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """All that was stored, in bytes, not compressed."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def _title(self) -> str:
        bands = f", in {count_of(self.bands)} bands" if self.bands > 1 else ""
        return f"filled in {self.seconds:.1f} s{bands}"


def _tiles_of(report: FillReport) -> str:
    """What became of the tiles, for the end of a bar."""
    skipped = f", {count_of(report.skipped)} skipped by the mask" if report.skipped else ""
    return f"{count_of(report.tiles)} tiles stored{skipped}"
