"""Who creates a tensor in a Zarr store need not look for what it has not written, until others write it too."""

from __future__ import annotations

import os
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from zarr.storage import LocalStore

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.behaviour.test_fork import in_child
from tests.support.counting import Constant, Counted
from tests.support.files_of_a_store import Files
from tests.support.watched import Watched

TILE = 8
VALUE = Constant((TILE, TILE))


class Asked(Watched):
    """Counts what is read, by kind."""

    @asynccontextmanager
    async def under_way(self, request: str, key: str) -> AsyncIterator[None]:
        if request == "get":
            self.requests["chunk" if "/c/" in key else key.rpartition("/")[2]] += 1
        yield


def opened(folder: Path | Asked, f: Counted, size: int = TILE) -> InfiniteTensor:
    """Windows of one tile, or of four."""
    store = ZarrTileStore(folder, tile_size=TILE if size == TILE else 2 * TILE)
    return InfiniteTensor((None, None), f, TensorWindow((TILE, TILE)), tile_store=store, tensor_id="t")


@pytest.mark.parametrize("size", [TILE, 2 * TILE], ids=["a window a tile", "four windows a tile"])
def test_its_creator_looks_for_no_tile(tmp_path: Path, size: int) -> None:
    asked = Asked(LocalStore(tmp_path))
    t = opened(asked, Counted(VALUE), size)
    asked.requests.clear()
    t[0:128, 0:128]
    t.tile_store.flush()
    assert asked.requests["chunk"] == asked.requests["0"] == 0
    assert asked.requests["shared"] in range(1, 4)


def test_its_creator_finds_what_it_has_written_itself(tmp_path: Path) -> None:
    f = Counted(VALUE)
    t = opened(tmp_path, f)
    first = t[0:32, 0:32]
    t.tile_store.clear_cache("t")
    assert torch.equal(t[0:32, 0:40][:, :32], first)
    assert len(f.calls) == len(set(f.calls)) == 20


def test_its_creator_finds_its_own_incomplete_tiles(tmp_path: Path) -> None:
    f = Counted(VALUE)
    t = opened(tmp_path, f, 2 * TILE)
    t[0:TILE, 0:TILE]
    t.tile_store.clear_cache("t")
    t[0 : 2 * TILE, 0 : 4 * TILE]
    assert len(f.calls) == len(set(f.calls)) == 8


@pytest.mark.parametrize("size", [TILE, 2 * TILE], ids=["a window a tile", "four windows a tile"])
def test_what_another_one_has_written_is_found(tmp_path: Path, size: int) -> None:
    f, g = Counted(VALUE), Counted(VALUE)
    creator = opened(tmp_path, f, size)
    creator[0:16, 0:16]
    other = opened(tmp_path, g, size)
    expected = other[16:32, 0:24]
    other.tile_store.flush()
    assert torch.equal(creator[16:32, 0:24], expected)
    assert len(f.calls) == 4
    creator.tile_store.flush()
    other[0:16, 0:16]
    assert len(g.calls) == 6


def test_a_log_that_another_one_has_deleted_begins_anew(tmp_path: Path) -> None:
    creator = opened(tmp_path, Counted(VALUE), 2 * TILE)
    creator[0:8, 0:8]
    creator.tile_store.flush()
    other = opened(tmp_path, Counted(VALUE), 2 * TILE)
    other[0:16, 0:16]
    other.tile_store.flush()
    other.invalidate((slice(0, 8), slice(0, 8)))
    creator.tile_store.clear_cache("t")
    creator[0:8, 0:8]
    creator.tile_store.close()
    f = Counted(VALUE)
    opened(tmp_path, f, 2 * TILE)[0:8, 0:8]
    assert f.calls == []


def test_one_that_only_reads_does_not_make_its_creator_look(tmp_path: Path) -> None:
    asked = Asked(LocalStore(tmp_path))
    creator = opened(asked, Counted(VALUE))
    creator[0:16, 0:16]
    creator.tile_store.flush()
    other = opened(tmp_path, Counted(VALUE))
    other[0:16, 0:16]
    other.tile_store.flush()
    asked.requests.clear()
    creator[16:64, 0:64]
    assert asked.requests["chunk"] == 0


def test_a_copy_is_another_one(tmp_path: Path) -> None:
    f = Counted(VALUE)
    creator = opened(tmp_path, f)
    creator[0:8, 0:8]
    creator.tile_store.flush()
    copy = pickle.loads(pickle.dumps(creator))  # noqa: S301
    copy[0:8, 0:24]
    copy.tile_store.flush()
    creator[0:8, 0:24]
    assert (len(f.calls), len(copy.f.calls)) == (1, 1 + 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_is_another_one(tmp_path: Path) -> None:
    f = Counted(VALUE)
    creator = opened(tmp_path, f)
    creator[0:8, 0:8]
    creator.tile_store.flush()

    def child() -> None:
        creator[0:8, 0:24]
        creator.tile_store.flush()
        assert len(f.calls) == 1 + 2

    in_child(child)
    creator[0:8, 0:24]
    assert len(f.calls) == 1

    def later() -> None:
        assert float(creator[48, 0]) == 600

    creator[48:56, 0:8]
    creator.tile_store.flush()
    in_child(later)
    assert len(f.calls) == 2


def test_another_opening_is_another_writer(tmp_path: Path) -> None:
    f = Counted(VALUE)
    t = opened(tmp_path, f)
    t[0:8, 0:8]
    t.tile_store.close()
    with t.tile_store:
        t[0:8, 0:16]
    assert len(f.calls) == 2
    assert len(Files(tmp_path).tensors["t"].chunks) == 2


def test_the_announcement_is_part_of_no_tile_and_goes_with_the_tensor(tmp_path: Path) -> None:
    creator = opened(tmp_path, Counted(VALUE))
    creator[0:8, 0:8]
    creator.tile_store.flush()
    other = opened(tmp_path, Counted(VALUE))
    other[0:8, 8:16]
    store = other.tile_store
    info = store.tensor_info("t")
    assert (info.tiles_complete, info.tiles_partial) == (2, 0)
    assert store.verify("t") == []
    assert store.gc().objects == 0
    assert [path.name for path in tmp_path.rglob("partial-*/*")] == ["shared"]
    store.clear_tensor("t")
    assert list(tmp_path.rglob("shared")) == []
