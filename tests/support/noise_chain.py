"""A chain with overlapping windows over one store, for the tests of storage that fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow
from infinite_tensor.tilestore.store import TileStore

WINDOW = TensorWindow((8, 8), stride=6)
HALO = TensorWindow((10, 10), stride=6, offset=-1)


class Chain:
    """``noise`` and, computed from it, ``top``; with a count of the windows that were computed."""

    def __init__(self, store: TileStore) -> None:
        self.calls: Counter[tuple[str, int, int]] = Counter()
        self._lock = threading.Lock()
        self.noise = InfiniteTensor((None, None), self._noise, WINDOW, tile_store=store, tensor_id="noise")
        self.top = InfiniteTensor(
            (None, None), self._top, WINDOW, [self.noise], [HALO], tile_store=store, tensor_id="top"
        )

    def _noise(self, ctx: tuple[int, int]) -> torch.Tensor:
        self._count("noise", ctx)
        generator = torch.Generator().manual_seed(ctx[0] * 1009 + ctx[1] + 2**20)
        return torch.rand(8, 8, generator=generator)

    def _top(self, ctx: tuple[int, int], region: torch.Tensor) -> torch.Tensor:
        self._count("top", ctx)
        return region[1:-1, 1:-1] * 0.5 + region[2:, 2:] + ctx[0]

    def _count(self, name: str, ctx: tuple[int, int]) -> None:
        with self._lock:
            self.calls[name, ctx[0], ctx[1]] += 1


def true_pixels(read: Callable[[Chain], torch.Tensor]) -> torch.Tensor:
    """What `read` gives of a chain that nothing happens to."""
    return read(Chain(MemoryTileStore()))


def wait_for_writers() -> None:
    """Until nothing is written in the background, and no thread that did so holds on to a store."""
    for thread in threading.enumerate():
        if thread.name == "infinite_tensor-writer":
            thread.join()
