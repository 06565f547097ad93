"""Definitions and partial tiles as an attacker, or decay, may leave them, for Hypothesis."""

from __future__ import annotations

import copy
import json
import math
from typing import Any, TypeAlias

import safetensors.torch
import torch
from hypothesis import strategies as st

# Inside: bytes of parts that no store writes.
from infinite_tensor.tilestore.partial import PartialTile, _digest
from tests.support.stored import DTYPES, dtype_name

Path: TypeAlias = tuple[Any, ...]

_TOO_DEEP = "a list 100,000 lists deep"
_TOO_LONG = "an int of 5,000 digits"
_INTS = (
    st.integers(-3, 12)
    # Neither small nor monstrous would be an honest definition of much work: those are left out.
    | st.sampled_from([2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, 10**400])
    | st.sampled_from([-(2**53), -(2**63), -(10**400)])
)
_NAMES = st.sampled_from(
    ["float32", "int8", "float8_e4m3fn", "object", "complex64", "NaN", "Infinity", "os.system", "", "top", "base"]
) | st.text(max_size=8)
_SCALARS = st.none() | st.booleans() | _INTS | st.floats() | _NAMES | st.sampled_from([_TOO_DEEP, _TOO_LONG])
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=6
)
_MANY = st.sampled_from([0, 33, 5000])


@st.composite
def mutated(draw: st.DrawFn, honest: Any) -> Any:
    """`honest` JSON with one to three changes; `as_text` writes it."""
    value = copy.deepcopy(honest)
    for _ in range(draw(st.integers(1, 3))):
        paths = _paths(value)
        path = draw(st.sampled_from(paths[len(paths) // 3 :]) | st.sampled_from(paths))
        value = draw(_changed(value, path))
    return value


def as_text(value: Any) -> str:
    """JSON text of `value`, with what Python itself cannot write put in its place."""
    text = json.dumps(value)
    return text.replace(f'"{_TOO_DEEP}"', "[" * 100_000 + "]" * 100_000).replace(f'"{_TOO_LONG}"', "9" * 5000)


def _paths(value: Any, path: Path = ()) -> list[Path]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in _paths(item, (*path, key)))]


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


@st.composite
def _changed(draw: st.DrawFn, value: Any, path: Path) -> Any:
    how = draw(st.sampled_from(["replace"] * 4 + ["number", "number", "drop", "repeat", "swap"]))
    new = draw(_INTS if how == "number" else _JSON)
    if how == "swap":
        new = copy.deepcopy(_at(value, draw(st.sampled_from(_paths(value)))))
    if not path:
        return new
    parent, key = _at(value, path[:-1]), path[-1]
    if how == "drop":
        del parent[key]
    elif how == "repeat" and isinstance(parent, list):
        parent[key:key] = [parent[key]] * draw(_MANY)
    else:
        parent[key] = new
    return value


@st.composite
def plausible(draw: st.DrawFn, honest: Any) -> Any:
    """`honest` with other values of the right types in every field that geometry comes from."""
    ndim = draw(st.integers(1, 3))
    shape = [draw(st.none() | _EXTENTS) for _ in range(ndim)]
    edge = [draw(st.sampled_from(["drop", "clip"])) for _ in range(ndim)] if draw(st.booleans()) else None
    return {
        **honest,
        **({} if edge is None else {"edge": edge}),
        "shape": shape,
        "dtype": draw(st.just(honest["dtype"]) | st.sampled_from(list(map(dtype_name, DTYPES)))),
        "output_window": draw(_windows(ndim, ndim)),
        "args": [{**arg, **draw(_paddings(2)), "window": draw(_windows(2, ndim))} for arg in honest["args"]]
        * draw(st.sampled_from([0, 1, 1, 300])),
        "blend": draw(
            st.none() | st.sampled_from([honest["blend"], f"{_TORCH}.logical_or", "os.system", "<anonymous>", *_MEANS])
        ),
        "blend_init": draw(st.none() | st.sampled_from([0, 1, True, 0.5, "NaN", [0.5, "-Infinity"], 2**70])),
        "tile_size": [min(draw(st.integers(1, 9) | _EXTENTS), extent or 2**60) for extent in shape],
    }


_TORCH = "torch._VariableFunctionsClass"
_MEANS = ({"weights": "hann"}, {"weights": "gaussian", "sigma_scale": [0.1, 3]}, {"weights": "sha256:" + "0" * 64})
_EXTENTS = st.integers(1, 9) | st.integers(1, 9) | st.sampled_from([2**31, 2**51, 2**53])


@st.composite
def _paddings(draw: st.DrawFn, ndim: int) -> Any:
    """What an arg says of the pixels beyond its ends: nothing, or one entry per dimension."""
    modes = st.sampled_from(
        ["error", "error", "edge", "reflect", "symmetric", "wrap", ["constant", 0], ["constant", "NaN"]]
    )
    return {"padding": [draw(modes) for _ in range(ndim)]} if draw(st.booleans()) else {}


@st.composite
def _windows(draw: st.DrawFn, ndim: int, coordinates: int) -> Any:
    offsets = st.integers(-9, 9) | st.sampled_from([2**51, 2**53, -(2**53)])
    follows = st.none() | st.integers(0, coordinates - 1)
    return {
        "size": [draw(_EXTENTS) for _ in range(ndim)],
        "stride": [draw(_EXTENTS) for _ in range(ndim)],
        "offset": [draw(offsets) for _ in range(ndim)],
        "dimension_map": draw(
            st.just(None if ndim <= coordinates else [0] * ndim) | st.lists(follows, min_size=ndim, max_size=ndim)
        ),
    }


@st.composite
def spoilt_bytes(draw: st.DrawFn, honest: bytes) -> bytes:
    """`honest` with a few bytes flipped, cut off, put in, or with another length of its header."""
    how = draw(st.sampled_from(["flip", "cut", "insert", "header", "random"]))
    if how == "random":
        return draw(st.binary(max_size=64))
    if how == "header":
        length = draw(st.sampled_from([0, 1, 2**31, 2**63, 2**64 - 1]) | st.integers(0, len(honest)))
        return length.to_bytes(8, "little") + honest[8:]
    at = draw(st.integers(0, len(honest) - 1))
    if how == "cut":
        return honest[:at]
    if how == "insert":
        return honest[:at] + draw(st.binary(min_size=1, max_size=8)) + honest[at:]
    return honest[:at] + bytes([honest[at] ^ draw(st.integers(1, 255))]) + honest[at + 1 :]


@st.composite
def made_up_parts(draw: st.DrawFn, place: str) -> bytes:
    """A part whose digest is right for `place`, and whose content is anything."""
    dtype, accumulator = (draw(st.just(torch.float32) | st.sampled_from(DTYPES)) for _ in range(2))
    pieces = {draw(_indices()): draw(_blocks(dtype)) for _ in range(draw(st.integers(0, 3)))}
    prefix = draw(st.none() | _blocks(dtype) | _blocks(accumulator))
    length = st.just(0) if prefix is None else st.integers(1, 9)
    return PartialTile(prefix, draw(length | _INTS), pieces).to_bytes(place)


@st.composite
def made_up_files(draw: st.DrawFn, place: str) -> bytes:
    """A safetensors file whose digest is right for `place`, with names and types that no part has."""
    names = st.sampled_from(["prefix", "piece 0,0", "piece 0", "piece ", "piece 0,x", "piece 1_0,0", " 1,1"]) | st.text(
        max_size=6
    )
    raw = {
        draw(names): draw(_blocks(draw(st.sampled_from([torch.uint8, torch.uint8, torch.float32, torch.bfloat16]))))
        for _ in range(draw(st.integers(0, 2)))
    }
    length = st.integers(-2, 9).map(str) | st.sampled_from(["", "x", "1e3", "9" * 5000, "²", str(2**70)])
    dtypes = st.sampled_from(["float32", "uint8", "float9", ""])
    metadata = {"dtype": draw(dtypes), "prefix_length": draw(length)}
    if draw(st.integers(0, 3)) == 0:
        metadata["prefix_dtype"] = draw(dtypes)
    try:
        digest = _digest(place, metadata, raw)
    except TypeError:
        # numpy has no bfloat16, so no digest of it either.
        digest = ""
    return safetensors.torch.save(raw, metadata | {"digest": digest})


@st.composite
def _indices(draw: st.DrawFn) -> tuple[int, ...]:
    near = st.integers(-3, 4)
    return draw(st.tuples(near, near) | st.lists(near | _INTS, max_size=3).map(tuple))


@st.composite
def _blocks(draw: st.DrawFn, dtype: torch.dtype) -> torch.Tensor:
    fitting = st.sampled_from([(8, 8), (8, 8), (4, 4), (3, 4), (4, 1), (1, 4)])
    shape = draw(fitting | fitting | st.lists(st.integers(0, 9), min_size=1, max_size=3))
    count = math.prod(shape) * dtype.itemsize
    raw = torch.arange(count).to(torch.uint8) % (2 if dtype is torch.bool else 251)
    return raw.view(dtype).reshape(tuple(shape))
