"""Windows sliding over the inputs of a tensor.

Windows slide over some dimensions of an input, called slid dimensions, and contain the other dimensions whole. A
`Slide` is a slid dimension of an input. An `Along` is a dimension of the output, with the allowed sizes of a returned
window. Both together determine the windows of all tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.support.given import as_index, as_ratio, members, quoted, word
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.checks import constant_of
from infinite_tensor.values.definition import channels_of

_STORED = (65_536, 256, 64, 16)
"""Longest side of a window with a small halo, in 1, 2, 3, or more dimensions."""
_UNSTORED = (4_096, 64, 32, 16)
"""The same where nothing is stored for later runs: small reads then compute little around them."""
_LONGEST = (65_536, 256, 32, 16)
"""Longest side where nothing is stored, with a large halo."""
_WITH_HALO = Fraction(4, 3)
"""Maximum length of a window with its halo, relative to the window. Of input and output, the finer one counts."""
_MOST_PIXELS = 2**22
"""Maximum number of pixels of a window enlarged for a large halo, in the input and in the output."""

_Entry = TypeVar("_Entry")


@dataclass(frozen=True)
class Slide:
    """A slid dimension of an input.

    Attributes
    ----------
    d : int
        The number of the dimension in the input.
    extent : int or None
        The length of the dimension in pixels of the input.
    halo : int
        Pixels of the input that are read around the window on each side.
    scale : Fraction
        Pixels of the output along one pixel of the input.
    """

    d: int
    extent: int | None
    halo: int
    scale: Fraction

    @property
    def margin(self) -> Fraction:
        """The halo in pixels of the output."""
        return self.halo * self.scale


@dataclass(frozen=True)
class Along:
    """One dimension of the output.

    Attributes
    ----------
    extent : int or None
        Its length in pixels.
    size : int
        The length of a window along it, in pixels.
    name : str or None
        Its name, if a user has given one.
    number : int or None
        The index among the slid dimensions. None for a dimension kept whole.
    slides : tuple of Slide
        This dimension in each input. Empty for a dimension kept whole.
    """

    extent: int | None
    size: int
    name: str | None
    number: int | None = None
    slides: tuple[Slide, ...] = ()

    @property
    def padded(self) -> int | None:
        """The length of a window with the halo of the first input.

        None if windows do not slide over this dimension, or the halo is not a whole number of pixels.
        """
        margin = self.slides[0].margin if self.slides else None
        return None if margin is None or margin.denominator > 1 else self.size + 2 * int(margin)

    def crop(self, found: int) -> slice | None:
        """Return the slice to remove the halo from an output of `found` pixels.

        An output without a halo is kept whole. Return None for a wrong length.
        """
        margin, odd = divmod(found - self.size, 2)
        known = not odd and margin in (0, *[slide.margin for slide in self.slides])
        return slice(margin, margin + self.size) if known else None


@dataclass(frozen=True)
class Source:
    """An input with its slid dimensions."""

    tensor: InfiniteTensor
    slides: tuple[Slide, ...]

    @property
    def kept(self) -> list[int]:
        """The dimensions contained whole in each window."""
        slid = {slide.d for slide in self.slides}
        return [d for d in range(self.tensor.ndim) if d not in slid]

    def window(self, output: Sequence[Along]) -> TensorWindow:
        """Return the window of the input for a window of the output."""
        slid: dict[int, tuple[int, int, int, int]] = {}
        for at, along in enumerate(output):
            if along.number is not None:
                slide = self.slides[along.number]
                stride = int(along.size / slide.scale)
                slid[slide.d] = stride + 2 * slide.halo, stride, -slide.halo, at
        return window_over(self.tensor, slid)

    def padding(self, given: object) -> object:
        """Expand a padding from slid dimensions to all dimensions.

        If `given` does not have an entry for each slid dimension, return `given`.
        """
        entries = None if is_one_padding(given) else members(given)
        if entries is None or len(entries) != len(self.slides):
            return given
        return of_all(self.tensor, [slide.d for slide in self.slides], entries)


def window_over(tensor: InfiniteTensor, slid: Mapping[int, tuple[int, int, int, int]]) -> TensorWindow:
    """Return a window over a tensor.

    `slid` maps each slid dimension to a tuple of size, stride, offset and window coordinate.
    Along all other dimensions, the window covers the whole tensor.
    """
    whole = [slid.get(d, (extent or 1, extent or 1, 0, None)) for d, extent in enumerate(tensor.shape)]
    return TensorWindow(*zip(*whole, strict=True))


def of_all(tensor: InfiniteTensor, numbers: Sequence[int], entries: Sequence[object]) -> list[object]:
    """Return a list with an entry for each dimension of a tensor.

    `entries` belong to the dimensions `numbers`. All other dimensions get None.
    """
    along = dict(zip(numbers, entries, strict=True))
    return [along.get(d) for d in range(tensor.ndim)]


def sources_of(
    tensors: Sequence[InfiniteTensor], dims: object, window: object, halo: object, scale: object
) -> list[Source]:
    """Return the inputs with their slid dimensions.

    All inputs have the same number of slid dimensions, in the same order.
    """
    numbers = [_slid(at, tensor, dims, window) for at, tensor in enumerate(tensors)]
    names = [[tensor.dims[d] for d in slid] for tensor, slid in zip(tensors, numbers, strict=True)]
    for at, each in enumerate(names):
        if len(each) != len(names[0]) or (each != names[0] and sorted(each) == sorted(names[0])):
            raise ValidationError(
                "windows must slide over the same number of dimensions of all inputs, in the same order, got "
                f"{names[0]} of input 0 and {each} of input {at}; give dims=..., as names or numbers, such as "
                "dims=(-2, -1) for the last two"
            )
    halos, scales = (_of_inputs(*each, len(tensors)) for each in (("halo", halo), ("scale", scale)))
    found = []
    for tensor, slid, of_halo, of_scale in zip(tensors, numbers, halos, scales, strict=True):
        around = of_dimensions("halo", of_halo, len(slid), _from_zero, "a non-negative int")
        ratios = of_dimensions("scale", of_scale, len(slid), as_ratio, "a positive int or a ratio such as 0.5")
        slides = [Slide(d, tensor.shape[d], a, b) for d, a, b in zip(slid, around, ratios, strict=True)]
        found.append(Source(tensor, tuple(slides)))
    return found


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


def window_advice(window: object, shape: Sequence[int | None]) -> str:
    """Return advice for an error message: to give a tuple for `window` in place of an int.

    For 64, it is the text ``window=(64, 64) for the last 2 dimensions, or ``. The caller appends other advice. The
    text is empty if `window` is None or a tuple, or if the last dimension may be channels.

    Raises
    ------
    ValidationError
        If `window` is a single value, but not a positive int.
    """
    if window is None or members(window) is not None:
        return ""
    count = max(2, len(shape) - 1)
    sides = of_dimensions("window", window, count, positive, "a positive int")
    # With a tuple, windows slide over the last dimensions, perhaps including channels.
    return "" if _may_be_channels(shape) else f"window={tuple(sides)} for the last {count} dimensions, or "


def _may_be_channels(shape: Sequence[int | None]) -> bool:
    *others, last = shape
    few = last in (1, 2) and len(others) > 1 and all(n is None or n > last for n in others)
    return few or last in (3, 4)


def _slid(at: int, tensor: InfiniteTensor, dims: object, window: object) -> list[int]:
    entries, names = members(window), names_of(tensor)
    try:
        numbers = None if dims is None else _numbers(at, tensor, dims)
        return slid_dims(tensor.shape, names, None if entries is None else len(entries), numbers)
    except ValidationError:
        raise
    except ValueError as problem:
        last = tuple(range(max(0, tensor.ndim - 2), tensor.ndim))
        tried = window_advice(window, tensor.shape) if dims is None and None in names else ""
        raise ValidationError(
            f"input {at} has shape {tensor.shape} and dims {tensor.dims}: {problem}; give {tried}dims=..., the names "
            f"or numbers of the dimensions to slide over, such as dims={last}"
        ) from None


def _numbers(at: int, tensor: InfiniteTensor, dims: object) -> list[int]:
    numbers = []
    for entry in members(dims) or ():
        name, d = word(entry), as_index(entry)
        if name in tensor.dims:
            numbers.append(tensor.dims.index(name))
        elif d is not None and -tensor.ndim <= d < tensor.ndim:
            numbers.append(d % tensor.ndim)
    if not numbers or len({*numbers}) < len(members(dims) or ()):
        raise ValidationError(
            f"dims must be a tuple of dimensions of input {at}, without repetition, as numbers or as names in "
            f"{tensor.dims}, got {quoted(dims)}"
        )
    return numbers


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


def paddings_of(sources: Sequence[Source], padding: object) -> object:
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
    sources: Sequence[Source], window: object, channels: object, tile: int | None, *, stored: bool
) -> list[Along]:
    """Return the dimensions of the output.

    The dimensions are the same as in the first input, except for channels and scale. Without a `window`, windows have
    the size of a `tile` of the store, if it is known. If not, their size depends on whether they are `stored`.

    Raises
    ------
    ValidationError
        If windows do not begin and end with whole pixels, inputs have different extents, or an argument is invalid.
    """
    first = sources[0].tensor
    sizes = _window_sizes(sources, window, tile, stored=stored)
    numbers = {slide.d: j for j, slide in enumerate(sources[0].slides)}
    output, kept = [], []
    for d, extent in enumerate(first.shape):
        name = names_of(first)[d]
        if d in numbers:
            j = numbers[d]
            slides = tuple([source.slides[j] for source in sources])
            output.append(Along(_extent(sources, j), sizes[j], name, j, slides))
        else:
            kept.append(d)
            output.append(Along(extent, extent or 1, name))
    return output if channels is None else _with_channels(output, kept, channels)


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
            f"channels={extent} is ambiguous, because any of the dimensions {kept} of input 0 could be channels; leave "
            "channels out if fn returns all of these dimensions, or give channels=() if fn returns none"
        )
    if not kept:
        names = {along.name for along in output} - {None}
        return [Along(extent, extent, "c" if names and "c" not in names else None), *output]
    return [replace(along, extent=extent, size=extent) if along.number is None else along for along in output]


def _window_sizes(sources: Sequence[Source], window: object, tile: int | None, *, stored: bool) -> list[int]:
    """Return the window size along each slid dimension, in pixels of the output."""
    first = sources[0].slides
    # Units in pixels of the first input. A multiple is a whole number of pixels in all inputs and in the output.
    units = [
        math.lcm(*[(slide.scale / source.slides[j].scale).denominator for source in sources], slide.scale.denominator)
        for j, slide in enumerate(first)
    ]
    if window is None:
        wanted = [-(-tile // slide.scale) for slide in first] if tile else _default_sides(sources, stored=stored)
        sides = [
            -(-min(most, slide.extent or most) // unit) * unit
            for most, slide, unit in zip(wanted, first, units, strict=True)
        ]
    else:
        sides = of_dimensions("window", window, len(first), positive, "a positive int")
    for j, (side, unit) in enumerate(zip(sides, units, strict=True)):
        if side % unit:
            scales = ", ".join(str(source.slides[j].scale) for source in sources)
            raise ValidationError(
                f"window must be a whole number of pixels at scale {scales}, got {side}; give a multiple of {unit}, "
                f"such as {-(-side // unit) * unit}"
            )
    return [int(side * slide.scale) for side, slide in zip(sides, first, strict=True)]


def _default_sides(sources: Sequence[Source], *, stored: bool) -> list[int]:
    """Return the default size of a window, in pixels of the first input.

    The window may be larger than the input.
    """
    first = sources[0].slides
    at = min(len(first), len(_STORED)) - 1
    longest = math.inf if stored else _LONGEST[at]
    finer = [max(Fraction(1), slide.scale) for slide in first]
    # The limits hold for the input and for the output.
    sides = [-(-(_STORED if stored else _UNSTORED)[at] // scale) for scale in finer]
    least = [
        max(map(_least, slides)) / slides[0].scale
        for slides in zip(*[source.slides for source in sources], strict=True)
    ]
    kept = math.prod(sources[0].tensor.shape[d] or 1 for d in sources[0].kept)
    while True:
        longer = [
            n if n >= enough or n * scale >= longest else 2 * n
            for n, enough, scale in zip(sides, least, finer, strict=True)
        ]
        covered = [min(n, slide.extent or n) * scale for n, slide, scale in zip(longer, first, finer, strict=True)]
        if longer == sides or kept * math.prod(covered) > _MOST_PIXELS:
            return sides
        sides = longer


def _least(slide: Slide) -> Fraction:
    """Return the length of a window, in pixels of the output, with a small share of halo."""
    return 2 * slide.halo / (_WITH_HALO * max(Fraction(1), 1 / slide.scale) - 1 / slide.scale)


def _extent(sources: Sequence[Source], j: int) -> int | None:
    slides = [source.slides[j] for source in sources]
    covered = [None if slide.extent is None else math.ceil(slide.extent * slide.scale) for slide in slides]
    # The last pixel of a coarse input may reach beyond the end of a fine input.
    found = min((pixels for pixels in covered if pixels is not None), default=None)
    for at, (slide, pixels) in enumerate(zip(slides, covered, strict=True)):
        if found is not None and pixels not in (None, found) and slide.extent != math.ceil(found / slide.scale):
            name = sources[at].tensor.dims[slide.d]
            raise ValidationError(
                f"in dimension {name!r}, input {at} ({slide.extent} pixels, scale {slide.scale}) makes {pixels} pixels "
                f"of the output, but input {covered.index(found)} makes {found}; give scale=(...), the number of "
                "output pixels per pixel of each input"
            )
    return found
