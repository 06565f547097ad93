"""What a Zarr store opens beside, refuses, and deletes."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import zarr
from zarr.storage import LocalStore

from infinite_tensor import StoreError, TensorGroup, ValidationError, ZarrTileStore
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
        with pytest.raises(StoreError, match="thesis"):
            overlapping(store)
    assert folder.files() == {"thesis.txt": PHOTOGRAPH}


# What is refused, and left as it is: a table of what lies there, the modes, and a word of the error.

ALL: list[Any] = ["a", "r+", "r", "w", "w-"]
EMPTY, ABOVE, AWAY = "choose an empty folder", "open the store in the folder above", "move it away"
PHOTOGRAPHS = ("sea.jpg", "holiday/sea.jpg", "t-shirts/blue.jpg", f"t-shirts/tiles-{INCARNATION}/red.jpg", "g-force/1")


def document(kind: str = "group", **attributes: Any) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": kind, "attributes": attributes}).encode()


def files(*keys: str, data: bytes = PHOTOGRAPH) -> Callable[[Place], object]:
    return lambda place: place.put(*keys, data=data)


def store_with(*changes: Callable[[Place], object]) -> Callable[[Place], object]:
    def prepare(place: Place) -> None:
        filled(place.open())
        for change in changes:
            change(place)

    return prepare


def without_root(place: Place) -> None:
    place.delete("zarr.json")


def tensors_that_hold_a_file(place: Place) -> None:
    with place.open() as store:
        for name in ("a", "t", "z"):
            overlapping(store, tensor_id=name)[0:9, 0:9]
    place.put("t-t/notes.txt")


def their_group(place: Place) -> None:
    """A Zarr group of somebody else, with members, some of which are named as ours are."""
    theirs = zarr.create_group(place.target, attributes={"instrument": "S-1", "gain": [1, 2.5, float("inf")]})
    theirs.create_array("raw", shape=(4,), chunks=(2,), dtype="f4")[:] = 7
    theirs.create_group("t-2024", attributes={"year": 2024}).create_array("raw", shape=(4,), dtype="f4")[:] = 8
    theirs.create_group("g-empty", attributes={"year": 2025})


def their_array(place: Place) -> None:
    zarr.create_array(place.target, shape=(4,), chunks=(2,), dtype="f4")[:] = 7


def root_of_its_tensor(place: Place) -> None:
    place.put("zarr.json", data=place.files()["t-t/zarr.json"])


# What lies there, where a store is opened within it, the modes, and the word.
REFUSED: dict[str, tuple[Callable[[Any], object], str, list[Any], str]] = {
    **{
        key: (files(key), "", ["a", "w"], f"'{re.escape(named)}'; {EMPTY}")
        for key, named in {
            "thesis.txt": "thesis.txt",
            "photographs/2024/sea.jpg": "photographs",
            ".zgroup": ".zgroup",
            "c/0/0": "c",
            "t-shirts/blue.jpg": "t-shirts/blue.jpg",
            "g-force/1.csv": "g-force/1.csv",
            f"t-x/tiles-{INCARNATION[:-1]}/0": f"t-x/tiles-{INCARNATION[:-1]}",
            f"t-x/logs-{INCARNATION}/0": f"t-x/logs-{INCARNATION}",
            "t-notes": "t-notes",
        }.items()
    },
    "many files": (files(*(f"{number}.jpg" for number in range(100))), "", ["a"], r"('\d+.jpg'(, )?){3}; choose"),
    "photographs": (files(*PHOTOGRAPHS), "", ["r", "r+", "w-"], "an empty folder"),
    "a tensor that is no more": (files(f"t-x/tiles-{INCARNATION}/zarr.json"), "", ["w-"], "exists already"),
    "their t-2024": (files("t-2024/zarr.json", data=document(year=2024)), "", ["a"], EMPTY),
    "their g-2024": (files("g-2024/zarr.json", data=document(year=2024)), "", ["a"], EMPTY),
    "their group": (their_group, "", ALL, "such as '.*/tensors'"),
    "their array": (their_array, "", ALL, "choose another path"),
    "their root": (files("zarr.json", data=document(infinite_tensor="my notes")), "", ["a"], AWAY),
    "their file in the place of a root": (files("zarr.json/photo.tif"), "", ["a"], AWAY),
    "a root that lost its mark": (store_with(files("zarr.json", data=document())), "", ["a"], AWAY),
    "a root that is the document of a tensor": (store_with(root_of_its_tensor), "", ["a"], AWAY),
    "a store without a root, and a file": (store_with(without_root, files("sea.jpg")), "", ["a", "w"], EMPTY),
    "a file in a tensor": (tensors_that_hold_a_file, "", ["w"], "'t-t/notes.txt' of another program"),
    "the folder of a tensor": (store_with(), "t-t", ["a", "r+", "r", "w"], ABOVE),
    "the folder of a group": (store_with(), "g-group", ["a", "r+", "r", "w"], ABOVE),
    **{
        f"a store around {inside}": (store_with(), inside, ["a", "w", "w-"], "inside the store")
        for inside in ("t", "t-t/more", f"t-t/tiles-{INCARNATION}/c/0", "g-new")
    },
}
LOCAL = ("t-notes", "their group", "their array", "their file in", "a store around")


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_left_as_it_is(name: str, place: Place) -> None:
    prepare, inside, modes, word = REFUSED[name]
    if name.startswith(LOCAL) and not isinstance(place, Folder):
        pytest.skip("of folders")
    prepare(place)
    before = place.files()
    for mode in modes:
        with pytest.raises(StoreError, match=word) as refused:
            ZarrTileStore(f"{place.target}/{inside}".rstrip("/"), mode=mode)
        assert "delete it" not in str(refused.value)
        assert place.files() == before


@pytest.mark.parametrize("mode", ALL)
@pytest.mark.parametrize("kind", ["a file", "a broken link"])
def test_a_file_where_the_folder_would_be_is_refused(kind: str, mode: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.tif"
    if kind == "a file":
        path.write_bytes(b"pixels")
    else:
        path.symlink_to(tmp_path / "gone")
    with pytest.raises(StoreError, match=f"there is {kind}"):
        ZarrTileStore(path, mode=mode)
    assert path.is_symlink() or path.read_bytes() == b"pixels"


@pytest.mark.parametrize("mode", ["a", "r+", "w"])
def test_a_zarr_store_that_cannot_be_written_is_opened_to_read_only(mode: Any, tmp_path: Path) -> None:
    with ZarrTileStore(LocalStore(tmp_path), tile_size=8) as store:
        overlapping(store)[0:8, 0:8]
    target = LocalStore(tmp_path, read_only=True)
    with pytest.raises(ValidationError, match=r"is read-only.*give mode='r'"):
        ZarrTileStore(target, mode=mode)
    with ZarrTileStore(target, mode="r") as store:
        assert len(store.tensor_ids()) == 1


def test_a_store_lies_in_a_folder_of_its_own_within_a_group_of_somebody_else(folder: Folder) -> None:
    their_group(folder)
    before = folder.files()
    filled(ZarrTileStore(f"{folder.target}/tensors", tile_size=8))
    assert folder.files().items() >= before.items()
    assert dict(zarr.open_group(folder.path, mode="r")["t-2024"].attrs) == {"year": 2024}


def test_zarr_nodes_of_somebody_else_are_no_tensors_and_no_groups(place: Place) -> None:
    filled(place.open())
    place.put("t-mine/zarr.json", data=document("array", shape=[]))
    place.put("t-mine/c", data=b"1234")
    place.put("g-mine/zarr.json", data=document())
    before = place.files()
    with place.open() as store:
        assert store.tensor_ids() == ["t"]
        assert store.group_ids() == ["group"]
        uses: list[Callable[[], object]] = [
            lambda: overlapping(store, tensor_id="mine"),
            lambda: store.open("mine"),
            lambda: store.verify("mine", repair=True),
            lambda: store.clear_tensor("mine"),
            lambda: TensorGroup({"all": store.open("t")}).save(store, "mine"),
            lambda: store.clear_group("mine"),
        ]
        for use in uses:
            with pytest.raises(StoreError, match="belongs to another program"):
                use()
    assert place.files() == before


# What is opened, or emptied.


@pytest.mark.parametrize("mode", ["a", "w", "w-"])
def test_what_systems_and_killed_writers_leave_is_in_nobodys_way(place: Place, mode: Any) -> None:
    left = (".DS_Store", "Thumbs.db", "lost+found/x", ".nfs00001", "film.partial", f"zarr.{uuid.uuid4().hex}.partial")
    within = (f"t-x/zarr.{uuid.uuid4().hex}.partial", f"t-x/tiles-{INCARNATION}/zarr.json", "t-x/.DS_Store")
    place.put(*left, *(within if mode != "w-" else ()))
    with place.open(mode) as store:
        assert store.tensor_ids() == []
    assert place.files().keys() >= {"zarr.json", *left}


@pytest.mark.parametrize("root", [None, document(), b"of its tensor"])
def test_a_store_whose_root_is_deleted_is_found_again(place: Place, root: bytes | None) -> None:
    expected = filled(place.open())
    before = place.files()
    if root is not None:
        place.put("zarr.json", data=before["t-t/zarr.json"] if root == b"of its tensor" else root)
    place.delete("zarr.json")
    with place.open() as store:
        assert store.tensor_ids() == ["t"]
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
        assert store.group_ids() == ["group"]
    assert place.files() == before


def test_a_store_is_created_beside_another_one_and_opened_in_it(folder: Folder, tmp_path: Path) -> None:
    filled(folder.open())
    for name in ("t-other", "s.zarr/beside/other", "s.zarr/t-t/../../other"):
        ZarrTileStore(tmp_path / name, mode="w").close()
    (tmp_path / "t-other").rename(folder.path / "t")
    for mode in MODES:
        ZarrTileStore(folder.path / "t", mode=mode).close()


def test_a_store_opens_and_is_swept_whatever_lies_beside_it(place: Place) -> None:
    expected = filled(place.open())
    temporary = f"zarr.{uuid.uuid4().hex}.partial"
    place.put(*PHOTOGRAPHS, f"holiday/{temporary}", f"t-shirts/{temporary}", f"sea.{uuid.uuid4().hex}.partial")
    before = place.files()
    for mode in ("a", "r+", "r"):
        with place.open(mode) as store:
            assert store.tensor_ids() == ["t"]
            assert store.group_ids() == ["group"]
            assert torch.equal(store.open("t")[0:9, 0:9], expected)
            assert mode == "r" or store.gc() == Garbage(0, 0)
    assert place.files() == before


@pytest.mark.parametrize("how", ["as it is", "by a user", "without a root", "through a link"])
def test_mode_w_deletes_what_is_ours_and_no_photograph(place: Place, how: str, tmp_path: Path) -> None:
    filled(place.open())
    target = place.target
    attributes: dict[str, Any] = {"infinite_tensor": MARK}
    if how == "without a root":
        place.delete("zarr.json")
    else:
        place.put(*PHOTOGRAPHS)
    if how == "by a user":
        attributes["by"] = "me"
        place.put("zarr.json", data=json.dumps({**place.root(), "attributes": attributes}).encode())
    if how == "through a link" and isinstance(place, Folder):
        (tmp_path / "link.zarr").symlink_to(place.path)
        target = str(tmp_path / "link.zarr")
    with ZarrTileStore(target, mode="w") as store:
        assert store.tensor_ids() == []
        assert store.group_ids() == []
    assert place.files().keys() == {"zarr.json", *(() if how == "without a root" else PHOTOGRAPHS)}
    assert place.root()["attributes"] == attributes
    filled(place.open())


# Symbolic links.


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


def collect(store: ZarrTileStore) -> None:
    store.gc()
    assert not [path for path in Path(store.target).glob("t-zebra/**/*") if path.is_file()]


def repair(store: ZarrTileStore) -> None:
    damages = store.verify("t", repair=True)
    elsewhere = Path(store.target).with_name("elsewhere")
    behind = [each for each in damages if (Path(store.target) / each.location).resolve().is_relative_to(elsewhere)]
    assert store.verify("t") == behind != []


def invalidate(store: ZarrTileStore) -> None:
    with pytest.raises(StoreError, match="a link out of the store"):
        overlapping(store).invalidate((slice(0, 9), slice(0, 9)))


@pytest.mark.parametrize("use", [collect, repair, invalidate])
@pytest.mark.parametrize("what", LINKED)
def test_nothing_is_deleted_behind_a_link_out_of_the_store(
    folder: Folder, tmp_path: Path, what: str, use: Callable[[ZarrTileStore], None]
) -> None:
    there = linked(folder, what, tmp_path / "elsewhere")
    folder.put(f"t-zebra/tiles-{INCARNATION}/c/0/0")
    with folder.open("r+") as store:
        is_said = use is repair or (use is collect and what != "tiles")
        with pytest.warns(LinkNotFollowedWarning, match="[Dd]elete the link") if is_said else nullcontext():
            use(store)
    assert Folder(tmp_path / "elsewhere").files().items() >= there.items()


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
