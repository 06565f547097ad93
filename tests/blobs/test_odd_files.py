"""Pipes, devices and links in the place of a blob's files: an error says so, and nothing waits, grows or is harmed."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from zarr.codecs import GzipCodec

from infinite_tensor import StoreError, TensorBlob
from tests.blobs.conftest import Place
from tests.blobs.rows import made, numbered
from tests.processes.fork_server import Member, Team

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is told by Linux")

MEMORY = 2**30
"""Bytes that a process may take beyond those that it has."""


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


ODD: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "zeros": zeros,
    "folder": lambda path: path.mkdir(),
    "large": sparse,
}


def read(target: str) -> torch.Tensor:
    """All rows, in a process whose memory is limited."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    return TensorBlob.open(target).read()


def write(target: str) -> None:
    with TensorBlob.open(target, "a") as blob:
        blob.write(numbered(3, 10))


@pytest.fixture
def other() -> Iterator[Member]:
    """A process that is stopped if it hangs."""
    with Team(1) as team:
        yield team.members[0]


@pytest.fixture(params=[None, GzipCodec(level=1)], ids=["mapped", "decoded"])
def blob(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of a blob of ten rows."""
    place = Place(str(tmp_path / "blob"), {"compressors": request.param})
    made(place)
    return Path(place.target)


@pytest.mark.parametrize("put", ODD.values(), ids=ODD)
@pytest.mark.parametrize("key", ["zarr.json", "c.1.0.0"])
def test_what_is_no_regular_file_of_a_bounded_size_is_said_to_a_reader(
    blob: Path, other: Member, key: str, put: Callable[[Path], None]
) -> None:
    (blob / key).unlink()
    put(blob / key)
    what = (
        r"its zarr\.json is damaged, or of something else" if key == "zarr.json" else r"block c\.1\.0\.0, .* is damaged"
    )
    with pytest.raises(StoreError, match=rf"{what}.*(not a regular file|it has \d+ bytes, )"):
        other.call(read, str(blob))


@pytest.mark.parametrize("key", ["zarr.json", "c.1.0.0"])
def test_a_link_to_a_regular_file_is_followed(blob: Path, other: Member, key: str) -> None:
    (blob / key).rename(blob.parent / "elsewhere")
    (blob / key).symlink_to(blob.parent / "elsewhere")
    assert torch.equal(other.call(read, str(blob)), numbered(10))


@pytest.mark.parametrize("begin", [TensorBlob.unlink, write], ids=["unlink", "write"])
def test_a_pipe_in_the_place_of_the_document_does_not_stop_a_writer(
    blob: Path, other: Member, begin: Callable[[str], object]
) -> None:
    (blob / "zarr.json").unlink()
    os.mkfifo(blob / "zarr.json")
    with pytest.raises(StoreError, match="is not a regular file"):
        other.call(begin, str(blob))


@pytest.mark.parametrize("put", ["pipe", "zeros"])
def test_what_lies_where_a_writer_begins_its_files_is_replaced(blob: Path, other: Member, put: str) -> None:
    ODD[put](blob / "writer.partial")
    other.call(write, str(blob))
    assert torch.equal(TensorBlob.open(blob).read(), numbered(13))


@pytest.mark.parametrize("key", ["writer.partial", "writer.lock"])
def test_a_file_that_a_link_leads_to_is_not_written_to(blob: Path, key: str) -> None:
    letter = blob.parent / "letter.txt"
    letter.write_text("dear")
    (blob / key).unlink(missing_ok=True)
    (blob / key).symlink_to(letter)
    if key == "writer.lock":
        with pytest.raises(StoreError, match="cannot be opened"):
            write(str(blob))
        (blob / key).unlink()
    write(str(blob))
    assert letter.read_text() == "dear"


def test_a_lock_that_is_no_file_is_let_go_of(blob: Path, other: Member) -> None:
    (blob / "writer.lock").unlink()
    os.mkfifo(blob / "writer.lock")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"cannot be opened: .*writer\.lock is not a regular file"):
            other.call(write, str(blob))
    (blob / "writer.lock").unlink()
    other.call(write, str(blob))
