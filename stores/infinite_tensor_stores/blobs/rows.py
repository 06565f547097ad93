"""All rows of an open blob, stored or not."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from infinite_tensor.errors import RegionError, StoreError
from infinite_tensor.support.allocation import new_block, new_result
from infinite_tensor.support.exit import flush_at_exit
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.tilestore.lru import LRU
from infinite_tensor_stores.blobs.blocks import DamagedBlockError, blocks_of, rows_in
from infinite_tensor_stores.blobs.header import Header
from infinite_tensor_stores.blobs.indexing import BlockPart, RowNumbers, indexable, parts_of
from infinite_tensor_stores.blobs.location import Document, Location, Right

_T = TypeVar("_T")

_CPU = torch.device("cpu")
_BUFFERED_BYTES = 2**26
_MOST_BLOCKS = 2**12
"""Far below the usual limit of about 65,000 memory maps in a process."""
_FEWER = "read fewer rows at a time"


class Rows:
    """The rows of one open blob.

    Methods may be called from many threads.

    Parameters
    ----------
    location : Location
        Where the blob is stored.
    header : Header
        The last commit.
    most_blocks : int or None
        The maximum number of blocks kept in memory, or mapped into memory. None for a default.
    document : Document, optional
        For a reader, the document from which the header was read.
    right : FileLock or Lease, optional
        The right to write, which is released when this object is closed.

    Attributes
    ----------
    length : int
        The number of rows, including those not stored yet.
    cursor : int
        The number of the row that is read or written next.
    most_blocks : int
        The maximum number of blocks kept after a read.
    writes : bool
        Whether the blob was opened for writing, in this process.
    forked : bool
        Whether the blob was opened by a parent process.
    lock : RLock
        Held during every operation of several steps.
    extending : RLock
        Held while rows are added piece by piece; acquired before `lock`.

    Notes
    -----
    A signal handler may raise an exception between any two lines of this class. So the rows must be correct after each
    line. Only the first `length` rows count; buffers and files may contain anything after these rows. An append first
    copies new rows there. Then a single line changes both `length` and `cursor`. Python handles no signals during that
    line.
    """

    def __init__(
        self,
        location: Location,
        header: Header,
        most_blocks: int | None,
        *,
        document: Document | None = None,
        right: Right | None = None,
    ) -> None:
        self.location, self.header, self.length, self.cursor = location, header, header.rows, 0
        self.lock, self.extending = threading.RLock(), threading.RLock()
        self.closed = self.forked = False
        self.writes = right is not None
        self._right, self._document = right, document
        self._mark = secrets.token_hex(8)
        self._size = header.block_size
        # A row with these properties is appended without further checks.
        self._kind = header.shape, header.dtype, torch.strided, _CPU, False
        self._blocks = blocks_of(location, header)
        self.needs_loop = self._blocks.needs_loop
        self.most_blocks = most_blocks or max(2, min(_MOST_BLOCKS, self._blocks.cache_bytes // header.block_bytes))
        self._at_once = min(self._blocks.at_once, self.most_blocks)
        self._loaded = LRU[int, torch.Tensor](max_items=self.most_blocks)
        # Blocks being written, including the incomplete last block.
        self._buffers: dict[int, torch.Tensor] = {}
        self._most_buffers = most_blocks or max(2, _BUFFERED_BYTES // header.block_bytes)
        self._unsaved: set[int] = set()
        # Whether blocks have been loaded since the document was last checked.
        self._unconfirmed = False
        # Whether the storage may differ from `header`: a change of the storage is under way, or has failed.
        self._in_doubt = False
        renew_in_children(self)
        if right is not None:
            flush_at_exit(self)
            with location.reporting("cannot be opened for writing"):
                self._blocks.delete_from(header.blocks)

    @property
    def holds_right(self) -> bool:
        """Whether this object still has the right to write."""
        return self._right is not None

    def check_apart(self) -> None:
        """Raise StoreError if this thread is already inside another call on these rows.

        A signal handler may have interrupted such a call.
        """
        # Ask the lock itself: no flag of our own would be right after every interrupt. RLock only has a private method.
        if self.lock._is_owned() or self.extending._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            raise StoreError(
                f"{self.location!r} cannot be used here: this thread is in the middle of another call. In a signal "
                "handler, set a flag, and act on the flag after that call"
            )

    def __repr__(self) -> str:
        return repr(self.location)

    # Reading.

    def row(self, number: int) -> torch.Tensor:
        """Return a copy of one row.

        This must be fast, because many programs read row by row.
        """
        with self.lock:
            self._look_again()
            self._check_there(number)
            block = number // self._size
            held = self._buffers.get(block) if self._buffers else self._loaded.get(block)
            found = self._block(block) if held is None else held
            try:
                row = torch.select_copy(found, 0, number - block * self._size)
            except RuntimeError:
                row = self._with_room(torch.select_copy, found, 0, number - block * self._size)
            self._check_there(number)
            return row

    def read(self, rows: range | RowNumbers) -> torch.Tensor:
        """Return copies of rows, in the given order.

        A range must have step 1.
        """
        shape = len(rows), *self.header.shape
        with self.lock:
            out = self._with_room(new_result, shape, self.header.dtype, _CPU, _FEWER)
        if not len(rows):
            return out
        last = rows[-1] if isinstance(rows, range) else int(rows.max())
        with self.lock:
            self._look_again()
            self._check_there(last)
            target = indexable(out, rows)
            for (_, which, at), block in self._with_blocks(list(parts_of(rows, self._size))):
                target[which] = indexable(block, rows)[at]
            self._check_there(last)
        return out

    def refresh(self) -> int:
        """Update `length` to the number of committed rows.

        Return the new length.

        Raises
        ------
        StoreError
            If the blob has been deleted or recreated, or cannot be read.
        """
        with self.lock:
            if not self.writes:
                self._follow()
                if self.length < self.header.rows:
                    # The last block was loaded when it had fewer rows.
                    self._loaded.pop(self.length // self._size)
                    self.length = self.header.rows
            return self.length

    def confirm(self) -> None:
        """Drop the loaded blocks if the writer has changed rows since loading.

        Raises the errors of `refresh`.
        """
        with self.lock:
            if self._unconfirmed:
                self._follow()

    def _look_again(self) -> None:
        if not self.writes and (self._document is None or not self._document.is_current()):
            self._follow()

    def _follow(self) -> None:
        """Read the last commit, and drop outdated blocks.

        Rows appended by the writer count only after `refresh`, so that row -1 stays the same row.
        """
        with self.location.reporting("cannot be read"):
            header, document = self._committed()
        # A forked child may have further rows in buffers, unstored at the fork.
        if (header.edits, header.rows, header.marks) != (self.header.edits, self.header.rows, self.header.marks):
            # With fewer rows, as in a restored backup, the next writer may replace blocks that are loaded.
            if not header.continues(self.header) or header.rows < self.header.rows or self._buffers:
                self._drop(self._loaded)
            # Only a forked child has buffers here. The parent has stored or replaced the buffered rows.
            self.length = header.rows if self._buffers else min(self.length, header.rows)
            self._buffers.clear()
            self._unsaved.clear()
        self.header = header
        # Set last, because after an earlier interrupt the next read must start again.
        self._document, self._unconfirmed = document, False

    def _committed(self) -> tuple[Header, Document]:
        header, document = self.location.header()
        if header.incarnation != self.header.incarnation:
            raise StoreError("the blob has been recreated since it was opened; open the blob again")
        return header, document

    def _block(self, number: int) -> torch.Tensor:
        found = self._buffers.get(number)
        if found is None:
            found = self._loaded.get(number)
        return self._load([number])[0] if found is None else found

    def _with_blocks(self, parts: list[BlockPart]) -> Iterator[tuple[BlockPart, torch.Tensor]]:
        for begin in range(0, len(parts), self._at_once):
            wave = parts[begin : begin + self._at_once]
            missing = [number for number, *_ in wave if number not in self._buffers and number not in self._loaded]
            found = dict(zip(missing, self._load(missing), strict=True)) if missing else {}
            for part in wave:
                yield part, found[part[0]] if part[0] in found else self._block(part[0])

    def _load(self, numbers: list[int]) -> list[torch.Tensor]:
        with self.location.reporting("cannot be read"):
            self._unconfirmed = not self.location.is_local
            header = self.header
            try:
                found = self._with_room(self._blocks.load, numbers)
                for number, block in zip(numbers, found, strict=True):
                    self._check_rows(number, rows_in(block))
            except DamagedBlockError as error:
                if not self.writes:
                    self._follow()
                self._check_there(error.number * self._size, error)
                if self.header != header:
                    return self._load(numbers)
                raise self._explained(error) from error
        for number, block in zip(numbers, found, strict=True):
            self._loaded.put(number, block, self.header.block_bytes)
        self._loaded.evict()
        self._look_again()
        return found

    def _with_room(self, call: Callable[..., _T], *given: Any) -> _T:
        """Call a function, once more without loaded blocks if it lacks memory, as under ``ulimit -v``."""
        try:
            return call(*given)
        except (MemoryError, RuntimeError):  # (torch raises RuntimeError)
            if not len(self._loaded):
                raise
            self._drop(self._loaded)
            return call(*given)

    def _check_rows(self, number: int, held: int) -> None:
        committed = min(self._size, self.header.rows - number * self._size)
        if held < committed:
            raise DamagedBlockError(number, f"it is older than zarr.json, with {held} of {committed} rows", held)

    def _explained(self, error: DamagedBlockError) -> StoreError:
        first, last = error.number * self._size, min((error.number + 1) * self._size, self.length) - 1
        first += error.rows
        return StoreError(
            f"block {self.header.key(error.number)} (rows {first} to {last}) is damaged: {error}. Restore it from a "
            f"copy, or call truncate({first}); other rows can be read"
        )

    def _check_there(self, number: int, cause: Exception | None = None) -> None:
        if number >= self.length:
            raise RegionError(
                f"{self.location!r} has been truncated to {self.length} rows since it was opened"
            ) from cause

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._loaded.pop(number)

    # Writing.

    def append(self, row: object) -> bool:
        """Append a row quickly, if a copy into the buffer of the last block is all that is needed.

        Return False, without a change, if the row must first be checked or converted, or if the block must be stored.
        Then call `write`. The caller holds the lock.
        """
        number, at = divmod(self.length, self._size)
        buffer = self._buffers.get(number)
        if buffer is None or at + 1 == self._size or self._in_doubt or type(row) is not torch.Tensor or row.is_nested:
            return False
        if (row.shape, row.dtype, row.layout, row.device, row.requires_grad) != self._kind:
            return False
        buffer[at].copy_(row)
        self._unsaved.add(number)
        self.cursor = self.length = self.length + 1
        return True

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Write `rows` from row number `start` on.

        `start` is at most `length`. Rows past the last row are appended. The cursor moves to the end of the new rows.

        Raises
        ------
        StoreError
            If blocks cannot be stored. The length is unchanged, but rows may have been overwritten.
        """
        with self._changing("cannot be written"):
            stop = start + len(rows)
            self._take(range(start, stop), rows)
            self.cursor, self.length = stop, max(self.length, stop)
            if stop // self._size > start // self._size:
                self._commit_full()

    def overwrite(self, numbers: range | RowNumbers, rows: torch.Tensor) -> None:
        """Overwrite rows by number.

        If a number occurs twice, the last row given for it is kept.
        """
        with self._changing("cannot be written"):
            self._take(numbers, rows.contiguous())

    def truncate(self, length: int) -> None:
        """Delete all rows after the first `length` rows.

        The caller holds the lock.
        """
        blocks, kept = -(-self.length // self._size), -(-length // self._size)
        with self._changing("cannot be truncated"):
            # Until the commit below is done, more rows are committed than exist.
            self._in_doubt = length < self.header.rows
            self.cursor, self.length = min(self.cursor, length), length
            if self._in_doubt:
                self._commit(length, self.header.edits + 2)
        with self.location.reporting("cannot be truncated"):
            self._forget_from(kept)
            self._in_doubt = True
            self._blocks.delete(kept, blocks - kept)
            self._in_doubt = False
            self.flush()

    def flush(self) -> None:
        """Commit all rows."""
        with self._changing("cannot be flushed"):
            self._save(self._unsaved, self.length)
            if self.header.changing or self.length != self.header.rows:
                self._commit(self.length, self.header.edits + self.header.changing)
            last = self.length // self._size
            self._buffers = {number: buffer for number, buffer in self._buffers.items() if number == last}

    def close(self) -> None:
        """Flush all rows, and let others write.

        Closing twice is not an error. A failed close can be repeated.
        """
        with self.lock:
            if self.closed:
                return
            if self.writes:
                self.flush()
            self._release()
            self._drop(self._loaded)
            self._buffers.clear()
            self._document = None
            self.closed = True
            if not self.forked:
                self.location.home.disconnect()

    def _release(self) -> None:
        if self._right is None:
            return
        self.writes = False
        try:
            with self.location.reporting("cannot be closed"):
                self._right.release()
        except Exception:
            self.writes = True
            raise
        self._right = None

    def _take(self, numbers: range | RowNumbers, rows: torch.Tensor) -> None:
        """Store full blocks directly from `rows`, and copy the rest into buffers."""
        if not len(numbers):
            return
        first, stop = (numbers[0], numbers.stop) if isinstance(numbers, range) else (numbers.min(), self.length)
        if first < self.header.rows:
            self._begin_edit()
        full: dict[int, torch.Tensor] = {}
        source = indexable(rows, numbers)
        for number, which, at in parts_of(numbers, self._size):
            if isinstance(at, slice) and at == slice(0, self._size) and number not in self._buffers:
                full[number] = source[which]
            else:
                buffer = self._buffer(number, stop)
                self._unsaved.add(number)
                indexable(buffer, numbers)[at] = source[which]
        self._store(full)

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """Hold the lock during a change, and restore `length` and `cursor` if the change fails."""
        with self.lock, self.location.reporting(what):
            before = self.cursor, self.length
            try:
                self._settle()
                yield
            except Exception:
                self.cursor, self.length = before
                self._forget_from(-(-self.length // self._size))
                raise

    def _forget_from(self, first: int) -> None:
        self._drop([number for number in self._loaded if number >= first])
        self._unsaved = {number for number in self._unsaved if number < first}
        self._buffers = {number: buffer for number, buffer in self._buffers.items() if number < first}

    def _commit_full(self) -> None:
        """Store and commit full blocks.

        If a long run without a flush is killed, only few rows are lost.
        """
        last = self.length // self._size
        self._save((number for number in self._unsaved if number < last), self.length)
        rows = self.length if last not in self._unsaved else max(last * self._size, self.header.rows)
        if rows > self.header.rows:
            self._commit(rows, self.header.edits)

    def _buffer(self, number: int, stop: int) -> torch.Tensor:
        """Return the buffer of a block, a new one if necessary.

        If there are too many buffers, the oldest is stored and dropped. `stop` is the end of the rows being written. It
        may be larger than `length`.
        """
        buffer = self._buffers.get(number)
        if buffer is None:
            # Later writes may come from outside the caller's inference mode, so create it outside too.
            with torch.inference_mode(mode=False):
                buffer = new_block((self._size, *self.header.shape), self.header.dtype, _CPU)
            # Copy only existing rows: after them is a hole in the file, and reading a mapped hole takes memory.
            there = min(self._size, self.length - number * self._size)
            if there > 0:
                buffer[:there].copy_(self._block(number)[:there])
            while len(self._buffers) >= self._most_buffers:
                oldest = next(iter(self._buffers))
                self._save([oldest] if oldest in self._unsaved else [], max(stop, self.length))
                del self._buffers[oldest]
            self._buffers[number] = buffer
        return buffer

    def _save(self, numbers: Iterable[int], stop: int) -> None:
        kept = [number for number in sorted(numbers) if number in self._buffers and number * self._size < stop]
        self._store({number: self._buffers[number][: stop - number * self._size] for number in kept})

    def _store(self, blocks: dict[int, torch.Tensor]) -> None:
        numbers = list(blocks)
        for begin in range(0, len(numbers), self._at_once):
            wave = numbers[begin : begin + self._at_once]
            self._check_right()
            self._drop(wave)
            self._in_doubt = True
            self._blocks.save({number: blocks[number] for number in wave})
            self._in_doubt = False
            # Drop again, because a signal handler may have loaded the blocks meanwhile.
            self._drop(wave)
            self._unsaved.difference_update(wave)

    def _begin_edit(self) -> None:
        """Tell readers, by a commit, that committed rows are about to change."""
        if not self.header.changing:
            self._commit(self.header.rows, self.header.edits + 1)

    def _commit(self, rows: int, edits: int) -> None:
        self._check_right()
        header = self.header.after(rows, edits, self._mark)
        # Even after an error, the commit may have been carried out.
        self._in_doubt = True
        self.location.commit(header)
        self.header = header
        self._in_doubt = False

    def _settle(self) -> None:
        """Read the last commit again if a write to the storage has failed or was interrupted.

        The storage may have carried out the write nevertheless.
        """
        if not self._in_doubt:
            return
        self.header, _ = self._committed()
        if self.length < self.header.rows:
            # Readers may have seen rows lost since.
            self._commit(self.length, self.header.edits + 2)
        self._in_doubt = False

    def _check_right(self) -> None:
        assert self._right is not None
        self._right.check()

    # At exit and after a fork.

    def _flush_at_exit(self) -> None:
        if not self.holds_right:
            return
        # Threads may outlive the main thread, and write more. The last call, at the exit of the interpreter, closes.
        this = threading.current_thread()
        others = any(not thread.daemon for thread in threading.enumerate() if thread is not this)
        if others and this is threading.main_thread():
            self.flush()
        else:
            self.close()

    def _renew_after_fork(self) -> None:
        self.lock, self.extending = threading.RLock(), threading.RLock()
        self._in_doubt = False
        if self._right is not None:
            self._right.abandon()
            self._right = None
        self.forked, self.writes = True, False
