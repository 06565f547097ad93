"""How long it takes to fill 10^12 pixels on S3, predicted: ``python -m benchmarks.simulate``.

It prints what docs/scaling.md shows. Windows and tiles are those of the library's own plans. Times are arithmetic: each
stage is given what it takes by itself, stages work at the same time, and the slowest counts. A cluster fills tensors
one after the other; workers that fill shards by themselves write all tensors at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from zarr.storage import MemoryStore

from benchmarks.report import markdown
from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore

SIDE = 10**6
WORKERS = (1, 10, 100, 1000)

# Of S3.
ANSWER = 0.03
"""Seconds until a request is answered."""
BANDWIDTH = 100e6
"""Bytes per second and worker."""
PUTS, GETS = 3500, 5500
"""Requests per second that a prefix takes."""
CONCURRENCY = 32
"""Requests that a worker has under way at a time."""

# Of this library: seconds of one core, measured on 2 cores of an AMD EPYC beside a server on the same machine.
WINDOW, ARG, BYTE = 7e-6, 20e-6, 0.6e-9
"""Around a call of f, per region of an arg, and per byte of either."""
PUT, PUT_BYTE, GET, GET_BYTE = 2.3e-3, 5e-9, 1.2e-3, 1.6e-9
"""Per tile that is stored, and that is read back."""
CORES = 2
"""Of each worker."""
TASK = 0.001
"""Seconds that the scheduler of a cluster takes for a shard."""
SHARDS_PER_WORKER = 4
COMPRESSION = 1.1


@dataclass(frozen=True)
class Work:
    """A square of a chain in which each tensor reads the one before it, of float32. Lengths are pixels."""

    call_seconds: float
    window: int = 512
    stride: int = 512
    halo: int = 0
    depth: int = 1
    on_cpu: bool = True
    tile: int = 512
    side: int = SIDE
    stored: bool = True  # tensors upstream too

    @property
    def shares_tiles(self) -> bool:
        """Whether a tile takes several windows, so that it may be stored in part."""
        return self.window > self.stride or self.stride != self.tile


@dataclass(frozen=True)
class Fleet:
    """Who fills: a cluster, or workers that each fill a shard by themselves. One worker is a plain fill."""

    workers: int
    how: Literal["cluster", "shards"] = "cluster"
    prefixes: int = 1  # over which S3 has spread the keys of a tensor

    @property
    def is_whole(self) -> bool:
        """Whether a worker fills all tensors of its part at once."""
        return self.workers == 1 or self.how == "shards"


class Counts(NamedTuple):
    """What a fill does for one tensor."""

    windows: float
    args: float
    tiles: float  # that it stores
    reads: float  # of tiles of the tensor upstream


@dataclass(frozen=True)
class Prediction:
    """What a fill takes, and each stage by itself, in seconds."""

    seconds: float
    stages: dict[str, float]
    windows: float
    amplification: float
    puts: float
    gets: float
    written: float

    def cells(self) -> list[str]:
        """As a table shows it."""
        longest = max(self.stages, key=self.stages.__getitem__)
        moved = amount(self.puts), amount(self.gets), amount(self.written) + "B"
        return [duration(self.seconds), f"{self.amplification:.2f}", *moved, longest]


def chain(work: Work, store: ZarrTileStore) -> list[InfiniteTensor]:
    """The tensors that `work` means, sources first."""
    out = TensorWindow((work.window, work.window), stride=work.stride)
    tensors: list[InfiniteTensor] = []
    for number in range(work.depth):
        tensors.append(
            InfiniteTensor(
                (None, None),
                lambda ctx, *_: torch.full((work.window, work.window), float(ctx[0])),
                out,
                args=tensors[-1:],
                args_windows=[out.padded(work.halo)] if tensors else [],
                tile_store=store if work.stored or number == work.depth - 1 else None,
                tensor_id=f"t{number}",
            )
        )
    return tensors


def counts(work: Work, fleet: Fleet) -> list[Counts]:
    """What a fill does, by the plans of the library, for each tensor."""
    output = chain(work, ZarrTileStore(MemoryStore(), tile_size=work.tile))[-1]
    shards = fleet.workers * (1 if fleet.is_whole else SHARDS_PER_WORKER)
    whole = output.plan((slice(0, work.side),) * 2, shards=None if fleet.is_whole else shards)
    # A shard that has others on all sides.
    length = math.ceil(work.side / work.tile / math.sqrt(shards)) * work.tile
    shard, copies = output.plan((slice(length, 2 * length),) * 2), (work.side / length) ** 2
    found: list[Counts] = []
    for at in range(work.depth):
        is_stored = work.stored or at == work.depth - 1
        alone = fleet.workers > 1 and (fleet.is_whole or not is_stored)
        part, times = (shard.tensors[at], copies) if alone else (whole.tensors[at], 1.0)
        windows, tiles = times * part.windows, times * part.tiles if is_stored else 0.0
        # What a worker has stored itself is still in its memory.
        reads = 0.0 if fleet.is_whole or not at or not work.stored else copies * shard.tensors[at - 1].tiles
        found.append(Counts(windows, windows if at else 0.0, tiles, reads))
    return found


def predict(work: Work, fleet: Fleet) -> Prediction:
    """What it takes to fill a square of which nothing is stored."""
    parts = counts(work, fleet)
    each = [_stages(work, fleet, part) for part in parts]
    stages = {name: sum(some[name] for some in each) for name in each[0]}
    seconds = sum(_seconds(some) for some in each)
    if fleet.is_whole or not work.stored:
        # All tensors at once, each that is stored with a prefix of its own.
        stages |= {name: max(some[name] for some in each) for name in stages if name.endswith("per prefix")}
        seconds = _seconds(stages)
    puts, windows = sum(part.tiles for part in parts), sum(part.windows for part in parts)
    # Of the output, if each were computed once: those that overlap begin before the square.
    needed = (math.ceil(work.side / work.stride) + math.ceil(work.window / work.stride) - 1) ** 2
    gets = sum(_looks(work, fleet, part) + part.reads for part in parts)
    return Prediction(seconds, stages, windows, windows / needed, puts, gets, puts * _tile_bytes(work) / COMPRESSION)


def _seconds(stages: dict[str, float]) -> float:
    """Look-ups come before f on the same thread, and what is around f too; all else is done meanwhile."""
    return max(stages["look-ups"] + stages["f"] + stages["around f"], *stages.values())


def _stages(work: Work, fleet: Fleet, part: Counts) -> dict[str, float]:
    """Seconds that each stage of one tensor would take if it never waited for another one."""
    moved = (part.windows * work.window**2 + part.args * (work.window + 2 * work.halo) ** 2) * 4
    around = part.windows * WINDOW + part.args * ARG + moved * BYTE
    storing = part.tiles * (PUT + _tile_bytes(work) * PUT_BYTE)
    reading = part.reads * (GET + _tile_bytes(work) * GET_BYTE)
    calls, looks = part.windows * work.call_seconds, _looks(work, fleet, part)
    sent = _tile_bytes(work) / COMPRESSION / BANDWIDTH + ANSWER / CONCURRENCY
    by_workers = {
        "f": calls,
        "around f": around,
        "look-ups": looks * ANSWER / CONCURRENCY + reading + part.reads * sent,
        "writing": storing + part.tiles * sent,
        "cores": (calls * work.on_cpu + around + storing + reading) / CORES,
    }
    return {name: seconds / fleet.workers for name, seconds in by_workers.items()} | {
        "puts per prefix": part.tiles / PUTS / fleet.prefixes,
        # Tiles are read from another tensor, whose keys have another prefix.
        "gets per prefix": max(looks, part.reads) / GETS / fleet.prefixes,
        "scheduler": 0 if fleet.is_whole or not part.tiles else SHARDS_PER_WORKER * fleet.workers * TASK,
    }


def _looks(work: Work, fleet: Fleet, part: Counts) -> float:
    """For each tile, and for its log where it may have one; who creates a tensor need not look."""
    return 0 if fleet.workers == 1 else part.tiles * (2 if work.shares_tiles else 1)


def _tile_bytes(work: Work) -> int:
    return 4 * work.tile**2


CHAINS = {
    "one tensor, 1 ms": Work(0.001),
    "3 with halos of 32, 50 ms": Work(0.05, depth=3, halo=32),
    "2 whose windows overlap by 128, 1 s on a GPU": Work(1.0, stride=384, depth=2, on_cpu=False),
}
COLUMNS = ["time", "windows per window", "PUT", "GET", "written", "takes longest"]


def by_workers() -> str:
    """10^12 pixels, by chain and workers."""
    lines = [
        [name, f"{workers:,}", *predict(work, Fleet(workers)).cells()]
        for name, work in CHAINS.items()
        for workers in WORKERS
    ]
    return markdown(["chain", "workers", *COLUMNS], lines)


def by_way() -> str:
    """The chain with halos, changed in one thing at a time."""
    work, fleet = CHAINS["3 with halos of 32, 50 ms"], Fleet(WORKERS[-1])
    in_memory = replace(work, stored=False)
    coarse = replace(work, tile=1024, window=1024, stride=1024, call_seconds=4 * work.call_seconds)
    ways = {
        "cluster of 1,000": (work, fleet),
        "the same, requests over 8 prefixes": (work, replace(fleet, prefixes=8)),
        "the same, tiles of 1024": (replace(work, tile=1024), fleet),
        "the same, tiles and windows of 1024": (coarse, fleet),
        "the same, upstream in memory": (in_memory, fleet),
    }
    for count in WORKERS[1:]:
        ways[f"{count:,} shards"] = work, Fleet(count, "shards")
        ways[f"{count:,} shards, upstream in memory"] = in_memory, Fleet(count, "shards")
    return markdown(["way", *COLUMNS], [[name, *predict(*way).cells()] for name, way in ways.items()])


def limits() -> str:
    """What each stage of a fill by 1,000 workers would take by itself."""
    found = [predict(work, Fleet(WORKERS[-1])).stages for work in CHAINS.values()]
    lines = [[stage, *(duration(each[stage]) for each in found)] for stage in sorted(found[0])]
    return markdown(["by itself", *CHAINS], lines)


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


if __name__ == "__main__":
    print(by_workers(), by_way(), limits(), sep="\n\n")  # noqa: T201
