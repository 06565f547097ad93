"""A blob as an arg of an InfiniteTensor."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    StoreError,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
)
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import made, numbered


class Mean:
    """The mean of two rows; counts how often it is computed."""

    calls = 0

    def __call__(self, _ctx: tuple[int, ...], pair: torch.Tensor) -> torch.Tensor:
        Mean.calls += 1
        return pair.mean(0, keepdim=True)


def means(blob: Any, rows: int, store: TileStore) -> InfiniteTensor:
    """The mean of each pair of rows."""
    return InfiniteTensor(
        (rows // 2, 2, 3),
        Mean(),
        TensorWindow((1, 2, 3)),
        args=[blob],
        args_windows=[TensorWindow((2, 2, 3))],
        tile_store=store,
        tensor_id="means",
    )


@pytest.fixture(autouse=True)
def no_calls() -> None:
    Mean.calls = 0


EXPECTED = numbered(10).reshape(5, 2, 2, 3).mean(1)


def test_a_blob_is_a_legal_arg_and_stored_nowhere_else(filled: Place, tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path / "store")
    t = means(filled.open(), 10, store)
    assert t.fill((slice(0, 5),), progress=False).windows == 5
    assert torch.equal(t[:], EXPECTED)
    assert torch.equal(t.args[0][3:7], numbered(4, 3))
    assert torch.equal(t.args[0][9, 1], numbered(1, 9)[0, 1])
    assert torch.equal(t.args[0].stored_only(-1)[2:9, 1], t.args[0][2:9, 1])
    assert store.tensor_ids() == ["means"]


def test_a_blob_that_is_given_twice_is_one_tensor(local: Place) -> None:
    blob, window = local.open(), TensorWindow((1, 2, 3))
    t = InfiniteTensor((10, 2, 3), lambda _, a, b: a + b, window, args=[blob, blob], args_windows=[window, window])
    assert t.args[0] is t.args[1]
    assert torch.equal(t[:], 2 * numbered(10))


def test_rows_that_wait_are_flushed_before_they_are_a_tensor(folder: Place) -> None:
    made(folder, 0)
    with pytest.raises(ValidationError, match="at least one row"):
        folder.open().as_tensor()
    with folder.open("a") as blob:
        blob.write(numbered(10))
        with pytest.raises(ValidationError, match="convert the result"):
            blob.as_tensor().to(torch.float64)
        assert torch.equal(blob.as_tensor()[:], numbered(10))


def test_a_tensor_goes_on_after_its_blob_is_closed_or_has_grown(local: Place) -> None:
    blob = local.open()
    t = means(blob, 10, MemoryTileStore())
    blob.close()
    with local.open("a") as writer:
        writer.write(numbered(4, 10))
    assert t.args[0].shape == (10, 2, 3)
    assert torch.equal(t[:], EXPECTED)


@pytest.mark.parametrize("change", ["overwrite", "truncate", "anew"])
def test_a_tensor_whose_rows_have_changed_is_not_read(local: Place, change: str) -> None:
    t = local.open().as_tensor()
    assert torch.equal(t[0:2], numbered(2))
    pickled = pickle.dumps(t)
    with local.open("w" if change == "anew" else "r+") as blob:
        if change == "overwrite":
            blob[5] = 0
        elif change == "truncate":
            blob.truncate(9)
        blob.seek(0, 2)
        blob.write(numbered(10))
    with pytest.raises(StoreError, match=r"overwritten or truncated|recreated"):
        t[0:2]
    # A pickle has the place of the blob, and no rows.
    with pytest.raises(StoreError, match="overwritten or truncated"):
        pickle.loads(pickled)[0:2]  # noqa: S301  (our own)


def test_what_is_computed_from_a_blob_is_found_again(local: Place, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "store") as store:
        assert torch.equal(means(local.open(), 10, store)[:], EXPECTED)
    with ZarrTileStore(tmp_path / "store") as store:
        assert torch.equal(means(local.open(), 10, store)[:], EXPECTED)
        reopened = store.open("means", Mean(), [local.open()])
        assert torch.equal(reopened[:], EXPECTED)
    assert Mean.calls == 5


def test_a_blob_that_has_grown_is_another_arg_and_its_first_rows_are_the_same(local: Place, tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path / "store")
    means(local.open(), 10, store)[:]
    with local.open("a") as writer:
        writer.write(numbered(4, 10))
    with pytest.raises(ValidationError, match=r"args\[0\]\.digest"):
        means(local.open(), 10, store)
    assert torch.equal(means(local.open().as_tensor(10), 10, store)[:], EXPECTED)
    assert Mean.calls == 5


def edited(blob: TensorBlob, at: int) -> None:
    blob[5] = at


def grown(blob: TensorBlob, at: int) -> None:
    blob.seek(0, os.SEEK_END)
    blob.write(torch.full((4, 2, 3), float(at)))


@pytest.mark.parametrize(("change", "rows", "in_common"), [(edited, 10, 0), (grown, 14, 10)])
def test_copies_that_were_changed_apart_are_two_args(
    local: Place, tmp_path: Path, change: Callable[[TensorBlob, int], None], rows: int, in_common: int
) -> None:
    copy = replace(local, target=str(tmp_path / "copy"))
    shutil.copytree(local.target, copy.target)
    for at, place in enumerate((local, copy)):
        with place.open("r+") as writer:
            change(writer, at)
    store = ZarrTileStore(tmp_path / "store")
    means(local.open(), rows, store)[:]
    with pytest.raises(ValidationError, match=r"args\[0\]\.digest"):
        means(copy.open(), rows, store)
    if in_common:
        first, second = (place.open().as_tensor(in_common) for place in (local, copy))
        assert first.version == second.version


def test_a_document_keeps_few_marks_and_none_stands_for_the_rows_of_two_writers(local: Place) -> None:
    header = first = local.open()._rows.header
    for at in range(10, 1000):
        header = header.after(at + 1, 0, str(at))
    assert len(header.to_bytes()) < 30_000
    marks = [header.version(rows)["mark"] for rows in range(1, 1001)]
    assert marks[-200:] == [str(at) for at in range(800, 1000)]
    assert not header.continues(first)


def test_rows_that_are_being_overwritten_are_no_tensor(local: Place) -> None:
    reader = local.open()
    with local.open("r+") as writer:
        writer[3] = 0
        for each in (reader, local.open()):
            with pytest.raises(StoreError, match="being overwritten"):
                each.as_tensor()
        assert writer.as_tensor()[3].sum() == 0
        writer[4] = 0
    assert local.open().as_tensor()[3:5].sum() == 0


@pytest.mark.parametrize("change", ["overwrite", "truncate"])
def test_rows_that_change_while_a_tensor_is_read_do_not_get_into_it(place: Place, change: str) -> None:
    made(place, block_size=1)
    reader = place.open()
    with place.open("r+") as writer:

        def changed(ctx: tuple[int, ...], rows: torch.Tensor) -> torch.Tensor:
            if ctx[0] == 0 and change == "overwrite":
                writer[1:] = 0
                writer.flush()
            elif ctx[0] == 0:
                writer.truncate(5)
            return rows

        window = TensorWindow((1, 2, 3))
        t = InfiniteTensor((10, 2, 3), changed, window, args=[reader], args_windows=[window])
        with pytest.raises(StoreError, match="overwritten or truncated"):
            t[:]
        with pytest.raises(StoreError, match="overwritten or truncated"):
            t[1:5]


def test_rows_that_change_while_their_block_is_opened_are_not_read(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = local.open().as_tensor()
    system = os.open
    late: list[Any] = []

    def changed(path: Any, flags: int, mode: int = 0o777) -> int:
        if not late and Path(path).name == "c.0.0.0":
            late.append(path)
            writer[0] = 0
            writer.flush()
        return system(path, flags, mode)

    with local.open("r+") as writer:
        monkeypatch.setattr(os, "open", changed)
        with pytest.raises(StoreError, match="overwritten or truncated"):
            t[0:2]
    assert late


def test_a_reader_that_knows_of_no_change_yet_makes_a_tensor_of_what_is_left(place: Place) -> None:
    made(place)
    reader, other = place.open(), place.open()
    with place.open("r+") as writer:
        writer.truncate(5)
    assert torch.equal(reader.as_tensor()[:], numbered(5))
    with pytest.raises(ValidationError, match="rows must be from 1 to 5, got 7"):
        other.as_tensor(7)
    made(place, 20)
    with pytest.raises(StoreError, match="recreated since it was opened"):
        other.as_tensor()


def test_a_blob_stands_in_a_group_beside_what_is_computed_from_it(filled: Place) -> None:
    blob = filled.open()
    t = means(blob, 10, MemoryTileStore())
    group = TensorGroup({"rows": blob, "means": t}, dims=(0,), scale={"means": 0.5})
    assert torch.equal(group["rows"][4:6], numbered(2, 4))
    assert group.fill(slice(0, 10), progress=False).windows == 5
    assert group.is_filled(slice(0, 10))
