"""Reads in code that torch compiles or exports: one operator, of which the compiler knows the shape and no more.

The rest of a read, with its threads and its storage, is nothing that could be traced.
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from infinite_tensor.errors import RegionError
from infinite_tensor.indexing import parse

if TYPE_CHECKING:
    from infinite_tensor.tensor import InfiniteTensor

_TENSORS: weakref.WeakValueDictionary[str, InfiniteTensor] = weakref.WeakValueDictionary()

_INT, _SLICE, _ELLIPSIS = range(3)
"""What kind of entry the numbers after it are."""
_ABSENT = (0, 0)
"""A part of a slice that is None; one that is there follows a 1."""


def handle_of(tensor: InfiniteTensor) -> str:
    """A name by which compiled code finds a tensor in this process; a new one at each call."""
    handle = secrets.token_hex(8)
    _TENSORS[handle] = tensor
    return handle


def read(tensor: InfiniteTensor, indices: object) -> Any:
    """``tensor[indices]``, while torch traces it."""
    if isinstance(indices, list):
        return [read(tensor, region) for region in indices]
    region = _encoded(indices if isinstance(indices, tuple) else (indices,))
    return torch.ops.infinite_tensor.read(tensor._handle, region, tensor.dtype, tensor.device)


def _encoded(indices: Sequence[object]) -> list[int]:
    """A region as numbers, which is what an operator can be given."""
    numbers: list[int] = []
    for entry in indices:
        if isinstance(entry, slice):
            numbers.append(_SLICE)
            for part in (entry.start, entry.stop, entry.step):
                numbers += _ABSENT if part is None else (1, part)
        elif entry is Ellipsis:
            numbers.append(_ELLIPSIS)
        elif isinstance(entry, int) and not isinstance(entry, bool):
            numbers += (_INT, entry)
        else:
            raise RegionError("in compiled code a region is made of ints, slices of ints, and Ellipsis")
    return numbers


def _decoded(region: Sequence[int]) -> tuple[object, ...]:
    numbers = iter(region)
    return tuple(_entry(kind, numbers) for kind in numbers)


def _entry(kind: int, numbers: Iterator[int]) -> object:
    if kind == _ELLIPSIS:
        return Ellipsis
    if kind == _INT:
        return next(numbers)
    parts = [(next(numbers), next(numbers)) for _ in ("start", "stop", "step")]
    return slice(*(part if given else None for given, part in parts))


def _tensor_of(handle: str) -> InfiniteTensor:
    tensor = _TENSORS.get(handle)
    if tensor is None:
        raise ReferenceError(
            "this compiled code reads an InfiniteTensor that is gone, or one of another process: keep the tensor "
            "alive, and compile or export where it is read"
        )
    return tensor


@torch.library.custom_op("infinite_tensor::read", mutates_args=())
def _read(handle: str, region: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:  # noqa: ARG001
    """The pixels; the dtype and the device are those that the code was compiled for."""
    pixels: torch.Tensor = _tensor_of(handle).read(_decoded(region))
    return pixels


@_read.register_fake
def _shape_of_read(handle: str, region: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    selection = parse(_decoded([int(number) for number in region]), _tensor_of(handle).shape)
    pixels = selection.pick(torch.empty(selection.shape, dtype=dtype, device="meta"))
    return torch.empty(pixels.shape, dtype=dtype, device=device)
