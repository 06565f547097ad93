"""A write to an HDF5 file that fails midway, and is tried again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from infinite_tensor import FunctionChangedWarning, HDF5TileStore, InfiniteTensor, StoreError, TensorWindow


def test_what_is_stored_at_the_second_attempt_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1.0, 2.0]

    def tensor(store: HDF5TileStore) -> InfiniteTensor:
        def f(_ctx: object) -> torch.Tensor:
            return torch.full((8,), values[0])

        return InfiniteTensor((None,), f, TensorWindow((8,)), tile_store=store, tensor_id="t", version=1)

    write, failed = h5py.Dataset.__setitem__, list[str]()

    def fail_once(self: h5py.Dataset, at: Any, value: Any) -> None:
        write(self, at, value)
        if self.name.endswith("/index") and not failed:
            failed.append(self.name)
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(h5py.Dataset, "__setitem__", fail_once)
    with HDF5TileStore(tmp_path / "store.h5", tile_size=8) as store:
        t = tensor(store)
        # The end of the fill is the second attempt, where the first one was made in the background before it.
        with suppress(StoreError):
            t.fill((slice(0, 32),), progress=False)
        store.flush()
        assert failed
    with HDF5TileStore(tmp_path / "store.h5") as store:
        assert store.tensor_info("t").tiles_complete == 4
        values.reverse()
        with pytest.warns(FunctionChangedWarning):
            t = tensor(store)
        t.invalidate()
        assert t[0:32].tolist() == [2.0] * 32
    with HDF5TileStore(tmp_path / "store.h5", mode="r") as store:
        assert store.open("t")[0:32].tolist() == [2.0] * 32
