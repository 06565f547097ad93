"""Finding, creating and deleting blobs: what `TensorBlob.open` and `TensorBlob.unlink` do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from infinite_tensor.errors import BlobNotFoundError, StoreError, ValidationError
from infinite_tensor.geometry.window import as_index
from infinite_tensor.values.checks import checked_dtype
from infinite_tensor.values.definition import dtype_of
from infinite_tensor_stores.blobs.header import DOCUMENT, Header, is_blob, row_shape
from infinite_tensor_stores.blobs.home import Document, Home, Right, read_document, read_header, reported
from infinite_tensor_stores.blobs.rows import Rows


class Wanted:
    """What a user says of a blob when opening it; the arguments are those of `TensorBlob.open`."""

    def __init__(self, dtype: Any, shape: Any, block_size: Any, compressors: Any) -> None:
        if dtype is not None and not isinstance(dtype, torch.dtype | str):
            raise TypeError(f"dtype must be a torch.dtype or its name, got {dtype!r}")
        self.dtype = dtype_of(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
        if self.dtype is not None:
            checked_dtype(self.dtype)
        try:
            self.shape = None if shape is None else row_shape(shape)
        except ValueError as error:
            raise ValidationError(str(error)) from error
        self.block_size = positive("block_size", block_size)
        self.compressors = compressors

    def header(self, home: Home, old: Header | None) -> Header:
        """A new blob, in the place of one that was there, perhaps."""
        dtype = self.dtype or (old.dtype if old else None)
        shape = self.shape if self.shape is not None else (old.shape if old else None)
        if dtype is None or shape is None:
            raise ValidationError(f"a new blob needs dtype and shape, got dtype={dtype} and shape={shape}")
        automatic = isinstance(self.compressors, str) and self.compressors == "auto"
        compressors = None if automatic and home.is_local else self.compressors
        return Header.new(shape, dtype, self.block_size, compressors)

    def check(self, header: Header) -> None:
        """ValidationError if a blob that is there is another one."""
        for field, given, stored in (("dtype", self.dtype, header.dtype), ("shape", self.shape, header.shape)):
            if given is not None and given != stored:
                raise ValidationError(f"the blob has {field} {stored}, got {given}; mode 'w' makes it anew")


def opened(home: Home, wanted: Wanted, most_blocks: int | None) -> Rows:
    """The rows of a blob that is there, to be read."""
    header, document = _found(home, wanted)
    with reported(home, "cannot be opened"):
        return Rows(home, header, most_blocks, document=document)


def opened_for_writing(home: Home, wanted: Wanted, most_blocks: int | None) -> Rows:
    """The rows of a blob that is there, to be written too."""
    _found(home, wanted)
    with reported(home, "cannot be opened"):
        right = home.lock()
        with _kept_by_rows(right):
            # Somebody may have written it in between.
            header, _ = read_header(home)
            return Rows(home, header, most_blocks, right=right)


def _found(home: Home, wanted: Wanted) -> tuple[Header, Document]:
    try:
        with reported(home, "cannot be opened"):
            header, document = read_header(home)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise BlobNotFoundError(f"there is no blob at {home!r}; mode 'w' creates one") from error
        raise
    wanted.check(header)
    return header, document


@contextmanager
def _kept_by_rows(right: Right) -> Iterator[None]:
    """Let go of the right to write where what is done within it fails."""
    try:
        yield
    except BaseException:
        right.release()
        raise


def created(home: Home, wanted: Wanted, most_blocks: int | None) -> Rows:
    """The rows of a new blob in place of what is there, to be written."""
    with reported(home, "cannot be created"):
        document = read_document(home)
        if document is None and (stranger := home.stranger()) is not None:
            raise StoreError(f"{stranger!r} is there already; choose an empty place")
        if document is not None and not is_blob(document.content):
            raise StoreError("something else is there; choose another place")
        old = None if document is None else _readable(document.content)
    # What is wrong with the arguments must not cost what is there.
    header = wanted.header(home, old)
    with reported(home, "cannot be created"):
        right = home.lock(create=True)
        with _kept_by_rows(right):
            home.commit(header.to_bytes())
            home.delete([key for key in home.objects() if key.startswith("c.")])
            return Rows(home, header, most_blocks, right=right)


def _readable(document: bytes) -> Header | None:
    try:
        return Header.from_bytes(document)
    except (ValueError, KeyError, TypeError):
        return None


def delete(home: Home) -> None:
    """Delete a blob, or what is left of one, where there is one."""
    with reported(home, "cannot be deleted"):
        document = read_document(home)
        if document is None and (stranger := home.stranger()) is not None:
            raise StoreError(f"{stranger!r} is there, and no TensorBlob")
        if document is None and not home.objects():
            return
        if document is not None and not is_blob(document.content):
            raise StoreError("it is not a TensorBlob")
        right = home.lock()
        try:
            _delete_all(home)
        finally:
            right.release()
            home.close()


def _delete_all(home: Home) -> None:
    # The document first: without it the rest is nothing, whatever happens to this process.
    home.delete([DOCUMENT])
    home.delete([key for key in home.objects() if key.startswith("c.")])
    home.vanish()


def positive(name: str, value: object) -> int | None:
    """`value`, if it is a positive int or None; ValidationError otherwise."""
    number = as_index(value)
    if value is not None and (number is None or number < 1):
        raise ValidationError(f"{name} must be a positive int or None, got {value!r}")
    return number
