"""Random numbers that belong to places: the same ones whatever is read, in whatever order, in any process.

All are words of Philox4x64-10, the generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), as
numpy has it. Of a key of two words of 64 bits and a counter of four, it makes four random words: a sequence of these
begins wherever the counter does.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.pipelines.normal import Floats, make_normal
from infinite_tensor.support.allocation import new_block
from infinite_tensor.support.given import as_index, members, quoted, word
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore

_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
"""How many bits of a number below 1 a dtype always has room for."""
_SIDE = 64
_CELL = _SIDE**2
"""Pixels of a cell."""
_WINDOW_CELLS = 8
"""Of one window: few, since most reads are of small regions anywhere; so many that there are not too many windows."""
_BATCH = 8
_CACHE_BYTES = 2**25
_SERIAL = 2048
"""More numbers at once are copied by torch on several threads."""

Address: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""A key and a counter, each as words, the lowest one first."""


def noise(
    shape: Sequence[int | None],
    seed: int,
    stream: int = 0,
    kind: Literal["uniform", "normal"] = "uniform",
    dtype: torch.dtype | str = torch.float32,
    dims: Sequence[str] | None = None,
) -> InfiniteTensor:
    """Random numbers, one for each coordinate.

    A pixel depends on `seed`, `stream`, `kind`, `dtype` and its coordinates, and on nothing else: neither on the
    extents in `shape`, nor on what is read before or beside it. Nothing is stored; a few windows are kept in memory.

    Parameters
    ----------
    shape : tuple of (int or None)
        Extent per dimension in pixels; None for an unbounded one.
    seed : int
        From 0 to ``2**64 - 1``.
    stream : int
        From 0 to ``2**64 - 1``. Tensors with different streams of one seed are independent. Those with the same stream
        are not, even if their `kind` or `dtype` differ.
    kind : {"uniform", "normal"}
        Uniform from 0 to below 1, or normal with mean 0 and variance 1.
    dtype : torch.dtype or str
        float32, float64, float16 or bfloat16.
    dims : tuple of str, optional
        Names of the dimensions.

    Returns
    -------
    InfiniteTensor
        On the CPU. `version` in its definition holds seed, stream and kind, so that what is stored of a tensor that
        reads it is refused with other ones.

    Raises
    ------
    ValidationError
        If an argument does not fit.

    Notes
    -----
    **Cells.** The last two dimensions are cut into cells of 64 x 64 pixels, in which each other coordinate is the same;
    a dimension that is alone is cut into cells of 4096. ``place`` holds the index of a cell along each dimension.

    **Words.** Those of a cell are ``numpy.random.Philox(key=key, counter=counter).random_raw(4 * n)``, where ``n`` is
    1024 for float64 and 512 for all others, with

    - ``key = (seed, stream)``,
    - ``counter[0] = n * (place[-1] + 2**52)``,
    - ``counter[1] = 2**56 * len(shape) + place[-2] % 2**56``,
    - ``counter[2] = place[-3] % 2**64``,
    - ``counter[3] = place[-4] % 2**64``.

    A place that there is not is 0. With five dimensions or more, the key is
    ``blake2b(f"{seed} {stream} {place[0]} ... {place[-5]}".encode(), digest_size=16)``, as two little-endian numbers.

    **Numbers.** The pixels of a cell take its words row by row: one of float64 a whole word, all others half of one,
    the lower half first. A uniform number is ``k * 2**-p``, where ``k`` are the upper ``p`` bits: 53 for float64,
    24 for float32, 11 for float16, and 8 for bfloat16. It has the same bits on every machine.

    A normal number is the quantile of ``1/2 + (k + 1/2) * 2**-p``, where ``k`` are the upper ``p`` bits as a signed
    number: 53 for float64, and 24 for all others, which are computed in float32 and then rounded. It lies within 5.42
    (8.3 for float64). The quantile is that of Wichura, "The Percentage Points of the Normal Distribution", algorithm AS
    241 (1988), by arithmetic that has the same bits on every machine; it is right but for the last two bits.

    Examples
    --------
    >>> world = noise((None, None), seed=3)
    >>> world[-1:1, 10**12]
    tensor([0.1798, 0.5148])
    >>> latents = noise((4, None, None), seed=3, stream=1, kind="normal", dims=("c", "y", "x"))
    """
    name, kept = _checked_kind(kind), _checked_dtype(dtype)
    key = _checked_word("seed", seed), _checked_word("stream", stream)
    draws = _Draws(*key, name == "normal", kept, _window_size(shape))
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


def cell_generator(seed: int, ctx: Sequence[int]) -> np.random.Generator:
    """A random generator for an ``f`` that draws for itself: the same one for a seed and a window index.

    Generators of different seeds or indices are independent of each other, and of `noise`.

    Parameters
    ----------
    seed : int
        From 0 to ``2**64 - 1``.
    ctx : tuple of int
        What `f` is given: 1 to 127 ints from ``-2**55`` to ``2**55 - 1``. Where an `f` needs several generators, add an
        int: ``cell_generator(seed, (*ctx, 1))``.

    Returns
    -------
    numpy.random.Generator
        In numpy its words never change; what its methods make of them, such as `standard_normal`, may in a new version.

    Raises
    ------
    ValidationError
        If an argument does not fit.

    Notes
    -----
    It is ``Generator(Philox(key=key, counter=counter))`` of `numpy.random`, with ``key = (seed, 0)`` and
    ``counter = (0, 2**56 * (128 + len(ctx)) + ctx[-1] % 2**56, ctx[-2] % 2**64, ctx[-3] % 2**64)``. An entry that there
    is not is 0. With four entries or more, the key is
    ``blake2b(f"{seed} 0 {ctx[0]} ... {ctx[-4]}".encode(), digest_size=16)``, as two little-endian numbers.

    Examples
    --------
    >>> def f(ctx):
    ...     return torch.from_numpy(cell_generator(3, ctx).random((64, 64), "float32"))
    >>> t = InfiniteTensor((None, None), f, TensorWindow((64, 64)))
    """
    index = [as_index(entry) for entry in members(ctx) or ()]
    place = [entry for entry in index if entry is not None and -(2**55) <= entry < 2**55]
    if not 1 <= len(place) == len(index) <= 127:
        raise ValidationError(
            f"ctx must be a tuple of 1 to 127 ints from -2**55 to 2**55 - 1, as f is given it, got {quoted(ctx)}"
        )
    key, counter = generator_address(_checked_word("seed", seed), place)
    return np.random.Generator(np.random.Philox(key=_words(key), counter=_words(counter)))


def cell_address(seed: int, stream: int, place: Sequence[int], counters: int) -> Address:
    """Where the words of a cell of noise begin, which takes so many counters."""
    return _address(seed, stream, counters * (place[-1] + 2**52), len(place), place[:-1])


def generator_address(seed: int, ctx: Sequence[int]) -> Address:
    """Where the words of a generator begin, which may take 2^66 of them."""
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
    """A generator for each thread."""

    def __init__(self) -> None:
        self._generator = np.random.Philox(0)
        self._state: Any = self._generator.state

    def words(self, address: Address, count: int) -> npt.NDArray[np.uint64]:
        """So many words from an address on."""
        now = self._state["state"]
        now["key"][:], now["counter"][:] = address
        self._generator.state = self._state
        return self._generator.random_raw(count).astype(_WORD, copy=False)


_LOCAL = _Local()


@dataclass(frozen=True)
class _Draws:
    """Computes windows of noise.

    Attributes
    ----------
    seed, stream : int
        The key.
    normal : bool
        Which kind of numbers.
    dtype : torch.dtype
        Of the pixels.
    size : tuple of int
        Of a window in pixels: whole cells.
    """

    seed: int
    stream: int
    normal: bool
    dtype: torch.dtype
    size: tuple[int, ...]

    def __call__(self, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        # Stored tensors remember the code of this method, and warn where it is another one: it is to stay as it is.
        return self.windows(contexts)

    def windows(self, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        """The windows at some indices."""
        computed = torch.float64 if self.dtype is torch.float64 else torch.float32
        bits = _BITS[computed if self.normal else self.dtype]
        drawn = new_block((len(contexts), *self.size), computed, torch.device("cpu"))
        pixels, begin = drawn.numpy(), 0
        for end in range(1, len(contexts) + 1):
            # Windows that follow each other are drawn at once.
            if end == len(contexts) or contexts[end] != (*contexts[end - 1][:-1], contexts[end - 1][-1] + 1):
                self._draw(contexts[begin], bits, pixels[begin:end])
                begin = end
        (to_normal if self.normal else to_uniform)(pixels.reshape(-1), bits)
        if self.dtype is computed:
            return drawn
        windows = new_block(drawn.shape, self.dtype, torch.device("cpu"))
        for part, target in zip(_parts(drawn), _parts(windows), strict=True):
            target.copy_(part)
        return windows

    def _draw(self, ctx: Sequence[int], bits: int, pixels: npt.NDArray[Any]) -> None:
        """Write the upper bits of the words of a row of windows, signed for normal numbers, as they are."""
        cells = _cells_of(pixels)
        counts = cells.shape[1 : len(ctx) + 1]
        words = _CELL * pixels.itemsize // 8
        length = words * len(cells) * counts[-1]
        signed, unsigned = _HALVES if pixels.itemsize == 4 else _WHOLE
        local = _LOCAL
        *others, first = map(operator.mul, ctx, counts)
        for row in itertools.product(*map(range, counts[:-1])):
            place = [*map(operator.add, others, row), first]
            # Cells of a row follow each other.
            drawn = local.words(cell_address(self.seed, self.stream, place, words // 4), length)
            upper = drawn.view(signed if self.normal else unsigned)
            upper >>= 8 * pixels.itemsize - bits
            # Signed numbers are converted several times as fast.
            at: tuple[Any, ...] = (slice(None), *row)
            target = cells[at]
            np.copyto(target, upper.view(signed).reshape(target.shape), casting="unsafe")


def to_uniform(numbers: Floats, bits: int) -> None:
    """Turn the upper bits of words, as numbers from 0 on, into numbers from 0 to below 1. Nothing is rounded."""
    numbers *= 2.0**-bits


def to_normal(numbers: Floats, bits: int) -> None:
    """Turn the upper bits of words, as signed numbers, into normal ones."""
    # Both ends are as far from -1/2 and 1/2, and nothing is rounded yet.
    numbers += 0.5
    numbers *= 2.0**-bits
    make_normal(numbers)


def _parts(window: torch.Tensor) -> Sequence[torch.Tensor]:
    """Views of all pixels, few enough for torch to stay on one thread: in a forked child it has no others."""
    return window.view(-1).chunk(-(-window.numel() // _SERIAL))


def _cells_of(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view of some windows with the number of one, the index of a cell in it, then what is in that."""
    if pixels.ndim == 2:
        return pixels.reshape(len(pixels), -1, _CELL)
    *others, rows, columns = pixels.shape
    return pixels.reshape(*others, rows // _SIDE, _SIDE, columns // _SIDE, _SIDE).swapaxes(-3, -2)


def _window_size(shape: object) -> tuple[int, ...]:
    """How large windows are: about as long in each dimension, and no longer than the tensor.

    What is no shape is left to the tensor to refuse.
    """
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
    """How many cells of a size reach over an extent, if they are not too many."""
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
