"""Reading a blob: its cursor, its rows by number, and what it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import Dataset

from infinite_tensor.errors import BlobModeError, StoreError, ValidationError
from infinite_tensor.geometry.window import as_index
from infinite_tensor_stores.blobs.indexing import RowIndex, parsed, reach, rows_of
from infinite_tensor_stores.blobs.rows import Rows


class BlobReader(Dataset[torch.Tensor]):
    """What a blob does whatever its mode.

    Parameters
    ----------
    rows : Rows
        What it holds.
    mode : str
        How it was opened.
    """

    def __init__(self, rows: Rows, mode: str) -> None:
        self._rows = rows
        self._mode = mode
        rows.cursor = rows.length if mode[0] == "a" else 0

    @property
    def name(self) -> str:
        """Where it is stored, without credentials."""
        return repr(self._rows.home)

    @property
    def filename(self) -> Path | str:
        """The absolute path of its folder on a local disk; elsewhere its URL as a str, without credentials."""
        return self._rows.home.filename

    @property
    def mode(self) -> str:
        """The mode that it was opened with."""
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
        """Rows of a block."""
        return self._rows.header.block_size

    @property
    def max_cached_blocks(self) -> int:
        """How many blocks that were read are held at most, in memory or mapped."""
        return self._rows.most_blocks

    @property
    def blocks_held(self) -> int:
        """How many blocks are in memory, or mapped, at the moment."""
        return self._rows.blocks_held

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._rows.closed

    def readable(self) -> bool:
        """Whether `read` works."""
        return self._mode == "r" or self._mode.endswith("+")

    def writable(self) -> bool:
        """Whether `write` works; not in a forked child."""
        return self._rows.writes

    def seekable(self) -> bool:
        """Whether `seek` works."""
        return True

    def __len__(self) -> int:
        """How many rows there are, as far as this object knows."""
        self._check_open()
        return self._rows.length

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._rows.length} rows"
        return f"TensorBlob({self.name!r}, mode={self._mode!r}, dtype={self.dtype}, shape={self.shape}, {state})"

    # The cursor.

    def tell(self) -> int:
        """The row at which the cursor stands."""
        self._check_open()
        return self._rows.cursor

    def seek(self, pos: int = 0, whence: int = os.SEEK_SET) -> int:
        """Move the cursor.

        Parameters
        ----------
        pos : int
            By how many rows.
        whence : int
            From where: 0 the beginning, 1 the cursor, 2 the end.

        Returns
        -------
        int
            Where it stands now: never before the beginning, nor behind the end.
        """
        self._check_open()
        with self._rows.lock:
            if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
                raise ValidationError(f"whence must be 0 (beginning), 1 (cursor) or 2 (end), got {whence!r}")
            offset = whole("pos", pos)
            if whence == os.SEEK_SET and offset > self._rows.length:
                self._rows.refresh()
            base = {os.SEEK_SET: 0, os.SEEK_CUR: self._rows.cursor, os.SEEK_END: self._rows.length}[whence]
            self._rows.cursor = min(max(0, base + offset), self._rows.length)
            return self._rows.cursor

    # Reading.

    def read(self, size: int | None = None) -> torch.Tensor:
        """Read rows from the cursor on, and move it behind them.

        Parameters
        ----------
        size : int, optional
            How many; there may be fewer. Default, and for a negative number: all that are left.

        Returns
        -------
        torch.Tensor
            Of shape ``(rows, *shape)``.

        Raises
        ------
        StoreError
            (an OSError, as everywhere) If the mode does not allow it, the blob is closed, or a block is damaged.
        """
        self._check_open()
        if not self.readable():
            raise BlobModeError(f"{self!r} is not open for reading; open it with mode 'r', 'r+', 'w+' or 'a+'")
        number = None if size is None else whole("size", size)
        with self._rows.lock:
            start = min(self._rows.cursor, self._rows.length)
            if number is None or number < 0 or start + number > self._rows.length:
                self._rows.refresh()
            length = self._rows.length
            stop = length if number is None or number < 0 else min(start + number, length)
            found = self._rows.span(start, stop)
            self._rows.cursor = stop
            return found

    def refresh(self) -> int:
        """Look whether the blob has grown, been truncated or overwritten, and return its length.

        Raises
        ------
        StoreError
            If it has been deleted or made anew; open it again.
        """
        self._check_open()
        return self._rows.refresh()

    def __iter__(self) -> Self:
        self._check_open()
        return self

    def __next__(self) -> torch.Tensor:
        """The row at the cursor, which moves on."""
        rows = self._rows
        with rows.lock:
            self._check_open()
            if rows.cursor >= rows.length and rows.cursor >= rows.refresh():
                raise StopIteration
            row = rows.row(rows.cursor)
            rows.cursor += 1
            return row

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Rows by their numbers, whatever the mode; the cursor stays.

        Parameters
        ----------
        index : int, slice, or list, tuple, tensor or array of ints or bools
            A negative number counts from the end. A list or a tuple means several rows, never several dimensions.

        Returns
        -------
        torch.Tensor
            One row of shape `shape` for an int, otherwise ``(rows, *shape)``.

        Raises
        ------
        RegionError
            (an IndexError) If a row is out of range.
        TypeError
            If `index` is of another kind.
        """
        rows = self._rows
        if type(index) is int and 0 <= index < rows.length and not rows.closed:
            return rows.row(index)
        self._check_open()
        wanted = parsed(index)
        with rows.lock:
            numbers = rows_of(wanted, self._reached(wanted))
            if isinstance(numbers, int):
                return rows.row(numbers)
            if not isinstance(numbers, range):
                return rows.gather(numbers)
            if numbers.step == 1:
                return rows.span(numbers.start, numbers.stop)
            return rows.gather(np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64))

    def __getitems__(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """Rows of a batch; a `DataLoader` asks for them this way."""
        return list(self[indices].unbind(0)) if len(indices) else []

    def _reached(self, index: RowIndex) -> int:
        """The length, looked at again if `index` reaches behind it."""
        return self._rows.refresh() if reach(index) > self._rows.length else self._rows.length

    def _check_open(self) -> None:
        if self._rows.closed:
            raise StoreError(f"{self!r} is closed; open it again with TensorBlob.open")


def whole(name: str, value: object) -> int:
    """`value`, if it is an int; TypeError otherwise."""
    number = as_index(value)
    if number is None:
        raise TypeError(f"{name} must be an int, got {value!r}")
    return number
