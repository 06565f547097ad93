"""Stored definitions of tensors, checked for damage and attacks before use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.padding import PADDINGS
from infinite_tensor.geometry.periodic import Periodic
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window import WRAP, TensorWindow, checked_edge
from infinite_tensor.support.given import as_index, checked_id, quoted
from infinite_tensor.support.nested import Key
from infinite_tensor.tilestore.layout import TileLayout, gathered_layout, layout_of, tile_shape_of
from infinite_tensor.values.checks import check_spec, checked_shape
from infinite_tensor.values.definition import (
    DEEPEST_JSON,
    ArgDefinition,
    Definition,
    Padding,
    blend_of,
    checked_dims,
    json_scalar,
    json_value,
    scalar_from_json,
)
from infinite_tensor.values.dtypes import dtype_of
from infinite_tensor.values.functions import FunctionRecord, Functions
from infinite_tensor.values.meaning import StoredMeaning
from infinite_tensor.values.reduction import reduction_from_json, reduction_to_json
from infinite_tensor.values.spec import TensorSpec

T = TypeVar("T")

FORMAT = 1
"""The version of the storage format. Higher versions, from later releases, are refused."""

_FIELDS = (
    *("format", "shape", "dtype", "output_window", "edge", "args", "blend", "blend_init", "reduce", "version"),
    *("functions", "output", "dims", "tile_size"),
)
"""All fields of a definition except the meaning of pixels."""

_SHORT = 4000
"""So short a text has no int with too many digits."""
_ENTRY_BYTES = 2**12
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredTensor:
    """A definition as stored.

    Attributes
    ----------
    fields : mapping
        The stored JSON object, with fields that a backend has added.
    spec : TensorSpec
        The tensor, with the CPU as device.
    tiles : TileLayout or None
        The tiles of the tensor; None if the definition has no tile size.
    """

    fields: Mapping[str, Any]
    spec: TensorSpec
    tiles: TileLayout | None = None

    @classmethod
    def from_json(cls, stored: object) -> StoredTensor:
        """Parse a stored definition.

        Names in the definition are never imported or called.

        Raises
        ------
        ValidationError
            If the definition is not valid.
        StoreError
            If the definition has the format of a later version.
        """
        given = _typed(dict, "it", stored)
        fields = _plain({name: given[name] for name in _FIELDS if name in given})
        version = as_index(fields.get("format", FORMAT))
        if version is None or version < 1:
            raise ValidationError(f"format must be a positive int, got {fields['format']!r:.200}")
        if version > FORMAT:
            raise StoreError(
                f"the format is {version}, but this version reads up to {FORMAT}; use a later version of this library"
            )
        definition = _definition(fields)
        tiles = _layout(definition, fields.get("tile_size"))
        # The meaning may be long, and is parsed only on demand.
        meaning = given.get("meaning")
        if meaning is not None:
            definition = replace(definition, meaning=StoredMeaning(meaning, definition.shape))
        spec = _spec(str(given.get("tensor_id", "")), definition, None if tiles is None else tiles.tile_shape)
        return cls(given, spec, tiles)

    @property
    def definition(self) -> Definition:
        """The definition of the tensor."""
        return self.spec.definition

    @property
    def tensor_id(self) -> str:
        """The id of the tensor."""
        return str(self.fields["tensor_id"])

    @property
    def incarnation(self) -> str:
        """A text that differs between tensors created under the same id, one after the other."""
        return str(self.fields["incarnation"])

    @property
    def layout(self) -> TileLayout:
        """The tiles of the tensor. Raise ValidationError if the definition has no tile size."""
        if self.tiles is None:
            raise ValidationError("tile_size is missing")
        return self.tiles

    @property
    def largest_part(self) -> int:
        """An upper bound for the bytes of a part in the log of a tile."""
        tensor, layout = self.definition, self.layout
        if tensor.reduction is not None:
            layout = gathered_layout(reduction_from_json(tensor.reduction), layout)
        window, windows, piece = tensor.gathered.output_window, 1, layout.dtype.itemsize
        for size, stride, tile in zip(window.size, window.stride, layout.tile_shape, strict=True):
            windows *= (tile + size - 2) // stride + 1
            piece *= min(size, tile)
        return layout.tile_bytes + _ENTRY_BYTES + windows * (piece + _ENTRY_BYTES)


def definition_of(fields: Mapping[str, Any]) -> Definition:
    """Create a definition from the fields of `Definition.to_json`.

    Raises
    ------
    ValidationError
        If a field is missing or invalid.
    """
    definition = _definition(fields)
    _spec("", definition, None)
    return definition


def _spec(tensor_id: str, definition: Definition, tile_size: Index | None) -> TensorSpec:
    blend, blend_init = blend_of(definition.blend), scalar_from_json(definition.blend_init)
    reduction = None if definition.reduction is None else reduction_from_json(definition.reduction)
    spec = TensorSpec(tensor_id, definition, torch.device("cpu"), blend, blend_init, tile_size, reduction)
    check_spec(spec)
    return spec


def _definition(fields: Mapping[str, Any]) -> Definition:
    shape, dtype = checked_shape(_field(fields, "shape")), dtype_of(_field(fields, "dtype"))
    window = TensorWindow.from_dict(_field(fields, "output_window"))
    edge = fields.get("edge")
    if edge is not None:
        wraps = [each == WRAP for each in _typed(list, "edge", edge)]
        shape = tuple([Periodic(n) if n and wrap else n for n, wrap in zip(shape, wraps, strict=False)])
        edge = checked_edge(edge, shape)
    reduction = None if fields.get("reduce") is None else reduction_from_json(fields["reduce"])
    blend, blend_init = _field(fields, "blend"), scalar_from_json(_field(fields, "blend_init"))
    functions = FunctionRecord.from_json(_typed(dict, "functions", _field(fields, "functions")))
    return Definition(
        shape=shape,
        dtype=dtype,
        output_window=window,
        args=tuple(_arg(at, arg) for at, arg in enumerate(_typed(list, "args", _field(fields, "args")))),
        blend=blend,
        blend_init=json_scalar("blend_init", blend_init, dtype if reduction is None else reduction.dtype),
        version=_field(fields, "version"),
        functions=Functions.of_record(functions),
        edge=edge,
        output=_output(fields.get("output")),
        dims=checked_dims(fields.get("dims"), len(shape)),
        reduction=None if reduction is None else reduction_to_json(reduction),
    )


def _plain(fields: dict[str, Any]) -> Mapping[str, Any]:
    """Return a copy of JSON values as by `json_value`, which takes long."""
    try:
        text = json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = ""
    if len(text) < _SHORT and text.count("[") + text.count("{") < DEEPEST_JSON and "\\" not in text and text:
        return _typed(dict, "it", json.loads(text))
    return _typed(dict, "it", json_value("definition", fields, DEEPEST_JSON + 1))


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValidationError(f"{name} is missing")
    return fields[name]


def _typed(kind: type[T], name: str, value: object) -> T:
    if not isinstance(value, kind):
        raise ValidationError(f"{name} must be a {kind.__name__}, got {quoted(value)}")
    return value


def _arg(at: int, stored: object) -> ArgDefinition:
    arg = _typed(dict, f"args[{at}]", stored)
    window = TensorWindow.from_dict(_field(arg, "window"))
    digest, tensor_id = _field(arg, "digest"), arg.get("tensor_id")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ValidationError(f"args[{at}].digest must be 64 hexadecimal digits, got {digest!r:.200}")
    padding = _padding(at, arg["padding"], window) if "padding" in arg else None
    return ArgDefinition(window, digest, None if tensor_id is None else checked_id(tensor_id), padding)


def _padding(at: int, stored: object, window: TensorWindow) -> tuple[Padding, ...]:
    entries = _typed(list, f"args[{at}].padding", stored)
    paddings = []
    for entry in entries:
        mode, value = entry if isinstance(entry, list) and len(entry) == 2 else (entry, None)
        if not isinstance(mode, str) or mode not in PADDINGS or (value is None) is (mode == "constant"):
            raise ValidationError(f"args[{at}].padding must contain paddings, got {entry!r:.200}")
        paddings.append(Padding(mode, scalar_from_json(value)))
    if len(paddings) != window.ndim:
        raise ValidationError(f"args[{at}].padding must contain {window.ndim} paddings, got {len(paddings)}")
    return tuple(paddings)


def _output(stored: object) -> Key | None:
    if stored is None:
        return None
    keys = _typed(list, "output", stored)
    if not keys or not all(isinstance(key, str) for key in keys):
        raise ValidationError(f"output must be a list of one or more str, got {stored!r:.200}")
    return tuple(keys)


def _layout(definition: Definition, stored: object) -> TileLayout | None:
    if stored is None:
        return None
    tile = tile_shape_of(definition.shape, _typed(list, "tile_size", stored))
    if list(tile) != stored:
        raise ValidationError(
            f"tile_size must have one int per dimension, and fit into shape {definition.shape}, got {stored!r:.200}"
        )
    reduction = None if definition.reduction is None else reduction_from_json(definition.reduction)
    return layout_of(definition.shape, tile, definition.dtype, reduction)
