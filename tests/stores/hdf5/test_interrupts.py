"""A Ctrl-C in the middle of what h5py does leaves a document that is whole, or none."""

from __future__ import annotations

import itertools
from pathlib import Path

import h5py

from infinite_tensor import HDF5TileStore, TensorGroup
from tests.stores.hdf5.files import tensor
from tests.support.interrupts import interrupted_at

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
