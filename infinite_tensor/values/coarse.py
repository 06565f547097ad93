"""Coarser pixels: what is made of each block of pixels, as overviews and pyramids need it."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import Shape
from infinite_tensor.values.definition import Json, json_number
from infinite_tensor.values.meaning import nodata_in

_ON_ONE_THREAD = 2**15
"""torch spreads work on more numbers over threads, which takes longer where others write and compute meanwhile."""

_Entries: TypeAlias = list[tuple[int, torch.Tensor]]
"""The pixels of blocks that have the same number in their block, with their weight, in lexicographic order."""


class Blocks(NamedTuple):
    """How pixels lie in blocks, along one dimension.

    Attributes
    ----------
    factor : int
        So many pixels make a block; the last block may have fewer.
    weight : int
        So many pixels of the finest level are in each pixel.
    last : int
        So many are in the last one, where the finest level ends in it.
    """

    factor: int
    weight: int = 1
    last: int = 1


class _Part(NamedTuple):
    """Blocks of one size along one dimension: their numbers, their pixels, and the weights of the pixels of one."""

    blocks: slice
    pixels: slice
    weights: Sequence[int]


def coarse(pixels: torch.Tensor, along: Sequence[Blocks], method: str, nodata: torch.Tensor | None) -> torch.Tensor:
    """One pixel for each block of pixels; for a block always the same, whatever else there is.

    Parameters
    ----------
    pixels : torch.Tensor
        Beginning with a whole block in each dimension.
    along : sequence of Blocks
        One for each dimension.
    method : str
        "mean", "max", "min", "mode" or "nearest"; see `check_method`.
    nodata : torch.Tensor or None
        What stands for a pixel that is missing, as NaN does, and for a block without any other; it is broadcast.

    Returns
    -------
    torch.Tensor
        Of the dtype of `pixels`.
    """
    computed = _computed(method, pixels.dtype, nodata)
    shape = [-(-n // each.factor) for n, each in zip(pixels.shape, along, strict=True)]
    missing = None if nodata is None else nodata.to(computed).expand(shape)
    pieces = [*itertools.product(*map(_parts, pixels.shape, along, _most_blocks(shape, pixels.device)))]
    out: torch.Tensor | None = None
    for piece in pieces:
        blocks, ranges, weights = zip(*piece, strict=True)
        inside, steps = pixels[ranges], [len(each) for each in weights]
        entries = [
            (math.prod(map(operator.getitem, weights, at)), inside[tuple(map(_every, at, steps))].to(computed))
            for at in itertools.product(*map(range, steps))
        ]
        found = _METHODS[method](entries, None if missing is None else missing[blocks]).to(pixels.dtype)
        if len(pieces) == 1:
            return found
        out = found.new_empty(shape) if out is None else out
        out[blocks] = found
    assert out is not None
    return out


def check_method(method: str, dtype: torch.dtype) -> None:
    """ValidationError if there is no such method, or it is none for pixels of a dtype."""
    if method not in _METHODS:
        raise ValidationError(f"method must be one of {', '.join(map(repr, _METHODS))}, got {method!r:.80}")
    fitting = [name for name in _METHODS if fits(name, dtype)]
    if method not in fitting:
        raise ValidationError(f"pixels of {dtype} cannot be coarsened by {method!r}; give one of {fitting}")


def fits(method: str, dtype: torch.dtype) -> bool:
    """Whether a method is one for pixels of a dtype."""
    if method == "nearest":
        return True
    if dtype is torch.uint64 or dtype.is_complex:
        return False
    return dtype is not torch.bool if method == "mean" else method != "mode" or not dtype.is_floating_point


def _computed(method: str, dtype: torch.dtype, nodata: torch.Tensor | None) -> torch.dtype:
    """The dtype that pixels are computed in: torch has no arithmetic for some, and not all hold nodata."""
    if method == "nearest" or dtype is torch.bool:
        return dtype
    if dtype.is_floating_point:
        return torch.float32 if dtype.itemsize == 2 else dtype
    return torch.int64 if method == "mean" or nodata is not None or dtype in (torch.uint16, torch.uint32) else dtype


def _every(first: int, step: int) -> slice:
    return slice(first, None, step)


def _most_blocks(shape: Sequence[int], device: torch.device) -> list[int]:
    """How many blocks are worked on at once, along each dimension."""
    if device.type != "cpu" or torch.get_num_threads() == 1:
        return [*shape]
    found, most = [], _ON_ONE_THREAD
    for extent in reversed(shape):
        found.append(max(1, min(extent, most)))
        most //= found[-1]
    return found[::-1]


def _parts(extent: int, along: Blocks, most: int) -> Iterator[_Part]:
    """The whole blocks, `most` at a time, and the last one if it has fewer pixels than others, or a lighter one."""
    whole = extent // along.factor
    if extent % along.factor or along.last != along.weight:
        whole = (extent - 1) // along.factor
    begin = whole * along.factor
    for first in range(0, whole, most):
        last = min(first + most, whole)
        yield _Part(slice(first, last), slice(first * along.factor, last * along.factor), (1,) * along.factor)
    if begin < extent:
        yield _Part(slice(whole, None), slice(begin, extent), (*(along.weight,) * (extent - begin - 1), along.last))


def _mean(entries: _Entries, nodata: torch.Tensor | None) -> torch.Tensor:
    """The sum, in the order of the entries, over the sum of their weights."""
    terms = (pixels if weight == 1 else pixels * weight for weight, pixels in entries)
    total = next(terms)
    # Not into the pixels themselves.
    total = total + next(terms) if len(entries) > 1 else total.clone()
    for term in terms:
        total += term
    # A sum without NaN has none among its terms.
    if nodata is None and not (total.is_floating_point() and math.isnan(total.sum().item())):
        return _over(total, sum(weight for weight, _ in entries))
    # 0.0 would turn a sum of -0.0 into 0.0.
    total, count = torch.full_like(total, -0.0), torch.zeros_like(total)
    for weight, pixels in entries:
        missing = _is_missing(pixels, nodata)
        total += pixels.masked_fill(missing, -0.0) * weight
        count += ~missing * weight
    nothing = torch.full_like(total, math.nan) if nodata is None else nodata
    return torch.where(count == 0, nothing, _over(total, count.clamp(min=1)))


def _over(total: torch.Tensor, count: torch.Tensor | int) -> torch.Tensor:
    """A quotient, which may take the place of `total`; of integers rounded, a half to the even one."""
    if total.is_floating_point():
        # By a tensor: a GPU multiplies by the inverse of a number.
        return total.div_(torch.as_tensor(count, dtype=total.dtype, device=total.device))
    quotient = total.div(count, rounding_mode="floor")
    twice = 2 * (total - quotient * count)
    rounded: torch.Tensor = quotient + ((twice > count) | ((twice == count) & (quotient % 2 == 1)))
    return rounded


def _best(
    better: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], entries: _Entries, nodata: torch.Tensor | None
) -> torch.Tensor:
    """What is better than the others; of NaN and a number, that is the number."""
    best, *others = [pixels for _, pixels in entries]
    for pixels in others:
        found = better(best, pixels)
        if nodata is not None:
            found = torch.where(_is_missing(best, nodata), pixels, found)
            found = torch.where(_is_missing(pixels, nodata), best, found)
        best = found
    return best if nodata is None else best.where(~_is_missing(best, nodata), nodata)


def _mode(entries: _Entries, nodata: torch.Tensor | None) -> torch.Tensor:
    """What there is most often; of several, the smallest."""
    ordered: Iterator[torch.Tensor] = iter(torch.stack([pixels for _, pixels in entries]).sort(dim=0).values)
    best = next(ordered)
    before, run = best, torch.ones_like(best, dtype=torch.int32)
    longest = run if nodata is None else run.masked_fill(best == nodata, 0)
    for pixels in ordered:
        run = torch.where(pixels == before, run + 1, 1)
        better = run > longest if nodata is None else (run > longest) & (pixels != nodata)
        best, longest, before = torch.where(better, pixels, best), torch.where(better, run, longest), pixels
    return best


def _nearest(entries: _Entries, nodata: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001  (as the others)
    return entries[0][1]


_METHODS: Mapping[str, Callable[[_Entries, torch.Tensor | None], torch.Tensor]] = {
    "mean": _mean,
    "max": partial(_best, torch.fmax),
    "min": partial(_best, torch.fmin),
    "mode": _mode,
    "nearest": _nearest,
}


def _is_missing(pixels: torch.Tensor, nodata: torch.Tensor | None) -> torch.Tensor:
    missing: torch.Tensor = pixels.isnan()
    return missing if nodata is None else missing | (pixels == nodata)


KEY = "infinite_tensor.coarsen"
"""Under which the version of a coarser tensor says how it is made."""


@dataclass(frozen=True)
class Coarsening:
    """The ``f`` of a coarser tensor: windows of the finer one go in, and pixels of the coarser one come out.

    Attributes
    ----------
    shape : tuple of int or None
        Of the finer tensor.
    factor : tuple of int
        How many of its pixels make one, per dimension.
    method : str
        How; see `coarse`.
    weight : tuple of int
        How many pixels of the finest level make one of the finer tensor, per dimension.
    finest : tuple of int or None
        The shape of the finest level.
    nodata : number, tuple of (number or None), or None
        What stands for a missing pixel; a tuple has one for each entry of the dimension `along`.
    along : int or None
        That dimension.
    """

    shape: Shape
    factor: tuple[int, ...]
    method: str
    weight: tuple[int, ...]
    finest: Shape
    nodata: float | tuple[float | None, ...] | None = None
    along: int | None = None

    def __call__(self, ctx: Sequence[int], region: torch.Tensor) -> torch.Tensor:
        """One window of the coarser tensor, zeros beyond its end."""
        # Stored tensors remember the code of this method, and warn where it is another one: it is to stay as it is.
        return self._window(ctx, region)

    def _window(self, ctx: Sequence[int], region: torch.Tensor) -> torch.Tensor:
        starts = [i * n for i, n in zip(ctx, region.shape, strict=True)]
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

    def _blocks(self, d: int, stop: int) -> Blocks:
        """The blocks of a region that ends at `stop`."""
        weight, end = self.weight[d], self.finest[d]
        last = weight if end is None or stop != self.shape[d] else end - (stop - 1) * weight
        return Blocks(self.factor[d], weight, last)

    def _missing(self, pixels: torch.Tensor, starts: Sequence[int]) -> torch.Tensor | None:
        """What stands for a missing pixel of a region; None where no pixel can be that."""
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
    def version(self) -> Json:
        """What tells it from others, beside the tensor that it is of; `of_version` reads it back."""
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
        """That of a tensor of this shape and dtype, which a definition says; None where it says another ``f``."""
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


def scales(levels: Sequence[Coarsening]) -> list[tuple[int, ...]]:
    """How many pixels of a tensor one of each of its levels is, per dimension, the lowest level first."""

    def product(below: Sequence[int], factor: Sequence[int]) -> tuple[int, ...]:
        return tuple(map(operator.mul, below, factor))

    return list(itertools.accumulate((level.factor for level in levels), product))
