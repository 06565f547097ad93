"""A Ctrl-C within h5py leaves a document that is whole or none, and one within a read leaves the file to others."""

from __future__ import annotations

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import torch

from infinite_tensor import HDF5TileStore, TensorGroup
from tests.stores.hdf5.files import tensor
from tests.support.interrupts import LIBRARY, interrupted_at

_H5PY = (f"{Path(h5py.__file__).parent}/",)


def test_a_group_that_is_interrupted_while_it_is_saved_is_saved_or_is_not(tmp_path: Path) -> None:
    with HDF5TileStore(tmp_path / "s.h5", tile_size=8) as store:
        group = TensorGroup({"t": tensor(store)})
        for step in itertools.count(1):
            try:
                with interrupted_at(step, of=_H5PY):
                    group.save(store, "g")
            except KeyboardInterrupt:
                assert store.group_ids() in ([], ["g"])
                group.save(store, "g")
                assert list(store.open_group("g").keys()) == ["t"]
                store.clear_group("g")
            else:
                break
    assert step > 100


def test_an_interrupted_read_leaves_the_file_to_other_threads_though_its_traceback_is_kept(tmp_path: Path) -> None:
    with HDF5TileStore(tmp_path / "s.h5", tile_size=8) as store:
        t = tensor(store)
        expected = t[0:8, 0:8]
        store.flush()

        def read_from_the_file() -> torch.Tensor:
            t.clear_cache()
            found: torch.Tensor = t[0:8, 0:8]
            return found

        kept = []
        for step in itertools.count(1):
            try:
                with interrupted_at(step, of=(contextlib.__file__, *LIBRARY)):
                    read_from_the_file()
            except KeyboardInterrupt as interrupt:
                kept.append(interrupt)
                with ThreadPoolExecutor(1) as other:
                    assert torch.equal(other.submit(read_from_the_file).result(timeout=30), expected)
            else:
                break
    assert len(kept) > 100
