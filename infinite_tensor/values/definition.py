"""Definitions of stored tensors, in a form for JSON.

A definition is everything that decides the values of a tensor. Dimension names do not affect values. Names may be added
later, but not changed.
"""

from __future__ import annotations

import cmath
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import Edge, Shape, TensorWindow
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.functions import FunctionCaller
from infinite_tensor.support.given import members, number, quoted, word
from infinite_tensor.support.nested import Key
from infinite_tensor.values.code import function_name
from infinite_tensor.values.dtypes import dtype_name
from infinite_tensor.values.functions import Functions
from infinite_tensor.values.reduction import Reduction, gathered_shape, gathered_window, reduction_from_json
from infinite_tensor.values.weights import KINDS, Unknown, WeightedMean, mean_from_json, mean_to_json

if TYPE_CHECKING:
    from infinite_tensor.values.meaning import Meaning


Dims: TypeAlias = "tuple[str, ...] | None"
"""Names of all dimensions, given or by default. None if no dimension has a name."""

_LONGEST = 100
_DEFAULT = re.compile(r"dim_\d+", re.ASCII)


def default_name(d: int) -> str:
    """Return the default name of a dimension."""
    return f"dim_{d}"


CHANNELS = frozenset({"c", "channel", "channels", "band", "bands"})
"""Names of dimensions kept whole in windows and patches."""


def channels_of(names: Iterable[str | None]) -> list[int]:
    """Return the indices of dimensions named as channels."""
    return [d for d, name in enumerate(names) if name is not None and name.lower() in CHANNELS]


def names_of(dims: Dims, ndim: int) -> tuple[str, ...]:
    """Return a name for each dimension."""
    return tuple(map(default_name, range(ndim))) if dims is None else dims


def label_of(d: int, name: str) -> str:
    """Return the label of a dimension in messages, such as ``0 ('y')``.

    Without a name, the label is only the number.
    """
    return f"{d} ({name!r})" if name != default_name(d) else str(d)


def checked_dims(dims: object, ndim: int) -> Dims:
    """Check dimension names, and return a tuple.

    Return None if all names are default names.

    Raises
    ------
    ValidationError
        If there is not one name per dimension, or if a name is not a printable str of 1 to 100 characters, occurs
        twice, or is the default name of another dimension.
    """
    if dims is None:
        return None
    given = members(dims)
    if given is None or len(given) != ndim:
        raise ValidationError(f"dims must be a tuple of {ndim} str, one per dimension, or None, got {quoted(dims)}")
    names = tuple(word(name) or "" for name in given)
    for d, name in enumerate(names):
        is_taken = name in names[:d] or (_DEFAULT.fullmatch(name) and name != default_name(d))
        if is_taken or not 0 < len(name) <= _LONGEST or not name.isprintable():
            raise ValidationError(
                f"dims must be distinct printable str of 1 to {_LONGEST} characters, and the name dim_N is only for "
                f"dimension N; got {quoted(given[d])} for dimension {d}"
            )
    return None if names == names_of(None, ndim) else names


def joined_dims(stored: Dims, given: Dims) -> Dims:
    """Add given names to the stored dimension names.

    A dimension without a stored name gets the given name. The stored names are returned unchanged if a given name
    differs from a stored name, or if two dimensions would have the same name.
    """
    if stored is None or given is None:
        return stored or given
    joined = tuple(
        [new if old == default_name(d) else old for d, (old, new) in enumerate(zip(stored, given, strict=True))]
    )
    return stored if contradict(joined, given) or len(set(joined)) < len(joined) else joined


def contradict(names: tuple[str, ...], given: tuple[str, ...]) -> bool:
    """Whether any of the given dimension names differs from the name in `names`.

    Default names in `given`, such as ``dim_0``, are ignored.
    """
    return any(new not in (default_name(d), name) for d, (name, new) in enumerate(zip(names, given, strict=True)))


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Number: TypeAlias = "bool | int | float | complex"
Blend: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | WeightedMean | Literal['first', 'last']"
"""How to combine overlapping windows.

A function takes the pixels so far and the pixels of the next window.
"""
BlendName: TypeAlias = Literal["max", "min", "first", "last", "mean", "linear", "hann", "gaussian"]
"""Names of blends for `resolved_blend`."""


class Padding(NamedTuple):
    """Padding beyond the ends of a dimension of an arg.

    Attributes
    ----------
    mode : str
        One of `infinite_tensor.geometry.padding.PADDINGS`; "error" for an unbounded dimension.
    value : number or None
        The value for the mode "constant".
    """

    mode: str
    value: Number | None = None

    def to_json(self) -> Json:
        """Return the padding as JSON.

        `tilestore.stored_definition` reads it back.
        """
        return self.mode if self.value is None else [self.mode, json_number(self.value)]


def modes_of(padding: tuple[Padding, ...] | None) -> list[str] | None:
    """Return the padding mode of each dimension.

    Return None if the arg has no padding.
    """
    return None if padding is None else [each.mode for each in padding]


class ContentVersion:
    """The version of a source, computed from the values of the array, image or raster.

    The values are hashed only when something is stored or compared.

    Parameters
    ----------
    digest : callable
        ``digest() -> str`` computes a digest of the values.
    """

    def __init__(self, digest: Callable[[], str]) -> None:
        self._digest = digest

    @cached_property
    def said(self) -> Json:
        """The version in a definition: ``{"content": digest}``."""
        return {"content": self._digest()}


@dataclass(frozen=True, eq=False)
class ArgDefinition:
    """Definition of an arg, with the window for reading the arg.

    ``of`` is the definition of the arg, or a digest of it. ``tensor_id`` is None if the user gave no id. ``padding`` is
    None if no window may reach beyond the arg.
    """

    window: TensorWindow
    of: Definition | str
    tensor_id: str | None
    padding: tuple[Padding, ...] | None = None

    @property
    def digest(self) -> str:
        """The digest of the arg's definition, including everything upstream."""
        return self.of if isinstance(self.of, str) else self.of.digest

    def __eq__(self, other: object) -> bool:
        """Whether both read the same pixels of tensors with the same id."""
        mine = self.values(), self.tensor_id
        return isinstance(other, ArgDefinition) and mine == (other.values(), other.tensor_id)

    def __hash__(self) -> int:
        return hash((self.window, self.tensor_id, self.padding))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the digest of the upstream definitions."""
        return type(self), (self.window, self.digest, self.tensor_id, self.padding)

    def values(self) -> dict[str, Json]:
        """Return the fields affecting the values, as JSON."""
        values: dict[str, Json] = {"window": self.window.to_dict(), "digest": self.digest}
        return values if self.padding is None else values | {"padding": [each.to_json() for each in self.padding]}


@dataclass(frozen=True)
class Definition:
    """Definition of a tensor: everything affecting the values.

    Two definitions with the same `digest` and the same functions give the same values. A record of the functions is
    stored next to the definition, and is compared separately.
    """

    shape: Shape
    dtype: torch.dtype
    output_window: TensorWindow
    args: tuple[ArgDefinition, ...]
    blend: Json
    blend_init: Json
    version: Json | ContentVersion
    functions: Functions = field(compare=False)
    edge: Edge | None = None
    """Treatment of windows reaching past finite dimensions. None drops such windows."""
    output: Key | None = None
    """Keys of the tensor's windows in the result of ``f``, for an ``f`` with several tensors."""
    dims: Dims = None
    """Names of the dimensions, without effect on values."""
    reduction: Mapping[str, Json] | None = None
    """Reduction of blended pixels before storing."""
    meaning: Meaning | None = field(default=None, compare=False)
    """Facts about the pixels in addition to values. No value depends on a fact."""

    def values(self) -> dict[str, Json]:
        """Return the fields affecting the values, as JSON."""
        values: dict[str, Json] = {
            "shape": list(self.shape),
            "dtype": dtype_name(self.dtype),
            "output_window": self.output_window.to_dict(),
            "args": [arg.values() for arg in self.args],
            "blend": self.blend,
            "blend_init": self.blend_init,
            "version": self.version.said if isinstance(self.version, ContentVersion) else self.version,
        }
        # Leave out defaults, because definitions stored by older versions lack these fields.
        given = {"edge": self.edge, "output": self.output}
        values |= {name: list(value) for name, value in given.items() if value is not None}
        return values if self.reduction is None else values | {"reduce": dict(self.reduction)}

    @property
    def fill(self) -> Json:
        """The value of uncovered pixels, as JSON.

        None stands for 0.
        """
        return self.blend_init if self.reduction is None else None

    @cached_property
    def gathered(self) -> Definition:
        """The definition of the gathered tensor.

        The gathered tensor contains the unreduced values. Without a reduction, this is the definition itself.
        """
        if self.reduction is None:
            return self
        reduction, edge = reduction_from_json(self.reduction), self.edge
        if edge is not None and reduction.out_channels is None:
            edge = ("drop", *edge)
        return replace(
            self,
            shape=gathered_shape(reduction, self.shape),
            dtype=reduction.dtype,
            output_window=gathered_window(reduction, self.output_window),
            edge=edge,
            dims=None,
            reduction=None,
            meaning=None,
        )

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of `values`, as hexadecimal digits."""
        # Upstream first, because recursion would fail on long chains.
        waiting = _undigested(self)
        while waiting:
            if further := _undigested(waiting[-1]):
                waiting += further
            else:
                _ = waiting.pop().digest
        return hashlib.sha256(_canonical(self.values()).encode()).hexdigest()

    def to_json(self) -> dict[str, Json]:
        """Return the whole definition as JSON.

        `infinite_tensor.tilestore.stored_definition` reads it back.
        """
        stored = self.values()
        for entry, arg in zip(stored["args"], self.args, strict=True):  # type: ignore[arg-type]
            entry["tensor_id"] = arg.tensor_id  # type: ignore[index, call-overload]
        stored["functions"] = self.functions.record.to_json()
        if self.dims is not None:
            stored["dims"] = list(self.dims)
        return stored if self.meaning is None else stored | {"meaning": self.meaning.to_json()}


def _undigested(definition: Definition) -> list[Definition]:
    """Return the definitions of args whose digest is not known yet."""
    return [arg.of for arg in definition.args if isinstance(arg.of, Definition) and "digest" not in vars(arg.of)]


def same(one: Definition, other: Definition) -> bool:
    """Whether two definitions give the same values.

    No digest is computed for identical objects.
    """
    return one is other or one.digest == other.digest


def differences(stored: Mapping[str, Json], given: Mapping[str, Json]) -> list[str]:
    """Describe the differences between two definitions, one line per field."""
    return list(_differences("", dict(stored), dict(given)))


_ABSENT = object()
_DEFAULTS = ((re.compile("edge"), "drop"), (re.compile(r"args\[\d+\]\.padding"), "error"))


def _differences(path: str, stored: object, given: object) -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(given, dict):
        for key in [*stored, *(key for key in given if key not in stored)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(inner, stored.get(key, _ABSENT), given.get(key, _ABSENT))
    elif (
        isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given) and dict in map(type, stored)
    ):
        for i, (a, b) in enumerate(zip(stored, given, strict=True)):
            yield from _differences(f"{path}[{i}]", a, b)
    elif stored is _ABSENT or given is _ABSENT or _canonical(stored) != _canonical(given):
        yield f"{path}: stored {_show(path, stored)}, given {_show(path, given)}"


def _show(path: str, value: object) -> str:
    if value is not _ABSENT:
        return repr(value)
    # A definition leaves out the defaults of fields missing in older stores.
    return next((repr(default) for field, default in _DEFAULTS if field.fullmatch(path)), "nothing")


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


DEEPEST_JSON = 100
"""Maximum depth of nested lists and dicts, because functions recurse over nested values."""

_LARGEST_INT = 10**4000
"""Limit of stored ints, because Python refuses to write or parse more than 4300 digits."""


def json_value(name: str, value: object, deepest: int = DEEPEST_JSON) -> Json:
    """Convert a value to JSON.

    Tuples become lists, and non-finite numbers become strings such as NaN and Infinity. `name` is the name of the value
    in messages.

    Raises
    ------
    ValidationError
        If JSON cannot represent the value, if it is nested more than `deepest` levels deep, or if an int in it has over
        4000 digits.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return word(value)
    if isinstance(value, int | float):
        if isinstance(value, int) and abs(value) > _LARGEST_INT:
            raise ValidationError(f"{name} must contain ints of up to 4000 digits")
        return json_number(number(value))  # type: ignore[arg-type]
    if not deepest and isinstance(value, list | tuple | Mapping):
        raise ValidationError(f"{name:.80} is nested too deep: lists and dicts may have at most {DEEPEST_JSON} levels")
    if isinstance(value, list | tuple):
        return [json_value(f"{name}[{i}]", item, deepest - 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: json_value(f"{name}.{key}", item, deepest - 1) for key, item in value.items()}
    raise ValidationError(
        f"{name} must be a JSON value (None, bool, number, str, list, dict with keys of str), got {quoted(value)}"
    )


def pixel_value(name: str, value: object, dtype: torch.dtype) -> Number:
    """Convert a number to a dtype: the int 1 becomes 1.0 for float32.

    `name` is the name of the value in messages.

    Raises
    ------
    ValidationError
        If `value` is not a number, or `dtype` cannot represent it. For a floating `dtype`, fractions are rounded.
    """
    plain = number(value)
    if plain is None or (isinstance(plain, bool) and dtype is not torch.bool):
        raise ValidationError(f"{name} must be a number, got {quoted(value)}")
    try:
        held: Number = torch.tensor(plain, dtype=dtype, device="cpu").item()
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        raise ValidationError(f"{name} {quoted(plain)} does not fit {dtype}: {error}") from error
    if dtype.is_floating_point or dtype.is_complex:
        exact = cmath.isfinite(held) or not cmath.isfinite(plain)
    else:
        exact = held == plain
    if not exact or (isinstance(plain, complex) and not dtype.is_complex):
        raise ValidationError(f"{name} {quoted(plain)} does not fit {dtype}, and would be stored as {held!r}")
    return held


def json_scalar(name: str, value: object, dtype: torch.dtype) -> Json:
    """Convert a pixel value to JSON.

    The value is first converted by `pixel_value`. None stays None. `scalar_from_json` reads the result back.
    """
    return None if value is None else json_number(pixel_value(name, value, dtype))


def json_number(value: Number) -> Json:
    """Convert a number to JSON.

    A complex number becomes a list of two. `scalar_from_json` reads the result back.
    """
    if isinstance(value, complex):
        return [json_number(value.real), json_number(value.imag)]
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def scalar_from_json(stored: object) -> Number | None:
    """Read a pixel value written by `json_scalar`.

    Raise ValidationError for anything else.
    """
    if stored is None or isinstance(stored, bool):
        return stored
    if isinstance(stored, list) and len(stored) == 2:
        return complex(*map(_real_from_json, stored))
    return stored if isinstance(stored, int) else _real_from_json(stored)


def _real_from_json(stored: object) -> float:
    if stored in ("NaN", "Infinity", "-Infinity"):
        return float(stored)
    if isinstance(stored, int | float) and abs(stored) <= sys.float_info.max:
        return float(stored)
    raise ValidationError(f"not a number: {stored!r:.200}")


_NAMED: Mapping[str, Blend] = {
    "max": torch.maximum,
    "min": torch.minimum,
    "first": "first",
    "last": "last",
    **{kind: WeightedMean(kind) for kind in KINDS},
}


def resolved_blend(given: object) -> Blend | None:
    """Return a blend given directly or by name.

    Raise ValidationError if `given` is not a blend.
    """
    name = word(given)
    if name is not None and name in _NAMED:
        return _NAMED[name]
    if given is not None and not isinstance(given, WeightedMean) and not callable(given):
        names = ", ".join(map(repr, _NAMED))
        raise ValidationError(
            f"blend must be one of {names}, a WeightedMean, a function of two tensors, or None for the sum, got "
            f"{quoted(given)}"
        )
    return given


def blend_name(blend: Blend | None) -> Json:
    """Return the JSON of a blend for a definition.

    A function is recorded by its module and qualified name, a lambda or partial only as anonymous. "first" and "last"
    stay as they are. They cannot be confused with functions, because they contain no dot.
    """
    if blend is None or isinstance(blend, str):
        return blend
    if isinstance(blend, WeightedMean):
        return mean_to_json(blend)
    return function_name(blend)


_KNOWN: tuple[Blend, ...] = (
    *_NAMED.values(),
    torch.add,
    torch.mul,
    torch.fmax,
    torch.fmin,
    torch.logaddexp,
    torch.logaddexp2,
    torch.logical_or,
    torch.logical_and,
)


def blend_of(name: Json) -> Blend | None:
    """Return the blend recorded by `blend_name`.

    Blends of this library and some functions of torch are known. Any other blend becomes an `Unknown`, which raises
    ValidationError when it is called. Nothing is imported just because a store names it.
    """
    if name is None:
        return None
    if not isinstance(name, str):
        return mean_from_json(name)
    for blend in _KNOWN:
        if blend_name(blend) == name:
            return blend
    return Unknown(name, "blend=...")


def functions_of(
    f: Callable[..., Any] | None,
    blend: Blend | None,
    upstream: Iterable[Functions],
    reduction: Reduction | None = None,
    *,
    told: bool = False,
) -> Functions:
    """Return the functions of a tensor and of all upstream tensors.

    `told` is True if the user has set a version.
    """
    ours = f if isinstance(f, FunctionCaller) else None
    if ours is not None and not ours.stored:
        return Functions()
    own = {"f": f, "blend": blend, "reduce": None if reduction is None else reduction.function}
    return Functions(
        {name: each for name, each in own.items() if callable(each)},
        upstream,
        told=told and (ours is None or ours.told),
    )
