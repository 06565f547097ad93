"""Windows that slide over tensors.

A `Sliding` is one tensor with its windows, for `map_windows` and `predict` alike. An `Along` is a dimension of the
output of a map, with the allowed sizes of a returned window.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeVar

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.periodic import joint_extent, scaled_extent, side_of
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.support.given import as_index, as_ratio, members, number, quoted, word
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.checks import constant_of
from infinite_tensor.values.definition import channels_of

_STORED = (65_536, 256, 64, 16)
"""Longest side of a window with a small halo, in 1, 2, 3, or more dimensions."""
UNSTORED = (4_096, 64, 32, 16)
"""The same where nothing is stored for later runs: small reads then compute little around them."""
_LONGEST = (65_536, 256, 32, 16)
"""Longest side where nothing is stored, with a large halo."""
_WITH_HALO = Fraction(4, 3)
"""Maximum length of a window with its halo, relative to the window. Of input and output, the finer one counts."""
_MOST_PIXELS = 2**22
"""Maximum number of pixels of a window enlarged for a large halo, in the input and in the output."""

_Entry = TypeVar("_Entry")


@dataclass(frozen=True, eq=False)
class Sliding:
    """Windows that slide over some dimensions of a tensor, and contain the others whole.

    A window is a cell of `stride` pixels, with `before` and `after` pixels around it. Both `map_windows` and `predict`
    make this value: for the one, the surrounding pixels are the halo, for the other the overlap with the next window.
    All attributes except `tensor` and `edge` have an entry for each dimension over which windows slide.

    Attributes
    ----------
    tensor : InfiniteTensor
        The tensor under the windows.
    numbers : tuple of int
        The dimensions over which windows slide.
    names : tuple of (str or None)
        Their names, if a user has given any.
    before, after : tuple of int
        Pixels of a window on each side of the cell.
    scale : tuple of Fraction
        Pixels of the output along one pixel of the tensor. Empty if unknown.
    slid : tuple of int
        Of several inputs with windows: for each entry, which dimension it is among those of the leading input.
    stride : tuple of int
        Length of a cell. Empty if unknown.
    edge : "clip" or "drop"
        What happens to windows that reach past the end.
    """

    tensor: InfiniteTensor
    numbers: tuple[int, ...]
    names: tuple[str | None, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    scale: tuple[Fraction, ...] = ()
    stride: tuple[int, ...] = ()
    edge: Any = "clip"
    slid: tuple[int, ...] = ()

    @property
    def extents(self) -> tuple[int | None, ...]:
        """Extents of the tensor, in pixels."""
        return tuple([self.tensor.shape[d] for d in self.numbers])

    @property
    def size(self) -> tuple[int, ...]:
        """Length of a window."""
        return tuple(map(sum, zip(self.before, self.stride, self.after, strict=True)))

    @property
    def offset(self) -> tuple[int, ...]:
        """Start of window 0."""
        return tuple([-n for n in self.before])

    @property
    def kept(self) -> list[int]:
        """The dimensions contained whole in each window."""
        return [d for d in range(self.tensor.ndim) if d not in self.numbers]

    def window(self, coordinates: Sequence[int]) -> TensorWindow:
        """Return the window over the tensor. `coordinates` are those of the output that its dimensions follow."""
        slid = dict(zip(self.numbers, zip(self.size, self.stride, self.offset, coordinates, strict=True), strict=True))
        whole = [slid.get(d, (extent or 1, extent or 1, 0, None)) for d, extent in enumerate(self.tensor.shape)]
        return TensorWindow(*zip(*whole, strict=True))

    def padding(self, given: object) -> object:
        """Expand a padding for each dimension over which windows slide to all dimensions; leave others unchanged."""
        entries = None if is_one_padding(given) else members(given)
        if entries is None or len(entries) != len(self.numbers):
            return given
        along = dict(zip(self.numbers, entries, strict=True))
        return [along.get(d) for d in range(self.tensor.ndim)]


@dataclass(frozen=True)
class Along:
    """One dimension of the output of a map.

    Attributes
    ----------
    extent : int or None
        Its length in pixels.
    size : int
        The length of a window along it, in pixels.
    stride : int
        The distance from one window to the next, in pixels.
    name : str or None
        Its name, if a user has given one.
    number : int or None
        The index among the dimensions over which windows slide. None for a dimension kept whole.
    halos : tuple of (int, Fraction)
        The halo and the scale of each input along this dimension. Empty for a dimension kept whole.
    """

    extent: int | None
    size: int
    stride: int
    name: str | None
    number: int | None = None
    halos: tuple[tuple[int, Fraction], ...] = ()

    @property
    def padded(self) -> int | None:
        """The length of a window with the halo of the first input.

        None if windows do not slide over this dimension, or the halo is not a whole number of pixels.
        """
        margin = self.halos[0][0] * self.halos[0][1] if self.halos else None
        return None if margin is None or margin.denominator > 1 else self.size + 2 * int(margin)

    def crop(self, found: int) -> slice | None:
        """Return the slice to remove the halo from an output of `found` pixels.

        An output without a halo is kept whole. Return None for a wrong length.
        """
        margin, odd = divmod(found - self.size, 2)
        known = not odd and margin in (0, *[halo * scale for halo, scale in self.halos])
        return slice(margin, margin + self.size) if known else None


def sources_of(
    tensors: Sequence[InfiniteTensor], dims: object, window: object, halo: object, scale: object
) -> list[Sliding]:
    """Return the windows over each input, without their stride.

    Windows slide over the dimensions of the leading input, and over some of them in inputs of fewer dimensions.
    """
    if dims is None:
        count = len(members(window) or ())
        # Others may have fewer dimensions than a window.
        counts = [count if count <= tensor.ndim or len(tensors) == 1 else 0 for tensor in tensors]
        numbers = [_slid(at, tensor, n or None) for at, (tensor, n) in enumerate(zip(tensors, counts, strict=True))]
        leading = _longest(numbers)
    else:
        numbers = [_numbers(tensor, dims) for tensor in tensors]
        leading = _longest(numbers)
        for at, own in enumerate(numbers):
            if not own or (at == leading and len(own) < len(members(dims) or ())):
                raise ValidationError(
                    f"dims must be a tuple of dimensions of input {at}, without repetition, as numbers or as names in "
                    f"{tensors[at].dims}, got {quoted(dims)}"
                )
        numbers = [_slid(at, tensor, None, own) for at, (tensor, own) in enumerate(zip(tensors, numbers, strict=True))]
    names = [[names_of(tensor)[d] for d in own] for tensor, own in zip(tensors, numbers, strict=True)]
    halos, scales = (_of_inputs(*each, len(tensors)) for each in (("halo", halo), ("scale", scale)))
    found = []
    for at, (tensor, own, of_halo, of_scale) in enumerate(zip(tensors, numbers, halos, scales, strict=True)):
        slid = _matched(names[leading], names[at])
        if slid is None:
            raise ValidationError(
                f"windows slide over {_called(tensors[leading], numbers[leading])} of input {leading}, so dimensions "
                f"of other inputs must be some of these, in the same order, got {_called(tensor, own)} of input {at}; "
                "give dims=..., as names or numbers, such as dims=(-2, -1) for the last two"
            )
        around = of_dimensions("halo", of_halo, len(own), _from_zero, "a non-negative int")
        ratios = of_dimensions("scale", of_scale, len(own), as_ratio, "a positive int or a ratio such as 0.5")
        each = Sliding(tensor, tuple(own), tuple(names[at]), tuple(around), tuple(around), tuple(ratios))
        found.append(replace(each, slid=tuple(slid)))
    return found


def _longest(each: Sequence[Sequence[object]]) -> int:
    return max(range(len(each)), key=lambda at: len(each[at]))


def _matched(names: Sequence[str | None], others: Sequence[str | None]) -> list[int] | None:
    """Return which of the dimensions `names` the dimensions `others` are, or None if they do not match.

    Without names in common, these are the last ones, as in broadcasting.
    """
    if {*names} & {*others} - {None} and None not in (*names, *others):
        found = [names.index(name) for name in others if name in names]
        return found if len(found) == len(others) and found == sorted(found) else None
    fewer_by_name = None not in (*names, *others) and len(others) < len(names)
    return None if fewer_by_name else [*range(len(names) - len(others), len(names))]


def _called(tensor: InfiniteTensor, numbers: Sequence[int]) -> list[str]:
    return [tensor.dims[d] for d in numbers]


def leading_of(sources: Sequence[Sliding]) -> Sliding:
    """Return the first input with most dimensions over which windows slide: the output is shaped like it."""
    return max(sources, key=lambda source: len(source.slid))


def names_of(tensor: InfiniteTensor) -> list[str | None]:
    """Return the dimension names given by a user, with None for unnamed dimensions."""
    return [None if name == f"dim_{d}" else name for d, name in enumerate(tensor.dims)]


def slid_dims(
    shape: Sequence[int | None], names: Sequence[str | None], count: int | None, numbers: Sequence[int] | None = None
) -> list[int]:
    """Return the slid dimensions of a tensor.

    Without `numbers`, all dimensions except channels are slid dimensions.

    Parameters
    ----------
    shape, names
        The shape and the dimension names of a tensor.
    count : int or None
        The number of slid dimensions, if known.
    numbers : sequence of int, optional
        The slid dimensions, if known.

    Raises
    ------
    ValueError
        If it is not known which dimensions are channels, or windows cannot slide over the dimensions found.
    """
    ndim = len(shape)
    unbounded = [d for d, extent in enumerate(shape) if extent is None]
    channels = channels_of(names)
    if numbers is not None:
        found = [*numbers]
    elif channels or None not in names:
        found = [d for d in range(ndim) if d not in channels]
    elif count is not None and (count == ndim or not _may_be_channels(shape)):
        found = [*range(max(0, ndim - count), ndim)]
    elif count is None and (len(unbounded) == ndim or ndim == 1 or unbounded == [*range(1, ndim)]):
        found = unbounded or [0]
    else:
        raise ValueError("the channel dimension is unknown")
    called = [name or f"dim_{d}" for d, name in enumerate(names)]
    kept = [called[d] for d in unbounded if d not in found]
    if kept:
        raise ValueError(f"windows must slide over the unbounded dimension {kept[0]!r}")
    if not found or count not in (None, len(found)):
        slid = [called[d] for d in found]
        raise ValueError(f"windows slide over {slid}" + (f", but window has {count} entries" if count else ""))
    return found


def _may_be_channels(shape: Sequence[int | None]) -> bool:
    *others, last = shape
    few = last in (1, 2) and len(others) > 1 and all(n is None or n > last for n in others)
    return few or last in (3, 4)


def _slid(at: int, tensor: InfiniteTensor, count: int | None, numbers: list[int] | None = None) -> list[int]:
    try:
        return slid_dims(tensor.shape, names_of(tensor), count, numbers)
    except ValueError as problem:
        last = tuple(range(max(0, tensor.ndim - 2), tensor.ndim))
        raise ValidationError(
            f"input {at} has shape {tensor.shape} and dims {tensor.dims}: {problem}; give dims=..., the names "
            f"or numbers of the dimensions to slide over, such as dims={last}"
        ) from None


def _numbers(tensor: InfiniteTensor, dims: object) -> list[int]:
    """Return the numbers of those dimensions in `dims` that a tensor has. Each of them is listed once."""
    numbers = []
    for entry in members(dims) or ():
        name, d = word(entry), as_index(entry)
        if name in tensor.dims:
            numbers.append(tensor.dims.index(name))
        elif d is not None and -tensor.ndim <= d < tensor.ndim:
            numbers.append(d % tensor.ndim)
    return list(dict.fromkeys(numbers))


def _from_zero(value: object) -> int | None:
    found = as_index(value)
    return None if found is None or found < 0 else found


def positive(value: object) -> int | None:
    """Return `value` as a positive int, or None for other values."""
    return _from_zero(value) or None


def _of_inputs(name: str, given: object, count: int) -> Sequence[object]:
    entries = None if count == 1 else members(given)
    if entries is None:
        return [given] * count
    if len(entries) != count:
        raise ValidationError(
            f"{name} must be one value for all {count} inputs, or a tuple with one value per input, got "
            f"{quoted(given)}; if the tuple has one value per dimension, repeat it for each input: "
            f"{name}=({quoted(given)},) * {count}"
        )
    return entries


def of_dimensions(
    name: str, given: object, count: int, read: Callable[[object], _Entry | None], expected: str
) -> list[_Entry]:
    """Return an entry for each of the `count` slid dimensions: ``window=64`` becomes ``[64, 64]``.

    `name` is the name of the argument, and `given` its value: a single value or a tuple. The function `read` converts
    each entry, and returns None if it is invalid. Then ValidationError is raised, with `expected` in the message, such
    as "a positive int".
    """
    entries = members(given)
    found = [read(entry) for entry in ((given,) * count if entries is None else entries)]
    known = [entry for entry in found if entry is not None]
    if len(found) != count or len(known) != count:
        raise ValidationError(
            f"{name} must be {expected}, or a tuple with {count} of these, one for each dimension of the window, got "
            f"{quoted(given)}"
        )
    return known


def paddings_of(sources: Sequence[Sliding], padding: object) -> object:
    """Expand the argument `padding` of `map_windows` to an `args_padding`.

    A tuple in `padding` has entries for slid dimensions only. In the result, it has entries for all dimensions of the
    input. A single padding is returned unchanged.
    """
    if is_one_padding(padding):
        return padding
    entries = _of_inputs("padding", padding, len(sources))
    return [source.padding(given) for source, given in zip(sources, entries, strict=True)]


def is_one_padding(given: object) -> bool:
    """Return whether `given` is a single padding for all dimensions."""
    return members(given) is None or constant_of(given) is not None


def output_of(
    sources: Sequence[Sliding], window: object, overlap: object, channels: object, tile: int | None, *, stored: bool
) -> list[Along]:
    """Return the dimensions of the output.

    The dimensions are the same as in the leading input, except for channels and scale. Without a `window`, windows have
    the size of a `tile` of the store, if it is known. If not, their size depends on whether they are `stored`.

    Raises
    ------
    ValidationError
        If windows do not begin and end with whole pixels, inputs have different extents, or an argument is invalid.
    """
    first = leading_of(sources)
    names = names_of(first.tensor)
    sizes, strides = _window_sizes(sources, window, overlap, tile, stored=stored)
    output = []
    for d, extent in enumerate(first.tensor.shape):
        if d in first.numbers:
            j = first.numbers.index(d)
            halos = tuple([(source.before[at], source.scale[at]) for source, at in _along(sources, j)])
            output.append(Along(_extent(sources, j), sizes[j], strides[j], names[d], j, halos))
        else:
            output.append(Along(extent, extent or 1, extent or 1, names[d]))
    return output if channels is None else _with_channels(output, first.kept, channels)


def windows_of(sources: Sequence[Sliding], output: Sequence[Along]) -> list[TensorWindow]:
    """Return the window over each input, for a window of the output."""
    at = {along.number: d for d, along in enumerate(output)}
    windows = []
    for source in sources:
        order = [at[j] for j in source.slid]
        along = [*zip([output[d] for d in order], source.scale, strict=True)]
        more = [int((each.size - each.stride) / scale) for each, scale in along]
        windows.append(
            replace(
                source,
                stride=tuple([int(each.stride / scale) for each, scale in along]),
                after=tuple(map(operator.add, source.after, more)),
            ).window(order)
        )
    return windows


def _along(sources: Sequence[Sliding], j: int) -> list[tuple[Sliding, int]]:
    """Return the inputs with dimension `j` of the leading one, each with the number of that dimension among its own."""
    return [(source, source.slid.index(j)) for source in sources if j in source.slid]


def _with_channels(output: list[Along], kept: Sequence[int], channels: object) -> list[Along]:
    if members(channels) == ():
        return [along for along in output if along.number is not None]
    extent = as_index(channels)
    if extent is None or extent < 1:
        raise ValidationError(
            f"channels must be a positive int, () for an output without channels, or None, got {quoted(channels)}"
        )
    if len(kept) > 1:
        raise ValidationError(
            f"channels={extent} is ambiguous, because any of the dimensions {kept} of the input could be channels; "
            "leave channels out if fn returns all of these dimensions, or give channels=() if fn returns none"
        )
    if not kept:
        names = {along.name for along in output} - {None}
        return [Along(extent, extent, extent, "c" if names and "c" not in names else None), *output]
    new = Along(extent, extent, extent, None)
    return [replace(new, name=along.name) if along.number is None else along for along in output]


def _window_sizes(
    sources: Sequence[Sliding], window: object, overlap: object, tile: int | None, *, stored: bool
) -> tuple[list[int], list[int]]:
    """Return the size and the stride of a window along each slid dimension, in pixels of the output."""
    first = leading_of(sources)
    # Units in pixels of the leading input. A multiple is a whole number of pixels in all inputs and in the output.
    units = [
        math.lcm(*[(scale / source.scale[at]).denominator for source, at in _along(sources, j)], scale.denominator)
        for j, scale in enumerate(first.scale)
    ]
    if window is None:
        wanted = [-(-tile // scale) for scale in first.scale] if tile else _default_sides(sources, stored=stored)
        ends = [scaled_extent(n, Fraction(1, unit)) for n, unit in zip(first.extents, units, strict=True)]
        sides = [side_of(end, -(-most // unit)) * unit for end, most, unit in zip(ends, wanted, units, strict=True)]
    else:
        sides = of_dimensions("window", window, len(first.numbers), positive, "a positive int")
    for j, (side, unit) in enumerate(zip(sides, units, strict=True)):
        if side % unit:
            scales = ", ".join(str(source.scale[at]) for source, at in _along(sources, j))
            raise ValidationError(
                f"window must be a whole number of pixels at scale {scales}, got {side}; give a multiple of {unit}, "
                f"such as {-(-side // unit) * unit}"
            )
    shares = of_dimensions("overlap", overlap, len(sides), *SHARES)
    strides = [
        max(1, stride_of(side, share) // unit) * unit for side, share, unit in zip(sides, shares, units, strict=True)
    ]
    sizes, steps = ([int(n * scale) for n, scale in zip(each, first.scale, strict=True)] for each in (sides, strides))
    return sizes, steps


def stride_of(size: int, share: float) -> int:
    """Return the stride of windows of `size` pixels that share this part of their length with the next one."""
    return max(1, int(size * (1 - share))) if share else size


def _share(value: object) -> float | None:
    plain = number(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not 0 <= plain < 1:
        return None
    return float(plain)


SHARES = _share, "a number that is at least 0 and below 1"
"""Converter for an entry of `overlap`, and description of valid values."""


def _default_sides(sources: Sequence[Sliding], *, stored: bool) -> list[int]:
    """Return the default size of a window, in pixels of the leading input.

    The window may be larger than the input.
    """
    first = leading_of(sources)
    at = min(len(first.numbers), len(_STORED)) - 1
    longest = math.inf if stored else _LONGEST[at]
    finer = [max(Fraction(1), scale) for scale in first.scale]
    # The limits hold for the input and for the output.
    sides = [-(-(_STORED if stored else UNSTORED)[at] // scale) for scale in finer]
    least = [
        max(_least(source.before[own], source.scale[own]) for source, own in _along(sources, j)) / scale
        for j, scale in enumerate(first.scale)
    ]
    kept = math.prod(first.tensor.shape[d] or 1 for d in first.kept)
    while True:
        longer = [
            n if n >= enough or n * scale >= longest else 2 * n
            for n, enough, scale in zip(sides, least, finer, strict=True)
        ]
        covered = [min(n, end or n) * scale for n, end, scale in zip(longer, first.extents, finer, strict=True)]
        if longer == sides or kept * math.prod(covered) > _MOST_PIXELS:
            return sides
        sides = longer


def _least(halo: int, scale: Fraction) -> Fraction:
    """Return the length of a window, in pixels of the output, with a small share of halo."""
    return 2 * halo / (_WITH_HALO * max(Fraction(1), 1 / scale) - 1 / scale)


def _extent(sources: Sequence[Sliding], j: int) -> int | None:
    along = _along(sources, j)
    extents, scales = [source.extents[at] for source, at in along], [source.scale[at] for source, at in along]
    covered = [scaled_extent(n, scale) for n, scale in zip(extents, scales, strict=True)]
    # The last pixel of a coarse input may reach beyond the end of a fine input.
    found = min((pixels for pixels in covered if pixels is not None), default=None)
    for (source, at), extent, scale, pixels in zip(along, extents, scales, covered, strict=True):
        if found is not None and pixels not in (None, found) and extent != math.ceil(found / scale):
            name, other = source.tensor.dims[source.numbers[at]], along[covered.index(found)][0]
            raise ValidationError(
                f"in dimension {name!r}, input {sources.index(source)} ({extent} pixels, scale {scale}) makes {pixels} "
                f"pixels of the output, but input {sources.index(other)} makes {found}; give scale=(...), the number "
                "of output pixels per pixel of each input"
            )
    return None if found is None else joint_extent(pixels for pixels in covered if pixels == found)
