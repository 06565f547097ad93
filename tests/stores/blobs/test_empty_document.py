"""A `zarr.json` is never empty after a power failure; where a file system left one all the same, rows are found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import DamagedDataWarning, StoreError, TensorBlob
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import SHAPE, numbered

KIND: dict[str, Any] = {"dtype": "float32", "shape": SHAPE, "block_size": 4}


@pytest.fixture(params=[b"", bytes(700)], ids=["empty", "zeros"])
def emptied(request: pytest.FixtureRequest, on_disk: Place) -> Place:
    """A blob of ten rows in blocks of four, of whose document nothing is left."""
    Path(on_disk.target, "zarr.json").write_bytes(request.param)
    return on_disk


def test_each_document_is_on_the_disk_before_it_gets_its_name(folder: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    document, synchronize, on_the_disk = Path(folder.target, "zarr.json"), os.fsync, set()

    def fsync(descriptor: int) -> None:
        synchronize(descriptor)
        on_the_disk.add((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    with folder.open("w+", **KIND) as blob:
        for change in (lambda: blob.write(numbered(9)), blob.flush, lambda: blob.truncate(6)):
            change()
            assert (document.stat().st_ino, document.stat().st_size) in on_the_disk


@pytest.mark.parametrize("mode", ["r", "r+", "a"])
def test_the_error_says_how_rows_are_found_again(emptied: Place, mode: str) -> None:
    with pytest.raises(StoreError, match=r"zarr\.json is empty.*mode 'a' or 'r\+' and its original dtype and shape"):
        emptied.open(mode)


@pytest.mark.parametrize("mode", ["r+", "a"])
def test_rows_are_found_again(emptied: Place, mode: str) -> None:
    with pytest.warns(DamagedDataWarning, match="10 rows were found"), emptied.open(mode, **KIND) as blob:
        blob.seek(0, os.SEEK_END)
        blob.write(numbered(3, 10))
    assert torch.equal(emptied.open().read(), numbered(13))


def test_rows_behind_the_last_intact_block_do_not_count_and_those_of_damaged_ones_before_do(emptied: Place) -> None:
    for number in (0, 2):
        os.truncate(Path(emptied.target, f"c.{number}.0.0"), 3)
    with pytest.warns(DamagedDataWarning, match="8 rows were found"), emptied.open("r+", **KIND) as blob:
        assert torch.equal(blob[4:], numbered(4, 4))
        with pytest.raises(StoreError, match=r"block c\.0\.0\.0 \(rows 0 to 3\) is damaged"):
            blob[0]


@pytest.mark.parametrize(("zeros", "found"), [(2, 7), (3, 5)], ids=["incomplete block", "full block"])
def test_zeros_at_the_end_are_told_from_no_rows_unless_the_last_block_is_full(
    folder: Place, zeros: int, found: int
) -> None:
    with folder.open("w", **KIND) as blob:
        blob.write(torch.cat([numbered(5), torch.zeros(zeros, *SHAPE)]))
    os.truncate(Path(folder.target, "zarr.json"), 0)
    with pytest.warns(DamagedDataWarning, match=f"{found} rows were found .* Rows of zeros"):
        folder.open("a", **KIND).close()


@pytest.mark.parametrize("kind", [{"block_size": 3}, {"shape": (2, 3, 1)}, {"dtype": "float64", "block_size": 8}])
def test_where_no_block_fits_what_is_given_nothing_is_changed(emptied: Place, kind: dict[str, object]) -> None:
    before = {path.name: path.read_bytes() for path in Path(emptied.target).iterdir() if path.name != "writer.lock"}
    with pytest.raises(StoreError, match=r"none of its 3 blocks can be read with dtype=.* give dtype, shape, block_si"):
        emptied.open("a", **KIND | kind)
    assert before == {
        path.name: path.read_bytes() for path in Path(emptied.target).iterdir() if path.name != "writer.lock"
    }


def test_mode_w_and_unlink_take_the_place(emptied: Place) -> None:
    with emptied.open("w", **KIND) as blob:
        blob.write(numbered(2))
    assert torch.equal(emptied.open().read(), numbered(2))
    os.truncate(Path(emptied.target, "zarr.json"), 0)
    TensorBlob.unlink(emptied.target)
    assert not Path(emptied.target).exists()


def test_what_lies_beside_an_empty_document_and_is_of_no_blob_is_left_alone(emptied: Place) -> None:
    Path(emptied.target, "thesis.txt").write_text("years of work")
    for begin in (TensorBlob.unlink, lambda target: TensorBlob.open(target, "w", **KIND)):
        with pytest.raises(StoreError, match=r"thesis\.txt"):
            begin(emptied.target)
    with pytest.raises(StoreError, match=r"thesis\.txt"):
        emptied.open("a", **KIND)
    assert Path(emptied.target, "c.0.0.0").exists()
