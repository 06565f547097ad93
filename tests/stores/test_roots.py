"""What a Zarr store opens beside, refuses, and deletes."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import zarr
from zarr.storage import LocalStore

from infinite_tensor import StoreError, TensorGroup, ZarrTileStore
from infinite_tensor.errors import LinkNotFollowedWarning
from infinite_tensor.tilestore import Garbage
from tests.support.building import overlapping

MARK = {"format": 1}
MODES: list[Any] = ["a", "r+", "r", "w"]
INCARNATION = "0123456789abcdef"
PHOTOGRAPH = b"\xff\xd8 of the sea"


class Place:
    """Where a store may be opened, and what others see there."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._files, self._prefix = fsspec.url_to_fs(target, auto_mkdir=True)

    def open(self, mode: Any = "a", **options: Any) -> ZarrTileStore:
        return ZarrTileStore(self.target, mode=mode, tile_size=8, **options)

    def put(self, *keys: str, data: bytes = PHOTOGRAPH) -> None:
        """Write files as somebody else does."""
        for key in keys:
            self._files.pipe_file(f"{self._prefix}/{key}", data)

    def delete(self, key: str) -> None:
        """Delete a file as somebody else does."""
        self._files.rm_file(f"{self._prefix}/{key}")

    def files(self) -> dict[str, bytes]:
        """All that there is, by its key."""
        found = self._files.find(self._prefix)
        return {key.removeprefix(f"{self._prefix}/"): self._files.cat_file(key) for key in found}

    def root(self) -> dict[str, Any]:
        """The root document."""
        found: dict[str, Any] = json.loads(self.files()["zarr.json"])
        return found


class Folder(Place):
    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def files(self) -> dict[str, bytes]:
        """Links are not followed."""
        found = [file for file in self.path.rglob("*") if file.is_file()]
        return {file.relative_to(self.path).as_posix(): file.read_bytes() for file in found}


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Folder(tmp_path / "s.zarr") if request.param == "folder" else Place(f"memory://{tmp_path}/s.zarr")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "s.zarr")


def filled(store: ZarrTileStore) -> torch.Tensor:
    """Complete and partial tiles of a tensor, and a group, in a store that is closed then."""
    with store:
        tensor = overlapping(store)
        pixels: torch.Tensor = tensor[0:9, 0:9]
        TensorGroup({"all": tensor}).save(store, "group")
    return pixels


def test_a_store_that_is_only_read_leaves_nothing(place: Place) -> None:
    with place.open() as store:
        assert store.tensor_ids() == []
        with pytest.raises(StoreError, match="tensor 't'"):
            store.open("t")
    assert place.files() == {}


def test_what_others_put_there_before_the_first_write_is_left_alone(folder: Folder) -> None:
    with folder.open() as store:
        folder.put("thesis.txt")
        with pytest.raises(StoreError, match=r"other data: 'thesis\.txt'"):
            overlapping(store)
    assert folder.files() == {"thesis.txt": PHOTOGRAPH}


# No root document.

STRANGERS = {
    "thesis.txt": "thesis.txt",
    "photographs/2024/sea.jpg": "photographs",
    ".zgroup": ".zgroup",
    "c/0/0": "c",
    "t-shirts/blue.jpg": "t-shirts/blue.jpg",
    "g-force/1.csv": "g-force/1.csv",
    f"t-x/tiles-{INCARNATION[:-1]}/0": f"t-x/tiles-{INCARNATION[:-1]}",
    f"t-x/logs-{INCARNATION}/0": f"t-x/logs-{INCARNATION}",
}


@pytest.mark.parametrize("mode", ["a", "w"])
@pytest.mark.parametrize("key", STRANGERS)
def test_a_folder_of_somebody_else_is_refused_and_left_as_it_is(place: Place, key: str, mode: Any) -> None:
    place.put(key)
    with pytest.raises(StoreError, match="there is no store, but other data") as refused:
        place.open(mode)
    assert f"{STRANGERS[key]!r}; choose an empty folder" in str(refused.value)
    assert place.files() == {key: PHOTOGRAPH}


def test_a_file_with_a_name_of_ours_is_no_tensor(folder: Folder) -> None:
    folder.put("t-notes")
    with pytest.raises(StoreError, match="'t-notes'; choose an empty folder"):
        folder.open()
    assert folder.files() == {"t-notes": PHOTOGRAPH}


@pytest.mark.parametrize("name", ["t-2024", "g-2024"])
def test_a_zarr_group_of_somebody_else_with_a_name_of_ours_is_no_tensor(place: Place, name: str) -> None:
    theirs = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"year": 2024}}).encode()
    place.put(f"{name}/zarr.json", data=theirs)
    with pytest.raises(StoreError, match=f"'{name}/zarr.json'; choose an empty folder"):
        place.open()
    assert place.files() == {f"{name}/zarr.json": theirs}


@pytest.mark.parametrize("mode", ["a", "w", "w-"])
def test_what_systems_and_killed_writers_leave_is_in_nobodys_way(place: Place, mode: Any) -> None:
    left = (".DS_Store", "Thumbs.db", "lost+found/x", ".nfs00001", "film.partial", f"zarr.{uuid.uuid4().hex}.partial")
    within = (f"t-x/zarr.{uuid.uuid4().hex}.partial", f"t-x/tiles-{INCARNATION}/zarr.json", "t-x/.DS_Store")
    place.put(*left, *(within if mode != "w-" else ()))
    with place.open(mode) as store:
        assert store.tensor_ids() == []
    assert place.files().keys() >= {"zarr.json", *left}


@pytest.mark.parametrize("key", ["thesis.txt", f"t-x/tiles-{INCARNATION}/zarr.json"])
def test_mode_w_minus_creates_only_where_nothing_is(place: Place, key: str) -> None:
    place.put(key)
    with pytest.raises(StoreError, match="the target exists already"):
        place.open("w-")
    assert place.files() == {key: PHOTOGRAPH}


def test_a_store_whose_root_was_deleted_is_found_again(place: Place) -> None:
    expected = filled(place.open())
    before = place.files()
    place.delete("zarr.json")
    with place.open() as store:
        assert store.tensor_ids() == ["t"]
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
        assert store.group_ids() == ["group"]
    assert place.files() == before


def test_mode_w_empties_a_store_whose_root_was_deleted(place: Place) -> None:
    filled(place.open())
    place.delete("zarr.json")
    with place.open("w") as store:
        assert store.tensor_ids() == []
    assert place.files().keys() == {"zarr.json"}


@pytest.mark.parametrize("mode", ["a", "w"])
def test_a_store_whose_root_was_deleted_is_refused_where_something_else_has_moved_in(place: Place, mode: Any) -> None:
    filled(place.open())
    place.delete("zarr.json")
    place.put("sea.jpg")
    before = place.files()
    with pytest.raises(StoreError, match=r"'sea.jpg'; choose an empty folder"):
        place.open(mode)
    assert place.files() == before


def test_of_many_strangers_some_are_named(folder: Folder) -> None:
    folder.put(*(f"{number}.jpg" for number in range(100)))
    with pytest.raises(StoreError, match=r"but other data: '\d+.jpg', '\d+.jpg', '\d+.jpg'; choose"):
        folder.open()


# Folders of other stores.

CREATING = ["a", "w", "w-"]


@pytest.mark.parametrize("mode", CREATING)
@pytest.mark.parametrize("inside", ["t", "t-t/more", f"t-t/tiles-{INCARNATION}/c/0", "g-new"])
def test_no_store_is_created_in_another_one(folder: Folder, inside: str, mode: Any) -> None:
    filled(folder.open())
    before = folder.files()
    with pytest.raises(StoreError, match=re.escape(f"the folder is inside the store {str(folder.path)!r}; open this")):
        ZarrTileStore(folder.path / inside, mode=mode)
    assert folder.files() == before


def test_a_store_is_created_beside_another_one(folder: Folder, tmp_path: Path) -> None:
    filled(folder.open())
    for name in ("t-other", "s.zarr/beside/other", "s.zarr/t-t/../../other"):
        ZarrTileStore(tmp_path / name).close()


def test_a_store_that_lies_in_another_one_already_opens(folder: Folder, tmp_path: Path) -> None:
    filled(folder.open())
    inner = folder.path / "t"
    ZarrTileStore(tmp_path / "elsewhere", mode="w").close()
    (tmp_path / "elsewhere").rename(inner)
    for mode in MODES:
        ZarrTileStore(inner, mode=mode).close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "told"), [("t-t", "tensor 't'"), ("g-group", "group 'group'")])
def test_what_lies_in_a_store_is_none(place: Place, name: str, told: str, mode: Any) -> None:
    filled(place.open())
    before = place.files()
    with pytest.raises(
        StoreError, match=f"this is the folder of {told}, not a store; open the store in the folder above"
    ):
        ZarrTileStore(f"{place.target}/{name}", mode=mode)
    assert place.files() == before


# A root document of ours.

PHOTOGRAPHS = ("sea.jpg", "holiday/sea.jpg", "t-shirts/blue.jpg", f"t-shirts/tiles-{INCARNATION}/red.jpg", "g-force/1")


def test_a_store_opens_whatever_lies_beside_it(place: Place) -> None:
    expected = filled(place.open())
    place.put(*PHOTOGRAPHS)
    for mode in ("a", "r+", "r"):
        with place.open(mode) as store:
            assert store.tensor_ids() == ["t"]
            assert store.group_ids() == ["group"]
            assert torch.equal(store.open("t")[0:9, 0:9], expected)


def test_mode_w_deletes_what_is_ours_and_no_photograph(place: Place) -> None:
    filled(place.open())
    place.put(*PHOTOGRAPHS)
    with place.open("w") as store:
        assert store.tensor_ids() == []
        assert store.group_ids() == []
    assert place.files().keys() == {"zarr.json", *PHOTOGRAPHS}
    filled(place.open())


def test_mode_w_keeps_what_users_have_written_into_the_root_document(place: Place) -> None:
    filled(place.open())
    place.put(
        "zarr.json", data=json.dumps({**place.root(), "attributes": {"infinite_tensor": MARK, "by": "me"}}).encode()
    )
    place.open("w").close()
    assert place.root()["attributes"] == {"infinite_tensor": MARK, "by": "me"}


def test_mode_w_refuses_before_it_deletes_where_a_file_lies_in_the_folder_of_a_tensor(place: Place) -> None:
    with place.open() as store:
        for name in ("a", "t", "z"):
            overlapping(store, tensor_id=name)[0:9, 0:9]
    place.put("t-t/notes.txt")
    before = place.files()
    with pytest.raises(StoreError, match=r"mode 'w' would delete 't-t/notes.txt' of another program in 't-t'; move it"):
        place.open("w")
    assert place.files() == before


def test_gc_leaves_alone_what_is_not_ours(place: Place) -> None:
    filled(place.open())
    temporary = f"zarr.{uuid.uuid4().hex}.partial"
    place.put(*PHOTOGRAPHS, f"holiday/{temporary}", f"t-shirts/{temporary}", f"sea.{uuid.uuid4().hex}.partial")
    before = place.files()
    with place.open() as store:
        assert store.gc() == Garbage(0, 0)
    assert place.files() == before


def test_zarr_nodes_of_somebody_else_are_no_tensors_and_no_groups(place: Place) -> None:
    filled(place.open())
    place.put("t-mine/zarr.json", data=json.dumps({"zarr_format": 3, "node_type": "array", "shape": []}).encode())
    place.put("t-mine/c", data=b"1234")
    place.put("g-mine/zarr.json", data=json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode())
    before = place.files()
    with place.open() as store:
        assert store.tensor_ids() == ["t"]
        assert store.group_ids() == ["group"]
        uses: list[Callable[[], object]] = [
            lambda: overlapping(store, tensor_id="mine"),
            lambda: store.open("mine"),
            lambda: store.verify("mine", repair=True),
            lambda: store.clear_tensor("mine"),
        ]
        for use in uses:
            with pytest.raises(StoreError, match=r"'t-mine/zarr.json' belongs to another program"):
                use()
        group = TensorGroup({"all": store.open("t")})
        with pytest.raises(StoreError, match=r"'g-mine/zarr.json' belongs to another program, .*give another id"):
            group.save(store, "mine")
        with pytest.raises(StoreError, match=r"'g-mine/zarr.json' belongs to another program, .*give another id"):
            store.clear_group("mine")
    assert place.files() == before


# A root document of somebody else.


@pytest.fixture
def guest(folder: Folder) -> Folder:
    """A Zarr group of somebody else, with members, some of which are named as ours are."""
    theirs = zarr.create_group(folder.path, attributes={"instrument": "S-1", "gain": [1, 2.5, float("inf")]})
    theirs.create_array("raw", shape=(4,), chunks=(2,), dtype="f4")[:] = 7
    theirs.create_group("t-2024", attributes={"year": 2024}).create_array("raw", shape=(4,), dtype="f4")[:] = 8
    theirs.create_group("g-empty", attributes={"year": 2025})
    return folder


@pytest.mark.parametrize("mode", ["a", "r+", "r", "w", "w-"])
def test_a_zarr_group_of_somebody_else_is_refused_and_a_folder_inside_is_free(guest: Folder, mode: Any) -> None:
    before, inside = guest.files(), f"{guest.target}/tensors"
    with pytest.raises(StoreError, match=f"no store, but a Zarr group of another program; .* such as '{inside}'"):
        guest.open(mode)
    assert guest.files() == before
    filled(ZarrTileStore(inside, tile_size=8))
    assert guest.files().items() >= before.items()
    assert dict(zarr.open_group(guest.path, mode="r")["t-2024"].attrs) == {"year": 2024}


def test_a_root_that_lost_its_mark_is_damaged(place: Place) -> None:
    expected = filled(place.open())
    place.put("zarr.json", data=json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode())
    with pytest.raises(StoreError, match=r"is damaged \(it contains no version of the store\)\. .* or move it away"):
        place.open()
    place.delete("zarr.json")
    with place.open() as store:
        assert torch.equal(store.open("t")[0:9, 0:9], expected)


@pytest.mark.parametrize("mode", ["a", "r+", "r", "w", "w-"])
def test_a_zarr_array_of_somebody_else_is_refused(folder: Folder, mode: Any) -> None:
    zarr.create_array(folder.path, shape=(4,), chunks=(2,), dtype="f4")[:] = 7
    before = folder.files()
    with pytest.raises(StoreError, match=r"must be a store, but there is a Zarr array; choose another path$"):
        folder.open(mode)
    assert folder.files() == before


def test_a_root_that_holds_the_document_of_its_tensor_is_damaged(place: Place) -> None:
    expected = filled(place.open())
    place.put("zarr.json", data=place.files()["t-t/zarr.json"])
    with pytest.raises(
        StoreError, match=r"is damaged \(the definition belongs to tensor 't'\)\. .* move it away, and open the store"
    ):
        place.open()
    place.delete("zarr.json")
    with place.open() as store:
        assert torch.equal(store.open("t")[0:9, 0:9], expected)


# Symbolic links.


def test_mode_w_works_through_a_symbolic_link(folder: Folder, tmp_path: Path) -> None:
    filled(folder.open())
    folder.put(*PHOTOGRAPHS)
    link = tmp_path / "link.zarr"
    link.symlink_to(folder.path)
    with ZarrTileStore(link, mode="w") as store:
        assert store.tensor_ids() == []
    assert link.is_symlink()
    assert folder.files().keys() == {"zarr.json", *PHOTOGRAPHS}


@pytest.mark.parametrize("use", ["w", "clear", "gc"])
def test_of_a_symbolic_link_in_a_store_the_link_is_deleted(folder: Folder, tmp_path: Path, use: str) -> None:
    filled(folder.open())
    with folder.open() as store:
        tiles = Path(store.tensor_info("t").location)
    elsewhere = tmp_path / "other disk"
    (folder.path / tiles).rename(elsewhere)
    (folder.path / tiles).symlink_to(elsewhere)
    kept = {file for file in elsewhere.rglob("*") if file.is_file()}
    if use == "gc":
        folder.delete("t-t/zarr.json")
    with folder.open("w" if use == "w" else "a") as store:
        if use == "clear":
            store.clear_tensor("t")
        if use == "gc":
            store.gc()
        assert store.tensor_ids() == []
    assert not (folder.path / tiles).is_symlink()
    assert {file for file in elsewhere.rglob("*") if file.is_file()} == kept


@pytest.mark.parametrize("use", ["w", "clear"])
def test_of_a_tensor_in_another_store_only_the_link_to_it_is_deleted(folder: Folder, tmp_path: Path, use: str) -> None:
    other = Folder(tmp_path / "other.zarr")
    expected, kept = filled(other.open()), other.files()
    folder.open("w").close()
    (folder.path / "t-t").symlink_to(other.path / "t-t")
    with folder.open("r") as store:
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
    with folder.open("w" if use == "w" else "a") as store:
        if use == "clear":
            store.clear_tensor("t")
    assert [path.name for path in folder.path.iterdir()] == ["zarr.json"]
    assert other.files() == kept


LINKED = {"tiles": "t-t/tiles-*", "logs": "t-t/partial-*", "tensor": "t-t"}


def linked(folder: Folder, what: str, elsewhere: Path) -> dict[str, bytes]:
    """Move a part of a store elsewhere, with garbage and damage in it, and link to it; what lies there."""
    filled(folder.open())
    (chunk,) = folder.path.glob("t-t/tiles-*/c/*/*")
    next(folder.path.glob("t-t/tiles-*/zarr.json")).write_text("{}")
    (logs,) = folder.path.glob("t-t/partial-*")
    (logs / "0.0.0").mkdir()
    (logs / "0.0.0" / "0").write_text("of a tile that is complete")
    chunk.with_name(f"{chunk.name}.{uuid.uuid4().hex}.partial").write_text("left by a killed writer")
    (path,) = folder.path.glob(LINKED[what])
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    return Folder(elsewhere).files()


@pytest.mark.parametrize("what", LINKED)
def test_gc_deletes_nothing_behind_a_link_out_of_the_store_and_goes_on(
    folder: Folder, tmp_path: Path, what: str
) -> None:
    there = linked(folder, what, tmp_path / "elsewhere")
    folder.put(f"t-zebra/tiles-{INCARNATION}/c/0/0")
    with folder.open("r+") as store:
        if what == "tiles":
            store.gc()
        else:
            with pytest.warns(LinkNotFollowedWarning, match=f"{LINKED[what][:5]}.*Delete the link, or replace it"):
                store.gc()
    assert Folder(tmp_path / "elsewhere").files() == there
    assert not any(key.startswith("t-zebra") for key in folder.files())


@pytest.mark.parametrize("what", LINKED)
def test_verify_repairs_nothing_behind_a_link_out_of_the_store(folder: Folder, tmp_path: Path, what: str) -> None:
    there = linked(folder, what, tmp_path / "elsewhere")
    with folder.open("r+") as store:
        damages = store.verify("t")
        with pytest.warns(LinkNotFollowedWarning, match="a link out of the store"):
            assert store.verify("t", repair=True) == damages
        left = store.verify("t")
    assert Folder(tmp_path / "elsewhere").files() == there
    elsewhere = tmp_path / "elsewhere"
    behind = [each for each in damages if (folder.path / each.location).resolve().is_relative_to(elsewhere)]
    assert left == behind != []


@pytest.mark.parametrize("what", LINKED)
def test_invalidating_what_lies_behind_a_link_out_of_the_store_is_refused(
    folder: Folder, tmp_path: Path, what: str
) -> None:
    linked(folder, what, tmp_path / "elsewhere")
    files = set(Folder(tmp_path / "elsewhere").files())
    with folder.open("r+") as store, pytest.raises(StoreError, match="is a link out of the store"):
        overlapping(store).invalidate((slice(0, 9), slice(0, 9)))
    assert files <= set(Folder(tmp_path / "elsewhere").files())


def test_a_tile_behind_a_link_to_another_disk_is_completed_and_its_log_stays(folder: Folder, tmp_path: Path) -> None:
    with folder.open() as store:
        overlapping(store)[0:4, 0:4]
    (tmp_path / "elsewhere").mkdir()
    (folder.path / "t-t").rename(tmp_path / "elsewhere" / "t")
    (folder.path / "t-t").symlink_to(tmp_path / "elsewhere" / "t")
    logs = {key for key in folder.files() if key.endswith("/0")}
    with folder.open() as store, pytest.warns(LinkNotFollowedWarning, match="a link out of the store"):
        expected = overlapping(store)[0:8, 0:8]
        store.flush()
    with folder.open("r") as store:
        assert torch.equal(store.open("t")[0:8, 0:8], expected)
    assert logs <= set(folder.files())


def test_what_lies_behind_a_link_within_the_store_or_to_all_of_it_is_deleted(folder: Folder, tmp_path: Path) -> None:
    filled(folder.open())
    (tiles,) = folder.path.glob("t-t/tiles-*")
    tiles.rename(folder.path / "large")
    tiles.symlink_to(folder.path / "large")
    folder.put(f"t-t/tiles-{INCARNATION}/c/0/0")
    (tmp_path / "link").symlink_to(folder.path)
    with ZarrTileStore(tmp_path / "link") as store:
        assert store.gc() == Garbage(1, len(PHOTOGRAPH))
        overlapping(store).invalidate((slice(0, 9), slice(0, 9)))
    assert not list(folder.path.glob("large/c/*/*"))


@pytest.mark.parametrize("mode", ["a", "r", "r+", "w", "w-"])
@pytest.mark.parametrize("kind", ["a file", "a broken link"])
def test_a_file_where_the_folder_would_be_is_refused(kind: str, mode: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.tif"
    if kind == "a file":
        path.write_bytes(b"pixels")
    else:
        path.symlink_to(tmp_path / "gone")
    with pytest.raises(StoreError, match=f"there is {kind}, but a Zarr store is a folder"):
        ZarrTileStore(path, mode=mode)
    assert path.is_symlink() or path.read_bytes() == b"pixels"


# What a message says to do can be done, and destroys nothing.


@pytest.mark.parametrize("mode", ["r", "r+", "w-"])
def test_no_message_says_that_a_folder_of_photographs_can_be_opened(folder: Folder, mode: Any) -> None:
    folder.put(*PHOTOGRAPHS)
    with pytest.raises(StoreError, match=r"an empty folder"):
        folder.open(mode)


@pytest.mark.parametrize("key", ["zarr.json", "zarr.json/photo.tif"])
def test_nobody_is_told_to_delete_a_root_that_somebody_else_may_have_written(folder: Folder, key: str) -> None:
    notes = {"zarr_format": 3, "node_type": "group", "attributes": {"author": "me", "infinite_tensor": "my notes"}}
    folder.put(key, data=json.dumps(notes).encode())
    with pytest.raises(StoreError, match=r"Restore it from a copy, or move it away, and open") as told:
        folder.open()
    assert "delete it" not in str(told.value)


class CreatedMeanwhile(type(Path())):  # type: ignore[misc]
    """The path of a folder that somebody else creates as soon as it has been looked for."""

    def is_dir(self) -> bool:
        return self._look(super().is_dir)

    def exists(self) -> bool:
        return self._look(super().exists)

    def _look(self, look: Callable[[], bool]) -> bool:
        seen = look()
        if self.suffix == ".zarr":
            os.makedirs(self, exist_ok=True)  # noqa: PTH103 - Path.mkdir looks again
        return seen


class Kept(LocalStore):
    """A store of a type that is used as it is."""


def test_a_folder_that_somebody_else_creates_meanwhile_is_opened(tmp_path: Path) -> None:
    local = Kept(tmp_path / "s.zarr")
    local.root = CreatedMeanwhile(local.root)
    with ZarrTileStore(local) as store:
        assert store.tensor_ids() == []
