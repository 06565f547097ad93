"""Several reductions of the same scores: one tensor keeps what all of them make of a pixel, as channels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.groups import TensorGroup
from infinite_tensor.pipelines.prediction import Result, Returned
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.values.dtypes import checked_dtype
from infinite_tensor.values.reduction import Reduction, reduced, reduction_to_json


@dataclass(frozen=True)
class Channels:
    """The ``fn`` of a `map` that takes one of the results out of the tensor that keeps all.

    Attributes
    ----------
    start, stop : int
        Its channels there.
    is_single : bool
        Whether it has no dimension for them.
    dtype : torch.dtype
        Its own dtype.
    """

    start: int
    stop: int
    is_single: bool
    dtype: torch.dtype

    def __call__(self, region: torch.Tensor) -> torch.Tensor:
        """Its part of a region."""
        found = region[self.start] if self.is_single else region[self.start : self.stop]
        return found.to(self.dtype)

    def _reaches(self) -> Mapping[str, object]:
        return vars(self)


class Reductions:
    """Several reductions as one, whose channels are those of their results, one after the other.

    Parameters
    ----------
    results : mapping of str to Result
        What each makes of the scores.

    Raises
    ------
    ValidationError
        If their dtypes have none in common that holds the values of each.
    """

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._reductions = [each.reduction for each in results.values()]
        ends = [0, *itertools.accumulate(each.channels or 1 for each in results.values())]
        self._channels = {
            name: Channels(start, stop, each.channels is None, checked_dtype(each.stored))
            for (name, each), (start, stop) in zip(results.items(), itertools.pairwise(ends), strict=True)
        }
        self._dtype = _holding_all({name: each.dtype for name, each in self._channels.items()})

    @property
    def told(self) -> list[str]:
        """The results and their functions by name, for the definition."""
        names = ["" if each is None else reduction_to_json(each)["function"] for each in self._reductions]
        return [f"{name}: {function}" for name, function in zip(self._channels, names, strict=True)]

    def result(self, seen: Returned, scale: tuple[Fraction, ...]) -> Result:
        """What is stored of the scores."""
        count = max(each.stop for each in self._channels.values())
        return Result(seen, scale, Reduction(self, seen.channels or 0, count, seen.computed), self._dtype, count)

    def __call__(self, scores: torch.Tensor) -> torch.Tensor:
        """What scores of N pixels, of shape (channels, N), become."""
        found = [scores if each is None else reduced(each, scores) for each in self._reductions]
        return torch.cat([each.reshape(-1, scores.shape[1]).to(self._dtype) for each in found])

    def _reaches(self) -> Mapping[str, object]:
        functions = [None if each is None else each.function for each in self._reductions]
        return dict(zip(self._channels, functions, strict=True))

    def group(self, made: InfiniteTensor, store: TileStore) -> TensorGroup:
        """The results by their names, read from the tensor that keeps them; `store` holds windows that were read."""
        dims = tuple(range(1, made.ndim))
        tensors = {
            name: made.map(
                each,
                dims=dims,
                channels=() if each.is_single else each.stop - each.start,
                dtype=each.dtype,
                store=store,
            )
            for name, each in self._channels.items()
        }
        return TensorGroup(tensors, dims=tuple(range(-len(dims), 0)))


def _holding_all(dtypes: Mapping[str, torch.dtype]) -> torch.dtype:
    least = functools.reduce(torch.promote_types, dtypes.values())
    for found in (least, torch.float32, torch.float64):
        if torch.promote_types(least, found) == found and not any(_is_wider(dtype, found) for dtype in dtypes.values()):
            return found
    raise ValidationError(
        f"reductions of the same scores are kept as channels of one tensor, and no dtype holds the values of "
        f"{dict(dtypes)}; have them return dtypes such as torch.uint8 and torch.float32, or predict them apart"
    )


def _is_wider(dtype: torch.dtype, than: torch.dtype) -> bool:
    """Whether a dtype has ints that floats of another one do not hold."""
    is_int = not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool
    return is_int and than.is_floating_point and torch.iinfo(dtype).max > 2 / torch.finfo(than).eps
