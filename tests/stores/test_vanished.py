"""Folders, stores in memory and HDF5 files that are deleted, or cleared by somebody else, under an open store."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import h5py
import pytest

from infinite_tensor import HDF5TileStore, ZarrTileStore
from tests.support.vanishing import VanishingPlaceTests

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


class TestFile(VanishingPlaceTests):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "s.h5"

    def open(self, **options: Any) -> HDF5TileStore:
        return HDF5TileStore(self.path, **options)

    def delete(self) -> None:
        self.path.unlink()

    def keys(self) -> list[str]:
        if not self.path.exists():
            return []
        with h5py.File(self.path, "r") as file:
            found: list[str] = []
            file.visit(found.append)
            datasets = [name for name in found if hasattr(file[name], "dtype")]
            return found + [f"{name}: {file[name][()].tolist()}" for name in datasets]
