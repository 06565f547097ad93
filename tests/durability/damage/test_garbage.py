"""What `gc` deletes, and what it leaves alone."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from infinite_tensor import HDF5TileStore, TileStore, ZarrTileStore
from infinite_tensor.tilestore import Garbage

# Inside: a file that is swept between two moments of one write.
from infinite_tensor_stores.homes import FileHome
from tests.support.building import overlapping

EMPTY = Garbage(0, 0)


def filled(store: TileStore) -> torch.Tensor:
    """Complete and partial tiles, in a store that is closed then."""
    with store:
        pixels: torch.Tensor = overlapping(store)[0:9, 0:9]
    return pixels


def files(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def written(path: Path, *names: str) -> dict[str, bytes]:
    """Write files of 10 bytes below `path`."""
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"0123456789")
    return dict.fromkeys(names, b"0123456789")


def test_temporary_files_of_killed_processes_count_for_nothing_and_are_deleted(tmp_path: Path) -> None:
    expected = filled(ZarrTileStore(tmp_path, tile_size=8))
    intact = files(tmp_path)
    with ZarrTileStore(tmp_path) as store:
        info = store.tensor_info("t")
    temporary = {f"{name.removesuffix('.json')}.{uuid.uuid4().hex}.partial" for name in intact}
    temporary |= {f"t-new/zarr.{uuid.uuid4().hex}.partial"}
    written(tmp_path, *temporary)
    with ZarrTileStore(tmp_path) as store:
        assert store.tensor_info("t") == info
        assert store.tensor_ids() == ["t"]
        assert store.verify("t") == []
        assert store.gc() == Garbage(len(temporary), 10 * len(temporary))
        assert store.gc() == EMPTY
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
    assert files(tmp_path) == intact


def test_what_no_definition_refers_to_is_deleted_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    filled(ZarrTileStore(tmp_path, tile_size=8))
    old, other = "0123456789abcdef", "fedcba9876543210"
    ours = files(tmp_path)
    ours |= written(
        tmp_path,
        "notes.txt",
        "theirs/zarr.json",
        "t-noted/notes.txt",
        f"t-noted/partial-{other}/0.0.0/0",
        "t-numbered/tiles-0123/zarr.json",
        f"t-numbered/tiles-{old}/zarr.json",
        "t-file",
    )
    garbage = written(
        tmp_path,
        f"t-t/tiles-{old}/zarr.json",
        f"t-t/tiles-{old}/c/1/2",
        f"t-t/partial-{old}/0.0.0/0",
        f"t-gone/partial-{other}/0.0.0/0",
        f"t-gone/tiles-{other}/zarr.json",
    )
    with ZarrTileStore(tmp_path) as store:
        assert store.gc() == Garbage(len(garbage), 10 * len(garbage))
        assert store.gc() == EMPTY
    assert files(tmp_path) == ours


def test_the_log_of_a_complete_tile_is_deleted_and_the_tensor_goes_on(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=8) as store:
        expected = overlapping(store)[0:9, 0:9]
        store.flush()
        (log,) = (tmp_path / "t-t").glob("partial-*")
        left_behind = written(log, "0.0.0/0", "0.0.0/2")
        assert store.gc() == Garbage(len(left_behind), 10 * len(left_behind))
        assert not (log / "0.0.0").exists()
        assert torch.equal(overlapping(store)[0:9, 0:9], expected)
        assert overlapping(store)[0:16, 0:16].shape == (16, 16)
    with ZarrTileStore(tmp_path, mode="r") as store:
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
        assert store.verify("t") == []


@pytest.mark.parametrize("kind", ["url", "zarr store", "wrapped directory"])
def test_every_kind_of_storage_is_swept(tmp_path: Path, kind: str) -> None:
    targets: dict[str, Any] = {
        "url": f"memory://{tmp_path}",
        "zarr store": MemoryStore(),
        "wrapped directory": WrapperStore(LocalStore(tmp_path)),
    }
    expected = filled(ZarrTileStore(targets[kind], tile_size=8))
    with ZarrTileStore(targets[kind]) as store:
        store._home.put({"t-t/tiles-0123456789abcdef/c/0/0": b"12345", "t-x/notes.txt": b"1"})
        assert store.gc() == Garbage(1, 5)
        assert store.gc() == EMPTY
        assert torch.equal(store.open("t")[0:9, 0:9], expected)


def test_a_tensor_that_comes_to_be_while_its_folder_is_counted_stays(tmp_path: Path) -> None:
    expected = filled(ZarrTileStore(tmp_path, tile_size=8))
    group = tmp_path / "t-t" / "zarr.json"
    definition = group.read_bytes()
    group.unlink()
    before = files(tmp_path)

    class Slow(LocalStore):
        async def getsize(self, key: str) -> int:
            group.write_bytes(definition)
            return await super().getsize(key)

    with ZarrTileStore(Slow(tmp_path)) as store:
        assert store.gc() == EMPTY
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
    assert files(tmp_path).keys() == {*before, "t-t/zarr.json"}


def test_a_store_is_filled_while_it_is_swept(tmp_path: Path) -> None:
    """Files that another process is writing, and folders that it deletes, do no harm to either."""
    done = threading.Event()
    failures: list[BaseException] = []

    def sweep() -> None:
        try:
            with ZarrTileStore(tmp_path, tile_size=8) as store:
                while not done.is_set():
                    store.gc()
        except BaseException as error:  # noqa: BLE001  (shown by the test)
            failures.append(error)

    with ZarrTileStore(tmp_path, tile_size=8) as store:
        overlapping(store)
    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        with ZarrTileStore(tmp_path, tile_size=8) as store:
            tensor = overlapping(store)
            for y in range(0, 96, 3):
                tensor[y : y + 3, 0:24]
                store.flush()
            expected = tensor[0:96, 0:24]
    finally:
        done.set()
        thread.join()
    assert failures == []
    with ZarrTileStore(tmp_path, mode="r") as store:
        assert store.verify("t") == []
        assert torch.equal(store.open("t")[0:96, 0:24], expected)


def test_a_write_whose_temporary_file_was_swept_is_written_again(tmp_path: Path) -> None:
    class Swept(FileHome):
        left = 2

        def _write(self, key: str, data: bytes, *, exclusive: bool = False) -> None:
            if self.left:
                self.left -= 1
                raise FileNotFoundError(key)
            super()._write(key, data, exclusive=exclusive)

    Swept(tmp_path).put({"a": b"1"})
    assert Swept(tmp_path).create({"b": b"2"}) == [True]
    assert files(tmp_path) == {"a": b"1", "b": b"2"}
    never = Swept(tmp_path)
    never.left = 10**6
    with pytest.raises(FileNotFoundError):
        never.put({"a": b"3"})


def test_a_group_without_a_definition_is_deleted_from_an_hdf5_file(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    expected = filled(HDF5TileStore(path, tile_size=8))
    with h5py.File(path, "r+") as file:
        ours = file["infinite_tensor"]
        ours.copy("t-t", "t-killed")
        del ours["t-killed/definition"]
        stored = len(ours["t-killed"])
        file["notes"] = [1, 2, 3]
    with HDF5TileStore(path) as store:
        collected = store.gc()
        assert collected.objects == stored
        assert collected.bytes > 0
        assert store.gc() == EMPTY
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
    with h5py.File(path, "r") as file:
        assert set(file) == {"infinite_tensor", "notes"}
        assert list(file["infinite_tensor"]) == ["t-t"]
