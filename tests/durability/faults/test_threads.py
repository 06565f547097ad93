"""Many threads read over storage that fails."""

from __future__ import annotations

import random
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from zarr.storage import MemoryStore

from infinite_tensor import DamagedDataWarning, MemoryTileStore, StoreError, ZarrTileStore
from tests.durability.faults.conftest import pair
from tests.support.faulty_store import Faults, FaultyStore
from tests.support.stores import sample

_THREADS = 8
_READS = 12


@pytest.mark.parametrize("seed", sample(range(3), 0))
def test_threads_get_right_bits_or_a_store_error_and_leave_nothing_wrong(seed: int) -> None:
    expected = pair(MemoryTileStore()).slope[-40:40, -40:40]
    faults, storage = Faults(seed, 0.05), MemoryStore()

    def store(number: int) -> ZarrTileStore:
        return ZarrTileStore(FaultyStore(storage, faults), tile_size=16, cache_size_tiles=number)

    with faults.paused():
        first = store(4)
        chain = pair(first)

    def reads(number: int) -> int:
        draws, raised = random.Random(number), 0  # noqa: S311  (no secret)
        for _ in range(_READS):
            y, x = draws.randrange(-40, 20), draws.randrange(-40, 20)
            try:
                pixels = chain.slope[y : y + 20, x : x + 20]
            except StoreError:
                raised += 1
            else:
                assert torch.equal(pixels, expected[y + 40 : y + 60, x + 40 : x + 60])
        return raised

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedDataWarning)
        with ThreadPoolExecutor(_THREADS) as pool:
            raised = sum(pool.map(reads, range(_THREADS), timeout=120))
    assert 0 < raised < _THREADS * _READS
    first._contents.tiles._writer.drain()
    faults.stop()
    first.flush()
    assert torch.equal(chain.slope[-40:40, -40:40], expected)
    first.close()
    again = pair(store(100))
    assert torch.equal(again.slope[-40:40, -40:40], expected)
    assert not again.calls
