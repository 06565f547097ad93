"""How fast the server answers: `python -m benchmarks.server`.

First 32 clients, each a process of its own, ask for one stored map tile every 500 ms. Then 8 clients ask for chunks of
an ``f`` that sleeps for 20 ms, as fast as one worker computes them. The worker is busy while it is in ``f``.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CLIENTS, PERIOD, REQUESTS = 32, 0.5, 40
SLOW_CLIENTS, SLOW_REQUESTS, SLEEP = 8, 50, 0.02

WORLD = """
import time
import torch
from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore, noise

store = ZarrTileStore("world.zarr", tile_size=64)
window = TensorWindow((64, 64))
stored = noise((None, None), seed=3).map(lambda x: x * 2, window=(64, 64), store=store, tensor_id="stored")


def sleeps(ctx):
    begin = time.perf_counter()
    pixels = torch.zeros(64, 64)
    time.sleep({sleep})
    with open("calls.txt", "a") as calls:
        print(begin, time.perf_counter(), file=calls)
    return pixels


slow = InfiniteTensor((None, None), sleeps, window, tile_store=store, tensor_id="slow")
"""

CLIENT = """
import http.client, json, sys, time
port, number, count, period, path = (read(each) for read, each in zip((int, int, int, float, str), sys.argv[1:]))
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
print("ready", flush=True)
sys.stdin.readline()
begin, taken = time.perf_counter() + number * period / 32, []
for i in range(count):
    time.sleep(max(0, begin + i * period - time.perf_counter()))
    start = time.perf_counter()
    x, y = (number * 7 + i) % 8 - 4, (number + i // 8) % 8 - 4
    connection.request("GET", path.format(x=x, y=y, row=number, column=i))
    response = connection.getresponse()
    response.read()
    assert response.status == 200, response.status
    taken.append(time.perf_counter() - start)
print(json.dumps(taken))
"""


@contextmanager
def server(folder: Path, *options: str) -> Iterator[int]:
    """The port of a server of the store, which ends with the block."""
    command = [sys.executable, "-m", "infinite_tensor.cli", "serve", "world.zarr", "--port", "0", "--json", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = "".join(iter(process.stdout.readline, "}\n")) + "}"
        yield int(json.loads(told)["url"].rstrip("/").rpartition(":")[2])
        process.terminate()


def seconds_of(port: int, clients: int, count: int, period: float, path: str) -> list[list[float]]:
    """What each request of each client took."""
    command = [sys.executable, "-S", "-c", CLIENT, str(port)]
    processes = [
        subprocess.Popen(
            [*command, str(number), str(count), str(period), path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(clients)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return [json.loads(process.communicate()[0]) for process in processes]


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "world.py").write_text(WORLD.replace("{sleep}", str(SLEEP)))
        command = [sys.executable, "-m", "infinite_tensor.cli", "fill", "--module", "world.py:stored"]
        subprocess.run([*command, "--region", "-1024:1024,-1024:1024"], cwd=folder, check=True, capture_output=True)
        with server(folder) as port:
            # The first one opens the tensor, and chooses its colours.
            ((first, *_),) = seconds_of(port, 1, 2, PERIOD, "/stored/0/{x}/{y}.png")
            print(f"the first map tile of all took {1e3 * first:.0f} ms")  # noqa: T201
            found = seconds_of(port, CLIENTS, REQUESTS, PERIOD, "/stored/0/{x}/{y}.png")
        report("stored map tiles", found)
        options = ("--module", "world.py:slow", "--workers", "1", "--region", "0:4096,0:4096")
        with server(folder, *options) as port:
            found = seconds_of(port, SLOW_CLIENTS, SLOW_REQUESTS, 0, "/slow/s0/slow/c/{row}/{column}")
        report("chunks of a slow f", found)
        begins, ends = zip(
            *(map(float, line.split()) for line in (folder / "calls.txt").read_text().splitlines()), strict=True
        )
        print(f"the worker was busy for {(sum(ends) - sum(begins)) / (ends[-1] - begins[0]):.1%} of the time")  # noqa: T201


def report(what: str, found: Sequence[Sequence[float]]) -> None:
    taken: list[Any] = [1e3 * each for part in found for each in part]
    slowest = max(1e3 * statistics.median(part) for part in found)
    print(  # noqa: T201
        f"{what}: {len(taken)} from {len(found)} clients, p50 {quantile(taken, 0.5):.0f} ms, "
        f"p99 {quantile(taken, 0.99):.0f} ms, at most {max(taken):.0f} ms; the slowest client {slowest:.0f} ms (median)"
    )


if __name__ == "__main__":
    main()
