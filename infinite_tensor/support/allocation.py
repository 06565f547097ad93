"""Blocks of pixels: where their memory comes from, and views of them that are fast to slice.

Large blocks are mapped to huge pages of the operating system. The first write to a huge page takes a third of the time
that ordinary pages take. Large blocks are returned to the system as soon as they are freed, whereas an allocator keeps
memory that lies between smaller blocks.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch

from infinite_tensor.errors import OutOfMemoryError

IN_PARTS = "read it in parts with iter_regions, or store it with fill, which takes little memory"
"""The advice for a region that does not fit in memory."""
_AT_HAND_BYTES = 2**25
"""Glibc keeps smaller freed blocks for reuse, and returns larger ones to the system at once."""
_LARGE_BYTES = 2**20
"""Blocks of at least this size use huge pages."""
_BLOCK_BYTES = 2**16
"""Blocks smaller than this are left to the allocator."""
_KEPT_BYTES = 2**25
"""The most bytes of freed blocks that are kept for reuse."""
_KEPT_SIZES = 16
"""The most sizes of freed blocks that are kept. Each time a block is freed, all sizes are visited."""


def new_result(shape: Sequence[int], dtype: torch.dtype, device: torch.device, advice: str = "") -> torch.Tensor:
    """Return a new uninitialized tensor for a result that the user gets.

    Raises
    ------
    OutOfMemoryError
        If there is not enough memory. The message ends with `advice`, which says what to do.
    """
    if math.prod(shape) * dtype.itemsize < _AT_HAND_BYTES:
        return new_tensor(shape, dtype, device, advice)
    return _on_pages(shape, dtype, device, _mapped, advice)


def new_block(shape: Sequence[int], dtype: torch.dtype, device: torch.device, advice: str = "") -> torch.Tensor:
    """Like `new_result`, for many short-lived tensors of one size."""
    if math.prod(shape) * dtype.itemsize < _BLOCK_BYTES:
        return new_tensor(shape, dtype, device, advice)
    return _on_pages(shape, dtype, device, _FREED.take, advice)


def new_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device, advice: str = "") -> torch.Tensor:
    """Like `new_result`, in memory that torch allocates."""
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        if not is_lack_of_memory(error, device):
            raise
        raise out_of_memory(shape, dtype, advice) from error


def is_lack_of_memory(error: RuntimeError, device: torch.device) -> bool:
    """Whether an error says that torch could not allocate a tensor. On the CPU it is a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or device.type == "cpu"


def out_of_memory(shape: Sequence[int], dtype: torch.dtype, advice: str) -> OutOfMemoryError:
    """Return the error for a tensor that could not be allocated."""
    size = f"{math.prod(shape) * dtype.itemsize / 2**30:,.1f} GiB"
    return OutOfMemoryError(
        f"a tensor of shape {tuple(shape)} and {dtype} takes {size}, which cannot be allocated{advice and '; '}{advice}"
    )


@cache
def keep_at_hand() -> None:
    """Make glibc keep the memory that a call of ``f`` frees, so that the next call reuses it.

    glibc adapts to the largest block that was freed so far: it keeps up to twice this size of freed memory, and returns
    the rest to the system. So this function frees one large block, without writing to it. Otherwise, a cheap network
    would get new pages in each call, and take up to twice the time.
    """
    new_tensor((_AT_HAND_BYTES - 2 * mmap.PAGESIZE,), torch.uint8, torch.device("cpu"))


class _FreedBlocks:
    """Keeps freed pages for reuse. The system clears new pages, and this takes longer than to fill them with pixels.

    If another thread or the garbage collector interferes, some pages may not be reused, but none get two users.
    """

    def __init__(self) -> None:
        # The freed pages of each size. The size that was freed last is at the end.
        self._pages: dict[int, deque[mmap.mmap]] = {}
        self._users: dict[int, weakref.ref[memoryview]] = {}

    def take(self, nbytes: int) -> memoryview:
        """Return a view of new or reused pages. When the view is dropped, its pages are kept here for reuse."""
        try:
            pages = self._pages[nbytes].pop()
        except (KeyError, IndexError):
            pages = _mapped(nbytes)
        view = memoryview(pages)
        key = id(view)

        def give_back(_view: object) -> None:
            self._users.pop(key, None)
            self._make_room()
            held = self._pages.pop(nbytes, deque())
            held.append(pages)
            self._pages[nbytes] = held

        self._users[key] = weakref.ref(view, give_back)
        return view

    def _make_room(self) -> None:
        """Drop kept pages until there is room for more. Pages of the size freed longest ago go first."""
        while (kept := self._pages.copy()) and (
            len(kept) >= _KEPT_SIZES or sum(size * len(held) for size, held in kept.items()) >= _KEPT_BYTES
        ):
            size, held = next(iter(kept.items()))
            with suppress(IndexError):
                held.popleft()
            if not held:
                self._pages.pop(size, None)


_FREED = _FreedBlocks()


def _on_pages(
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    pages: Callable[[int], mmap.mmap | memoryview],
    advice: str,
) -> torch.Tensor:
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return new_tensor(shape, dtype, device, advice)
    try:
        buffer = pages(nbytes)
    except (OSError, OverflowError):
        # There may be room for ordinary pages.
        return new_tensor(shape, dtype, device, advice)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).view(tuple(shape))


def _mapped(nbytes: int) -> mmap.mmap:
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _LARGE_BYTES:
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


Array: TypeAlias = Any
"""A torch tensor, or a numpy view of one. Both support the slicing and arithmetic used here."""


def as_tensor(array: Array) -> torch.Tensor:
    """Return an array as a tensor: the inverse of `as_array`."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def as_array(tensor: torch.Tensor) -> Array:
    """Return a view of `tensor` that is fast to slice: numpy on the CPU, the tensor itself elsewhere.

    numpy copies a small block in half of torch's time, but has no bfloat16.
    """
    if tensor.device.type == "cpu" and tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    return tensor


def copied(array: Array) -> Array:
    """Return a contiguous copy. A large copy is in memory from `new_block`."""
    if array.nbytes < _BLOCK_BYTES:
        return array.copy() if isinstance(array, np.ndarray) else array.clone(memory_format=torch.contiguous_format)
    tensor = as_tensor(array)
    copy = new_block(tensor.shape, tensor.dtype, tensor.device)
    if isinstance(array, np.ndarray):
        as_array(copy)[...] = array
        return as_array(copy)
    return copy.copy_(tensor)
