"""How the windows of a prediction lie on its source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from infinite_tensor.errors import RegionError, ShapeMismatchError, ValidationError
from infinite_tensor.geometry.regions import parse
from infinite_tensor.geometry.window import TensorWindow, WindowGrid, checked_edge
from infinite_tensor.pipelines.networks import Index
from infinite_tensor.pipelines.sliding import is_one_padding, names_of, of_dimensions, slid_dims
from infinite_tensor.support.given import as_index, as_ratio, members, number, quoted, word
from infinite_tensor.tensor import InfiniteTensor


@dataclass(frozen=True)
class Sliding:
    """How windows slide over a source.

    Attributes
    ----------
    source : InfiniteTensor
        What they slide over.
    numbers : tuple of int
        The dimensions along which they do.
    names : tuple of (str or None)
        What users call these.
    channel_dim : int or None
        The other dimension.
    size, stride : tuple of int
        Pixels of a window, and from one to the next.
    padding : object
        What stands beyond the ends of the source, as its `args_padding`.
    offset : tuple of int
        Where window 0 begins: before the image where that closes, so that as many windows cover its ends as its middle.
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
        """As the arguments of `predict` say; ValidationError for what does not fit."""
        names, entries = _names_of(source, dims), members(window)
        try:
            numbers = slid_dims(source.shape, names, None if entries is None else len(entries))
            if len(numbers) < source.ndim - 1:
                raise ValueError(f"windows slide over {len(numbers)} of them, and only one more can be channels")
        except ValueError as problem:
            raise ValidationError(
                f"the source has shape {source.shape} and dims {tuple(names)}: {problem}; give dims=('c', 'y', 'x'), "
                "say, or dims=('y', 'x', 'c') for channels last, and a window with one entry for each of the others"
            ) from None
        rest = [d for d in range(source.ndim) if d not in numbers]
        size = of_dimensions("window", window, len(numbers), _positive, "a positive int")
        shared = of_dimensions("overlap", overlap, len(size), _share, "a number from 0 up to and without 1")
        stride = tuple(max(1, int(n * (1 - share))) for n, share in zip(size, shared, strict=True))
        named = tuple(names[d] for d in numbers)
        given, modes = padding, [padding] * len(size)
        if not is_one_padding(padding):
            expected = 'one padding, as in "reflect" or ("constant", 0)'
            modes = of_dimensions("padding", padding, len(size), _one_padding, expected)
            along = dict(zip(numbers, modes, strict=True))
            given = [[along.get(d) for d in range(source.ndim)]]
        closed = [
            word(edge) != "drop" and word(mode) == "wrap" and source.shape[d] is not None
            for d, mode in zip(numbers, modes, strict=True)
        ]
        offset = tuple(step - n if closes else 0 for n, step, closes in zip(size, stride, closed, strict=True))
        return cls(source, tuple(numbers), named, rest[0] if rest else None, tuple(size), stride, given, offset)

    @property
    def window(self) -> TensorWindow:
        """What a window reads of the source."""
        slid = zip(self.size, self.stride, self.offset, range(len(self.size)), strict=True)
        along = dict(zip(self.numbers, slid, strict=True))
        whole = [along.get(d, (extent or 1, extent or 1, 0, None)) for d, extent in enumerate(self.source.shape)]
        return TensorWindow(*zip(*whole, strict=True))

    def edges(self, edge: Any, channels: int = 0) -> Any:
        """The `edge` of what these windows are written to, which has so many dimensions before theirs."""
        if not any(self.offset):
            return edge
        return (*[edge] * channels, *["all" if offset else edge for offset in self.offset])

    @property
    def extents(self) -> list[int | None]:
        """Pixels of the source along which windows slide."""
        return [self.source.shape[d] for d in self.numbers]

    def first(self, region: object, edge: object, count: int) -> list[Index]:
        """The first windows over a region, at most so many and at least one."""
        extents, ndim = tuple(self.extents), len(self.size)
        try:
            start, stop, *_ = parse(... if region is None else members(region) or (region,), extents)
        except RegionError:
            # It may fit a prediction of another resolution; where it does not, the fill says so.
            start = stop = (0,) * ndim
        edges = checked_edge(self.edges(word(edge) or "drop"), extents)
        low, high = WindowGrid(TensorWindow(self.size, self.stride, self.offset), extents, edges).box(start, stop)
        indices = itertools.product(*[range(a, max(a + 1, b)) for a, b in zip(low, high, strict=True)])
        return list(itertools.islice(indices, count))

    def scale_of(self, size: Sequence[int], given: object) -> tuple[Fraction, ...]:
        """Pixels of the output along one of the source; ValidationError where windows do not lie on whole ones."""
        found = tuple(Fraction(n, pixels) for n, pixels in zip(size, self.size, strict=True))
        shapes = f"net was given windows of {self.size} pixels and returned {tuple(size)}"
        if given is not None:
            scales = tuple(of_dimensions("scale", given, len(found), as_ratio, "a positive number such as 2 or 0.5"))
            if scales != found:
                raise ShapeMismatchError(
                    f"{shapes}, which is not scale={_shown(scales)}; crop or resize what net returns to "
                    f"{tuple(str(n * scale) for n, scale in zip(self.size, scales, strict=True))}"
                )
        elif any(1 not in (scale.numerator, scale.denominator) for scale in found):
            raise ShapeMismatchError(
                f"{shapes}: is it cropped? Have net return as many pixels, or give scale={_shown(found)} if that is "
                "the resolution of its output"
            )
        if any((step * scale).denominator > 1 for step, scale in zip(self.stride, found, strict=True)):
            raise ValidationError(
                f"windows are {self.stride} pixels apart, which is not whole at scale {_shown(found)}; give another "
                "overlap or window"
            )
        return found


def _shown(scales: Sequence[Fraction]) -> str:
    return "(" + ", ".join(map(str, scales)) + ")" if len({*scales}) > 1 else str(scales[0])


def _names_of(source: InfiniteTensor, dims: object) -> list[str | None]:
    """The names of its dimensions, None for one without."""
    given = [word(name) for name in members(dims) or ()] if dims is not None else None
    if given is None:
        return names_of(source)
    if len(given) != source.ndim or None in given or len({*given}) < len(given):
        raise ValidationError(
            f"dims must hold a name for each of the {source.ndim} dimensions of the source, of shape {source.shape}, "
            f"got {quoted(dims)}"
        )
    return given


def _one_padding(given: object) -> object:
    return given if is_one_padding(given) else None


def _positive(value: object) -> int | None:
    found = as_index(value)
    return found if found is not None and found > 0 else None


def _share(value: object) -> float | None:
    plain = number(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not 0 <= plain < 1:
        return None
    return float(plain)
