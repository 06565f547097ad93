"""What holds of a place of any kind that is deleted, or given to another tensor, under an open store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from infinite_tensor import InfiniteTensor, StoreError
from infinite_tensor.tilestore.persistent import PersistentTileStore
from tests.support.building import halves

GONE = "tensor 't' is gone: it has been cleared, or the whole store has vanished"
REMADE = "tensor 't' has been cleared and recreated elsewhere"
VANISHED = "the store has vanished since it was opened; open it again"


class VanishingPlaceTests:
    """A subclass says how to open, delete and list a place of its kind."""

    def open(self, **options: Any) -> PersistentTileStore:
        raise NotImplementedError

    def delete(self) -> None:
        """Delete all that is stored, as somebody else would."""
        raise NotImplementedError

    def keys(self) -> list[str]:
        """What is stored now."""
        raise NotImplementedError

    def test_it_is_no_store_full_of_missing_tiles(self) -> None:
        store, t = self.filled()
        self.delete()
        for _ in range(2):
            with pytest.raises(StoreError, match=GONE):
                t[100:108]
        assert t[0:16:4].tolist() == [0, 1, 2, 3], "what is in memory is served all the same"
        assert self.keys() == []
        store.close()

    @pytest.mark.parametrize("complete", [True, False])
    def test_nothing_is_written_into_it(self, complete: bool) -> None:
        store, t = self.filled()
        t[96:100]
        self.delete()
        if complete:
            t[100:104]
        for _ in range(2):
            with pytest.raises(StoreError, match=GONE):
                store.flush()
        assert self.keys() == []
        store.clear_tensor("t")
        store.close()
        assert self.keys() == []

    def test_nothing_can_be_told_of_it(self) -> None:
        store, _ = self.filled()
        self.delete()
        questions: list[Callable[[], object]] = [
            store.tensor_ids,
            lambda: store.tensor_info("t"),
            lambda: store.verify("t"),
            store.gc,
            store.group_ids,
            lambda: store._contents.stored_group("g"),
            lambda: store._contents.store_group("g", {}),
        ]
        for question in questions:
            with pytest.raises(StoreError, match=VANISHED):
                question()
        with pytest.raises(StoreError, match=VANISHED):
            halves(store, "new")
        assert self.keys() == []

    def test_it_can_be_opened_again(self) -> None:
        _, t = self.filled()
        self.delete()
        with self.open(tile_size=8) as store:
            assert halves(store)[100:108].tolist() == [25] * 4 + [26] * 4
        with pytest.raises(StoreError, match=REMADE):
            t[200:208]

    def test_what_another_process_has_recreated_is_left_alone(self) -> None:
        store, t = self.filled()
        t[96:100]
        with self.open(tile_size=8) as other:
            other.clear_tensor("t")
            halves(other)
            before = self.keys()
            with pytest.raises(StoreError, match=REMADE):
                store.flush()
            assert self.keys() == before
            with pytest.raises(StoreError, match=r"close\(discard=True\), and open the store again"):
                t[100:108]
            store.close(discard=True)
            assert self.keys() == before

    @pytest.mark.parametrize("complete", [True, False])
    def test_what_another_store_has_cleared_is_not_taken_for_stored(self, complete: bool) -> None:
        store, t = self.filled()
        t[96:100]
        stored = store._contents.written("t")
        with self.open(tile_size=8) as other:
            other.clear_tensor("t")
            before = self.keys()
            if complete:
                t[100:104]
            for _ in range(2):
                with pytest.raises(StoreError, match=GONE):
                    store.flush()
            with pytest.raises(StoreError, match=GONE):
                t[200:208]
            assert store._contents.written("t") == stored
            assert self.keys() == before
        store.clear_tensor("t")
        assert t[96:104].tolist() == [24] * 4 + [25] * 4
        store.close()
        with self.open(mode="r") as again:
            assert again.open("t")[96:104].tolist() == [24] * 4 + [25] * 4

    def test_what_another_store_has_cleared_is_not_filled(self) -> None:
        store, t = self.filled()
        assert t.is_filled((slice(0, 16),))
        with self.open(tile_size=8) as other:
            other.clear_tensor("t")
            store.clear_cache("t")
            assert not t.is_filled((slice(0, 16),))
            assert not t.coverage((slice(0, 16),)).any()
            with pytest.raises(StoreError, match=GONE):
                t.fill((slice(0, 16),), progress=False)
        store.close(discard=True)

    def test_nothing_is_dropped_of_what_another_store_has_recreated(self) -> None:
        store, t = self.filled()
        with self.open(tile_size=8) as other:
            other.clear_tensor("t")
            assert halves(other)[0:4].tolist() == [0] * 4
            other.flush()
            before = self.keys()
            with pytest.raises(StoreError, match=REMADE):
                t.invalidate((slice(0, 8),))
            assert self.keys() == before
            assert other.tensor_info("t").tiles_partial == 1
        store.close(discard=True)

    def test_a_definition_that_was_read_before_another_store_recreated_the_tensor_binds_nothing(self) -> None:
        store, t = self.filled()
        stored = store._contents.stored("t")
        with self.open(tile_size=8) as other:
            other.clear_tensor("t")
            new = halves(other)
            assert new[0:8].tolist() == [0] * 4 + [1] * 4
            other.flush()
            bound = []
            with contextlib.suppress(OSError):
                bound.append(store._contents.storage.backend.tensor(stored))
            with pytest.raises(StoreError, match=REMADE):
                t[200:208]
            assert new[100:108].tolist() == [25] * 4 + [26] * 4
        with self.open(mode="r") as again:
            assert again.verify("t") == []
            assert again.open("t")[0:8].tolist() == [0] * 4 + [1] * 4
            assert again.open("t")[100:108].tolist() == [25] * 4 + [26] * 4
        store.close(discard=True)

    def filled(self) -> tuple[PersistentTileStore, InfiniteTensor]:
        store = self.open(tile_size=8)
        t = halves(store)
        t[0:16]
        store.flush()
        return store, t
