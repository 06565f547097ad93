"""What keeps windows from being dropped, what is left then, and what is on its way to storage meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infinite_tensor import MemoryTileStore, StoreError, TensorGroup, ValidationError, ZarrTileStore

# Inside: a read that waits for nobody, as one within f of another thread.
from infinite_tensor.support.interrupts import running_f
from tests.behaviour.invalidation.chain import END, TILE, Data, chain_on, ground_on, smooth_over
from tests.support.dict_store import DictTileStore


def test_a_tile_on_its_way_to_storage_is_waited_for_and_dropped(data: Data) -> None:
    writing, go_on = threading.Event(), threading.Event()

    class Slow(DictTileStore):
        def _write_tiles(self, tensor_id: str, tiles: Any) -> None:
            writing.set()
            assert go_on.wait(30)
            super()._write_tiles(tensor_id, tiles)

    storage: dict[Any, Any] = {}
    with Slow(storage, tile_size=TILE) as store:
        ground = ground_on(data, store)
        ground[0:END]
        assert writing.wait(30)
        dropping = threading.Thread(target=ground.invalidate)
        dropping.start()
        go_on.set()
        dropping.join(30)
        assert [key for key in storage if key[1] == "tile"] == []


def test_a_tile_that_is_being_written_when_it_is_dropped_does_not_come_back(data: Data) -> None:
    class Late(DictTileStore):
        """Where a tile is completed after the flush, and its write takes longer than the dropping would."""

        flushed: Callable[[], object] | None = None

        def __init__(self, storage: dict[Any, Any], **options: Any) -> None:
            super().__init__(storage, **options)
            self._told = self._contents.raise_failure
            self._contents.raise_failure = self._after_the_flush  # type: ignore[method-assign]

        def _after_the_flush(self) -> None:
            self._told()
            then, self.flushed = self.flushed, None
            if then is not None:
                then()

        def _write_tiles(self, tensor_id: str, tiles: Any) -> None:
            writing.set()
            assert go_on.wait(30)
            super()._write_tiles(tensor_id, tiles)

    def complete_some() -> None:
        go_on.clear()
        writing.clear()
        # In place of a read of another thread, which was in progress before the dropping began.
        with running_f():
            ground[END : 2 * END]
        assert writing.wait(30)
        release.start()

    writing, go_on = threading.Event(), threading.Event()
    release = threading.Timer(0.3, go_on.set)
    go_on.set()
    storage: dict[Any, Any] = {}
    with Late(storage, tile_size=TILE) as store:
        ground = ground_on(data, store)
        ground[0:END]
        store.flush()
        store.flushed = complete_some
        ground.invalidate()
        release.join(30)
    assert [key for key in storage if key[1] == "tile"] == []


def test_what_cannot_be_stored_first_keeps_everything_as_it_is(data: Data) -> None:
    class Full(DictTileStore):
        full = False

        def _write_tiles(self, tensor_id: str, tiles: Any) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            super()._write_tiles(tensor_id, tiles)

    with Full({}, tile_size=TILE) as store:
        ground, _, top = chain_on(data, store)
        top[0:END]
        store.flush()
        before = dict(store.storage)
        store.full = True
        ground[END : 2 * END]
        with pytest.raises(StoreError, match="space"):
            ground.invalidate()
        store.full = False
        assert before.items() <= store.storage.items()
        ground.invalidate()
        assert [key for key in store.storage if key[1] == "tile"] == []


@pytest.mark.parametrize("of", ["ground", "mid"])
def test_a_read_only_store_is_refused_and_nothing_is_dropped(data: Data, tmp_path: Path, of: str) -> None:
    for name in ("ground", "mid"):
        with ZarrTileStore(tmp_path / name, mode="w", tile_size=TILE):
            pass
    opened = {name: ZarrTileStore(tmp_path / name, mode="r" if name == of else "a") for name in ("ground", "mid")}
    with opened["ground"], opened["mid"], MemoryTileStore() as memory:
        ground = ground_on(data, opened["ground"])
        top = smooth_over(data, "top", smooth_over(data, "mid", ground, opened["mid"]), memory)
        top[0:END]
        data.calls.clear()
        with pytest.raises(ValidationError, match=f"read-only: it cannot drop stored pixels of tensor '{of}'"):
            ground.invalidate()
        top[0:END]
        assert data.calls == []


def test_a_closed_store_of_a_dependant_is_refused(data: Data, tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path / "store")
    ground = ground_on(data, MemoryTileStore())
    top = smooth_over(data, "top", ground, store)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        ground.invalidate()
    assert top.tile_store is store


@pytest.mark.parametrize("region", [None, 0])
def test_a_closed_store_is_refused_in_memory_too(data: Data, region: int | None) -> None:
    store = MemoryTileStore()
    ground = ground_on(data, store)
    store.close()
    for each in (ground, TensorGroup({"ground": ground})):
        with pytest.raises(StoreError, match="closed"):
            each.invalidate(region)


def test_a_closed_memory_store_of_a_dependant_has_nothing_to_drop(data: Data) -> None:
    store = MemoryTileStore()
    ground = ground_on(data, MemoryTileStore())
    top = smooth_over(data, "top", ground, store)
    top[0:END]
    store.close()
    ground.invalidate()
    with store:
        data.calls.clear()
        top[0:END]
        assert len(data.calls) > 0


def test_a_backend_of_the_eight_methods_says_what_it_lacks(data: Data) -> None:
    class Plain(DictTileStore):
        _delete_tiles: Any = None

    with Plain({}) as store:
        ground = ground_on(data, store)
        with pytest.raises(NotImplementedError, match="_delete_tiles"):
            ground.invalidate(0)
