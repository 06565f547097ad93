"""How small each compression makes tiles, and how fast: what `compressors="auto"` was chosen by.

``python -m benchmarks.compression`` prints a Markdown table for tiles of 256x256 and one for 512x512. Every codec
runs alone, on one thread; times are the best of several rounds, in which all codecs take turns. The cost is the time to
encode a tile, write it, fetch it and decode it. Speeds and costs are geometric means over all pictures.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import matplotlib.cbook
import matplotlib.image
import numpy as np
import numpy.typing as npt
from numcodecs import Blosc, Zstd  # type: ignore[import-untyped]

Tile: TypeAlias = npt.NDArray[Any]
Chain: TypeAlias = Callable[[int], list[Any]]
"""The codecs, for elements of so many bytes, in the order in which they are applied."""

LINK = 100e6
"""Bytes per second at which a tile is written and fetched: between S3 as fsspec reaches it, and a local disk."""
_SIDE = 1024
_MOST_TILES = 6


CANDIDATES: dict[str, Chain] = {
    "none": lambda _: [],
    "zstd 1": lambda _: [Zstd(1)],
    "zstd 3": lambda _: [Zstd(3)],
    "blosc(zstd 1, shuffle)": lambda width: [Blosc("zstd", 1, 1, typesize=width)],
    "blosc(zstd 1, bitshuffle)": lambda width: [Blosc("zstd", 1, 2, typesize=width)],
    "blosc(lz4 5, shuffle)": lambda width: [Blosc("lz4", 5, 1, typesize=width)],
    "blosc(lz4 5, bitshuffle)": lambda width: [Blosc("lz4", 5, 2, typesize=width)],
    "blosc(lz4 5, bitshuffle), zstd 1": lambda width: [Blosc("lz4", 5, 2, typesize=width), Zstd(1)],
}


@dataclass
class Measure:
    """Bytes before and after compression, and the least seconds that it and its reversal took."""

    plain: int
    stored: int = 0
    encoding: float = math.inf
    decoding: float = math.inf

    @property
    def ratio(self) -> float:
        return self.plain / self.stored

    @property
    def cost(self) -> float:
        """Milliseconds to encode, write, fetch and decode 1 MB."""
        return (self.encoding + self.decoding + 2 * self.stored / LINK) / self.plain * 1e9


def pictures() -> dict[str, Tile]:
    """What tensors hold, in the forms in which they hold it."""
    noise = np.random.default_rng(0).standard_normal((_SIDE, _SIDE))
    heights = _rough(noise)
    labels = np.digitize(heights, [-1, -0.5, 0, 0.3, 0.8])
    photograph = matplotlib.image.imread(_sample("grace_hopper.jpg"))
    return {
        "photo uint8": photograph.transpose(2, 0, 1),
        "labels uint8": labels.astype(np.uint8),
        "photo float32": photograph[..., 1].astype(np.float32) / 255,
        "noise float32": noise.astype(np.float32),
        "noise bfloat16": (noise.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "heights float32": heights.astype(np.float32),
        "heights int16": np.load(_sample("jacksboro_fault_dem.npz"))["elevation"],
        "labels int32": labels.astype(np.int32),
    }


def tiles_of(picture: Tile, side: int) -> list[Tile]:
    """Some tiles of a picture, or all of it where it is smaller than one."""
    *_, height, width = picture.shape
    found = [
        np.ascontiguousarray(picture[..., y : y + side, x : x + side])
        for y in range(0, height - side + 1, side)
        for x in range(0, width - side + 1, side)
    ]
    return found[:_MOST_TILES] or [np.ascontiguousarray(picture)]


def measured(tiles: Sequence[Tile], rounds: int) -> dict[str, Measure]:
    """What each candidate makes of the tiles; AssertionError if one does not give back what it was given."""
    chains = {name: chain(tiles[0].itemsize) for name, chain in CANDIDATES.items()}
    found = {name: Measure(sum(tile.nbytes for tile in tiles)) for name in chains}
    for _ in range(rounds):
        for name, chain in chains.items():
            began = time.perf_counter()
            encoded = [_encoded(chain, tile) for tile in tiles]
            between = time.perf_counter()
            decoded = [_decoded(chain, data) for data in encoded]
            ended = time.perf_counter()
            assert all(bytes(data) == tile.tobytes() for data, tile in zip(decoded, tiles, strict=True)), name
            measure = found[name]
            measure.stored = sum(memoryview(data).nbytes for data in encoded)
            measure.encoding = min(measure.encoding, between - began)
            measure.decoding = min(measure.decoding, ended - between)
    return found


def table(found: Mapping[str, Mapping[str, Measure]]) -> str:
    """Ratios for each picture, and means of speeds and costs over all of them, as Markdown."""
    heads = ["codecs", *found, "encode, MB/s", "decode, MB/s", "cost, ms per MB"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in CANDIDATES:
        rows = [measures[name] for measures in found.values()]
        cells = [
            name,
            *(f"{row.ratio:.2f}" for row in rows),
            f"{_mean([row.plain / row.encoding / 1e6 for row in rows]):.0f}",
            f"{_mean([row.plain / row.decoding / 1e6 for row in rows]):.0f}",
            f"{_mean([row.cost for row in rows]):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def winner(found: Mapping[str, Mapping[str, Measure]]) -> str:
    """The candidate of the least cost."""
    return min(CANDIDATES, key=lambda name: _mean([measures[name].cost for measures in found.values()]))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each codec runs")
    rounds = parser.parse_args().rounds
    for side in (256, 512):
        found = {name: measured(tiles_of(picture, side), rounds) for name, picture in pictures().items()}
        print(f"Tiles of {side}x{side}\n\n{table(found)}\n\nLeast cost: {winner(found)}\n")  # noqa: T201


def _mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values)


def _rough(noise: Tile) -> Tile:
    """Heights such as terrain has: noise whose amplitude falls with the square of the frequency."""
    frequency = np.hypot(np.fft.fftfreq(len(noise))[:, None], np.fft.rfftfreq(len(noise)))
    frequency[0, 0] = 1
    heights = np.fft.irfft2(np.fft.rfft2(noise) / frequency**2)
    return np.asarray(heights / heights.std())


def _encoded(chain: Sequence[Any], tile: Tile) -> Any:
    data: Any = tile if chain else tile.tobytes()
    for codec in chain:
        data = codec.encode(data)
    return data


def _decoded(chain: Sequence[Any], data: Any) -> Any:
    if not chain:
        return np.frombuffer(data, np.uint8).copy()
    for codec in reversed(chain):
        data = codec.decode(data)
    return data


def _sample(name: str) -> Any:
    """A file that matplotlib ships."""
    return matplotlib.cbook.get_sample_data(name, asfileobj=False)


if __name__ == "__main__":
    main()
