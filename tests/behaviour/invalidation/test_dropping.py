"""What is dropped: the tiles with wrong windows, those with what was computed from them, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, ZarrTileStore
from tests.behaviour.invalidation.chain import END, KINDS, Data, chain_on, fresh, ground_on, smooth_over
from tests.support.counting import Counted
from tests.support.reference import Index


def test_what_was_computed_from_wrong_windows_is_dropped_and_nothing_else(store: TileStore, data: Data) -> None:
    ground, _, top = chain_on(data, store)
    top[0:END]
    data.change(20, 22)
    told = ground.invalidate(slice(20, 22))
    data.calls.clear()
    assert torch.equal(top[0:END], fresh(data))
    assert [one.tensor_id for one in told.tensors] == ["ground", "mid", "top"]
    # Windows 6 and 7 of ground hold pixels 20 and 21, and reach from 18 to 25, so 3 to 5 of mid are wrong, and 2 to 6.
    assert (told.tensors[0].start, told.tensors[0].stop) == ((18,), (25,))
    assert (told.tensors[2].start, told.tensors[2].stop) == ((10,), (35,))
    # Pixels 18 to 29 of ground are two tiles; 12 to 29 of mid three; 6 to 35 of top five.
    assert told.tiles == 10
    assert sorted(data.calls) == [
        *(("ground", n) for n in range(5, 10)),
        *(("mid", n) for n in range(2, 6)),
        *(("top", n) for n in range(1, 8)),
    ]


def test_tiles_in_memory_that_are_windows_are_dropped_window_by_window() -> None:
    f = Counted(lambda ctx: torch.full((4,), float(ctx[0])))
    t = InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=MemoryTileStore(tile_size=4))
    t[0:40]
    f.calls.clear()
    assert t.invalidate(slice(7, 13)).tiles == 3
    t[0:40]
    assert f.calls == [(1,), (2,), (3,)]


def test_tiles_in_memory_are_dropped_whole_where_windows_overlap() -> None:
    f = Counted(lambda ctx: torch.full((4,), float(ctx[0])))
    t = InfiniteTensor((None,), f, TensorWindow((4,), stride=2), tile_store=MemoryTileStore(tile_size=8))
    t[0:24]
    f.calls.clear()
    # Pixel 9 lies in windows 3 and 4, which hold pixels 6 to 11, in two tiles with windows -1 to 7.
    assert t.invalidate(9).tiles == 2
    t[0:24]
    assert f.calls == [(n,) for n in range(-1, 8)]


def test_what_is_known_of_an_incomplete_tile_in_memory_outlasts_any_number_of_drops_elsewhere() -> None:
    f = Counted(lambda ctx: torch.full((4,), float(ctx[0])))
    store = MemoryTileStore(tile_size=16)
    t = InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=store, tensor_id="t")
    t[0:4], t[8:12]
    for _ in range(2):
        t.invalidate(slice(16, 32))
    f.calls.clear()
    assert (t[0:4].tolist(), t[8:12].tolist(), f.calls) == ([0] * 4, [2] * 4, [])


def test_dependants_can_be_left_alone(store: TileStore, data: Data) -> None:
    ground, _, top = chain_on(data, store)
    before = top[0:END]
    data.change(20, 22)
    told = ground.invalidate(slice(20, 22), dependants=False)
    assert [one.tensor_id for one in told.tensors] == ["ground"]
    assert torch.equal(top[0:END], before)
    assert ground[20] == data.numbers[120]


def test_a_tensor_in_the_middle_leaves_what_it_is_computed_from_and_an_empty_region_all(
    store: TileStore, data: Data
) -> None:
    _, mid, top = chain_on(data, store)
    top[0:END]
    mid.invalidate(20)
    data.calls.clear()
    assert torch.equal(top[0:END], fresh(data))
    assert {name for name, _ in data.calls} == {"mid", "top"}
    told = mid.invalidate(slice(7, 7))
    assert told.tiles == 0
    data.calls.clear()
    top[0:END]
    assert data.calls == []


def test_dependants_in_other_stores_are_found_while_they_are_alive(
    store: TileStore, data: Data, tmp_path: Path
) -> None:
    with MemoryTileStore() as memory, ZarrTileStore(tmp_path / "other", tile_size=4) as other:
        ground = ground_on(data, store)
        top = smooth_over(data, "top", smooth_over(data, "mid", ground, memory, named=False), other)
        top[0:END]
        data.change(20, 22)
        told = ground.invalidate(slice(20, 22))
        assert [one.store for one in told.tensors] == [str(store), str(memory), str(other)]
        assert torch.equal(top[0:END], fresh(data))


def test_a_dependant_that_was_cleared_or_recreated_is_not_touched(store: TileStore, data: Data) -> None:
    ground, mid, top = chain_on(data, store)
    old = smooth_over(data, "other", mid, store)
    old[0:9]
    top[0:9]
    store.clear_tensor("other")
    store.clear_tensor("top")
    new = ground_on(data, store, tensor_id="other", version="of another kind")
    new[0:9]
    ground.invalidate(4)
    assert store.tensor_ids() == ["ground", "mid", "other"]
    data.calls.clear()
    new[0:9]
    assert data.calls == []


def test_far_from_the_origin_it_is_as_near(store: TileStore) -> None:
    data: list[float] = [1.0]

    def column(_ctx: Index, region: torch.Tensor) -> torch.Tensor:
        return region[:, 0].clone()

    window, read = TensorWindow((4, 2)), TensorWindow((2, 1), stride=2, offset=(0, 1), dimension_map=(0, None))
    ground = InfiniteTensor(
        (None, 2), lambda _ctx: torch.full((4, 2), data[0]), window, tile_store=store, tensor_id="a"
    )
    top = InfiniteTensor((None,), column, TensorWindow((2,)), [ground], [read], tile_store=store, tensor_id="b")
    ends = (-(2**51), 0, 2**51 - 4)
    assert [top[at : at + 4].tolist() for at in ends] == [[1.0] * 4] * 3
    data[0] = 2.0
    ground.invalidate((slice(2**51 - 4, 2**51), 0))
    assert [top[at : at + 4].tolist() for at in ends] == [[1.0] * 4, [1.0] * 4, [2.0] * 4]
    ground.invalidate((slice(-(2**51), 1), 0))
    assert [top[at : at + 4].tolist() for at in ends] == [[2.0] * 4] * 3
    data[0] = 3.0
    ground.invalidate()
    assert [top[at : at + 4].tolist() for at in ends] == [[3.0] * 4] * 3


@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_windows_with_gaps_between_them_lead_to_what_reads_them(store: TileStore) -> None:
    f = Counted(lambda _ctx, _region: torch.ones(2))
    window, arg_window = TensorWindow((2,), stride=6), TensorWindow((2,))
    ground = InfiniteTensor((None,), lambda _ctx: torch.ones(2), window, tile_store=store, tensor_id="ground")
    top = InfiniteTensor((None,), f, TensorWindow((2,), stride=8), [ground], [arg_window], tile_store=store)
    top[0:96]
    f.calls.clear()
    ground.invalidate(slice(0, 19))
    top[0:96]
    # Windows 0 to 3 hold pixels 0, 1, 6, 7, 12, 13, 18 and 19; a window of `top` reads two pixels.
    wrong = {(0,), (3,), (6,), (9,)}
    assert wrong <= set(f.calls) < {(n,) for n in range(12)}


PERSISTENT = {name: open_ for name, open_ in KINDS.items() if name in ("zarr", "hdf5")}


@pytest.mark.parametrize("open_store", PERSISTENT.values(), ids=PERSISTENT)
def test_dependants_that_are_only_stored_are_found_by_their_definitions(
    open_store: Callable[[Path], TileStore], data: Data, tmp_path: Path
) -> None:
    with open_store(tmp_path) as store:
        chain_on(data, store)[2][0:END]
    data.change(20, 22)
    with open_store(tmp_path) as store:
        told = store.open("ground").invalidate(slice(20, 22))
        assert [one.tensor_id for one in told.tensors] == ["ground", "mid", "top"]
        assert told.tiles == 10
    with open_store(tmp_path) as store:
        data.calls.clear()
        assert torch.equal(chain_on(data, store)[2][0:END], fresh(data))
        assert ("top", 9) not in data.calls


def test_windows_that_another_store_object_has_stored_are_dropped(data: Data, tmp_path: Path) -> None:
    """Also those that were added to the log of a partial tile after this one looked at it."""
    opened = partial(ZarrTileStore, tmp_path / "store", tile_size=64)
    with opened() as mine, opened() as other:
        ground, theirs = ground_on(data, mine), ground_on(data, other)
        ground[0:3]
        mine.flush()
        for start in (6, 12, 18):
            theirs[start : start + 3]
            other.flush()
        data.change(0, 30)
        assert ground.invalidate(2).tiles == 1
    with opened() as store:
        again = ground_on(data, store)
        again[1:3]
        store.flush()
    with opened() as store:
        data.calls.clear()
        assert torch.equal(ground_on(data, store)[1:24], fresh(data, "ground", 1, 24))
        assert [window for _, window in data.calls] == list(range(1, 8))
