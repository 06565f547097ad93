"""Names that users of the package tensorblob read: what stands behind them there stands behind them here."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from zarr.storage import LocalStore, MemoryStore

from infinite_tensor import TensorBlob
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import SHAPE, blocks_held, made, numbered


def test_filename_is_the_absolute_path_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with TensorBlob.open(filename="~/rows", mode="w", dtype="float32", shape=SHAPE) as blob:
        assert blob.filename == str(tmp_path / "rows")
        blob.write(numbered(3))
    for given in ("rows", Path("rows"), "~/rows", f"file://{tmp_path}/rows", LocalStore("rows")):
        assert TensorBlob.open(given).filename == str(tmp_path / "rows")


def test_filename_elsewhere_is_where_it_is_without_logins() -> None:
    with TensorBlob.open("memory://names/rows", "w", dtype="int8", shape=1) as blob:
        assert blob.filename == "memory://names/rows"
    with TensorBlob.open(MemoryStore(), "w", dtype="int8", shape=1) as blob:
        assert blob.filename == blob.name


def test_a_relative_path_means_the_same_folder_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(Place("rows", {}))
    blob = TensorBlob.open("rows")
    pickled = pickle.dumps(blob)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert torch.equal(pickle.loads(pickled)[:], numbered(10))  # noqa: S301  (our own)
    assert torch.equal(pickle.loads(pickle.dumps(blob))[:], numbered(10))  # noqa: S301
    assert torch.equal(blob.as_tensor()[:], numbered(10))


def test_max_cached_blocks_is_how_many_blocks_are_held_at_most(place: Place) -> None:
    made(place, 20)
    blob = place.open(max_cached_blocks=2)
    _ = blob[:]
    assert (blob.max_cached_blocks, blocks_held(blob)) == (2, 2)
    _ = (unlimited := place.open())[:]
    assert unlimited.max_cached_blocks >= blocks_held(unlimited) == 5


def test_unlink_finishes_what_a_killed_one_has_begun(filled: Place) -> None:
    blob = filled.open()
    blob._rows.location.home.delete(["zarr.json"])
    assert TensorBlob.unlink(filled.target) is True
    assert not Path(filled.target).exists()
    assert [key for key in blob._rows.location.names() if key.startswith("c.")] == []
