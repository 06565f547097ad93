"""Reading and writing blocks of rows.

Each block is a chunk of the Zarr array.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import google_crc32c
import numpy as np
import torch

from infinite_tensor.errors import StoreError
from infinite_tensor.values.dtypes import from_stored, to_stored
from infinite_tensor_stores.blobs.header import Header
from infinite_tensor_stores.blobs.location import DiskLocation, Location
from infinite_tensor_stores.files import opened
from infinite_tensor_stores.zarr.codec import ChunkCodec

CRC_BYTES = 4
_MISSING = "missing"
_INCOMPLETE = b"\x93rows\r\n\x1a"
_COUNT_BYTES = 4
_ZEROS = np.zeros(2**18, np.uint8)
_PIECE = 2**18


class DamagedBlockError(Exception):
    """A block is damaged or missing, except for its first `rows` rows."""

    def __init__(self, number: int, reason: str, rows: int = 0) -> None:
        super().__init__(reason)
        self.number, self.rows = number, rows


class Blocks(ABC):
    """The stored blocks of a blob."""

    cache_bytes: int
    """The default limit of the cache of blocks, in bytes."""

    at_once: int
    """The number of blocks to request at a time."""

    needs_loop: bool
    """Whether storing blocks needs the event loop. A finalizer must not wait for the event loop."""

    def __init__(self, location: Location, header: Header) -> None:
        self._location = location
        self._header = header

    @abstractmethod
    def load(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Read blocks of shape (block_size, *shape).

        The caller must not change the blocks.

        Raises
        ------
        DamagedBlockError
            If a block is damaged or missing.
        """

    @abstractmethod
    def save(self, blocks: Mapping[int, torch.Tensor]) -> None:
        """Write blocks, new or existing.

        Each block has up to block_size rows, and is filled up with zeros and `_end_of`.
        """

    def delete(self, first: int, count: int) -> None:
        """Delete `count` blocks from number `first` on."""
        # Delete backwards: if this is interrupted, the remaining blocks have no gap, and `delete_from` finds them.
        self._location.home.delete([self._header.key(number) for number in reversed(range(first, first + count))])

    def delete_from(self, number: int) -> None:
        """Delete blocks from `number` on, up to the first missing block."""
        while self._location.home.exist([self._header.key(number)]) == [True]:
            self.delete(number, 1)
            number += 1


class MappedBlocks(Blocks):
    """Uncompressed blocks in files, read through memory maps."""

    cache_bytes, at_once, needs_loop = 2**30, 1, False

    def __init__(self, folder: DiskLocation, header: Header) -> None:
        super().__init__(folder, header)
        self._folder = folder
        self._checked: dict[int, tuple[int, int, int]] = {}

    def load(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Map the files, and check new and changed files."""
        return [self._load(number) for number in numbers]

    def save(self, blocks: Mapping[int, torch.Tensor]) -> None:
        """Write files.

        If a block is not full, its file has a hole before its end.
        """
        size = self._header.block_bytes
        for number, rows in blocks.items():
            data = to_stored(rows.contiguous()).reshape(-1).view(np.uint8)
            checksum = google_crc32c.value(data)
            end = _end_of(len(rows), size - len(data))
            for zeros in range(size - len(data) - len(end), 0, -len(_ZEROS)):
                checksum = google_crc32c.extend(checksum, _ZEROS[:zeros])
            parts = [data, end + google_crc32c.extend(checksum, end).to_bytes(CRC_BYTES, "little")]
            self._folder.replace(self._header.key(number), parts, size + CRC_BYTES)

    def _load(self, number: int) -> torch.Tensor:
        path, size = self._folder.path / self._header.key(number), self._header.block_bytes
        try:
            with opened(path) as (descriptor, found):
                if found.st_size != size + CRC_BYTES:
                    raise DamagedBlockError(number, f"{found.st_size} bytes, not {size + CRC_BYTES}")
                stamp = found.st_ino, found.st_mtime_ns, found.st_ctime_ns
                if self._checked.get(number) != stamp:
                    _check(number, descriptor, size)
                    self._checked[number] = stamp
                block = _mapped(path, size)
                if not os.path.samestat(found, path.stat()):
                    # The writer has replaced the file.
                    return self._load(number)
        except FileNotFoundError:
            raise DamagedBlockError(number, _MISSING) from None
        except ValueError as error:
            raise DamagedBlockError(number, str(error)) from error
        return block.view(self._header.dtype).view(self._header.block_size, *self._header.shape)


def _check(number: int, descriptor: int, size: int) -> None:
    """Compare the checksum at the end of a file with the bytes before.

    The bytes are read, not mapped: on a tmpfs, a mapped hole takes memory, and the process is killed if no memory is
    left. Raise DamagedBlockError if the checksum does not match.
    """
    checksum = 0
    while size and (piece := os.read(descriptor, min(size, _PIECE))):
        checksum = google_crc32c.extend(checksum, piece)
        size -= len(piece)
    if os.read(descriptor, CRC_BYTES) != checksum.to_bytes(CRC_BYTES, "little"):
        raise DamagedBlockError(number, "the checksum does not match the content")


def _mapped(path: Path, size: int) -> torch.Tensor:
    """Map a file with torch.

    Unlike Python's own mmap, torch keeps no file descriptor open.
    """
    try:
        # A private map: torch needs it to be writable, but writes would not change the file.
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8, device="cpu")
    except RuntimeError:
        # If the file is gone, `stat` raises FileNotFoundError for the caller.
        path.stat()
        raise


class EncodedBlocks(Blocks):
    """Blocks read whole, then decoded.

    This class is for compressed blocks, and for all blocks on remote storage.
    """

    cache_bytes, at_once = 2**27, 8

    def __init__(self, location: Location, header: Header) -> None:
        super().__init__(location, header)
        self.needs_loop = not location.is_local
        try:
            self._codec = ChunkCodec(header.document())
        except ValueError as error:
            raise StoreError(f"{error}; zarr-python can read it") from error

    def load(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Read the blocks concurrently."""
        found = self._codec.read(self._location.home, [self._header.key(number) for number in numbers])
        blocks = []
        for number, block in zip(numbers, found, strict=True):
            if block is None:
                raise DamagedBlockError(number, _MISSING)
            if isinstance(block, Exception):
                raise DamagedBlockError(number, str(block)) from block
            blocks.append(from_stored(block, self._header.dtype))
        return blocks

    def save(self, blocks: Mapping[int, torch.Tensor]) -> None:
        """Write the blocks concurrently."""
        whole = {self._header.key(number): to_stored(self._filled(rows)) for number, rows in blocks.items()}
        self._codec.write(self._location.home, whole)

    def _filled(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) == self._header.block_size:
            return rows.contiguous()
        block = torch.zeros((self._header.block_size, *self._header.shape), dtype=self._header.dtype, device="cpu")
        block[: len(rows)] = rows
        unused = to_stored(block).reshape(-1).view(np.uint8)[rows.nbytes :]
        end = _end_of(len(rows), len(unused))
        unused[len(unused) - len(end) :] = np.frombuffer(end, np.uint8)
        return block


def _end_of(rows: int, unused: int) -> bytes:
    """Return the last bytes of a block with `unused` bytes after its rows: how many rows there are.

    Nothing if there is no room.
    """
    end = _INCOMPLETE + rows.to_bytes(_COUNT_BYTES, "little")
    return end if len(end) <= unused else b""


def rows_in(block: torch.Tensor) -> int:
    """Return how many rows were in a block when it was stored.

    A block that does not tell counts as full: it has no room, or version 1.0.0rc1 has written it.
    """
    data = to_stored(block).reshape(-1).view(np.uint8)
    end = data[-len(_INCOMPLETE) - _COUNT_BYTES :].tobytes()
    rows = int.from_bytes(end[len(_INCOMPLETE) :], "little")
    is_told = end.startswith(_INCOMPLETE) and rows * (len(data) // len(block)) + len(end) <= len(data)
    return rows if is_told else len(block)


def blocks_of(location: Location, header: Header) -> Blocks:
    """Return the blocks of a blob, mapped if possible."""
    if header.is_plain and isinstance(location, DiskLocation):
        return MappedBlocks(location, header)
    return EncodedBlocks(location, header)
