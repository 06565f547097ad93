"""Clearing a tensor, or giving it another definition, when others are computed from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infinite_tensor import MemoryTileStore, TileStore, ValidationError, ZarrTileStore
from infinite_tensor.errors import DependantsRemainWarning
from tests.behaviour.invalidation.chain import END, Data, chain_on, ground_on, smooth_over


def test_clearing_warns_of_the_tensors_that_remain(store: TileStore, data: Data) -> None:
    chain_on(data, store)
    with pytest.warns(DependantsRemainWarning, match="unchanged") as caught:
        store.clear_tensor("ground")
    assert caught[0].filename == __file__
    assert store.tensor_ids() == ["mid", "top"]
    store.clear_tensor("top")


def test_clearing_with_dependants_clears_all_that_is_downstream(store: TileStore, data: Data) -> None:
    ground, _, top = chain_on(data, store)
    ground_on(data, store, tensor_id="apart")
    smooth_over(data, "fork", ground, store)
    top[0:END]
    store.clear_tensor("ground", dependants=True)
    assert store.tensor_ids() == ["apart"]
    data.calls.clear()
    top[0:END]
    assert ("ground", 0) in data.calls


def test_clearing_finds_dependants_that_are_only_stored(data: Data, tmp_path: Path) -> None:
    for _ in range(2):
        with ZarrTileStore(tmp_path / "store") as store:
            chain_on(data, store)
        with ZarrTileStore(tmp_path / "store") as store:
            with pytest.warns(DependantsRemainWarning, match="unchanged"):
                store.clear_tensor("mid")
            store.clear_tensor("mid", dependants=True)
            assert store.tensor_ids() == ["ground"]


def test_a_tensor_that_was_computed_from_another_one_of_that_id_is_no_dependant(data: Data) -> None:
    store = MemoryTileStore()
    chain_on(data, store)
    with pytest.warns(DependantsRemainWarning):
        store.clear_tensor("ground")
    ground_on(data, store, version=2)
    store.clear_tensor("ground")
    assert store.tensor_ids() == ["mid", "top"]


def test_far_away_clearing_warns_of_the_tensors_that_are_open_and_dependants_tells_all(data: Data) -> None:
    url = "memory://clearing/far"
    with ZarrTileStore(url) as store:
        chain_on(data, store)
    with ZarrTileStore(url) as store:
        assert store.dependants("ground") == ["top", "mid"]
        assert store.dependants("top") == store.dependants("nothing") == []
        store.clear_tensor("top")
        _mid = store.open("mid")
        with pytest.warns(DependantsRemainWarning, match="unchanged"):
            store.clear_tensor("ground")


def test_clearing_deletes_nothing_that_a_link_among_the_tiles_leads_to(data: Data, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "folder"
    outside.mkdir(parents=True)
    (outside / "file").touch()
    with ZarrTileStore(tmp_path / "store") as store:
        for place in ("c", "c/0"):
            ground_on(data, store)
            (tiles,) = (tmp_path / "store").glob("t-ground/tiles-*")
            (tiles / place).parent.mkdir(exist_ok=True)
            (tiles / place).symlink_to(outside.parent, target_is_directory=True)
            store.clear_tensor("ground")
            assert not tiles.exists()
    assert (outside / "file").exists()


def test_a_tensor_whose_arg_has_another_version_is_said_to_be_stale(store: TileStore, data: Data) -> None:
    ground = ground_on(data, store)
    mid = smooth_over(data, "mid", ground, store)
    smooth_over(data, "top", mid, store)
    with pytest.warns(DependantsRemainWarning):
        store.clear_tensor("ground")
    changed = ground_on(data, store, version=2)
    with pytest.raises(ValidationError, match=r"(?s)args\[0\].digest.*stale: .* args\[0\] \('ground'\)") as caught:
        smooth_over(data, "mid", changed, store)
    for told in ("further upstream, has changed", "store.clear_tensor('mid', dependants=True)", "invalidate(region)"):
        assert told in str(caught.value)
    with pytest.warns(DependantsRemainWarning):
        store.clear_tensor("mid")
    with pytest.raises(ValidationError, match=r"\('mid'\)"):
        smooth_over(data, "top", smooth_over(data, "mid", changed, store), store)


def test_another_definition_of_its_own_does_not_make_a_tensor_stale(store: TileStore, data: Data) -> None:
    ground_on(data, store)
    with pytest.raises(ValidationError, match="version") as caught:
        ground_on(data, store, version=2)
    assert "stale" not in str(caught.value)
