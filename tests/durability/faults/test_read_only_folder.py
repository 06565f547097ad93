"""A folder that cannot be written to: refused for writing, readable, and left exactly as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, StoreError, TensorWindow
from tests.durability.faults.conftest import Open, pair
from tests.durability.faults.disks import read_only


@pytest.fixture(params=["mount", "permissions"])
def how(request: pytest.FixtureRequest) -> str:
    """What keeps one from writing."""
    return str(request.param)


@pytest.fixture
def protected(how: str, folder: Path, open_store: Open) -> Iterator[Path]:
    """A store that holds a chain, in a folder that cannot be written to."""
    with open_store() as store:
        pair(store).slope[0:40, 0:64]
    with read_only(how, folder):
        yield folder


def content(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


def test_mode_r_serves_what_is_stored_and_computes_the_rest_into_memory(protected: Path, open_store: Open) -> None:
    before = content(protected)
    expected = pair(MemoryTileStore()).slope[0:200, 0:64]
    with open_store(mode="r") as store:
        chain = pair(store)
        assert torch.equal(chain.slope[0:40, 0:64], expected[0:40])
        assert not chain.calls
        assert torch.equal(chain.slope[0:200, 0:64], expected)
        computed = chain.calls.copy()
        assert computed
        assert torch.equal(chain.slope[0:200, 0:64], expected)
        assert chain.calls == computed
        other = InfiniteTensor((4,), lambda _ctx: torch.ones(4), TensorWindow((4,)), tile_store=store, tensor_id="new")
        assert other[...].tolist() == [1] * 4
        store.flush()
        assert store.verify("slope") == []
    assert content(protected) == before


@pytest.mark.parametrize("mode", ["r+", "a", "w", "w-"])
def test_a_store_that_cannot_be_written_to_opens_in_no_other_mode(protected: Path, open_store: Open, mode: str) -> None:
    before = content(protected)
    with pytest.raises(StoreError, match=r"TileStore\(.*mode='.*"):
        open_store(mode=mode)
    assert content(protected) == before
    with open_store(mode="r") as store:
        assert store.tensor_ids() == ["ground", "slope"]


@pytest.mark.parametrize("mode", ["r", "r+", "a", "w", "w-"])
def test_where_nothing_can_be_created_there_is_no_store(how: str, folder: Path, open_store: Open, mode: str) -> None:
    with read_only(how, folder):
        with pytest.raises(StoreError, match=r"TileStore\("):
            open_store(mode=mode)
        assert list(folder.iterdir()) == []
