"""What a call asks of a store does not grow with what else the store holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from zarr.storage import MemoryStore

from infinite_tensor import ValidationError, ZarrTileStore, predict
from tests.support.tensors import line
from tests.support.watched_store import Watched

LONG = "n" * 200


def asked(call: Callable[[ZarrTileStore], object], others: int) -> Counter[str]:
    """What a call asks of a store that holds some tensors, opened anew."""
    counting = Watched(MemoryStore())
    with ZarrTileStore(counting, tile_size=8) as store:
        for number in range(others):
            line(store, tensor_id=f"map {number}")
            line(store, tensor_id=f"apart/{LONG}{number}")
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
            line(store, tensor_id=tensor_id)
    with ZarrTileStore(store.target, mode="r") as store:
        for prefix in ["", *ids, LONG, "a/n", "ü", "c"]:
            assert store.tensor_ids(prefix) == sorted(each for each in ids if each.startswith(prefix)), prefix
        with pytest.raises(ValidationError, match="prefix must be a non-empty str, got 3"):
            store.tensor_ids(3)  # type: ignore[arg-type]
