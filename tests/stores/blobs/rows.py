"""Rows that tell which they are, and blobs of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infinite_tensor import TensorBlob

if TYPE_CHECKING:
    from tests.stores.blobs.conftest import Place

SHAPE = (2, 3)


def numbered(count: int, first: int = 0) -> torch.Tensor:
    """Rows that are all different."""
    return torch.arange(first * 6, (first + count) * 6, dtype=torch.float32).reshape(count, *SHAPE)


ROWS = numbered(10)
"""What `made` writes unless it is told otherwise."""


def made(place: Place, count: int = 10, block_size: int = 4) -> torch.Tensor:
    """A closed blob of some rows, and these."""
    rows = numbered(count)
    with place.open("w", dtype="float32", shape=SHAPE, block_size=block_size) as blob:
        blob.write(rows)
    return rows


def append(target: str) -> None:
    """Add three rows to a blob of ten."""
    with TensorBlob.open(target, "a") as blob:
        blob.write(numbered(3, 10))


def blocks_held(blob: TensorBlob) -> int:
    """How many blocks a blob has in memory, or mapped."""
    return len(blob._rows._loaded) + len(blob._rows._buffers)
