"""Reads in progress while windows are dropped: they may return old pixels, and store none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, TileStore, ZarrTileStore

# Inside: a read of few pixels takes several steps.
from infinite_tensor.engine import assemble
from tests.behaviour.invalidation.chain import END, SMOOTH, TILE, Data, chain_on, fresh, smooth_over


def _meanwhile(data: Data, name: str, tensor: InfiniteTensor, then: Callable[[], object]) -> None:
    """Run `then` while another thread, which reads `tensor`, is in the ``f`` of the stage `name`."""
    arrived, go_on = threading.Event(), threading.Event()

    def hold(called: str, _window: int) -> None:
        if called == name and not arrived.is_set():
            arrived.set()
            assert go_on.wait(30)

    data.before = hold
    reader = threading.Thread(target=lambda: tensor[0:END])
    reader.start()
    try:
        assert arrived.wait(30)
        then()
    finally:
        go_on.set()
        reader.join(30)
    assert not reader.is_alive()


def _change(data: Data, ground: InfiniteTensor) -> None:
    data.change(0, END)
    ground.invalidate(slice(0, END))


@pytest.mark.parametrize("stage", ["ground", "mid", "top"])
def test_what_a_read_in_progress_computes_from_old_pixels_is_not_stored(
    store: TileStore, data: Data, stage: str
) -> None:
    ground, mid, top = chain_on(data, store)
    mid[0:10]
    _meanwhile(data, stage, top, lambda: _change(data, ground))
    assert torch.equal(top[0:END], fresh(data))
    assert torch.equal(mid[0:END], fresh(data, "mid"))


def test_nothing_comes_back_with_the_next_flush(data: Data, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "store", tile_size=TILE, cache_size_tiles=1, flush_interval=0.0) as store:
        ground, _, top = chain_on(data, store)
        _meanwhile(data, "top", top, lambda: _change(data, ground))
        store.flush()
    with ZarrTileStore(tmp_path / "store", tile_size=TILE) as store:
        assert torch.equal(chain_on(data, store)[2][0:END], fresh(data))


def test_a_read_that_waits_for_another_one_gets_new_pixels(store: TileStore, data: Data) -> None:
    ground, _, top = chain_on(data, store)
    results: list[torch.Tensor] = []
    second = threading.Thread(target=lambda: results.append(top[0:END]))

    def change() -> None:
        _change(data, ground)
        second.start()

    _meanwhile(data, "top", top, change)
    second.join(30)
    assert torch.equal(results[0], fresh(data))


def test_a_tensor_that_a_read_turns_to_later_stores_nothing_made_of_old_pixels(
    store: TileStore, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`left` has held pixels of `ground` since the first step of the read; `mid` needs them in the second."""
    monkeypatch.setattr(assemble, "_BLOCK_BYTES", 40)
    ground, mid, right = chain_on(data, store)
    left = smooth_over(data, "left", ground, store)
    stored: dict[str, Any] = {"dtype": torch.float64, "tile_store": store, "tensor_id": "both"}
    both = InfiniteTensor((None,), lambda _ctx, one, two: one + two, SMOOTH, [left, right], [SMOOTH] * 2, **stored)
    right[0:5]
    mid.invalidate(dependants=False)
    data.calls.clear()

    def change(name: str, window: int) -> None:
        if (name, window) == ("left", 0):
            _change(data, ground)

    data.before = change
    both[0:10]
    assert data.calls.index(("left", 0)) < data.calls.index(("mid", 1))
    assert torch.equal(mid[0:10], fresh(data, "mid", 0, 10))
    assert torch.equal(right[0:10], fresh(data, "top", 0, 10))


def test_threads_that_read_all_the_time_store_no_old_pixel(store: TileStore, data: Data) -> None:
    ground, mid, top = chain_on(data, store)
    stop = threading.Event()
    failures: list[BaseException] = []

    def read(tensor: InfiniteTensor, start: int) -> None:
        try:
            while not stop.is_set():
                tensor[start : start + 12]
                start = (start + 7) % 36
        except BaseException as error:  # noqa: BLE001  (told by the main thread)
            failures.append(error)

    readers = [threading.Thread(target=read, args=(tensor, 5 * n)) for n, tensor in enumerate((ground, mid, top, top))]
    for reader in readers:
        reader.start()
    for number in range(25):
        data.change(number, number + 3)
        ground.invalidate(slice(number, number + 3))
    stop.set()
    for reader in readers:
        reader.join(30)
    assert failures == []
    assert torch.equal(top[0:END], fresh(data))
