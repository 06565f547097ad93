"""Statistics of pixels, computed in one pass and in bounded memory.

Sums are those of blocks of pixels, in float64. Quantiles are read from a histogram of 8 MiB, with a bin for each value
of the leading 20 bits of float32. A value differs from the value of its bin by less than one part in 2**11.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import keeping_little, node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.mask import BoolArray, PlacedMask, placed
from infinite_tensor.filling.stored_only import whole_pixels
from infinite_tensor.geometry.points import COORDINATE_LIMIT, Index
from infinite_tensor.geometry.regions import Selection, SelectionBlocks, box_inside, parse
from infinite_tensor.pipelines.sources import is_source
from infinite_tensor.support.given import checked_flag, checked_workers, quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.meaning import PixelCode
from infinite_tensor.views.frame import as_numpy, numpy_dtype

Numbers: TypeAlias = npt.NDArray[Any]
_Use: TypeAlias = Callable[[Numbers], None]
_Add: TypeAlias = Callable[[Selection, BoolArray | None, torch.Tensor], None]

_LEADING = 20
"""Leading bits of a float32 for binning: sign, exponent and 11 bits of the mantissa."""
_MOST = 2**16
"""Maximum number of values to add at once."""
_MOST_LABEL = 2**12
"""Largest whole number with a separate bin among the bins of floats."""
_BLOCK_PIXELS = 2**20
_HELD_BYTES = 2**26
"""Extra bytes in memory for each store while computing pixels."""
_LOOKED_UP_BYTES = 2**24
"""Approximate bytes of stored tiles to read at once."""
_MOST_LOOKED_UP = 2**10
"""Maximum number of stored tiles to read at once."""
_LARGEST = np.finfo(np.float32).max
"""The largest float32. Larger finite numbers are counted as -_LARGEST or _LARGEST."""
_MOST_SHOWN = 20
"""Maximum number of labels listed by `str`."""


@dataclass(frozen=True)
class _Bins:
    """The non-empty bins of a histogram.

    Attributes
    ----------
    values : array
        The number nearest to 0 in each bin, ascending.
    ends : int64 array
        The number of values in each bin and all before it.
    exact : bool
        Whether all values of a bin are equal.
    """

    values: Numbers
    ends: npt.NDArray[np.int64]
    exact: bool

    @property
    def count(self) -> int:
        """The number of values in all bins."""
        return int(self.ends[-1])

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of values in each bin."""
        return np.diff(self.ends, prepend=0)

    def at(self, ranks: Sequence[int]) -> list[float]:
        """Return an approximate value for each rank, counted from 0: the entry of `values` for its bin."""
        found: list[float] = self.values[np.searchsorted(self.ends, ranks, side="right")].tolist()
        return found


@dataclass(frozen=True, repr=False)
class Stats:
    """Statistics of pixels, as returned by `InfiniteTensor.stats`.

    Attributes
    ----------
    count : int
        The number of pixels with a value: all pixels read except NaN and nodata. Infinities count.
    nan, nodata : int
        The number of NaN pixels, and of nodata pixels of the source raster. All other attributes ignore both.
    missing : int
        The number of pixels of the region left out because they are not stored. A mask does not change this number.
    min, max : int or float
        The smallest and the largest value. These two, `mean` and `std` are NaN if `count` is 0.
    mean, std : float
        Mean and population standard deviation (the default of `numpy.std`), in float64. The last digits may depend on
        the order of pixels. The mean of integers is exact, up to a sum of ``2**53``.
    labels : dict of int to int, or None
        For integers and bools: the number of pixels of each value. For integers of 32 and 64 bits it is None unless all
        values are from -4096 to 4096; for floats it is always None.
    """

    count: int
    nan: int
    nodata: int
    missing: int
    min: float
    max: float
    mean: float
    std: float
    labels: dict[int, int] | None = field(default=None, repr=False, hash=False)
    _bins: _Bins | None = field(default=None, repr=False, compare=False)

    @overload
    def quantile(self, q: float) -> float: ...
    @overload
    def quantile(self, q: Sequence[float] | Numbers) -> list[float]: ...

    def quantile(self, q: Any) -> Any:
        """Return quantiles of the values, interpolated as by `numpy.quantile`.

        Quantiles are exact for integers and bools that have `labels`, and for float16 and bfloat16. All other values
        are cut to the leading 20 bits of their float32. This moves a value towards 0, by less than one part in
        ``2**11``. A value nearer to 0 than ``2**-126`` moves by less than ``2**-137``. A float64 beyond the range of
        float32 counts as the end of that range.

        Parameters
        ----------
        q : float or sequence of floats
            From 0 to 1.

        Returns
        -------
        float, or list of float for a sequence

        Raises
        ------
        ValidationError
            If `q` is not from 0 to 1, or there is no pixel.
        """
        wanted = _checked_quantiles(q)
        if self._bins is None:
            raise ValidationError(
                "there are no pixels for quantiles: none are selected or stored, or all are NaN or nodata; call "
                "t.stats(region, compute=True) to compute missing pixels"
            )
        places = [float(each) * (self.count - 1) for each in wanted.reshape(-1)]
        ends = [(math.floor(place), math.ceil(place)) for place in places]
        ranks = sorted({*itertools.chain.from_iterable(ends)})
        values = {n: min(max(found, self.min), self.max) for n, found in zip(ranks, self._bins.at(ranks), strict=True)}
        values |= {0: self.min, self.count - 1: self.max}
        between = [_between(values[a], values[b], place - a) for (a, b), place in zip(ends, places, strict=True)]
        return between if wanted.ndim else between[0]

    def __repr__(self) -> str:
        counts = (("NaN", self.nan), ("nodata", self.nodata), ("not stored", self.missing))
        others = [f"{n:,} {name}" for name, n in counts if n]
        lines = [("pixels", ", ".join([f"{self.count:,}", *others]))]
        if self.count:
            lines += [(name, f"{getattr(self, name):.7g}") for name in ("min", "max", "mean", "std")]
        if self.labels is None or len(self.labels) > _MOST_SHOWN:
            if self._bins is not None:
                low, middle, high = self.quantile([0.02, 0.5, 0.98])
                lines.append(("2 %, 50 %, 98 %", f"{low:.7g}, {middle:.7g}, {high:.7g}"))
        else:
            lines += [(f"label {label}", f"{n:,}") for label, n in self.labels.items()]
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name.ljust(width)}  {value}" for name, value in lines)


def _checked_quantiles(q: object) -> npt.NDArray[np.float64]:
    try:
        wanted = np.asarray(q, dtype=np.float64)
    except (TypeError, ValueError):
        wanted = np.array(np.nan)
    if wanted.ndim > 1 or not ((wanted >= 0) & (wanted <= 1)).all():
        raise ValidationError(f"q must be a number from 0 to 1, or a sequence of them, got {quoted(q)}")
    return wanted


def _between(low: float, high: float, part: float) -> float:
    # Not low + (high - low) * part: the difference of two infinities is NaN.
    return float(low) if part == 0 or low == high else (1 - part) * low + part * high


# Choosing pixels.


@dataclass(frozen=True)
class _Pixels:
    """The pixels for statistics.

    Attributes
    ----------
    tensor : InfiniteTensor
        The tensor.
    nodata : PixelCode or None
        The nodata values of the source raster. Nodata pixels are left out.
    selection : Selection
        The region that contains the pixels.
    tiles : sequence of tuple of int, or None
        The tiles that contain the pixels; None for all tiles of the region.
    mask : PlacedMask or None
        Which pixels count.
    computed : bool
        Whether missing pixels are computed; otherwise they are left out.
    workers : int or None
        As for a read.
    """

    tensor: InfiniteTensor
    nodata: PixelCode | None
    selection: Selection
    tiles: Sequence[Index] | None
    mask: PlacedMask | None
    computed: bool
    workers: int | None

    @classmethod
    def of(
        cls,
        tensor: InfiniteTensor,
        nodata: PixelCode | None,
        region: object,
        where: object,
        computed: bool,
        workers: int | None,
    ) -> _Pixels:
        """Create the selection from the arguments of `InfiniteTensor.stats`."""
        node = node_of(tensor)
        layout = node.contents.layout(node.spec)
        if region is None and not computed:
            start, stop = map(tuple, layout.pixels)
            selection = Selection(start, stop, (1,) * tensor.ndim, ())
        else:
            selection = parse(... if region is None else region, tensor.shape, node.spec.labels)
            if where is not None or not computed:
                what = "a region with a mask" if computed else "a region of stats without compute=True"
                selection = box_inside(selection, tensor.shape, what)
        tiles, covered = None, selection
        if not computed and not node.computation.copied and 0 not in selection.shape:
            tiles = sorted(node.contents.inventory(node.spec, selection.start, selection.stop).complete)
            if region is None:
                # Without a region, the selection may be unbounded. Let the mask cover only the stored tiles.
                low, high = (tuple(map(end, zip(*tiles, strict=True))) for end in (min, max))
                ends = (layout.start(low), layout.stop(high)) if tiles else (selection.start, selection.start)
                covered = Selection(*ends, selection.steps, ())
        return cls(tensor, nodata, selection, tiles, placed(where, tensor.dims, covered), computed, workers)

    def read(self, use: _Use) -> _Sieve:
        """Pass all values to `use`, in flat arrays of up to `_MOST` values.

        The result has the counts of NaN and nodata.
        """
        sieve = _Sieve(self.tensor, self.nodata, use)
        self._read_computed(sieve.add) if self.computed else self._read_stored(sieve.add)
        sieve.finish()
        return sieve

    @property
    def missing(self) -> int:
        """The number of pixels left out because they are not stored.

        It is 0 if the selection is unbounded.
        """
        if self.tiles is None or COORDINATE_LIMIT in self.selection.stop:
            return 0
        return math.prod(self.selection.size) - sum(math.prod(part.size) for part in self._parts())

    def _wanted(self) -> Iterator[tuple[Selection, BoolArray | None]]:
        """Yield boxes with pixels to count, each with a mask, or None to count all."""
        for part in self._parts():
            wanted = None if self.mask is None else np.broadcast_to(self.mask.pixels(part.pixels), part.size)
            if wanted is None or wanted.any():
                yield part, wanted

    def _parts(self) -> Iterator[Selection]:
        """Divide the selection into boxes. Leave out the parts outside of `tiles`.

        If there is a mask, or missing pixels are not computed, each box lies in one tile.
        """
        node, selection = node_of(self.tensor), self.selection
        layout = node.contents.layout(node.spec)
        if self.tiles is not None:
            parts = (_within(selection, layout.start(tile), layout.stop(tile)) for tile in self.tiles)
            yield from filter(None, parts)
        elif 0 not in selection.shape:
            steps = tuple([along.step for along in selection.pixels])
            most = _BLOCK_PIXELS if self.computed and self.mask is None else 1
            for block in SelectionBlocks.of(selection, layout.grid.window).cut(most):
                stop = tuple([a + n for a, n in zip(block.start, block.shape, strict=True)])
                yield Selection(block.start, stop, steps, ())

    def _read_computed(self, add: _Add) -> None:
        waiting: deque[tuple[Selection, BoolArray | None]] = deque()

        def parts() -> Iterator[Selection]:
            for each in self._wanted():
                waiting.append(each)
                yield each[0]

        with keeping_little(node_of(self.tensor), _HELD_BYTES):
            for ready in self.tensor.iter_regions(parts(), workers=self.workers):
                for pixels in ready:
                    add(*waiting.popleft(), pixels)

    def _read_stored(self, add: _Add) -> None:
        node, wanted = node_of(self.tensor), self._wanted()
        at_once = min(max(1, _LOOKED_UP_BYTES // node.contents.layout(node.spec).tile_bytes), _MOST_LOOKED_UP)
        while some := list(itertools.islice(wanted, at_once)):
            for each, pixels in zip(some, whole_pixels(node, [part for part, _ in some]), strict=True):
                if pixels is not None:
                    add(*each, pixels)


def _within(selection: Selection, start: Index, stop: Index) -> Selection | None:
    """Return the part of a selection in the box ``[start, stop)``, or None if empty."""
    parts = [
        along[max(0, -((along.start - a) // along.step)) : max(0, -((along.start - b) // along.step))]
        for along, a, b in zip(selection.pixels, start, stop, strict=True)
    ]
    if not all(parts):
        return None
    first, steps = tuple([part.start for part in parts]), tuple([part.step for part in parts])
    return Selection(first, tuple([part[-1] + 1 for part in parts]), steps, ())


class _Sieve:
    """Removes NaN, nodata and masked pixels, and passes the remaining values to `use`.

    Attributes
    ----------
    nan, nodata : int
        The number of removed NaN pixels, and of removed pixels that are nodata in the source raster.
    """

    def __init__(self, tensor: InfiniteTensor, nodata: PixelCode | None, use: _Use) -> None:
        self.nan = self.nodata = 0
        self._tensor, self._dtype, self._use = tensor, tensor.dtype, use
        self._nodata = None if nodata is None else _broadcast(nodata, tensor)
        self._waiting: list[Numbers] = []
        self._waits = 0

    def add(self, part: Selection, wanted: BoolArray | None, pixels: torch.Tensor) -> None:
        """Add the pixels of a box.

        `wanted` is a mask of the pixels to count, or None to count all.
        """
        if pixels.dtype != self._dtype:
            raise ValidationError(
                f"tensor {self._tensor.tensor_id!r} was moved to {pixels.dtype} while its statistics were taken; take "
                "them again"
            )
        values = as_numpy(pixels)
        if self._nodata is not None:
            places = zip(part.pixels, self._nodata.shape, strict=True)
            here = [slice(None) if n == 1 else slice(at.start, at.stop, at.step) for at, n in places]
            missing = values == self._nodata[tuple(here)]
            self.nodata += int(np.count_nonzero(missing if wanted is None else missing & wanted))
            wanted = ~missing if wanted is None else wanted & ~missing
        values = values.reshape(-1) if wanted is None else values[wanted]
        # Small arrays are collected and passed on together.
        self._waiting.append(values)
        self._waits += len(values)
        if self._waits >= _MOST:
            self.finish()

    def finish(self) -> None:
        """Pass the collected values to `use`."""
        if not self._waits:
            return
        values = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        self._waiting, self._waits = [], 0
        for start in range(0, len(values), _MOST):
            piece = values[start : start + _MOST]
            if piece.dtype.kind == "f" and math.isnan(piece.min()):
                numbers = piece[~np.isnan(piece)]
                self.nan += len(piece) - len(numbers)
                piece = numbers
            if len(piece):
                self._use(piece)


def _broadcast(nodata: PixelCode, tensor: InfiniteTensor) -> Numbers:
    values = nodata.value if nodata.along is not None else [nodata.value]
    # A channel without a nodata value gets NaN, because no pixel equals NaN.
    dtype = np.dtype(np.float64) if None in values else numpy_dtype(tensor.dtype)
    held = np.array([math.nan if each is None else each for each in values], dtype)
    return held.reshape([-1 if d == nodata.along else 1 for d in range(tensor.ndim)])


# Counting.


def stats_of(
    tensor: InfiniteTensor,
    nodata: PixelCode | None,
    region: object,
    where: object,
    compute: object,
    workers: int | None,
) -> Stats:
    """See `InfiniteTensor.stats`."""
    computed = checked_flag("compute", compute)
    if tensor.dtype.is_complex:
        raise ValidationError(
            f"statistics need real numbers, but tensor {tensor.tensor_id!r} has dtype {tensor.dtype}; take the "
            "statistics of the absolute values, as in t.map(torch.abs, dtype='float32')"
        )
    workers = checked_workers(workers)
    pixels = _Pixels.of(tensor, nodata, region, where, computed or is_source(tensor), workers)
    figures = _Figures(tensor.dtype)
    others = pixels.read(figures.add)
    return figures.stats(others, pixels.missing)


class _Figures:
    """Accumulator for the statistics of values."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._finite, self._sum, self._squares, self._infinite = 0, 0.0, 0.0, 0.0
        self._min, self._max = math.inf, -math.inf
        # Each small integer has its own bin. Other numbers are binned by the leading bits of a float32.
        self._small = not dtype.is_floating_point and dtype.itemsize <= 2
        self._first = -(2**15) if self._small and dtype.is_signed else 0
        self._counts = np.zeros(2**16 if self._small else 2**_LEADING, np.int64)

    def add(self, numbers: Numbers) -> None:
        """Add an array of numbers: at most `_MOST`, none of them NaN."""
        if numbers.dtype == np.bool_:
            numbers = numbers.view(np.uint8)
        low, high = numbers.min().item(), numbers.max().item()
        self._min, self._max = min(self._min, low), max(self._max, high)
        np.add.at(self._counts, self._places(numbers), 1)
        if math.isinf(low) or math.isinf(high):
            finite = np.isfinite(numbers)
            # Infinities of both signs sum to NaN.
            self._infinite += sum({*numbers[~finite].tolist()})
            numbers = numbers[finite]
        if len(numbers):
            self._add_finite(numbers.astype(np.float64))

    def _add_finite(self, numbers: npt.NDArray[np.float64]) -> None:
        # Squares of deviations from the mean of the block, joined as by Chan, Golub and LeVeque (1979): squares of the
        # numbers themselves would cancel where the mean is large.
        with np.errstate(over="ignore"):
            total = float(numbers.sum())
            mean = self._within(total / len(numbers))
            squares = float(np.square(numbers - mean).sum())
        if self._finite:
            apart = mean - self._within(self._sum / self._finite)
            squares += apart * apart * (self._finite * len(numbers) / (self._finite + len(numbers)))
        self._finite += len(numbers)
        self._sum += total
        self._squares += squares

    def _within(self, mean: float) -> float:
        # A mean is rounded, and a sum may leave the range of floats. Equal numbers have no deviation.
        return float(min(max(mean, self._min), self._max))

    def _places(self, numbers: Numbers) -> npt.NDArray[np.intp]:
        if self._small:
            return numbers.astype(np.intp) - self._first
        with np.errstate(over="ignore"):
            floats = np.ascontiguousarray(numbers, np.float32)
        if numbers.dtype == np.float64:
            # Infinities keep their own bins.
            np.clip(floats, -_LARGEST, _LARGEST, out=floats, where=np.isfinite(numbers))
        return (floats.view(np.uint32) >> (32 - _LEADING)).astype(np.intp)

    def stats(self, others: _Sieve, missing: int) -> Stats:
        """Return the statistics of the values added so far.

        The counts of NaN and nodata are taken from `others`, and the count of missing pixels is `missing`.
        """
        is_float = self._dtype.is_floating_point
        (places,) = np.nonzero(self._counts)
        if not len(places):
            none = math.nan
            return Stats(0, others.nan, others.nodata, missing, none, none, none, none, None if is_float else {})
        bins = self._bins(places)
        mean, std = self._infinite, math.nan
        if not mean:
            mean = self._within(self._sum / self._finite)
            std = math.sqrt(self._squares / self._finite)
        counted = zip(bins.values.tolist(), bins.counts.tolist(), strict=True)
        return Stats(
            bins.count,
            others.nan,
            others.nodata,
            missing,
            self._min,
            self._max,
            mean,
            std,
            {int(label): count for label, count in counted} if bins.exact and not is_float else None,
            bins,
        )

    def _bins(self, places: npt.NDArray[np.intp]) -> _Bins:
        if self._small:
            return _Bins(places + self._first, np.cumsum(self._counts[places]), exact=True)
        # Negative numbers come first, largest magnitude first. The bin of -0.0 also contains tiny negative numbers.
        signed = places >= 2 ** (_LEADING - 1)
        places = np.concatenate([places[signed][::-1], places[~signed]])
        values = (places.astype(np.uint32) << (32 - _LEADING)).view(np.float32)
        is_whole = not self._dtype.is_floating_point and max(self._max, -self._min) <= _MOST_LABEL
        exact = is_whole or self._dtype.itemsize <= 2
        return _Bins(values.astype(np.float64), np.cumsum(self._counts[places]), exact)
