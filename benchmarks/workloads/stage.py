"""What a workload is given: stores to work on, folders, and a clock."""

from __future__ import annotations

import gc
import math
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import infinite_tensor

T = TypeVar("T")


class Stage:
    """One run of a workload: it sets up, calls `timed` or `peak` once, and checks what came out.

    Parameters
    ----------
    variant : str
        The store to work on: ``memory``, ``zarr`` or ``hdf5``.
    size : int
        How many, for workloads that scale; 0 for the others.
    scratch : path
        An empty folder, deleted after the run.
    kept : path
        A folder that all runs of one worker share.

    Attributes
    ----------
    value : float
        What was measured: seconds, or bytes.
    """

    def __init__(self, variant: str, size: int, scratch: Path, kept: Path) -> None:
        self.variant = variant
        self.size = size
        self.scratch = scratch
        self.kept = kept
        self.value = math.inf

    def store(self, path: Path | None = None, *, tile_size: int = 512, **limits: Any) -> Any:
        """A store of this variant, at `path` or anywhere; the peer's stores take the same arguments."""
        if self.variant == "memory":
            return infinite_tensor.MemoryTileStore()
        kind = infinite_tensor.ZarrTileStore if self.variant == "zarr" else infinite_tensor.HDF5TileStore
        return kind(path or self.scratch / "store", tile_size=tile_size, **limits)

    def finish(self, store: Any) -> None:
        """Have a store keep all that it was given: the peer's store in memory has nothing to close."""
        if self.variant != "memory":
            store.close()

    def timed(self, function: Callable[[], T], *, per: int = 1, rounds: int = 1) -> T:
        """Measure the seconds that `function` takes, divided by `per`; of several rounds the fastest counts."""
        for _ in range(rounds):
            gc.collect()
            begun = time.perf_counter()
            result = function()
            self.value = min(self.value, (time.perf_counter() - begun) / per)
        return result

    def peak(self, function: Callable[[], T]) -> T:
        """Measure by how many bytes `function` lets the most memory grow that the process ever held."""
        gc.collect()
        held = _most_memory()
        result = function()
        self.value = _most_memory() - held
        return result


def _most_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
