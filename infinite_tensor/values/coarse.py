"""Coarsens pixels for overviews and pyramids: each block of pixels becomes one pixel."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeAlias

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import Shape
from infinite_tensor.support.functions import Formula
from infinite_tensor.values.arrays import contiguous_box
from infinite_tensor.values.definition import Json, json_number
from infinite_tensor.values.meaning import nodata_in

Method: TypeAlias = Literal["mean", "max", "min", "mode", "nearest"]
"""Method for computing a coarser pixel from a block."""

_ON_ONE_THREAD = 2**15
"""For more numbers, torch uses threads. Threads are slower while other threads write and compute."""

_FEW = 8
"""Maximum number of entries to sort by swaps. For so few, swaps are several times faster than `torch.sort`."""

_Entries: TypeAlias = list[tuple[int, torch.Tensor]]
"""Weight and pixels for each position in a block, in lexicographic order. Pixels are from all blocks."""


class AxisBlocks(NamedTuple):
    """Grouping of pixels into blocks along one dimension.

    Attributes
    ----------
    factor : int
        The number of pixels in a block; the last block may have fewer.
    weight : int
        The number of pixels of the finest level that each pixel covers.
    last : int
        The number of pixels of the finest level that the last pixel covers.
    """

    factor: int
    weight: int = 1
    last: int = 1


class _BlockRun(NamedTuple):
    """Consecutive blocks of the same size along one dimension.

    Attributes
    ----------
    blocks : slice
        The blocks.
    pixels : slice
        All pixels of these blocks.
    weights : sequence of int
        The weight of each pixel in a block.
    """

    blocks: slice
    pixels: slice
    weights: Sequence[int]


def coarse(pixels: torch.Tensor, along: Sequence[AxisBlocks], method: str, nodata: torch.Tensor | None) -> torch.Tensor:
    """Reduce each block of pixels to a single pixel.

    The result for a block does not depend on pixels outside the block.

    Parameters
    ----------
    pixels : torch.Tensor
        The pixels. In each dimension, they begin at the beginning of a block.
    along : sequence of AxisBlocks
        The blocks of each dimension.
    method : str
        "mean", "max", "min", "mode" or "nearest"; see `check_method`.
    nodata : torch.Tensor or None
        The value that, like NaN, marks a missing pixel. It is also the result for a block of missing pixels. It is
        broadcast to the pixels.

    Returns
    -------
    torch.Tensor
        The coarser pixels, of the dtype of `pixels`.
    """
    computed = _computed(method, pixels.dtype, nodata)
    shape = [-(-n // each.factor) for n, each in zip(pixels.shape, along, strict=True)]
    missing = None if nodata is None else nodata.to(computed).expand(shape)
    serial = pixels.device.type != "cpu" or torch.get_num_threads() == 1
    most = shape if serial else contiguous_box(shape, 1, _ON_ONE_THREAD)
    pieces = [*itertools.product(*map(_parts, pixels.shape, along, most))]
    out: torch.Tensor | None = None
    for piece in pieces:
        blocks, ranges, weights = zip(*piece, strict=True)
        inside, steps = pixels[ranges], [len(each) for each in weights]
        entries = []
        for at in itertools.product(*map(range, steps)):
            every = tuple([slice(first, None, step) for first, step in zip(at, steps, strict=True)])
            entries.append((math.prod(map(operator.getitem, weights, at)), inside[every].to(computed)))
        found = _METHODS[method](entries, None if missing is None else missing[blocks]).to(pixels.dtype)
        if len(pieces) == 1:
            return found
        out = found.new_empty(shape) if out is None else out
        out[blocks] = found
    assert out is not None
    return out


def check_name(method: str) -> None:
    """Check the name of a coarsening method.

    Raise ValidationError if there is no such method.
    """
    if method not in _METHODS:
        raise ValidationError(f"method must be one of {', '.join(map(repr, _METHODS))}, got {method!r:.80}")


def check_method(method: str, dtype: torch.dtype) -> None:
    """Check a coarsening method for a dtype.

    Raise ValidationError if there is no such method, or if the dtype is not supported.
    """
    check_name(method)
    fitting = [name for name in _METHODS if fits(name, dtype)]
    if method not in fitting:
        raise ValidationError(f"pixels of {dtype} cannot be coarsened by {method!r}; give one of {fitting}")


def fits(method: str, dtype: torch.dtype) -> bool:
    """Whether a method supports a dtype."""
    if method == "nearest":
        return True
    if dtype is torch.uint64 or dtype.is_complex:
        return False
    return dtype is not torch.bool if method == "mean" else method != "mode" or not dtype.is_floating_point


def _computed(method: str, dtype: torch.dtype, nodata: torch.Tensor | None) -> torch.dtype:
    """Return the dtype for computations.

    torch has no arithmetic for some dtypes, and some dtypes cannot represent nodata.
    """
    if method == "nearest" or dtype is torch.bool:
        return dtype
    if dtype.is_floating_point:
        return torch.float32 if dtype.itemsize == 2 else dtype
    return torch.int64 if method == "mean" or nodata is not None or dtype in (torch.uint16, torch.uint32) else dtype


def _parts(extent: int, along: AxisBlocks, most: int) -> Iterator[_BlockRun]:
    """Split the blocks along a dimension into parts.

    `most` is the maximum number of blocks in a part. The last block is a separate part if its size or weights differ.
    """
    whole = extent // along.factor
    if extent % along.factor or along.last != along.weight:
        whole = (extent - 1) // along.factor
    begin = whole * along.factor
    for first in range(0, whole, most):
        last = min(first + most, whole)
        yield _BlockRun(slice(first, last), slice(first * along.factor, last * along.factor), (1,) * along.factor)
    if begin < extent:
        yield _BlockRun(slice(whole, None), slice(begin, extent), (*(along.weight,) * (extent - begin - 1), along.last))


def _mean(entries: _Entries, nodata: torch.Tensor | None) -> torch.Tensor:
    """Return the weighted mean, summed in the order of `entries`."""
    terms = (pixels if weight == 1 else pixels * weight for weight, pixels in entries)
    total = next(terms)
    # Create a new tensor, because the pixels must not be overwritten.
    total = total + next(terms) if len(entries) > 1 else total.clone()
    for term in terms:
        total += term
    # If the sum is not NaN, no pixel is NaN.
    if nodata is None and not (total.is_floating_point() and math.isnan(total.sum().item())):
        return _over(total, sum(weight for weight, _ in entries))
    # Starting from 0.0 would turn a sum of -0.0 into 0.0.
    total, count = torch.full_like(total, -0.0), torch.zeros_like(total)
    for weight, pixels in entries:
        missing = _is_missing(pixels, nodata)
        total += pixels.masked_fill(missing, -0.0) * weight
        count += ~missing * weight
    nothing = torch.full_like(total, math.nan) if nodata is None else nodata
    return torch.where(count == 0, nothing, _over(total, count.clamp(min=1)))


def _over(total: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """Return ``total / count``.

    Integers are rounded, halves to even. `total` may be overwritten.
    """
    if total.is_floating_point():
        # The divisor is a tensor, because a GPU multiplies by the inverse of a plain number instead of dividing.
        return total.div_(torch.as_tensor(count, dtype=total.dtype, device=total.device))
    quotient = total.div(count, rounding_mode="floor")
    twice = 2 * (total - quotient * count)
    rounded: torch.Tensor = quotient + ((twice > count) | ((twice == count) & (quotient % 2 == 1)))
    return rounded


def _best(
    better: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], entries: _Entries, nodata: torch.Tensor | None
) -> torch.Tensor:
    """Return the best pixel of each block, as chosen by `better`.

    A missing pixel is chosen only if all pixels are missing.
    """
    best, *others = [pixels for _, pixels in entries]
    for pixels in others:
        found = better(best, pixels)
        if nodata is not None:
            found = torch.where(_is_missing(best, nodata), pixels, found)
            found = torch.where(_is_missing(pixels, nodata), best, found)
        best = found
    return best if nodata is None else best.where(~_is_missing(best, nodata), nodata)


def _mode(entries: _Entries, nodata: torch.Tensor | None) -> torch.Tensor:
    """Return the most frequent value of each block, or the smallest in a tie."""
    ordered = iter(_sorted([pixels for _, pixels in entries]))
    best = next(ordered)
    before, run = best, torch.ones_like(best, dtype=torch.int32)
    longest = run if nodata is None else run.masked_fill(best == nodata, 0)
    for pixels in ordered:
        run = torch.where(pixels == before, run + 1, 1)
        better = run > longest if nodata is None else (run > longest) & (pixels != nodata)
        best, longest, before = torch.where(better, pixels, best), torch.where(better, run, longest), pixels
    return best


def _sorted(entries: list[torch.Tensor]) -> Sequence[torch.Tensor]:
    if len(entries) > _FEW:
        found: Sequence[torch.Tensor] = torch.stack(entries).sort(dim=0).values.unbind()
        return found
    # Odd-even transposition sort needs as many passes as entries.
    for turn in range(len(entries)):
        for i in range(turn % 2, len(entries) - 1, 2):
            pair = entries[i : i + 2]
            entries[i : i + 2] = torch.minimum(*pair), torch.maximum(*pair)
    return entries


_METHODS: Mapping[str, Callable[[_Entries, torch.Tensor | None], torch.Tensor]] = {
    "mean": _mean,
    "max": partial(_best, torch.fmax),
    "min": partial(_best, torch.fmin),
    "mode": _mode,
    "nearest": lambda entries, _nodata: entries[0][1],
}


def _is_missing(pixels: torch.Tensor, nodata: torch.Tensor | None) -> torch.Tensor:
    missing: torch.Tensor = pixels.isnan()
    return missing if nodata is None else missing | (pixels == nodata)


KEY = "infinite_tensor.coarsen"
"""Key for the coarsening settings in the version of a coarser tensor."""


@dataclass(frozen=True)
class Coarsening(Formula):
    """The ``f`` of a coarser tensor, called with windows of the finer tensor.

    Attributes
    ----------
    shape : tuple of int or None
        The shape of the finer tensor.
    factor : tuple of int
        How many pixels of the finer tensor make one coarser pixel, in each dimension.
    method : str
        The method; see `coarse`.
    weight : tuple of int
        How many pixels of the finest level make one pixel of the finer tensor, in each dimension.
    finest : tuple of int or None
        The shape of the finest level.
    nodata : number, tuple of (number or None), or None
        The value that marks a missing pixel; a tuple has one per index of the dimension `along`.
    along : int or None
        The dimension along which `nodata` varies.
    is_formula : bool
        Whether the tensor has no store; see `Formula`.
    """

    shape: Shape
    factor: tuple[int, ...]
    method: Method
    weight: tuple[int, ...]
    finest: Shape
    nodata: float | tuple[float | None, ...] | None = None
    along: int | None = None
    is_formula: bool = field(default=False, compare=False)
    is_local = True

    def __call__(self, ctx: Sequence[int], region: torch.Tensor) -> torch.Tensor:
        """Return a window of the coarser tensor.

        Pixels past the end of the tensor are 0.
        """
        # Do not change this method. Stored tensors record the code, and warn of changes.
        return self._window(ctx, region)

    def over(self, start: Sequence[int], size: Sequence[int], *regions: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return a region of the coarser tensor; see `Formula.over`."""
        return self._from([a * n for a, n in zip(start, self.factor, strict=True)], regions[0])

    def _window(self, ctx: Sequence[int], region: torch.Tensor) -> torch.Tensor:
        return self._from([i * n for i, n in zip(ctx, region.shape, strict=True)], region)

    def _from(self, starts: Sequence[int], region: torch.Tensor) -> torch.Tensor:
        ends = [math.inf if extent is None else extent for extent in self.shape]
        stops = [int(min(a + n, end)) for a, n, end in zip(starts, region.shape, ends, strict=True)]
        pixels = region[tuple([slice(stop - start) for start, stop in zip(starts, stops, strict=True)])]
        blocks = list(map(self._blocks, range(pixels.ndim), stops))
        found = coarse(pixels, blocks, self.method, self._missing(pixels, starts))
        if pixels.shape == region.shape:
            return found
        whole = found.new_zeros([n // factor for n, factor in zip(region.shape, self.factor, strict=True)])
        whole[tuple(map(slice, found.shape))] = found
        return whole

    def _blocks(self, d: int, stop: int) -> AxisBlocks:
        weight, end = self.weight[d], self.finest[d]
        last = weight if end is None or stop != self.shape[d] else end - (stop - 1) * weight
        return AxisBlocks(self.factor[d], weight, last)

    def _missing(self, pixels: torch.Tensor, starts: Sequence[int]) -> torch.Tensor | None:
        if self.nodata is None or self.method == "nearest":
            return None
        floating, d = pixels.is_floating_point(), self.along
        absent = math.nan if floating else -(2**63)
        given = self.nodata if isinstance(self.nodata, tuple) else (self.nodata,)
        values = torch.tensor(
            [
                absent if value is None else value
                for value in (given if d is None else given[starts[d] : starts[d] + pixels.shape[d]])
            ],
            dtype=torch.float64 if floating else torch.int64,
            device=pixels.device,
        )
        return values.view([-1 if n == d else 1 for n in range(pixels.ndim)])

    @property
    def scale(self) -> tuple[int, ...]:
        """How many pixels of the finest level make one coarser pixel, in each dimension."""
        return tuple(map(operator.mul, self.weight, self.factor))

    @property
    def version(self) -> Json:
        """The settings as JSON, for the ``version`` of a tensor.

        `of_version` reads the settings back.
        """
        said: dict[str, Json] = {"factor": [*self.factor], "method": self.method}
        if {*self.weight} != {1}:
            said |= {"weight": [*self.weight], "finest": [*self.finest]}
        if isinstance(self.nodata, tuple):
            said |= {"nodata": [None if each is None else json_number(each) for each in self.nodata]}
        elif self.nodata is not None:
            said |= {"nodata": json_number(self.nodata)}
        return {KEY: said | ({} if self.along is None else {"along": self.along})}

    @classmethod
    def of_version(cls, version: object, shape: Shape, dtype: torch.dtype) -> Self | None:
        """Create a coarsening from a recorded version.

        `shape` and `dtype` are those of the finer tensor. Return None if `version` is not the version of a coarsening,
        or does not fit `shape` and `dtype`.
        """
        said: Any = version.get(KEY) if isinstance(version, dict) else None
        if not isinstance(said, dict):
            return None
        try:
            nodata, along, n = said.get("nodata"), said.get("along"), len(shape)
            found = cls(
                shape,
                tuple(map(operator.index, said["factor"])),
                said["method"],
                tuple(map(operator.index, said.get("weight", (1,) * n))),
                tuple(said.get("finest", shape)),
                nodata_in(nodata, dtype) if along is None else tuple([nodata_in(each, dtype) for each in nodata or ()]),
                along,
            )
            check_method(found.method, dtype)
        except (LookupError, TypeError, ValidationError):
            return None
        sizes = len(found.factor), len(found.weight), len(found.finest)
        return found if sizes == (n, n, n) and min(*found.factor, *found.weight) > 0 else None
