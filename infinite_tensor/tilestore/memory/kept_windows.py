"""What a memory store keeps: the windows of its tensors, and pixels that have been blended from them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from weakref import WeakSet

from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.support.allocation import Array
from infinite_tensor.tilestore.blended import blended_layout
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.lru import LRU
from infinite_tensor.tilestore.memory.window_cache import Row, Windows
from infinite_tensor.values.definition import same
from infinite_tensor.values.spec import TensorSpec


class Held:
    """The windows of one tensor that a read holds, and those that it is handed as soon as others have computed them.

    Attributes
    ----------
    spec : TensorSpec
        The tensor, as it is kept: what has taken its place under its id is another one.
    rows : dict of tuple of int to Row
        What it holds.
    awaited : set of tuple of int
        What it waits for.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec
        self.rows: dict[Index, Row] = {}
        self.awaited: set[Index] = set()


class KeptWindows:
    """Windows of any number of tensors and tiles blended from them, within limits. Safe for threads.

    Attributes
    ----------
    lock : threading.RLock
        Held while anything is looked up or changed.
    specs : dict of str to TensorSpec
        The tensors. Reads hold the very object: where it is another one, windows have been dropped since.
    windows : Windows
        Their windows.
    blended : LRU
        Blended pixels, in the room that windows leave.
    """

    def __init__(self, max_bytes: int | None, max_windows: int | None) -> None:
        self.specs: dict[str, TensorSpec] = {}
        self.windows = Windows(max_bytes, max_windows)
        self._layouts: dict[str, TileLayout] = {}
        self.renew()

    def renew(self) -> None:
        """Begin with what may be shared with a process that this one was forked from: the windows."""
        self.lock = threading.RLock()
        self.blended: LRU[tuple[str, Index], Array] = LRU()
        self._waiting: WeakSet[Held] = WeakSet()

    def limit(self, max_bytes: int | None, max_windows: int | None) -> None:
        """Set the limits of windows."""
        with self.lock:
            self.windows.limit(max_bytes, max_windows)
            self.shrink_blended()

    def restart(self) -> None:
        """Begin without windows, within the same limits."""
        with self.lock:
            self.windows, self.blended = Windows(self.windows.max_bytes, self.windows.max_items), LRU()

    def shrink_blended(self) -> None:
        """Windows may take all of the room that there is, blended tiles what these leave."""
        if self.windows.limited:
            self.blended.max_bytes = max(self.windows.room, 0)
            self.blended.evict()

    def has_room(self, nbytes: int) -> bool:
        """Whether a blended tile of this size may be kept."""
        return not self.windows.limited or self.windows.room >= nbytes

    def keeps(self, spec: TensorSpec) -> bool:
        """Whether what is in memory is of this tensor, which may have been cleared or moved meanwhile."""
        known = self.specs.get(spec.tensor_id)
        return known is spec or (
            known is not None and known.device == spec.device and same(known.definition, spec.definition)
        )

    def is_current(self, spec: TensorSpec) -> bool:
        """Whether this very object stands for a tensor: it was neither cleared, nor moved, nor invalidated since."""
        return self.specs.get(spec.tensor_id) is spec

    def layout(self, spec: TensorSpec) -> TileLayout:
        """How blended pixels of a tensor are cut into tiles."""
        with self.lock:
            if not self.keeps(spec):
                # What is found of it must not be taken for that of the next tensor of this id.
                return blended_layout(spec)
            if spec.tensor_id not in self._layouts:
                self._layouts[spec.tensor_id] = blended_layout(spec)
            return self._layouts[spec.tensor_id]

    def take(self, spec: TensorSpec, indices: Sequence[Index]) -> Mapping[Index, Row]:
        """Those of the windows that are there."""
        with self.lock:
            return self.windows.take(spec.tensor_id, indices) if self.is_current(spec) else {}

    def put(self, spec: TensorSpec, rows: dict[Index, Row]) -> None:
        """Keep windows, and hand them to the reads that wait for them."""
        with self.lock:
            if not self.is_current(spec):
                return
            self.windows.put(spec.tensor_id, rows)
            self.shrink_blended()
            for held in self._waiting or ():
                if held.spec is spec:
                    for index in held.awaited & rows.keys():
                        held.rows[index] = rows[index]
                    held.awaited -= rows.keys()

    def take_or_await(self, spec: TensorSpec, held: Held, indices: Sequence[Index]) -> None:
        """Have a read hold those of the windows that are there now, and the others when they come."""
        with self.lock:
            found = self.take(spec, indices)
            held.rows.update(found)
            held.awaited.update([index for index in indices if index not in found])
            self._waiting.add(held)

    def await_no_more(self, held: Held) -> None:
        """A read waits for nothing any more."""
        with self.lock:
            self._waiting.discard(held)

    def tile(self, spec: TensorSpec, tile: Index) -> Array | None:
        """A tile of blended pixels, or None."""
        with self.lock:
            return self.blended.get((spec.tensor_id, tile)) if self.is_current(spec) else None

    def tiles_in(self, tensor_id: str, box: tuple[Sequence[int], Sequence[int]]) -> dict[Index, Array] | None:
        """The tiles of blended pixels in a box of indices; None where one is missing. The lock is held."""
        blocks = {}
        for tile in itertools.product(*map(range, *box)):
            block = self.blended.get((tensor_id, tile))
            if block is None:
                return None
            blocks[tile] = block
        return blocks

    def keep_tile(self, spec: TensorSpec, tile: Index, pixels: Array) -> None:
        """Keep a tile of blended pixels."""
        with self.lock:
            if self.is_current(spec):
                self.blended.put((spec.tensor_id, tile), pixels, pixels.nbytes)
                self.shrink_blended()

    def forget_windows(self, tensor_id: str) -> None:
        """Forget all windows and blended tiles of a tensor."""
        with self.lock:
            for key in self.blended:
                if key[0] == tensor_id:
                    self.blended.pop(key)
            self.windows.forget(tensor_id)

    def drop(self, tensor_id: str, indices: Sequence[Index], tiles: BoxUnion) -> None:
        """Forget windows of a tensor, and blended tiles; the lock is held."""
        self.windows.drop(tensor_id, indices)
        for tile in tiles.held([tile for name, tile in self.blended if name == tensor_id]):
            self.blended.pop((tensor_id, tile))

    def forget(self, tensor_id: str) -> None:
        """Forget a tensor."""
        with self.lock:
            self.forget_windows(tensor_id)
            self.specs.pop(tensor_id, None)
            self._layouts.pop(tensor_id, None)

    def replace(self, spec: TensorSpec, rows: dict[Index, Row]) -> None:
        """Have a tensor and its windows take the place of all that is there under its id."""
        with self.lock:
            self.forget_windows(spec.tensor_id)
            self.specs[spec.tensor_id] = spec
            self._layouts.pop(spec.tensor_id, None)
            self.windows.put(spec.tensor_id, rows)
            self.shrink_blended()
