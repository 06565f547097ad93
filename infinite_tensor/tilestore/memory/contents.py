"""`MemoryTileStore`, and the engine's interface to windows in memory.

Windows are kept as returned by ``f``.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window_sets import BoxUnion, pixels_of, windows_over
from infinite_tensor.support.allocation import as_array, as_tensor
from infinite_tensor.support.given import checked_bytes
from infinite_tensor.support.interrupts import store_method
from infinite_tensor.tilestore.contents import Access, Contents
from infinite_tensor.tilestore.inventory import Damage, Dropped, Inventory, StoredSize, TensorInfo
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.lru import check_limit
from infinite_tensor.tilestore.memory.access import MemoryAccess
from infinite_tensor.tilestore.memory.windows import KeptWindows, Row, fold_rows, rows_in
from infinite_tensor.tilestore.messages import (
    changed_meanwhile,
    check_functions,
    check_same,
    unknown_tensor,
    warn_of_other_meaning,
)
from infinite_tensor.tilestore.store import TileStore
from infinite_tensor.values.spec import TensorSpec, amended


class MemoryContents(Contents):
    """Windows in memory, in one cache for all tensors.

    Parameters
    ----------
    max_bytes, max_windows : int or None
        Limits; None is no limit.

    Attributes
    ----------
    kept : KeptWindows
        The windows.
    """

    def __init__(self, max_bytes: int | None, max_windows: int | None) -> None:
        self.kept = KeptWindows(max_bytes, max_windows)
        self._groups: dict[str, dict[str, Any]] = {}
        super().__init__()
        self.lock = self.kept.lock

    def cut_through(self, error: BaseException) -> None:  # noqa: ARG002  (the store stays open)
        """Handle an interrupt in the middle of a change: drop all windows.

        Unlike in `Contents.cut_through`, the store stays open, because the windows can be computed again.
        """
        self.kept.restart()

    def _renew_after_fork(self) -> None:
        super()._renew_after_fork()
        self.kept.renew()
        self.lock = self.kept.lock

    def __repr__(self) -> str:
        limits = [
            ("cache_size_bytes", self.kept.windows.max_bytes),
            ("cache_size_windows", self.kept.windows.max_items),
        ]
        return f"MemoryTileStore({', '.join(f'{name}={limit}' for name, limit in limits if limit is not None)})"

    @store_method
    def register(self, spec: TensorSpec) -> TensorSpec:
        """Register a tensor.

        Tensors with the same id and definition share their windows.
        """
        with self.lock:
            self.check_open()
            known = self.registered(spec)
            if known is not spec:
                check_functions(spec.tensor_id, known.definition.functions, spec.definition.functions, self)
                warn_of_other_meaning(spec.tensor_id, known.definition, spec.definition, self)
                definition = amended(known.definition, spec.definition)
                if definition is not known.definition:
                    known = self.kept.specs[spec.tensor_id] = replace(known, definition=definition)
            return spec.beside(known.definition)

    def access(self, spec: TensorSpec) -> Access:
        """Begin a read of a tensor."""
        with self.lock:
            self.check_open()
            return MemoryAccess(self.check_open, self.kept, self.registered(spec))

    @property
    def cache_limit(self) -> int | None:
        """The limit for all windows together, in bytes."""
        return self.kept.windows.max_bytes

    @store_method
    def lend(self, held: threading.Lock, room: int) -> None:
        """Limit the growth of the cache of windows; see `Contents.lend`."""
        kept = self.kept
        with self.lock:
            kept.windows.lend(held, room)
            kept.shrink_blended()

    def layout(self, spec: TensorSpec) -> TileLayout:
        """Return the layout of the tiles for blended pixels."""
        return self.kept.layout(spec)

    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """Find the windows in memory, for each tile of `layout`."""
        with self.lock:
            self.check_open()
            layout = self.kept.layout(spec)
            windows = list(self.kept.windows.of(spec.tensor_id)) if self.kept.keeps(spec) else []
        return Inventory.of_windows(spec.grid, layout, windows, start, stop)

    def serve(self, spec: TensorSpec, start: Sequence[int], out: torch.Tensor) -> bool:
        """Fill `out` with the pixels from `start` on, if all are in memory.

        Return whether `out` was filled.
        """
        kept = self.kept
        with self.lock:
            if self.closed or not kept.keeps(spec):
                return False
            if spec.grid.overlap_free and kept.windows.empty:
                return False
            rows = tiles = None
            stop = list(map(operator.add, start, out.shape))
            if spec.grid.overlap_free:
                rows = rows_in(spec.grid.box(start, stop), kept.windows.finder(spec.tensor_id))
            else:
                layout = kept.layout(spec)
                tiles = kept.tiles_in(spec.tensor_id, layout.box(start, stop))
        if rows is not None:
            fold_rows(spec, rows, as_array(out), start)
        elif tiles is not None:
            layout.copy(tiles, as_array(out), start)
        return rows is not None or tiles is not None

    def stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize:  # noqa: ARG002  (counting is fast)
        """Return the number and the size of the windows in memory."""
        with self.lock:
            windows = self.kept.windows.of(tensor_id)
            one = next(iter(windows.values()), None)
            return StoredSize(len(windows), 0 if one is None else len(windows) * one.window_bytes)

    @store_method
    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:
        """Convert all windows of a tensor to the device and dtype of `moved`."""
        with self.lock:
            self.check_open()
            self.registered(spec)
            converted = {
                index: Row(index, as_array(as_tensor(row.window(index)).to(moved.device, moved.gathered.dtype)[None]))
                for index, row in self.kept.windows.of(spec.tensor_id).items()
            }
            self.kept.replace(moved, converted)

    def specs_downstream(self) -> list[TensorSpec]:
        """Return the specs of all registered tensors."""
        with self.lock:
            return list(self.kept.specs.values())

    def check_droppable(self, tensor_id: str) -> None:
        """Do nothing: windows in memory can always be dropped."""

    def drop(self, spec: TensorSpec, windows: BoxUnion) -> Dropped:
        """Drop windows, and the tiles blended from these windows."""
        kept, tensor_id = self.kept, spec.tensor_id
        with self.lock:
            if not kept.keeps(spec):
                return Dropped()
            # A new spec object tells reads in progress about the change.
            kept.specs[tensor_id] = replace(kept.specs[tensor_id])
            doomed = windows.held(list(kept.windows.of(tensor_id)))
            kept.drop(tensor_id, doomed, windows_over(kept.layout(spec).grid, pixels_of(spec.grid, windows)))
            return Dropped(windows=len(doomed))

    def tensor_ids(self, prefix: str = "") -> list[str]:
        """Return all registered tensor ids starting with `prefix`, sorted."""
        with self.lock:
            return sorted(tensor_id for tensor_id in list(self.kept.specs) if tensor_id.startswith(prefix))

    def holds(self, tensor_id: str) -> bool:
        """Return whether a tensor with this id is registered."""
        return tensor_id in self.kept.specs

    def definition_of(self, tensor_id: str) -> dict[str, Any]:
        """Return the definition of a tensor as JSON."""
        with self.lock:
            if tensor_id not in self.kept.specs:
                raise unknown_tensor(tensor_id, self.tensor_ids(), self)
            return dict(self.kept.specs[tensor_id].definition.to_json())

    def info_of(self, tensor_id: str) -> TensorInfo:
        """Describe a tensor and its windows in memory.

        A window counts as a complete tile.
        """
        with self.lock:
            definition = self.definition_of(tensor_id)
            sizes = [row.window_bytes for row in self.kept.windows.of(tensor_id).values()]
            return TensorInfo(tensor_id, definition, len(sizes), 0, sum(sizes), "memory")

    def digest_of(self, tensor_id: str) -> str | None:
        """Return the digest of a tensor's definition, or None for an unknown tensor."""
        known = self.kept.specs.get(tensor_id)
        return None if known is None else known.definition.digest

    def delete(self, tensor_id: str) -> None:
        """Drop a tensor and its windows."""
        self.kept.forget(tensor_id)

    def clear_cache(self, tensor_id: str) -> None:
        """Drop all windows of a tensor."""
        self.kept.forget_windows(tensor_id)

    def verify(self, tensor_id: str, *, repair: bool) -> list[Damage]:  # noqa: ARG002  (memory is never damaged)
        """Return an empty list: nothing in memory is damaged."""
        self.definition_of(tensor_id)
        return []

    def close(self, *, discard: bool) -> None:  # noqa: ARG002  (nothing is pending)
        """Drop all tensors and groups."""
        with self.lock:
            for tensor_id in self.tensor_ids():
                self.delete(tensor_id)
            self._groups.clear()
            self.closed = True

    def read_group(self, group_id: str) -> dict[str, Any] | None:
        """Return the definition of a group, or None."""
        return self._groups.get(group_id)

    def write_group(self, group_id: str, definition: dict[str, Any]) -> None:
        """Keep the definition of a group."""
        self._groups[group_id] = definition

    def delete_group(self, group_id: str) -> None:
        """Drop a group."""
        self._groups.pop(group_id, None)

    def group_ids(self) -> list[str]:
        """Return the ids of all groups."""
        return list(self._groups)

    def check_current(self, spec: TensorSpec) -> None:
        """Check that the store is open and `spec` is current.

        Raise StoreError if the store is closed, or if the tensor was cleared or invalidated.
        """
        self.check_open()
        if not self.kept.is_current(spec):
            raise changed_meanwhile(self, spec.tensor_id)

    def registered(self, spec: TensorSpec) -> TensorSpec:
        """Return the registered spec of a tensor.

        Register `spec` if the tensor is new. Raise ValidationError if the tensor has another definition or device.
        """
        known = self.kept.specs.setdefault(spec.tensor_id, spec)
        check_same(spec.tensor_id, known.definition, spec.definition, self)
        if known.device != spec.device:
            raise ValidationError(
                f"tensor {spec.tensor_id!r} is already kept on {known.device}, but device={spec.device} was given; "
                "move it with tensor.to(device)"
            )
        return known


class MemoryTileStore(TileStore):
    """Store in memory, with one cache for all tensors.

    If a limit is exceeded, the least recently used windows are dropped first. A read in progress keeps its windows
    until their last use, so it may exceed the limits. The limits apply again when the read ends.

    Parameters
    ----------
    cache_size_bytes : int or str, optional
        Limit for all windows together, in bytes or as ``"400MB"``. None: no limit.
    cache_size_windows : int, optional
        Limit for the number of windows. None: no limit.
    workers : int
        The number of threads on which a read runs ``f``.
    """

    _contents: MemoryContents

    def __init__(
        self, cache_size_bytes: int | str | None = None, cache_size_windows: int | None = None, *, workers: int = 1
    ) -> None:
        limits = (
            checked_bytes("cache_size_bytes", cache_size_bytes),
            check_limit("cache_size_windows", cache_size_windows),
        )
        super().__init__(MemoryContents(*limits), workers=workers)

    @property
    def cache_size_bytes(self) -> int | None:
        """Limit in bytes, None for no limit."""
        return self._contents.kept.windows.max_bytes

    @cache_size_bytes.setter
    def cache_size_bytes(self, value: int | str | None) -> None:
        self._contents.kept.limit(checked_bytes("cache_size_bytes", value), self.cache_size_windows)

    @property
    def cache_size_windows(self) -> int | None:
        """Limit for the number of windows, None for no limit."""
        return self._contents.kept.windows.max_items

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the limits, not the windows."""
        return partial(type(self), workers=self._contents.workers), (self.cache_size_bytes, self.cache_size_windows)

    def __str__(self) -> str:
        return str(self._contents)
