"""The brute-force oracle: what a chain of tensors is, and which windows a read may compute.

It shares no code with the library, and tries every candidate window instead of solving for the ones that
matter. `TensorWindow` is used as a record of four tuples only, `WeightedMean` and `Reduction` as ones of what they were
given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor import Reduction, TensorWindow, WeightedMean

Index: TypeAlias = tuple[int, ...]
Box: TypeAlias = tuple[Index, Index]
"""First pixel, and the one after the last, per dimension."""
Pixels: TypeAlias = "range | list[int]"
Padding: TypeAlias = tuple[str | tuple[str, complex], ...]
"""Per dimension, as a user says it: a mode, or "constant" with its value."""

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""What torch can index."""


class Arg(NamedTuple):
    """A stage that another one reads, and how."""

    number: int
    window: TensorWindow
    padding: Padding | None


@dataclass(frozen=True)
class Stage:
    """One tensor of a chain. ``args`` are the numbers of earlier stages, with the windows they are read through.

    Stages that one ``f`` computes follow each other; ``beside`` is the number of the first, None for a stage alone.
    """

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    window: TensorWindow
    f: Callable[..., torch.Tensor]
    args: tuple[tuple[int, TensorWindow], ...] = ()
    blend: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | WeightedMean | Literal["first", "last"] | None = None
    blend_init: complex | None = None
    beside: int | None = None
    edge: tuple[Any, ...] | None = None
    paddings: tuple[Padding | None, ...] = ()
    reduction: Reduction | None = None

    @property
    def returned(self) -> tuple[Index, torch.dtype]:
        """The shape and dtype of what ``f`` returns."""
        if self.reduction is None:
            return self.window.size, self.dtype
        size = self.window.size if self.reduction.out_channels is None else self.window.size[1:]
        return (self.reduction.in_channels, *size), self.reduction.dtype

    @property
    def reads(self) -> list[Arg]:
        """The args, each with its padding."""
        paddings = self.paddings or (None,) * len(self.args)
        return [Arg(*arg, padding) for arg, padding in zip(self.args, paddings, strict=True)]

    @property
    def coordinates(self) -> int:
        """How many entries ``f`` is given of a window index."""
        if self.beside is None:
            return len(self.shape)
        return max((k + 1 for k in follows(self.window) if k is not None), default=1)


def pixels_of(shape: Sequence[int | None], arg: Arg, index: Index) -> list[Pixels]:
    """Per dimension, which pixel of an arg each pixel is that a window reads; -1 for one of a constant."""
    found: list[Pixels] = []
    for d, (low, high) in enumerate(zip(*box_at(arg.window, index), strict=True)):
        extent, mode = shape[d], "error" if arg.padding is None else arg.padding[d]
        if extent is None or mode == "error" or (low >= 0 and high <= extent):
            found.append(range(low, high))
            continue
        # What numpy makes of the numbers of the pixels.
        before, after = max(0, -low), max(0, high - extent)
        numbers = np.arange(extent)
        if isinstance(mode, tuple):
            line = np.pad(numbers, (before, after), "constant", constant_values=-1)
        else:
            line = np.pad(numbers, (before, after), mode)  # type: ignore[call-overload]
        found.append(line[low + before : high + before].tolist())
    return found


def boxes_of(pixels: Sequence[Pixels]) -> list[Box]:
    """The fewest boxes that hold all combinations of some pixels, and no others; -1 is none."""
    runs = []
    for line in pixels:
        inside = sorted(set(line)) if not isinstance(line, range) else list(line)
        if not isinstance(line, range):
            inside = [pixel for pixel in inside if pixel >= 0]
        cuts = [0, *(n for n in range(1, len(inside)) if inside[n] > inside[n - 1] + 1), len(inside)]
        runs.append([(inside[a], inside[b - 1] + 1) for a, b in itertools.pairwise(cuts) if a < b])
    return [(tuple(low for low, _ in box), tuple(high for _, high in box)) for box in itertools.product(*runs)]


@dataclass(frozen=True)
class Where:
    """A mask as a user says it: `values` lie over dimensions `dims` of a tensor, from pixel `origin` on."""

    values: npt.NDArray[np.bool_]
    scale: tuple[Fraction, ...]
    origin: tuple[Fraction, ...]
    dims: tuple[int, ...]

    def takes(self, box: Box) -> bool:
        """Whether something of a box of pixels is wanted."""
        over = []
        for d, count, scale, origin in zip(self.dims, self.values.shape, self.scale, self.origin, strict=True):
            ends = [(origin + at * scale, origin + (at + 1) * scale) for at in range(count)]
            low, high = box[0][d], box[1][d]
            over.append([at for at, (begin, end) in enumerate(ends) if begin < high and low < end])
        return bool(self.values[np.ix_(*over)].any())


class TooManyWindows(Exception):  # noqa: N818  (no error: the read is left out)
    """A read would need more windows than the test has time for."""


def follows(window: TensorWindow) -> Sequence[int | None]:
    """The coordinate that each dimension follows."""
    return range(len(window.size)) if window.dimension_map is None else window.dimension_map


def start_of(window: TensorWindow, index: Sequence[int]) -> Index:
    """The first pixel of one window."""
    return tuple(
        offset if k is None else index[k] * stride + offset
        for k, stride, offset in zip(follows(window), window.stride, window.offset, strict=True)
    )


def box_at(window: TensorWindow, index: Sequence[int]) -> Box:
    """The pixels of one window."""
    start = start_of(window, index)
    return start, tuple(first + size for first, size in zip(start, window.size, strict=True))


def region(box: Box) -> tuple[slice, ...]:
    """A box as it is written between brackets."""
    return tuple(slice(low, high) for low, high in zip(*box, strict=True))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors agree in every bit."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def windows_over(
    shape: Sequence[int | None], window: TensorWindow, box: Box, edge: Sequence[str] | None = None
) -> list[Index]:
    """Indices of the windows that share a pixel with `box`, in lexicographic order; all are dropped without `edge`."""
    candidates: list[Iterable[int]] = [[0] for _ in shape]
    for d, k in enumerate(follows(window)):
        if k is not None:
            first, last = (end - window.offset[d] for end in (box[0][d] - window.size[d], box[1][d]))
            candidates[k] = range(first // window.stride[d] - 1, last // window.stride[d] + 2)
    return [index for index in itertools.product(*candidates) if _exists_over(shape, window, box, index, edge)]


def exists(shape: Sequence[int | None], window: TensorWindow, index: Index, edge: Sequence[str] | None) -> bool:
    """Whether there is such a window on a tensor of `shape`."""
    clips = edge or ["drop"] * len(shape)
    for first, size, extent, clip in zip(start_of(window, index), window.size, shape, clips, strict=True):
        inside = extent is None or (first >= 0 and first + size <= extent)
        if not inside and (clip == "drop" or first >= (extent or 0) or first + size <= 0):
            return False
    for k in range(len(shape)):
        dims = [d for d, follow in enumerate(follows(window)) if follow == k and clips[d] == "clip" and shape[d]]
        enough = [_just_enough(window, d, shape[d] or 0) for d in dims]
        if enough and not min(enough)[0] <= index[k] <= max(last for _, last in enough):
            return False
    return True


@cache
def _just_enough(window: TensorWindow, d: int, extent: int) -> tuple[int, int]:
    """The first and the last of the windows that are clipped at the ends of a dimension, found by looking at them.

    The first is the last that begins at or before its first pixel, the last the first after it that reaches its end.
    """
    size, stride, offset = window.size[d], window.stride[d], window.offset[d]
    near = range(-(abs(offset) + size) // stride - 1, (extent + abs(offset) + size) // stride + 2)
    starts = {i: i * stride + offset for i in near}
    meeting = [i for i in near if starts[i] < extent and starts[i] + size > 0]
    if not meeting:
        return 0, -1
    first = max([i for i in meeting if starts[i] <= 0], default=meeting[0])
    return first, min([i for i in meeting if i >= first and starts[i] + size >= extent], default=meeting[-1])


def _exists_over(
    shape: Sequence[int | None], window: TensorWindow, box: Box, index: Index, edge: Sequence[str] | None
) -> bool:
    if not exists(shape, window, index, edge):
        return False
    for first, size, low, high in zip(start_of(window, index), window.size, *box, strict=True):
        if low >= high or first >= high or first + size <= low:
            return False
    return True


def shared_by(window: TensorWindow, index: Index, box: Box) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where the pixels that a window and a box share lie in the box, and where in the window."""
    start = start_of(window, index)
    to = tuple(slice(max(0, s - low), s + n - low) for s, n, low in zip(start, window.size, box[0], strict=True))
    of = tuple(slice(max(0, low - s), high - s) for s, low, high in zip(start, *box, strict=True))
    return to, of


def weights_of(mean: WeightedMean, window: TensorWindow) -> torch.Tensor:
    """The weights of a window, in its size."""
    given = mean.weights
    if isinstance(given, torch.Tensor):
        return given.expand(window.size)
    scales = mean.sigma_scale if isinstance(mean.sigma_scale, tuple) else (mean.sigma_scale,) * len(window.size)
    weights = torch.ones(window.size)
    for d, (n, scale) in enumerate(zip(window.size, scales, strict=True)):
        if follows(window)[d] is None or window.stride[d] >= n:
            continue
        at = torch.arange(n, dtype=torch.float64)
        profiles = {
            "mean": torch.ones(n),
            "linear": torch.minimum(at + 0.5, n - at - 0.5).float(),
            "hann": torch.tensor(
                [math.sin(math.pi * (k + 0.5) / n) ** 2 for k in range(n)], dtype=torch.float64
            ).float(),
            "gaussian": torch.exp((at - (n - 1) / 2).float() ** 2 / (-2 * (n * scale) ** 2)),
        }
        assert isinstance(given, str)
        weights = weights * profiles[given].reshape([-1 if i == d else 1 for i in range(len(window.size))])
    return weights.clamp(min=max(weights.min().item(), 1e-3)) if given == "gaussian" else weights


class Reference:
    """The true values of a chain of stages, each of which reads earlier ones only."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages
        self._windows: dict[tuple[int, Index], torch.Tensor] = {}

    def window(self, number: int, index: Index) -> torch.Tensor:
        """What ``f`` of a stage returns for one window."""
        if (number, index) not in self._windows:
            stage = self.stages[number]
            regions = [self.read(arg, index) for arg in stage.reads]
            self._windows[number, index] = stage.f(index, *regions)
        return self._windows[number, index]

    def read(self, arg: Arg, index: Index) -> torch.Tensor:
        """What a window reads of a stage."""
        number, window, padding = arg
        stage = self.stages[number]
        pixels = pixels_of(stage.shape, arg, index)
        if all(isinstance(line, range) for line in pixels):
            return self.region(number, box_at(window, index))[0]
        inside = [[p for p in line if p >= 0 or isinstance(line, range)] for line in pixels]
        result = torch.zeros([len(line) for line in pixels], dtype=stage.dtype)
        if all(inside):
            low, high = tuple(map(min, inside)), tuple(max(line) + 1 for line in inside)
            result = self.region(number, (low, high))[0]
            for d, line in enumerate(pixels):
                numbers = torch.tensor([max(p - low[d], 0) for p in line])
                signed = result.view(_SIGNED.get(result.dtype, result.dtype))
                result = signed.index_select(d, numbers).view(stage.dtype)
        for d, line in enumerate(pixels):
            if not isinstance(line, range) and padding is not None and isinstance(padding[d], tuple):
                outside = [n for n, p in enumerate(line) if p < 0]
                for n in outside:
                    result.select(d, n)[...] = padding[d][1]  # type: ignore[assignment]
        return result

    def boxes_read(self, arg: Arg, index: Index) -> list[Box]:
        """The pixels of a stage that a window reads."""
        return boxes_of(pixels_of(self.stages[arg.number].shape, arg, index))

    def region(self, number: int, box: Box) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels of a stage, and which of them are plain copies: of `blend_init`, 0, or of one window."""
        stage = self.stages[number]
        if stage.reduction is not None:
            return self._reduced(number, stage, stage.reduction, box)
        return _blended(stage, box, partial(self.window, number))

    def _reduced(self, number: int, stage: Stage, reduction: Reduction, box: Box) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels of a stage that is reduced from channels, each of which is blended like a stage of its own."""
        kept = 0 if reduction.out_channels is None else 1
        blend, ones, zeros = stage.blend, (1,) * kept, (0,) * kept
        if isinstance(blend, WeightedMean) and isinstance(blend.sigma_scale, tuple):
            blend = WeightedMean("gaussian", (1.0,) * kept + blend.sigma_scale[kept:])
        # A channel is one pixel long, where what is kept of all of them lies; so both have the same window indices.
        window = replace(
            stage.window,
            size=ones + stage.window.size[kept:],
            stride=ones + stage.window.stride[kept:],
            offset=zeros + stage.window.offset[kept:],
        )
        plane = replace(
            stage,
            shape=ones + stage.shape[kept:],
            dtype=reduction.dtype,
            window=window,
            blend=blend,
            reduction=None,
        )
        inside = zeros + box[0][kept:], ones + box[1][kept:]

        def channel(at: int, index: Index) -> torch.Tensor:
            return self.window(number, index)[at].reshape(window.size)

        channels, plain = zip(
            *[_blended(plane, inside, partial(channel, at)) for at in range(reduction.in_channels)], strict=True
        )
        covered = torch.zeros(channels[0].shape, dtype=torch.bool)
        for index in windows_over(plane.shape, plane.window, inside, plane.edge):
            covered[shared_by(plane.window, index, inside)[0]] = True
        values, alike = torch.stack(channels), torch.stack(plain).all(0) | ~covered
        if kept:
            values, alike, covered = values.squeeze(1), alike.squeeze(0), covered.squeeze(0)
        if reduction.function == "argmax":
            pixels = values.to(torch.float64).argmax(0).to(stage.dtype)
        else:
            assert callable(reduction.function)
            pixels = reduction.function(values)
        pixels = torch.where(covered, pixels, torch.zeros((), dtype=stage.dtype))
        if kept:
            return pixels[box[0][0] : box[1][0]], alike.expand(pixels.shape)[box[0][0] : box[1][0]]
        return pixels, alike

    def missing(
        self,
        reads: Mapping[int, Iterable[Box]],
        known: Sequence[set[Index]],
        limit: int = 2**63,
        kept_out: Callable[[int, Box], set[Index]] = lambda _stage, _box: set(),
    ) -> list[set[Index]]:
        """Per stage, what its ``f`` must run for reads, boxes per stage, where the windows in `known` are stored.

        Of stages that one ``f`` computes, all stands with the first. TooManyWindows for more than `limit`. Those that
        ``kept_out(stage, box)`` tells are not stored in a box, though they may be elsewhere.
        """
        needed: list[set[Index]] = [set() for _ in self.stages]
        wanted: list[set[Box]] = [set(reads.get(n, ())) for n in range(len(self.stages))]
        for n in reversed(range(len(self.stages))):
            stage = self.stages[n]
            first = n if stage.beside is None else stage.beside
            for box in wanted[n]:
                missing = set(windows_over(stage.shape, stage.window, box, stage.edge)) - known[n] | kept_out(n, box)
                needed[first].update(index[: stage.coordinates] for index in missing)
                if sum(map(len, needed)) > limit:
                    raise TooManyWindows
            if first == n:
                for arg in stage.reads:
                    for index in needed[n]:
                        wanted[arg.number].update(self.boxes_read(arg, index))
        return needed

    def made(self, number: int, runs: Sequence[Iterable[Index]]) -> list[Index]:
        """The windows of a stage that calls of ``f`` give, those of each stage."""
        stage = self.stages[number]
        ctxs = runs[number if stage.beside is None else stage.beside]
        windows = [(*ctx, *[0] * (len(stage.shape) - len(ctx))) for ctx in ctxs]
        return [index for index in windows if exists(stage.shape, stage.window, index, stage.edge)]


def _blended(stage: Stage, box: Box, window_at: Callable[[Index], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels of a stage whose windows are given, and which of them are plain copies."""
    if isinstance(stage.blend, WeightedMean):
        pixels = _mean(stage, box, stage.blend, window_at)
        return pixels, torch.zeros(pixels.shape, dtype=torch.bool)
    shape = [high - low for low, high in zip(*box, strict=True)]
    pixels = torch.full(shape, 0 if stage.blend_init is None else stage.blend_init, dtype=stage.dtype)
    count = torch.zeros(shape, dtype=torch.int64)
    for index in windows_over(stage.shape, stage.window, box, stage.edge):
        to, of = shared_by(stage.window, index, box)
        pixels[to] = _combined(stage, pixels[to], window_at(index)[of], count[to] == 0)
        count[to] += 1
    if stage.blend in ("first", "last"):
        return pixels, count >= 0
    return pixels, count <= (1 if stage.blend is None and stage.blend_init is None else 0)


def _mean(stage: Stage, box: Box, mean: WeightedMean, window_at: Callable[[Index], torch.Tensor]) -> torch.Tensor:
    """Pixels of a stage that is blended by a weighted mean."""
    shape = [high - low for low, high in zip(*box, strict=True)]
    if stage.dtype.is_complex:
        shape.append(2)
    dtype = torch.float64 if stage.dtype in (torch.float64, torch.complex128) else torch.float32
    summed, divisor = (torch.zeros(shape, dtype=dtype) for _ in range(2))
    weights = weights_of(mean, stage.window).to(dtype)
    for index in windows_over(stage.shape, stage.window, box, stage.edge):
        to, of = shared_by(stage.window, index, box)
        values, factor = window_at(index)[of], weights[of]
        if stage.dtype.is_complex:
            values, factor = torch.view_as_real(values), factor.unsqueeze(-1)
        products = values.to(dtype) * factor
        # A sum of 0.0 and -0.0 is 0.0.
        summed[to] = torch.where(divisor[to] == 0, products, summed[to] + products)
        divisor[to] += factor
    pixels = torch.where(divisor == 0, 0, summed / divisor)
    return torch.view_as_complex(pixels) if stage.dtype.is_complex else pixels.to(stage.dtype)


def _combined(stage: Stage, existing: torch.Tensor, incoming: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """One step of the fold over the windows; `first` marks the pixels that no earlier window covers."""
    if stage.blend == "first":
        return torch.where(first, incoming, existing)
    if stage.blend == "last":
        return incoming
    if callable(stage.blend):
        return blended(stage.blend, existing, incoming)
    if stage.blend_init is not None:
        return added(existing, incoming)
    return torch.where(first, incoming, added(existing, incoming))


def blended(
    blend: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], existing: torch.Tensor, incoming: torch.Tensor
) -> torch.Tensor:
    """``blend(existing, incoming)``, 64 pixels at a time: torch computes so many alike wherever they come from."""
    more = torch.zeros(-existing.numel() % 64, dtype=existing.dtype)
    a, b = (torch.cat([block.flatten(), more]).reshape(-1, 64) for block in (existing, incoming))
    pixels = torch.cat([blend(a[row].clone(), b[row].clone()) for row in range(len(a))])
    return pixels[: existing.numel()].reshape(existing.shape)


def added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a + b``, also for the kinds for which torch's addition is missing or mixes real and imaginary parts."""
    if a.dtype.is_complex:
        return torch.view_as_complex(torch.view_as_real(a) + torch.view_as_real(b))
    signed = _SIGNED.get(a.dtype)
    return a + b if signed is None else (a.view(signed) + b.view(signed)).view(a.dtype)
