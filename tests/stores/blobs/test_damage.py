"""What is wrong with a blob on disk is said, never read as zeros or as other rows."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import zarr

from infinite_tensor import StoreError, TensorBlob
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import SHAPE, made, numbered


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


HARM: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "too short": lambda path: os.truncate(path, path.stat().st_size - 3),
    **{f"bit {seed}": lambda path, seed=seed: flip(path, int(seed * path.stat().st_size)) for seed in (0, 0.3, 0.99)},  # type: ignore[misc]
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_a_damaged_block_is_named_and_others_are_read(on_disk: Place, harm: Callable[[Path], object]) -> None:
    harm(Path(on_disk.target, "c.1.0.0"))
    blob = on_disk.open()
    for index in (5, slice(0, 10), [9, 4]):
        with pytest.raises(StoreError, match=r"c\.1\.0\.0 \(rows 4 to 7\) is damaged"):
            blob[index]
    assert torch.equal(blob[8:], numbered(2, 8))
    assert torch.equal(blob[:4], numbered(4))


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
    with pytest.raises(StoreError, match=rf"rows 11 to {rows - 1}.* truncate\(11\)"):
        reader[10:rows]
    assert torch.equal(reader[:8], numbered(8))
    shutil.copy(Path(on_disk.target, "c.2.0.0"), copy.target)
    assert torch.equal(reader[:rows], numbered(rows))


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
    with pytest.raises(StoreError, match="damaged"):
        local.open()


@pytest.mark.parametrize("document", [b"", bytes(700), b"{}", b"[]", b'{"attributes": {}}'], ids=len)
def test_a_damaged_document_is_an_error_and_w_makes_the_blob_anew(local: Place, document: bytes) -> None:
    path = Path(local.target, "zarr.json")
    path.write_bytes(document)
    for mode in ("r", "r+", "a"):
        with pytest.raises(StoreError, match="damaged"):
            local.open(mode, dtype="float32", shape=SHAPE)
    if document.strip(b"\0"):
        with pytest.raises(StoreError, match="not a TensorBlob"):
            TensorBlob.unlink(local.target)
        return
    with local.open("w", dtype="float32", shape=SHAPE) as blob:
        blob.write(numbered(1))
    assert torch.equal(local.open()[:], numbered(1))
    path.write_bytes(document)
    (letter := path.with_name("letter.txt")).write_text("dear")
    for begin in (TensorBlob.unlink, lambda target: TensorBlob.open(target, "w", dtype="int8", shape=1)):
        with pytest.raises(StoreError, match=r"letter\.txt"):
            begin(local.target)
    letter.unlink()
    TensorBlob.unlink(local.target)
    assert not path.parent.exists()


def test_each_document_is_on_the_disk_before_it_gets_its_name(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    document, synchronize, on_the_disk = Path(folder.target, "zarr.json"), os.fsync, set()

    def fsync(descriptor: int) -> None:
        synchronize(descriptor)
        on_the_disk.add((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    with folder.open("w+", dtype="float32", shape=SHAPE, block_size=4) as blob:
        for change in (lambda: blob.write(numbered(9)), blob.flush, lambda: blob.truncate(6)):
            change()
            assert (document.stat().st_ino, document.stat().st_size) in on_the_disk


def test_an_array_that_another_tool_has_resized_is_refused(local: Place) -> None:
    zarr.open_array(local.target, mode="r+").resize((4, *SHAPE))
    with pytest.raises(StoreError, match="another program"):
        local.open()


def test_a_blob_of_a_later_version_is_refused(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_tensor_stores.blobs.header.FORMAT", 2)
    made(folder)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="format is 2"):
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
        with pytest.raises(StoreError, match="No space left on device"):
            blob.write(numbered(4, 11))
    assert len(blob) == 11
    blob.write(numbered(9, 11))
    blob.close()
    assert torch.equal(on_disk.open().read(), numbered(20))
    assert not Path(on_disk.target, "writer.partial").exists()
