"""Reads with steps: what they compute, and what they hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infinite_tensor import MemoryTileStore, TensorWindow, TileStore, sl
from tests.support.bounds import bounded
from tests.support.building import built, each_store
from tests.support.counting import Counted

store = each_store(tile_size=5, default=("memory", "hdf5"))


def ramp(ctx: tuple[int, int], *args: torch.Tensor) -> torch.Tensor:
    rows, columns = torch.arange(8)[:, None] + 8 * ctx[0], torch.arange(8) + 8 * ctx[1]
    return sum([arg[1:-1, 1:-1] for arg in args], (1000 * rows + columns).float())


def test_a_step_computes_only_windows_that_hold_a_pixel_of_it() -> None:
    f = Counted(lambda _: torch.ones(16, 16))
    h = built(f, (16, 16))
    assert h[-2048:2048:64, -2048:2048:64].shape == (64, 64)
    assert set(f.calls) == {(y, x) for y in range(-128, 128, 4) for x in range(-128, 128, 4)}
    assert len(f.calls) == 4096


def test_no_window_is_computed_twice_by_a_step_and_the_rest(store: TileStore) -> None:
    f = Counted(ramp)
    t = built(f, (8, 8), store=store)
    thin = t[-64:64:32, 63:-64:-20]
    assert len(f.calls) == 4 * 7
    assert torch.equal(t[-64:64:32, 63:-64:-20], thin)
    assert len(f.calls) == 4 * 7
    t[-64:64, -64:64]
    assert len(f.calls) == 16 * 16


def test_a_chain_reads_upstream_only_what_these_windows_need(store: TileStore) -> None:
    below, above = Counted(ramp), Counted(ramp)
    source = built(below, (8, 8), store=store, name="source")
    halo = TensorWindow((10, 10), stride=8, offset=-1)
    t = built(above, (8, 8), (source, halo), store=store, name="above")
    t[0:4000:1000, -5]
    assert sorted(above.calls) == [(y, -1) for y in (0, 125, 250, 375)]
    assert sorted(below.calls) == [(y + dy, x) for y in (0, 125, 250, 375) for dy in (-1, 0, 1) for x in (-2, -1, 0)]


@pytest.mark.parametrize("blend", [None, "max", "gaussian"])
@pytest.mark.parametrize("stride", [3, 8, 11])
@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_a_step_picks_the_bits_of_the_box(blend: Any, stride: int, store: TileStore) -> None:
    window = TensorWindow((8, 8), stride=stride, offset=(1, -2))
    t, kept = (built(ramp, window, shape=(None, 70), store=each, blend=blend, edge="clip") for each in (store, None))
    box = kept[-50:60]
    for rows, columns in [(9, 1), (2, 9), (8, 8), (-9, -12), (-1, -2), (40, 100)]:
        low, high = (-50, 60) if rows > 0 else (59, -51)
        expected = torch.from_numpy(box.numpy()[::rows, ::columns].copy())
        region = sl[low:high:rows, ::columns]
        assert torch.equal(t[region], expected)
        assert torch.equal(torch.cat([each for ready in t.iter_regions([region]) for each in ready]), expected)
        stored = t.stored_only(-1)[-50:60].numpy()[::rows, ::columns]
        assert torch.equal(t.stored_only(-1)[region], torch.from_numpy(stored.copy()))


def test_an_overview_holds_no_more_than_its_pixels_and_some_windows() -> None:
    ones = torch.ones(2**20, dtype=torch.uint8)
    store = MemoryTileStore(cache_size_bytes=2**20)
    t = built(lambda _: ones, (2**20,), store=store, dtype=torch.uint8)
    t[0:8]
    with bounded(2**27):
        for step in (2**10, 2**21):
            assert t[0 : 2**29 : step].shape == (2**29 // step,)
