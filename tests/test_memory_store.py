"""Limits of the memory store, and reads that exceed them."""

from __future__ import annotations

import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorWindow, ValidationError

WINDOW_BYTES = 16


def counted(store: MemoryTileStore, calls: list[int], *args: InfiniteTensor) -> InfiniteTensor:
    def f(ctx: tuple[int, ...], *_regions: torch.Tensor) -> torch.Tensor:
        calls.append(ctx[0])
        return torch.full((4,), float(ctx[0]))

    halo = TensorWindow((6,), stride=4, offset=-1)
    return InfiniteTensor((None,), f, TensorWindow((4,)), args=args, args_windows=[halo] * len(args), tile_store=store)


@pytest.mark.parametrize("limits", [{"cache_size_windows": 3}, {"cache_size_bytes": 3 * WINDOW_BYTES}])
def test_the_least_recently_used_windows_go(limits: dict[str, int]) -> None:
    store, calls = MemoryTileStore(**limits), list[int]()
    t = counted(store, calls)
    t[0:12]
    t[0:4]
    t[12:16]
    calls.clear()
    t[0:4]
    t[8:16]
    assert calls == []
    t[4:8]
    assert calls == [1]


def test_a_read_larger_than_the_limits_computes_each_window_once_and_then_they_hold() -> None:
    store = MemoryTileStore(cache_size_windows=2)
    upstream, downstream = list[int](), list[int]()
    t = counted(store, downstream, counted(store, upstream))
    assert t[0:40:4].tolist() == list(range(10))
    assert sorted(upstream) == list(range(-1, 11))
    assert sorted(downstream) == list(range(10))
    assert len(store._windows) == 2


def test_a_limit_holds_as_soon_as_it_is_lowered() -> None:
    store = MemoryTileStore()
    counted(store, [])[0:40]
    store.cache_size_bytes = 2 * WINDOW_BYTES
    assert store._windows.total_bytes == 2 * WINDOW_BYTES


def test_the_cache_is_shared_by_all_tensors() -> None:
    store, calls = MemoryTileStore(cache_size_windows=2), list[int]()
    one, other = counted(store, calls), counted(store, [])
    one[0:4]
    other[0:8]
    one[0:4]
    assert calls == [0, 0]


def test_a_large_read_is_worked_through_in_blocks_with_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream, downstream = list[int](), list[int]()
    store = MemoryTileStore(cache_size_windows=1)
    t = counted(store, downstream, counted(store, upstream))
    monkeypatch.setattr("infinite_tensor.engine.assemble._BLOCK_BYTES", 3 * WINDOW_BYTES)
    assert t[-7:90].tolist() == [float(x // 4) for x in range(-7, 90)]
    assert sorted(upstream) == sorted(set(upstream))
    assert sorted(downstream) == sorted(set(downstream))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1", True])
def test_other_limits_are_refused(wrong: object) -> None:
    for name in ("cache_size_bytes", "cache_size_windows"):
        with pytest.raises(ValidationError, match=name):
            MemoryTileStore(**{name: wrong})  # type: ignore[arg-type]
