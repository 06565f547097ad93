"""Blocks of pixels: where their memory comes from, and views of them that are fast to slice.

Large ones lie in large pages of the operating system. These take a third of the time to write to for the first time,
and all of them are given back at once, where an allocator keeps what lies between smaller blocks.
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
"""What to do about a region that does not fit."""
_AT_HAND_BYTES = 2**25
"""glibc keeps what is smaller at hand when it is freed, and gives what is larger back at once."""
_LARGE_BYTES = 2**20
"""What is larger lies in large pages."""
_BLOCK_BYTES = 2**16
"""Blocks that are smaller lie where the allocator has room for them."""
_KEPT_BYTES = 2**25
"""So much of what is freed waits to be used again."""
_KEPT_SIZES = 16
"""Of so many sizes: they are gone through whenever a block is freed."""


def new_result(shape: Sequence[int], dtype: torch.dtype, device: torch.device, advice: str = "") -> torch.Tensor:
    """A new tensor with nothing written to it yet, to be given away.

    Raises
    ------
    OutOfMemoryError
        If there is no room for it; `advice` ends the message, and says what to do.
    """
    if math.prod(shape) * dtype.itemsize < _AT_HAND_BYTES:
        return new_tensor(shape, dtype, device, advice)
    return _on_pages(shape, dtype, device, _mapped, advice)


def new_block(shape: Sequence[int], dtype: torch.dtype, device: torch.device, advice: str = "") -> torch.Tensor:
    """A new tensor as of `new_result`, of which there will be many of one size, soon dropped."""
    if math.prod(shape) * dtype.itemsize < _BLOCK_BYTES:
        return new_tensor(shape, dtype, device, advice)
    return _on_pages(shape, dtype, device, _FREED.take, advice)


def new_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device, advice: str = "") -> torch.Tensor:
    """A new tensor as of `new_result`, in whatever memory torch takes."""
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        if not is_lack_of_memory(error, device):
            raise
        raise out_of_memory(shape, dtype, advice) from error


def is_lack_of_memory(error: RuntimeError, device: torch.device) -> bool:
    """Whether torch could not allocate a tensor. On the CPU it says so with an error of no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or device.type == "cpu"


def out_of_memory(shape: Sequence[int], dtype: torch.dtype, advice: str) -> OutOfMemoryError:
    """The error for a tensor that could not be allocated."""
    size = f"{math.prod(shape) * dtype.itemsize / 2**30:,.1f} GiB"
    return OutOfMemoryError(
        f"a tensor of shape {tuple(shape)} and {dtype} takes {size}, which cannot be allocated{advice and '; '}{advice}"
    )


@cache
def keep_at_hand() -> None:
    """Have glibc keep at hand what calls of an ``f`` free, for the next one to use again.

    It maps blocks that are larger than the largest one that was freed so far, and keeps no more than twice as much at
    hand. Where a network takes more together, which of its blocks are new pages in each call depends on what lies
    between them: a cheap one then takes up to twice the time. So a block is freed that is as large as counts; nothing
    is written to it. A threshold that a user has set stands.
    """
    new_tensor((_AT_HAND_BYTES - 2 * mmap.PAGESIZE,), torch.uint8, torch.device("cpu"))


class _FreedBlocks:
    """Pages that nobody uses any more, to be used again: to clear new ones takes longer than to fill them.

    Where a thread, or a collection of garbage, comes in between, some pages are not used again; none are used twice.
    """

    def __init__(self) -> None:
        # By size, the one that was freed last at the end.
        self._pages: dict[int, deque[mmap.mmap]] = {}
        self._users: dict[int, weakref.ref[memoryview]] = {}

    def take(self, nbytes: int) -> memoryview:
        """Pages, which are here again when the view is dropped."""
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
        """Let go of what was freed first, where there are too many sizes or bytes."""
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
"""A torch tensor or a numpy view of one: both take the slicing and arithmetic used here."""


def as_tensor(array: Array) -> torch.Tensor:
    """The tensor that `as_array` gave a view of."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def as_array(tensor: torch.Tensor) -> Array:
    """A view of `tensor` that is fast to slice: numpy on the CPU, the tensor itself elsewhere.

    numpy moves a small block in half of torch's time, but knows no bfloat16.
    """
    if tensor.device.type == "cpu" and tensor.dtype is not torch.bfloat16:
        return tensor.numpy()
    return tensor


def copied(array: Array) -> Array:
    """A contiguous copy, in a block of `new_block`."""
    if array.nbytes < _BLOCK_BYTES:
        return array.copy() if isinstance(array, np.ndarray) else array.clone(memory_format=torch.contiguous_format)
    tensor = as_tensor(array)
    copy = new_block(tensor.shape, tensor.dtype, tensor.device)
    if isinstance(array, np.ndarray):
        as_array(copy)[...] = array
        return as_array(copy)
    return copy.copy_(tensor)
