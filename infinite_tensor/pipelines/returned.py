"""What a network returns, and what a prediction stores of it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from infinite_tensor.errors import ShapeMismatchError, ValidationError
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.outputs import Output
from infinite_tensor.pipelines.patches import Sliding
from infinite_tensor.support.given import quoted, word
from infinite_tensor.support.gradients import without_gradients
from infinite_tensor.values.dtypes import checked_dtype
from infinite_tensor.values.reduction import Reduction
from infinite_tensor.values.weights import WeightedMean


@dataclass(frozen=True)
class Returned:
    """What a network returns for one window: of one output of it.

    Attributes
    ----------
    channels : int or None
        Values per pixel; None where there is no dimension for them.
    size : tuple of int
        Pixels.
    computed : torch.dtype
        Its dtype, or that in which it is stored.
    """

    channels: int | None
    size: tuple[int, ...]
    computed: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one window."""
        return self.size if self.channels is None else (self.channels, *self.size)

    @property
    def is_single(self) -> bool:
        """Whether it is one result for all of a window."""
        return {*self.size} == {1}

    @property
    def nbytes(self) -> int:
        """Of one window, in bytes."""
        return math.prod(self.shape) * self.computed.itemsize

    def reduced_by(self, reduce: object, dtype: Any, scale: tuple[Fraction, ...]) -> Result:
        """What becomes of it."""
        if reduce is None:
            stored = self.computed if dtype is None else dtype
            return Result(self, scale, None, stored, self.channels)
        if self.channels is None:
            raise ValidationError(
                f"reduce={quoted(reduce)} reduces the channels of each pixel, but net returned windows of {self.size} "
                "pixels without any; leave it out"
            )
        if isinstance(reduce, Reduction):
            if (reduce.in_channels, reduce.dtype) != (self.channels, self.computed):
                raise ValidationError(
                    f"net returned {self.channels} channels of {self.computed}, which {reduce!r} does not reduce"
                )
            reduction, becomes = reduce, None
        else:
            reduction, becomes = _reduction(reduce, self.channels, self.computed)
        if reduction.function == "argmax" and self.channels == 1:
            raise ValidationError(
                "reduce='argmax' of one channel is 0 everywhere; where it is the logit of a foreground, give "
                "reduce=lambda values: values[0].sigmoid() > 0.5"
            )
        if dtype is None:
            labels = torch.uint8 if self.channels <= 2**8 else torch.int16 if self.channels <= 2**15 else torch.int32
            dtype = labels if reduction.function == "argmax" else becomes or self.computed
        return Result(self, scale, reduction, dtype, reduction.out_channels)


def _reduction(given: Any, channels: int, dtype: torch.dtype) -> tuple[Reduction, torch.dtype | None]:
    """The reduction that `reduce` stands for, and the dtype of its results where it tells that."""
    if word(given) is not None or not callable(given):
        return Reduction(given, channels, dtype=dtype), None
    try:
        tried = without_gradients(given, torch.zeros(channels, 64, dtype=dtype))
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValidationError(
            f"reduce={quoted(given)} does not work on values of shape ({channels}, 64), those of 64 pixels: {error}"
        ) from error
    if not isinstance(tried, torch.Tensor) or tried.ndim not in (1, 2) or tried.shape[-1] != 64:
        shape = tuple(tried.shape) if isinstance(tried, torch.Tensor) else quoted(tried)
        raise ValidationError(
            f"reduce was given values of shape ({channels}, 64), those of 64 pixels, and must return shape (64,) or "
            f"(count, 64), got {shape}"
        )
    return Reduction(given, channels, None if tried.ndim == 1 else len(tried), dtype), tried.dtype


@dataclass(frozen=True)
class Result:
    """What is stored of one output.

    Attributes
    ----------
    seen : Returned
        What the network returns.
    scale : tuple of Fraction
        Pixels along one of the source.
    reduction : Reduction or None
        What pixels are reduced by.
    stored : torch.dtype or str
        What is stored.
    channels : int or None
        Values per pixel that are stored.
    """

    seen: Returned
    scale: tuple[Fraction, ...]
    reduction: Reduction | None
    stored: Any
    channels: int | None

    def output(self, sliding: Sliding, blend: Any, edge: str) -> Output:
        """The tensor."""
        shape = (
            sliding.count(edge)
            if self.seen.is_single
            else [None if n is None else math.ceil(n * by) for n, by in zip(sliding.extents, self.scale, strict=True)]
        )
        stride = [int(n * scale) for n, scale in zip(sliding.stride, self.scale, strict=True)]
        # One pixel a window: the first is that of the first window, wherever that begins.
        begin = (0,) * len(stride) if self.seen.is_single else sliding.offset
        offset = [int(n * scale) for n, scale in zip(begin, self.scale, strict=True)]
        size, follows, names = [*self.seen.size], [*range(len(stride))], [*sliding.names]
        dims = None if None in names else [str(name) for name in names]
        if self.channels is not None:
            shape, size, stride = [self.channels, *shape], [self.channels, *size], [self.channels, *stride]
            window = TensorWindow(size, stride, [0, *offset], [None, *follows])
            dims = None if dims is None else ["c", *dims]
            if isinstance(blend, WeightedMean) and isinstance(blend.sigma_scale, tuple):
                blend = WeightedMean("gaussian", (blend.sigma_scale[0], *blend.sigma_scale))
        else:
            window = TensorWindow(size, stride, offset)
        edges = sliding.edges(edge, len(shape) - len(follows))
        blend, init = self._blend(blend, window), self._blend_init(blend)
        return Output(shape, self.stored, window, blend, init, edges, dims, self.reduction)

    @property
    def _blended(self) -> torch.dtype:
        """In which windows are blended."""
        return checked_dtype(self.stored) if self.reduction is None else self.seen.computed

    def _blend_init(self, blend: Any) -> Any:
        """What no value changes to: the largest of values below 0 is not 0."""
        dtype = self._blended
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
        """What its windows are blended by: nothing divides values of which there is only one a pixel."""
        if self.seen.is_single:
            return "last"
        if not isinstance(blend, WeightedMean):
            return blend
        dtype = self._blended
        divides = dtype.is_floating_point or dtype.is_complex
        if window.stride == window.size:
            return blend if divides else "last"
        if not divides:
            raise ValidationError(
                f"windows of {dtype} overlap, and have no mean: give blend='last' or overlap=0; where net returns "
                "labels, better have it return scores, and give reduce='argmax'"
            )
        return blend


def returned_by(
    name: str | None, output: torch.Tensor, sliding: Sliding, scale: tuple[Fraction, ...] | None
) -> Returned:
    """What an output of this name is, of a batch of windows; ShapeMismatchError where it cannot be one of a window."""
    shape, ndim = tuple(output.shape[1:]), len(sliding.size)
    pixels = sliding.size if scale is None else tuple(map(operator.mul, sliding.size, scale))
    if not shape or (len(shape) == 1 and (ndim > 1 or shape != pixels)):
        return Returned(shape[0] if shape else None, (1,) * ndim, output.dtype)
    dims = len(shape) - ndim
    if dims not in (0, 1):
        named = "" if name is None else f" for {name!r}"
        raise ShapeMismatchError(
            f"net returned shape {tuple(output.shape)}{named} for a batch of windows of {sliding.size} pixels; it must "
            "return a result for each of the batch, with one dimension for channels, or none, and those of the window, "
            "or of shape (batch, classes), one result for each window"
        )
    return Returned(shape[0] if dims else None, shape[dims:], output.dtype)


def returned_before(
    tensor_id: str, definitions: Mapping[str, Mapping[str, Any]], sliding: Sliding
) -> dict[str | None, Returned]:
    """What the network returned when the prediction was begun, where all of that is stored."""
    found: dict[str | None, Returned] = {}
    for name, stored in definitions.items():
        size, reduction, args = stored["output_window"]["size"], stored.get("reduce"), stored["args"]
        version = stored["version"] if isinstance(stored["version"], dict) else {}
        outputs = version.get("outputs", [])
        if len(args) != 1 or len(args[0]["window"]["size"]) != sliding.source.ndim or len(size) < len(sliding.size):
            # Something else. The comparison of definitions says what.
            return {}
        if name != tensor_id and len(outputs) != len(definitions):
            return {}
        # As for windows of this size, if they were of another.
        read, pixels = [args[0]["window"]["size"][d] for d in sliding.numbers], tuple(size[-len(sliding.size) :])
        if {*pixels} != {1}:
            pixels = tuple(map(lambda now, then, given: now * then // given, sliding.size, pixels, read))
        if reduction is None:
            channels = size[0] if len(size) > len(pixels) else None
            seen = Returned(channels, pixels, _torch_dtype(stored["dtype"]))
        else:
            seen = Returned(reduction["in_channels"], pixels, _torch_dtype(reduction["dtype"]))
        found[None if name == tensor_id else name.removeprefix(f"{tensor_id}/")] = seen
    return found


def _torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def reduction_for(name: str | None, reduce: object, outputs: Mapping[str | None, Returned]) -> object:
    """What reduces one output."""
    if not isinstance(reduce, Mapping):
        return reduce
    names = [str(each) for each in reduce]
    if None in outputs or not {*names} <= {*outputs}:
        raise ValidationError(
            f"reduce has entries for {names}, but net returned {'one tensor' if None in outputs else list(outputs)}"
        )
    return {str(each): reduction for each, reduction in reduce.items()}.get(str(name))
