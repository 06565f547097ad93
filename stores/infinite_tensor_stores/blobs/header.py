"""The ``zarr.json`` of a blob.

Replacing this document is a commit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.support.forks import cached_property
from infinite_tensor.tilestore.documents import sealed
from infinite_tensor.values.definition import json_number
from infinite_tensor.values.dtypes import dtype_name, dtype_of, stored_dtype
from infinite_tensor_stores.files import parsed
from infinite_tensor_stores.zarr.layout import BLOB

FORMAT = 1

_STORED_AS_THEY_ARE = ("block_size", "codecs", "incarnation", "rows", "edits", "marks")
_MOST_MARKS = 256
"""Keeps commits small, however many writers a blob has had."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors from a damaged ``zarr.json`` into a StoreError."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"its zarr.json is damaged, or not from a TensorBlob ({error}); restore it from a copy, or make "
            "a new blob with mode 'w'"
        ) from error


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
    marks : sequence of (int, str)
        For each writer that has added rows, the number of its first row, and its own random text. An edit leaves one
        mark, for all rows. Two copies of a blob that have grown or were edited apart have different marks.
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
    marks: Sequence[Sequence[Any]] = field(default_factory=list)
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    @explained()
    def from_bytes(cls, document: bytes) -> Header:
        """Read a header written by `to_bytes`.

        Raise StoreError for any other document.
        """
        found = parsed(document)
        attributes = dict(found.get("attributes") or {})
        ours = attributes.pop(BLOB, None)
        if not isinstance(ours, dict):
            raise ValueError("not from a TensorBlob")  # noqa: TRY004  (not a type error of the caller)
        if sealed({key: value for key, value in ours.items() if key != "digest"}) != ours:
            raise ValueError("the content does not match the digest")
        if ours["format"] > FORMAT:
            raise StoreError(f"the format is {ours['format']}, but this version reads up to {FORMAT}")
        ours.setdefault("marks", [])  # Version 1.0.0rc1 wrote none.
        as_they_are = {name: ours[name] for name in _STORED_AS_THEY_ARE}
        header = cls(tuple(ours["shape"]), dtype_of(ours["dtype"]), **as_they_are, attributes=attributes)
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

    def version(self, rows: int) -> dict[str, Any]:
        """Return the `version` for `InfiniteTensor`, for a tensor reading the first `rows` rows.

        The value changes when the blob is created anew, or when rows are overwritten or truncated. Copies have the same
        value only for rows that they have in common.
        """
        marks = [mark for first, mark in self.marks if first < rows]
        return {"blob": self.incarnation, "edits": self.edits} | ({"mark": marks[-1]} if marks else {})

    def continues(self, other: Header) -> bool:
        """Return whether the rows of `other` are the first rows here, or the other way round."""
        rows = min(self.rows, other.rows)
        return self.version(rows) == other.version(rows)

    def after(self, rows: int, edits: int, mark: str) -> Header:
        """Return the next commit, by the writer with this mark."""
        marks = self.marks
        if edits != self.edits:
            marks = [[0, mark]]
        elif rows > self.rows and (not marks or marks[-1][1] != mark):
            marks = [*marks, [self.rows, mark]]
            if len(marks) > _MOST_MARKS:
                marks = [[0, marks[1][1]], *marks[2:]]
        return replace(self, rows=rows, edits=edits, marks=marks)

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
