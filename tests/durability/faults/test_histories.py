"""Random histories over storage that fails: right bits or a StoreError, and all is well once it stops failing.

How many cases run is said in `tests/conftest.py`.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import event, given, note
from hypothesis import strategies as st
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore

from infinite_tensor import DamagedDataWarning, MemoryTileStore, StoreError, TileStore, ZarrTileStore
from tests.behaviour.test_properties import History, boxes_of
from tests.durability.faults.conftest import pair
from tests.support.faulty_store import READS, SILENT, Faults, FaultyStore
from tests.support.pipelines import Fill, Forget, Pipeline, Read, Selection, pipelines
from tests.support.reference import Index
from tests.support.stores import sample

pytestmark = pytest.mark.filterwarnings(
    "ignore::infinite_tensor.UncoveredPixelsWarning", "ignore:.*wraps around:UserWarning"
)

_PATIENCE = 4
"""How often something is tried before storage works for it, or before it is given up."""

# Where nothing raises, more of what is truncated and hidden comes to be blended.
_faults = st.builds(
    Faults, st.integers(0, 2**32), st.sampled_from([0.02, 0.1, 0.3]), st.sampled_from([READS, SILENT, SILENT])
)


class FaultyHistory(History):
    """A history in which whatever touches storage may raise a StoreError, and nothing else."""

    def __init__(self, pipeline: Pipeline, storages: Sequence[Store], faults: Faults) -> None:
        self.faults = faults
        self.left_open: list[TileStore] = []
        # "Bounded": what was stored may be hidden or truncated, so that no window is known not to be needed.
        super().__init__(
            pipeline, lambda number, **options: self._opened(storages[number], options), persistent=True, bounded=True
        )

    def _opened(self, storage: Store, options: dict[str, Any]) -> ZarrTileStore:
        opened: list[ZarrTileStore] = []
        self._insist("open", lambda: opened.append(ZarrTileStore(FaultyStore(storage, self.faults), **options)))
        return opened[0]

    def build(self, *, opens: bool) -> None:
        self._insist("build", lambda: super(FaultyHistory, self).build(opens=opens))

    def reopen(self, how: str) -> None:
        for store in self.stores:
            if not self._try_hard("close", store.close):
                self.left_open.append(store)
        self.stores = [self._open(number) for number in range(len(self.stores))]
        self.build(opens=how == "open")

    def forget(self, action: Forget) -> None:
        self._attempt(action.what, lambda: super(FaultyHistory, self).forget(action))

    def _check_reads(
        self, parts: Sequence[tuple[int, Selection]], read: Callable[[], list[torch.Tensor]], *, once: bool
    ) -> None:
        before = [Counter(function.calls) for function in self.functions]
        if not self._attempt("read", lambda: super(FaultyHistory, self)._check_reads(parts, read, once=once)):
            planned = self.reference.missing(boxes_of(parts), self.known, kept_out=self._kept_out)
            calls = [function.calls - earlier for function, earlier in zip(self.functions, before, strict=True)]
            self._check_calls(calls, planned, once=False)

    def fill(self, action: Fill) -> None:
        self._attempt("fill", lambda: super(FaultyHistory, self).fill(action))

    def fill_together(self, parts: Sequence[tuple[int, Selection]]) -> None:
        self._attempt("fill", lambda: super(FaultyHistory, self).fill_together(parts))

    def _check_calls(self, calls: list[Counter[Index]], expected: list[set[Index]], *, once: bool) -> None:
        # What is hidden while a read goes on may be computed twice by this read.
        super()._check_calls(calls, expected, once=once and not self.faults.injected)

    def settle(self) -> None:
        """From now on storage works: nothing raises, all is right, and what is flushed is not computed again."""
        for store in self.stores:
            # A write that is under way may still fail.
            self._attempt("flush", store.flush)
        self.faults.stop()
        for store in self.left_open:
            # What it still holds may be of a tensor that has been cleared since.
            with contextlib.suppress(StoreError):
                store.close()
            store.close(discard=True)
        for store in self.stores:
            store.flush()
        self._read_all()
        super().reopen("rebuild")
        before = [Counter(function.calls) for function in self.functions]
        self._read_all()
        assert [function.calls for function in self.functions] == before

    def _read_all(self) -> None:
        for action in self.pipeline.actions:
            if isinstance(action, Read):
                self.read(action)

    def _attempt(self, what: str, action: Callable[[], object]) -> bool:
        """Do it, and tell whether it was done. Once storage works, nothing may raise."""
        try:
            action()
        except StoreError as error:
            if self.faults.stopped:
                raise
            event(f"{what} raised")
            note(f"{what}: {error}")
            return False
        return True

    def _try_hard(self, what: str, action: Callable[[], object]) -> bool:
        return any(self._attempt(what, action) for _ in range(_PATIENCE))

    def _insist(self, what: str, action: Callable[[], object]) -> None:
        """Try again and again, at last with storage that works."""
        if not self._try_hard(what, action):
            with self.faults.paused():
                action()


def _play(pipeline: Pipeline, storages: Sequence[Store], faults: Faults) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infinite_tensor.engine.assemble._BLOCK_BYTES", pipeline.block_bytes)
        with warnings.catch_warnings(record=True) as damages:
            warnings.simplefilter("always", DamagedDataWarning)
            history = FaultyHistory(pipeline, storages, faults)
            for action in pipeline.actions:
                if isinstance(action, Read):
                    history.read(action)
                    history.forget(Forget(action.stage, "clear_cache"))
                    history.read(action)
                else:
                    history.play(action)
        assert not damages or faults.injected["truncate"]
        history.settle()
        for store in history.stores:
            store.close()


@given(pipelines(), _faults)
@pytest.mark.slow
def test_objects_in_memory(pipeline: Pipeline, faults: Faults) -> None:
    _play(pipeline, [MemoryStore() for _ in pipeline.stages], faults)


@pytest.mark.slow
@given(pipelines(), _faults)
def test_files(pipeline: Pipeline, faults: Faults) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _play(pipeline, [LocalStore(f"{folder}/{number}") for number, _ in enumerate(pipeline.stages)], faults)


# Many threads.


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
