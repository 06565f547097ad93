"""A reader on a local disk never returns rows that somebody else has taken away before it was asked for them."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from infinite_tensor import StoreError, TensorBlob
from infinite_tensor.errors import RegionError
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import ROWS, SHAPE, made, numbered
from tests.support.interpreters import CONTEXT, Member, Team

LAST = 7
"""A row that is there before, and not in the blob of 5 rows."""


def from_the_cursor(blob: TensorBlob) -> torch.Tensor:
    blob.seek(LAST - 1)
    return blob.read(2)[1]


def one_after_the_other(blob: TensorBlob) -> torch.Tensor:
    blob.seek(LAST)
    return next(blob)


READS: dict[str, Callable[[TensorBlob], torch.Tensor]] = {
    "row": lambda blob: blob[LAST],
    "row from the end": lambda blob: blob[LAST - 10],
    "slice": lambda blob: blob[3:9][LAST - 3],
    "slice with steps": lambda blob: blob[1::3][2],
    "gather": lambda blob: blob[[0, LAST]][1],
    "batch": lambda blob: blob.__getitems__([0, LAST])[1],
    "iteration": one_after_the_other,
    "read": from_the_cursor,
}


def truncate(target: str) -> None:
    with TensorBlob.open(target, "r+") as blob:
        blob.truncate(5)


def truncate_and_append(target: str) -> None:
    with TensorBlob.open(target, "a") as blob:
        blob.truncate(5)
        blob.write(numbered(5, 50))


def overwrite(target: str) -> None:
    with TensorBlob.open(target, "r+") as blob:
        blob[5:] = numbered(5, 50)


def create(target: str) -> None:
    with TensorBlob.open(target, "w", dtype="float32", shape=SHAPE, block_size=4) as blob:
        blob.write(numbered(10, 50))


def move_away(target: str) -> None:
    Path(target).rename(f"{target}-before")


def move_another_here(target: str) -> None:
    create(f"{target}-next")
    move_away(target)
    Path(f"{target}-next").rename(target)


@pytest.fixture(scope="module")
def other() -> Iterator[Member]:
    """Another process."""
    with Team(1) as team:
        yield team.members[0]


@pytest.fixture
def reader(on_disk: Place) -> TensorBlob:
    """A reader that holds all blocks of a blob of ten rows."""
    blob = on_disk.open()
    assert torch.equal(blob[:], numbered(10))
    return blob


@pytest.mark.slow
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_rows_that_another_process_has_truncated_away_are_an_index_error(
    reader: TensorBlob, other: Member, read: Callable[[TensorBlob], torch.Tensor]
) -> None:
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301  (our own)
    assert torch.equal(copy[:], numbered(10))
    other.call(truncate, reader.name)
    for each in (reader, copy):
        with pytest.raises(RegionError, match=r"5 rows|row -3"):
            read(each)
        assert torch.equal(each[:], numbered(5))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("change", [truncate_and_append, overwrite])
def test_rows_that_another_process_has_written_again_are_the_new_ones(
    reader: TensorBlob,
    other: Member,
    change: Callable[[str], None],
    read: Callable[[TensorBlob], torch.Tensor],
) -> None:
    other.call(change, reader.name)
    assert torch.equal(read(reader), numbered(1, 52)[0])


@pytest.mark.parametrize("looks_between", [False, True])
def test_rows_that_a_restored_backup_does_not_have_are_the_ones_written_after_it(
    on_disk: Place, tmp_path: Path, *, looks_between: bool
) -> None:
    with on_disk.open("r+") as writer:
        writer.truncate(5)
    shutil.copytree(on_disk.target, tmp_path / "backup")
    with on_disk.open("a") as writer:
        writer.write(numbered(5, 50))
    reader = on_disk.open()
    assert torch.equal(reader[5:], numbered(5, 50))
    snapshot = reader.as_tensor()
    move_away(on_disk.target)
    shutil.copytree(tmp_path / "backup", on_disk.target)
    if looks_between:
        assert reader.refresh() == 5
    with on_disk.open("a") as writer:
        writer.write(numbered(5, 90))
    assert reader.refresh() == 10
    assert torch.equal(reader[5:], numbered(5, 90))
    with pytest.raises(StoreError, match="has been overwritten or truncated since"):
        snapshot[LAST]


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (TensorBlob.unlink, "there is no blob"),
        (shutil.rmtree, "there is no blob"),
        (move_away, "there is no blob"),
        (create, "has been recreated"),
        (move_another_here, "has been recreated"),
    ],
    ids=["unlink", "rmtree", "move", "create", "move another here"],
)
def test_rows_of_a_blob_that_is_not_there_any_more_are_a_store_error(
    reader: TensorBlob,
    other: Member,
    change: Callable[[str], object],
    message: str,
    read: Callable[[TensorBlob], torch.Tensor],
) -> None:
    other.call(change, reader.name)
    for _ in range(2):
        with pytest.raises(StoreError, match=message):
            read(reader)


def test_however_fast_rows_are_written_again_they_are_the_new_ones(local: Place) -> None:
    # A file system gives the number of a file that is gone to the next one, and its clock ticks every few milliseconds.
    with local.open("a") as writer:
        for round_ in range(300):
            reader = local.open()
            _ = reader[:]
            writer.truncate(5)
            writer.write(numbered(5, 10 * round_))
            writer.flush()
            assert torch.equal(reader[LAST], numbered(1, 10 * round_ + 2)[0])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are told by Linux")
def test_a_reader_holds_the_document_that_it_has_read_and_no_other(local: Place) -> None:
    # So its number is given to no other file, by which file systems tell files apart.
    reader = local.open()
    held = documents_held(local)
    truncate_and_append(local.target)
    _ = reader[LAST]
    assert (len(held), len(documents_held(local))) == (1, 1)
    assert documents_held(local) != held
    reader.close()
    dropped = local.open()
    del dropped
    assert documents_held(local) == []


def documents_held(place: Place) -> list[int]:
    """The numbers of the documents of a blob, replaced ones too, that this process holds open."""
    document = str(Path(place.target, "zarr.json"))
    held = [entry for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return [entry.stat().st_ino for entry in held if str(entry.readlink()).removesuffix(" (deleted)") == document]


@pytest.mark.parametrize("context", ["fork", pytest.param(CONTEXT, marks=pytest.mark.slow)], ids=["fork", "forkserver"])
def test_workers_of_a_data_loader_look_as_well(local: Place, other: Member, context: str | BaseContext) -> None:
    loader = DataLoader(
        local.open(), batch_size=5, num_workers=1, persistent_workers=True, multiprocessing_context=context
    )
    assert torch.equal(torch.cat(list(loader)), ROWS)
    other.call(truncate, local.target)
    with pytest.raises(RegionError, match="rows 5 to 9 are out of range for a blob of 5 rows"):
        list(loader)


@pytest.mark.parametrize("change", [TensorBlob.unlink, shutil.rmtree, truncate, overwrite, create])
def test_a_tensor_of_a_blob_does_not_return_them_either(
    reader: TensorBlob, other: Member, change: Callable[[str], object]
) -> None:
    t = reader.as_tensor()
    assert torch.equal(t[:], numbered(10))
    other.call(change, reader.name)
    with pytest.raises(StoreError, match=r"there is no blob|recreated|has been overwritten or truncated since"):
        t[LAST]


def test_where_no_disk_tells_rows_that_were_truncated_away_are_gone_after_a_refresh() -> None:
    place = Place("memory://outdated/rows", {})
    made(place)
    reader = place.open()
    assert torch.equal(reader[:], numbered(10))
    truncate_and_append(place.target)
    assert reader.refresh() == 10
    assert torch.equal(reader[LAST], numbered(1, 52)[0])
    truncate(place.target)
    assert reader.refresh() == 5
    with pytest.raises(RegionError, match="row 7 is out of range for a blob of 5 rows"):
        _ = reader[LAST]
    create(place.target)
    with pytest.raises(StoreError, match="has been recreated"):
        reader.refresh()
