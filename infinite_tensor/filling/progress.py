"""Progress and reports of fills, exports and copies."""

from __future__ import annotations

import math
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from infinite_tensor.engine.chain import Node
from infinite_tensor.support.given import checked_progress
from infinite_tensor.support.interrupts import running_f
from infinite_tensor.support.tables import Tabular, bytes_of, count_if_any, count_of


@dataclass(frozen=True)
class Progress:
    """The progress of a fill, an export or a copy.

    Attributes
    ----------
    done : int
        The total number of windows computed so far. For an export or a copy, the number of finished tiles.
    total : int
        The expected number of windows to compute in all. It decreases as the fill finds windows already stored. For an
        export, the number of tiles. For a copy, the number of tiles in the tensors examined so far.
    seconds : float
        Seconds since the start.
    report : FillReport, CopyReport or None
        The report, in the last `Progress` of an uninterrupted fill or copy; otherwise None.
    """

    done: int
    total: int
    seconds: float
    report: Any = None


Watcher: TypeAlias = Callable[[Progress], object]
Reporting: TypeAlias = bool | Literal["always"] | Watcher


class Tally(AbstractContextManager["Tally"]):
    """Counts finished work, and shows the progress.

    Progress is shown in a progress bar, in lines of a log, or by a user's function.

    Parameters
    ----------
    total : int
        The number of windows to compute if nothing is stored yet.
    progress : bool, "always" or callable
        True shows a bar on a terminal or in a notebook. Elsewhere, and inside a live display of rich, it writes a line
        to standard error each minute. "always" always shows a bar; False shows nothing. A callable is called with a
        `Progress`, by one thread at a time, at most about ten times a second, and at the end.
    parts : int
        The number of parts of the work. Each part takes about the same number of windows.
    unit : str
        The name of what is counted.
    """

    def __init__(self, total: int, progress: Reporting, parts: int = 1, *, unit: str = "window") -> None:
        self._begun = time.monotonic()
        self._shown_at = -1.0
        checked = checked_progress(progress)
        self._watcher: Watcher | None = checked if callable(checked) else None
        # A log gets lines while work is left, but none at the end.
        self._shows_end = self._watcher is not None
        self._every = _SHOW_SECONDS
        self._bar: Any = None
        # sys.stderr is None without a console, as under pythonw.
        if sys.stderr is not None and (progress == "always" or (progress is True and is_watched())):
            self._bar = _bar_class()(total=total, unit=unit, smoothing=0.1)
        elif progress is True:
            self._watcher, self._every, self._shown_at = _line_in(unit), LINE_SECONDS, 0.0
        self.total = self._most = total
        self._parts = self._left = max(1, parts)
        self.windows: Counter[Any] = Counter()
        self._report: Tabular | None = None
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    def expect(self, count: int) -> None:
        """Expect `count` more windows."""
        with self._lock:
            self._set_total(self.total + count)

    def count(self, tensor: Node | str, windows: int) -> None:
        """Count finished windows of a tensor."""
        with self._lock:
            self.windows[tensor] += windows
            if self._bar is not None:
                self._bar.update(windows)
            if self._watcher is not None and self.seconds - self._shown_at >= self._every:
                self._show()

    def pass_parts(self, count: int) -> None:
        """Mark `count` more parts of the work as done, and update `total`.

        `total` becomes the number of windows computed so far, plus the windows expected for the remaining parts.
        """
        with self._lock:
            self._left -= count
            self._set_total(self.windows.total() + self._most * self._left // self._parts)

    def _set_total(self, total: int) -> None:
        self.total = total
        if self._bar is not None:
            self._bar.total = total

    def finish(self, report: Tabular) -> None:
        """Mark all work as done, and show `report` at the end."""
        self._report = report
        if self._bar is not None and isinstance(report, FillReport):
            skipped = f", {count_of(report.skipped)} skipped by the mask" if report.skipped else ""
            self._bar.set_postfix_str(f"{count_of(report.tiles)} tiles stored{skipped}", refresh=False)
            # Without work, the bar would end as "0window [00:00, ?window/s]".
            self._bar.leave = report.windows > 0

    def _show(self) -> None:
        assert self._watcher is not None
        self._shown_at = self.seconds
        # The user's function may use any store.
        with running_f():
            self._watcher(Progress(self.windows.total(), self.total, self._shown_at, self._report))

    def __exit__(self, kind: object, *_exc: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._shows_end and kind is None:
            with self._lock:
                self._show()


_SHOW_SECONDS = 0.1
LINE_SECONDS = 60.0


def _line_in(unit: str) -> Callable[[Any], object]:
    def write(progress: Any) -> None:
        done, total = progress.done, progress.total
        # An unwritable log must not end hours of work.
        with suppress(OSError, ValueError, AttributeError):
            if done:
                left = progress.seconds * max(0, total - done) / done
                hours, minutes = divmod(math.ceil(left / 60), 60)
                time_left = f"{hours} h {minutes} min" if hours else f"{minutes} min"
                sys.stderr.write(f"{count_of(done)} of {count_of(total)} {unit}s, about {time_left} left\n")
                sys.stderr.flush()

    return write


def is_watched() -> bool:
    """Whether standard error can redraw a progress bar in place.

    This is so on a terminal and in a notebook.
    """
    if type(sys.stderr).__module__ == "rich.file_proxy":
        # A live display of rich prints each state of the bar on a new line.
        return False
    # A file-like object may lack the method, and a closed file raises ValueError.
    with suppress(ValueError):
        isatty = getattr(sys.stderr, "isatty", None)
        return (isatty is not None and isatty()) or "ipykernel" in sys.modules
    return False


def _bar_class() -> Any:
    """Return the bar of tqdm: a widget in a notebook with ipywidgets, otherwise text."""
    # tqdm takes as long to import as all other modules together.
    from tqdm import TqdmWarning  # noqa: PLC0415

    with warnings.catch_warnings():
        # The warning asks users to install ipywidgets, but a text bar works without it.
        warnings.simplefilter("ignore", TqdmWarning)
        from tqdm.auto import tqdm  # noqa: PLC0415

    return tqdm


@dataclass(frozen=True)
class TensorReport:
    """One tensor's part of a `FillReport`.

    Attributes
    ----------
    tensor_id : str
        The id of the tensor.
    windows : int
        The number of windows computed. If ``f`` has several outputs, only the first one counts them.
    tiles : int
        The number of complete tiles stored.
    bytes : int
        The uncompressed size in bytes of everything stored.
    skipped : int
        The number of tiles of the region excluded by the mask.
    """

    tensor_id: str
    windows: int
    tiles: int
    bytes: int
    skipped: int = 0


@dataclass(frozen=True, repr=False)
class FillReport(Tabular):
    """The results of a fill.

    Attributes
    ----------
    tensors : tuple of TensorReport
        The tensors of the chain, upstream tensors first.
    seconds : float
        The duration of the fill.
    bands : int
        The number of bands into which the regions were cut. Bands are filled one after the other.
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
        """The number of windows computed, in total."""
        return sum(tensor.windows for tensor in self.tensors)

    @property
    def tiles(self) -> int:
        """The number of complete tiles stored, in total."""
        return sum(tensor.tiles for tensor in self.tensors)

    @property
    def skipped(self) -> int:
        """The number of tiles excluded by the mask, in total."""
        return sum(tensor.skipped for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """The uncompressed size in bytes of everything stored."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def _title(self) -> str:
        bands = f", in {count_of(self.bands)} bands" if self.bands > 1 else ""
        return f"filled in {self.seconds:.1f} s{bands}"
