"""Windows in memory, as ``f`` returned them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.blend import Array, as_array, as_tensor
from infinite_tensor.boxes import Index, IntArray
from infinite_tensor.errors import ValidationError
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tilestore.contract import Access, TileStore, check_same, unknown_tensor, warn_of_changes
from infinite_tensor.tilestore.lru import LRU, check_limit
from infinite_tensor.tilestore.report import TensorInfo


class MemoryTileStore(TileStore):
    """Keeps windows in memory, in one cache for all its tensors, least recently used first out.

    A read in progress keeps the windows it needs until their last use, so a read may exceed the limits
    and still finish; afterwards they hold.

    Parameters
    ----------
    cache_size_bytes : int, optional
        Limit in bytes for all windows together. None: no limit.
    cache_size_windows : int, optional
        Limit in windows. None: no limit.
    """

    def __init__(self, cache_size_bytes: int | None = None, cache_size_windows: int | None = None) -> None:
        self._windows: LRU[tuple[str, Index], Array] = LRU(
            check_limit("cache_size_bytes", cache_size_bytes),
            check_limit("cache_size_windows", cache_size_windows),
        )
        self._specs: dict[str, TensorSpec] = {}
        self._awaited: dict[tuple[str, Index], list[_MemoryAccess]] = {}
        super().__init__()

    @property
    def cache_size_bytes(self) -> int | None:
        """Limit in bytes, None for no limit."""
        return self._windows.max_bytes

    @cache_size_bytes.setter
    def cache_size_bytes(self, value: int | None) -> None:
        with self._lock:
            self._windows.max_bytes = check_limit("cache_size_bytes", value)
            self._windows.evict()

    @property
    def cache_size_windows(self) -> int | None:
        """Limit in windows, None for no limit."""
        return self._windows.max_items

    def register(self, spec: TensorSpec) -> None:
        """Make a tensor known; one of the same id and definition shares its windows."""
        with self._lock:
            self._check_open()
            known = self._known(spec)
            warn_of_changes(spec.tensor_id, known.definition.functions, spec.definition.functions, self)

    def access(self, spec: TensorSpec) -> Access:
        """Begin a read of a tensor."""
        with self._lock:
            self._check_open()
            return _MemoryAccess(self, self._known(spec))

    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:
        """Convert all windows of a tensor; they replace the old ones once every one is converted."""
        with self._lock:
            self._check_open()
            self._known(spec)
            converted = [
                (key, as_array(as_tensor(array).to(moved.device, moved.dtype)))
                for key, array in self._windows.items()
                if key[0] == spec.tensor_id
            ]
            for key, array in converted:
                self._windows.put(key, array, array.nbytes)
            self._specs[spec.tensor_id] = moved
            self._windows.evict()

    def clear_cache(self, tensor_id: str) -> None:
        """Forget all windows of a tensor."""
        with self._lock:
            self._check_open()
            for key in self._windows:
                if key[0] == tensor_id:
                    self._windows.pop(key)

    def clear_tensor(self, tensor_id: str) -> None:
        """Forget a tensor and all its windows."""
        with self._lock:
            self.clear_cache(tensor_id)
            self._specs.pop(tensor_id, None)

    def tensor_ids(self) -> list[str]:
        """Ids of all tensors made on this store, sorted."""
        with self._lock:
            self._check_open()
            return sorted(self._specs)

    def tensor_definition(self, tensor_id: str) -> dict[str, Any]:
        """The definition of one tensor as JSON."""
        with self._lock:
            known = self.tensor_ids()
            if tensor_id not in self._specs:
                raise unknown_tensor(tensor_id, known, self)
            return dict(self._specs[tensor_id].definition.to_json())

    def tensor_info(self, tensor_id: str) -> TensorInfo:
        """What is in memory of one tensor; a window counts as a complete tile."""
        with self._lock:
            definition = self.tensor_definition(tensor_id)
            sizes = [array.nbytes for key, array in self._windows.items() if key[0] == tensor_id]
            return TensorInfo(tensor_id, definition, len(sizes), 0, sum(sizes), "memory")

    def close(self, *, discard: bool = False) -> None:  # noqa: ARG002  (there is nothing that could not be stored)
        """Forget everything."""
        with self._lock:
            for key in self._windows:
                self._windows.pop(key)
            self._specs.clear()
            self._closed = True

    def _registered(self) -> list[str]:
        return self.tensor_ids()

    def _limit_cache(self, limit: int | None) -> None:
        self.cache_size_bytes = None if limit is None else max(limit, 1)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the limits, not the windows."""
        return type(self), (self.cache_size_bytes, self.cache_size_windows)

    def __repr__(self) -> str:
        limits = [f"cache_size_bytes={self.cache_size_bytes}"] if self.cache_size_bytes is not None else []
        if self.cache_size_windows is not None:
            limits.append(f"cache_size_windows={self.cache_size_windows}")
        return f"MemoryTileStore({', '.join(limits)})"

    def _renew_after_fork(self) -> None:
        super()._renew_after_fork()
        self._windows.recount()
        self._awaited = {}

    def _known(self, spec: TensorSpec) -> TensorSpec:
        """The tensor as it is kept; from now on if it is new."""
        known = self._specs.setdefault(spec.tensor_id, spec)
        check_same(spec.tensor_id, known.definition, spec.definition, self)
        if known.device != spec.device:
            raise ValidationError(
                f"tensor {spec.tensor_id!r} is already kept on {known.device}, given {spec.device}; "
                "move it with tensor.to(device)"
            )
        return known

    def _take(self, spec: TensorSpec, indices: Sequence[Index]) -> dict[Index, Array]:
        """Those of the windows that are in memory."""
        with self._lock:
            self._check_open()
            if self._specs.get(spec.tensor_id) is not spec:
                # Cleared or moved while the read was in progress: what is there now is not of this tensor.
                return {}
            found = {index: self._windows.get((spec.tensor_id, index)) for index in indices}
        return {index: array for index, array in found.items() if array is not None}

    def _put(self, spec: TensorSpec, arrays: dict[Index, Array]) -> None:
        with self._lock:
            self._check_open()
            if self._specs.get(spec.tensor_id) is not spec:
                return
            for index, array in arrays.items():
                self._windows.put((spec.tensor_id, index), array, array.nbytes)
                for access in self._awaited.pop((spec.tensor_id, index), ()):
                    access._held[index] = array
            self._windows.evict()

    def _await(self, access: _MemoryAccess, spec: TensorSpec, indices: Sequence[Index]) -> dict[Index, Array]:
        """Those of the windows that are in memory; the others are handed to `access` when they come."""
        with self._lock:
            found = self._take(spec, indices)
            for index in indices:
                if index not in found:
                    self._awaited.setdefault((spec.tensor_id, index), []).append(access)
                    access._awaited.add((spec.tensor_id, index))
        return found

    def _await_no_more(self, access: _MemoryAccess) -> None:
        with self._lock:
            for key in access._awaited & self._awaited.keys():
                rest = [other for other in self._awaited[key] if other is not access]
                self._awaited[key] = rest
                if not rest:
                    del self._awaited[key]


class _MemoryAccess(Access):
    """Holds the windows of its regions by reference, whether or not the cache still does."""

    def __init__(self, store: MemoryTileStore, spec: TensorSpec) -> None:
        self._store = store
        self._spec = spec
        self._held: dict[Index, Array] = {}
        self._awaited: set[tuple[str, Index]] = set()

    def add(self, starts: IntArray, stops: IntArray) -> IntArray:
        """Look up the windows of the regions; see `Access.add`."""
        grid = self._spec.grid
        needed = grid.indices(starts, stops)
        if self._held:
            needed = [index for index in needed if index not in self._held]
        found = self._store._take(self._spec, needed)
        self._held.update(found)
        missing = [index for index in needed if index not in found]
        return np.array(missing, dtype=np.int64).reshape(len(missing), grid.ndim)

    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """Look in the cache again; see `Access.absent`."""
        indices = list(map(tuple, windows.tolist()))
        needed = [index for index in indices if index not in self._held]
        self._held.update(self._store._await(self, self._spec, needed))
        return np.array([index not in self._held for index in indices], dtype=bool)

    def deposit(self, indices: Sequence[Index], outputs: Sequence[Array]) -> None:
        """Keep the windows, here and in the cache."""
        arrays = dict(zip(indices, outputs, strict=True))
        self._held.update(arrays)
        self._store._put(self._spec, arrays)

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Blend the windows of a region into `out`."""
        blender, grid = self._spec.blender, self._spec.grid
        blender.prepare(out, start)
        target, window = as_array(out), grid.window
        low, high = grid.box(start, [a + n for a, n in zip(start, out.shape, strict=True)])
        for index in itertools.product(*map(range, low, high)):
            blender.fold(target, start, self._held[index], window.start(index), index)

    def keep(self, start: Sequence[int] | None) -> None:
        """Drop the windows that end before `start`."""
        window = self._spec.grid.window
        for index in list(self._held):
            ends = map(operator.add, window.start(index), window.size)
            if start is None or any(end <= begin for end, begin in zip(ends, start, strict=True)):
                del self._held[index]

    def close(self) -> None:
        """Drop all windows."""
        self._held.clear()
        if self._awaited:
            self._store._await_no_more(self)
