"""What filling a region takes: counts from the library's own plans, times from what each stage can do.

A fill is a row of stages: look-ups of tiles, ``f`` and what is around it, encoding, requests. Stages that work at the
same time are as quick as the slowest; those that wait for each other add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from zarr.storage import MemoryStore

from infinite_tensor import InfiniteTensor, ZarrTileStore
from infinite_tensor.filling.demand import demands
from infinite_tensor.filling.fill import prepare
from infinite_tensor.filling.forecast import FillPlan, TensorPlan
from infinite_tensor.filling.shares import share_of_tiles
from infinite_tensor.filling.tasks import _extents
from infinite_tensor.indexing import parse
from infinite_tensor.tilestore.writer import _BATCH_BYTES, _BATCH_JOBS
from tests.benchmarks.scenario import Costs, Fleet, Storage, Work, chain


@dataclass
class Prediction:
    """What a fill takes.

    Attributes
    ----------
    seconds : float
        From begin to end.
    windows : float
        Windows computed, of all tensors.
    output_windows : int
        Windows of the tensor that is filled.
    puts, gets, put_bytes, get_bytes : float
        Requests and what they move, compressed; to delete something counts as a put.
    stages : dict of str to float
        Seconds that each stage would take if it never waited for another one.
    """

    seconds: float = 0.0
    windows: float = 0.0
    output_windows: int = 0
    puts: float = 0.0
    gets: float = 0.0
    put_bytes: float = 0.0
    get_bytes: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)

    def add(self, other: Prediction, times: int = 1) -> None:
        """Count what another one takes as well; time is for the caller to judge."""
        self.windows += times * other.windows
        self.puts += times * other.puts
        self.gets += times * other.gets
        self.put_bytes += times * other.put_bytes
        self.get_bytes += times * other.get_bytes

    @property
    def amplification(self) -> float:
        """Windows computed per window of the output."""
        return self.windows / self.output_windows

    @property
    def bound(self) -> str:
        """The stage that takes longest."""
        return max(self.stages, key=self.stages.__getitem__)


def _region(start: Sequence[int], stop: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(start, stop, strict=True))


def predict(work: Work, costs: Costs, storage: Storage, fleet: Fleet) -> Prediction:
    """What it takes to fill a square of which nothing is stored."""
    tensors = chain(work, ZarrTileStore(MemoryStore(), tile_size=work.tile))
    model = _Model(work, costs, storage, fleet)
    return model.cluster(tensors) if fleet.how == "cluster" else model.shards(tensors)


@dataclass(frozen=True)
class _Load:
    """What one process has to do, in seconds.

    Attributes
    ----------
    calls, around : float
        In ``f``, and around it on the same thread.
    waits : float
        For look-ups and reads, before ``f`` can run.
    storing, sending : float
        In the background: work, and waiting for storage.
    fleet : Fleet
        Threads and cores of the process.
    on_cpu : bool
        Whether ``f`` keeps a core busy.
    """

    calls: float
    around: float
    waits: float
    storing: float
    sending: float
    fleet: Fleet
    on_cpu: bool

    def stages(self) -> dict[str, float]:
        """Each by itself; Python runs on one core at a time."""
        busy = self.calls * self.on_cpu + self.around + self.storing
        return {
            "f": self.calls / self.fleet.threads,
            "look-ups": self.waits / self.fleet.threads,
            "library": self.around + self.storing,
            "writing": self.storing + self.sending,
            "cores": busy / self.fleet.cores,
        }

    def seconds(self, steps: float) -> float:
        """How long it takes in so many steps, of which one is stored while the next is computed."""
        computing = self.waits + max((self.calls + self.around) / self.fleet.threads, self.around)
        stages = self.stages()
        storing = stages["writing"]
        return max(computing, *stages.values()) + min(computing, storing) / steps


@dataclass(frozen=True)
class _Model:
    work: Work
    costs: Costs
    storage: Storage
    fleet: Fleet

    # Each process by itself.

    def shards(self, tensors: Sequence[InfiniteTensor]) -> Prediction:
        """Each process marches through a share of its own; those of one shape take as long."""
        side, tiles, count = self.work.side, -(-self.work.side // self.work.tile), self.fleet.processes
        shapes: dict[tuple[int, ...], list[int]] = {}
        for rank in range(count):
            low, high = share_of_tiles((0, 0), (tiles, tiles), rank, count)
            shapes.setdefault(tuple(b - a for a, b in zip(low, high, strict=True)), []).append(rank)
        total = Prediction(output_windows=tensors[-1].plan(_region((0, 0), (side, side))).tensors[-1].needed)
        for shape, ranks in shapes.items():
            if not math.prod(shape):
                continue
            share = self._share(tensors, ranks[0])
            total.add(share, len(ranks))
            if share.seconds > total.seconds:
                total.seconds = share.seconds
                total.stages = share.stages
        # All tensors are worked on at the same time, each with keys of its own.
        prefixes = len(tensors) if self.work.stored else 1
        limits = self._limits(total.puts / prefixes, total.gets / prefixes)
        total.seconds = max(total.seconds, *limits.values())
        total.stages |= limits
        return total

    def _share(self, tensors: Sequence[InfiniteTensor], rank: int) -> Prediction:
        """One process."""
        box = _region((0, 0), (self.work.side, self.work.side))
        root = tensors[-1]._node
        (cuts,) = prepare([(root, parse(box, (None, None)))], None, (rank, self.fleet.processes)).passes
        cut = cuts[root]
        along, widths = cut.along, [b - a for a, b in zip(cut.start, cut.stop, strict=True)]
        strips = max(1.0, widths[1 - along] / cut.extents[1 - along])
        steps = strips * max(1.0, widths[along] / cut.extents[along])
        start, stop = cut.start, list(cut.stop)
        share = tensors[-1].plan(_region(start, stop))
        stop[1 - along] = min(stop[1 - along], start[1 - along] + cut.extents[1 - along])
        strip = tensors[-1].plan(_region(start, stop))
        return self._march(share, strip, strips, steps)

    def _march(self, share: FillPlan, strip: FillPlan, strips: float, steps: float) -> Prediction:
        """A share that is worked through in strips, and these in steps."""
        # What is in memory is not kept from one strip to the next.
        made, times = (share, 1.0) if self.work.stored else (strip, strips)
        windows = times * made.windows
        args = windows - times * made.tensors[0].windows
        tiles = [times * self._tiles(tensor) for tensor in made.tensors if self._is_stored(tensor, made)]
        whole = times * made.tensors[-1].tiles.missing
        again = sum(strips * self._tiles(tensor) for tensor in strip.tensors if self._is_stored(tensor, strip))
        again = max(0.0, again - sum(tiles))
        # Who has created the tensors asks once for all tiles of a step, whether somebody else writes them.
        asked = [steps if self.fleet.processes == 1 else count for count in tiles]
        # The first step asks for tiles before it asks for their logs, and finds that there are none.
        first = sum(asked) / steps if self.work.shares_tiles else 0.0
        waits = steps * sum(self._look_up_rounds(count / steps) for count in asked) + self.storage.rounds(first)
        sending = steps * len(tiles) * self._write_rounds(whole / steps)
        # What halos touch at the border is stored in parts, at the end.
        parts = [count - whole for count in tiles]
        load = self._load(windows, args, sum(tiles), sum(tiles), waits + again * self._fetch_seconds(), sending)
        # Each call also makes sure that the tensor is still there.
        gets = self._gets_per_missing * sum(asked) + first + again + sum(parts) + 2 * steps * len(tiles)
        seconds = load.seconds(steps) + sum(map(self._log_rounds, parts))
        return self._prediction(seconds, windows, sum(tiles), sum(tiles), gets, again, load.stages())

    # Tasks, tensor by tensor.

    def cluster(self, tensors: Sequence[InfiniteTensor]) -> Prediction:
        """All processes work on one tensor at a time."""
        total = Prediction()
        box = (0, 0), (self.work.side, self.work.side)
        for demand in reversed(demands([(tensors[-1]._node, *box)])[0]):
            if not demand.node.store.outlives_process:
                continue
            extents = _extents(demand, self.fleet.processes * self.fleet.threads).tolist()
            tensor = next(t for t in tensors if t._node == demand.node)
            tasks = max(1.0, demand.missing * self.work.stride**2 / math.prod(extents))
            block = tensor.plan(_region((0, 0), extents))
            level = self._level(block, tasks, demand.missing / tasks)
            total.add(level)
            total.seconds += level.seconds
            total.stages = {name: total.stages.get(name, 0.0) + each for name, each in level.stages.items()}
            total.output_windows = demand.needed
        # Which tiles are left in parts is found by looking through all of them.
        total.stages["listing"] = (self.work.side / self.work.tile) ** 2 / 1000 * self.storage.listing
        total.seconds += total.stages["listing"]
        return total

    def _level(self, block: FillPlan, tasks: float, windows: float) -> Prediction:
        """One tensor, of which each task is a block."""
        work, fleet = self.work, self.fleet
        upstream = block.tensors[:-1]
        # What is in memory is computed by every task that needs it.
        args = windows if upstream else 0.0
        if not work.stored:
            windows += sum(tensor.windows for tensor in upstream)
            args = windows - upstream[0].windows if upstream else 0.0
        read = self._tiles(upstream[-1]) if upstream and work.stored else 0.0
        wide, high = (extent / work.tile for extent in block.regions[0].stop)
        whole = wide * high
        # Windows that reach into the blocks around leave parts of tiles, which somebody puts together.
        parts, borders = (2 * (wide + high), wide + high - 1) if work.spills else (0.0, 0.0)
        stored = whole + parts
        begun = whole + (wide + high + 1 if work.spills else 0.0)
        # Each call also makes sure that the tensor is still there.
        gets = self._gets_per_missing * begun + read + 5 * borders + 2 + stored / self._batch
        waits = self._look_up_rounds(begun) + self.storage.rounds(read) + 5 * self.storage.rounds(borders)
        sending = self._write_rounds(stored - parts) + self._log_rounds(parts)
        load = self._load(windows, args, begun, stored, waits + (read + borders) * self._fetch_seconds(), sending)
        task = load.seconds(math.ceil(stored / self._batch))
        stages = {name: each * tasks / fleet.processes for name, each in load.stages().items()}
        stages["scheduler"] = tasks * fleet.task_seconds
        # Parts are deleted once the tile is complete.
        puts = tasks * (stored + parts)
        stages |= self._limits(puts, tasks * max(gets - read, read))
        turns = math.ceil(tasks / fleet.processes / fleet.threads)
        seconds = max(turns * task, *stages.values())
        read += 2 * borders
        return self._prediction(seconds, tasks * windows, tasks * stored, puts, tasks * gets, tasks * read, stages)

    # What both take.

    def _is_stored(self, tensor: TensorPlan, plan: FillPlan) -> bool:
        return self.work.stored or tensor is plan.tensors[-1]

    def _tiles(self, tensor: TensorPlan) -> float:
        return max(tensor.tiles.missing, tensor.bytes_written / self.work.tile_bytes)

    @property
    def _batch(self) -> int:
        """Tiles that a store writes at once, at most."""
        return max(1, min(_BATCH_JOBS, _BATCH_BYTES // self.work.tile_bytes))

    @property
    def _gets_per_missing(self) -> int:
        """The log of a tile's parts, where it may have some, and the tile."""
        return 2 if self.work.shares_tiles else 1

    def _look_up_rounds(self, tiles: float) -> float:
        """Seconds to wait before it is known that tiles of one tensor are missing."""
        first = tiles + 1 if self.work.shares_tiles else 1
        return self.storage.rounds(first) + self.storage.rounds(tiles)

    def _write_rounds(self, tiles: float) -> float:
        """Seconds to wait until tiles of one tensor are stored."""
        batches, rest = divmod(tiles, self._batch)
        rounds = self.storage.rounds
        return batches * (rounds(1) + rounds(self._batch)) + (rounds(1) + rounds(rest) if rest else 0.0)

    def _log_rounds(self, parts: float) -> float:
        """The same for parts of tiles, each of which is read back to see whose it is."""
        return self.storage.rounds(1) + 2 * self.storage.rounds(parts) if parts else 0.0

    def _load(self, windows: float, args: float, begun: float, stored: float, waits: float, sending: float) -> _Load:
        work, costs = self.work, self.costs
        moved = windows * work.window**2 + args * (work.window + 2 * work.halo) ** 2
        around = windows * costs.window + args * costs.arg + begun * costs.tile + moved * work.itemsize * costs.byte
        sent = stored * work.tile_bytes / work.ratio / self.storage.bandwidth
        return _Load(
            windows * work.call_seconds,
            around,
            waits,
            stored * (costs.store + work.tile_bytes * costs.encode),
            sending + sent,
            self.fleet,
            on_cpu=work.on_cpu,
        )

    def _fetch_seconds(self) -> float:
        """Work and transfer for a tile that is read."""
        fetched = self.work.tile_bytes / self.work.ratio / self.storage.bandwidth
        return self.costs.fetch + fetched + self.work.tile_bytes * self.costs.decode

    def _prediction(
        self,
        seconds: float,
        windows: float,
        stored: float,
        puts: float,
        gets: float,
        read: float,
        stages: dict[str, float],
    ) -> Prediction:
        """The same, with tiles as bytes."""
        size = self.work.tile_bytes / self.work.ratio
        return Prediction(seconds, windows, 0, puts, gets, stored * size, read * size, stages)

    def _limits(self, puts: float, gets: float) -> dict[str, float]:
        """What storage takes for everybody's requests of one tensor."""
        storage = self.storage
        # Shares lie apart, and tasks that are under way at the same time do: not more prefixes than these are asked.
        prefixes = min(storage.prefixes, self.fleet.processes * self.fleet.threads)
        return {
            "puts per prefix": puts / storage.puts / prefixes,
            "gets per prefix": gets / storage.gets / prefixes,
        }
