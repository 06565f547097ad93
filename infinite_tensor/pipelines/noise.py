"""Random numbers determined by coordinates, in any process and order of reads.

The numbers are made of random words from Philox4x64-10, the generator of Salmon et al., "Parallel Random Numbers: As
Easy as 1, 2, 3" (2011), as implemented in numpy. Philox turns a key of two 64-bit words and a counter of four words
into four random words. So a sequence of words can begin at any counter.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.periodic import Periodic
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.pipelines.arithmetic import going_around
from infinite_tensor.support.allocation import new_block
from infinite_tensor.support.functions import RegionWriter
from infinite_tensor.support.given import as_index, members, quoted, word
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore
from infinite_tensor.values.fingerprint import STATE, Item

_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""For each dtype, the largest p with exact values for all multiples of 2**-p from 0 to below 1."""
_SIDE = 64
_CELL = _SIDE**2
"""Pixels of a cell."""
_WINDOW_CELLS = 8
"""Cells of a window. Most reads are small, but smaller windows would be too numerous."""
_BATCH = 8
_CACHE_BYTES = 2**25
_PART = 2**16
"""Pixels to draw at once, as many as fit into the cache of a core."""
_SERIAL = 2048
"""Numbers to round at once. For more numbers torch would use threads, and forked children lack threads."""

Address: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Start of a sequence of random words: key and counter, as tuples of words with the lowest word first."""


def noise(
    shape: Sequence[int | None],
    seed: int,
    stream: int = 0,
    kind: Literal["uniform", "normal"] = "uniform",
    dtype: torch.dtype | str = torch.float32,
    dims: Sequence[str] | None = None,
) -> InfiniteTensor:
    """Create a tensor of random numbers determined by coordinates.

    A pixel depends only on `seed`, `stream`, `kind`, `dtype` and the coordinates of the pixel. Neither the extents in
    `shape` nor other reads matter. A read draws only the returned pixels, and caches nothing. Windows read by other
    tensors are cached, up to 32 MiB. Nothing is stored.

    Parameters
    ----------
    shape : tuple of (int or None)
        Extent per dimension in pixels; None for an unbounded one, and a `Periodic` for one that goes around.
    seed : int
        From 0 to ``2**64 - 1``.
    stream : int
        From 0 to ``2**64 - 1``. Tensors with different streams of one seed are independent. Tensors with
        the same seed and stream are not, even if their `kind` or `dtype` differ.
    kind : {"uniform", "normal"}
        Uniform from 0 to below 1, or normal with mean 0 and variance 1.
    dtype : torch.dtype or str
        float32, float64, float16 or bfloat16.
    dims : tuple of str, optional
        Names of the dimensions.

    Returns
    -------
    InfiniteTensor
        A tensor on the CPU. Moving the tensor to another device raises an error. The `version` contains seed, stream
        and kind. So stored tensors computed from the noise cannot be reopened with another seed, stream or kind.

    Raises
    ------
    ValidationError
        If an argument is invalid.

    Notes
    -----
    **Cells.** The last two dimensions are cut into cells of 64 x 64 pixels. Along each other dimension, a cell has one
    pixel. If there is only one dimension, cells have 4096 pixels. ``place`` is the index of a cell, with one int for
    each dimension.

    **Words.** A cell has the words ``numpy.random.Philox(key=key, counter=counter).random_raw(4 * n)``, where ``n`` is
    1024 for float64 and 512 for all others, with

    - ``key = (seed, stream)``,
    - ``counter[0] = n * (place[-1] + 2**52)``,
    - ``counter[1] = 2**56 * len(shape) + place[-2] % 2**56``,
    - ``counter[2] = place[-3] % 2**64``,
    - ``counter[3] = place[-4] % 2**64``.

    Entries of ``place`` for dimensions that do not exist are 0. With five dimensions or more, the key is
    ``blake2b(f"{seed} {stream} {place[0]} ... {place[-5]}".encode(), digest_size=16)``, as two little-endian numbers.

    **Numbers.** The pixels of a cell take its words row by row: a float64 pixel takes a whole word, any other half a
    word, the lower half first. A uniform number is ``k * 2**-p``, where ``k`` is the number in the upper ``p`` bits: 53
    for float64, 24 for float32, 11 for float16, and 8 for bfloat16. It has the same bits on every machine.

    A normal number is the quantile of ``1/2 + (k + 1/2) * 2**-p``, where ``k`` is the signed number in the upper ``p``
    bits: 53 for float64, and 24 for all others, which are computed in float32 and then rounded. Its absolute value is
    at most 5.42 (8.3 for float64). The quantile is computed by algorithm AS 241 of Wichura, "The Percentage Points of
    the Normal Distribution" (1988), and has the same bits on every machine. Only its last two bits may be wrong.

    Examples
    --------
    >>> world = noise((None, None), seed=3)
    >>> world[-1:1, 10**12]
    tensor([0.1798, 0.5148])
    >>> latents = noise(
    ...     (4, None, None), seed=3, stream=1, kind="normal", dims=("c", "y", "x")
    ... )
    """
    extents = members(shape) or ()
    if any(isinstance(extent, Periodic) for extent in extents):
        whole = [int(extent) if isinstance(extent, Periodic) else extent for extent in extents]
        return going_around(noise(whole, seed, stream, kind, dtype, dims), extents)
    name, kept = _checked_kind(kind), _checked_dtype(dtype)
    key = _checked_word("seed", seed), _checked_word("stream", stream)
    draws = _Noise(*key, name == "normal", kept, _window_size(shape))
    return InfiniteTensor(
        shape,
        draws,
        TensorWindow(draws.size),
        dtype=kept,
        tile_store=MemoryTileStore(cache_size_bytes=_CACHE_BYTES),
        version={"noise": "philox4x64-10", "kind": name, "seed": draws.seed, "stream": draws.stream},
        edge="clip",
        dims=dims,
        batch_size=_BATCH,
    )


def window_rng(seed: int, ctx: Sequence[int]) -> np.random.Generator:
    """Return a reproducible random generator for a window, for use in ``f``.

    A seed and a window index always give the same generator. Generators for different seeds or indices are independent
    of each other, and of `noise`.

    Parameters
    ----------
    seed : int
        From 0 to ``2**64 - 1``.
    ctx : tuple of int
        The window index passed to `f`: 1 to 127 ints from ``-2**55`` to ``2**55 - 1``. If `f` needs several
        generators, append an int: ``window_rng(seed, (*ctx, 1))``.

    Returns
    -------
    numpy.random.Generator
        The random words are the same in every version of numpy. The results of methods such as `standard_normal` may
        change with a new version.

    Raises
    ------
    ValidationError
        If an argument is invalid.

    Notes
    -----
    The result is ``Generator(Philox(key=key, counter=counter))`` of `numpy.random`, with ``key = (seed, 0)`` and
    ``counter = (0, 2**56 * (128 + len(ctx)) + ctx[-1] % 2**56, ctx[-2] % 2**64, ctx[-3] % 2**64)``. Missing entries
    are 0. With four entries or more, the key is
    ``blake2b(f"{seed} 0 {ctx[0]} ... {ctx[-4]}".encode(), digest_size=16)``, as two little-endian numbers.

    Examples
    --------
    >>> def f(ctx):
    ...     return torch.from_numpy(window_rng(3, ctx).random((64, 64), "float32"))
    >>> t = InfiniteTensor((None, None), f, TensorWindow((64, 64)))
    """
    index = [as_index(entry) for entry in members(ctx) or ()]
    place = [entry for entry in index if entry is not None and -(2**55) <= entry < 2**55]
    if not 1 <= len(place) == len(index) <= 127:
        raise ValidationError(
            f"ctx must be a tuple of 1 to 127 ints from -2**55 to 2**55 - 1, such as the ctx of f, got {quoted(ctx)}"
        )
    key, counter = generator_address(_checked_word("seed", seed), place)
    return np.random.Generator(np.random.Philox(key=_words(key), counter=_words(counter)))


def cell_address(seed: int, stream: int, place: Sequence[int], counters: int) -> Address:
    """Return the key and counter of Philox for the first random word in a cell of noise.

    Every counter value gives four words. A cell takes `counters` values.
    """
    return _address(seed, stream, counters * (place[-1] + 2**52), len(place), place[:-1])


def generator_address(seed: int, ctx: Sequence[int]) -> Address:
    """Return the key and counter of Philox for the first random word of `window_rng`.

    The generator of the next window along the last dimension starts 2^66 words later.
    """
    return _address(seed, 0, 0, 128 + len(ctx), ctx)


def _address(seed: int, stream: int, lowest: int, tag: int, place: Sequence[int]) -> Address:
    *beyond, fourth, third, second = (*(0,) * (3 - len(place)), *place)
    key: tuple[int, ...] = seed, stream
    if beyond:
        digest = blake2b(" ".join(map(str, (*key, *beyond))).encode(), digest_size=16).digest()
        key = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    return key, (lowest, tag << 56 | second % 2**56, third % 2**64, fourth % 2**64)


def _words(numbers: Sequence[int]) -> npt.NDArray[np.uint64]:
    return np.array(numbers, dtype=np.uint64)


_WORD = np.dtype("<u8")
_HALVES = np.dtype("<i4"), np.dtype("<u4")
_WHOLE = np.dtype("<i8"), _WORD


class _Local(threading.local):
    def __init__(self) -> None:
        self._generator = np.random.Philox(0)
        self._state: Any = self._generator.state

    def words(self, address: Address, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` random words of the stream, beginning at `address`."""
        # Assign tuples, because writing into the state's arrays takes longer than drawing a hundred words.
        now = self._state["state"]
        now["key"], now["counter"] = address
        self._generator.state = self._state
        return self._generator.random_raw(count).astype(_WORD, copy=False)


_LOCAL = _Local()

_Span: TypeAlias = tuple[int, int, int, slice]
"""Part of an interval in a cell: cell index, start and stop in the cell, slice in the interval."""


@dataclass(frozen=True)
class _Noise(RegionWriter):
    """The ``f`` of `noise`.

    Attributes
    ----------
    seed, stream : int
        The key of the random words.
    normal : bool
        Whether numbers are normal, not uniform.
    dtype : torch.dtype
        The dtype of the pixels.
    size : tuple of int
        Size of a window in pixels: whole cells.
    """

    seed: int
    stream: int
    normal: bool
    dtype: torch.dtype
    size: tuple[int, ...]

    def __call__(self, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        # Do not change this method. Stored tensors record the code, and warn of changes.
        return self.windows(contexts)

    def _reaches(self) -> dict[str, Item]:
        return {"seed": Item("seed", str(self.seed), STATE), "stream": Item("stream", str(self.stream), STATE)}

    def windows(self, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the stacked windows for the given indices."""
        windows = new_block((len(contexts), *self.size), self.dtype, torch.device("cpu"))
        pixels = self._pixels(windows)
        drawn, bits = self._begun(pixels)
        begin = 0
        for end in range(1, len(contexts) + 1):
            # Draw adjacent windows along the last dimension at once.
            if end == len(contexts) or contexts[end] != (*contexts[end - 1][:-1], contexts[end - 1][-1] + 1):
                self._draw_windows(contexts[begin], bits, drawn[begin:end])
                begin = end
        self._finish(drawn, bits, pixels)
        return windows

    @property
    def copies(self) -> bool:
        """Whether pixels are drawn where they are read; see `RegionWriter.copies`."""
        return True

    def writes(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
        """Return whether window size, dtype and device match this noise; see `RegionWriter.writes`."""
        return (tuple(size), dtype, device.type) == (self.size, self.dtype, "cpu")

    def instead(self, dtype: torch.dtype, device: torch.device) -> str:
        """Tell how to get pixels in another dtype or on another device, for an error message."""
        if dtype is self.dtype:
            return f"noise is drawn on the CPU; move the pixels: t[...].to({str(device)!r})"
        made = f"make it with noise(..., dtype={dtype}), or " if dtype in _BITS else ""
        return f"noise has a fixed dtype; {made}convert the pixels: t[...].to({dtype})"

    def write(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Fill `out` with the pixels from `start` on; see `RegionWriter.write`."""
        for begin, part in _parts(start, self._pixels(out)):
            drawn, bits = self._begun(part)
            self._draw(begin, bits, drawn)
            self._finish(drawn, bits, part)

    def _pixels(self, out: torch.Tensor) -> npt.NDArray[Any]:
        # numpy has no bfloat16, so view its bits.
        return (out.view(torch.int16) if self.dtype is torch.bfloat16 else out).numpy()

    def _begun(self, pixels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
        """Return an array to fill with random bits, and the number of bits per pixel.

        The array is `pixels` if the bits can be converted to pixels in place. Otherwise, it is a new array.
        """
        computed = torch.float64 if self.dtype is torch.float64 else torch.float32
        straight = self.dtype is computed and pixels.flags.c_contiguous
        drawn = pixels if straight else new_block(pixels.shape, computed, torch.device("cpu")).numpy()
        return drawn, _BITS[computed if self.normal else self.dtype]

    def _finish(self, drawn: npt.NDArray[Any], bits: int, pixels: npt.NDArray[Any]) -> None:
        (to_normal if self.normal else to_uniform)(drawn.reshape(-1), bits)
        if drawn is not pixels:
            np.copyto(pixels, drawn if self.dtype.itemsize > 2 else self._rounded(drawn))

    def _rounded(self, drawn: npt.NDArray[Any]) -> npt.NDArray[Any]:
        numbers = torch.from_numpy(drawn).view(-1)
        rounded = new_block(drawn.shape, self.dtype, torch.device("cpu"))
        for part, target in zip(torch.split(numbers, _SERIAL), torch.split(rounded.view(-1), _SERIAL), strict=True):
            target.copy_(part)
        return self._pixels(rounded)

    def _draw_windows(self, ctx: Sequence[int], bits: int, pixels: npt.NDArray[Any]) -> None:
        """Draw the pixels of a row of windows, starting at window `ctx`.

        Each pixel becomes a random integer of `bits` bits, signed for a normal distribution.
        """
        cells = _cells_of(pixels)
        counts = cells.shape[1 : len(ctx) + 1]
        words = _CELL * pixels.itemsize // 8
        *others, first = map(operator.mul, ctx, counts)
        for row in itertools.product(*map(range, counts[:-1])):
            place = [*map(operator.add, others, row), first]
            # The words of all cells in a row are consecutive.
            address = cell_address(self.seed, self.stream, place, words // 4)
            upper = self._upper(address, words * len(cells) * counts[-1], bits, pixels.itemsize)
            at: tuple[Any, ...] = (slice(None), *row)
            target = cells[at]
            np.copyto(target, upper.reshape(target.shape), casting="unsafe")

    def _draw(self, start: Sequence[int], bits: int, pixels: npt.NDArray[Any]) -> None:
        """Draw the pixels of a region starting at pixel `start`, as in `_draw_windows`."""
        columns = _spans(start[-1], pixels.shape[-1], _cell_of(pixels.ndim)[-1])
        if pixels.ndim == 1:
            # With one dimension, a cell is a single row of pixels.
            self._draw_row([], (0, 0, 1, slice(None)), columns, bits, pixels[None])
            return
        rows = _spans(start[-2], pixels.shape[-2], _SIDE)
        for lead in itertools.product(*map(range, pixels.shape[:-2])):
            place = [*map(operator.add, start, lead)]
            for row in rows:
                at: tuple[Any, ...] = (*lead, row[-1])
                self._draw_row([*place, row[0]], row, columns, bits, pixels[at])

    def _draw_row(
        self, place: list[int], row: _Span, columns: Sequence[_Span], bits: int, pixels: npt.NDArray[Any]
    ) -> None:
        """Draw the part of a region in a single row of cells.

        `place` is the index of each cell, except for the last entry. `columns` has a tuple for each cell, with this
        last entry and the columns of pixels to draw. `row` contains the rows of pixels to draw.
        """
        _, top, bottom, _ = row
        width, itemsize = _SIDE if place else _CELL, pixels.itemsize
        in_counter = 4 * 8 // itemsize
        counters = _CELL // in_counter
        key, (counter, *others) = cell_address(self.seed, self.stream, [*place, columns[0][0]], counters)
        for _, left, right, at in columns:
            # Draw all words from the first to the last pixel of the region in a cell. Copy only pixels of the region.
            first, last = top * width + left, (bottom - 1) * width + right
            begin, end = first // in_counter, -(-last // in_counter)
            upper = self._upper((key, (counter + begin, *others)), 4 * (end - begin), bits, itemsize)
            shape, skipped = (bottom - top, right - left), first - begin * in_counter
            block = np.ndarray(shape, upper.dtype, upper, skipped * itemsize, (width * itemsize, itemsize))
            np.copyto(pixels[:, at], block, casting="unsafe")
            counter += counters

    def _upper(self, address: Address, count: int, bits: int, itemsize: int) -> npt.NDArray[Any]:
        """Return random integers of `bits` bits.

        They are made from `count` random words. A word has 8 bytes: it gives two integers if `itemsize` is 4, and one
        if it is 8. The lower bits are dropped.
        """
        signed, unsigned = _HALVES if itemsize == 4 else _WHOLE
        upper = _LOCAL.words(address, count).view(signed if self.normal else unsigned)
        upper >>= 8 * itemsize - bits
        # Signed integers are converted to floats several times as fast as unsigned integers.
        return upper.view(signed)


def _cell_of(ndim: int) -> tuple[int, ...]:
    return (_CELL,) if ndim == 1 else (*(1,) * (ndim - 2), _SIDE, _SIDE)


def _spans(start: int, length: int, size: int) -> list[_Span]:
    """Cut an interval at multiples of `size`."""
    spans, stop = [], start + length
    for cell in range(start // size, -(-stop // size)):
        begin, end = max(start, cell * size), min(stop, (cell + 1) * size)
        spans.append((cell, begin - cell * size, end - cell * size, slice(begin - start, end - start)))
    return spans


def _parts(start: Sequence[int], pixels: npt.NDArray[Any]) -> Iterator[tuple[Sequence[int], npt.NDArray[Any]]]:
    """Split a region at cell borders into parts of at most `_PART` pixels.

    Yield (start, pixels) for each part.
    """
    if pixels.size <= _PART:
        yield start, pixels
        return
    for d, (first, extent, side) in enumerate(zip(start, pixels.shape, _cell_of(pixels.ndim), strict=True)):
        before = (first + extent // 2) // side * side - first
        middle = next((at for at in (before, before + side) if 0 < at < extent), None)
        if middle is not None:
            lead = (slice(None),) * d
            yield from _parts(start, pixels[(*lead, slice(middle))])
            yield from _parts([*start[:d], first + middle, *start[d + 1 :]], pixels[(*lead, slice(middle, None))])
            return


def _cells_of(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """View stacked windows with shape (windows, *cells per window, *pixels per cell)."""
    if pixels.ndim == 2:
        return pixels.reshape(len(pixels), -1, _CELL)
    *others, rows, columns = pixels.shape
    return pixels.reshape(*others, rows // _SIDE, _SIDE, columns // _SIDE, _SIDE).swapaxes(-3, -2)


def to_uniform(numbers: Floats, bits: int) -> None:
    """Scale unsigned integers of `bits` bits to the range from 0 to below 1, in place.

    Nothing is rounded.
    """
    numbers *= 2.0**-bits


def to_normal(numbers: Floats, bits: int) -> None:
    """Convert signed random integers of `bits` bits to normal random numbers, in place."""
    # Adding 0.5 makes the range symmetric within -1/2 and 1/2. Nothing is rounded yet.
    numbers += 0.5
    numbers *= 2.0**-bits
    make_normal(numbers)


def _window_size(shape: object) -> tuple[int, ...]:
    extents = [None if extent is None else as_index(extent) for extent in members(shape) or (None,)]
    if len(extents) == 1:
        return (_CELL * _few(extents[0], _CELL, _WINDOW_CELLS),)
    most, others = _WINDOW_CELLS, []
    for extent in extents[-3::-1]:
        others.append(_few(extent, 1, most))
        most //= others[-1]
    rows = _few(extents[-2], _SIDE, math.isqrt(most))
    return (*others[::-1], _SIDE * rows, _SIDE * _few(extents[-1], _SIDE, most // rows))


def _few(extent: int | None, size: int, most: int) -> int:
    return most if extent is None or extent < 1 else min(most, -(-extent // size))


def _checked_word(name: str, value: object) -> int:
    number = as_index(value)
    if number is None or not 0 <= number < 2**64:
        raise ValidationError(f"{name} must be an int from 0 to 2**64 - 1, got {quoted(value)}")
    return number


def _checked_kind(kind: object) -> str:
    name = word(kind)
    if name not in ("uniform", "normal"):
        raise ValidationError(f'kind must be "uniform" or "normal", got {quoted(kind)}')
    return name


def _checked_dtype(dtype: object) -> torch.dtype:
    name = str(dtype) if isinstance(dtype, torch.dtype) else word(dtype) or ""
    for known in _BITS:
        if name.removeprefix("torch.") == str(known).removeprefix("torch."):
            return known
    raise ValidationError(f"dtype must be one of {', '.join(map(str, _BITS))}, got {quoted(dtype)}")


# Normal numbers from uniform numbers, with the same bits on every machine. The method is algorithm AS 241 of Wichura,
# "The Percentage Points of the Normal Distribution" (1988): PPND7 in float32, PPND16 in float64. All machines round
# sums, products, quotients and square roots in the same way. Logarithms and `erfinv` differ between libraries. So the
# logarithm is computed here, as a sum of products.

Floats: TypeAlias = npt.NDArray[np.floating[Any]]

_IN_CACHE = 2**16
"""Numbers to convert at once, as many as fit into the cache of a core."""


class _Rational(NamedTuple):
    """Quotient of two polynomials.

    Coefficients are in order of falling powers.
    """

    above: Sequence[Any]
    below: Sequence[Any]

    @classmethod
    def of_pairs(cls, *pairs: tuple[float, float]) -> _Rational:
        """Create a quotient from pairs of coefficients, one pair for each power.

        The first number of a pair belongs to the numerator, and the second to the denominator.
        """
        return cls(*zip(*pairs, strict=True))

    def __call__(self, x: Floats) -> Floats:
        value = _polynomial(self.above, x)
        value /= _polynomial(self.below, x)
        return value

    def of(self, dtype: type[np.floating[Any]]) -> _Rational:
        """Convert the coefficients to a dtype."""
        return _Rational(_scalars(self.above, dtype), _scalars(self.below, dtype))


class _Algorithm(NamedTuple):
    """Constants of PPND7 or PPND16, the two variants of algorithm AS 241.

    The algorithm computes the normal quantile of 1/2 + q. If abs(q) is above 0.425, q lies in a tail. The quantile is
    then computed from ``r = sqrt(-log(1/2 - abs(q)))``.

    Attributes
    ----------
    central : _Rational
        If q lies in no tail: a function of 0.180625 - q**2. The quantile is its value times q.
    tail : _Rational
        If q lies in a tail: a function of r - 1.6. Its value is the absolute value of the quantile.
    far : _Rational or None
        Replaces `tail` if r is above 5: a function of r - 5. None in PPND7, where r is never above 5.
    logarithm : tuple of float
        Coefficients of the series of 2 atanh.
    """

    central: _Rational
    tail: _Rational
    far: _Rational | None
    logarithm: Sequence[Any]

    def of(self, dtype: type[np.floating[Any]]) -> _Algorithm:
        """Convert the constants to a dtype."""
        far = None if self.far is None else self.far.of(dtype)
        return _Algorithm(self.central.of(dtype), self.tail.of(dtype), far, _scalars(self.logarithm, dtype))


def _scalars(numbers: Sequence[float], dtype: type[np.floating[Any]]) -> Sequence[Any]:
    """Convert numbers to 0-d arrays.

    Numpy adds 0-d arrays faster than floats.
    """
    return [np.array(number, dtype) for number in numbers]


_PPND7 = _Algorithm(
    central=_Rational(
        (5.9109374720e1, 1.5929113202e2, 5.0434271938e1, 3.3871327179e0),
        (6.7187563600e1, 7.8757757664e1, 1.7895169469e1, 1.0),
    ),
    tail=_Rational(
        (1.7023821103e-1, 1.3067284816e0, 2.7568153900e0, 1.4234372777e0),
        (1.2021132975e-1, 7.3700164250e-1, 1.0),
    ),
    far=None,
    logarithm=[2 / power for power in (9, 7, 5, 3, 1)],
)
_PPND16 = _Algorithm(
    central=_Rational.of_pairs(
        (2.5090809287301226727e3, 5.2264952788528545610e3),
        (3.3430575583588128105e4, 2.8729085735721942674e4),
        (6.7265770927008700853e4, 3.9307895800092710610e4),
        (4.5921953931549871457e4, 2.1213794301586595867e4),
        (1.3731693765509461125e4, 5.3941960214247511077e3),
        (1.9715909503065514427e3, 6.8718700749205790830e2),
        (1.3314166789178437745e2, 4.2313330701600911252e1),
        (3.3871328727963666080e0, 1.0),
    ),
    tail=_Rational.of_pairs(
        (7.7454501427834140764e-4, 1.05075007164441684324e-9),
        (2.27238449892691845833e-2, 5.47593808499534494600e-4),
        (2.41780725177450611770e-1, 1.51986665636164571966e-2),
        (1.27045825245236838258e0, 1.48103976427480074590e-1),
        (3.64784832476320460504e0, 6.89767334985100004550e-1),
        (5.76949722146069140550e0, 1.67638483018380384940e0),
        (4.63033784615654529590e0, 2.05319162663775882187e0),
        (1.42343711074968357734e0, 1.0),
    ),
    far=_Rational.of_pairs(
        (2.01033439929228813265e-7, 2.04426310338993978564e-15),
        (2.71155556874348757815e-5, 1.42151175831644588870e-7),
        (1.24266094738807843860e-3, 1.84631831751005468180e-5),
        (2.65321895265761230930e-2, 7.86869131145613259100e-4),
        (2.96560571828504891230e-1, 1.48753612908506148525e-2),
        (1.78482653991729133580e0, 1.36929880922735805310e-1),
        (5.46378491116411436990e0, 5.99832206555887937690e-1),
        (6.65790464350110377720e0, 1.0),
    ),
    logarithm=[2 / power for power in range(19, 0, -2)],
)
_ALGORITHMS = {np.dtype(np.float32): _PPND7.of(np.float32), np.dtype(np.float64): _PPND16.of(np.float64)}

_MIDDLE, _LOG_MIDDLE, _LOG_2 = 0.7071067811865476, -0.34657359027997264, 0.6931471805599453


def make_normal(offsets: Floats) -> None:
    """Replace each number q by the normal quantile of 1/2 + q, in place.

    Parameters
    ----------
    offsets : array of float32 or float64
        One-dimensional, with values above -1/2 and below 1/2.
    """
    algorithm = _ALGORITHMS[offsets.dtype]
    for begin in range(0, len(offsets), _IN_CACHE):
        part = offsets[begin : begin + _IN_CACHE]
        distance = part * part
        np.subtract(0.180625, distance, out=distance)
        (tails,) = np.nonzero(distance < 0)
        beyond = part[tails]
        # The polynomials do not cover tails, and could divide by zero.
        distance[tails] = 0
        part *= algorithm.central(distance)
        part[tails] = _of_tails(algorithm, beyond)


def _of_tails(algorithm: _Algorithm, offsets: Floats) -> Floats:
    root = np.sqrt(-_logarithm(algorithm.logarithm, 0.5 - np.abs(offsets)))
    values = algorithm.tail(root - 1.6)
    if algorithm.far is not None and len(far := np.flatnonzero(root > 5)):
        values[far] = algorithm.far(root[far] - 5)
    return np.copysign(values, offsets, out=values)


def _logarithm(series: Sequence[Any], x: Floats) -> Floats:
    """Return natural logarithms, by ``log(m) = 2 atanh((m - 1) / (m + 1))`` for m between 0.7 and 1.5."""
    fraction, exponent = np.frexp(x)
    ratio = (fraction - _MIDDLE) / (fraction + _MIDDLE)
    value = _polynomial(series, ratio * ratio)
    value *= ratio
    value += _LOG_MIDDLE
    value += _LOG_2 * exponent.astype(x.dtype)
    return value


def _polynomial(coefficients: Sequence[Any], x: Floats) -> Floats:
    """Evaluate a polynomial by Horner's rule.

    Fused multiply-add is avoided, because some machines lack the instruction.
    """
    value: Floats = coefficients[0] * x
    for coefficient in coefficients[1:-1]:
        value += coefficient
        value *= x
    value += coefficients[-1]
    return value
