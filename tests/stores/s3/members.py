"""What processes do with a chain of tensors on S3."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from infinite_tensor import InfiniteTensor, ZarrTileStore
from tests.support.reference import Box
from tests.support.shared_chain import STAGES, TILE, Window, build, expected, random_box, region, same_bits


def open_on_s3(url: str, options: dict[str, Any], **more: Any) -> ZarrTileStore:
    """A store for the chain."""
    return ZarrTileStore(url, storage_options=options, **({"tile_size": TILE} | more))


def boxes(seed: int, count: int) -> list[tuple[int, Box]]:
    """Random parts of random stages."""
    rng = random.Random(seed)  # noqa: S311
    stages = [rng.randrange(len(STAGES)) for _ in range(count)]
    return [(stage, random_box(rng, stage)) for stage in stages]


def read_right(tensors: list[InfiniteTensor], parts: list[tuple[int, Box]]) -> None:
    """Read each part, and compare it with the reference."""
    for stage, box in parts:
        assert same_bits(tensors[stage][region(box)], expected(stage, box)), f"stage {stage} is wrong in {box}"


def fill(url: str, options: dict[str, Any], seed: int, count: int) -> Counter[Window]:
    """Read random parts of the chain, flush, and tell how often each window ran."""
    calls: Counter[Window] = Counter()
    with open_on_s3(url, options) as store:
        read_right(build(store, lambda window: calls.update([window])), boxes(seed, count))
    return calls
