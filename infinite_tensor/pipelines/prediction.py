"""Positions of the windows and stored form of the outputs in a prediction."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from infinite_tensor.errors import RegionError, ShapeMismatchError, ValidationError
from infinite_tensor.geometry.periodic import Periodic, is_endless, scaled_extent
from infinite_tensor.geometry.regions import parse
from infinite_tensor.geometry.window import TensorWindow, WindowGrid, checked_edge
from infinite_tensor.outputs import Output
from infinite_tensor.pipelines.networks import Index
from infinite_tensor.pipelines.sliding import (
    SHARES,
    Sliding,
    is_one_padding,
    names_of,
    of_dimensions,
    positive,
    slid_dims,
    stride_of,
)
from infinite_tensor.support.given import as_ratio, members, quoted, word
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.dtypes import checked_dtype, dtype_of
from infinite_tensor.values.reduction import Reduction, labels_dtype
from infinite_tensor.values.weights import WeightedMean, lifted


def overlapping(
    source: InfiniteTensor, dims: object, window: object, overlap: object, padding: object, edge: object, scale: object
) -> Sliding:
    """Return the windows for the arguments of `predict`.

    With "wrap" padding, window 0 starts before pixel 0, so that pixels at the ends are covered by as many windows as
    pixels in the middle. Raise ValidationError if an argument is invalid.
    """
    names, entries = _names_of(source, dims), members(window)
    try:
        numbers = slid_dims(source.shape, names, None if entries is None else len(entries))
        if len(numbers) < source.ndim - 1:
            raise ValueError(
                f"windows slide over {len(numbers)} of {source.ndim} dimensions, but only one dimension may be left "
                "for channels"
            )
    except ValueError as problem:
        batch = (
            "; if the first dimension is a batch, give source[0]" if source.ndim > 3 and source.shape[0] == 1 else ""
        )
        raise ValidationError(
            f"the source has shape {source.shape} and dims {tuple(names)}: {problem}; give dims=('c', 'y', "
            f"'x') or dims=('y', 'x', 'c'), and a window with one entry for each dimension except channels{batch}"
        ) from None
    size = of_dimensions("window", window, len(numbers), positive, "a positive int")
    stride = tuple(map(stride_of, size, of_dimensions("overlap", overlap, len(size), *SHARES)))
    modes = [padding] * len(size)
    if not is_one_padding(padding):
        expected = 'one padding, as in "reflect" or ("constant", 0)'
        modes = of_dimensions("padding", padding, len(size), lambda n: n if is_one_padding(n) else None, expected)
    ratios: list[Fraction] = []
    if scale is not None:
        ratios = of_dimensions("scale", scale, len(size), as_ratio, "a positive number such as 2 or 0.5")
    shared = [n - step for n, step in zip(size, stride, strict=True)]
    closed = [word(edge) != "drop" and word(mode) == "wrap" for mode in modes]
    before = [
        n if closes and not is_endless(source.shape[d]) else 0
        for d, n, closes in zip(numbers, shared, closed, strict=True)
    ]
    after = tuple(map(operator.sub, shared, before))
    named = tuple([names[d] for d in numbers])
    return Sliding(source, tuple(numbers), named, tuple(before), after, tuple(ratios), stride, edge)


def edges_of(sliding: Sliding, channels: int = 0) -> Any:
    """Return the `edge` for the tensor of an output.

    Dimensions in which windows begin before pixel 0 get "all", all others the given `edge`. The tensor has `channels`
    dimensions in front.
    """
    if not any(sliding.before):
        return sliding.edge
    return (*[sliding.edge] * channels, *["all" if more else sliding.edge for more in sliding.before])


def first_windows(sliding: Sliding, region: object, count: int) -> list[Index]:
    """Return the indices of the windows in the first batch: up to `count` windows over a region.

    There is at least one window, even for an empty region.
    """
    try:
        start, stop, *_ = parse(... if region is None else members(region) or (region,), sliding.extents)
    except RegionError:
        # The region may be in output pixels, and the output size is known only after the first windows.
        start = stop = (0,) * len(sliding.numbers)
    low, high = _grid(sliding).box(start, stop)
    indices = itertools.product(*[range(a, max(a + 1, b)) for a, b in zip(low, high, strict=True)])
    return list(itertools.islice(indices, count))


def _count(sliding: Sliding) -> list[int | None]:
    """Return the number of windows along each dimension, or None for unbounded ones."""
    lasts = _grid(sliding).last
    found = [
        None if n is None else Periodic(last + 1) if is_endless(n) else last + 1
        for n, last in zip(sliding.extents, lasts, strict=True)
    ]
    if 0 in found:
        raise ValidationError(
            f"no window of {sliding.size} pixels fits into the source of {sliding.extents} pixels; give edge='clip', "
            "or a smaller window"
        )
    return found


def _grid(sliding: Sliding) -> WindowGrid:
    edge = edges_of(replace(sliding, edge=word(sliding.edge) or "drop"))
    window = TensorWindow(sliding.size, sliding.stride, sliding.offset)
    return WindowGrid(window, sliding.extents, checked_edge(edge, sliding.extents))


def scale_of(sliding: Sliding, shape: Sequence[int]) -> tuple[Fraction, ...]:
    """Return the scale of an output of this shape.

    Raise ShapeMismatchError if the scale is unknown or differs from the one that is given.
    """
    size, given = tuple(shape[-len(sliding.size) :]), sliding.scale
    if is_single := {*size} == {1}:
        # One pixel per stride.
        found = tuple(Fraction(1, step) for step in sliding.stride)
    else:
        found = tuple(map(Fraction, size, sliding.size))
    told = f"net returned {size} for windows of {sliding.size} pixels, {sliding.stride} apart"
    is_known = is_single or (len({*found}) == 1 and 1 in found[0].as_integer_ratio())
    if not given and (not is_known or shape[:-1] == sliding.size != size):
        raise ShapeMismatchError(
            f"{told}, so the scale is unknown. If the output is cropped, or has channels last, return all pixels with "
            "channels first, as in lambda batch: net(batch).movedim(-1, 1); otherwise, give "
            f"scale={_scale_text(found)}"
        )
    if given not in ((), found):
        raise ShapeMismatchError(
            f"{told}, at scale={_scale_text(found)}, not {_scale_text(given)}; leave scale out, or have net return "
            f"{tuple(str(n * scale) for n, scale in zip(sliding.size, given, strict=True))}"
        )
    return found


def check_outputs(sliding: Sliding, results: Mapping[str | None, Result]) -> None:
    """Check that the outputs fit the windows and each other.

    Raise ValidationError if windows begin between pixels of an output, or if outputs cover different regions.
    """
    singles = [name for name, result in results.items() if result.returned.is_single]
    scales = [result.scale for name, result in results.items() if name not in singles]
    wrong = [scale for scale in scales if any(step * s % 1 for step, s in zip(sliding.stride, scale, strict=True))]
    if wrong:
        units = [math.lcm(*[scale.denominator for scale in along]) for along in zip(*scales, strict=True)]
        raise ValidationError(
            f"at scale {_scale_text(wrong[0])}, a stride of {sliding.stride} pixels is not a whole number of output "
            f"pixels; give a window and an overlap for a stride that is a multiple of {tuple(units)}"
        )
    ends = zip(_count(sliding), sliding.extents, sliding.stride, strict=True) if singles and scales else ()
    if any(n is not None and count != -(-n // step) for count, n, step in ends):
        others = [name for name in results if name not in singles]
        raise ValidationError(
            f"outputs {singles} of net have one pixel for each window, and do not cover the same region as outputs "
            f"{others}; give overlap=0 and edge='clip', or predict one output at a time, as in lambda batch: "
            f"net(batch)[{singles[0]!r}]"
        )


def _scale_text(scales: Sequence[Fraction]) -> str:
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
    returned : Returned
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

    returned: Returned
    scale: tuple[Fraction, ...]
    reduction: Reduction | None
    stored: Any
    channels: int | None

    def output(self, sliding: Sliding, blend: Any) -> Output:
        """Return the `Output` for creating the stored tensor."""
        is_single = self.returned.is_single
        shape = (
            _count(sliding)
            if is_single
            else [scaled_extent(n, by) for n, by in zip(sliding.extents, self.scale, strict=True)]
        )
        stride = [int(n * scale) for n, scale in zip(sliding.stride, self.scale, strict=True)]
        # With one pixel per window, pixel 0 always belongs to window 0.
        offset = [0 if is_single else int(n * by) for n, by in zip(sliding.offset, self.scale, strict=True)]
        channels = [] if self.channels is None else [self.channels]
        window = TensorWindow(
            [*channels, *self.returned.size],
            [*channels, *stride],
            [*[0 for _ in channels], *offset],
            [*[None for _ in channels], *range(len(stride))],
        )
        dims = None if None in sliding.names else [*["c" for _ in channels], *map(str, sliding.names)]
        if channels and isinstance(blend, WeightedMean):
            blend = lifted(blend)
        edges, init = edges_of(sliding, len(channels)), self._blend_init(blend)
        return Output(
            [*channels, *shape], self.stored, window, self._blend(blend, window), init, edges, dims, self.reduction
        )

    @property
    def blended(self) -> torch.dtype:
        """The dtype for blending windows."""
        return checked_dtype(self.stored) if self.reduction is None else self.returned.computed

    def _blend_init(self, blend: Any) -> Any:
        dtype = self.blended
        if self.returned.is_single or dtype.is_complex or not (blend is torch.maximum or blend is torch.minimum):
            return None
        if dtype.is_floating_point:
            ends: tuple[Any, Any] = (-math.inf, math.inf)
        elif dtype == torch.bool:
            ends = (False, True)
        else:
            ends = (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        return ends[blend is torch.minimum]

    def _blend(self, blend: Any, window: TensorWindow) -> Any:
        if self.returned.is_single:
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


def returned_by(name: str | None, output: torch.Tensor, sliding: Sliding) -> Returned:
    """Describe an output for a batch of windows.

    Raise ShapeMismatchError if the shape does not fit the windows.
    """
    shape, ndim = tuple(output.shape[1:]), len(sliding.size)
    pixels = tuple(map(operator.mul, sliding.size, sliding.scale)) if sliding.scale else sliding.size
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
        if len(args) != 1 or len(args[0]["window"]["size"]) != sliding.tensor.ndim or len(size) < len(sliding.size):
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
            returned = Returned(channels, pixels, dtype_of(stored["dtype"]))
        else:
            returned = Returned(reduction["in_channels"], pixels, dtype_of(reduction["dtype"]))
        found[None if name == tensor_id else name.removeprefix(f"{tensor_id}/")] = returned
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
