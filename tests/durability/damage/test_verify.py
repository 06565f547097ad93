"""What `verify` lists, and what it mends."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import pytest
import torch
import zarr

from infinite_tensor import DamagedDataWarning, HDF5TileStore, StoreError, TileStore, ValidationError, ZarrTileStore
from tests.stores.hdf5.files import flip_tile
from tests.support.building import overlapping
from tests.support.counting import Counted
from tests.support.stores import sample

Make: TypeAlias = Callable[..., TileStore]


def filled(store: TileStore, name: str = "t") -> torch.Tensor:
    """Complete and partial tiles, in a store that is closed then."""
    with store:
        pixels: torch.Tensor = overlapping(store, Counted(), name)[0:9, 0:9]
    return pixels


def zarr_at(path: Path, **options: Any) -> ZarrTileStore:
    return ZarrTileStore(path / "s.zarr", tile_size=8, **options)


def hdf5_at(path: Path, **options: Any) -> HDF5TileStore:
    return HDF5TileStore(path / "s.h5", tile_size=8, **options)


def group_of(path: Path, name: str = "t") -> Path:
    return path / "s.zarr" / f"t-{name}" / "zarr.json"


def array_of(path: Path, name: str = "t") -> Path:
    (found,) = group_of(path, name).parent.glob("tiles-*/zarr.json")
    return found


def flip(path: Path, text: bytes) -> None:
    """Change one byte of a file, within the only place where `text` stands."""
    before, after = path.read_bytes().split(text)
    path.write_bytes(before + bytes([text[0] ^ 1]) + text[1:] + after)


def rewritten(path: Path, **changed: Any) -> None:
    """Change fields of the definition in a group's metadata, as an attacker would: with a digest that fits."""
    group = json.loads(path.read_text())
    fields = {**group["attributes"]["infinite_tensor"], **changed}
    del fields["digest"]
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    fields["digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    group["attributes"]["infinite_tensor"] = fields
    path.write_text(json.dumps(group))


@pytest.fixture(params=sample(["zarr", "hdf5"]))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    at = zarr_at if request.param == "zarr" else hdf5_at
    return lambda **options: at(tmp_path, **options)


def test_verify_of_what_is_not_damaged(make: Make) -> None:
    filled(make())
    with make(mode="r") as store:
        assert store.verify("t") == []
        with pytest.raises(ValidationError, match="read-only"):
            store.verify("t", repair=True)
        assert store.verify(overlapping(store, Counted(), "only in memory").tensor_id) == []
        with pytest.raises(StoreError, match="no tensor 'unknown'"):
            store.verify("unknown")


# Definitions.


def change_definition(path: Path, old: bytes = b'"blend_init": null', new: bytes = b'"blend_init": 9.25') -> None:
    """Make it one of another tensor that could well exist."""
    if (path / "s.zarr").exists():
        text = group_of(path).read_bytes()
        assert old in text
        group_of(path).write_bytes(text.replace(old, new))
        return
    with h5py.File(path / "s.h5", "r+") as file:
        text = bytes(file["infinite_tensor/t-t/definition"][()])
        assert old in text
        del file["infinite_tensor/t-t/definition"]
        file["infinite_tensor/t-t/definition"] = np.bytes_(text.replace(old, new))


def test_a_damaged_definition_is_listed_and_never_dropped_and_can_be_mended_or_cleared(
    make: Make, tmp_path: Path
) -> None:
    expected = filled(make())
    filled(make(), "other")
    change_definition(tmp_path)
    for repair in (False, True, True):
        with make() as store:
            for use in (lambda: overlapping(store, Counted()), lambda: store.open("t"), lambda: store.tensor_info("t")):
                with pytest.raises(StoreError, match=r"'t'.*damaged.*clear_tensor\('t'\)"):
                    use()
            assert [damage.kind for damage in store.verify("t", repair=repair)] == ["definition"]
            assert store.verify("other", repair=repair) == []
            assert store.tensor_ids() == ["other", "t"]
            assert store.gc().objects == 0
    change_definition(tmp_path, b'"blend_init": 9.25', b'"blend_init": null')
    f = Counted()
    with make() as store:
        assert store.verify("t") == []
        assert torch.equal(overlapping(store, f)[0:9, 0:9], expected)
    assert f.calls == []
    change_definition(tmp_path)
    with make() as store:
        store.clear_tensor("t")
        assert store.tensor_ids() == ["other"]
        assert store.gc().objects == 0


def test_what_users_add_to_the_attributes_is_legal(tmp_path: Path) -> None:
    expected = filled(zarr_at(tmp_path))
    for path in (group_of(tmp_path).parent, array_of(tmp_path).parent):
        zarr.open(path, mode="r+").attrs.update({"units": "metres", "missing": float("nan")})
    with zarr_at(tmp_path) as store:
        assert store.verify("t", repair=True) == []
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
    for path in (group_of(tmp_path).parent, array_of(tmp_path).parent):
        assert zarr.open(path, mode="r").attrs["units"] == "metres"


def test_damage_to_the_metadata_of_the_array_never_changes_what_is_read(tmp_path: Path) -> None:
    expected = filled(zarr_at(tmp_path))
    document = array_of(tmp_path)
    intact = json.loads(document.read_text())
    wrong: list[dict[str, Any]] = [
        {"fill_value": 7.0},
        {"codecs": intact["codecs"][:1]},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}},
        {"data_type": "int32"},
        {"shape": [8, 8]},
        {"attributes": {}},
        {"node_type": "group"},
    ]
    for damaged in [b"", b"\xff", b"[" * 100_000, *(json.dumps({**intact, **change}).encode() for change in wrong)]:
        document.write_bytes(damaged)
        with zarr_at(tmp_path) as store:
            assert torch.equal(store.open("t")[0:9, 0:9], expected)
            assert [damage.kind for damage in store.verify("t", repair=True)] == ["array"]
        assert json.loads(document.read_text()) == intact
    document.unlink()
    with zarr_at(tmp_path) as store:
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
        assert [damage.reason for damage in store.verify("t", repair=True)] == ["missing"]
    assert json.loads(document.read_text()) == intact


def written(document: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(document)


FIELDS: list[tuple[str, Any]] = [
    *(("incarnation", "x/../../../victim"), ("incarnation", "0" * 17), ("incarnation", 16)),
    *(("origin", [0, 0]), ("origin", None), ("tile_size", None), ("tile_size", [-8, 8])),
    *(("tile_size", [2**40, 2**40]), ("tensor_id", "x"), ("tensor_id", None), ("shape", "None")),
    ("format", "1"),
]
HOSTILE: dict[str, Callable[[Path], object]] = {
    **{f"{field}: {value!r}": partial(rewritten, **{field: value}) for field, value in FIELDS},
    "lists": written(b"[" * 100_000),
    "dicts": written(b'{"a":' * 100_000),
    "no text": written(b"\xff\xfe\xfd"),
    "null": written(b"null"),
    "digits": written(b"9" * 5000),
    "nothing": written(b""),
}


@pytest.mark.parametrize("damage", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_definition_is_damage_and_all_that_is_deleted_lies_inside_the_store(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    filled(zarr_at(tmp_path))
    victim = tmp_path / "victim" / "thesis.txt"
    victim.parent.mkdir()
    victim.write_text("years of work")
    damage(group_of(tmp_path))
    array_of(tmp_path).unlink()
    (group_of(tmp_path).parent / "tiles-x").mkdir()
    with zarr_at(tmp_path) as store:
        uses: list[Callable[[], object]] = [lambda: store.open("t"), lambda: overlapping(store, Counted())]
        for use in uses:
            with pytest.raises(StoreError, match="damaged"):
                use()
        assert store.gc().objects == 0
        assert [damage.kind for damage in store.verify("t", repair=True)] == ["definition"]
        store.clear_tensor("t")
        assert store.tensor_ids() == []
    assert victim.read_text() == "years of work"


CRC: dict[str, Any] = {"name": "crc32c"}
LATER: dict[str, dict[str, Any]] = {
    "a later format": {"format": 4, "incarnation": "another kind"},
    "no codecs": {"codecs": None},
    "codecs as text": {"codecs": "zstd"},
    "empty codecs": {"codecs": []},
    "unknown codecs": {"codecs": [{"name": "bytes"}, {"name": "from the future"}, CRC]},
    "no checksum": {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
    "a filter": {"codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}, CRC]},
    "nonsense": {"codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": "x"}}, CRC]},
    "shards": {"codecs": [{"name": "sharding_indexed", "configuration": {}}, CRC]},
}


@pytest.mark.parametrize("fields", LATER.values(), ids=LATER)
def test_what_a_later_version_may_have_written_is_neither_opened_nor_repaired_nor_swept(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    filled(zarr_at(tmp_path))
    rewritten(group_of(tmp_path), **fields)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with zarr_at(tmp_path) as store:
        for use in (lambda: store.open("t"), lambda: store.verify("t", repair=True)):
            with pytest.raises(StoreError, match=r"codecs|format is 4"):
                use()
        assert store.tensor_ids() == ["t"]
        assert store.gc().objects == 0
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        store.clear_tensor("t")
        assert store.tensor_ids() == []
    assert [path.name for path in (tmp_path / "s.zarr").rglob("*") if path.is_file()] == ["zarr.json"]


def test_a_damaged_definition_whose_folder_does_not_tell_the_id_is_listed_with_a_warning(tmp_path: Path) -> None:
    with zarr_at(tmp_path) as store:
        overlapping(store, Counted(), "ü" * 100)
        overlapping(store, Counted(), "Ünlisted")
    for folder in (tmp_path / "s.zarr").glob("t-*"):
        flip(folder / "zarr.json", b"tensor_id")
    with zarr_at(tmp_path) as store:
        with pytest.warns(DamagedDataWarning, match="the id of its tensor is unknown"):
            assert store.tensor_ids() == ["Ünlisted"]
        for name in ("ü" * 100, "Ünlisted"):
            assert len(store.verify(name)) == 1
            store.clear_tensor(name)
        assert store.tensor_ids() == []


# Folders in the place of objects.


def _link_to_a_folder(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "thesis.txt").write_text("years of work")
    path.symlink_to(elsewhere)


@pytest.mark.parametrize("put", [Path.mkdir, _link_to_a_folder], ids=["empty", "link"])
@pytest.mark.parametrize("name", ["tiles-*/c/*/*", "partial-*/0.1.1/0", "tiles-*/zarr.json"])
def test_a_folder_in_the_place_of_an_object_is_listed_and_gives_way(
    tmp_path: Path, name: str, put: Callable[[Path], None]
) -> None:
    expected = filled(zarr_at(tmp_path))
    (path,) = group_of(tmp_path).parent.glob(name)
    path.unlink()
    put(path)
    with zarr_at(tmp_path) as store:
        (damage,) = store.verify("t")
        assert store.verify("t", repair=True) == [damage]
        assert (tmp_path / "s.zarr" / damage.location, damage.reason) == (path, "a folder, not a regular file")
        assert store.verify("t") == []
        assert torch.equal(overlapping(store, Counted())[0:9, 0:9], expected)
    with zarr_at(tmp_path) as store:
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
    assert all(text.read_text() == "years of work" for text in path.parent.glob("elsewhere/*"))


def test_a_folder_that_holds_something_stays_and_is_listed_where_it_is_known(tmp_path: Path) -> None:
    filled(zarr_at(tmp_path))
    document = array_of(tmp_path)
    document.unlink()
    document.mkdir()
    (document / "thesis.txt").write_text("years of work")
    with zarr_at(tmp_path) as store:
        for repair in (True, False):
            assert [damage.kind for damage in store.verify("t", repair=repair)] == ["array"]
    assert (document / "thesis.txt").read_text() == "years of work"


# Partial tiles.


def test_a_log_with_a_part_missing_is_listed_and_its_repair_brings_later_parts_back(tmp_path: Path) -> None:
    f = Counted()
    for x in (0, 3, 6):
        with zarr_at(tmp_path) as store:
            overlapping(store, f)[0:1, x : x + 1]
    (part,) = group_of(tmp_path).parent.glob("partial-*/0.0.0/0")
    assert (part.parent / "1").exists()
    part.unlink()
    with zarr_at(tmp_path) as store:
        (damage,) = store.verify("t", repair=True)
        assert (damage.kind, damage.tile, damage.reason) == (
            "partial",
            (0, 0),
            "missing, so later parts are not read",
        )
        assert store.verify("t") == []
    before = len(f.calls)
    with zarr_at(tmp_path) as store:
        overlapping(store, f)[0:1, 6:7]
    assert len(f.calls) == before


def test_a_damaged_part_gives_way_to_one_that_says_nothing(tmp_path: Path) -> None:
    f = Counted()
    # Windows that are not the first ones of the tile, so that each part holds its own only.
    first, second = (slice(0, 1), slice(6, 7)), (slice(4, 5), slice(4, 5))
    for region in (first, second):
        with zarr_at(tmp_path) as store:
            overlapping(store, f)[region]
    (part,) = group_of(tmp_path).parent.glob("partial-*/0.0.0/0")
    part.write_bytes(part.read_bytes()[:-1])
    with zarr_at(tmp_path) as store:
        assert [damage.kind for damage in store.verify("t", repair=True)] == ["partial"]
    calls = list(f.calls)
    with zarr_at(tmp_path) as store:
        tensor = overlapping(store, f)
        tensor[second]
        assert f.calls == calls
        tensor[first]
    assert f.calls != calls


def test_names_that_are_not_of_the_layout_are_no_damage(tmp_path: Path) -> None:
    filled(zarr_at(tmp_path))
    array, logs = array_of(tmp_path).parent, next(group_of(tmp_path).parent.glob("partial-*"))
    for name in ("c/notes.txt", "c/1/2/3", "c/01/2", "c/-0/1"):
        (array / name).parent.mkdir(parents=True, exist_ok=True)
        (array / name).write_text("mine")
    for name in ("0.0.0/one", "0.0.0/9999999", "0.0/0", "x/0", "0.00.0/0", "0.0.0/-1"):
        (logs / name).parent.mkdir(parents=True, exist_ok=True)
        (logs / name).write_text("mine")
    with zarr_at(tmp_path) as store:
        info = store.tensor_info("t")
        assert store.verify("t", repair=True) == []
        assert (info.tiles_complete, info.tiles_partial) == (1, 8)
    assert (array / "c/notes.txt").read_text() == "mine"


# The datasets of an HDF5 file.


def _flip(path: Path) -> None:
    with h5py.File(path / "s.h5", "r+") as file:
        flip_tile(file["infinite_tensor/t-t/0,0"])


def _put(path: Path, **dataset: Any) -> None:
    with h5py.File(path / "s.h5", "r+") as file:
        group = file["infinite_tensor/t-t"]
        del group["0,0"]
        group.create_dataset("0,0", **dataset)


def _compress_twice(path: Path) -> None:
    created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    created.set_chunk((8, 8))
    for _ in range(2):
        created.set_deflate(4)
    with h5py.File(path / "s.h5", "r+") as file:
        group = file["infinite_tensor/t-t"]
        del group["0,0"]
        data = h5py.h5d.create(group.id, b"0,0", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((8, 8)), created)
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ones((8, 8), "f4"))


WRONG: dict[str, Callable[[Path], None]] = {
    "bytes": _flip,
    "shape": lambda path: _put(path, data=np.ones((4, 8), "f4")),
    "dtype": lambda path: _put(path, data=np.ones((8, 8), "i4")),
    "chunks": lambda path: _put(path, shape=(8, 8), dtype="f4", chunks=(8, 8), maxshape=(None, None)),
    "two compressions": _compress_twice,
    "no dataset": lambda path: _put(path, data="text"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_damaged_dataset_is_computed_again_and_replaced(wrong: str, tmp_path: Path) -> None:
    # Without a compressor, which has a checksum of its own.
    expected = filled(hdf5_at(tmp_path, compression=None))
    WRONG[wrong](tmp_path)
    with hdf5_at(tmp_path) as store:
        (damage,) = store.verify("t")
        assert (damage.kind, damage.tile, damage.location) == ("tile", (0, 0), "/infinite_tensor/t-t/0,0")
        with pytest.warns(DamagedDataWarning, match="tile \\(0, 0\\) of tensor 't' is damaged"):
            assert torch.equal(overlapping(store, Counted())[0:9, 0:9], expected)
        store.flush()
        assert store.verify("t") == []
        assert torch.equal(store.open("t")[0:9, 0:9], expected)
    WRONG[wrong](tmp_path)
    with hdf5_at(tmp_path) as store:
        assert store.verify("t", repair=True) == [damage]
        assert store.tensor_info("t").tiles_complete == 0
        assert torch.equal(overlapping(store, Counted())[0:9, 0:9], expected)


def test_an_empty_part_takes_the_place_of_a_damaged_one_so_that_later_ones_are_found(tmp_path: Path) -> None:
    f = Counted()
    with hdf5_at(tmp_path) as store:
        t = overlapping(store, f)
        expected = []
        for at in (0, 4, 6):
            expected.append(t[0:1, at : at + 1])
            # Each flush adds a part to the log of the same tile.
            store.flush()
    with h5py.File(tmp_path / "s.h5", "r+") as file:
        group = file["infinite_tensor/t-t"]
        parts = [name for name in group if name.startswith("0,0.part")]
        assert len(parts) > 1
        group["0,0.part0"][0] ^= 1
    with hdf5_at(tmp_path) as store:
        assert [damage.location for damage in store.verify("t", repair=True)] == ["/infinite_tensor/t-t/0,0.part0"]
        assert store.verify("t") == []
        before = len(f.calls)
        t = overlapping(store, f)
        assert all(torch.equal(t[0:1, at : at + 1], pixels) for at, pixels in zip((0, 4, 6), expected, strict=True))
    assert len(f.calls) < 2 * before
