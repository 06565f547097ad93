"""How far a copy has come, and in the end what it has moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from infinite_tensor.filling.progress import Shown
from infinite_tensor.support.tables import Tabular, bytes_of, count_if_any, count_of, shown_id


@dataclass(frozen=True)
class TensorCopy:
    """One tensor's part of a `CopyReport`.

    Attributes
    ----------
    tensor_id : str
        Its id.
    tiles : int
        Complete tiles that were moved.
    partial : int
        Incomplete tiles of which windows were moved.
    windows : int
        Windows that were moved one by one, from or to memory.
    there : int
        Tiles, or windows, that were there before and were not moved.
    damaged : int
        Tiles that are damaged where they come from, and were left out: they are computed when they are needed.
    left : int
        Tiles of a file of version 0.4 that were left out, as some of their windows are missing: they are computed when
        they are needed.
    bytes : int
        All that was moved, in bytes, as it was moved: compressed, where nothing was encoded anew.
    """

    tensor_id: str
    tiles: int = 0
    partial: int = 0
    windows: int = 0
    there: int = 0
    damaged: int = 0
    left: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class CopyReport(Tabular):
    """What a copy has moved. It prints as a table.

    Attributes
    ----------
    tensors : tuple of TensorCopy
        The tensors, each after those that it reads.
    absent : tuple of str
        Ids of upstream tensors that were to be copied too, and that the store does not hold.
    target : str
        Where they were copied to.
    seconds : float
        How long it took.
    """

    tensors: tuple[TensorCopy, ...]
    absent: tuple[str, ...]
    target: str
    seconds: float

    _HEADINGS: ClassVar = ("tensor", "tiles", "partial", "windows", "there already", "damaged", "left out", "moved")

    @property
    def tiles(self) -> int:
        """Complete tiles that were moved, of all tensors."""
        return sum(tensor.tiles for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """All that was moved, in bytes."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def _title(self) -> str:
        left = f"; upstream and not in the store: {', '.join(map(repr, self.absent))}" if self.absent else ""
        return f"copied to {self.target} in {self.seconds:.1f} s{left}"

    def _rows(self) -> list[list[str]]:
        return [
            [
                shown_id(each.tensor_id),
                count_of(each.tiles),
                *map(count_if_any, (each.partial, each.windows, each.there, each.damaged, each.left)),
                bytes_of(each.bytes),
            ]
            for each in self.tensors
        ]


@dataclass(frozen=True)
class CopyProgress:
    """How far a copy has come.

    Attributes
    ----------
    done : int
        Tiles that are there, of the tensors that have been looked at so far; windows, from or to memory.
    total : int
        How many of these there are.
    seconds : float
        How long it has been at it.
    report : CopyReport or None
        In the last call: what it has moved.
    """

    done: int
    total: int
    seconds: float
    report: CopyReport | None = None


CopyWatcher: TypeAlias = Callable[[CopyProgress], object]


class CopyTally(Shown):
    """Counts what a copy has moved, and shows it. For one thread.

    Parameters
    ----------
    progress : bool, "always" or callable
        As for `store.copy`.
    """

    def __init__(self, progress: bool | str | CopyWatcher) -> None:
        super().__init__(progress, 0, "tile")
        self._done = self._total = 0

    def expect(self, count: int) -> None:
        """So many tiles more are to be copied."""
        self._total += count
        if self._bar is not None:
            self._bar.total = self._total
            self._bar.refresh()

    def count(self, done: int) -> None:
        """So many more of them are there."""
        self._done += done
        if self._bar is not None:
            self._bar.update(done)
        if self._is_due:
            self._tell(None)

    def finish(self, report: CopyReport) -> CopyReport:
        """All is there."""
        if self._tells_end:
            self._tell(report)
        return report

    def _tell(self, report: CopyReport | None) -> None:
        self._show(CopyProgress(self._done, self._total, self.seconds, report))
