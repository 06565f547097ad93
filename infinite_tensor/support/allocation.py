"""Memory for blocks of pixels, and views for fast slicing.

Large blocks are mapped to huge pages of the operating system. The first write to a huge page takes a third of the time
of ordinary pages. When a large result is freed, its memory returns to the system at once. An ordinary allocator cannot
return a freed block lying between blocks still in use. Blocks from `new_block` are kept for reuse instead.
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
"""Advice for a region too large for memory."""
_AT_HAND_BYTES = 2**25
"""Glibc keeps smaller freed blocks for reuse, and returns larger ones to the system at once."""
_LARGE_BYTES = 2**20
"""Blocks of at least this size use huge pages."""
_BLOCK_BYTES = 2**16
"""Blocks smaller than this are left to the allocator."""
_KEPT_BYTES = 2**25
"""The maximum bytes of freed blocks kept for reuse."""
_KEPT_SIZES = 16
"""The maximum number of sizes of freed blocks kept for reuse. Freeing a block visits all sizes."""


def new_result(shape: Sequence[int], dtype: torch.dtype, device: torch.device, advice: str = "") -> torch.Tensor:
    """Return a new uninitialized tensor for the result of a read.

    Raises
    ------
    OutOfMemoryError
        If there is not enough memory. The message ends with `advice`.
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
    """Like `new_result`, in memory allocated by torch."""
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        if not is_lack_of_memory(error, device):
            raise
        raise out_of_memory(shape, dtype, advice) from error


def is_lack_of_memory(error: RuntimeError, device: torch.device) -> bool:
    """Whether torch raised `error` for lack of memory.

    On the CPU, this is a plain RuntimeError, so every RuntimeError counts.
    """
    return isinstance(error, torch.OutOfMemoryError) or device.type == "cpu"


def out_of_memory(shape: Sequence[int], dtype: torch.dtype, advice: str) -> OutOfMemoryError:
    """Create the error for a tensor too large to allocate."""
    size = f"{math.prod(shape) * dtype.itemsize / 2**30:,.1f} GiB"
    return OutOfMemoryError(
        f"a tensor of shape {tuple(shape)} and {dtype} takes {size}, which cannot be allocated{advice and '; '}{advice}"
    )


@cache
def keep_at_hand() -> None:
    """Make glibc keep freed memory for the next call of ``f``.

    glibc keeps freed memory up to twice the size of the largest block freed so far, and returns the rest to the system.
    So this function allocates one large block without writing to it, and frees it. Otherwise, each call of ``f`` gets
    new pages from the system, and a cheap network takes up to twice the time.
    """
    new_tensor((_AT_HAND_BYTES - 2 * mmap.PAGESIZE,), torch.uint8, torch.device("cpu"))


class _FreedBlocks:
    """Freed memory pages, kept for reuse.

    The system clears new pages, which takes longer than filling pages with pixels. If another thread or the garbage
    collector interferes, some pages may not be reused, but no page gets two users.
    """

    def __init__(self) -> None:
        # Freed pages by size. The size freed last is at the end.
        self._pages: dict[int, deque[mmap.mmap]] = {}

    def take(self, nbytes: int) -> memoryview:
        """Return a view of new or reused pages.

        When the view is dropped, the pages are kept for reuse.
        """
        try:
            pages = self._pages[nbytes].pop()
        except (KeyError, IndexError):
            pages = _mapped(nbytes)
        view = memoryview(pages)
        weakref.finalize(view, self._give_back, pages, nbytes).atexit = False
        return view

    def _give_back(self, pages: mmap.mmap, nbytes: int) -> None:
        while (kept := self._pages.copy()) and (
            len(kept) >= _KEPT_SIZES or sum(size * len(held) for size, held in kept.items()) >= _KEPT_BYTES
        ):
            size, held = next(iter(kept.items()))
            with suppress(IndexError):
                held.popleft()
            if not held:
                self._pages.pop(size, None)
        same = self._pages.pop(nbytes, deque())
        same.append(pages)
        self._pages[nbytes] = same


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
    """Return a view of `tensor` for fast slicing.

    The view is a numpy array on the CPU. On other devices, and for bfloat16, `tensor` itself is returned. numpy copies
    a small block in half of torch's time.
    """
    if tensor.device.type == "cpu" and tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    return tensor


def copied(array: Array) -> Array:
    """Return a contiguous copy.

    The memory of a large copy comes from `new_block`.
    """
    if array.nbytes < _BLOCK_BYTES:
        return array.copy() if isinstance(array, np.ndarray) else array.clone(memory_format=torch.contiguous_format)
    tensor = as_tensor(array)
    copy = new_block(tensor.shape, tensor.dtype, tensor.device)
    if isinstance(array, np.ndarray):
        as_array(copy)[...] = array
        return as_array(copy)
    return copy.copy_(tensor)
