"""The meaning of pixels: location on Earth, coordinates, attributes and codes.

The meaning is stored next to a definition. It is neither compared nor part of the definition's digest.
"""

from __future__ import annotations

import base64
import math
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import Shape, TensorWindow, followed
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.given import number, quoted
from infinite_tensor.values.definition import Definition, Json, json_value, names_of

MOST_COORDINATES = 2**22
"""Maximum number of values of a coordinate in memory. Longer coordinates are left out."""
_LONGEST = 2**18
"""Maximum number of characters of a stored coordinate, because opening a tensor reads the whole definition."""
_MOST_BYTES = 2**28
"""Maximum bytes of all coordinates read from a store, against decompression bombs."""
COLOURS = "colorinterp"
"""Name of the coordinate with the colour of each band, in the words of rasterio."""
_SAME_SIZE, _SAME_PLACE = 1e-6, 1e-3
"""Maximum rounding errors in the size and position of a pixel, as fractions of a pixel."""


class AxisScale(NamedTuple):
    """Scale and shift between the pixels of two tensors along one dimension, as part of a `Lens`.

    For a level coarser by a factor of 4, by the method "mean", the scale is 4 and the shift is 0. For the region
    ``t[100:200]``, the scale is 1 and the shift is 100.

    Attributes
    ----------
    d : int or None
        The number of this dimension in the other tensor. None if the dimension was dropped by an int, as in ``t[5]``.
    scale, shift : Fraction
        Pixel ``i`` of the other tensor covers ``scale`` pixels of this tensor, beginning at ``i * scale + shift``.
    """

    d: int | None
    scale: Fraction
    shift: Fraction


@dataclass(frozen=True)
class Lens:
    """Positions of the pixels of another tensor within this tensor.

    The other tensor is computed from this tensor, or is a region of this tensor. Facts about this tensor, such as
    coordinates, are translated to the other tensor with the lens.

    Attributes
    ----------
    seen : mapping of int to AxisScale
        The dimensions that appear in the other tensor.
    shape, dims
        The shape and dimension names of the other tensor.
    names : tuple of str
        The dimension names of this tensor.
    keeps_codes : bool
        Whether a pixel with the number 7, for example, means the same in both tensors. This is so if the other tensor
        is a region or a coarser level.
    is_alike : bool
        Whether both tensors may contain the same quantity, because their dimensions and dtype are the same.
    is_new : bool
        Whether the other tensor contains another quantity, because its pixels are computed from all entries of a
        dimension, such as labels from all bands. Facts about these entries and their numbers end here.
    """

    seen: Mapping[int, AxisScale]
    shape: Shape
    dims: tuple[str, ...]
    names: tuple[str, ...]
    keeps_codes: bool
    is_alike: bool
    is_new: bool = False

    @classmethod
    def of_windows(
        cls, output: Definition, arg: Definition, window: TensorWindow, *, keeps_codes: bool, picks_first: bool
    ) -> Lens:
        """Create the lens from an arg to a tensor computed from the arg.

        An output window and the arg window of the same index are assumed to have the same centre. The scale is the
        stride of the arg windows divided by the stride of the output windows. If an arg window covers a whole
        dimension of the arg, an output dimension of the same name and extent has the same pixels.

        Parameters
        ----------
        output, arg : Definition
            The computed tensor and the arg.
        window : TensorWindow
            The arg window.
        keeps_codes : bool
            See `Lens`.
        picks_first : bool
            True for coarsening by "nearest". Then each output pixel lies at the first pixel of its block of arg
            pixels. Otherwise, it lies at the centre of the block.
        """
        own, follows, its = output.output_window, followed(output.output_window), followed(window)
        dims, names = names_of(output.dims, len(output.shape)), names_of(arg.dims, len(arg.shape))
        seen: dict[int, AxisScale] = {}
        for e, k in enumerate(its):
            if k is not None and (follows.count(k), its.count(k)) == (1, 1):
                d = follows.index(k)
                scale, middle = Fraction(window.stride[e], own.stride[d]), own.offset[d] + Fraction(own.size[d], 2)
                shift = window.offset[e] + Fraction(window.size[e], 2) - middle * scale
                seen[e] = AxisScale(d, scale, shift - (scale - 1) / 2 if picks_first else shift)
        taken = {each.d for each in seen.values()}
        is_new = output.reduction is not None
        for e, k in enumerate(its):
            whole = k is None and (window.offset[e], window.size[e]) == (0, arg.shape[e])
            same = [d for d, name in enumerate(dims) if (name, output.shape[d]) == (names[e], arg.shape[e])]
            if whole and same and same[0] not in taken:
                seen[e] = AxisScale(same[0], Fraction(1), Fraction(0))
            is_new |= whole and e not in seen
        is_new = is_new and not keeps_codes
        alike = (dims, output.dtype, is_new) == (names, arg.dtype, False)
        return cls(seen, output.shape, dims, names, keeps_codes=keeps_codes, is_alike=alike, is_new=is_new)

    @classmethod
    def of_region(cls, names: Sequence[str], start: Sequence[int], shown: Mapping[int, tuple[str, int]]) -> Lens:
        """Create the lens from a tensor to a region of its pixels.

        `names` are the dimension names of the tensor. `start` is the first pixel of the region. `shown` maps each
        dimension of the tensor that is kept in the region to its name and extent there.
        """
        numbers = {d: number for number, d in enumerate(shown)}
        seen = {d: AxisScale(numbers.get(d), Fraction(1), Fraction(first)) for d, first in enumerate(start)}
        dims, shape = zip(*shown.values(), strict=True) if shown else ((), ())
        return cls(seen, shape, dims, tuple(names), keeps_codes=True, is_alike=True)


@dataclass(frozen=True)
class Fact(ABC):
    """A known property of the pixels in a tensor.

    Attributes
    ----------
    kind : str
        The kind of fact, in a store and in messages.
    called : str
        The name that distinguishes the fact from other facts of its kind.
    """

    kind: ClassVar[str]
    called: str

    @property
    def labels(self) -> list[str]:
        """The texts for the fact in messages, such as ``coordinate 'x'``."""
        return [f"{self.kind} {self.called!r}"]

    @abstractmethod
    def through(self, lens: Lens) -> Fact | None:
        """Return the same fact for the other tensor of a lens.

        For example, if the other tensor is a region of this tensor, its georeference has another origin. Return None
        if the fact cannot be derived for the other tensor.
        """

    def ends_at(self, lens: Lens) -> bool:
        """Whether the fact has nothing to say about the other tensor, so that it is not lost."""
        return lens.is_new

    def agrees_with(self, other: Any) -> bool:
        """Whether both facts are the same except for rounding."""
        # As JSON, because NaN differs from itself, and a tuple from the list read back from a store.
        return bool(self == other) or json_value("", self.fields()) == json_value("", other.fields())

    def joined(self, other: Any) -> Fact:  # noqa: ARG002  (for facts with several parts)
        """Return the fact, with the parts that only `other` has, a fact of the same kind and name.

        Return the fact itself if `other` has no such parts, or contradicts.
        """
        return self

    def fields(self) -> dict[str, Any] | None:
        """Return the fields as JSON.

        Return None if the fields are too long to be stored. `of_fields` reads them back.
        """
        return vars(self)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], shape: Shape) -> Self:  # noqa: ARG003  (some kinds need it)
        """Create a fact from the JSON of `fields`.

        `shape` is the shape of the tensor.
        """
        return cls(**fields)


@dataclass(frozen=True)
class Georeference(Fact):
    """The location of pixels on Earth.

    Attributes
    ----------
    rows, columns : int
        The dimensions of rows and columns.
    crs : str or None
        The coordinate reference system, as WKT.
    transform : list of 6 floats, or None
        The transform from (column, row) to coordinates, in the order of ``affine.Affine``.
    gcps : list of lists of 5 floats
        Ground control points: row, column, x, y, z.
    rpcs : dict or None
        Rational polynomial coefficients, with the fields of `rasterio.rpc.RPC`.
    is_point : bool
        Whether values belong to the centres of pixels, not to their areas: ``AREA_OR_POINT=Point`` of GDAL.
    """

    kind = "place"
    rows: int
    columns: int
    crs: str | None = None
    transform: Sequence[float] | None = None
    gcps: Sequence[Sequence[float]] = ()
    rpcs: Mapping[str, Any] | None = None
    is_point: bool = False

    @property
    def labels(self) -> list[str]:
        """The known parts: CRS, transform, GCPs or RPCs."""
        has = {"CRS": self.crs, "transform": self.transform, "GCPs": self.gcps, "RPCs": self.rpcs}
        return [label for label, value in has.items() if value]

    def through(self, lens: Lens) -> Georeference | None:
        """Return the georeference of the other tensor, such as a region or a coarser level."""
        rows, columns = lens.seen.get(self.rows), lens.seen.get(self.columns)
        if rows is None or columns is None or rows.d is None or columns.d is None:
            return None
        (across, x), (down, y) = ([float(each.scale), float(each.shift)] for each in (columns, rows))
        transform, rpcs = self.transform, self.rpcs
        if transform is not None:
            a, b, c, d, e, f = transform
            transform = [a * across, b * down, a * x + b * y + c, d * across, e * down, d * x + e * y + f]
        if rpcs is not None:
            # RPCs count pixels from the middle of the first one.
            moved = {"line": (y + down / 2 - 0.5, down), "samp": (x + across / 2 - 0.5, across)}
            rpcs = {**rpcs, **{f"{key}_off": (rpcs[f"{key}_off"] - at) / size for key, (at, size) in moved.items()}}
            rpcs |= {f"{key}_scale": rpcs[f"{key}_scale"] / size for key, (_, size) in moved.items()}
        gcps = [[(row - y) / down, (column - x) / across, u, v, w] for row, column, u, v, w in self.gcps]
        return Georeference(self.called, rows.d, columns.d, self.crs, transform, gcps, rpcs, self.is_point)

    def ends_at(self, lens: Lens) -> bool:  # noqa: ARG002
        """See `Fact.ends_at`. Pixels that are computed have a place, too."""
        return False

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], shape: Shape) -> Self:  # noqa: ARG003  (some kinds need it)
        """See `Fact.of_fields`."""
        transform, gcps, rpcs = (fields[name] for name in ("transform", "gcps", "rpcs"))
        if rpcs is not None:
            lists = {name: _numbers(rpcs[name], 20) for name in _RPC_LISTS}
            numbers = dict(zip(_RPC_NUMBERS, _numbers(map(rpcs.__getitem__, _RPC_NUMBERS), 10), strict=True))
            rpcs = {**numbers, **lists, **{name: rpcs.get(name) for name in ("err_bias", "err_rand")}}
        if transform is not None:
            transform = _numbers(transform, 6)
        points = [_numbers(each, 5) for each in gcps]
        return cls(**{**fields, "transform": transform, "gcps": points, "rpcs": rpcs})

    def joined(self, other: Any) -> Georeference:
        """See `Fact.joined`."""
        parts = ("crs", "transform", "gcps", "rpcs")
        mine, its = (
            replace(one, **{name: getattr(one, name) or getattr(two, name) for name in parts})
            for one, two in ((self, other), (other, self))
        )
        return mine if mine.agrees_with(its) else self

    def agrees_with(self, other: Any) -> bool:
        """Whether the pixels have the same locations, except for rounding."""
        mine, its = self.transform, other.transform
        rest = [json_value("", replace(each, crs=None, transform=None).fields()) for each in (self, other)]
        if rest[0] != rest[1] or not _same_crs(self.crs, other.crs) or (mine is None) != (its is None):
            return False
        if mine is None:
            return True
        a, b, c, d, e, f = (abs(p - q) for p, q in zip(mine, its, strict=True))
        # The size of a pixel, for example ten metres or a billionth of a degree.
        pixel = math.hypot(mine[0], mine[3])
        return bool(max(a, b, d, e) <= _SAME_SIZE * pixel and max(c, f) <= _SAME_PLACE * pixel)


_RPC_NUMBERS = [f"{each}_{what}" for each in ("height", "lat", "line", "long", "samp") for what in ("off", "scale")]
_RPC_LISTS = [f"{each}_{what}_coeff" for each in ("line", "samp") for what in ("num", "den")]


def _numbers(stored: Iterable[Any], count: int) -> list[float]:
    found = [float(each) for each in stored]
    if len(found) != count or not all(map(math.isfinite, found)):
        raise ValueError(f"{count} finite numbers expected, got {found}")
    return found


def _same_crs(one: str | None, other: str | None) -> bool:
    if one == other or not one or not other:
        return one == other
    mine, its = crs_of(one), crs_of(other)
    return mine is not None and bool(mine == its)


def crs_of(wkt: str) -> Any:
    """Convert WKT to a `rasterio.crs.CRS`.

    Return None if rasterio is not installed, or is too old for this WKT.
    """
    try:
        from rasterio.crs import CRS  # noqa: PLC0415  (an extra)

        return CRS.from_wkt(wkt)
    except (ImportError, ValueError):
        return None


@dataclass(frozen=True, eq=False)
class Coordinate(Fact):
    """A value for each pixel along some dimensions.

    Attributes
    ----------
    called : str
        The name. As in xarray, a coordinate ``x`` with the single dimension ``x`` labels the pixels along ``x``.
    dims : sequence of int
        The dimensions.
    values : numpy.ndarray
        Numbers, dates or texts.
    attrs : dict
        Attributes, such as units.
    """

    kind = "coordinate"
    dims: Sequence[int]
    values: npt.NDArray[Any]
    attrs: Mapping[str, Any]

    def through(self, lens: Lens) -> Coordinate | None:
        """Return the coordinate of the other tensor.

        Values are interpolated where needed. Return None if a dimension is missing or unbounded there, or if
        interpolation is impossible.
        """
        dims: list[int] = []
        values = self.values
        for d in self.dims:
            seen = lens.seen.get(d)
            count = None if seen is None else 1 if seen.d is None else lens.shape[seen.d]
            found = None if seen is None or count is None else _along(values, len(dims), seen, count)
            if seen is None or found is None:
                return None
            values = found
            if seen.d is None:
                values = values.take(0, len(dims))
            else:
                dims.append(seen.d)
        own = [lens.names[d] for d in self.dims] == [self.called] and bool(dims)
        return Coordinate(lens.dims[dims[0]] if own else self.called, dims, values, self.attrs)

    def ends_at(self, lens: Lens) -> bool:
        """See `Fact.ends_at`. Coordinates of dimensions that are still there do not end."""
        return lens.is_new and not all(d in lens.seen for d in self.dims)

    @property
    def even_step(self) -> float:
        """The step between evenly spaced numbers.

        For any other values, the step is 0.
        """
        if self.values.dtype.kind not in "iuf" or len(self.values) < 2:
            return 0.0
        numbers = self.values.astype(np.float64)
        step = float(numbers[-1] - numbers[0]) / (len(numbers) - 1)
        apart = np.abs(numbers - (numbers[0] + step * np.arange(len(numbers)))).max()
        return step if apart <= _SAME_PLACE * abs(step) else 0.0

    def agrees_with(self, other: Any) -> bool:
        """Whether the values are the same, except for rounding.

        Floats may differ by a small fraction of their smallest step.
        """
        a, b = self.values, other.values
        if [*self.dims] != [*other.dims] or a.shape != b.shape or a.dtype.kind != b.dtype.kind:
            return False
        if a.dtype.kind != "f" or a.ndim != 1 or len(a) < 2:
            return bool(np.array_equal(a, b))
        return bool(np.allclose(a, b, rtol=0, atol=_SAME_PLACE * float(np.abs(np.diff(a)).min())))

    def fields(self) -> dict[str, Any] | None:
        """See `Fact.fields`.

        Numbers are encoded so that evenly spaced numbers compress well.
        """
        little = self.values.dtype.newbyteorder("<")
        stored: Any = self.values.reshape(-1).tolist()
        if little.kind != "U":
            bits = self.values.reshape(-1).astype(little).view(f"<i{little.itemsize}")
            zero = bits.dtype.type(0)
            differences = np.diff(np.diff(bits, prepend=zero), prepend=zero)
            stored = base64.b64encode(zlib.compress(differences.tobytes(), 9)).decode()
        fits = sum(map(len, stored)) <= _LONGEST
        return {**vars(self), "values": stored, "dtype": little.str} if fits else None

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], shape: Shape) -> Self:
        """See `Fact.of_fields`."""
        extents, stored, dtype = [shape[d] for d in fields["dims"]], fields["values"], np.dtype(fields["dtype"])
        count = math.prod([MOST_COORDINATES + 1 if n is None else n for n in extents])
        if count > MOST_COORDINATES or count * dtype.itemsize > _MOST_BYTES or not _DTYPES.fullmatch(fields["dtype"]):
            raise ValueError(f"{count} coordinates of {dtype}")
        if dtype.kind == "U":
            values = np.array([str(each) for each in stored], dtype)
        else:
            unpacked = zlib.decompressobj().decompress(base64.b64decode(stored), count * dtype.itemsize)
            differences = np.frombuffer(unpacked, f"<i{dtype.itemsize}")
            bits = differences.cumsum(dtype=differences.dtype).cumsum(dtype=differences.dtype)
            values = bits.view(dtype).astype(dtype.newbyteorder("="), copy=False)
        return cls(fields["called"], fields["dims"], values.reshape(extents), {**fields["attrs"]})


_DTYPES = re.compile(r"[<|][biuf][1248]|<[mM]8\[(s|ms|us|ns)\]|<U[0-9]+")
"""Dtypes of stored coordinates, in numpy's notation."""


def _along(values: npt.NDArray[Any], axis: int, seen: AxisScale, count: int) -> npt.NDArray[Any] | None:
    n, first = values.shape[axis], seen.shift + (seen.scale - 1) / 2
    if seen.scale == first.denominator == 1 and 0 <= first <= n - count:
        return values[(slice(None),) * axis + (slice(int(first), int(first) + count),)]
    at = float(first) + float(seen.scale) * np.arange(min(count, MOST_COORDINATES))
    reach = (1 + float(seen.scale)) / 2
    if values.ndim != 1 or n < 2 or values.dtype.kind not in "iufM" or count > MOST_COORDINATES:
        return None
    # Numbers become floats, because unsigned integers cannot represent negative steps.
    known = values.astype(np.float64) if values.dtype.kind in "iuf" else values
    steps = np.diff(known)
    if at[0] <= -reach or at[-1] >= n - 1 + reach or len({*np.sign(steps.astype(np.float64)).tolist()}) > 1:
        return None
    low = np.floor(at).clip(0, n - 2).astype(np.int64)
    between: npt.NDArray[Any] = known[low] + steps[low] * (at - low)
    return between.astype(values.dtype) if values.dtype.kind == "f" else between


@dataclass(frozen=True)
class Attribute(Fact):
    """An attribute of the quantity in the pixels, such as units.

    A tensor computed from this tensor gets the same attribute if both have the same dimensions and dtype, as in xarray.
    """

    kind = "attribute"
    value: Any

    def through(self, lens: Lens) -> Attribute | None:
        """Return the attribute unchanged.

        Return None if the tensors are not alike; see `Lens.is_alike`.
        """
        return self if lens.is_alike else None


@dataclass(frozen=True)
class Tag(Attribute):
    """An attribute of the file that the pixels are from, such as its sensor.

    A tensor computed from this tensor gets the same tag, unless it contains another quantity.
    """

    kind = "tag"

    def through(self, lens: Lens) -> Tag | None:
        """Return the tag unchanged, or None; see `Lens.is_new`."""
        return None if lens.is_new else self


@dataclass(frozen=True)
class PixelCode(Fact):
    """Meaning of the numbers in pixels: nodata, scale, offset, colour map or mask.

    A code does not apply to pixels computed from these pixels, except by coarsening.

    Attributes
    ----------
    called : str
        "nodata", "scale", "offset", "colour map" or "mask".
    value : JSON value, or number
        One value for all pixels, or a list.
    along : int or None
        The dimension along which the entries of the list apply.
    """

    kind = "code"
    value: Any
    along: int | None = None

    @property
    def labels(self) -> list[str]:
        """A single label, such as ``nodata``."""
        return [self.called]

    def through(self, lens: Lens) -> PixelCode | None:
        """Return the code for the other tensor of a lens.

        For example, a tensor has a nodata value per band, and the other tensor is a region of two bands. Then the
        result has the two values, or a single value if they are equal. Return None if `Lens.keeps_codes` is False.
        """
        if not lens.keeps_codes or self.along is None:
            return self if lens.keeps_codes else None
        seen = lens.seen[self.along]
        first, count = int(seen.shift), 1 if seen.d is None else lens.shape[seen.d]
        values = self.value[first : first + (count or 1)]
        # A set would not work, because NaN differs from itself.
        one = seen.d is None or all(each == values[0] or repr(each) == repr(values[0]) for each in values)
        return PixelCode(self.called, values[0]) if one else PixelCode(self.called, values, seen.d)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], shape: Shape) -> Self:
        """See `Fact.of_fields`."""
        stored, along = fields["value"], fields["along"]
        value = [_number(each) for each in stored] if isinstance(stored, list) else _number(stored)
        if along is not None and len(value) != shape[along]:
            raise ValueError(f"{len(value)} values of {fields['called']}")
        if fields["called"] in ("nodata", "scale", "offset"):
            # Raises an error for anything but numbers.
            [float(each) for each in (value if isinstance(value, list) else [value])]
        return cls(fields["called"], value, along)


@dataclass(frozen=True)
class UnreadFact(Fact):
    """A stored fact that cannot be read, for example because a newer version wrote it.

    It stays in the store, and applies to no other tensor.

    Attributes
    ----------
    stored : dict
        The JSON in the store.
    """

    kind = "unread"
    stored: Mapping[str, Any]

    @property
    def labels(self) -> list[str]:
        """The kind and name in the store."""
        return [self.called]

    def through(self, lens: Lens) -> None:
        """Return None."""

    def fields(self) -> dict[str, Any]:
        """Return the JSON in the store."""
        return {**self.stored}


def _number(said: Any) -> Any:
    return float(said) if said in ("NaN", "Infinity", "-Infinity") else said


_PLACES = re.compile("CRS|transform|GCPs|RPCs|place|coordinate")
"""How the labels of facts about places begin."""

F = TypeVar("F", bound=Fact)

_KINDS: Mapping[str, type[Fact]] = {each.kind: each for each in (Georeference, Coordinate, Attribute, Tag, PixelCode)}


class Meaning:
    """Facts about the pixels of a tensor.

    Attributes
    ----------
    facts : tuple of Fact
        The facts.
    lost : tuple of str
        The labels of facts left out of `facts`, because they do not apply to this tensor, are too long to be stored, or
        cannot be read from the store.
    """

    def __init__(self, facts: Iterable[Fact] = (), lost: Iterable[str] = ()) -> None:
        self._facts, self.lost = tuple(facts), tuple(dict.fromkeys(lost))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The facts."""
        return self._facts

    def of(self, kind: type[F]) -> list[F]:
        """Return all facts of a class: ``of(Coordinate)`` returns the coordinates."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def by_name(self) -> dict[tuple[str, str], Fact]:
        """The facts by kind and name."""
        return {(fact.kind, fact.called): fact for fact in self.facts}

    @property
    def labels(self) -> list[str]:
        """The labels of all facts, including lost facts."""
        return [*self.lost, *[label for fact in self.facts for label in fact.labels]]

    def through(self, lens: Lens) -> Meaning:
        """Return the facts for the other tensor of a lens.

        If a fact cannot be derived for the other tensor, its labels are added to `lost`.
        """
        found = [(fact, fact.through(lens)) for fact in self.facts if not fact.ends_at(lens)]
        # Another quantity does not lack what earlier steps lost, except for its place.
        before = [label for label in self.lost if not lens.is_new or _PLACES.match(label)]
        lost = [label for fact, seen in found if seen is None for label in fact.labels]
        return Meaning([seen for _, seen in found if seen is not None], [*before, *lost])

    def joined(self, other: Meaning) -> Meaning:
        """Return the meaning with the facts that only `other` has, or the same object if there are none."""
        mine, its = self.by_name, other.by_name
        facts = [fact.joined(its.get((fact.kind, fact.called), fact)) for fact in self.facts]
        facts += [fact for name, fact in its.items() if name not in mine]
        held = {label for fact in facts for label in fact.labels}
        found = Meaning(facts, [label for label in [*self.lost, *other.lost] if label not in held])
        return self if (found.facts, found.lost) == (self.facts, self.lost) else found

    def contradictions(self, other: Meaning) -> list[str]:
        """Return the labels of the facts on which the two disagree."""
        its = other.by_name
        pairs = [(fact, its[name]) for name, fact in self.by_name.items() if name in its]
        unlike = [fact for fact, its in pairs if not fact.joined(its).agrees_with(its.joined(fact))]
        return [label for fact in unlike for label in fact.labels]

    def to_json(self) -> Json:
        """Return the meaning as JSON.

        `StoredMeaning` reads it back.
        """
        found = [(fact, fact.fields()) for fact in self.facts]
        lost = [*self.lost, *[label for fact, fields in found if fields is None for label in fact.labels]]
        facts = [{"kind": fact.kind, **fields} for fact, fields in found if fields is not None]
        return json_value("meaning", {"facts": facts, "lost": lost})


class StoredMeaning(Meaning):
    """A meaning from a store, parsed on first use.

    Parameters
    ----------
    stored : object
        The JSON from `Meaning.to_json`.
    shape : tuple of int or None
        The shape of the tensor.

    Raises
    ------
    ValidationError
        If `stored` does not have this form.
    """

    def __init__(self, stored: Any, shape: Shape) -> None:
        facts, lost = (stored.get(name) if isinstance(stored, dict) else None for name in ("facts", "lost"))
        if not (isinstance(facts, list) and isinstance(lost, list) and all(isinstance(each, dict) for each in facts)):
            raise ValidationError(f"meaning must have a list of facts and a list of lost facts, got {quoted(stored)}")
        super().__init__((), map(str, lost))
        self._stored, self._shape = stored, shape

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """The facts, parsed on first use."""
        facts: list[Fact] = []
        room = _MOST_BYTES
        for each in self._stored["facts"]:
            fact = _fact_of(each, self._shape) if room > 0 else None
            label = f"{each.get('kind')!s:.80} {each.get('called')!r:.80}"
            facts.append(UnreadFact(label, each) if fact is None else fact)
            room -= fact.values.nbytes if isinstance(fact, Coordinate) else 0
        return tuple(facts)

    def to_json(self) -> Json:
        """See `Meaning.to_json`."""
        return self._stored  # type: ignore[no-any-return]


def joined_meaning(one: Meaning | None, other: Meaning | None) -> Meaning | None:
    """Return the first meaning with the facts that only the other has.

    Return the same object if there are none.
    """
    return one or other if one is None or other is None or _same(one, other) else one.joined(other)


def contradictions(one: Meaning | None, other: Meaning | None) -> list[str]:
    """Return the labels of the facts on which two meanings of one tensor disagree."""
    return [] if one is None or other is None or _same(one, other) else one.contradictions(other)


def _same(one: Meaning, other: Meaning) -> bool:
    # Without parsing, because tensors are often opened and facts seldom needed.
    stored = isinstance(one, StoredMeaning) and isinstance(other, StoredMeaning)
    return one is other or (stored and one.to_json() == other.to_json())


def nodata_in(value: Any, dtype: torch.dtype) -> float | None:
    """Convert a nodata value to a dtype.

    If the dtype is floating, the value is rounded. Return None if no pixel of this dtype can have the value. Metadata
    may give the value as text, or in a list with one entry.
    """
    if dtype is torch.bool or dtype.is_complex:
        return None
    try:
        (said,) = np.ravel(value).tolist()
        number = float(said) if isinstance(said, str) else said
        held: float = torch.tensor(number if dtype.is_floating_point else int(number), dtype=dtype, device="cpu").item()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return held if dtype.is_floating_point or held == number else None


def checked_nodata(given: object, dtype: torch.dtype) -> complex:
    """Return the nodata value that a user gives for pixels of a dtype. Raise ValidationError if they cannot have it."""
    value = number(given)
    if value is None or nodata_in(value, dtype) is None:
        raise ValidationError(f"nodata must be a number that {dtype} can hold, got {quoted(given)}")
    return value


def nodata_of(definition: Definition) -> PixelCode | None:
    """Return the nodata values of a tensor, converted by `nodata_in`.

    Return None if there are none.
    """
    codes = [] if definition.meaning is None else definition.meaning.of(PixelCode)
    code = next((each for each in codes if each.called == "nodata"), None)
    if code is None:
        return None
    entries = [code.value] if code.along is None else code.value
    values = tuple([nodata_in(each, definition.dtype) for each in entries])
    return (
        None if {*values} == {None} else PixelCode(code.called, values[0] if code.along is None else values, code.along)
    )


def _fact_of(stored: Mapping[str, Any], shape: Shape) -> Fact | None:
    try:
        fields = {**stored}
        kind = _KINDS[fields.pop("kind")]
        fact = kind.of_fields({**fields, "called": str(fields["called"])}, shape)
        # Looking at the first pixel finds errors inside the fact.
        fact.through(Lens.of_region([""] * len(shape), [0] * len(shape), dict.fromkeys(range(len(shape)), ("", 1))))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, zlib.error):
        return None
    return fact


def derived(
    definition: Definition, args: Iterable[Definition], *, keeps_codes: bool = False, picks_first: bool = False
) -> tuple[Meaning | None, list[str]]:
    """Derive the meaning of a tensor from the meanings of the args.

    Return the meaning, and the labels of facts on which the args disagree. The meaning is None if no arg has a meaning.
    """
    lens = partial(Lens.of_windows, definition, keeps_codes=keeps_codes, picks_first=picks_first)
    found = [
        arg.meaning.through(lens(arg, read.window))
        for arg, read in zip(args, definition.args, strict=False)
        if arg.meaning is not None
    ]
    agreed: dict[tuple[str, str], Fact] = {}
    conflicts: dict[tuple[str, str], Fact] = {}
    for fact in (fact for each in found for fact in each.facts):
        key = fact.kind, fact.called
        known = agreed.setdefault(key, fact)
        if known is not fact and not known.agrees_with(fact):
            conflicts[key] = fact
    kept = [fact for key, fact in agreed.items() if key not in conflicts]
    held = {label for fact in kept for label in fact.labels}
    lost = [label for each in found for label in each.lost if label not in held]
    labels = dict.fromkeys([label for fact in conflicts.values() for label in fact.labels])
    return Meaning(kept, lost) if found else None, [*labels]
