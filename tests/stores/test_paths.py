"""A path or a URL in place of a store: `tile_store="world.zarr"`."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import infinite_tensor_stores
from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    Output,
    StoreError,
    TensorGroup,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    open_store,
)

# Inside: a place is deleted once nothing is written to it any more.
from infinite_tensor.support.exit import flush_all
from tests.support.counting import Counted

WINDOW = TensorWindow((4, 4))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    close_all()


@pytest.fixture(params=["world.zarr", "world.h5", "memory://test-paths"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    close_all()
    files = fsspec.filesystem("memory")
    if files.exists("test-paths"):
        files.rm("test-paths", recursive=True)


def close_all() -> None:
    """Close what is open before its place is deleted, and wait for what dropped stores still write."""
    for store in list(infinite_tensor_stores.opening._shared.values()):
        store.close()
    flush_all()


def tensor(place: Any, f: Any = None, tensor_id: str = "t", **options: Any) -> InfiniteTensor:
    return InfiniteTensor((None, None), f or Counted(), WINDOW, tile_store=place, tensor_id=tensor_id, **options)


def test_a_place_becomes_the_store_that_open_store_opens(place: str) -> None:
    t = tensor(place)
    region = t[0:8, 0:8]
    assert isinstance(t.tile_store, HDF5TileStore if place.endswith(".h5") else ZarrTileStore)
    with open_store(place) as same:
        assert same.address == t.tile_store.address
        assert not same.read_only
    t.tile_store.close()
    with open_store(place, "r") as same:
        assert same.read_only
    again = Counted()
    assert torch.equal(tensor(place, again)[0:8, 0:8], region)
    assert again.calls == []


def test_tensors_and_groups_at_one_place_share_a_store(place: str) -> None:
    tensordict = pytest.importorskip("tensordict")
    one = tensor(place)
    two = tensor(place, tensor_id="u", args=[one], args_windows=[WINDOW], f=lambda _ctx, region: region + 1)
    assert torch.equal(two[0:4, 0:4], one[0:4, 0:4] + 1)
    outputs: Any = InfiniteTensor.from_multi(
        lambda _ctx: {"a": torch.ones(4, 4), "b": torch.zeros(4, 4)},
        {name: Output((None, None), "float32", WINDOW) for name in "ab"},
        tile_store=place,
        tensor_id="world",
    )
    group: Any = TensorGroup.from_tensordict(
        tensordict.TensorDict({"a": torch.arange(6.0)}, [6]), store=place, tensor_id="td"
    )
    assert group["a"][0:6].tolist() == [0, 1, 2, 3, 4, 5]
    # Also where one is built again.
    stores = {each.tile_store for each in (one, two, tensor(place), outputs["a"], outputs["b"], group["a"])}
    assert len(stores) == 1
    assert one.tile_store.tensor_ids() == ["t", "td/a", "u", "world/a", "world/b"]


def test_a_path_in_other_words_is_the_same_place(tmp_path: Path) -> None:
    store = tensor("world.zarr").tile_store
    for same in (Path("world.zarr"), tmp_path / "world.zarr", f"file://{tmp_path}/world.zarr", "./world.zarr"):
        assert tensor(same).tile_store is store
    (tmp_path / "elsewhere").mkdir()
    os.chdir("elsewhere")
    assert tensor("world.zarr").tile_store is not store
    assert (tmp_path / "elsewhere" / "world.zarr").is_dir()


def test_a_place_that_was_deleted_is_created_again(place: str) -> None:
    t = tensor(place)
    t[0:4, 0:4]
    t.tile_store.flush()
    if place.startswith("memory"):
        fsspec.filesystem("memory").rm("test-paths", recursive=True)
    elif place.endswith(".h5"):
        Path(place).unlink()
    else:
        shutil.rmtree(place)
    f = Counted()
    again = tensor(place, f)
    again[0:4, 0:4]
    again.tile_store.flush()
    assert f.calls == [(0, 0)]


def test_what_was_pending_in_a_store_that_all_have_dropped_is_stored(place: str) -> None:
    f = Counted()
    writers = []
    for rows in (slice(0, 4), slice(4, 8)):
        # A part of a tile: pending until a flush. The second one comes while the first may still be on its way.
        t = tensor(place, f)
        t[rows, 0:4]
        writers.append(t.tile_store._contents.tiles._writer)
        del t
        gc.collect()
    for writer in writers:
        writer.drain()
    assert tensor(place, f)[0:8, 0:4].shape == (8, 4)
    assert f.calls == [(0, 0), (1, 0)]


def test_threads_that_begin_at_one_place_share_a_store_and_compute_each_window_once(place: str) -> None:
    f = Counted()
    found: list[torch.Tensor] = []
    tensors: list[InfiniteTensor] = []
    barrier = threading.Barrier(4)

    def begin() -> None:
        barrier.wait()
        tensors.append(tensor(place, f))
        found.append(tensors[-1][0:8, 0:8])

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(region, found[0]) for region in found)
    assert len({id(t.tile_store) for t in tensors}) == 1
    assert sorted(f.calls) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_nothing_is_created_for_a_tensor_that_cannot_be(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{"blend": "sum"}, {"dtype": "float"}, {"args": [3]}, {"batch_size": 0}]
    for change in [*changes, {"tensor_id": ""}]:
        with pytest.raises(ValidationError):
            tensor("world.zarr", **{"tensor_id": "t", **change})
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_place_is_refused(tmp_path: Path) -> None:
    for given in (7, b"world.zarr", [tmp_path], ZarrTileStore):
        with pytest.raises(ValidationError, match="tile_store"):
            tensor(given)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-you.txt").write_text("Hello")
    with pytest.raises(StoreError):
        tensor(tmp_path / "letters")
    with pytest.raises(ValidationError, match="pathlib removes a slash"):
        tensor(Path("s3://bucket/world.zarr"))


def test_a_place_in_a_deleted_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for name in ("w.zarr", "w.h5"):
        with pytest.raises(ValidationError, match="whole path"):
            open_store(name)


@pytest.mark.parametrize("name", ["out.tif", "out.TIFF", "out.npy", "file://{}/out.png"])
def test_a_new_store_does_not_end_as_an_exported_file(name: str, tmp_path: Path) -> None:
    place = name.format(tmp_path)
    with pytest.raises(ValidationError, match="export"):
        InfiniteTensor((4,), lambda _ctx: torch.ones(4), TensorWindow((4,)), tile_store=place, tensor_id="t")
    assert list(tmp_path.iterdir()) == []
    open_store(place, "w").close()
    InfiniteTensor((4,), lambda _ctx: torch.ones(4), TensorWindow((4,)), tile_store=place, tensor_id="t")
