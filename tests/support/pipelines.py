"""Random chains of tensors, and what is done with them, for the property tests."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from hypothesis import strategies as st

from infinite_tensor import Reduction, TensorWindow, WeightedMean
from tests.support.reference import Box, Index, Padding, Stage, Where, exists, follows
from tests.support.stored import DTYPES

Blend: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | WeightedMean | Literal["first", "last"]

_EXTENT = {1: 30, 2: 12, 3: 6}
_SIZE = {1: 5, 2: 4, 3: 3}
_READ = {1: 30, 2: 11, 3: 5}
_LIMIT = 2**51

_VALUES = 61
"""A prime number of values per dtype, so that no window repeats them in step."""


@dataclass(frozen=True)
class Selection:
    """What stands between the brackets, and the pixels it means: per dimension a range, or an int that squeezes."""

    expression: object
    pixels: tuple[range | int, ...]


@dataclass(frozen=True)
class Read:
    """Read some regions of a stage: ``one`` by one, as a ``list``, or by ``iter_regions``."""

    stage: int
    how: str
    selections: tuple[Selection, ...]


@dataclass(frozen=True)
class Reopen:
    """Close every store, open it again, and ``rebuild`` every tensor or ``open`` it by its id."""

    how: str


@dataclass(frozen=True)
class Forget:
    """``clear_cache`` or ``clear_tensor`` of a stage."""

    stage: int
    what: str


@dataclass(frozen=True)
class Fill:
    """Plan a region of a stage, and fill it, or what a mask takes of it, which is given as `kind` says."""

    stage: int
    selection: Selection
    where: Where | None = None
    kind: str = ""


@dataclass(frozen=True)
class Together:
    """``read`` or ``fill`` regions of several stages in one plan; a stage may come more than once."""

    what: str
    parts: tuple[tuple[int, Selection], ...]


Action: TypeAlias = Read | Reopen | Forget | Fill | Together


@dataclass(frozen=True)
class Pipeline:
    """A chain, how its tensors are kept, and what happens to them.

    Attributes
    ----------
    stages : tuple of Stage
        The chain.
    batch_sizes : tuple
        What each tensor is given as `batch_size`.
    tile_sizes : tuple
        The `tile_size` of each tensor's own store; one entry for one store that all share.
    elsewhere : frozenset of int
        Stages that are kept in a memory store of their own.
    options : dict
        Cache limits and flush interval of the stores.
    block_bytes : int
        How much of a read is carried out at once.
    actions : tuple of Action
        What happens, in this order.
    """

    stages: tuple[Stage, ...]
    batch_sizes: tuple[int | tuple[int, ...] | None, ...]
    tile_sizes: tuple[int | tuple[int, ...], ...]
    elsewhere: frozenset[int]
    options: dict[str, Any]
    block_bytes: int
    actions: tuple[Action, ...]


@cache
def values_of(dtype: torch.dtype) -> torch.Tensor:
    """Values that show what was done to them: of many magnitudes, some of them NaN, infinite or -0.0."""
    if dtype is torch.bool:
        return torch.arange(_VALUES) % 3 == 0
    if dtype.is_complex:
        real = values_of(torch.float32 if dtype is torch.complex64 else torch.float64)
        return torch.complex(real, real.roll(7))
    if dtype.is_floating_point:
        numbers = [(n % 13 - 6) / 3 * 10.0 ** (n % 4 - 1) for n in range(_VALUES - 5)]
        values = torch.tensor([*numbers, -0.0, math.inf, -math.inf, math.nan, math.nan], dtype=torch.float64).to(dtype)
        values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])[-1] += 5
        return values
    scrambled = torch.arange(_VALUES) * -7046029254386353131
    return scrambled.view(torch.uint8).reshape(_VALUES, 8)[:, -dtype.itemsize :].contiguous().view(dtype).flatten()


def checksum(region: torch.Tensor) -> int:
    """A number for the content of a region, blind to what arithmetic leaves open: which NaN, which zero."""
    if region.is_complex():
        region = torch.view_as_real(region)
    if region.is_floating_point():
        region = torch.nan_to_num(region, nan=77, posinf=88, neginf=99) + 0
    return zlib.crc32(region.contiguous().view(torch.uint8).numpy().tobytes())


@dataclass(frozen=True)
class WindowFunction:
    """A deterministic ``f``: values that depend on the tensor, the window and every pixel of the args."""

    number: int
    size: Index
    dtype: torch.dtype

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        """The window at `ctx`."""
        seed = zlib.crc32(repr((self.number, ctx, *map(checksum, regions))).encode())
        picks = (torch.arange(math.prod(self.size)) * (1 + seed % (_VALUES - 1)) + seed // _VALUES) % _VALUES
        return values_of(self.dtype)[picks].reshape(self.size)


def subtract(existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    """A blend for which the order of windows matters, of any dtype."""
    if existing.dtype.is_complex:
        return torch.view_as_complex(torch.view_as_real(incoming) - torch.view_as_real(existing))
    if existing.dtype is torch.bool:
        return incoming & ~existing
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(existing.dtype)
    if signed is None:
        return incoming - existing
    return (incoming.view(signed) - existing.view(signed)).view(existing.dtype)


halve: Blend = lambda existing, incoming: existing.mul_(0.5).add_(incoming)  # noqa: E731  (named by a lambda on purpose)


@st.composite
def _means(draw: st.DrawFn, window: TensorWindow) -> WeightedMean:
    kinds = [WeightedMean(kind) for kind in ("mean", "linear", "hann", "gaussian")]
    given = 0.1 + torch.arange(window.size[-1]) % 7
    scales = tuple(draw(st.sampled_from([0.02, 0.3])) for _ in window.size)
    return draw(st.sampled_from([*kinds, WeightedMean("gaussian", scales), WeightedMean(given)]))


def _blends(dtype: torch.dtype) -> list[Blend | None]:
    blends: list[Blend | None] = [None, None, subtract, "first", "last"]
    if dtype.is_floating_point:
        blends.append(halve)
    if not dtype.is_complex and dtype not in (torch.uint16, torch.uint32, torch.uint64):
        blends += [torch.maximum, torch.minimum]
    return blends


def _inits(dtype: torch.dtype) -> list[complex | None]:
    if dtype is torch.bool:
        return [None, None, False, True]
    if dtype.is_complex:
        return [None, None, 1.5 - 2j]
    if dtype.is_floating_point:
        return [None, None, None, 0.0, -0.0, 2.5, math.nan, -math.inf]
    return [None, None, 0, 3]


@st.composite
def _rarely(draw: st.DrawFn) -> bool:
    return draw(st.integers(0, 7)) == 7


@st.composite
def _shapes(draw: st.DrawFn) -> tuple[int | None, ...]:
    ndim = draw(st.sampled_from([1, 2, 2, 3]))
    finite = st.integers(1, _EXTENT[ndim]) | st.integers(_EXTENT[ndim] // 2, _EXTENT[ndim])
    return tuple(draw(st.none() | finite) for _ in range(ndim))


_Output: TypeAlias = tuple[tuple[int | None, ...], TensorWindow, tuple[str, ...] | None]
"""Shape, output window and edge of a tensor."""


@st.composite
def _edges(draw: st.DrawFn, shape: tuple[int | None, ...]) -> tuple[str, ...] | None:
    if draw(st.booleans()):
        return None
    return tuple(
        "drop" if extent is None else draw(st.sampled_from(["drop", "clip", "clip", "all"])) for extent in shape
    )


@st.composite
def _output_windows(draw: st.DrawFn, shape: tuple[int | None, ...]) -> TensorWindow:
    ndim = len(shape)
    mapped: tuple[int | None, ...] | None = None
    if draw(_rarely()):
        mapped = tuple(None if draw(_rarely()) else draw(st.integers(0, ndim - 1)) for _ in range(ndim))
    # A window larger than a finite dimension may be clipped.
    reach = [_SIZE[ndim] if n is None else min(n + draw(_rarely()), _SIZE[ndim]) for n in shape]
    size = [draw(st.integers(1, n)) for n in reach]
    stride = None
    if draw(st.booleans()):
        stride = [draw(st.integers((n + 1) // 2, n + 2)) for n in size]
    offset = draw(st.just((0,) * ndim) | st.tuples(*[st.integers(-3, 3)] * ndim))
    return TensorWindow(size, stride, offset, mapped)


@st.composite
def _paddings(draw: st.DrawFn, arg: Stage) -> Padding | None:
    """What stands beyond the ends of an arg, as a user says it."""
    if draw(st.booleans()):
        return None
    constants = [0, 1] if arg.dtype is torch.bool else [0, 7]
    modes: list[str | tuple[str, complex]] = ["error", "edge", "reflect", "symmetric", "wrap"]
    modes += [("constant", value) for value in constants]
    return tuple("error" if extent is None else draw(st.sampled_from(modes)) for extent in arg.shape)


@st.composite
def _arg_windows(
    draw: st.DrawFn,
    extents: Sequence[tuple[int, int] | None],
    shape: tuple[int | None, ...],
    padding: Padding | None,
) -> TensorWindow:
    """A window through which a tensor of `shape` may be read: it leaves finite dimensions only where they are padded.

    `extents` are those of the consumer's window indices.
    """
    size, stride, offset, mapped = [], [], [], []
    for d, extent in enumerate(shape):
        k = None if draw(_rarely()) else draw(st.integers(0, len(extents) - 1))
        free = extent is None or (padding is not None and padding[d] != "error")
        n = draw(st.integers(1, 3 if free else min(3, extent or 3)))
        step = draw(st.integers(1, 3))
        low, high = -4, 4
        if extent is not None and not free:
            first, last = (0, 0) if k is None else extents[k] or (-1, 0)
            low, high = -first * step, extent - n - last * step
            if low > high or (k is not None and extents[k] is None):
                k, low, high = None, 0, extent - n
        size.append(n)
        stride.append(step)
        offset.append(draw(st.integers(low, high)))
        mapped.append(k)
    return TensorWindow(size, stride, offset, mapped)


def _index_extents(output: _Output) -> list[tuple[int, int] | None]:
    """The smallest and largest window index per coordinate, None for one that has no end; (0, -1) where none exists."""
    shape, window, edge = output
    extents: list[tuple[int, int] | None] = [(0, 0) for _ in shape]
    for d, k in enumerate(follows(window)):
        dims = [other for other, followed in enumerate(follows(window)) if followed == k] if k is not None else [d]
        some = [shape[each] for each in dims]
        if any(extent is not None for extent in some):
            size, stride, offset = ([part[i] for i in dims] for part in (window.size, window.stride, window.offset))
            line = TensorWindow(size, stride, offset, [None if k is None else 0] * len(dims))
            edges = None if edge is None else [edge[each] for each in dims]
            here = [i for i in range(-50, 50) if exists(some, line, (i,) * len(dims), edges)]
            if not here:
                return [(0, -1)] * len(shape)
            if k is not None:
                extents[k] = here[0], here[-1]
        elif k is not None:
            extents[k] = None
    return extents


@st.composite
def _outputs(draw: st.DrawFn, coordinates: int | None = None) -> _Output:
    """A tensor that has windows; with `coordinates`, one whose dimensions follow this many."""
    shape = draw(_shapes().filter(lambda shape: coordinates is None or len(shape) >= coordinates))
    window, edge = draw(_output_windows(shape)), draw(_edges(shape))
    if coordinates is not None:
        more = [draw(st.none() | st.integers(0, coordinates - 1)) for _ in shape[coordinates:]]
        mapped = draw(st.permutations([*range(coordinates), *more]))
        window = TensorWindow(window.size, window.stride, window.offset, mapped)
    return shape, window, edge


def _has_windows(output: _Output) -> bool:
    return (0, -1) not in _index_extents(output)


def _joint_extents(outputs: Sequence[_Output]) -> list[tuple[int, int] | None]:
    """Extents of the window indices that any of some outputs has."""
    joint: list[tuple[int, int] | None] = []
    for extents in zip(*map(_index_extents, outputs), strict=False):
        known = [extent for extent in extents if extent is not None]
        ends = min(low for low, _ in known) if known else 0, max(high for _, high in known) if known else 0
        joint.append(ends if len(known) == len(extents) else None)
    return joint


@st.composite
def _blends_and_inits(draw: st.DrawFn, dtype: torch.dtype, window: TensorWindow) -> tuple[Blend | None, complex | None]:
    """What a stage may be given as its blend, with what it may be given as `blend_init` then."""
    if (dtype.is_floating_point or dtype.is_complex) and draw(st.integers(0, 2)) == 0:
        return draw(_means(window)), None
    return draw(st.sampled_from(_blends(dtype))), draw(st.sampled_from(_inits(dtype)))


@st.composite
def _stages(draw: st.DrawFn, before: Sequence[Stage]) -> list[Stage]:
    """A stage, or a few that one ``f`` computes."""
    outputs = [draw(_outputs().filter(_has_windows))]
    followed = set(follows(outputs[0][1])) - {None}
    if draw(st.integers(0, 2)) == 0 and followed == set(range(len(followed))) != set():
        beside = _outputs(len(followed)).filter(_has_windows)
        outputs += [draw(beside) for _ in range(draw(st.sampled_from([1, 1, 2])))]
    joint = len(outputs) > 1
    extents = _joint_extents(outputs)[: len(followed)] if joint else _index_extents(outputs[0])
    # Mostly the tensor before: a chain; otherwise any earlier one: diamonds, and the same one twice.
    upstream = st.just(len(before) - 1) | st.integers(0, len(before) - 1)
    args = [draw(upstream) for _ in range(draw(st.sampled_from([1, 1, 2])))] if before else []
    paddings = tuple(draw(_paddings(before[n])) for n in args)
    windows = tuple(
        (n, draw(_arg_windows(extents, before[n].shape, padding))) for n, padding in zip(args, paddings, strict=True)
    )
    stages = []
    for number, (shape, window, edge) in enumerate(outputs, len(before)):
        gathered = dtype = draw(st.sampled_from(DTYPES))
        reduction = draw(_reductions(dtype, shape, window)) if draw(st.integers(0, 3)) == 0 else None
        if reduction is not None and reduction.function == "argmax":
            dtype = draw(st.sampled_from([torch.uint8, torch.int32, torch.uint16]))
        blend, init = draw(_blends_and_inits(gathered, window))
        together = len(before) if joint else None
        stage = Stage(shape, dtype, window, _none, windows, blend, init, together, edge, paddings, reduction)
        stages.append(replace(stage, f=WindowFunction(number, *stage.returned)))
    return stages


def _none(*_: object) -> torch.Tensor:
    raise AssertionError


def one(values: torch.Tensor) -> torch.Tensor:
    """A reduction of any dtype: the second value of each pixel, or the only one."""
    return values[min(1, len(values) - 1)]


def ends(values: torch.Tensor) -> torch.Tensor:
    """A reduction to several values: the last of each pixel, then the first."""
    return torch.stack([values[-1], values[0]])


@st.composite
def _reductions(draw: st.DrawFn, dtype: torch.dtype, shape: tuple[int | None, ...], window: TensorWindow) -> Reduction:
    """What pixels of a stage may be reduced by, to several values where its first dimension can hold these."""
    channels = draw(st.integers(1, 3))
    alone = window.dimension_map is None or window.dimension_map[0] not in window.dimension_map[1:]
    alone = alone and not window.offset[0] and window.stride[0] >= 2
    if alone and len(shape) > 1 and shape[0] == window.size[0] == 2:
        return Reduction(ends, channels, 2, dtype)
    if dtype.is_complex or draw(st.booleans()):
        return Reduction(one, channels, dtype=dtype)
    return Reduction("argmax", channels, dtype=dtype)


@st.composite
def _entries(draw: st.DrawFn, extent: int | None, ndim: int, base: int) -> tuple[int | slice, range | int]:
    """One index of a dimension, and the pixels it means."""
    if draw(_rarely()):
        at = draw(st.integers(-8, 8) if extent is None else st.integers(-extent, extent - 1))
        return (at + base, at + base) if extent is None else (at, range(extent)[at])
    step = draw(st.sampled_from([None, None, None, 1, 2, 3, -1, -2]))
    if extent is not None:
        low = draw(st.integers(0, extent - 1))
        high = draw(st.integers(low + 1, extent))
        start: int | None = draw(st.sampled_from([low, low - extent, None, 0, -extent - 1]))
        stop: int | None = draw(st.sampled_from([high, high - extent, None, extent, extent + 1]))
        part = slice(start, stop, step) if (step or 1) > 0 else slice(stop, start, step)
        return part, range(extent)[part]
    low = draw(st.integers(-8, 8)) + base
    high = low + (0 if draw(_rarely()) else draw(st.integers(1, _READ[ndim])))
    start, stop = (low, high) if (step or 1) > 0 else (high - 1, low - 1)
    return slice(start, stop, step), range(start, stop, step or 1)


@st.composite
def _selections(draw: st.DrawFn, shape: tuple[int | None, ...], base: int) -> Selection:
    entries, pixels = map(list, zip(*(draw(_entries(extent, len(shape), base)) for extent in shape), strict=True))
    if draw(st.integers(0, 3)) == 0:
        # An Ellipsis stands for any number of whole finite dimensions, for none too.
        at = draw(st.integers(0, len(shape)))
        end = at
        while end < len(shape) and shape[end] is not None and draw(st.booleans()):
            pixels[end] = range(shape[end] or 0)
            end += 1
        entries[at:end] = [Ellipsis]
    expression = entries[0] if len(entries) == 1 and draw(st.booleans()) else tuple(entries)
    return Selection(expression, tuple(pixels))


def box_of(selection: Selection) -> Box | None:
    """The box that a selection spans, None for an empty one."""
    ranges = [range(p, p + 1) if isinstance(p, int) else p for p in selection.pixels]
    if not all(ranges):
        return None
    return tuple(min(r) for r in ranges), tuple(max(r) + 1 for r in ranges)


@st.composite
def _masks(draw: st.DrawFn, selection: Selection) -> Where:
    """A mask that covers a selection, and maybe some more."""
    low, high = box_of(selection) or ((), ())
    some = st.permutations(range(len(low))).flatmap(lambda dims: st.integers(1, len(dims)).map(lambda n: dims[:n]))
    dims = tuple(draw(some))
    scales = st.sampled_from([Fraction(n) for n in (1, 1, 2, 3, 8)] + [Fraction(3, 2), Fraction(1, 2), Fraction(1, 3)])
    scale = tuple(draw(scales) for _ in dims)
    before = (Fraction(draw(st.sampled_from([0, 0, 1, 2, 7])), draw(st.integers(1, 3))) for _ in dims)
    origin = tuple(low[d] - margin for d, margin in zip(dims, before, strict=True))
    shape = [
        math.ceil((high[d] - begin) / factor) + draw(st.integers(0, 1))
        for d, factor, begin in zip(dims, scale, origin, strict=True)
    ]
    numbers = np.random.default_rng(draw(st.integers(0, 2**16))).random(shape)
    return Where(numbers < draw(st.sampled_from([0.02, 0.2, 0.8])), scale, origin, dims)


@st.composite
def _actions(draw: st.DrawFn, stages: Sequence[Stage], base: int) -> Action:
    last = len(stages) - 1
    stage = draw(st.just(last) | st.integers(0, last))
    kind = draw(st.sampled_from(["read"] * 5 + ["reopen", "reopen", "forget", "fill", "together", "together"]))
    if kind == "reopen":
        return Reopen(draw(st.sampled_from(["rebuild", "open"])))
    if kind == "forget":
        return Forget(stage, draw(st.sampled_from(["clear_cache", "clear_cache", "clear_tensor"])))
    if kind == "fill":
        selection = draw(_selections(stages[stage].shape, base))
        if box_of(selection) is None or draw(st.booleans()):
            return Fill(stage, selection)
        kind = draw(st.sampled_from(["array", "tensor", "callable", "infinite"]))
        return Fill(stage, selection, draw(_masks(selection)), kind)
    if kind == "together":
        numbers = draw(st.lists(st.integers(0, last), min_size=2, max_size=4))
        parts = tuple((number, draw(_selections(stages[number].shape, base))) for number in numbers)
        return Together(draw(st.sampled_from(["read", "read", "fill"])), parts)
    selections = st.lists(_selections(stages[stage].shape, base), min_size=1, max_size=4)
    return Read(stage, draw(st.sampled_from(["one", "list", "iter"])), tuple(draw(selections)))


@st.composite
def _tile_sizes(draw: st.DrawFn, stage: Stage) -> int | tuple[int, ...]:
    """One int, one per unbounded dimension, or one per dimension; outputs of one ``f`` share a store, and the int."""
    unbounded = stage.shape.count(None)
    form = draw(st.sampled_from([0, unbounded, len(stage.shape)])) if stage.beside is None else 0
    sizes = tuple(draw(st.integers(1, 7)) for _ in range(form or 1))
    return sizes if form else sizes[0]


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Chains of one to four tensors with three to eight actions."""
    stages: list[Stage] = []
    for _ in range(draw(st.sampled_from([1, 1, 2, 2, 3, 4]))):
        stages += draw(_stages(stages))
    # A chain would multiply coordinates that are far away to ones beyond the limit.
    base = draw(st.sampled_from([0, 0, 0, 8 - _LIMIT, _LIMIT - 8 - _READ[1], 10**6 + 3])) if len(stages) == 1 else 0
    shared = draw(st.booleans())
    options = {
        "cache_size_tiles": draw(st.sampled_from([None, None, 1, 2, 5])),
        "cache_size_bytes": draw(st.sampled_from([None, None, 1, 200, 2000])),
        "flush_interval": draw(st.sampled_from([30.0, 30.0, 0.0])),
    }
    batch_sizes = st.none() | st.integers(1, 7) | st.sampled_from([(1, 4), (1, 2, 8), (5, 1)])
    return Pipeline(
        tuple(stages),
        tuple(draw(batch_sizes) for _ in stages),
        (draw(st.integers(1, 7)),) if shared else tuple(draw(_tile_sizes(stage)) for stage in stages),
        frozenset(draw(st.sets(st.integers(0, len(stages) - 1), max_size=1))),
        options,
        draw(st.sampled_from([2**24, 2**24, 100, 1])),
        tuple(draw(st.lists(_actions(stages, base), min_size=3, max_size=8))),
    )
