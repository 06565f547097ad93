"""Places for blobs: a local disk, with and without compression, and a storage that zarr knows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from zarr.codecs import ZstdCodec

from infinite_tensor import TensorBlob
from tests.stores.blobs.rows import made
from tests.support.stores import sample

_numbers = itertools.count()


@dataclass(frozen=True)
class Place:
    """Where a test makes its blob, and what it tells `TensorBlob.open` of it."""

    target: str
    options: dict[str, Any]

    def open(self, mode: Any = "r", **more: Any) -> TensorBlob:
        return TensorBlob.open(self.target, mode, **self.options, **more)


@pytest.fixture(params=sample(["folder", "compressed", "memory"], "folder", "compressed"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of place in turn."""
    if request.param == "memory":
        return Place(f"memory://blobs-{next(_numbers)}/rows", {})
    options = {"compressors": ZstdCodec(level=1)} if request.param == "compressed" else {}
    return Place(str(tmp_path / "blob"), options)


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    """A local disk."""
    return Place(str(tmp_path / "blob"), {})


@pytest.fixture
def filled(place: Place) -> Place:
    """Each kind of place in turn, with a blob of ten rows."""
    made(place)
    return place


@pytest.fixture
def local(folder: Place) -> Place:
    """A local disk, with a blob of ten rows."""
    made(folder)
    return folder


@pytest.fixture(params=[None, ZstdCodec(level=1)], ids=["mapped", "decoded"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A local disk, with a blob of ten rows whose blocks are mapped, or decoded."""
    place = Place(str(tmp_path / "blob"), {"compressors": request.param})
    made(place)
    return place
