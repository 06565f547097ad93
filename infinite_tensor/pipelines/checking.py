"""Checks of halos: whether the pixels of a map depend on where its windows lie."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.regions import parse
from infinite_tensor.geometry.window import TensorWindow, followed
from infinite_tensor.pipelines.map import Mapped
from infinite_tensor.support.functions import FunctionCaller
from infinite_tensor.support.given import quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.checks import differing


@dataclass(frozen=True)
class HaloCheck:
    """What `InfiniteTensor.check` has found.

    Attributes
    ----------
    differs : Tensor
        A bool for each pixel of the region: whether it changes with the windows, by more than rounding.
    largest : float
        The largest change of a pixel.
    first : tuple of int or None
        The coordinates of the first pixel that changes.
    """

    differs: torch.Tensor
    largest: float
    first: tuple[int, ...] | None

    @property
    def share(self) -> float:
        """The share of pixels that change, from 0 to 1."""
        return float(self.differs.double().mean()) if self.differs.numel() else 0.0

    def __str__(self) -> str:
        """Say in a sentence what was found."""
        count = f"{self.differs.numel():,} pixels"
        if self.first is None:
            return f"none of {count} changes with a larger halo or in shifted windows"
        return (
            f"{int(self.differs.sum()):,} of {count} ({self.share:.2%}) change with a larger halo or in shifted "
            f"windows, by up to {self.largest:.4g}, the first of them at {self.first}; give map a larger halo="
        )


class _Middle(FunctionCaller):
    """The ``f`` of windows that are computed with more pixels around them, which are then cut off."""

    def __init__(self, f: Mapped, more: Sequence[int]) -> None:
        self.__wrapped__ = f
        self._more = tuple(more)

    def _reaches(self) -> Mapping[str, object]:
        return {"f": self.__wrapped__}

    def __call__(self, ctx: Any, *regions: Any) -> torch.Tensor:
        """Compute a window, or a batch of them."""
        found = self.__wrapped__(ctx, *regions)
        return found[(..., *[slice(n, -n or None) for n in self._more])]


def check(tensor: InfiniteTensor, region: object) -> HaloCheck:
    """See `InfiniteTensor.check`."""
    f, window = tensor.f, tensor.output_window
    if not isinstance(f, Mapped) or window.size != window.stride:
        raise ValidationError(
            "check is for tensors from map and map_windows whose windows do not overlap: those of other functions "
            f"cannot be computed with a larger halo; got {tensor!r}"
        )
    selection = parse(region, tensor.shape, tensor.dims)
    if selection.is_thinned:
        raise ValidationError(f"the region of a check must not have steps, got {quoted(region)}")
    box = tuple(itertools.starmap(slice, zip(selection.start, selection.stop, strict=True)))
    found = tensor[box]
    margins = [_margin(tensor, f, k) for k in range(tensor.ndim)]
    none = [0] * tensor.ndim
    differs, largest = torch.zeros(found.shape, dtype=torch.bool, device=found.device), 0.0
    for more, shift in ((margins, none), (none, margins)):
        other = _again(tensor, f, more, shift)[box]
        here = differing(found, other)
        differs |= here
        if here.any():
            largest = max(largest, float((found[here].double() - other[here].double()).abs().max()))
    where = differs.nonzero()
    first = tuple(map(operator.add, selection.start, where[0].tolist())) if len(where) else None
    return HaloCheck(selection.pick(differs), largest, first)


def _margin(tensor: InfiniteTensor, f: Mapped, k: int) -> int:
    """Return by how many pixels a window grows and moves along a dimension: about the halo, or half a window."""
    side = tensor.output_window.size[k]
    strides = [
        stride
        for window in tensor.args_windows
        for at, stride in zip(followed(window), window.stride, strict=True)
        if at == k
    ]
    halo = f.halo(k)
    if not strides or halo is None:
        return 0
    # So many pixels lie over whole pixels of all args.
    unit = math.lcm(*[side // math.gcd(side, stride) for stride in strides])
    wanted = halo or side // 2
    return max(1, -(-wanted // unit)) * unit


def _again(tensor: InfiniteTensor, f: Mapped, more: Sequence[int], shift: Sequence[int]) -> InfiniteTensor:
    """Return the same tensor, computed in larger windows, or in windows that lie elsewhere."""
    side = tensor.output_window.size
    windows = []
    for window in tensor.args_windows:
        sizes, offsets = [*window.size], [*window.offset]
        for d, (k, stride) in enumerate(zip(followed(window), window.stride, strict=True)):
            if k is not None:
                sizes[d] += 2 * more[k] * stride // side[k]
                offsets[d] += (shift[k] - more[k]) * stride // side[k]
        windows.append(TensorWindow(sizes, window.stride, offsets, window.dimension_map))
    padding = [
        [None if extent is None else mode for extent, mode in zip(arg.shape, modes, strict=True)]
        for arg, modes in zip(tensor.args, tensor.args_padding, strict=True)
    ]
    return InfiniteTensor(
        tensor.shape,
        _Middle(f.widened(more, windows[0]), more),
        TensorWindow(side, offset=shift),
        tensor.args,
        windows,
        tensor.dtype,
        tensor.device,
        batch_size=tensor.batch_size,
        edge="all",
        args_padding=padding,
    )
