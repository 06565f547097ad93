"""Holds a store that holds the chain to what the processes that filled it were promised."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from infinite_tensor import StoreError, TileAccessError, TileStore
from tests.support.chain import CANVASES, NAMES, STAGES, Chain, Window, expected, open_chain_store, windows_of
from tests.support.files_of_a_store import Files
from tests.support.reference import Box, region, same_bits


class Inspection:
    """What is known of one store, and whether it is so.

    Attributes
    ----------
    path : Path
        The store.
    flushed : set of Window
        Windows that were computed before a flush that returned.
    """

    def __init__(self, path: Path, flushed: Iterable[Window] = ()) -> None:
        self.path = path
        self.flushed = set(flushed)

    def check(self) -> None:
        """All that is stored is right, and all that was flushed is stored. Changes nothing."""
        try:
            store = open_chain_store(self.path, mode="r")
        except StoreError:
            assert not self.flushed
            return
        with store:
            if self.path.is_dir():
                self._check_counts(store)
            self._check_stored(store)
            self._check_tensors(store)

    def fill(self) -> None:
        """The chain can be filled to its end; from then on nothing is computed."""
        with open_chain_store(self.path) as store:
            self.flushed |= self._check_tensors(store)
        self.check()

    def clean(self) -> None:
        """Nothing is damaged, and `gc` leaves nothing in the store that the chain does not need."""
        with open_chain_store(self.path) as store:
            for name in store.tensor_ids():
                assert store.verify(name) == []
            store.gc()
        assert Files(self.path).leavings == []
        self.check()

    def _check_counts(self, store: TileStore) -> None:
        """What is left over counts nowhere."""
        tensors = Files(self.path).tensors
        assert store.tensor_ids() == sorted(tensors)
        for name, files in tensors.items():
            info = store.tensor_info(name)
            assert (info.tiles_complete, info.tiles_partial) == (len(files.chunks), len(files.logs))
            assert info.bytes_stored == files.size

    def _check_stored(self, store: TileStore) -> None:
        """Opened without ``f``, each part of the store has the right pixels or is said to be missing."""
        ids = store.tensor_ids()
        assert {NAMES[stage] for stage, _ in self.flushed} <= set(ids) <= set(NAMES)
        for name in ids:
            stage = NAMES.index(name)
            tensor = store.open(name, blend=STAGES[stage].blend)
            for box in _boxes(stage):
                try:
                    pixels = tensor[region(box)]
                except TileAccessError:
                    assert not windows_of(stage, box) <= self.flushed, f"{name} has lost {box}, which was flushed"
                else:
                    assert same_bits(pixels, expected(stage, box)), f"{name} has wrong pixels in {box}"

    def _check_tensors(self, store: TileStore) -> set[Window]:
        """The whole chain has the right pixels, and nothing flushed is computed again; returns what is computed."""
        chain = Chain(store)
        chain.check(*reversed(list(enumerate(CANVASES))))
        assert chain.calls.keys() & self.flushed == set()
        assert set(chain.calls.values()) <= {1}
        return set(chain.calls)


def _boxes(stage: int, extent: int = 9) -> Iterator[Box]:
    """A stage's canvas, which brings all tiles into the cache, then small boxes in one tile or across a border."""
    low, high = CANVASES[stage]
    yield low, high
    steps = [extent if size is None else size for size in STAGES[stage].shape]
    for start in itertools.product(*map(range, low, high, steps)):
        yield start, tuple(min(a + n, b) for a, n, b in zip(start, steps, high, strict=True))
