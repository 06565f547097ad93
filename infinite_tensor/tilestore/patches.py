"""Blended pixels of a tensor in memory, kept so that overlapping windows are not blended again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from infinite_tensor.blend import Array
from infinite_tensor.boxes import Index
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.lru import LRU

_PATCH_BYTES = 2**18


def patch_layout(spec: TensorSpec) -> TileLayout:
    """How a tensor is cut into patches: whole strides, as square as may be, of about a quarter of a MiB."""
    window, shape = spec.grid.window, spec.shape
    moving = [d for d in range(window.ndim) if spec.grid.first[d] < spec.grid.last[d] and d in window.followed]
    patch = [
        window.stride[d] if window.followed[d] in moving else (window.size[d] if extent is None else extent)
        for d, extent in enumerate(shape)
    ]
    room = _PATCH_BYTES / (math.prod(patch) * spec.dtype.itemsize)
    followers = [d for d in range(window.ndim) if window.followed[d] in moving]
    for number, d in enumerate(sorted(followers, key=lambda d: -patch[d])):
        left = len(followers) - number
        strides = max(1, round(room ** (1 / left)))
        patch[d] *= strides
        room /= strides
    extents = [n if extent is None else min(n, extent) for n, extent in zip(patch, shape, strict=True)]
    return TileLayout(shape, tuple(extents), spec.dtype)


class Patches:
    """Patches of any number of tensors, least recently used first out."""

    def __init__(self) -> None:
        self._blocks: LRU[tuple[str, Index], Array] = LRU()

    def get(self, tensor_id: str, patch: Index) -> Array | None:
        """One patch, or None."""
        return self._blocks.get((tensor_id, patch))

    def all_in(self, tensor_id: str, box: tuple[Sequence[int], Sequence[int]]) -> dict[Index, Array] | None:
        """The patches in a box of indices; None where one is missing."""
        blocks = {}
        for patch in itertools.product(*map(range, *box)):
            block = self._blocks.get((tensor_id, patch))
            if block is None:
                return None
            blocks[patch] = block
        return blocks

    def put(self, tensor_id: str, patch: Index, block: Array) -> None:
        """Keep a patch."""
        self._blocks.put((tensor_id, patch), block, block.nbytes)

    def shrink(self, limit: int) -> None:
        """Let go of patches until they take no more than `limit` bytes."""
        self._blocks.max_bytes = max(limit, 0)
        self._blocks.evict()

    def forget(self, tensor_id: str) -> None:
        """Let go of the patches of one tensor."""
        for key in self._blocks:
            if key[0] == tensor_id:
                self._blocks.pop(key)
