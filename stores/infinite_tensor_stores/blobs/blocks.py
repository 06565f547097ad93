"""Blocks of rows, each a chunk of the Zarr array: read, written, and kept as long as that is worth it."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

import google_crc32c
import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import StoreError
from infinite_tensor_stores.blobs.header import Header
from infinite_tensor_stores.blobs.home import Folder, Home
from infinite_tensor_stores.dtypes import from_stored, to_stored
from infinite_tensor_stores.files import opened
from infinite_tensor_stores.zarr.codec import ChunkCodec
from infinite_tensor_stores.zarr.objects import DEFAULT_CONCURRENCY, put_encoded, wait_for_abandoned

_CRC_BYTES = 4
_ZEROS = np.zeros(2**18, np.uint8)
_MAPPED_BYTES = 2**30
_DECODED_BYTES = 2**27


class LoadedBlocks:
    """The blocks that were used last, in memory or mapped.

    Parameters
    ----------
    blocks : Blocks
        Where they are stored.
    most : int
        How many are held.
    """

    def __init__(self, blocks: Blocks, most: int) -> None:
        self._blocks = blocks
        self._most = most
        self._held: OrderedDict[int, torch.Tensor] = OrderedDict()

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, number: int) -> torch.Tensor | None:
        """A block that is held, None for another one."""
        found = self._held.get(number)
        if found is not None:
            try:
                self._held.move_to_end(number)
            except KeyError:
                # A signal handler has read other blocks, in whose place it was forgotten.
                return found
        return found

    def load(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Blocks that are not held; errors as of `Blocks.load`."""
        found = self._blocks.load(numbers)
        self._held.update(zip(numbers, found, strict=True))
        for number in list(self._held)[: max(0, len(self._held) - self._most)]:
            self.forget(number)
        return found

    def forget(self, number: int) -> None:
        """Let go of a block."""
        self._held.pop(number, None)

    def clear(self) -> None:
        """Let go of all blocks."""
        self._held.clear()


Places = npt.NDArray[np.int64]


def parts_of(rows: Places, block_size: int) -> Iterator[tuple[int, tuple[Places, Places]]]:
    """Per block in which some of `rows` lie: its number, their places in `rows`, and where in the block they are."""
    if not len(rows):
        return
    numbers, at = np.divmod(rows, block_size)
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for places in np.split(order, cuts):
        yield int(numbers[places[0]]), (places, at[places])


def whole_rows(block: torch.Tensor) -> npt.NDArray[np.void]:
    """The rows of a tensor as items that numpy copies as they are."""
    array = to_stored(block)
    width = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    items: npt.NDArray[np.void] = array.reshape(-1).view(np.uint8).view(np.dtype((np.void, width)))
    return items


class DamagedBlockError(Exception):
    """A block is not what it was written as, or not there."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


class Blocks(ABC):
    """The blocks of a blob in its storage."""

    cache_bytes: int
    """So many bytes of blocks are held unless the user says how many."""

    at_once: int
    """How many blocks are worth asking for at a time."""

    def __init__(self, home: Home, header: Header) -> None:
        self._home = home
        self._header = header

    @abstractmethod
    def load(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Blocks, each of shape (block_size, *shape), not to be written to.

        Raises
        ------
        DamagedBlockError
            If one is damaged or missing.
        """

    @abstractmethod
    def save(self, blocks: Mapping[int, torch.Tensor]) -> None:
        """Write blocks, whether or not they exist: up to block_size rows of each, zeros after these."""

    @abstractmethod
    def settle(self) -> None:
        """Return when nothing is being stored any more whose caller was interrupted."""

    def delete(self, first: int, count: int) -> None:
        """Delete blocks."""
        # From the last on: what is left where that ends early follows the rows, so `delete_from` finds it.
        self._home.delete([self._header.key(number) for number in reversed(range(first, first + count))])

    def delete_from(self, number: int) -> None:
        """Delete the block `number` and those that follow it, up to one that is missing."""
        while self._home.exists(self._header.key(number)):
            self.delete(number, 1)
            number += 1

    def _full(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) == self._header.block_size:
            return rows.contiguous()
        block = torch.zeros((self._header.block_size, *self._header.shape), dtype=self._header.dtype, device="cpu")
        block[: len(rows)] = rows
        return block


class MappedBlocks(Blocks):
    """Uncompressed blocks in files, read through memory maps."""

    cache_bytes = _MAPPED_BYTES
    at_once = 1

    def __init__(self, home: Folder, header: Header) -> None:
        super().__init__(home, header)
        self._folder = home
        self._checked: dict[int, tuple[int, int, int]] = {}

    def load(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Map the files; those that this process has not seen before are checked."""
        return [self._load(number) for number in numbers]

    def save(self, blocks: Mapping[int, torch.Tensor]) -> None:
        """Write files; a block that is not full ends in a hole, and its checksum."""
        for number, rows in blocks.items():
            data = to_stored(rows.contiguous()).reshape(-1).view(np.uint8)
            size = self._header.block_bytes + _CRC_BYTES
            checksum = _extended(google_crc32c.value(data), self._header.block_bytes - len(data))
            self._folder.replace(self._header.key(number), [data, checksum.to_bytes(_CRC_BYTES, "little")], size)

    def settle(self) -> None:
        """Files are written by the thread that is interrupted."""

    def _load(self, number: int) -> torch.Tensor:
        size = self._header.block_bytes
        try:
            with opened(self._folder.path / self._header.key(number)) as (descriptor, found):
                if found.st_size != size + _CRC_BYTES:
                    raise DamagedBlockError(number, f"it has {found.st_size} bytes, not {size + _CRC_BYTES}")
                # Private: torch wants memory that could be written to.
                pages = mmap.mmap(descriptor, size + _CRC_BYTES, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise DamagedBlockError(number, "it is missing") from None
        except ValueError as error:
            raise DamagedBlockError(number, str(error)) from error
        stamp = found.st_ino, found.st_mtime_ns, found.st_ctime_ns
        if self._checked.get(number) != stamp:
            expected = int.from_bytes(pages[size:], "little")
            if google_crc32c.value(np.frombuffer(pages, np.uint8, size)) != expected:
                raise DamagedBlockError(number, "its checksum is not that of its content")
            self._checked[number] = stamp
        block = torch.frombuffer(pages, dtype=torch.uint8, count=size).view(self._header.dtype)
        return block.view(self._header.block_size, *self._header.shape)


class EncodedBlocks(Blocks):
    """Blocks that are fetched whole and decoded: compressed ones, and all that are not on a local disk."""

    cache_bytes = _DECODED_BYTES
    at_once = 8

    def __init__(self, home: Home, header: Header) -> None:
        super().__init__(home, header)
        self._codec = ChunkCodec(header.document())
        if not self._codec.is_bounded:
            raise StoreError("its compressors could take any amount of memory; they are not those that a blob has")

    def load(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Fetch the blocks at the same time."""
        keys = [self._header.key(number) for number in numbers]
        stored = []
        for number, data in zip(numbers, self._home.read(keys, self._codec.most_bytes), strict=True):
            if data is None:
                raise DamagedBlockError(number, "it is missing")
            stored.append(data)
        decoded = self._codec.decode(stored)
        blocks = []
        for number, block in zip(numbers, decoded, strict=True):
            if isinstance(block, Exception):
                raise DamagedBlockError(number, str(block)) from block
            blocks.append(from_stored(block, self._header.dtype))
        return blocks

    def save(self, blocks: Mapping[int, torch.Tensor]) -> None:
        """Write the blocks at the same time."""
        put_encoded(
            self._home.store,
            {self._header.key(number): to_stored(self._full(rows)) for number, rows in blocks.items()},
            self._codec.encode,
            DEFAULT_CONCURRENCY,
        )

    def settle(self) -> None:
        """Blocks are written on zarr's event loop, in a folder too."""
        wait_for_abandoned()


def blocks_of(home: Home, header: Header) -> Blocks:
    """The blocks of a blob, read in the way that suits them."""
    if header.is_plain and isinstance(home, Folder):
        return MappedBlocks(home, header)
    return EncodedBlocks(home, header)


def _extended(checksum: int, zeros: int) -> int:
    """The checksum of what has `checksum`, with some zeros behind."""
    while zeros > 0:
        checksum = google_crc32c.extend(checksum, _ZEROS[:zeros])
        zeros -= len(_ZEROS)
    return checksum
