"""What a call asks of a store does not grow with what else the store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore, WrapperStore

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, ZarrTileStore, predict

LONG = "n" * 200


class Counting(WrapperStore[MemoryStore]):
    """Counts what is asked for."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.requests: Counter[str] = Counter()

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Buffer | None:
        self.requests["get"] += 1
        return await super().get(key, *args, **kwargs)

    async def set(self, key: str, value: Buffer) -> None:
        self.requests["set"] += 1
        await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self.requests["create"] += 1
        await super().set_if_not_exists(key, value)

    async def exists(self, key: str) -> bool:
        self.requests["exists"] += 1
        return await super().exists(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        self.requests["list"] += 1
        async for name in super().list_dir(prefix):
            yield name


def ones(store: ZarrTileStore, tensor_id: str) -> InfiniteTensor:
    return InfiniteTensor(
        (None,), lambda _: torch.ones(4), TensorWindow((4,)), tile_store=store, tensor_id=tensor_id, version=1
    )


def asked(call: Callable[[ZarrTileStore], object], others: int) -> Counter[str]:
    """What a call asks of a store that holds some tensors, opened anew."""
    counting = Counting(MemoryStore())
    with ZarrTileStore(counting, tile_size=8) as store:
        for number in range(others):
            ones(store, f"map {number}")
            ones(store, f"apart/{LONG}{number}")
    with ZarrTileStore(counting, tile_size=8) as store:
        counting.requests.clear()
        call(store)
        return Counter(counting.requests)


def predicted(store: ZarrTileStore) -> None:
    net, source = torch.nn.Conv2d(1, 1, 1), torch.zeros(1, 8, 8)
    for overwrite in (False, True):
        predict(
            net, source, store, window=8, dims=("c", "y", "x"), tensor_id="map", overwrite=overwrite, progress=False
        )


CALLS: dict[str, Callable[[ZarrTileStore], object]] = {
    "predict": predicted,
    "ids": lambda store: store.tensor_ids("map/"),
    "clear": lambda store: store.clear_tensor("map 1"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_other_tensors_are_not_read(call: Callable[[ZarrTileStore], object]) -> None:
    assert asked(call, 2) == asked(call, 20)


def test_gc_reads_no_definition_where_nothing_may_be_garbage() -> None:
    assert asked(lambda store: store.gc(), 20)["get"] == 1


def test_ids_are_found_by_what_they_begin_with() -> None:
    ids = ["a", "a.", "a.b", "a/", "a/b", f"a/{LONG}", f"{LONG}1", f"{LONG}/2", "b", "ü/b"]
    with ZarrTileStore(MemoryStore(), tile_size=8) as store:
        for tensor_id in ids:
            ones(store, tensor_id)
    with ZarrTileStore(store.target, mode="r") as store:
        for prefix in ["", *ids, LONG, "a/n", "ü", "c"]:
            assert store.tensor_ids(prefix) == sorted(each for each in ids if each.startswith(prefix)), prefix
        with pytest.raises(ValidationError, match="prefix must be a non-empty str, got 3"):
            store.tensor_ids(3)  # type: ignore[arg-type]
