"""Positions of the windows and stored form of the outputs in a prediction."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import torch

from infinite_tensor.errors import RegionError, ShapeMismatchError, ValidationError
from infinite_tensor.geometry.regions import parse
from infinite_tensor.geometry.window import TensorWindow, WindowGrid, checked_edge
from infinite_tensor.groups import TensorGroup
from infinite_tensor.outputs import Output
from infinite_tensor.pipelines.networks import Index
from infinite_tensor.pipelines.sliding import (
    is_one_padding,
    names_of,
    of_all,
    of_dimensions,
    positive,
    slid_dims,
    window_advice,
    window_over,
)
from infinite_tensor.support.given import as_ratio, members, number, quoted, word
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.values.dtypes import checked_dtype, dtype_of
from infinite_tensor.values.reduction import Reduction, labels_dtype, reduced, reduction_to_json
from infinite_tensor.values.weights import WeightedMean, lifted


@dataclass(frozen=True)
class Sliding:
    """Windows sliding over a source.

    Attributes
    ----------
    source : InfiniteTensor
        The tensor under the windows.
    numbers : tuple of int
        The sliding dimensions: the dimensions along which windows slide.
    names : tuple of (str or None)
        The names of the sliding dimensions.
    channel_dim : int or None
        The dimension of the channels, if there is one.
    size, stride : tuple of int
        Size of a window, and distance between the starts of neighbouring windows, in pixels.
    padding : object
        The `args_padding` for pixels beyond the ends of the source.
    offset : tuple of int
        Start of window 0. With "wrap" padding, window 0 starts before pixel 0, so that pixels at the ends are covered
        by as many windows as pixels in the middle.
    """

    source: InfiniteTensor
    numbers: tuple[int, ...]
    names: tuple[str | None, ...]
    channel_dim: int | None
    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: object
    offset: tuple[int, ...]

    @classmethod
    def over(
        cls, source: InfiniteTensor, dims: object, window: object, overlap: object, padding: object, edge: object
    ) -> Self:
        """Create the windows from the arguments of `predict`.

        Raise ValidationError if an argument is invalid.
        """
        names, entries = _names_of(source, dims), members(window)
        try:
            numbers = slid_dims(source.shape, names, None if entries is None else len(entries))
            if len(numbers) < source.ndim - 1:
                raise ValueError(
                    f"windows slide over {len(numbers)} of {source.ndim} dimensions, but only one dimension may be "
                    "left for channels"
                )
        except ValueError as problem:
            if members(overlap) is None:
                of_dimensions("overlap", overlap, max(2, source.ndim - 1), *_SHARES)
            tried = window_advice(window, source.shape) if None in names else ""
            batch = (
                "; if the first dimension is a batch, give source[0]"
                if source.ndim > 3 and source.shape[0] == 1
                else ""
            )
            raise ValidationError(
                f"the source has shape {source.shape} and dims {tuple(names)}: {problem}; give {tried}dims=('c', 'y', "
                "'x') or dims=('y', 'x', 'c'), and a window with one entry for each dimension except channels"
                f"{batch}"
            ) from None
        rest = [d for d in range(source.ndim) if d not in numbers]
        size = of_dimensions("window", window, len(numbers), positive, "a positive int")
        shared = of_dimensions("overlap", overlap, len(size), *_SHARES)
        stride = tuple(map(_stride, size, shared))
        named = tuple(names[d] for d in numbers)
        given, modes = padding, [padding] * len(size)
        if not is_one_padding(padding):
            expected = 'one padding, as in "reflect" or ("constant", 0)'
            modes = of_dimensions(
                "padding", padding, len(size), lambda each: each if is_one_padding(each) else None, expected
            )
            given = [of_all(source, numbers, modes)]
        closed = [
            word(edge) != "drop" and word(mode) == "wrap" and source.shape[d] is not None
            for d, mode in zip(numbers, modes, strict=True)
        ]
        offset = tuple(step - n if closes else 0 for n, step, closes in zip(size, stride, closed, strict=True))
        return cls(source, tuple(numbers), named, rest[0] if rest else None, tuple(size), stride, given, offset)

    @property
    def window(self) -> TensorWindow:
        """The windows over the source."""
        slid = zip(self.size, self.stride, self.offset, range(len(self.size)), strict=True)
        return window_over(self.source, dict(zip(self.numbers, slid, strict=True)))

    def edges(self, edge: Any, channels: int = 0) -> Any:
        """Return the `edge` for the tensor of an output.

        Dimensions in which windows begin before pixel 0, as with "wrap" padding, get "all". All others get the given
        `edge`. The tensor has `channels` dimensions in front of the sliding dimensions.
        """
        if not any(self.offset):
            return edge
        return (*[edge] * channels, *["all" if offset else edge for offset in self.offset])

    @property
    def extents(self) -> list[int | None]:
        """Extents of the source along the sliding dimensions."""
        return [self.source.shape[d] for d in self.numbers]

    def first(self, region: object, edge: object, count: int) -> list[Index]:
        """Return the indices of the windows in the first batch: up to `count` windows over a region.

        There is at least one window, even for an empty region.
        """
        ndim = len(self.size)
        try:
            start, stop, *_ = parse(... if region is None else members(region) or (region,), tuple(self.extents))
        except RegionError:
            # The region may be in output pixels, and the output size is known only after the first windows.
            start = stop = (0,) * ndim
        low, high = self._grid(edge).box(start, stop)
        indices = itertools.product(*[range(a, max(a + 1, b)) for a, b in zip(low, high, strict=True)])
        return list(itertools.islice(indices, count))

    def count(self, edge: object) -> list[int | None]:
        """Return the number of windows along each dimension.

        The number is None for unbounded dimensions. Raise ValidationError if no window lies in the source.
        """
        lasts = self._grid(edge).last
        found = [None if n is None else last + 1 for n, last in zip(self.extents, lasts, strict=True)]
        if 0 in found:
            raise ValidationError(
                f"no window of {self.size} pixels fits into the source of {tuple(self.extents)} pixels; give "
                "edge='clip', or a smaller window"
            )
        return found

    def _grid(self, edge: object) -> WindowGrid:
        extents = tuple(self.extents)
        edges = checked_edge(self.edges(word(edge) or "drop"), extents)
        return WindowGrid(TensorWindow(self.size, self.stride, self.offset), extents, edges)

    def given_scale(self, given: object) -> tuple[Fraction, ...] | None:
        """Return the given scale for each sliding dimension, or None if `given` is None."""
        if given is None:
            return None
        return tuple(of_dimensions("scale", given, len(self.size), as_ratio, "a positive number such as 2 or 0.5"))

    def scale_of(self, shape: Sequence[int], given: tuple[Fraction, ...] | None) -> tuple[Fraction, ...]:
        """Return the scale of an output of this shape.

        Raise ShapeMismatchError if the scale is unknown or differs from `given`.
        """
        size = tuple(shape[-len(self.size) :])
        if is_single := {*size} == {1}:
            # One pixel per stride.
            found = tuple(Fraction(1, step) for step in self.stride)
        else:
            found = tuple(map(Fraction, size, self.size))
        told = f"net returned {size} for windows of {self.size} pixels, {self.stride} apart"
        is_known = is_single or (len({*found}) == 1 and 1 in found[0].as_integer_ratio())
        if given is None and (not is_known or shape[:-1] == self.size != size):
            raise ShapeMismatchError(
                f"{told}, so the scale is unknown. If the output is cropped, or has channels last, return all pixels "
                "with channels first, as in lambda batch: net(batch).movedim(-1, 1); otherwise, give "
                f"scale={_shown(found)}"
            )
        if given not in (None, found):
            raise ShapeMismatchError(
                f"{told}, at scale={_shown(found)}, not {_shown(given)}; leave scale out, or have net return "
                f"{tuple(str(n * scale) for n, scale in zip(self.size, given, strict=True))}"
            )
        return found

    def check(self, results: Mapping[str | None, Result], edge: object) -> None:
        """Check that the outputs fit the windows and each other.

        Raise ValidationError if windows begin between pixels of an output, or if outputs cover different regions.
        """
        singles = [name for name, result in results.items() if result.seen.is_single]
        scales = [result.scale for name, result in results.items() if name not in singles]
        wrong = [scale for scale in scales if any(step * s % 1 for step, s in zip(self.stride, scale, strict=True))]
        if wrong:
            units = [math.lcm(*[scale.denominator for scale in along]) for along in zip(*scales, strict=True)]
            shares = [_share_for(*each) for each in zip(self.size, self.stride, units, strict=True)]
            shown = str(shares[0]) if len({*shares}) == 1 else f"({', '.join(map(str, shares))})"
            raise ValidationError(
                f"at scale {_shown(wrong[0])}, a stride of {self.stride} pixels is not a whole number of output "
                f"pixels; give overlap={shown}, or another window"
            )
        ends = zip(self.count(edge), self.extents, self.stride, strict=True) if singles and scales else ()
        if any(n is not None and count != -(-n // step) for count, n, step in ends):
            others = [name for name in results if name not in singles]
            raise ValidationError(
                f"outputs {singles} of net have one pixel for each window, and do not cover the same region as "
                f"outputs {others}; give overlap=0 and edge='clip', or predict one output at a time, as in "
                f"lambda batch: net(batch)[{singles[0]!r}]"
            )


def _stride(size: int, share: float) -> int:
    return max(1, int(size * (1 - share)))


def _share_for(size: int, stride: int, unit: int) -> float:
    """Return the overlap to suggest in an error message.

    The suggested stride is the multiple of `unit` nearest to `stride`. For `size` 64, `stride` 50 and `unit` 8, this is
    a stride of 48, so the overlap is 0.25.
    """
    step = min(range(unit, size + 1, unit), key=lambda n: abs(n - stride))
    # If 0.8 gives a stride of 31.99 pixels, the stride is cut to 31. Try overlaps slightly below 0.8.
    shares = (round(1 - (step + more) / size, digits) for digits in range(17) for more in (0, 0.5))
    return next(share for share in shares if _stride(size, share) == step)


def _shown(scales: Sequence[Fraction]) -> str:
    return "(" + ", ".join(map(str, scales)) + ")" if len({*scales}) > 1 else str(scales[0])


def _names_of(source: InfiniteTensor, dims: object) -> list[str | None]:
    given = [word(name) for name in members(dims) or ()] if dims is not None else None
    if given is None:
        return names_of(source)
    if len(given) != source.ndim or None in given or len({*given}) < len(given):
        raise ValidationError(
            f"dims must contain a name for each of the {source.ndim} dimensions of the source of shape {source.shape}, "
            f"got {quoted(dims)}"
        )
    return given


def _share(value: object) -> float | None:
    plain = number(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not 0 <= plain < 1:
        return None
    return float(plain)


_SHARES = _share, "a number that is at least 0 and below 1"
"""Converter for an entry of `overlap`, and description of valid values."""


@dataclass(frozen=True)
class Returned:
    """Shape and dtype of a network output for a single window.

    Attributes
    ----------
    channels : int or None
        Values per pixel; None if the output has no channel dimension.
    size : tuple of int
        Pixels along each dimension of the window.
    computed : torch.dtype
        The dtype of the output, or the stored dtype if the former is unknown.
    """

    channels: int | None
    size: tuple[int, ...]
    computed: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape for one window."""
        return self.size if self.channels is None else (self.channels, *self.size)

    @property
    def is_single(self) -> bool:
        """Whether the output is a single result for the whole window."""
        return {*self.size} == {1}

    @property
    def nbytes(self) -> int:
        """Bytes for one window."""
        return math.prod(self.shape) * self.computed.itemsize

    def reduced_by(self, reduce: object, dtype: Any, scale: tuple[Fraction, ...]) -> Result:
        """Return the stored form of the output, after the reduction `reduce`.

        `reduce` and `dtype` are arguments of `predict`. If `dtype` is None, values are stored in the dtype of the
        output. But results of a function `reduce` are stored in their own dtype, and labels of "argmax" in the smallest
        dtype that holds them. Raise ValidationError if `reduce` does not fit the channels or dtype of the output.
        """
        if reduce is None:
            stored = self.computed if dtype is None else dtype
            return Result(self, scale, None, stored, self.channels)
        if self.channels is None:
            raise ValidationError(
                f"reduce={quoted(reduce)} reduces the channels of each pixel, but net returned windows of {self.size} "
                "pixels without channels; leave reduce out"
            )
        if isinstance(reduce, Reduction):
            if (reduce.in_channels, reduce.dtype) != (self.channels, self.computed):
                raise ValidationError(
                    f"net returned {self.channels} channels of {self.computed}, but {reduce!r} needs "
                    f"{reduce.in_channels} channels of {reduce.dtype}"
                )
            reduction, becomes = reduce, None
        else:
            reduction, becomes = _reduction(reduce, self.channels, self.computed)
        if reduction.function == "argmax" and self.channels == 1:
            raise ValidationError(
                "reduce='argmax' needs several channels, but net returned one; if the channel is the logit of a "
                "foreground, give reduce=lambda values: values[0].sigmoid() > 0.5"
            )
        if dtype is None:
            dtype = labels_dtype(self.channels) if reduction.function == "argmax" else becomes or self.computed
        return Result(self, scale, reduction, dtype, reduction.out_channels)


def _reduction(given: Any, channels: int, dtype: torch.dtype) -> tuple[Reduction, torch.dtype | None]:
    if word(given) is not None or not callable(given):
        return Reduction(given, channels, dtype=dtype), None
    try:
        with torch.no_grad():
            tried = given(torch.zeros(channels, 64, dtype=dtype, device="cpu"))
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValidationError(
            f"reduce={quoted(given)} does not work on the values of 64 pixels, of shape ({channels}, 64): {error}"
        ) from error
    if not isinstance(tried, torch.Tensor) or tried.ndim not in (1, 2) or tried.shape[-1] != 64:
        shape = tuple(tried.shape) if isinstance(tried, torch.Tensor) else quoted(tried)
        raise ValidationError(
            f"reduce must return shape (64,) or (count, 64) for the values of 64 pixels, of shape ({channels}, 64), "
            f"got {shape}"
        )
    return Reduction(given, channels, None if tried.ndim == 1 else len(tried), dtype), tried.dtype


@dataclass(frozen=True)
class Result:
    """Stored form of an output.

    Attributes
    ----------
    seen : Returned
        The output of the network.
    scale : tuple of Fraction
        Pixels of the output along one pixel of the source.
    reduction : Reduction or None
        How pixels are reduced.
    stored : torch.dtype or str
        The stored dtype.
    channels : int or None
        Stored values per pixel, or None without a channel dimension.
    """

    seen: Returned
    scale: tuple[Fraction, ...]
    reduction: Reduction | None
    stored: Any
    channels: int | None

    def output(self, sliding: Sliding, blend: Any, edge: str) -> Output:
        """Return the `Output` for creating the stored tensor."""
        shape = (
            sliding.count(edge)
            if self.seen.is_single
            else [None if n is None else math.ceil(n * by) for n, by in zip(sliding.extents, self.scale, strict=True)]
        )
        stride = [int(n * scale) for n, scale in zip(sliding.stride, self.scale, strict=True)]
        # With one pixel per window, pixel 0 always belongs to window 0.
        begin = (0,) * len(stride) if self.seen.is_single else sliding.offset
        offset = [int(n * scale) for n, scale in zip(begin, self.scale, strict=True)]
        channels = [] if self.channels is None else [self.channels]
        window = TensorWindow(
            [*channels, *self.seen.size],
            [*channels, *stride],
            [*[0 for _ in channels], *offset],
            [*[None for _ in channels], *range(len(stride))],
        )
        dims = None if None in sliding.names else [*["c" for _ in channels], *map(str, sliding.names)]
        if channels and isinstance(blend, WeightedMean):
            blend = lifted(blend)
        edges, init = sliding.edges(edge, len(channels)), self._blend_init(blend)
        return Output(
            [*channels, *shape], self.stored, window, self._blend(blend, window), init, edges, dims, self.reduction
        )

    @property
    def blended(self) -> torch.dtype:
        """The dtype for blending windows."""
        return checked_dtype(self.stored) if self.reduction is None else self.seen.computed

    def _blend_init(self, blend: Any) -> Any:
        dtype = self.blended
        if self.seen.is_single or dtype.is_complex or not (blend is torch.maximum or blend is torch.minimum):
            return None
        if dtype.is_floating_point:
            ends: tuple[Any, Any] = (-math.inf, math.inf)
        elif dtype == torch.bool:
            ends = (False, True)
        else:
            ends = (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        return ends[blend is torch.minimum]

    def _blend(self, blend: Any, window: TensorWindow) -> Any:
        if self.seen.is_single:
            return "last"
        if not isinstance(blend, WeightedMean):
            return blend
        dtype = self.blended
        divides = dtype.is_floating_point or dtype.is_complex
        if window.stride == window.size:
            return blend if divides else "last"
        if not divides:
            raise ValidationError(
                f"overlapping windows of {dtype} cannot be averaged; give blend='last' or overlap=0. If net returns "
                "labels, return scores, and give reduce='argmax'"
            )
        return blend


def returned_by(
    name: str | None, output: torch.Tensor, sliding: Sliding, scale: tuple[Fraction, ...] | None
) -> Returned:
    """Describe an output for a batch of windows.

    Raise ShapeMismatchError if the shape does not fit the windows.
    """
    shape, ndim = tuple(output.shape[1:]), len(sliding.size)
    pixels = sliding.size if scale is None else tuple(map(operator.mul, sliding.size, scale))
    if not shape or (len(shape) == 1 and (ndim > 1 or shape != pixels)):
        return Returned(shape[0] if shape else None, (1,) * ndim, output.dtype)
    dims = len(shape) - ndim
    if dims not in (0, 1):
        named = "" if name is None else f" for {name!r}"
        raise ShapeMismatchError(
            f"net must return shape (batch, *size), (batch, channels, *size) or (batch, classes), got shape "
            f"{tuple(output.shape)}{named} for windows of {sliding.size} pixels; size has an entry for each dimension "
            "of the window"
        )
    return Returned(shape[0] if dims else None, shape[dims:], output.dtype)


def returned_before(
    tensor_id: str, definitions: Mapping[str, Mapping[str, Any]], sliding: Sliding
) -> dict[str | None, Returned]:
    """Return the network outputs by name, from stored `definitions`.

    Return an empty dict if outputs are missing, or if `definitions` belong to a different tensor.
    """
    found: dict[str | None, Returned] = {}
    for name, stored in definitions.items():
        size, reduction, args = stored["output_window"]["size"], stored.get("reduce"), stored["args"]
        if len(args) != 1 or len(args[0]["window"]["size"]) != sliding.source.ndim or len(size) < len(sliding.size):
            # Not this prediction. A later comparison of the definitions raises an error with the differences.
            return {}
        if name != tensor_id and len(_outputs_in(definitions)) != len(definitions):
            return {}
        # Stored windows may have another size. Scale the output size to the present windows.
        read, pixels = [args[0]["window"]["size"][d] for d in sliding.numbers], tuple(size[-len(sliding.size) :])
        if {*pixels} != {1}:
            pixels = tuple(map(lambda now, then, given: now * then // given, sliding.size, pixels, read))
        if reduction is None:
            channels = size[0] if len(size) > len(pixels) else None
            seen = Returned(channels, pixels, dtype_of(stored["dtype"]))
        else:
            seen = Returned(reduction["in_channels"], pixels, dtype_of(reduction["dtype"]))
        found[None if name == tensor_id else name.removeprefix(f"{tensor_id}/")] = seen
    return found


def _outputs_in(definitions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    version = next((stored["version"] for stored in definitions.values()), None)
    return [*version.get("outputs", ())] if isinstance(version, dict) else []


def in_stored_order(
    found: dict[str | None, Returned], definitions: Mapping[str, Mapping[str, Any]]
) -> dict[str | None, Returned]:
    """Return outputs in the order of a stored prediction, if it has the same outputs.

    An earlier version has stored them in alphabetical order, and a network may make a dict of a set.
    """
    order = _outputs_in(definitions)
    return {name: found[name] for name in order} if {*order} == {*found} else found


def reduction_for(name: str | None, reduce: object, outputs: Mapping[str | None, Returned]) -> object:
    """Return the reduction for an output.

    `reduce` is a single reduction for all outputs, or a dict by output name.
    """
    if not isinstance(reduce, Mapping):
        return reduce
    names = [str(each) for each in reduce]
    if not {*names} <= {*outputs}:
        returned = "a single tensor" if None in outputs else f"outputs {list(outputs)}"
        raise ValidationError(f"reduce has entries for {names}, but net returned {returned}")
    return {str(each): reduction for each, reduction in reduce.items()}.get(str(name))


@dataclass(frozen=True)
class Channels:
    """Selects a single result from a tensor storing several results as channels.

    Used as the ``fn`` of a `map`.

    Attributes
    ----------
    start, stop : int
        The first channel of the result, and the channel after the last.
    is_single : bool
        Whether the result has no dimension for channels.
    dtype : torch.dtype
        Dtype of the result.
    """

    start: int
    stop: int
    is_single: bool
    dtype: torch.dtype

    def __call__(self, region: torch.Tensor) -> torch.Tensor:
        """Return the result in a region."""
        found = region[self.start] if self.is_single else region[self.start : self.stop]
        return found.to(self.dtype)

    def _reaches(self) -> Mapping[str, object]:
        return vars(self)


class Reductions:
    """Combines several reductions of the same scores.

    The combination returns all results as channels.

    Parameters
    ----------
    results : mapping of str to Result
        The result of each reduction.

    Raises
    ------
    ValidationError
        If no dtype can hold the values of all results.
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
        """The name and function of each result, such as ``labels: argmax``.

        These texts become part of the `version` of the stored tensor.
        """
        names = ["" if each is None else reduction_to_json(each)["function"] for each in self._reductions]
        return sorted(f"{name}: {function}" for name, function in zip(self._channels, names, strict=True))

    def result(self, seen: Returned, scale: tuple[Fraction, ...]) -> Result:
        """Return a `Result` for storing all results together, as channels."""
        count = max(each.stop for each in self._channels.values())
        return Result(seen, scale, Reduction(self, seen.channels or 0, count, seen.computed), self._dtype, count)

    def __call__(self, scores: torch.Tensor) -> torch.Tensor:
        """Reduce scores of shape (channels, N)."""
        found = [scores if each is None else reduced(each, scores) for each in self._reductions]
        return torch.cat([each.reshape(-1, scores.shape[1]).to(self._dtype) for each in found])

    def _reaches(self) -> Mapping[str, object]:
        functions = [None if each is None else each.function for each in self._reductions]
        return dict(zip(self._channels, functions, strict=True))

    def group(self, made: InfiniteTensor, store: TileStore) -> TensorGroup:
        """Return a group with a tensor for each result.

        Each tensor takes its channels from `made`, which contains all results, and caches windows in `store`.
        """
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
        f"reductions of the same scores need a common dtype, and no dtype contains all values of {dict(dtypes)}; "
        "return dtypes such as torch.uint8 and torch.float32, or call predict for each reduction"
    )


def _is_wider(dtype: torch.dtype, than: torch.dtype) -> bool:
    """Return whether integers of `dtype` exceed the precision of the float dtype `than`."""
    is_int = not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool
    return is_int and than.is_floating_point and torch.iinfo(dtype).max > 2 / torch.finfo(than).eps
