"""Several tensors in one plan: what they share upstream is computed once, and counted once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    Output,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    sl,
)
from infinite_tensor.engine import assemble
from tests.support.building import built
from tests.support.counting import Counted
from tests.support.together import fill_together, plan_together, read_together

WINDOW = TensorWindow((4, 4))
HALO = TensorWindow((6, 6), stride=4, offset=-1)


def weighted(weight: float, ctx: tuple[int, ...], *regions: torch.Tensor) -> torch.Tensor:
    own = torch.arange(16.0).reshape(4, 4) + 100 * ctx[0] + ctx[1]
    return weight * (regions[0][:4, :4] + regions[0][-4:, -4:] if regions else own)


class Fork:
    """Two tensors, the second at half the resolution, that are computed from one."""

    def __init__(self, store: TileStore, ends: TileStore | None = None) -> None:
        self.functions = [Counted(partial(weighted, weight)) for weight in (1.0, 2.0, 3.0)]
        ends = store if ends is None else ends
        source, left, right = self.functions
        self.source = built(source, WINDOW, store=store, name="source")
        self.left = built(left, WINDOW, (self.source, HALO), store=ends, name="left")
        wide = TensorWindow((8, 8), offset=(0, 1))
        self.right = built(right, WINDOW, (self.source, wide), store=ends, name="right")

    def parts(self, *named: tuple[str, Any]) -> list[tuple[InfiniteTensor, Any]]:
        """Tensors by their names, each with its region."""
        return [(getattr(self, name), region) for name, region in named]

    @property
    def calls(self) -> list[int]:
        return [len(f.calls) for f in self.functions]


def alone(*regions: tuple[str, Any]) -> list[torch.Tensor]:
    """What each region is when nothing else is read."""
    return [getattr(Fork(MemoryTileStore()), name)[region] for name, region in regions]


WHOLE = ("left", sl[0:32, 0:32]), ("right", sl[0:16, 0:16])


def test_what_several_tensors_read_is_computed_once_whatever_the_caches_keep() -> None:
    fork = Fork(MemoryTileStore(cache_size_bytes=1))
    found = read_together(*fork.parts(*WHOLE))
    assert set(fork.functions[0].counts.values()) == {1}
    assert fork.calls[1:] == [64, 16]
    check(found, *WHOLE)
    # Read one after the other they compute it twice.
    apart = Fork(MemoryTileStore(cache_size_bytes=1))
    for tensor, region in apart.parts(*WHOLE):
        tensor[region]
    assert set(apart.functions[0].counts.values()) == {1, 2}


def check(found: list[list[torch.Tensor]], *regions: tuple[str, Any]) -> None:
    assert all(torch.equal(result, truth) for (result,), truth in zip(found, alone(*regions), strict=True))


def test_what_is_upstream_of_several_tensors_is_planned_and_filled_once(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16, cache_size_bytes=1) as store:
        fork = Fork(store)
        parts = (fork.right, sl[0:20, 0:20]), (fork.left, sl[0:60, 0:60])
        plan = plan_together(*parts)
        report = fill_together(*parts, progress=False)
        planned = {tensor.tensor_id: tensor.windows for tensor in plan.tensors}
        assert planned == {tensor.tensor_id: tensor.windows for tensor in report.tensors}
        assert [planned[name] for name in ("source", "left", "right")] == fork.calls
        assert all(set(f.counts.values()) == {1} for f in fork.functions)
        assert [(region.tensor_id, region.stop) for region in plan.regions] == [("right", (32, 32)), ("left", (64, 64))]
        assert fork.left.is_filled(sl[0:60, 0:60])
        assert fork.right.is_filled(sl[0:20, 0:20])
        assert plan_together(*parts).windows == 0


def test_a_tensor_is_filled_after_those_that_it_reads(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16, cache_size_bytes=1) as store:
        fork = Fork(store)
        parts = (fork.left, sl[0:60, 0:60]), (fork.source, sl[0:80, 0:80])
        assert [region.tensor_id for region in plan_together(*parts).regions] == ["source", "left"]
        fill_together(*parts, progress=False)
        assert fork.functions[0].counts.keys() >= {(19, 19), (-1, -1)}
        assert set(fork.functions[0].counts.values()) == {1}


def test_tensors_in_memory_that_are_filled_stay_there_while_others_are() -> None:
    fork = Fork(MemoryTileStore(), MemoryTileStore())
    fill_together(*((t, sl[0:64, 0:64]) for t in (fork.left, fork.right)), progress=False)
    calls = fork.calls[1:]
    fork.left[0:64, 0:64], fork.right[0:64, 0:64]
    assert fork.calls[1:] == calls


def test_all_that_are_filled_must_be_in_stores_that_can_be_written(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        Fork(store).left[0:4, 0:4]
    with ZarrTileStore(tmp_path, mode="r", tile_size=16) as stored:
        fork = Fork(stored, MemoryTileStore())
        with pytest.raises(ValidationError, match="read-only"):
            fill_together(*((t, sl[0:8, 0:4]) for t in (fork.left, fork.source)), progress=False)
        assert fork.calls == [0, 0, 0]


@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_a_region_in_a_gap_releases_nothing_that_a_later_one_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "_BLOCK_BYTES", 1)
    store = MemoryTileStore(cache_size_bytes=1)
    source = Counted(lambda ctx: torch.arange(4.0) + ctx[0])
    pixel, odd = TensorWindow((1,)), TensorWindow((1,), stride=2, offset=1)
    outputs = {"all": Output((None,), torch.float32, pixel), "odd": Output((None,), torch.float32, odd)}
    middle = built(lambda _, x: 2 * x, pixel, built(source, 4, store=store), store=store)
    made = InfiniteTensor.from_multi(
        lambda _, x: {"all": x, "odd": -x}, outputs, args=[middle], args_windows=[pixel], tile_store=store
    )
    # Pixel 4 of odd lies in the gap before its window 2. It is read between pixels 0 and 2 of all.
    (pixels,), (gap,) = read_together((made["all"], sl[0:3:2]), (made["odd"], sl[4:5]))
    assert (pixels.tolist(), gap.tolist()) == ([0, 4], [0])
    assert source.counts == {(0,): 1}


@pytest.mark.parametrize("kept", ["memory", "disk"])
def test_a_window_stored_in_part_may_make_a_large_read_compute_its_args_twice(
    kept: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Steps of two rows.
    monkeypatch.setattr(assemble, "_BLOCK_BYTES", 32)
    source = Counted(lambda index: torch.full((1,), float(index[0])))
    line = built(source, 1, store=MemoryTileStore(cache_size_windows=1, tile_size=1))
    store = MemoryTileStore(tile_size=2) if kept == "memory" else ZarrTileStore(tmp_path, tile_size=(2, 2))
    window, rows = TensorWindow((4, 2), stride=2), TensorWindow((4,), stride=2, dimension_map=(0,))
    f = Counted(lambda _, x: x[:, None].expand(4, 2))
    t = InfiniteTensor((8, 4), f, window, args=[line], args_windows=[rows], blend="mean", tile_store=store)
    # With a mask, only rows 0 and 1 of window (0, 0) are stored.
    t.fill(sl[0:2, 0:2], where=torch.ones(2, 2, dtype=torch.bool))
    f.calls.clear()
    source.calls.clear()
    assert t[:].equal(torch.arange(8.0)[:, None].expand(8, 4))
    assert set(f.counts.values()) == {1}
    # The first step needs rows 0 to 3 for window (0, 1), and the second step for window (0, 0).
    assert [index for index, count in source.counts.items() if count > 1] == [(0,), (1,)]
