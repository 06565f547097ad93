"""FIFOs, devices and links in the place of a blob's files: an error says so, and nothing waits, grows or is harmed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import StoreError, TensorBlob
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import SHAPE, append, numbered
from tests.support.bounds import limit_memory
from tests.support.interpreters import Member, Team
from tests.support.irregular import IRREGULAR, REASON
from tests.support.stores import sample

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is told by Linux")

PUT = IRREGULAR | {"a folder": Path.mkdir}
BLOCK = r"block c\.1\.0\.0 \(rows 4 to 7\) is damaged"
DOCUMENT = r"its zarr\.json is damaged, or not from a TensorBlob"
WHY = rf"({REASON}|68719476736 bytes, not 100|a folder, not a regular file)"
NOT_WAITED_FOR = ["a FIFO", "a link to a FIFO", "a link to /dev/zero", "a link to itself", "a socket"]


def read(target: str, mode: Any = "r") -> torch.Tensor:
    """All rows, in a process whose memory is limited."""
    limit_memory()
    with TensorBlob.open(target, mode) as blob:
        return blob[:]


def create(target: str) -> None:
    TensorBlob.open(target, "w", dtype="float32", shape=SHAPE).close()


@pytest.fixture
def other() -> Iterator[Member]:
    """A process that is stopped if it hangs."""
    with Team(1) as team:
        yield team.members[0]


@pytest.fixture
def blob(on_disk: Place) -> Path:
    """The folder of a blob of ten rows."""
    return Path(on_disk.target)


@pytest.mark.parametrize("kind", sample(PUT, "a FIFO", "a file of 64 GiB", "a folder"))
@pytest.mark.parametrize(("key", "said"), [("c.1.0.0", rf"{BLOCK}: {WHY}"), ("zarr.json", rf"{DOCUMENT} \({WHY}\)")])
def test_a_file_that_is_not_regular_or_of_no_bounded_size_is_damaged(
    blob: Path, other: Member, key: str, said: str, kind: str
) -> None:
    (blob / key).unlink()
    PUT[kind](blob / key)
    for mode in ("r", "r+"):
        with pytest.raises(StoreError, match=said):
            other.call(read, str(blob), mode)


@pytest.mark.parametrize("key", ["zarr.json", "c.1.0.0"])
def test_a_link_to_a_regular_file_is_followed(blob: Path, other: Member, key: str) -> None:
    (blob / key).rename(blob.parent / "elsewhere")
    (blob / key).symlink_to(blob.parent / "elsewhere")
    assert torch.equal(other.call(read, str(blob)), numbered(10))


@pytest.mark.parametrize("begin", [TensorBlob.unlink, append, create], ids=["unlink", "append", "create"])
def test_a_fifo_in_the_place_of_the_document_does_not_stop_a_writer(
    blob: Path, other: Member, begin: Callable[[str], object]
) -> None:
    (blob / "zarr.json").unlink()
    os.mkfifo(blob / "zarr.json")
    with pytest.raises(StoreError, match=rf"{DOCUMENT} \(not a regular file\)"):
        other.call(begin, str(blob))


@pytest.mark.parametrize("kind", NOT_WAITED_FOR)
def test_what_lies_where_a_writer_begins_its_files_is_replaced(blob: Path, other: Member, kind: str) -> None:
    PUT[kind](blob / "writer.partial")
    other.call(append, str(blob))
    assert torch.equal(TensorBlob.open(blob).read(), numbered(13))


@pytest.mark.parametrize("key", ["writer.partial", "writer.lock"])
def test_a_file_that_a_link_leads_to_is_not_written_to(blob: Path, key: str) -> None:
    letter = blob.parent / "letter.txt"
    letter.write_text("dear")
    (blob / key).unlink(missing_ok=True)
    (blob / key).symlink_to(letter)
    if key == "writer.lock":
        with pytest.raises(StoreError, match="cannot be opened"):
            append(str(blob))
        (blob / key).unlink()
    append(str(blob))
    assert letter.read_text() == "dear"


@pytest.mark.parametrize("kind", NOT_WAITED_FOR)
def test_a_lock_that_is_not_a_regular_file_is_an_error_until_it_is_deleted(
    blob: Path, other: Member, kind: str
) -> None:
    (blob / "writer.lock").unlink()
    PUT[kind](blob / "writer.lock")
    # Told apart from one that is held.
    said = r"cannot be opened" + (r": writer\.lock is not a regular file" if kind == "a FIFO" else "")
    for _ in range(2):
        with pytest.raises(StoreError, match=said):
            other.call(append, str(blob))
    (blob / "writer.lock").unlink()
    other.call(append, str(blob))


def test_a_file_in_the_place_of_a_blob_is_neither_deleted_nor_taken_for_nothing(tmp_path: Path) -> None:
    photograph = tmp_path / "sea.jpg"
    photograph.write_bytes(b"pixels")
    with pytest.raises(StoreError, match=r"sea\.jpg cannot be deleted: NotADirectoryError"):
        TensorBlob.unlink(photograph)
    with pytest.raises(StoreError, match=r"sea\.jpg cannot be created: NotADirectoryError"):
        create(str(photograph))
    assert photograph.read_bytes() == b"pixels"
