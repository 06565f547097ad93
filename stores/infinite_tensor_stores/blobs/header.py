"""The ``zarr.json`` of a blob.

Replacing this document is a commit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.window import LARGEST
from infinite_tensor.support.forks import cached_property
from infinite_tensor.tilestore.layout import LARGEST_TILE_BYTES
from infinite_tensor.tilestore.persistent.documents import sealed
from infinite_tensor.values.definition import json_number
from infinite_tensor.values.dtypes import dtype_name, dtype_of, stored_dtype
from infinite_tensor_stores.files import parsed
from infinite_tensor_stores.zarr.layout import BLOB

FORMAT = 1

_STORED_AS_THEY_ARE = ("block_size", "codecs", "incarnation", "rows", "edits")


def _is_int(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= LARGEST


_FITS: dict[str, Callable[[Any], bool]] = {
    "shape": lambda value: isinstance(value, list) and all(_is_int(extent, 1) for extent in value),
    "block_size": lambda value: _is_int(value, 1),
    "codecs": lambda value: isinstance(value, list) and all(isinstance(codec["name"], str) for codec in value),
    "incarnation": lambda value: isinstance(value, str),
    "rows": _is_int,
    "edits": _is_int,
}


class EmptyDocumentError(StoreError):
    """A ``zarr.json`` is empty, as after a power failure."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors from a damaged ``zarr.json`` into a StoreError."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"its zarr.json is damaged, or not from a TensorBlob ({error})") from error


@dataclass(frozen=True)
class Header:
    """A blob at one commit.

    Attributes
    ----------
    shape : tuple of int
        Shape of a row.
    dtype : torch.dtype
        Element type.
    block_size : int
        Number of rows in a block.
    codecs : sequence of dict
        How blocks are encoded, as in ``zarr.json``.
    incarnation : str
        A random text, different for a blob created later at the same location.
    rows : int
        Number of rows.
    edits : int
        Incremented when committed rows are about to change, and again when they have changed, so it is odd in between.
        If two headers of one incarnation have the same even number of edits, the rows that both contain are equal.
    attributes : mapping
        Attributes that users have added to the array.
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
    @explained()
    def from_bytes(cls, document: bytes) -> Header:
        """Read a header written by `to_bytes`.

        Raise StoreError for any other document.
        """
        if is_empty(document):
            raise EmptyDocumentError(
                "its zarr.json is empty, perhaps after a power failure. To recover the rows, open the blob with mode "
                "'a' or 'r+' and its original dtype and shape (and block_size and compressors, if given); mode 'w' and "
                "unlink delete the rows"
            )
        found = parsed(document)
        attributes = dict(found.get("attributes") or {})
        ours = attributes.pop(BLOB, None)
        if not isinstance(ours, dict):
            raise ValueError("not from a TensorBlob")  # noqa: TRY004  (not a type error of the caller)
        if sealed({key: value for key, value in ours.items() if key != "digest"}) != ours:
            raise ValueError("the content does not match the digest")
        if ours["format"] > FORMAT:
            raise ValueError(f"the format is {ours['format']}, but this version reads up to {FORMAT}")
        as_they_are = {name: ours[name] for name in _STORED_AS_THEY_ARE}
        for name, fits in _FITS.items():
            if not fits(ours[name]):
                raise ValueError(f"{name} cannot be {ours[name]!r:.200}")
        header = cls(tuple(ours["shape"]), dtype_of(ours["dtype"]), **as_they_are, attributes=attributes)
        if header.block_bytes > LARGEST_TILE_BYTES:
            raise ValueError(f"blocks would have {header.block_bytes} bytes, more than {LARGEST_TILE_BYTES}")
        array = header._array()
        if {key: found.get(key) for key in array} != array:
            raise ValueError("another program has changed the metadata of the array")
        return header

    def to_bytes(self) -> bytes:
        """Return the ``zarr.json`` as stored."""
        return json.dumps(self.document(), indent=2).encode()

    def document(self) -> dict[str, Any]:
        """Return the ``zarr.json`` as a JSON object."""
        ours = {"format": FORMAT, "shape": list(self.shape), "dtype": dtype_name(self.dtype)}
        ours |= {name: getattr(self, name) for name in _STORED_AS_THEY_ARE}
        return self._array() | {"attributes": {**self.attributes, BLOB: sealed(ours)}}

    def _array(self) -> dict[str, Any]:
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self.rows, *self.shape],
            "data_type": stored_dtype(self.dtype),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [self.block_size, *self.shape]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": json_number(np.zeros((), stored_dtype(self.dtype)).item()),
            "codecs": list(self.codecs),
        }

    @cached_property
    def block_bytes(self) -> int:
        """Size of a block in bytes before it is encoded."""
        return self.block_size * prod(self.shape) * self.dtype.itemsize

    @property
    def changing(self) -> bool:
        """Whether committed rows are being changed.

        Also True after a writer was killed during a change.
        """
        return self.edits % 2 == 1

    @property
    def version(self) -> dict[str, Any]:
        """The `version` for `InfiniteTensor`, for a tensor reading the blob.

        The value changes when the blob is created anew, or when rows are overwritten or truncated.
        """
        return {"blob": self.incarnation, "edits": self.edits}

    @property
    def blocks(self) -> int:
        """The number of blocks with rows."""
        return -(-self.rows // self.block_size)

    @property
    def is_plain(self) -> bool:
        """Whether blocks are stored as in memory, followed by a checksum."""
        return [codec["name"] for codec in self.codecs] == ["bytes", "crc32c"] and sys.byteorder == "little"

    def key(self, number: int) -> str:
        """Return the key of a block."""
        return ".".join(["c", str(number), *["0"] * len(self.shape)])


def is_empty(document: bytes) -> bool:
    """Return whether a ``zarr.json`` is empty or all zeros.

    Some file systems leave zeros after a power failure.
    """
    return not document.strip(b"\0")
