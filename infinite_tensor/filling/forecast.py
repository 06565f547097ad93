"""What it would cost to fill a region: counted, not tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from infinite_tensor.filling.demand import Box, Demand
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.tables import Tabular, bytes_of, count_of
from infinite_tensor.tilestore.inventory import TileCounts


@dataclass(frozen=True)
class TensorPlan:
    """One tensor's part of a `FillPlan`.

    Attributes
    ----------
    tensor_id : str
        Its id.
    needed : int
        Windows that are needed.
    stored : int
        How many of these are stored already.
    calls : int
        Calls of ``f`` for the others, at least: where a region takes several steps, batches may be smaller. Those of
        an ``f`` with several outputs stand with its first.
    tiles : TileCounts
        Tiles that hold what is needed, by what is stored of them now: complete, partial, missing.
    bytes_read : int
        Complete tiles that are read, in bytes, not compressed.
    bytes_written : int
        Tiles that windows are stored in, in bytes, not compressed; 0 in memory.
    amplification : float
        Windows needed per window that is needed of the tensor that is filled, of several the one that needs most: what
        halos and overlaps cost.
    """

    tensor_id: str
    needed: int
    stored: int
    calls: int
    tiles: TileCounts
    bytes_read: int
    bytes_written: int
    amplification: float

    @property
    def windows(self) -> int:
        """Windows to compute."""
        return self.needed - self.stored


@dataclass(frozen=True)
class FilledRegion:
    """The pixels of one tensor that a fill stores: those of all tiles that a region touches.

    Attributes
    ----------
    tensor_id : str
        The id of the tensor.
    start, stop : tuple of int
        The first pixel, and the one after the last, per dimension.
    """

    tensor_id: str
    start: Index
    stop: Index

    def __str__(self) -> str:
        return f"[{', '.join(f'{a}:{b}' for a, b in zip(self.start, self.stop, strict=True))}]"


@dataclass(frozen=True)
class FillPlan(Tabular):
    """What it would cost to fill a region, or regions of several tensors.

    Attributes
    ----------
    regions : tuple of FilledRegion
        What would be stored of each tensor that is filled; empty where there is nothing to fill.
    tensors : tuple of TensorPlan
        The tensors that are filled and all upstream, each after those that it reads, and each once.
    peak_memory : int
        The most memory that the fill is expected to hold, in bytes, beside what ``f`` itself takes.
    exact : bool
        Whether the windows are counted exactly. Otherwise there are too many to look at each, and the numbers are
        bounds: there are at most so many.
    """

    regions: tuple[FilledRegion, ...]
    tensors: tuple[TensorPlan, ...]
    peak_memory: int
    exact: bool

    _HEADINGS: ClassVar = (
        "tensor",
        "needed",
        "stored",
        "to compute",
        "calls of f",
        "complete",
        "partial",
        "missing",
        "read",
        "written",
        "per window",
    )

    @property
    def windows(self) -> int:
        """Windows to compute, of all tensors."""
        return sum(tensor.windows for tensor in self.tensors)

    @property
    def calls(self) -> int:
        """Calls of ``f``, of all tensors."""
        return sum(tensor.calls for tensor in self.tensors)

    @property
    def bytes_written(self) -> int:
        """Bytes of tiles that are stored, not compressed."""
        return sum(tensor.bytes_written for tensor in self.tensors)

    @property
    def bytes_read(self) -> int:
        """Bytes of tiles that are read, not compressed."""
        return sum(tensor.bytes_read for tensor in self.tensors)

    def _rows(self) -> list[list[str]]:
        rows = [
            [
                tensor.tensor_id,
                *map(count_of, (tensor.needed, tensor.stored, tensor.windows, tensor.calls, *tensor.tiles)),
                bytes_of(tensor.bytes_read),
                bytes_of(tensor.bytes_written),
                f"{tensor.amplification:.2f}",
            ]
            for tensor in self.tensors
        ]
        total = ["all", "", "", count_of(self.windows), count_of(self.calls), "", "", ""]
        return [*rows, [*total, bytes_of(self.bytes_read), bytes_of(self.bytes_written), ""]]

    @property
    def _title(self) -> str:
        several = len(self.regions) > 1
        filled = ", ".join(f"{region.tensor_id} {region}" if several else str(region) for region in self.regions)
        bound = "" if self.exact else "; counts are upper bounds"
        return f"fill {filled or 'nothing'}, about {bytes_of(self.peak_memory)} of memory{bound}"


def forecast(boxes: Sequence[Box], demands: Sequence[Demand], peak_memory: int, *, exact: bool) -> FillPlan:
    """The cost of filling some pixels, which take these demands, consumers first."""
    roots = {node for node, _, _ in boxes}
    of_root = max((demand.needed for demand in demands if demand.node in roots), default=0)
    regions = [FilledRegion(node.spec.tensor_id, start, stop) for node, start, stop in boxes]
    tensors = [_tensor_plan(demand, of_root) for demand in reversed(demands)]
    return FillPlan(tuple(regions), tuple(tensors), peak_memory, exact)


def _tensor_plan(demand: Demand, of_root: int) -> TensorPlan:
    node, tile_bytes = demand.node, demand.layout.tile_bytes if demand.node.contents.outlives_process else 0
    return TensorPlan(
        node.spec.tensor_id,
        demand.needed,
        demand.needed - demand.missing,
        node.computation.batching.calls(demand.runs),
        demand.tiles,
        demand.tiles.complete * tile_bytes,
        demand.written * tile_bytes,
        demand.needed / of_root if of_root else 0.0,
    )
