"""All rows of a blob: those that are stored, and those of one that is being written, which are not stored yet."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from infinite_tensor.errors import RegionError, StoreError
from infinite_tensor.support.allocation import new_block, new_result
from infinite_tensor.support.exit import flush_at_exit
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor_stores.blobs.blocks import (
    DamagedBlockError,
    LoadedBlocks,
    MappedBlocks,
    Places,
    blocks_of,
    parts_of,
    whole_rows,
)
from infinite_tensor_stores.blobs.header import Header
from infinite_tensor_stores.blobs.home import Document, Home, Right, read_header, reported

_CPU = torch.device("cpu")
_BUFFERED_BYTES = 2**26
_FEWER = "read fewer rows at a time"


class Rows:
    """The rows of one opened blob. Its methods may be called from many threads.

    Parameters
    ----------
    home : Home
        Where it is stored.
    header : Header
        What is committed.
    most_blocks : int or None
        How many blocks are held in memory, or mapped.
    document : Document, optional
        From which the header was read, for a reader.
    right : Right, optional
        The right to write, which is let go of when this is closed.

    Attributes
    ----------
    length : int
        How many rows there are, those that wait to be stored included.
    cursor : int
        The row from which on the next ones are read, or written.
    most_blocks : int
        How many blocks that were read are held at most.
    writes : bool
        Whether it was opened for writing, in this process.
    lock : RLock
        Held by whoever does several things that belong together.
    extending : RLock
        Held by whoever adds rows piece by piece; taken before `lock`.

    Notes
    -----
    An interrupt may come between any two lines, so each line leaves all rows right. What decides is `length`, which is
    changed together with `cursor` in one line, where Python handles no signal: rows are put into buffers, or into files
    behind the last row, before they count. Buffers and files behind the last row may hold anything.
    """

    def __init__(
        self,
        home: Home,
        header: Header,
        most_blocks: int | None,
        *,
        document: Document | None = None,
        right: Right | None = None,
    ) -> None:
        self.home, self.header, self.length = home, header, header.rows
        self.cursor = 0
        self.lock, self.extending = threading.RLock(), threading.RLock()
        self.closed = False
        self.writes = right is not None
        self._right = right
        self._document = document
        self._forked = False
        self._size = header.block_size
        self._blocks = blocks_of(home, header)
        most = most_blocks or max(2, self._blocks.cache_bytes // header.block_bytes)
        self._at_once = min(self._blocks.at_once, most)
        self.most_blocks = most
        self._loaded = LoadedBlocks(self._blocks, most)
        # Blocks that are being written, the one that is not full yet among them.
        self._buffers: OrderedDict[int, torch.Tensor] = OrderedDict()
        self._most_buffers = most_blocks or max(2, _BUFFERED_BYTES // header.block_bytes)
        self._unsaved: set[int] = set()
        # Whether blocks have been loaded since somebody looked at the document.
        self._unconfirmed = False
        # Whether something may be stored that `header` does not say, or be about to be: the last attempt did not end.
        self._in_doubt = False
        renew_in_children(self)
        if right is not None:
            flush_at_exit(self)
            with self._reported("cannot be opened for writing"):
                self._blocks.settle()
                self._blocks.delete_from(header.blocks)

    @property
    def holds_right(self) -> bool:
        """Whether the right to write is to be let go of yet."""
        return self._right is not None and not self._forked and not self.closed

    @property
    def forked(self) -> bool:
        """Whether it is that of a parent process, which has it open for writing."""
        return self._forked

    def check_apart(self) -> None:
        """StoreError if this thread is in the middle of another call, which a signal handler has interrupted."""
        # Only the lock itself knows who holds it, whatever has been interrupted.
        # An RLock tells it nowhere else.
        if self.lock._is_owned() or self.extending._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001
            raise StoreError(
                f"{self.home!r} cannot be used here: this thread is in the middle of another call, which a signal "
                "handler has interrupted. Set a flag in the handler, and act on it after that call"
            )

    @property
    def needs_loop(self) -> bool:
        """Whether to store something takes zarr's event loop, which a finalizer must not wait for."""
        return not isinstance(self._blocks, MappedBlocks)

    @property
    def blocks_held(self) -> int:
        """How many blocks are in memory, or mapped."""
        return len(self._loaded) + len(self._buffers)

    # Reading.

    def row(self, number: int) -> torch.Tensor:
        """A copy of one row; short of calls, since many read row by row."""
        with self.lock:
            if not self.writes and (self._document is None or not self._document.is_current()):
                self._follow()
            if number >= self.length:
                raise self._truncated()
            block = number // self._size
            held = self._buffers.get(block) if self._buffers else self._loaded.get(block)
            found = self._block(block) if held is None else held
            row = torch.select_copy(found, 0, number - block * self._size)
            if number >= self.length:
                raise self._truncated()
            return row

    def span(self, start: int, stop: int) -> torch.Tensor:
        """A copy of the rows from `start` to before `stop`."""
        out = new_result((max(0, stop - start), *self.header.shape), self.header.dtype, _CPU, _FEWER)
        with self.lock:
            self._look_again(stop - 1)
            for number, block in self._blocks_of(range(start // self._size, -(-stop // self._size))):
                first = number * self._size
                low, high = max(start, first), min(stop, first + self._size)
                out[low - start : high - start] = block[low - first : high - first]
            self._check_there(stop - 1)
        return out

    def gather(self, rows: Places) -> torch.Tensor:
        """Copies of any rows, in the order in which they are asked for."""
        out = new_result((len(rows), *self.header.shape), self.header.dtype, _CPU, _FEWER)
        if not len(rows):
            return out
        target, last = whole_rows(out), int(rows.max())
        with self.lock:
            self._look_again(last)
            parts = dict(parts_of(rows, self._size))
            for number, block in self._blocks_of(list(parts)):
                places, at = parts[number]
                target[places] = whole_rows(block).take(at)
            self._check_there(last)
        return out

    def refresh(self) -> int:
        """Look how many rows are committed by now.

        Raises
        ------
        StoreError
            If the blob has been deleted, or made anew, or cannot be read.
        """
        with self.lock:
            if not self.writes:
                self._follow()
                if self.length < self.header.rows:
                    # Its last block had no rows behind the last.
                    self._loaded.forget(self.length // self._size)
                    self.length = self.header.rows
            return self.length

    def confirm(self) -> None:
        """Make sure that `header` was committed when the blocks that are held were loaded; errors as of `refresh`."""
        with self.lock:
            if self._unconfirmed:
                self._follow()

    def _look_again(self, last: int = -1) -> None:
        """Follow the writer, on a local disk, if it has committed; RegionError unless row `last` is there still."""
        if not self.writes and (self._document is None or not self._document.is_current()):
            self._follow()
        if last >= self.length:
            raise self._truncated()

    def _follow(self) -> None:
        """Read what is committed. Of rows that were truncated or overwritten nothing is held any more.

        Rows that have come are not counted before `refresh`, so that numbers from the end mean the same rows.
        """
        with self._reported("cannot be read"):
            header, document = read_header(self.home)
            if header.incarnation != self.header.incarnation:
                raise StoreError("it has been made anew since it was opened; open it again")
        # In a forked child, rows that waited when it was forked may follow.
        if (header.edits, header.rows) != (self.header.edits, self.header.rows):
            if header.edits != self.header.edits or self._buffers:
                self._loaded.clear()
            # Buffers are those of a forked child: the parent has stored them, or others in their place.
            self.length = header.rows if self._buffers else min(self.length, header.rows)
            self._buffers.clear()
            self._unsaved.clear()
        self.header = header
        # Last: until then, the next read begins anew.
        self._document, self._unconfirmed = document, False

    def _block(self, number: int) -> torch.Tensor:
        found = self._buffers.get(number)
        if found is None:
            found = self._loaded.get(number)
        return self._load([number])[0] if found is None else found

    def _blocks_of(self, numbers: range | list[int]) -> Iterator[tuple[int, torch.Tensor]]:
        for begin in range(0, len(numbers), self._at_once):
            wave = numbers[begin : begin + self._at_once]
            missing = [number for number in wave if number not in self._buffers and number not in self._loaded]
            found = dict(zip(missing, self._load(missing), strict=True)) if missing else {}
            for number in wave:
                yield number, found[number] if number in found else self._block(number)

    def _load(self, numbers: list[int]) -> list[torch.Tensor]:
        with self._reported("cannot be read"):
            if self._in_doubt:
                self._blocks.settle()
            self._unconfirmed = not self.home.is_local
            try:
                found = self._loaded.load(numbers)
            except DamagedBlockError as error:
                if not self.writes:
                    self._follow()
                if self.length > error.number * self._size:
                    raise self._explained(error) from error
                raise self._truncated() from error
        try:
            self._look_again()
        except BaseException:
            for number in numbers:
                self._loaded.forget(number)
            raise
        return found

    def _explained(self, error: DamagedBlockError) -> StoreError:
        first = error.number * self._size
        last = min(first + self._size, self.length) - 1
        return StoreError(
            f"block {self.header.key(error.number)}, which holds rows {first} to {last}, is damaged: {error.reason}. "
            f"Put a copy of it back, or truncate({first}) the blob; other rows can be read"
        )

    def _check_there(self, number: int) -> None:
        """RegionError if the blob turned out to have been truncated while a row was read."""
        if number >= self.length:
            raise self._truncated()

    def _truncated(self) -> RegionError:
        return RegionError(f"{self.home!r} has been truncated to {self.length} rows since it was opened")

    # Writing.

    def append(self, row: object) -> bool:
        """Put one row behind the last into the buffer that it belongs to; False, and nothing, where that takes more.

        The way of those who write one row after the other; called with the lock held.
        """
        number, at = divmod(self.length, self._size)
        buffer = self._buffers.get(number)
        header = self.header
        if (
            buffer is None
            or at + 1 == self._size
            or self._in_doubt
            or type(row) is not torch.Tensor
            # It has values, and a shape to ask for.
            or not row.is_cpu
            or row.layout is not torch.strided
            or row.is_nested
            or row.shape != header.shape
            or row.dtype is not header.dtype
            or row.requires_grad
        ):
            return False
        buffer[at].copy_(row)
        self._unsaved.add(number)
        self.cursor = self.length = self.length + 1
        return True

    def put(self, start: int, rows: torch.Tensor) -> None:
        """Store rows from `start` on, which is at most the length, and move the cursor behind them.

        They lie behind the last row where that is passed.

        Raises
        ------
        StoreError
            If what must be stored now cannot be. The blob is as long as it was, and rows may have been overwritten.
        """
        with self.lock, self._reported("cannot be written"):
            before, stop = (self.cursor, self.length), start + len(rows)
            try:
                self._settle()
                filled = self._take(start, rows)
                self.cursor, self.length = stop, max(self.length, stop)
                if filled:
                    self._commit_full()
            except Exception:
                self.cursor, self.length = before
                for number in [number for number in self._buffers if number * self._size >= self.length]:
                    self._forget(number)
                raise

    def scatter(self, numbers: Places, rows: torch.Tensor) -> None:
        """Overwrite any rows; of a row that is named twice, the last stays."""
        with self.lock, self._reported("cannot be written"):
            self._settle()
            self._begin_edit()
            values = whole_rows(rows.contiguous())
            for number, (places, at) in parts_of(numbers, self._size):
                buffer = self._buffer(number, self.length)
                self._unsaved.add(number)
                whole_rows(buffer)[at] = values[places]

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on, which is at most as many as there are."""
        with self.lock, self._reported("cannot be truncated"):
            self._settle()
            before = self.cursor, self.length
            blocks, kept = -(-self.length // self._size), -(-length // self._size)
            try:
                # More rows are committed than there are until the next line but one is done.
                self._in_doubt = length < self.header.rows
                self.cursor, self.length = min(self.cursor, length), length
                if self._in_doubt:
                    self._commit(length, self.header.edits + 2)
            except Exception:
                self.cursor, self.length = before
                raise
            for number in range(kept, blocks):
                self._forget(number)
            with self._storing():
                self._blocks.delete(kept, blocks - kept)
            self.flush()

    def flush(self) -> None:
        """Return when all rows are committed."""
        with self.lock, self._reported("cannot be flushed"):
            self._settle()
            self._save(self._unsaved, self.length)
            if self.header.changing or self.length != self.header.rows:
                self._commit(self.length, self.header.edits + self.header.changing)
            for number in [number for number in self._buffers if number != self.length // self._size]:
                del self._buffers[number]

    def close(self) -> None:
        """Flush, and let others write. A second time is no error; after one that failed, it is tried again."""
        with self.lock:
            if self.closed:
                return
            if self.writes:
                self.flush()
            self._release()
            self._loaded.clear()
            self._buffers.clear()
            document, self._document = self._document, None
            if document is not None:
                document.release()
            self.closed = True
            if not self._forked:
                self.home.close()

    def _release(self) -> None:
        """Let others write; from then on this is one that reads."""
        if self._right is None or self._forked:
            return
        self.writes = False
        try:
            with self._reported("cannot be closed"):
                self._right.release()
        except Exception:
            self.writes = True
            raise

    def _take(self, start: int, rows: torch.Tensor) -> bool:
        """Write full blocks straight from `rows`, and copy the rest into buffers; whether a block has been filled."""
        if start < self.header.rows:
            self._begin_edit()
        whole: dict[int, torch.Tensor] = {}
        done, filled = 0, False
        while done < len(rows):
            number, at = divmod(start + done, self._size)
            piece = rows[done : done + self._size - at]
            if len(piece) == self._size and number not in self._buffers:
                whole[number] = piece
            else:
                buffer = self._buffer(number, start + len(rows))
                self._unsaved.add(number)
                buffer[at : at + len(piece)] = piece
            done += len(piece)
            filled = filled or at + len(piece) == self._size
            if len(whole) == self._at_once or done == len(rows):
                self._save_whole(whole)
                whole = {}
        return filled

    def _save_whole(self, blocks: dict[int, torch.Tensor]) -> None:
        self._check_right()
        for number in blocks:
            self._loaded.forget(number)
        with self._storing():
            self._blocks.save(blocks)
        # A signal handler may have read them meanwhile.
        for number in blocks:
            self._loaded.forget(number)

    def _forget(self, number: int) -> None:
        self._loaded.forget(number)
        self._buffers.pop(number, None)
        self._unsaved.discard(number)

    def _commit_full(self) -> None:
        """Store and commit the blocks that have been filled, so that a long run without a flush loses little."""
        last = self.length // self._size
        self._save((number for number in self._unsaved if number < last), self.length)
        rows = self.length if last not in self._unsaved else max(last * self._size, self.header.rows)
        if rows > self.header.rows:
            self._commit(rows, self.header.edits)

    def _buffer(self, number: int, stop: int) -> torch.Tensor:
        """A block to write into, where rows up to `stop` are being written."""
        buffer = self._buffers.get(number)
        if buffer is None:
            buffer = new_block((self._size, *self.header.shape), self.header.dtype, _CPU)
            if number * self._size < self.length:
                buffer.copy_(self._block(number))
            while len(self._buffers) >= self._most_buffers:
                oldest = next(iter(self._buffers))
                self._save([oldest] if oldest in self._unsaved else [], max(stop, self.length))
                del self._buffers[oldest]
            self._buffers[number] = buffer
        return buffer

    def _save(self, numbers: Iterable[int], stop: int) -> None:
        """Store the rows before `stop` of blocks, from their buffers; what is not stored stays in memory."""
        kept = sorted(number for number in numbers if number in self._buffers and number * self._size < stop)
        for begin in range(0, len(kept), self._at_once):
            wave = kept[begin : begin + self._at_once]
            self._check_right()
            with self._storing():
                self._blocks.save({number: self._buffers[number][: stop - number * self._size] for number in wave})
            for number in wave:
                self._loaded.forget(number)
                self._unsaved.discard(number)

    def _begin_edit(self) -> None:
        """Tell before the first of the committed rows changes that they are not what they were."""
        if not self.header.changing:
            self._commit(self.header.rows, self.header.edits + 1)

    def _commit(self, rows: int, edits: int) -> None:
        self._check_right()
        header = replace(self.header, rows=rows, edits=edits)
        # One that fails may have been carried out, too.
        self._in_doubt = True
        self.home.commit(header.to_bytes())
        self.header = header
        self._in_doubt = False

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Within it, blocks are stored or deleted; encoded ones run on where that is interrupted."""
        self._in_doubt = True
        try:
            yield
        except Exception:
            # It is over.
            self._in_doubt = False
            raise
        self._in_doubt = False

    def _settle(self) -> None:
        """After an interrupt, or a commit that failed: wait for what goes on, and find out what is committed."""
        if not self._in_doubt:
            return
        self._blocks.settle()
        header, _ = read_header(self.home)
        if header.incarnation != self.header.incarnation:
            raise StoreError("it has been made anew since it was opened; open it again")
        self.header = header
        if self.length < header.rows:
            # Others may have seen rows that are no more.
            self._commit(self.length, header.edits + 2)
        self._in_doubt = False

    def _check_right(self) -> None:
        assert self._right is not None
        self._right.check()

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        with reported(self.home, what):
            yield

    # Processes that end, and processes that fork.

    def _flush_at_exit(self) -> None:
        if self.holds_right:
            self.close()

    def _renew_after_fork(self) -> None:
        self.lock, self.extending = threading.RLock(), threading.RLock()
        self._in_doubt = False
        self.home.renew()
        if self._right is not None and not self._forked:
            self._right.abandon()
        self._forked, self.writes = True, False
