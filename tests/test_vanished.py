"""Folders and stores in memory that are deleted under an open store."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from infinite_tensor import ZarrTileStore
from tests.vanishing import VanishingPlaceTests

_numbers = itertools.count()


class TestFolder(VanishingPlaceTests):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "s.zarr"

    def open(self, **options: Any) -> ZarrTileStore:
        return ZarrTileStore(self.path, **options)

    def delete(self) -> None:
        shutil.rmtree(self.path)

    def keys(self) -> list[str]:
        return sorted(str(path) for path in self.path.parent.rglob("*"))


class TestMemory(VanishingPlaceTests):
    @pytest.fixture(autouse=True)
    def _place(self) -> Iterator[None]:
        self.path = f"vanished-{next(_numbers)}"
        self.files = fsspec.filesystem("memory")
        yield
        if self.files.exists(self.path):
            self.delete()

    def open(self, **options: Any) -> ZarrTileStore:
        return ZarrTileStore(f"memory://{self.path}", **options)

    def delete(self) -> None:
        self.files.rm(self.path, recursive=True)

    def keys(self) -> list[str]:
        return sorted(self.files.find(self.path))
