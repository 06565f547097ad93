"""The floor of computing on demand: tensorstore's `virtual_chunked` with a function in Python and a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorstore as ts
import torch

from . import functions, loops, reading
from .stage import Stage

CACHE = 100 * 2**20


def warm_random(stage: Stage) -> None:
    """64x64 pixels at random places that all lie in the cache."""
    corners = reading.places(reading.EXTENT, reading.READS)
    pixels = loops.dense(functions.patterned(64, 64), 2, 0, reading.EXTENT, 64, 32)
    view = _virtual(pixels.numpy())
    view.read().result()
    size = reading.READ
    found = stage.timed(
        lambda: [view[top : top + size, left : left + size].read().result() for top, left in corners],
        per=reading.READS,
        rounds=5,
    )
    reading.check_reads([torch.from_numpy(block) for block in found], corners, pixels)


def _virtual(pixels: np.ndarray[Any, Any]) -> ts.TensorStore:
    def compute(domain: ts.IndexDomain, block: np.ndarray[Any, Any], _: ts.VirtualChunkedReadParameters) -> None:
        block[...] = pixels[domain.index_exp]

    return ts.virtual_chunked(
        compute,
        dtype=ts.float32,
        shape=pixels.shape,
        chunk_layout=ts.ChunkLayout(read_chunk_shape=(64, 64)),
        context=ts.Context({"cache_pool": {"total_bytes_limit": CACHE}}),
    )
