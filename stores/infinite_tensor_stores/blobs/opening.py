"""Opening, creating and deleting blobs, and closing dropped blobs."""

from __future__ import annotations

import re
import secrets
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import LARGEST
from infinite_tensor.support.given import as_index
from infinite_tensor.tilestore.layout import LARGEST_TILE_BYTES
from infinite_tensor.values.dtypes import checked_dtype, stored_dtype
from infinite_tensor_stores.blobs.header import Header
from infinite_tensor_stores.blobs.location import PARTIAL, Document, Location, Right
from infinite_tensor_stores.blobs.rows import Rows
from infinite_tensor_stores.blobs.writers import LOCK
from infinite_tensor_stores.zarr.codec import codecs_of
from infinite_tensor_stores.zarr.layout import BLOB, DOCUMENT

_BLOCK_BYTES = 4 * 2**20
_MOST_ROWS = 8192
_BLOCK = re.compile(r"c\.(0|[1-9][0-9]{0,8})(\.0)*")

_closing: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class RowFormat:
    """The checked arguments `dtype`, `shape`, `block_size` and `compressors`."""

    def __init__(self, dtype: Any = None, shape: Any = None, block_size: Any = None, compressors: Any = "auto") -> None:
        if dtype is not None and not isinstance(dtype, torch.dtype | str):
            raise TypeError(f"dtype must be a torch.dtype or its name, got {dtype!r}")
        self.dtype = None if dtype is None else checked_dtype(dtype)
        self.shape = None if shape is None else _row_shape(shape)
        self.block_size = positive("block_size", block_size)
        self.compressors = compressors

    def header(self, old: Header | None, *, is_local: bool) -> Header:
        """Return the header of a new, empty blob.

        `old` is the header of the replaced blob. Its dtype and shape are the defaults. Raise ValidationError for blocks
        of 2 GiB or more, and for compressors that are not allowed.
        """
        dtype = self.dtype or (old.dtype if old else None)
        shape = self.shape if self.shape is not None else (old.shape if old else None)
        if dtype is None or shape is None:
            raise ValidationError(f"a new blob needs dtype and shape, got dtype={dtype} and shape={shape}")
        row_bytes = prod(shape) * dtype.itemsize
        block_size = self.block_size or max(1, min(_MOST_ROWS, _BLOCK_BYTES // row_bytes))
        if block_size * row_bytes > LARGEST_TILE_BYTES:
            raise ValidationError(
                f"a block of {block_size} rows has more than {LARGEST_TILE_BYTES} bytes; give a smaller block_size or "
                "shape"
            )
        is_automatic = isinstance(self.compressors, str) and self.compressors == "auto"
        compressors = None if is_automatic and is_local else self.compressors
        codecs = codecs_of(stored_dtype(dtype), compressors)
        return Header(shape, dtype, block_size, codecs, secrets.token_hex(8))

    def check(self, header: Header) -> None:
        """Check the dtype and the shape of an existing blob.

        Raise ValidationError if one of them differs.
        """
        for field, given, stored in (("dtype", self.dtype, header.dtype), ("shape", self.shape, header.shape)):
            if given is not None and given != stored:
                raise ValidationError(f"the blob has {field} {stored}, got {given}; mode 'w' makes a new one")


def _row_shape(shape: object) -> tuple[int, ...]:
    extents = [shape] if as_index(shape) is not None else shape
    if isinstance(extents, str) or not isinstance(extents, Sequence):
        raise ValidationError(f"shape must be an int or a tuple of ints, got {shape!r}")
    found = tuple(number for extent in extents if (number := as_index(extent)) is not None and 1 <= number <= LARGEST)
    if len(found) < len(extents):
        raise ValidationError(f"shape must contain positive ints, got {shape!r}")
    return found


def positive(name: str, value: object) -> int | None:
    """Check that `value` is a positive int or None.

    Return `value`, or raise ValidationError.
    """
    number = as_index(value)
    if value is not None and (number is None or number < 1):
        raise ValidationError(f"{name} must be a positive int or None, got {value!r}")
    return number


_ANY = RowFormat()


def opened(location: Location, most_blocks: int | None, wanted: RowFormat = _ANY) -> Rows:
    """Open the rows of an existing blob for reading."""
    wait_for_dropped()
    with location.reporting("cannot be opened"):
        header, document = location.header()
        wanted.check(header)
        return Rows(location, header, most_blocks, document=document)


def opened_for_writing(location: Location, most_blocks: int | None, wanted: RowFormat) -> Rows:
    """Open the rows of an existing blob for reading and writing."""
    wait_for_dropped()
    with location.reporting("cannot be opened"):
        # Check first, because a missing blob must not be claimed.
        wanted.check(location.header()[0])
        with _claimed(location) as right:
            # Another writer may have changed the header in between.
            return Rows(location, location.header()[0], most_blocks, right=right)


def created(location: Location, most_blocks: int | None, wanted: RowFormat) -> Rows:
    """Create or replace a blob, and open its rows for writing."""
    wait_for_dropped()
    with location.reporting("cannot be created"):
        document = _document(location, "is there already; choose an empty location")
    old = None
    with suppress(StoreError):
        old = None if document is None else Header.from_bytes(document.content)
    # Check the arguments first, because an error must not delete the existing blob.
    header = wanted.header(old, is_local=location.is_local)
    with location.reporting("cannot be created"), _claimed(location) as right:
        location.commit(header)
        location.delete_blocks()
        return Rows(location, header, most_blocks, right=right)


def delete(location: Location) -> None:
    """Delete a blob, even if incomplete.

    Do nothing if there is no blob.
    """
    wait_for_dropped()
    with location.reporting("cannot be deleted"):
        if _document(location, "is there, and is not a TensorBlob") is None and not location.names():
            return
        right = location.claim()
        try:
            # Delete the document first. Without a document, no blob is left, even after a kill.
            location.home.delete([DOCUMENT])
            location.delete_blocks(PARTIAL, LOCK)
        finally:
            right.release()
            # The place is empty only now, because a lease is an object there too.
            location.vanish()
            location.home.disconnect()


def _document(location: Location, what: str) -> Document | None:
    """Return the document of a blob, even if damaged.

    Return None if there is no document. Raise StoreError if something at the location does not belong to a blob. The
    message ends with `what`, such as "is there already".
    """
    document = location.document()
    # After a power failure, the document may be empty, or zeros.
    if document is None or not document.content.strip(b"\0"):
        if (stranger := location.stranger()) is not None:
            raise StoreError(f"{stranger!r} {what}")
    elif BLOB.encode() not in document.content:
        raise StoreError("there is data, but not a TensorBlob; choose another location")
    return document


@contextmanager
def _claimed(location: Location) -> Iterator[Right]:
    right = location.claim()
    try:
        yield right
    except BaseException:
        right.release()
        raise


def close_dropped(rows: Rows) -> None:
    """Store the pending rows of a blob dropped without `close`."""
    if not rows.holds_right:
        # For a reader, memory and connections are freed with the object.
        return
    if not rows.needs_loop:
        rows.close()
        return
    # The current thread may run the event loop, and the loop must not wait for itself.
    thread = threading.Thread(target=rows.close, name="infinite_tensor-blob")
    _closing.add(thread)
    thread.start()


def wait_for_dropped() -> None:
    """Wait until dropped blobs are closed."""
    for thread in list(_closing):
        thread.join()
