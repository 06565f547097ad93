"""`Reduction`: store a function of each pixel's values, such as the argmax.

The windows of a tensor with a reduction are blended in another tensor, the "gathered" tensor. It has all values of a
pixel along its first dimension. Complete tiles store only the results. So in a classification, incomplete tiles contain
scores, and complete tiles contain labels.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window import Shape, TensorWindow, WindowGrid, followed
from infinite_tensor.support.allocation import Array, as_array, as_tensor
from infinite_tensor.support.given import checked_count, quoted, word
from infinite_tensor.values.arrays import Box, boxes_of, contiguous_box
from infinite_tensor.values.code import function_name
from infinite_tensor.values.dtypes import checked_dtype, dtype_name
from infinite_tensor.values.weights import Unknown, WeightedMean, lifted

_Function = Callable[[torch.Tensor], torch.Tensor]
ReductionName: TypeAlias = Literal["argmax", "softmax", "sigmoid"]

LANES = 64
"""Multiple of the width of torch's vector loops. Elements left over may differ in the last bit."""
_AT_ONCE = 2**14
"""Values to reduce at once. So few values fit into a fast cache, and torch uses no threads (forks lack threads)."""


_ARGMAX = "argmax"
_KEEPING: Mapping[str, _Function] = {"softmax": partial(torch.softmax, dim=0), "sigmoid": torch.sigmoid}
"""Named functions with as many results as values."""
_NAMES = (_ARGMAX, *_KEEPING)


@dataclass(frozen=True, init=False, repr=False)
class Reduction:
    """Store a function of each pixel's blended values instead of the values themselves.

    With ``reduce=Reduction(function, in_channels)``, ``f`` returns windows with `in_channels` values per pixel along
    their first dimension. If each pixel is reduced to a single number, windows have shape
    ``(in_channels, *output_window.size)``. If each pixel is reduced to `out_channels` numbers, these lie along the
    first dimension of the tensor, and windows have shape ``(in_channels, *output_window.size[1:])``.

    Windows are blended first. A pixel is reduced when all windows that cover it are blended. The store keeps the
    results. It keeps unreduced values only for pixels that still lack some windows.

    Parameters
    ----------
    function : str or callable
        ``"argmax"``: the index of the largest value, or of the first one if several are equal. ``"softmax"`` or
        ``"sigmoid"``: as many results as values. Or ``function(values) -> result``. Its `values` have shape
        ``(in_channels, N)`` for N pixels. Its result must have shape ``(N,)`` or ``(out_channels, N)``, and the dtype
        of the tensor. It must reduce each pixel independently of the other pixels.
    in_channels : int
        The number of values per pixel that ``f`` returns.
    out_channels : int, optional
        The number of values per pixel that a callable returns. Default: a single value, without a channel dimension.
    dtype : torch.dtype or str
        The dtype that ``f`` returns, and in which windows are blended.

    Raises
    ------
    ValidationError
        If an argument is invalid.

    Notes
    -----
    Pixels that no window covers are 0.

    Examples
    --------
    >>> from infinite_tensor import InfiniteTensor, TensorWindow
    >>> def scores(ctx):
    ...     last = torch.full((2, 2), float(sum(ctx)))
    ...     return torch.stack([torch.zeros(2, 2), last])
    >>> window = TensorWindow((2, 2))
    >>> labels = InfiniteTensor(
    ...     (None, None), scores, window,
    ...     dtype="uint8", reduce=Reduction("argmax", 2),
    ... )
    >>> labels[-2:4, 0]
    tensor([0, 0, 0, 0, 1, 1], dtype=torch.uint8)
    """

    function: ReductionName | _Function
    """The function, or its name."""
    in_channels: int
    """Number of values per pixel returned by ``f``."""
    out_channels: int | None
    """Number of stored values per pixel. None for a single value without a channel dimension."""
    dtype: torch.dtype
    """Dtype returned by ``f``."""

    def __init__(
        self,
        function: ReductionName | _Function,
        in_channels: int,
        out_channels: int | None = None,
        dtype: torch.dtype | str = torch.float32,
    ) -> None:
        name = word(function)
        if name not in _NAMES if name is not None else not callable(function):
            names = ", ".join(map(repr, _NAMES))
            raise ValidationError(
                f"the function of a Reduction must be one of {names}, or a callable, got {quoted(function)}"
            )
        if name is not None and out_channels is not None:
            raise ValidationError(f"out_channels is only for callables, got {out_channels} for {name!r}; leave it out")
        known, count = checked_dtype(dtype), checked_count("in_channels", in_channels)
        if name in _KEEPING and not known.is_floating_point:
            raise ValidationError(f"{name!r} reduces real floating values, got dtype={known}")
        if name == _ARGMAX and known.is_complex:
            raise ValidationError(f"{name!r} reduces real values, got dtype={known}")
        results = None if out_channels is None else checked_count("out_channels", out_channels)
        put = object.__setattr__
        put(self, "function", function if name is None else name)
        put(self, "in_channels", count)
        put(self, "out_channels", count if name in _KEEPING else results)
        put(self, "dtype", known)

    def _reaches(self) -> Mapping[str, object]:
        return {"reduce": self.function}

    def __repr__(self) -> str:
        parts = [repr(self.function), str(self.in_channels)]
        if not isinstance(self.function, str) and self.out_channels is not None:
            parts.append(f"out_channels={self.out_channels}")
        if self.dtype != torch.float32:
            parts.append(f"dtype={self.dtype}")
        return f"Reduction({', '.join(parts)})"


def reduced(reduction: Reduction, values: torch.Tensor) -> torch.Tensor:
    """Reduce values of shape (in_channels, N)."""
    function = reduction.function
    if function == _ARGMAX:
        numbers = torch.empty(values.shape[1:], dtype=labels_dtype(len(values)), device=values.device)
        _argmax(as_array(values), as_array(numbers))
        return numbers
    return _KEEPING[function](values) if isinstance(function, str) else function(values)


def unknown_in(blend_or_reduction: object) -> Unknown | None:
    """Return the `Unknown` in a blend or reduction.

    Return None if the function or weights are known.
    """
    found = blend_or_reduction
    if isinstance(found, WeightedMean):
        found = found.weights
    elif isinstance(found, Reduction):
        found = found.function
    return found if isinstance(found, Unknown) else None


def reduction_to_json(reduction: Reduction) -> dict[str, Any]:
    """Return the JSON of a reduction for a definition.

    The function is recorded by name.
    """
    function, unknown = reduction.function, unknown_in(reduction)
    return {
        "function": unknown.name if unknown else function if isinstance(function, str) else function_name(function),
        "in_channels": reduction.in_channels,
        "out_channels": reduction.out_channels,
        "dtype": dtype_name(reduction.dtype),
    }


def reduction_from_json(stored: object) -> Reduction:
    """Create a reduction from the JSON of `reduction_to_json`.

    A function of the user becomes an `Unknown`. Raise ValidationError if `stored` is anything else.
    """
    if not isinstance(stored, Mapping) or not isinstance(stored.get("function"), str):
        raise ValidationError(f"reduce must describe a Reduction, got {quoted(stored)}")
    name, channels, dtype = stored["function"], stored.get("in_channels"), checked_dtype(stored.get("dtype"))
    results = None if name in _NAMES else stored.get("out_channels")
    function = name if name in _NAMES else Unknown(name, "reduce=Reduction(...)")
    found = Reduction(function, channels, results, dtype)  # type: ignore[arg-type]
    if reduction_to_json(found) != stored:
        raise ValidationError(f"reduce must describe a Reduction, got {quoted(stored)}")
    return found


def checked_reduction(given: object) -> Reduction | None:
    """Return `given` if it is a Reduction or None, otherwise raise ValidationError."""
    if given is not None and not isinstance(given, Reduction):
        raise ValidationError(
            f"reduce must be a Reduction or None, got {quoted(given)}; give, for example, "
            "Reduction('argmax', in_channels=10)"
        )
    return given


def check_reduction(
    reduction: Reduction, shape: Shape, window: TensorWindow, dtype: torch.dtype, device: torch.device
) -> None:
    """Check a reduction against the rest of a tensor.

    Raise ValidationError if it does not match. A function of the user is tried once, on a few pixels.
    """
    if reduction.function == _ARGMAX:
        largest = -1 if dtype.is_floating_point or dtype.is_complex else 1 if dtype is torch.bool else _largest(dtype)
        if largest < reduction.in_channels - 1:
            raise ValidationError(
                f"{reduction!r} needs an integer dtype for 0 to {reduction.in_channels - 1}, got {dtype}; "
                f"declare dtype={labels_dtype(reduction.in_channels)}"
            )
    elif isinstance(reduction.function, str) and not dtype.is_floating_point:
        raise ValidationError(f"{reduction!r} needs a floating-point dtype, got {dtype}; declare dtype=torch.float32")
    if reduction.out_channels is not None:
        _check_channels(reduction.out_channels, shape, window)
    if callable(reduction.function) and not unknown_in(reduction):
        Reducer(reduction, dtype, WindowGrid(window, shape)).tried(device)


def _largest(dtype: torch.dtype) -> int:
    return int(torch.iinfo(dtype).max)


def labels_dtype(channels: int) -> torch.dtype:
    """Return the smallest dtype for the indices of channels."""
    return next(each for each in (torch.uint8, torch.int16, torch.int32, torch.int64) if _largest(each) >= channels - 1)


def _check_channels(channels: int, shape: Shape, window: TensorWindow) -> None:
    follows, *others = followed(window)
    alone = follows is None or follows not in others
    # A window beginning between the channels of another window would cover the same pixels.
    alone = alone and window.offset[0] == 0 and window.stride[0] >= channels
    if not (alone and shape[0] == window.size[0] == channels):
        raise ValidationError(
            f"a reduction to {channels} values per pixel needs {channels} as the first entry of shape and of the size "
            f"of output_window, with offset 0, a stride of at least {channels}, and a window coordinate that no other "
            f"dimension follows; got shape {shape} and {window!r}"
        )


def gathered_blend(reduction: Reduction | None, blend: Any) -> Any:
    """Return the blend of the gathered tensor."""
    adds_dimension = reduction is not None and reduction.out_channels is None
    return lifted(blend) if adds_dimension and isinstance(blend, WeightedMean) else blend


def gathered_shape(reduction: Reduction, shape: Shape) -> Shape:
    """Return the shape of the gathered tensor."""
    return (reduction.in_channels, *(shape if reduction.out_channels is None else shape[1:]))


def gathered_window(reduction: Reduction, window: TensorWindow) -> TensorWindow:
    """Return the window of the gathered tensor, covering all channels."""
    channels, follows = reduction.in_channels, followed(window)
    if reduction.out_channels is None:
        moved = [None if k is None else k + 1 for k in follows]
        return TensorWindow((channels, *window.size), (channels, *window.stride), (0, *window.offset), (None, *moved))
    return TensorWindow((channels, *window.size[1:]), (channels, *window.stride[1:]), window.offset, follows)


class Reducer:
    """Computes the reduction of a tensor.

    Parameters
    ----------
    reduction : Reduction
        The function.
    dtype : torch.dtype
        The dtype of the tensor.
    grid : WindowGrid
        The windows of the tensor.
    """

    def __init__(self, reduction: Reduction, dtype: torch.dtype, grid: WindowGrid) -> None:
        self._reduction = reduction
        self._dtype = dtype
        self._grid = grid
        self._adds_dimension = reduction.out_channels is None
        self._pixels_at_once = max(1, _AT_ONCE // reduction.in_channels // LANES) * LANES

    def lifted(self, index: Index) -> Index:
        """Convert the index of a window or tile to an index in the gathered tensor.

        If the gathered tensor has one more dimension, for the channels, ``(2, 5)`` becomes ``(0, 2, 5)``. Otherwise the
        index is unchanged.
        """
        return (0, *index) if self._adds_dimension else index

    def lowered(self, index: Index) -> Index:
        """Convert an index in the gathered tensor back to the index of a window or tile.

        This is the inverse of `lifted`: ``(0, 2, 5)`` becomes ``(2, 5)``.
        """
        return index[1:] if self._adds_dimension else index

    def over(self, start: Sequence[int], shape: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the start and shape of the unreduced values for a block of pixels.

        If 5 values per pixel are reduced to a single number, a block of shape (64, 64) requires unreduced values of
        shape (5, 64, 64). Give these values to `reduce`.
        """
        pixels = 0 if self._adds_dimension else 1
        return [0, *start[pixels:]], [self._reduction.in_channels, *shape[pixels:]]

    def reduce(self, values: Array, start: Sequence[int], target: Array) -> None:
        """Reduce `values` into `target`.

        `target` begins at pixel `start`. `values` must be the gathered block from `over`.
        """
        channels, result = self._reduction.out_channels, target
        if channels is not None and len(target) != channels:
            result = _empty_like(target, (channels, *target.shape[1:]))
        if self._reduction.function == _ARGMAX:
            _argmax(values, result)
        else:
            for pixels in self._parts(values):
                every = () if self._adds_dimension else (slice(None),)
                self._put(values[(slice(None), *pixels)], result, (*every, *pixels))
        if result is not target:
            assert channels is not None
            target[...] = result[start[0] : start[0] + len(target)]
        self._blank_uncovered(start, target)

    def _parts(self, values: Array) -> Iterator[Box]:
        on_cpu = as_tensor(values).device.type == "cpu"
        extents = values.shape[1:]
        return boxes_of(extents, contiguous_box(extents, 1, self._pixels_at_once) if on_cpu else extents)

    def _put(self, values: Array, result: Array, to: tuple[slice, ...]) -> None:
        flat, count = flattened(values), math.prod(values.shape[1:])
        reduced = as_array(self._called(flat)[..., :count].contiguous())
        target = result[to]
        target[...] = reduced.reshape(target.shape)

    def _called(self, values: torch.Tensor) -> torch.Tensor:
        function, channels, count = self._reduction.function, self._reduction.out_channels, values.shape[1]
        if isinstance(function, str):
            return _KEEPING[function](values).to(self._dtype)
        shape = (count,) if channels is None else (channels, count)
        reduced = function(values)
        if not isinstance(reduced, torch.Tensor) or reduced.shape != shape or reduced.dtype != self._dtype:
            raise ValidationError(
                f"the function of a Reduction must return {self._dtype} of shape {shape} for values of shape "
                f"{tuple(values.shape)}, got {quoted(reduced)}"
            )
        return reduced.detach()

    def tried(self, device: torch.device) -> None:
        """Try the function on a few pixels.

        Raise ValidationError if the function fails, or returns a wrong shape or dtype.
        """
        given = torch.zeros(self._reduction.in_channels, LANES, dtype=self._reduction.dtype, device=device)
        try:
            with torch.no_grad():
                self._called(given)
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValidationError(
                f"the function of {self._reduction!r} does not work on values of shape {tuple(given.shape)}: {error}"
            ) from error

    def _blank_uncovered(self, start: Sequence[int], target: Array) -> None:
        stop = list(map(operator.add, start, target.shape))
        if self._grid.covers(start, stop):
            return
        covered, window = np.zeros(target.shape, dtype=bool), self._grid.window
        for index in itertools.product(*map(range, *self._grid.box(start, stop))):
            begin = list(map(operator.sub, window.start(index), start))
            covered[tuple(slice(max(a, 0), max(a + n, 0)) for a, n in zip(begin, window.size, strict=True))] = True
        if isinstance(target, np.ndarray):
            target[~covered] = 0
        else:
            target[torch.from_numpy(~covered).to(target.device)] = 0


def _argmax(values: Array, target: Array) -> None:
    """Write the index of each pixel's largest value.

    If several values are largest, the first one counts. NaN counts as largest.
    """
    if not isinstance(values, np.ndarray):
        target[...] = as_array(values.argmax(0).to(as_tensor(target).dtype))
        return
    rows = max(1, _AT_ONCE * len(target) // target.size)
    for begin in range(0, len(target), rows):
        band = slice(begin, begin + rows)
        target[band] = _numbers_of_largest(values[:, band])


def _numbers_of_largest(values: Any) -> Any:
    """Compute the argmax over the first dimension.

    This is ten times as fast as `numpy.argmax`, because channels are processed one by one in a fast cache.
    """
    largest = values[0].copy()
    numbers = np.zeros(largest.shape, np.min_scalar_type(len(values) - 1))
    greater, number = np.empty(largest.shape, bool), np.empty_like(numbers)
    for channel in range(1, len(values)):
        np.greater(values[channel], largest, out=greater)
        np.maximum(largest, values[channel], out=largest)
        # Channel numbers increase, so the maximum is the later channel.
        np.multiply(greater, numbers.dtype.type(channel), out=number)
        np.maximum(numbers, number, out=numbers)
    if values.dtype.kind == "f" and np.isnan(largest).any():
        return values.argmax(0)
    return numbers


def _empty_like(target: Array, shape: Sequence[int]) -> Array:
    like = as_tensor(target)
    return as_array(torch.empty(shape, dtype=like.dtype, device=like.device))


def flattened(values: Array) -> torch.Tensor:
    """Reshape values to (channels, N).

    On the CPU, N is rounded up to a multiple of `LANES`.
    """
    channels, *extents = values.shape
    count = math.prod(extents)
    if as_tensor(values).device.type != "cpu":
        return as_tensor(values).reshape(channels, count)
    flat = _empty_like(values, (channels, -(-count // LANES) * LANES))
    flat[:, :count].reshape(values.shape)[...] = values
    flat[:, count:] = flat[:, :1]
    return as_tensor(flat)
