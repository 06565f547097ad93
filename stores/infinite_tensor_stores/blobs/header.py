"""What the ``zarr.json`` of a blob says. To replace it is to commit."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import LARGEST, as_index
from infinite_tensor.support.cached_property import cached_property
from infinite_tensor.tilestore.layout import LARGEST_TILE_BYTES
from infinite_tensor.tilestore.persistent.documents import sealed
from infinite_tensor.values.definition import dtype_name, dtype_of
from infinite_tensor_stores.dtypes import stored_dtype
from infinite_tensor_stores.files import parsed
from infinite_tensor_stores.zarr.codec import new_codecs_of

ATTRIBUTE = "infinite_tensor_blob"
DOCUMENT = "zarr.json"
FORMAT = 1

_BLOCK_BYTES = 4 * 2**20
_MOST_ROWS = 8192


@dataclass(frozen=True)
class Header:
    """A blob at one commit.

    Attributes
    ----------
    shape : tuple of int
        Of a row.
    dtype : torch.dtype
        Of a row.
    block_size : int
        Rows of a block.
    codecs : sequence of dict
        How blocks are encoded, as ``zarr.json`` names it.
    incarnation : str
        Random; another one for whatever is made in the same place later.
    rows : int
        How many there are.
    edits : int
        Grows by one when rows that were committed are about to change, and again when they have: so it is odd in
        between. Two headers of one incarnation with the same even number have the same rows, as far as both have them.
    attributes : mapping
        What users have added to the array.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    block_size: int
    codecs: Sequence[Mapping[str, Any]]
    incarnation: str
    rows: int = 0
    edits: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def new(cls, shape: tuple[int, ...], dtype: torch.dtype, block_size: int | None, compressors: Any) -> Header:
        """An empty blob, of blocks of about 4 MiB unless `block_size` says otherwise.

        ValidationError for blocks of 2 GiB and more, and for compressors that no new blob may have.
        """
        if block_size is None:
            block_size = max(1, min(_MOST_ROWS, _BLOCK_BYTES // (prod(shape) * dtype.itemsize)))
        if block_size * prod(shape) * dtype.itemsize > LARGEST_TILE_BYTES:
            raise ValidationError(
                f"a block of {block_size} rows has more than {LARGEST_TILE_BYTES} bytes; make it smaller"
            )
        codecs = new_codecs_of(stored_dtype(dtype), (block_size, *shape), compressors)
        return cls(shape, dtype, block_size, codecs, secrets.token_hex(8))

    @classmethod
    def from_bytes(cls, document: bytes) -> Header:
        """What `to_bytes` returned; ValueError for what it cannot have returned."""
        found = parsed(document)
        attributes = dict(found.get("attributes") or {})
        ours = attributes.pop(ATTRIBUTE, None)
        if not isinstance(ours, dict):
            raise ValueError("it is not of a TensorBlob")  # noqa: TRY004  (what the document holds is a value)
        if sealed({key: value for key, value in ours.items() if key != "digest"}) != ours:
            raise ValueError("its content does not match its digest")
        if ours["format"] > FORMAT:
            raise ValueError(f"it has format {ours['format']}, this version reads up to {FORMAT}")
        header = cls(
            tuple(ours["shape"]),
            dtype_of(ours["dtype"]),
            ours["block_size"],
            ours["codecs"],
            ours["incarnation"],
            ours["rows"],
            ours["edits"],
            attributes,
        )
        array = {key: value for key, value in found.items() if key != "attributes"}
        given = {key: array.get(key) for key in header._array()}
        if given != header._array():
            raise ValueError("another tool has changed the array; what it says is not what the blob says")
        return header

    def to_bytes(self) -> bytes:
        """The ``zarr.json``."""
        return json.dumps(self.document(), indent=2).encode()

    def document(self) -> dict[str, Any]:
        """The ``zarr.json`` as a JSON object."""
        return self._array() | {"attributes": {**self.attributes, ATTRIBUTE: self._sealed()}}

    def _array(self) -> dict[str, Any]:
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self.rows, *self.shape],
            "data_type": stored_dtype(self.dtype),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.block_size, *self.shape]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": _zero(self.dtype),
            "codecs": list(self.codecs),
        }

    def _sealed(self) -> dict[str, Any]:
        return sealed(
            {
                "format": FORMAT,
                "shape": list(self.shape),
                "dtype": dtype_name(self.dtype),
                "block_size": self.block_size,
                "codecs": list(self.codecs),
                "incarnation": self.incarnation,
                "rows": self.rows,
                "edits": self.edits,
            }
        )

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, not encoded."""
        return self.block_size * self.row_bytes

    @property
    def changing(self) -> bool:
        """Whether rows that were committed are being changed, or a writer was killed meanwhile."""
        return self.edits % 2 == 1

    @property
    def version(self) -> tuple[str, int]:
        """The incarnation and the edits."""
        return self.incarnation, self.edits

    @property
    def blocks(self) -> int:
        """How many blocks hold the rows."""
        return -(-self.rows // self.block_size)

    @property
    def is_plain(self) -> bool:
        """Whether a block is stored as it lies in memory, with a checksum behind."""
        return [codec["name"] for codec in self.codecs] == ["bytes", "crc32c"] and sys.byteorder == "little"

    def key(self, number: int) -> str:
        """Where a block is."""
        return ".".join(["c", str(number), *["0"] * len(self.shape)])


def row_shape(shape: object) -> tuple[int, ...]:
    """The shape of a row as a user may give it: an int or a sequence of them; ValueError for anything else."""
    extents = [shape] if as_index(shape) is not None else shape
    if isinstance(extents, str) or not isinstance(extents, Sequence):
        raise ValueError(f"shape must be an int or a tuple of ints, got {shape!r}")  # noqa: TRY004
    found = [as_index(extent) for extent in extents]
    if any(extent is None or not 1 <= extent <= LARGEST for extent in found):
        raise ValueError(f"shape must hold positive ints, got {shape!r}")
    return tuple(extent for extent in found if extent is not None)


def is_blob(document: bytes) -> bool:
    """Whether a ``zarr.json``, damaged perhaps, is that of a blob."""
    return ATTRIBUTE.encode() in document


def _zero(dtype: torch.dtype) -> Any:
    if dtype.is_complex:
        return [0.0, 0.0]
    return False if dtype is torch.bool else 0.0 if dtype.is_floating_point and dtype is not torch.bfloat16 else 0
