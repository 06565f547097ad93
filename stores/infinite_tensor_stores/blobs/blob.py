"""`TensorBlob`: a growable collection of equally shaped tensors."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy.typing as npt
import torch
from torch.utils.data import Dataset
from zarr.abc.store import Store

from infinite_tensor.errors import BlobModeError, StoreError, ValidationError
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.support.functions import RegionWriter
from infinite_tensor.support.given import as_index
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore
from infinite_tensor_stores.blobs.header import Header
from infinite_tensor_stores.blobs.indexing import as_rows, rows_of, spread
from infinite_tensor_stores.blobs.location import Location, location_of
from infinite_tensor_stores.blobs.opening import (
    RowFormat,
    close_dropped,
    created,
    delete,
    opened,
    opened_for_writing,
    positive,
)
from infinite_tensor_stores.blobs.rows import Rows
from infinite_tensor_stores.targets import DEFAULT_TIMEOUT, check_mode, check_timeout

Mode: TypeAlias = Literal["r", "r+", "w", "w+", "a", "a+"]
MODES: tuple[Mode, ...] = get_args(Mode)


class TensorBlob(Dataset[torch.Tensor]):
    """A growable collection of tensors (rows) with the same shape and dtype.

    Rows are stored as a Zarr array, on any storage.

    Open one with `TensorBlob.open`. A blob has a cursor like a file, can be indexed by row, and is a map-style dataset
    for `torch.utils.data.DataLoader`. Reads return copies. Threads can share a blob, and then share its cursor.

    Rows are stored when their block is full, and by `flush` and `close`; stored rows survive a kill of the process.
    One process can write at a time, any number can read. A reader looks up the length when it opens the blob, and again
    when later rows are requested or `refresh` is called.

    A forked child and a pickled copy can only read, even if the blob was opened for writing.
    """

    def __init__(self, rows: Rows, mode: str) -> None:
        self._rows = rows
        self._mode = mode
        rows.cursor = rows.length if mode[0] == "a" else 0
        self._finalizer = weakref.finalize(self, close_dropped, rows)
        # At exit, `flush_at_exit` closes it before finalizers would run.
        self._finalizer.atexit = False

    @classmethod
    def open(
        cls,
        filename: str | os.PathLike[str] | Store,
        mode: Mode = "r",
        *,
        dtype: torch.dtype | str | None = None,
        shape: int | Sequence[int] | None = None,
        block_size: int | None = None,
        max_cached_blocks: int | None = None,
        compressors: Any = "auto",
        storage_options: dict[str, Any] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Self:
        """Open or create a blob.

        Parameters
        ----------
        filename : str, path or zarr Store
            A path, any fsspec URL (``s3://``, ``gs://``, ``memory://``, ...), or a zarr Store; nothing else may be
            stored there. A relative path is made absolute now, so that pickled copies find the same folder.
        mode : str
            ``r`` reads; ``r+`` reads, and writes at the cursor, over existing rows or at the end; ``a`` appends, and
            ``a+`` reads too; ``w`` creates a blob and replaces an existing one, and ``w+`` reads too. Only ``w`` and
            ``w+`` create.
        dtype : torch.dtype or str, optional
            Element type of a new blob. If an existing blob is replaced, the default is its dtype. In other modes, this
            must match the stored dtype.
        shape : int or sequence of int, optional
            Shape of one row, by the same rules as `dtype`; ``()`` if rows are numbers.
        block_size : int, optional
            Number of rows in a block of a new blob. Default: about 4 MiB of rows, at most 8192.
        max_cached_blocks : int, optional
            How many blocks to keep in memory or mapped. Default: 1 GiB of mapped blocks, 128 MiB of others.
        compressors : zarr codec, sequence of them, "auto" or None
            How blocks of a new blob are compressed: one or several Zstandard or Blosc codecs. "auto" does not
            compress on a local disk, and uses fast Zstandard elsewhere. A CRC-32C checksum is always added.
        storage_options : dict, optional
            Passed to fsspec. Kept in memory only, never shown.
        timeout : float
            Seconds after which a read or write on S3 fails if S3 is down or hangs.

        Returns
        -------
        TensorBlob

        Raises
        ------
        FileNotFoundError
            If there is no blob, and the mode does not create one.
        ValidationError
            (a ValueError) If an argument is invalid, or if a new blob is given no dtype or no shape.
        StoreError
            (an OSError) If the blob is already open for writing elsewhere, or the storage cannot be used.

        Examples
        --------
        >>> with TensorBlob.open(
        ...     "memory://example-blob", "w", dtype="float32", shape=(3,)
        ... ) as blob:
        ...     blob.write(torch.ones(5, 3))
        5
        >>> blob = TensorBlob.open("memory://example-blob")
        >>> blob[1:3].sum(), len(blob)
        (tensor(6.), 5)
        """
        mode = check_mode(mode, MODES)
        wanted = RowFormat(dtype, shape, block_size, compressors)
        most_blocks = positive("max_cached_blocks", max_cached_blocks)
        location = location_of(filename, storage_options, check_timeout(timeout))
        begin = created if mode[0] == "w" else opened if mode == "r" else opened_for_writing
        return cls(begin(location, most_blocks, wanted), mode)

    @classmethod
    def unlink(cls, filename: str | os.PathLike[str] | Store, *, storage_options: dict[str, Any] | None = None) -> bool:
        """Delete a blob.

        Other data at the same location is left alone.

        Parameters
        ----------
        filename, storage_options
            As for `open`.

        Returns
        -------
        bool
            Always True, even if there was no blob.

        Raises
        ------
        StoreError
            If there is other data but no blob, or if the blob is open for writing.
        """
        delete(location_of(filename, storage_options))
        return True

    @property
    def name(self) -> str:
        """The path or URL of the blob, without credentials."""
        return repr(self._rows.location)

    @property
    def filename(self) -> str:
        """The absolute path of the blob's folder, or the URL without credentials."""
        return self._rows.location.filename

    @property
    def mode(self) -> str:
        """Mode of the blob, such as ``r+``."""
        return self._mode

    @property
    def dtype(self) -> torch.dtype:
        """Element type of a row."""
        return self._rows.header.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return self._rows.header.shape

    @property
    def block_size(self) -> int:
        """Number of rows in a block."""
        return self._rows.header.block_size

    @property
    def max_cached_blocks(self) -> int:
        """Limit of blocks kept after a read, in memory or mapped."""
        return self._rows.most_blocks

    @property
    def closed(self) -> bool:
        """Whether the blob has been closed."""
        return self._rows.closed

    def readable(self) -> bool:
        """Return whether `read` works."""
        return self._mode == "r" or self._mode.endswith("+")

    def writable(self) -> bool:
        """Return whether `write` works.

        Always False in a forked child.
        """
        return self._rows.writes

    def seekable(self) -> bool:
        """Return whether `seek` works."""
        return True

    def __len__(self) -> int:
        """Return the known number of rows.

        `refresh` looks for more rows.
        """
        self._check_open()
        return self._rows.length

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._rows.length} rows"
        return f"TensorBlob({self.name!r}, mode={self._mode!r}, dtype={self.dtype}, shape={self.shape}, {state})"

    # The cursor.

    def tell(self) -> int:
        """Return the row number of the cursor."""
        self._check_open()
        return self._rows.cursor

    def seek(self, pos: int = 0, whence: int = os.SEEK_SET) -> int:
        """Move the cursor.

        Parameters
        ----------
        pos : int
            The offset in rows.
        whence : int
            What the offset is relative to: 0 the beginning, 1 the cursor, 2 the end.

        Returns
        -------
        int
            The new position, clamped to the range from 0 to the number of rows.
        """
        self._check_open()
        with self._rows.lock:
            if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
                raise ValidationError(f"whence must be 0 (beginning), 1 (cursor) or 2 (end), got {whence!r}")
            offset = _whole("pos", pos)
            if whence == os.SEEK_SET:
                self._length_for(offset)
            base = {os.SEEK_SET: 0, os.SEEK_CUR: self._rows.cursor, os.SEEK_END: self._rows.length}[whence]
            self._rows.cursor = min(max(0, base + offset), self._rows.length)
            return self._rows.cursor

    # Reading.

    def read(self, size: int | None = None) -> torch.Tensor:
        """Read rows at the cursor, and advance the cursor.

        Parameters
        ----------
        size : int, optional
            The number of rows to read; at the end of the blob there may be fewer. By default, or if this is negative,
            all remaining rows are read.

        Returns
        -------
        torch.Tensor
            The rows, of shape ``(rows, *shape)``.

        Raises
        ------
        StoreError
            (an OSError, as everywhere) If the mode does not allow reading, the blob is closed, or a block is damaged.
        """
        self._check_open()
        if not self.readable():
            raise BlobModeError(f"{self!r} is not open for reading; open it with mode 'r', 'r+', 'w+' or 'a+'")
        number = -1 if size is None else _whole("size", size)
        with self._rows.lock:
            start = min(self._rows.cursor, self._rows.length)
            wanted = start + number if number >= 0 else sys.maxsize
            stop = min(wanted, self._length_for(wanted))
            found = self._rows.read(range(start, stop))
            self._rows.cursor = stop
            return found

    def refresh(self) -> int:
        """Look for changes by a writer, and return the new length.

        A writer may have appended, overwritten or removed rows.

        Raises
        ------
        StoreError
            If the blob has been deleted or recreated; open it again.
        """
        self._check_open()
        return self._rows.refresh()

    def __iter__(self) -> Self:
        self._check_open()
        return self

    def __next__(self) -> torch.Tensor:
        """Return the row at the cursor, and move the cursor to the next row."""
        rows = self._rows
        with rows.lock:
            self._check_open()
            if rows.cursor >= rows.length and rows.cursor >= rows.refresh():
                raise StopIteration
            row = rows.row(rows.cursor)
            rows.cursor += 1
            return row

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read rows by their numbers, in any mode.

        The cursor does not move.

        Parameters
        ----------
        index : int, slice, or list, tuple, tensor or array of ints or bools
            The rows. A negative number counts from the end. A list or a tuple selects rows, not dimensions.

        Returns
        -------
        torch.Tensor
            One row of shape `shape` for an int, otherwise several of shape ``(rows, *shape)``. An array of ints with
            more than one dimension gives ``(*index.shape, *shape)``.

        Raises
        ------
        RegionError
            (an IndexError) If a row is out of range.
        TypeError
            If `index` has any other type.
        """
        rows = self._rows
        if type(index) is int and 0 <= index < rows.length and not rows.closed:
            return rows.row(index)
        self._check_open()
        with rows.lock:
            numbers = rows_of(index, self._length_for)
            if isinstance(numbers, int):
                return rows.row(numbers)
            if isinstance(numbers, range):
                return rows.read(numbers)
            return rows.read(numbers.ravel()).reshape(*numbers.shape, *self.shape)

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Read the rows of a batch, for `DataLoader`."""
        return list(self[indices].unbind(0)) if len(indices) else []

    def _length_for(self, least: int) -> int:
        return self._rows.refresh() if least > self._rows.length else self._rows.length

    def as_tensor(self, rows: int | None = None) -> InfiniteTensor:
        """Return the first rows as an `InfiniteTensor`.

        The tensor has the shape ``(rows, *shape)``, and reads the blocks of the blob.

        If rows of the blob are overwritten or truncated later, reads of the tensor raise StoreError. Rows may still be
        appended. The definition of the tensor contains the number of rows, and a version that changes whenever the blob
        is created anew, or its rows are overwritten or truncated. Two copies that have changed apart
        differ in it.

        Parameters
        ----------
        rows : int, optional
            How many rows. Default: all current rows. Rows that are not stored yet are flushed.
        """
        self._check_open()
        self._rows.check_apart()
        with store_call(self._rows), self._rows.lock:
            if self._rows.writes:
                self._rows.flush()
            wanted = None if rows is None else _whole("rows", rows)
            reader = opened(location_of(*self._rows.location.address), self._rows.most_blocks)
            header = reader.header
            count = self._snapshot_length(header, wanted)
        return InfiniteTensor(
            (count, *header.shape),
            _BlobReader(reader, header.version(count), count),
            TensorWindow((header.block_size, *header.shape)),
            dtype=header.dtype,
            version=header.version(count),
            edge="clip",
            tile_store=MemoryTileStore(),
        )

    def _snapshot_length(self, header: Header, wanted: int | None) -> int:
        if not header.continues(self._rows.header) or (wanted or 1) > self._rows.length:
            self._rows.refresh()
        if header.changing:
            raise StoreError(
                f"rows of {self!r} are being overwritten, or a writer was killed while overwriting: flush the writer, "
                "or open and close the blob with mode 'a'"
            )
        if not header.rows:
            raise ValidationError(f"{self!r} has no rows yet, but a tensor needs at least one row")
        count = min(self._rows.length, header.rows) if wanted is None else wanted
        if not 1 <= count <= header.rows:
            raise ValidationError(f"rows must be from 1 to {header.rows}, got {count}")
        return count

    # Writing.

    def write(self, ts: torch.Tensor | npt.NDArray[Any]) -> int:
        """Write rows at the cursor.

        Existing rows are overwritten. In mode ``a`` or ``a+``, rows are always appended.

        Parameters
        ----------
        ts : torch.Tensor or numpy.ndarray
            One row, rows along any number of leading dimensions, or the elements of whole rows flattened to one
            dimension.

        Returns
        -------
        int
            The number of rows written.

        Raises
        ------
        TypeError
            If the dtype is not that of the blob.
        ValidationError
            (a ValueError) If the shape does not end with that of a row, or if elements are masked.
        StoreError
            If the mode does not allow writing, or full blocks cannot be stored. The length of the blob and the cursor
            then stay as they were.
        """
        self._check_writable("written to")
        # A fast path for many single rows.
        with self._rows.lock:
            if self._start == self._rows.length and self._rows.append(ts):
                return 1
        rows = as_rows(ts, self.dtype, self.shape)
        with store_call(self._rows), self._rows.lock:
            self._rows.write(self._start, rows)
        return len(rows)

    @property
    def _start(self) -> int:
        length = self._rows.length
        return length if self._mode[0] == "a" else min(self._rows.cursor, length)

    def extend(self, other: TensorBlob, maintain_order: bool = False) -> None:  # noqa: ARG002  (the order is always kept)
        """Append all rows of another blob, and move the cursor to the end.

        Parameters
        ----------
        other : TensorBlob
            A blob with the same dtype and shape. It is not changed, and its cursor does not move.
        maintain_order : bool
            Has no effect: rows are always appended in their order.
        """
        self._check_writable("extended")
        if not isinstance(other, TensorBlob) or (other.dtype, other.shape) != (self.dtype, self.shape):
            raise ValidationError(
                f"other must be a blob of dtype {self.dtype} and shape {self.shape}, got {other!r:.200}"
            )
        other._check_open()
        count = len(other)
        step = max(1, min(other.block_size, 2 * self.block_size))
        with store_call(self._rows), self._rows.extending:
            for start in range(0, count, step):
                piece = other._rows.read(range(start, min(start + step, count)))
                with self._rows.lock:
                    self._rows.write(self._rows.length, piece)
            self._rows.cursor = self._rows.length

    def __setitem__(self, index: Any, values: Any) -> None:
        """Overwrite rows, in mode ``r+`` or ``w+``.

        The cursor does not move.

        Parameters
        ----------
        index
            As for reading.
        values : torch.Tensor, numpy.ndarray or number
            A number, or a tensor or array of the blob's dtype. It has one row for each row that `index` selects, or a
            single row for all of them.
        """
        self._check_writable("overwritten")
        if self._mode[0] == "a" or self._mode == "w":
            raise BlobModeError(f"{self!r} only takes rows at its end or cursor; open it with mode 'r+' to overwrite")
        with store_call(self._rows), self._rows.lock:
            numbers = rows_of(index, self._length_for)
            if isinstance(numbers, int):
                numbers = range(numbers, numbers + 1)
            elif not isinstance(numbers, range):
                numbers = numbers.ravel()
            self._rows.overwrite(numbers, spread(values, len(numbers), self.dtype, self.shape))

    def truncate(self, pos: int | None = None) -> int:
        """Delete the rows from `pos` on, and commit the change.

        Parameters
        ----------
        pos : int, optional
            How many rows to keep. If there are no more than that, nothing changes. Default: the rows before the cursor.

        Returns
        -------
        int
            The new number of rows.
        """
        self._check_writable("truncated")
        with store_call(self._rows), self._rows.lock:
            length = self._rows.cursor if pos is None else _whole("pos", pos)
            if length < 0:
                raise ValidationError(f"a blob cannot be truncated to {length} rows")
            if length < self._rows.length:
                self._rows.truncate(length)
            return self._rows.length

    def flush(self) -> None:
        """Commit all rows written so far.

        Readers can then see these rows, and the rows survive a kill of this process.

        Raises
        ------
        StoreError
            If rows cannot be stored. The rows stay in memory: flush again once the cause is fixed.
        """
        self._check_writable("flushed")
        with store_call(self._rows):
            self._rows.flush()

    # Lifetime.

    def close(self) -> None:
        """Flush the blob, and let others write.

        Closing twice is not an error. If flushing fails, the blob stays open.
        """
        self._rows.check_apart()
        with store_call(self._rows):
            self._rows.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the location and the cursor, for a read-only copy.

        The pickle includes the storage options and their credentials.
        """
        self._check_open()
        if self._rows.writes:
            self.flush()
        return _reopened, (type(self), self._rows.location, self._rows.most_blocks, self._rows.cursor)

    def _check_writable(self, what: str) -> None:
        self._check_open()
        if self._mode == "r":
            raise BlobModeError(f"{self!r} cannot be {what}; open it with mode 'r+', 'a' or 'w'")
        if self._rows.forked:
            raise BlobModeError(
                f"{self!r} cannot be {what} in a forked process; write in the process with the original blob"
            )
        if not self._rows.writes:
            raise BlobModeError(f"{self!r} cannot be {what}: close() was interrupted; close it, and open it again")
        self._rows.check_apart()

    def _check_open(self) -> None:
        if self._rows.closed:
            raise StoreError(f"{self!r} is closed; open it again with TensorBlob.open")


class _BlobReader(RegionWriter):
    """The ``f`` of a tensor made by `TensorBlob.as_tensor`.

    Rows are copied from the blocks of the blob.

    Parameters
    ----------
    rows : Rows
        The rows, opened for reading by this snapshot alone.
    version : dict
        The `Header.version` of the blob when the snapshot was taken.
    count : int
        The number of rows.
    """

    def __init__(self, rows: Rows, version: dict[str, Any], count: int) -> None:
        self._rows, self._version, self._count = rows, version, count

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the location of the blob, not the rows."""
        return _reader_of, (self._rows.location, self._rows.most_blocks, self._version, self._count)

    def __call__(self, ctx: tuple[int, ...]) -> torch.Tensor:
        header = self._rows.header
        block = torch.zeros((header.block_size, *header.shape), dtype=header.dtype, device="cpu")
        start = ctx[0] * header.block_size
        self.write((start, *[0] * len(header.shape)), block[: self._count - start])
        return block

    @property
    def copies(self) -> bool:
        return True

    def instead(self, dtype: torch.dtype, device: torch.device) -> str:  # noqa: ARG002
        return "it is read as stored; convert the result of a read instead"

    def writes(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:  # noqa: ARG002
        return True

    def write(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Copy rows, or parts of rows, to `out`.

        See `RegionWriter.write`.

        Raises
        ------
        StoreError
            If rows of the blob have been overwritten or truncated since the snapshot was taken.
        """
        try:
            found = self._rows.read(range(start[0], start[0] + len(out)))
            self._rows.confirm()
        finally:
            self._check()
        out.copy_(found[(slice(None), *(slice(a, a + n) for a, n in zip(start[1:], out.shape[1:], strict=True)))])

    def _check(self) -> None:
        header = self._rows.header
        if header.rows < self._count or header.version(self._count) != self._version:
            raise StoreError(
                f"{self._rows.location!r} has been overwritten or truncated since a tensor was made from its first "
                f"{self._count} rows; make a new tensor, and give new ids to all tensors computed from it"
            )


def _reader_of(location: Location, most_blocks: int, version: dict[str, Any], count: int) -> _BlobReader:
    return _BlobReader(opened(location, most_blocks), version, count)


def _reopened(kind: type[TensorBlob], location: Location, most_blocks: int, position: int) -> TensorBlob:
    blob = kind(opened(location, most_blocks), "r")
    blob.seek(position)
    return blob


def _whole(name: str, value: object) -> int:
    number = as_index(value)
    if number is None:
        raise TypeError(f"{name} must be an int, got {value!r}")
    return number
