"""What is wrong with a blob on disk is said, never read as zeros or as other rows."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import zarr

from infinite_tensor import StoreError
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import SHAPE, made, numbered
from tests.support.stored import sealed


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("index", [5, slice(0, 10), [9, 4]])
def test_a_missing_block_is_named(on_disk: Place, index: Any) -> None:
    Path(on_disk.target, "c.1.0.0").unlink()
    blob = on_disk.open()
    with pytest.raises(StoreError, match=r"block c\.1\.0\.0 \(rows 4 to 7\) is damaged: missing"):
        blob[index]
    assert torch.equal(blob[8:], numbered(2, 8))


def test_a_block_that_is_too_short_is_named(on_disk: Place) -> None:
    path = Path(on_disk.target, "c.2.0.0")
    os.truncate(path, path.stat().st_size - 3)
    blob = on_disk.open()
    with pytest.raises(StoreError, match=r"block c\.2\.0\.0 \(rows 8 to 9\) is damaged"):
        blob.read()
    assert torch.equal(blob[:8], numbered(8))


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_in_a_block_is_found(on_disk: Place, seed: int) -> None:
    path = Path(on_disk.target, "c.1.0.0")
    flip(path, random.Random(seed).randrange(path.stat().st_size))  # noqa: S311
    with pytest.raises(StoreError, match=r"block c\.1\.0\.0 .* is damaged"):
        on_disk.open().read()


@pytest.mark.parametrize("later", [2, 10], ids=["the same block", "further blocks"])
def test_a_block_that_is_older_than_the_document_is_an_error_until_it_is_there(
    on_disk: Place, later: int, tmp_path: Path
) -> None:
    # As in a copy of a blob that grows meanwhile, after a sync in another order, or after a power failure.
    copy = replace(on_disk, target=str(tmp_path / "copy"))
    with on_disk.open("a") as writer:
        writer.write(numbered(1, 10))
        writer.flush()
        shutil.copytree(on_disk.target, copy.target)
        writer.write(numbered(later, 11))
    shutil.copy(Path(on_disk.target, "zarr.json"), copy.target)
    reader = copy.open()
    rows = min(11 + later, 12)
    with pytest.raises(StoreError, match=rf"block c\.2\.0\.0 \(rows 11 to {rows - 1}\) is damaged: .* truncate\(11\)"):
        reader[10:rows]
    assert torch.equal(reader[:8], numbered(8))
    shutil.copy(Path(on_disk.target, "c.2.0.0"), copy.target)
    assert torch.equal(reader[:rows], numbered(rows))


WRONG: dict[str, list[Any]] = {
    "rows": ["12", 1.5, -1, True, None, [10], 2**60],
    "edits": ["0", 0.0, -2, None],
    "block_size": ["4", 4.0, 0, -4, None, 2**50],
    "shape": ["23", [2, 3.0], [2, "3"], [2, 0], 6, None],
    "incarnation": [7, None, ["a"]],
    "marks": [7, None, ["a"], [[0]], [[-1, "a"]], [[0, 1]], [["0", "a"]]],
    "codecs": ["bytes", {}, [7], [{"name": 7}], [{}], None],
    "dtype": [32, "float33", None],
    "format": ["1", None, 2],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_document_of_other_kinds_than_it_can_have_is_a_store_error(
    mode: str, name: str, value: object, on_disk: Place
) -> None:
    path = Path(on_disk.target, "zarr.json")
    document = json.loads(path.read_bytes())
    ours = document["attributes"]["infinite_tensor_blob"]
    del ours["digest"]
    document["attributes"]["infinite_tensor_blob"] = sealed(ours | {name: value})
    # The array agrees with it, as far as it tells of it.
    if name in ("rows", "shape"):
        extents = value if isinstance(value, list) else [value]
        document["shape"] = [value, 2, 3] if name == "rows" else [10, *extents]
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"its zarr\.json is damaged, or not from a TensorBlob"):
        on_disk.open(mode)


def test_any_flipped_bit_in_the_document_is_found_or_harmless(local: Place) -> None:
    path = Path(local.target, "zarr.json")
    intact = path.read_bytes()
    errors = []
    for at in range(0, len(intact), 2):
        flip(path, at)
        try:
            assert torch.equal(local.open().read(), numbered(10))
        except StoreError as error:
            errors.append(str(error))
        path.write_bytes(intact)
    assert errors
    assert not [error for error in errors if "its zarr.json is damaged" not in error]


@pytest.mark.parametrize(
    "field", ["shape", "dtype", "block_size", "codecs", "incarnation", "rows", "edits", "marks", "format", "digest"]
)
def test_whatever_the_document_says_of_a_blob_it_is_not_believed_once_changed(local: Place, field: str) -> None:
    path = Path(local.target, "zarr.json")
    document = json.loads(path.read_bytes())
    ours = document["attributes"]["infinite_tensor_blob"]
    ours[field] = ours[field] + 1 if isinstance(ours[field], int) else ours[field][::-1] + ours[field]
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"its zarr\.json is damaged, or not from a TensorBlob"):
        local.open()


def test_a_damaged_document_is_an_error_and_w_makes_the_blob_anew(local: Place) -> None:
    path = Path(local.target, "zarr.json")
    flip(path, path.read_bytes().index(b'"rows"') + 1)
    with pytest.raises(StoreError, match=r"its zarr\.json is damaged"):
        local.open("r+")
    with local.open("w", dtype="float32", shape=SHAPE) as blob:
        blob.write(numbered(1))
    assert len(local.open()) == 1


def test_an_array_that_another_tool_has_resized_is_refused(local: Place) -> None:
    zarr.open_array(local.target, mode="r+").resize((4, *SHAPE))
    with pytest.raises(StoreError, match="another program has changed the metadata of the array"):
        local.open()


def test_a_blob_of_a_later_version_is_refused(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_tensor_stores.blobs.header.FORMAT", 2)
    made(folder)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="the format is 2, but this version reads up to 1"):
        folder.open()


def test_the_intact_part_can_be_kept(on_disk: Place) -> None:
    Path(on_disk.target, "c.2.0.0").unlink()
    with on_disk.open("a") as blob:
        assert blob.truncate(8) == 8
        blob.write(numbered(2, 8))
    assert torch.equal(on_disk.open().read(), numbered(10))


def test_a_file_that_has_been_checked_is_not_checked_again(local: Place) -> None:
    blob = local.open(max_cached_blocks=1)
    _ = blob[:]
    path = Path(local.target, "c.1.0.0")
    flip(path, 0)
    with pytest.raises(StoreError, match="is damaged"):
        _ = blob[:]
    flip(path, 0)
    assert torch.equal(blob[:], numbered(10))


def full(_descriptor: int, _data: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_nothing_that_was_stored(on_disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = on_disk.open("a")
    blob.write(numbered(1, 10))
    stored = {path: path.read_bytes() for path in Path(on_disk.target).glob("c.*")}
    with monkeypatch.context() as disk:
        disk.setattr("infinite_tensor_stores.blobs.location.os.write", full)
        with pytest.raises(StoreError, match=r"cannot be flushed: OSError.*No space left on device"):
            blob.flush()
        with pytest.raises(StoreError, match="No space left on device"):
            blob.write(numbered(9, 11))
        with pytest.raises(StoreError, match="No space left on device"):
            blob.close()
        assert (len(blob), blob.tell(), blob.closed) == (11, 11, False)
        assert torch.equal(on_disk.open().read(), numbered(10))
        assert {path: path.read_bytes() for path in Path(on_disk.target).glob("c.*")} == stored
    blob.write(numbered(9, 11))
    blob.close()
    assert torch.equal(on_disk.open().read(), numbered(20))
    assert not Path(on_disk.target, "writer.partial").exists()


def test_rows_that_could_not_be_stored_leave_no_block_behind(on_disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_disk.open("a") as blob:
        with monkeypatch.context() as disk:
            disk.setattr("infinite_tensor_stores.blobs.location.os.write", full)
            with pytest.raises(StoreError, match="No space left on device"):
                blob.write(numbered(4, 10))
        assert len(blob) == 10
    assert sorted(path.name for path in Path(on_disk.target).glob("c.*")) == ["c.0.0.0", "c.1.0.0", "c.2.0.0"]
    assert torch.equal(on_disk.open().read(), numbered(10))
