"""What pixels mean beside their values: where they lie, and what their source says of them.

It is kept beside a definition: neither compared, nor part of its digest.
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
from infinite_tensor.support.given import quoted
from infinite_tensor.values.definition import Definition, Json, json_value, names_of

MOST_COORDINATES = 2**22
"""Of a coordinate, which is in memory whole; longer ones are left out."""
_LONGEST = 2**18
"""Letters of a coordinate in a store, where all of a definition is read when a tensor is opened."""
_MOST_BYTES = 2**28
"""Of all coordinates that a store says, which may be made to swell."""
_SAME_SIZE, _SAME_PLACE = 1e-6, 1e-3
"""By no more does rounding change the size of a pixel, and where one lies, in pixels."""


class Seen(NamedTuple):
    """Where one dimension is seen in another tensor.

    Attributes
    ----------
    d : int or None
        Along which dimension there; None where one pixel of it is picked.
    scale, shift : Fraction
        Pixel ``i`` there covers ``scale`` pixels here, from ``i * scale + shift`` on.
    """

    d: int | None
    scale: Fraction
    shift: Fraction


@dataclass(frozen=True)
class Lens:
    """How one tensor is seen in another one, which is computed from it or a region of it.

    Attributes
    ----------
    seen : mapping of int to Seen
        The dimensions that are.
    shape, dims
        Of the other one.
    names : tuple of str
        Those of the dimensions here.
    keeps_codes : bool
        Whether numbers stand there for what they stand for here: these are the very pixels, or coarser ones.
    is_alike : bool
        Whether they may be of the same quantity: the dimensions and the dtype are.
    """

    seen: Mapping[int, Seen]
    shape: Shape
    dims: tuple[str, ...]
    names: tuple[str, ...]
    keeps_codes: bool
    is_alike: bool

    @classmethod
    def of_windows(
        cls, output: Definition, arg: Definition, window: TensorWindow, *, keeps_codes: bool, picks_first: bool
    ) -> Lens:
        """That through which an arg is read.

        The middle of a window lies over the middle of what it reads, at a scale that follows from the strides. What is
        read whole is the dimension of the same name and extent, if there is one. Where of the pixels that one stands
        for the first is picked, the middle of it is the middle of that.
        """
        own, follows, its = output.output_window, followed(output.output_window), followed(window)
        dims, names = names_of(output.dims, len(output.shape)), names_of(arg.dims, len(arg.shape))
        seen: dict[int, Seen] = {}
        for e, k in enumerate(its):
            if k is not None and (follows.count(k), its.count(k)) == (1, 1):
                d = follows.index(k)
                scale, middle = Fraction(window.stride[e], own.stride[d]), own.offset[d] + Fraction(own.size[d], 2)
                shift = window.offset[e] + Fraction(window.size[e], 2) - middle * scale
                seen[e] = Seen(d, scale, shift - (scale - 1) / 2 if picks_first else shift)
        taken = {each.d for each in seen.values()}
        for e, k in enumerate(its):
            whole = k is None and (window.offset[e], window.size[e]) == (0, arg.shape[e])
            same = [d for d, name in enumerate(dims) if (name, output.shape[d]) == (names[e], arg.shape[e])]
            if whole and same and same[0] not in taken:
                seen[e] = Seen(same[0], Fraction(1), Fraction(0))
        alike = (dims, output.dtype, output.reduction) == (names, arg.dtype, None)
        return cls(seen, output.shape, dims, names, keeps_codes=keeps_codes, is_alike=alike)

    @classmethod
    def of_region(cls, names: Sequence[str], start: Sequence[int], shown: Mapping[int, tuple[str, int]]) -> Lens:
        """That of a box of pixels; `shown` has names and extents of dimensions, the others have one pixel."""
        numbers = {d: number for number, d in enumerate(shown)}
        seen = {d: Seen(numbers.get(d), Fraction(1), Fraction(first)) for d, first in enumerate(start)}
        dims, shape = zip(*shown.values(), strict=True) if shown else ((), ())
        return cls(seen, shape, dims, tuple(names), keeps_codes=True, is_alike=True)


@dataclass(frozen=True)
class Fact(ABC):
    """Something that is known of pixels.

    Attributes
    ----------
    kind : str
        What kind of fact it is, in a store and in messages.
    called : str
        What tells it from others of its kind.
    """

    kind: ClassVar[str]
    called: str

    @property
    def labels(self) -> list[str]:
        """What messages call it."""
        return [f"{self.kind} {self.called!r}"]

    @abstractmethod
    def through(self, lens: Lens) -> Fact | None:
        """The same of what is seen there; None where that cannot be told, or is something else."""

    def agrees_with(self, other: Any) -> bool:
        """Whether both say the same, but for rounding."""
        return bool(self == other)

    def fields(self) -> dict[str, Any] | None:
        """What `of_fields` makes it of, for JSON; None where that is too long to be stored."""
        return vars(self)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], shape: Shape) -> Self:  # noqa: ARG003  (some kinds need it)
        """That of a tensor of this shape."""
        return cls(**fields)


@dataclass(frozen=True)
class Georeference(Fact):
    """Where on Earth pixels are.

    Attributes
    ----------
    rows, columns : int
        The dimensions.
    crs : str or None
        The coordinate reference system, as WKT.
    transform : list of 6 floats, or None
        From (column, row) to coordinates of it, as ``affine.Affine`` has them.
    gcps : list of lists of 5 floats
        Ground control points: row, column, x, y, z.
    rpcs : dict or None
        Rational polynomials, as `rasterio.rpc.RPC` has them.
    """

    kind = "place"
    rows: int
    columns: int
    crs: str | None = None
    transform: Sequence[float] | None = None
    gcps: Sequence[Sequence[float]] = ()
    rpcs: Mapping[str, Any] | None = None

    @property
    def labels(self) -> list[str]:
        """What of these there is."""
        has = {"CRS": self.crs, "transform": self.transform, "GCPs": self.gcps, "RPCs": self.rpcs}
        return [label for label, value in has.items() if value]

    def through(self, lens: Lens) -> Georeference | None:
        """Of pixels of another size, that begin elsewhere."""
        rows, columns = lens.seen.get(self.rows), lens.seen.get(self.columns)
        if rows is None or columns is None or rows.d is None or columns.d is None:
            return None
        (across, x), (down, y) = ([float(each.scale), float(each.shift)] for each in (columns, rows))
        transform, rpcs = self.transform, self.rpcs
        if transform is not None:
            a, b, c, d, e, f = transform
            transform = [a * across, b * down, a * x + b * y + c, d * across, e * down, d * x + e * y + f]
        if rpcs is not None:
            # They count from the middle of the first pixel.
            moved = {"line": (y + down / 2 - 0.5, down), "samp": (x + across / 2 - 0.5, across)}
            rpcs = {**rpcs, **{f"{key}_off": (rpcs[f"{key}_off"] - at) / size for key, (at, size) in moved.items()}}
            rpcs |= {f"{key}_scale": rpcs[f"{key}_scale"] / size for key, (_, size) in moved.items()}
        gcps = [[(row - y) / down, (column - x) / across, u, v, w] for row, column, u, v, w in self.gcps]
        return Georeference(self.called, rows.d, columns.d, self.crs, transform, gcps, rpcs)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], shape: Shape) -> Self:  # noqa: ARG003  (some kinds need it)
        """See `Fact`."""
        transform, gcps, rpcs = (fields[name] for name in ("transform", "gcps", "rpcs"))
        if rpcs is not None:
            lists = {name: _numbers(rpcs[name], 20) for name in _RPC_LISTS}
            numbers = dict(zip(_RPC_NUMBERS, _numbers(map(rpcs.__getitem__, _RPC_NUMBERS), 10), strict=True))
            rpcs = {**numbers, **lists, **{name: rpcs.get(name) for name in ("err_bias", "err_rand")}}
        if transform is not None:
            transform = _numbers(transform, 6)
        points = [_numbers(each, 5) for each in gcps]
        return cls(**{**fields, "transform": transform, "gcps": points, "rpcs": rpcs})

    def agrees_with(self, other: Any) -> bool:
        """Whether pixels lie at the same places."""
        mine, its = self.transform, other.transform
        rest = (replace(each, crs=None, transform=None) for each in (self, other))
        if len({*map(repr, rest)}) > 1 or not _same_crs(self.crs, other.crs) or (mine is None) != (its is None):
            return False
        if mine is None:
            return True
        a, b, c, d, e, f = (abs(p - q) for p, q in zip(mine, its, strict=True))
        # Ten metres, say, or a billionth of a degree.
        pixel = math.hypot(mine[0], mine[3])
        return bool(max(a, b, d, e) <= _SAME_SIZE * pixel and max(c, f) <= _SAME_PLACE * pixel)


_RPC_NUMBERS = [f"{each}_{what}" for each in ("height", "lat", "line", "long", "samp") for what in ("off", "scale")]
_RPC_LISTS = [f"{each}_{what}_coeff" for each in ("line", "samp") for what in ("num", "den")]


def _numbers(stored: Iterable[Any], count: int) -> list[float]:
    """So many finite numbers; ValueError or TypeError for all else."""
    found = [float(each) for each in stored]
    if len(found) != count or not all(map(math.isfinite, found)):
        raise ValueError(f"{count} numbers, got {found}")
    return found


def _same_crs(one: str | None, other: str | None) -> bool:
    if one == other or not one or not other:
        return one == other
    mine, its = crs_of(one), crs_of(other)
    return mine is not None and bool(mine == its)


def crs_of(wkt: str) -> Any:
    """A `rasterio.crs.CRS`; None where rasterio is not there, or does not know what a newer one has written."""
    try:
        from rasterio.crs import CRS  # noqa: PLC0415  (of an extra)

        return CRS.from_wkt(wkt)
    except (ImportError, ValueError):
        return None


@dataclass(frozen=True, eq=False)
class Coordinate(Fact):
    """A value for each pixel along some dimensions.

    Attributes
    ----------
    called : str
        Its name; one that is called as its only dimension is what that is indexed by.
    dims : sequence of int
        The dimensions.
    values : numpy.ndarray
        Numbers, dates or texts.
    attrs : dict
        What is said of it: units, say.
    """

    kind = "coordinate"
    dims: Sequence[int]
    values: npt.NDArray[Any]
    attrs: Mapping[str, Any]

    def through(self, lens: Lens) -> Coordinate | None:
        """Those of the middles of pixels; the very values where the pixels are the same."""
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

    @property
    def even_step(self) -> float:
        """From one number along a dimension to the next; 0 where values are none, or lie in no even steps."""
        if self.values.dtype.kind not in "iuf" or len(self.values) < 2:
            return 0.0
        numbers = self.values.astype(np.float64)
        step = float(numbers[-1] - numbers[0]) / (len(numbers) - 1)
        apart = np.abs(numbers - (numbers[0] + step * np.arange(len(numbers)))).max()
        return step if apart <= _SAME_PLACE * abs(step) else 0.0

    def agrees_with(self, other: Any) -> bool:
        """Whether values are the same, or numbers differ by a small part of their steps."""
        a, b = self.values, other.values
        if [*self.dims] != [*other.dims] or a.shape != b.shape or a.dtype.kind != b.dtype.kind:
            return False
        if a.dtype.kind != "f" or a.ndim != 1 or len(a) < 2:
            return bool(np.array_equal(a, b))
        return bool(np.allclose(a, b, rtol=0, atol=_SAME_PLACE * float(np.abs(np.diff(a)).min())))

    def fields(self) -> dict[str, Any] | None:
        """See `Fact`. Of numbers, second differences of their bits are compressed: those of even steps are few."""
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
        """See `Fact`."""
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
"""Those of coordinates, as numpy writes them."""


def _along(values: npt.NDArray[Any], axis: int, seen: Seen, count: int) -> npt.NDArray[Any] | None:
    """Values at the middles of so many pixels; None where no pixels lie there, or there is nothing between values."""
    n, first = values.shape[axis], seen.shift + (seen.scale - 1) / 2
    if seen.scale == first.denominator == 1 and 0 <= first <= n - count:
        return values[(slice(None),) * axis + (slice(int(first), int(first) + count),)]
    at = float(first) + float(seen.scale) * np.arange(min(count, MOST_COORDINATES))
    reach = (1 + float(seen.scale)) / 2
    if values.ndim != 1 or n < 2 or values.dtype.kind not in "iufM" or count > MOST_COORDINATES:
        return None
    # As floats where they are not dates: numbers without a sign have no steps down.
    known = values.astype(np.float64) if values.dtype.kind in "iuf" else values
    steps = np.diff(known)
    if at[0] <= -reach or at[-1] >= n - 1 + reach or len({*np.sign(steps.astype(np.float64)).tolist()}) > 1:
        return None
    low = np.floor(at).clip(0, n - 2).astype(np.int64)
    between: npt.NDArray[Any] = known[low] + steps[low] * (at - low)
    return between.astype(values.dtype) if values.dtype.kind == "f" else between


@dataclass(frozen=True)
class Attribute(Fact):
    """What is said of the quantity that pixels are: its units, or where it was measured.

    It is taken for that of what is computed of them too, in the same dimensions and dtype, as xarray does.
    """

    kind = "attribute"
    value: Any

    def through(self, lens: Lens) -> Attribute | None:
        """See `Lens.is_alike`."""
        return self if lens.is_alike else None


@dataclass(frozen=True)
class Code(Fact):
    """What numbers stand for: "nodata", "scale", "offset", "colour map", "mask". What is computed of them has others.

    Attributes
    ----------
    called : str
        What it is.
    value : JSON value, or number
        The same for all pixels, or a list.
    along : int or None
        Along which dimension the entries of the list are.
    """

    kind = "code"
    value: Any
    along: int | None = None

    @property
    def labels(self) -> list[str]:
        """What it is."""
        return [self.called]

    def through(self, lens: Lens) -> Code | None:
        """Of a region; where that has one number, that."""
        if not lens.keeps_codes or self.along is None:
            return self if lens.keeps_codes else None
        seen = lens.seen[self.along]
        first, count = int(seen.shift), 1 if seen.d is None else lens.shape[seen.d]
        values = self.value[first : first + (count or 1)]
        # Not by a set: NaN differs from itself.
        one = seen.d is None or all(each == values[0] or repr(each) == repr(values[0]) for each in values)
        return Code(self.called, values[0]) if one else Code(self.called, values, seen.d)

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any], shape: Shape) -> Self:
        """See `Fact`."""
        stored, along = fields["value"], fields["along"]
        value = [_number(each) for each in stored] if isinstance(stored, list) else _number(stored)
        if along is not None and len(value) != shape[along]:
            raise ValueError(f"{len(value)} values of {fields['called']}")
        if fields["called"] in ("nodata", "scale", "offset"):
            # They are numbers.
            [float(each) for each in (value if isinstance(value, list) else [value])]
        return cls(fields["called"], value, along)


def _number(said: Any) -> Any:
    """What JSON says, where that has a word for a number that it does not have."""
    return float(said) if said in ("NaN", "Infinity", "-Infinity") else said


F = TypeVar("F", bound=Fact)

_KINDS: Mapping[str, type[Fact]] = {each.kind: each for each in (Georeference, Coordinate, Attribute, Code)}


@dataclass(frozen=True)
class Meaning:
    """What is known of the pixels of a tensor.

    Attributes
    ----------
    facts : tuple of Fact
        What holds.
    lost : tuple of str
        What was known of what it is computed from, and does not hold of it, as messages call it.
    """

    facts: tuple[Fact, ...] = ()
    lost: tuple[str, ...] = ()

    def of(self, kind: type[F]) -> list[F]:
        """The facts of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def labels(self) -> list[str]:
        """All that holds or does not, as messages call it."""
        return [*self.lost, *[label for fact in self.facts for label in fact.labels]]

    def through(self, lens: Lens) -> Meaning:
        """What is known of what is seen there."""
        found = [(fact, fact.through(lens)) for fact in self.facts]
        lost = [label for fact, seen in found if seen is None for label in fact.labels]
        return Meaning(
            tuple([seen for _, seen in found if seen is not None]), tuple(dict.fromkeys([*self.lost, *lost]))
        )

    def to_json(self) -> Json:
        """As JSON; `StoredMeaning` reads it back."""
        found = [(fact, fact.fields()) for fact in self.facts]
        lost = [*self.lost, *[label for fact, fields in found if fields is None for label in fact.labels]]
        facts = [{"kind": fact.kind, **fields} for fact, fields in found if fields is not None]
        return json_value("meaning", {"facts": facts, "lost": lost})


class StoredMeaning:
    """What `Meaning.to_json` returned, which is looked at when somebody asks for it.

    What of it cannot be read is lost: a newer version may have written it, or somebody else.

    Parameters
    ----------
    stored : object
        As JSON.
    shape : tuple of int or None
        That of the tensor.

    Raises
    ------
    ValidationError
        If it is no such JSON.
    """

    def __init__(self, stored: Any, shape: Shape) -> None:
        facts, lost = (stored.get(name) if isinstance(stored, dict) else None for name in ("facts", "lost"))
        if not (isinstance(facts, list) and isinstance(lost, list) and all(isinstance(each, dict) for each in facts)):
            raise ValidationError(f"meaning must have lists of facts and of what is lost, got {quoted(stored)}")
        self._stored, self._shape = stored, shape

    @cached_property
    def _read(self) -> Meaning:
        facts, lost, room = [], [*map(str, self._stored["lost"])], _MOST_BYTES
        for each in self._stored["facts"]:
            fact = _fact_of(each, self._shape) if room > 0 else None
            if fact is None:
                lost.append(f"{each.get('kind')!s:.80} {each.get('called')!r:.80}")
            else:
                facts.append(fact)
                room -= fact.values.nbytes if isinstance(fact, Coordinate) else 0
        return Meaning(tuple(facts), tuple(lost))

    def of(self, kind: type[F]) -> list[F]:
        """See `Meaning.of`."""
        return self._read.of(kind)

    def through(self, lens: Lens) -> Meaning:
        """See `Meaning.through`."""
        return self._read.through(lens)

    def to_json(self) -> Json:
        """See `Meaning.to_json`."""
        return self._stored  # type: ignore[no-any-return]


def nodata_in(value: Any, dtype: torch.dtype) -> float | None:
    """What stands for missing pixels, rounded as pixels of this dtype are; None if none of them can be it.

    Metadata may say it as text, or in a list of one.
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


def nodata_of(definition: Definition) -> Code | None:
    """What stands for missing pixels of a tensor, each value as by `nodata_in`; None if nothing does."""
    codes = [] if definition.meaning is None else definition.meaning.of(Code)
    code = next((each for each in codes if each.called == "nodata"), None)
    if code is None:
        return None
    entries = [code.value] if code.along is None else code.value
    values = tuple([nodata_in(each, definition.dtype) for each in entries])
    return None if {*values} == {None} else Code(code.called, values[0] if code.along is None else values, code.along)


def _fact_of(stored: Mapping[str, Any], shape: Shape) -> Fact | None:
    """What `Fact.fields` returned, with its kind; None where it cannot have returned that."""
    try:
        fields = {**stored}
        kind = _KINDS[fields.pop("kind")]
        fact = kind.of_fields({**fields, "called": str(fields["called"])}, shape)
        # What is wrong inside of it is found by a look at the first pixel.
        fact.through(Lens.of_region([""] * len(shape), [0] * len(shape), dict.fromkeys(range(len(shape)), ("", 1))))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, zlib.error):
        return None
    return fact


def derived(
    definition: Definition, args: Iterable[Definition], *, keeps_codes: bool = False, picks_first: bool = False
) -> tuple[Meaning | None, list[str]]:
    """What is known of what is computed from these args, and what they disagree about."""
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
    kept = tuple([fact for key, fact in agreed.items() if key not in conflicts])
    held = {label for fact in kept for label in fact.labels}
    lost = dict.fromkeys([label for each in found for label in each.lost if label not in held])
    labels = dict.fromkeys([label for fact in conflicts.values() for label in fact.labels])
    return Meaning(kept, tuple(lost)) if found else None, [*labels]
