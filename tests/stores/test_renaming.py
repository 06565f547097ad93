"""Other ids for tensors that are stored, and what refuses them so that nothing loses what it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    DependantsRemainWarning,
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    Output,
    StoreError,
    TensorGroup,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
)
from tests.support.counting import Counted
from tests.support.reference import same_bits
from tests.support.sqlite_store import SQLiteTileStore

WINDOW = TensorWindow((6,), stride=4)


def opened(kind: str, folder: Path) -> TileStore:
    if kind == "zarr":
        return ZarrTileStore(folder / "s.zarr", tile_size=8)
    return HDF5TileStore(folder / "s.h5", tile_size=8) if kind == "hdf5" else MemoryTileStore()


@pytest.fixture(params=["zarr", "hdf5", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    return opened(request.param, tmp_path)


def made(store: TileStore, name: str, *args: InfiniteTensor, f: Any = None, **options: Any) -> InfiniteTensor:
    f = f or Counted(lambda ctx, *regions: sum(regions, torch.full((6,), float(ctx[0]))))
    return InfiniteTensor((None,), f, WINDOW, args, [WINDOW] * len(args), tile_store=store, tensor_id=name, **options)


def test_a_tensor_in_any_store_is_renamed_with_its_windows(store: TileStore) -> None:
    f = Counted(lambda ctx: torch.full((6,), float(ctx[0])))
    expected = made(store, "old", f=f)[-3:30]
    calls = len(f.calls)
    store.rename("old", "new")
    assert store.tensor_ids() == ["new"]
    assert same_bits(made(store, "new", f=f)[-3:30], expected)
    assert len(f.calls) == calls


def test_what_is_pending_is_renamed_too(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=64, flush_interval=1e9)
    f = Counted(lambda ctx: torch.full((6,), float(ctx[0])))
    made(store, "old", f=f)[0:6]
    store.rename("old", "new")
    calls = len(f.calls)
    made(ZarrTileStore(tmp_path), "new", f=f)[0:6]
    assert len(f.calls) == calls


def test_a_tensor_object_of_the_old_id_begins_anew(store: TileStore) -> None:
    t = made(store, "old")
    expected = t[0:8]
    store.rename("old", "new")
    assert same_bits(t[0:8], expected)
    assert store.tensor_ids() == ["new", "old"]


def test_a_tensor_that_a_group_names_is_not_renamed(store: TileStore) -> None:
    TensorGroup({"x": made(store, "old")}).save(store, "world")
    with pytest.raises(
        ValidationError, match="'old' cannot be renamed: group 'world' would no longer find it by its id"
    ):
        store.rename("old", "new")
    store.clear_group("world")
    store.rename("old", "new")
    assert store.tensor_ids() == ["new"]


def test_a_tensor_that_many_read_names_some_of_them(store: TileStore) -> None:
    ground = made(store, "ground")
    for number in range(8):
        made(store, f"top{number}", ground)
    with pytest.raises(
        ValidationError, match=r"tensor 'top4' and 3 more would no longer find it by its id\. Clear these"
    ):
        store.rename("ground", "floor")
    with pytest.warns(DependantsRemainWarning):
        store.clear_tensor("ground")


def test_one_of_several_outputs_of_an_f_is_not_renamed(store: TileStore) -> None:
    outputs = {name: Output((None,), torch.float32, WINDOW) for name in "ab"}
    InfiniteTensor.from_multi(lambda _: dict.fromkeys("ab", torch.ones(6)), outputs, tile_store=store, tensor_id="both")
    with pytest.raises(ValidationError, match="'both/a' is one of several outputs of one f"):
        store.rename("both/a", "alone")
    assert store.tensor_ids() == ["both/a", "both/b"]


def test_bad_ids_and_read_only_stores_are_told(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path) as store:
        made(store, "old")
        for old, new, told in (
            ("old", "", "new_id must be a non-empty str"),
            ("old", 5, "new_id must be"),
            ("", "x", "tensor_id"),
        ):
            with pytest.raises(ValidationError, match=told):
                store.rename(old, new)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=r"is read-only: it cannot rename tensor 'old'"):
        ZarrTileStore(tmp_path, mode="r").rename("old", "new")


def test_a_backend_that_cannot_rename_says_what_it_needs(tmp_path: Path) -> None:
    store = SQLiteTileStore(tmp_path / "s.sqlite")
    made(store, "old")
    with pytest.raises(NotImplementedError, match="SQLiteTileStore does not rename tensors: it needs a method"):
        store.rename("old", "new")
    assert store.tensor_ids() == ["old"]


def test_renaming_on_a_local_disk_copies_no_chunk(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=8)
    made(store, "old")[0:64]
    store.flush()
    before = {path.stat().st_ino for path in (tmp_path / store.tensor_info("old").location / "c").iterdir()}
    store.rename("old", "new")
    folder = tmp_path / store.tensor_info("new").location / "c"
    assert {path.stat().st_ino for path in folder.iterdir()} == before
    assert {path.stat().st_nlink for path in folder.iterdir()} == {1}


def test_a_disk_without_hard_links_copies_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ZarrTileStore(tmp_path, tile_size=8)
    expected = made(store, "old")[0:64]

    def refuse(*_args: object) -> None:
        raise PermissionError("no links here")

    with monkeypatch.context() as patched:
        # What a file system of a memory stick does.
        patched.setattr(Path, "hardlink_to", refuse)
        store.rename("old", "new")
    assert same_bits(store.open("new")[0:60], expected[:60])
    assert store.verify("new") == []


def test_another_writer_of_the_old_id_does_not_reach_the_renamed_tensor(tmp_path: Path) -> None:
    store, other = ZarrTileStore(tmp_path, tile_size=8), ZarrTileStore(tmp_path, tile_size=8)
    made(store, "old")[0:8]
    late = made(other, "old")
    late[40:48]
    store.rename("old", "new")
    with pytest.raises(StoreError, match="is gone: it has been cleared"):
        other.flush()
    other.close(discard=True)
    assert store.tensor_ids() == ["new"]
    assert store.gc().objects == 0
