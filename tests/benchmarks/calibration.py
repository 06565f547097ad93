"""What this library takes on this machine, and real fills to hold a prediction against."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from infinite_tensor import InfiniteTensor, ZarrTileStore
from tests.benchmarks.prediction import predict
from tests.benchmarks.scenario import Costs, Fleet, Function, Storage, Work, chain

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
        [(t.windows, t.args, t.tiles, t.moved) for t in trials], [t.thread_seconds for t in trials]
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
    moved: int
    thread_seconds: float
    seconds: float
    read_seconds: float


def _trial(work: Work, folder: Path) -> _Trial:
    with ZarrTileStore(folder, tile_size=work.tile) as store:
        output = chain(work, store, noise(work.window))[-1]
        plan = output.plan(_square(work.side))
        begun, thread_begun = time.perf_counter(), time.thread_time()
        output.fill(_square(work.side), progress=False)
        thread_seconds, seconds = time.thread_time() - thread_begun, time.perf_counter() - begun
    args = plan.windows - plan.tensors[0].windows
    moved = (plan.windows * work.window**2 + args * (work.window + 2 * work.halo) ** 2) * work.itemsize
    with ZarrTileStore(folder, mode="r") as store:
        output, begun = store.open(f"t{work.depth - 1}"), time.perf_counter()
        output[_square(work.side)]
        read_seconds = time.perf_counter() - begun
    tiles, outputs = plan.bytes_written / work.tile_bytes, plan.tensors[-1].tiles.missing
    return _Trial(work, plan.windows, args, tiles, outputs, moved, thread_seconds, seconds, read_seconds)


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
        output: InfiniteTensor = chain(case.work, store, case.f)[-1]
        far.requests.clear()
        report = output.fill(_square(case.work.side), progress=False)
    return report.seconds, far.requests


def _call_seconds(case: Case) -> float:
    work = case.work
    regions = [torch.rand((work.window + 2 * work.halo,) * 2)] if work.depth > 1 else []
    return _least(lambda: [case.f((0, number), *regions) for number in range(100)]) / 100


def _least(call: Callable[[], object]) -> float:
    found = math.inf
    for _ in range(5):
        begun = time.perf_counter()
        call()
        found = min(found, time.perf_counter() - begun)
    return found


def _square(side: int) -> tuple[slice, slice]:
    return slice(0, side), slice(0, side)
