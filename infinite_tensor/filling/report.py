"""What a fill has done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from infinite_tensor.support.tables import Tabular, bytes_of, count_of


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
    """

    tensor_id: str
    windows: int
    tiles: int
    bytes: int


@dataclass(frozen=True)
class FillReport(Tabular):
    """What a fill has done.

    Attributes
    ----------
    tensors : tuple of TensorReport
        The tensors of the chain, each after those that it reads.
    seconds : float
        How long it took.
    """

    tensors: tuple[TensorReport, ...]
    seconds: float

    _HEADINGS: ClassVar = ("tensor", "windows", "tiles", "stored")

    @property
    def windows(self) -> int:
        """Windows that were computed, of all tensors."""
        return sum(tensor.windows for tensor in self.tensors)

    @property
    def tiles(self) -> int:
        """Complete tiles that were stored, of all tensors."""
        return sum(tensor.tiles for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """All that was stored, in bytes, not compressed."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def _title(self) -> str:
        return f"filled in {self.seconds:.1f} s"

    def _rows(self) -> list[list[str]]:
        rows = [[t.tensor_id, count_of(t.windows), count_of(t.tiles), bytes_of(t.bytes)] for t in self.tensors]
        return [*rows, ["all", count_of(self.windows), count_of(self.tiles), bytes_of(self.bytes)]]
