"""A Ctrl-C in the middle of what h5py does leaves a document that is whole, or none."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import h5py

from infinite_tensor import HDF5TileStore, TensorGroup
from tests.stores.hdf5.files import tensor

_H5PY = str(Path(h5py.__file__).parent)


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """Run a call up to a line of h5py's; whether it got there."""
    left = step

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(_H5PY):
            return None
        # Where a ``with`` ends, its lock would stay taken.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith("with "):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_group_that_is_interrupted_while_it_is_saved_is_saved_or_is_not(tmp_path: Path) -> None:
    with HDF5TileStore(tmp_path / "s.h5", tile_size=8) as store:
        group, step = TensorGroup({"t": tensor(store)}), 1
        while interrupted_at(step, lambda: group.save(store, "g")):
            assert store.group_ids() in ([], ["g"])
            group.save(store, "g")
            assert list(store.open_group("g").keys()) == ["t"]
            store.clear_group("g")
            step += 1
        assert step > 100
