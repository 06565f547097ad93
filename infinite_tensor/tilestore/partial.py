"""Tiles with missing windows, in storage (`PartialTile`) and in memory (`TileInProgress`)."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# safetensors imports this one at its first save, in the thread of a writer. A Ctrl-C within another import of the main
# thread may leave Python's import lock held, and the writer would wait for ever.
import numpy.ctypeslib  # noqa: F401
import safetensors.torch
import torch
from safetensors import SafetensorError

from infinite_tensor.errors import OutOfMemoryError, StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.allocation import Array, as_array, as_tensor, copied, new_block
from infinite_tensor.tilestore.layout import Record, TileLayout, copy_shared
from infinite_tensor.tilestore.messages import warn_of_damage
from infinite_tensor.values.blend import Blender
from infinite_tensor.values.dtypes import dtype_name, dtype_of
from infinite_tensor.values.reduction import Reducer


class DamagedPartialError(ValueError):
    """Raised for damaged data of a partial tile, and for data of another tile."""


@dataclass(frozen=True)
class PartialTile:
    """The known windows of a tile, as stored.

    Attributes
    ----------
    prefix : torch.Tensor or None
        The blend of the first windows, in lexicographic order, in the shape of a tile. For a weighted mean, this is the
        weighted sum of the windows, in the dtype of `Blender.accumulator`.
    prefix_length : int
        The number of windows in `prefix`.
    pieces : mapping of window index to torch.Tensor
        Other known windows, each cut to the part inside the tile. Some may also be in `prefix`.
    """

    prefix: torch.Tensor | None = None
    prefix_length: int = 0
    pieces: Mapping[Index, torch.Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return sum(block.nbytes for block in (self.prefix, *self.pieces.values()) if block is not None)

    def _to(self, device: torch.device, dtype: torch.dtype, accumulator: torch.dtype) -> PartialTile:
        """Return the windows on another device and in another dtype."""
        pieces = {index: piece.to(device, dtype) for index, piece in self.pieces.items()}
        prefix = None if self.prefix is None else self.prefix.to(device, accumulator)
        return PartialTile(prefix, self.prefix_length, pieces)

    @staticmethod
    def merged(parts: Iterable[PartialTile]) -> PartialTile | None:
        """Merge parts of a tile.

        The result has the pieces of all parts, but only one prefix, the longest. Return None if there are no parts.
        """
        known = list(parts)
        if not known:
            return None
        longest = max(known, key=lambda part: part.prefix_length)
        pieces = {index: piece for part in known for index, piece in part.pieces.items()}
        return PartialTile(longest.prefix, longest.prefix_length, pieces)

    @classmethod
    def from_log(cls, log: Iterable[bytes | Exception], place: str, store: object) -> PartialTile | None:
        """Merge the parts of a log. Return None if no part is intact.

        Parameters
        ----------
        log : iterable of bytes or Exception
            For each part, the bytes from `to_bytes` for `place`, or the error raised by reading the part. A damaged
            part is skipped with a `DamagedDataWarning`.
        place : str
            The name of the tile.
        store : object
            The store to name in the warning.
        """
        parts = []
        for number, data in enumerate(log):
            try:
                if isinstance(data, Exception):
                    raise DamagedPartialError(f"partial tile {place} is damaged ({data})") from data
                parts.append(cls.from_bytes(data, place))
            except DamagedPartialError as error:
                warn_of_damage(store, f"part {number}: {error}")
        return cls.merged(parts)

    def to_bytes(self, place: str) -> bytes:
        """Return the part as safetensors, with a digest.

        The digest covers the content, and the name `place` of the tile.
        """
        tensors = {_piece_name(index): piece for index, piece in self.pieces.items()}
        if self.prefix is not None:
            tensors[_PREFIX] = self.prefix
        dtype = next(iter(tensors.values())).dtype if tensors else torch.uint8
        # safetensors does not support complex128, so every dtype is stored as bytes.
        raw = {name: tensor.contiguous().view(torch.uint8) for name, tensor in tensors.items()}
        metadata = {"dtype": dtype_name(dtype), "prefix_length": str(self.prefix_length)}
        if self.prefix is not None and self.prefix.dtype != dtype:
            metadata["prefix_dtype"] = dtype_name(self.prefix.dtype)
        return safetensors.torch.save(raw, metadata | {"digest": _digest(place, metadata, raw)})

    @classmethod
    def from_bytes(cls, data: bytes, place: str) -> PartialTile:
        """Read a part from the bytes of `to_bytes`.

        Raise DamagedPartialError if the part is damaged, or does not belong to the tile with the name `place`.
        """
        try:
            raw = safetensors.torch.load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            metadata = dict(header["__metadata__"])
            if metadata.pop("digest") != _digest(place, metadata, raw):
                raise ValueError("the content does not match the digest")
            dtype = dtype_of(metadata["dtype"])
            prefix = raw.pop(_PREFIX, None)
            if prefix is not None:
                prefix = prefix.view(dtype_of(metadata.get("prefix_dtype", metadata["dtype"])))
            pieces = {_index_of(name): piece.view(dtype) for name, piece in raw.items()}
            return cls(prefix, int(metadata["prefix_length"]), pieces)
        except (SafetensorError, KeyError, RuntimeError, ValueError, TypeError, OverflowError) as error:
            raise DamagedPartialError(f"damaged partial tile {place}: {error}") from error


_PREFIX = "prefix"


def _piece_name(index: Index) -> str:
    return "piece " + ",".join(map(str, index))


def _index_of(name: str) -> Index:
    index = tuple(int(part) for part in name.removeprefix("piece ").split(","))
    if _piece_name(index) != name:
        raise ValueError(f"{name!r} is not the name of a piece")
    return index


def _digest(place: str, metadata: Mapping[str, str], raw: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    fields = [metadata[name] for name in ("dtype", "prefix_length", "prefix_dtype") if name in metadata]
    for text in (place, *fields):
        digest.update(f"{text}\0".encode())
    for name in sorted(raw):
        digest.update(f"{name} {tuple(raw[name].shape)}\0".encode())
        digest.update(raw[name].numpy().data)
    return digest.hexdigest()


class Row(NamedTuple):
    """Windows of a tile, adjacent along the last coordinate, cut to the tile along all other dimensions.

    Attributes
    ----------
    rank : int
        The position of the first window among all windows over the tile.
    start : sequence of int
        The first pixel of the first window, after the cut.
    windows : array of shape (N, *extents)
        The windows.
    """

    rank: int
    start: Sequence[int]
    windows: Array


class TileInProgress:
    """A tile in memory that collects windows until it is complete.

    Windows arrive in any order. All windows before the first missing window are blended immediately, into the prefix.
    Later windows wait in rows. So every pixel is blended in lexicographic order, and heavy overlap takes little
    memory. If the tensor has a reduction, the tile is reduced when all windows have arrived.
    Not safe for threads: the store holds a lock.

    Attributes
    ----------
    spoilt : bool
        Whether a blend has raised an error. Some pixels may be wrong then, and the tile must not be used.
    """

    def __init__(self, record: Record, tile: Index) -> None:
        self.tile = tile
        self.logged = False
        self._record = record
        self._is_reduced = record.spec.reduction is not None
        self._grid = record.spec.gathered.grid
        self._layout = layout = record.gathered
        tile = self._lifted(tile)
        self._start = layout.start(tile)
        # Pixels of the tile beyond the end of the tensor stay blank, even if windows reach there.
        self._stop = layout.stop(tile)
        self._inside = tuple(map(slice, map(operator.sub, self._stop, self._start)))
        low, high = self._grid.box(self._start, self._stop)
        self._low = low
        self._widths = list(map(operator.sub, high, low))
        self.total: int = math.prod(self._widths)
        self._prefix: Array | None = None
        self._prefix_length = 0
        # The waiting windows by rank, each with its row.
        self._waiting: dict[int, Row] = {}
        self._waiting_bytes = 0
        self._stored_prefix = 0
        self._stored_ranks: set[int] = set()
        self.spoilt = False

    @property
    def complete(self) -> bool:
        """Whether the tile has all windows."""
        return self._prefix_length == self.total

    @property
    def pixels(self) -> Array | None:
        """The pixels of a complete tile.

        None for an incomplete tile, and for a tile in a gap between windows, which has no pixels.
        """
        return self._prefix if self._prefix_length == self.total else None

    @property
    def dirty(self) -> bool:
        """Whether windows were added since the last `mark_stored`."""
        grown = self._prefix_length > self._stored_prefix or not self._waiting.keys() <= self._stored_ranks
        return grown and not self.spoilt

    @property
    def empty(self) -> bool:
        """Whether no window is known yet."""
        return not self._prefix_length and not self._waiting

    @property
    def nbytes(self) -> int:
        """Memory used by the tile, in bytes."""
        return self._waiting_bytes + (0 if self._prefix is None else self._prefix.nbytes)

    def __contains__(self, index: Index) -> bool:
        rank = self._rank(self._lifted(index))
        return rank < self._prefix_length or rank in self._waiting

    def known(self) -> frozenset[Index]:
        """Return the indices of all known windows."""
        return frozenset(map(self._lowered, map(self._index, (*range(self._prefix_length), *self._waiting))))

    # Not cached, because a tensor opened without functions may get them later.
    @property
    def _blender(self) -> Blender:
        return self._record.spec.gathered.blender

    @property
    def _reducer(self) -> Reducer:
        reducer = self._record.spec.reducer
        assert reducer is not None
        return reducer

    def _lifted(self, index: Index) -> Index:
        return self._reducer.lifted(index) if self._is_reduced else index

    def _lowered(self, index: Index) -> Index:
        return self._reducer.lowered(index) if self._is_reduced else index

    def add_row(self, index: Index, windows: Array) -> None:
        """Add a row of windows, adjacent along the last coordinate.

        `index` is the index of the first window. All windows must touch the tile. Pixels outside the tile are ignored.
        """
        if self.spoilt:
            return
        index = self._lifted(index)
        rank = self._rank(index)
        known = max(0, min(self._prefix_length - rank, len(windows)))
        rank, index, windows = rank + known, (*index[:-1], index[-1] + known), windows[known:]
        if not len(windows):
            return
        self.spoilt = True
        for begin, end in self._unknown(rank, len(windows)):
            if rank + begin == self._prefix_length:
                self._blend_in(windows[begin:end], (*index[:-1], index[-1] + begin))
            else:
                self._keep(rank + begin, windows[begin:end])
        self._absorb()
        self.spoilt = False

    def _unknown(self, rank: int, count: int) -> list[tuple[int, int]]:
        """Find the runs of windows to add: each run is ``[begin, end)``, counted from the window of `rank`."""
        if self._waiting.keys().isdisjoint(range(rank, rank + count)):
            return [(0, count)]
        missing = [number for number in range(count) if rank + number not in self._waiting]
        begins = [n for n in missing if rank + n - 1 in self._waiting or not n]
        ends = [n + 1 for n in missing if rank + n + 1 in self._waiting or n + 1 == count]
        return list(zip(begins, ends, strict=True))

    def merge(self, partial: PartialTile) -> None:
        """Add the stored windows of the tile.

        Raise DamagedPartialError, and add nothing, if the data does not match the tile.
        """
        self.logged = True
        self._check_fits(partial)
        if partial.prefix is not None and partial.prefix_length > self._prefix_length:
            self._begin_with(copied(as_array(partial.prefix)), partial.prefix_length)
            self._stored_prefix = partial.prefix_length
            self._waiting = {rank: row for rank, row in self._waiting.items() if rank >= self._prefix_length}
        for index, piece in partial.pieces.items():
            rank = self._rank(self._lifted(index))
            self._stored_ranks.add(rank)
            if rank >= self._prefix_length and rank not in self._waiting:
                self._waiting[rank] = Row(rank, self._piece_start(self._lifted(index)), as_array(piece)[None])
        self._waiting_bytes = sum({id(row): row.windows.nbytes for row in self._waiting.values()}.values())
        self._absorb()

    def read(self, target: Array, low: Sequence[int]) -> None:
        """Fill `target` with the pixels from `low` on.

        All windows of these pixels must be known.
        """
        if self.pixels is not None:
            copy_shared(self.pixels, self._record.layout.start(self.tile), target, low)
        elif not self._is_reduced:
            self._read(target, low)
        else:
            begin, shape = self._reducer.over(low, target.shape)
            values = as_array(torch.empty(shape, dtype=self._layout.dtype, device=self._record.device))
            self._read(values, begin)
            self._reducer.reduce(values, low, target)

    def serve(self, start: Sequence[int], to: tuple[slice, ...], out: Array) -> bool:
        """Fill ``out[to]``, if all windows of these pixels are known, and return whether they are.

        `out` begins at pixel `start`.
        """
        low = [a + part.start for a, part in zip(start, to, strict=True)]
        high = [a + part.stop for a, part in zip(start, to, strict=True)]
        windows = itertools.product(*map(range, *self._record.spec.grid.box(low, high)))
        if self.spoilt or not all(index in self for index in windows):
            return False
        self.read(out[to], low)
        return True

    def _read(self, target: Array, low: Sequence[int]) -> None:
        """Fill `target` without applying the reduction."""
        if self.spoilt:
            raise StoreError(
                f"tile {self.tile} of tensor {self._record.spec.tensor_id!r} was dropped while it was being read, "
                "because the blend raised an error in another read; read again"
            )
        high = [a + n for a, n in zip(low, target.shape, strict=True)]
        block = self._blender.begun(target)
        if self._prefix is not None:
            copy_shared(self._prefix, self._start, block, low)
        else:
            self._blender.prepare(block, low)
        if self._waiting:
            self._fold_waiting(block, low, *self._grid.box(low, high))
        self._blender.finish(block, low, target)

    def _fold_waiting(self, block: Array, low: Sequence[int], first: Sequence[int], end: Sequence[int]) -> None:
        """Fold the waiting windows in the box ``[first, end)`` into a block that begins at pixel `low`."""
        for lead in itertools.product(*map(range, first[:-1], end[:-1])):
            rank = self._rank((*lead, first[-1]))
            stop = rank + end[-1] - first[-1]
            while rank < stop:
                row = self._waiting.get(rank)
                if row is None:
                    rank += 1
                    continue
                windows, start = self._rest(row, rank)
                self._blender.fold_row(block, low, windows[: stop - rank], self._index(rank), start)
                rank += len(windows)

    def _rest(self, row: Row, rank: int) -> tuple[Array, Sequence[int]]:
        """Return the windows of a row from `rank` on, and the first pixel of the first."""
        skipped = rank - row.rank
        return (row.windows[skipped:], self._grid.moved(row.start, skipped)) if skipped else (row.windows, row.start)

    def finished(self) -> torch.Tensor:
        """Return the pixels of a complete tile."""
        assert self._prefix is not None
        assert self._prefix_length == self.total
        return as_tensor(self._prefix)

    def unstored(self) -> PartialTile | None:
        """Return the windows added since the last `mark_stored`, as a part for storage.

        If the prefix has grown, the part has the whole prefix. Return None if there are none, or if the tile is spoilt.
        """
        ranks = self._waiting.keys() - self._stored_ranks
        grown = self._prefix_length > self._stored_prefix
        if self.spoilt or not (ranks or grown):
            return None
        pieces = {self._lowered(self._index(rank)): as_tensor(self._piece(rank)) for rank in sorted(ranks)}
        return PartialTile(self._known_prefix() if grown else None, self._prefix_length if grown else 0, pieces)

    def _known_prefix(self) -> torch.Tensor:
        """Return a copy of the prefix, blank where none of its windows are."""
        assert self._prefix is not None
        copy, end = self._allocated(self._layout, self._blender.accumulator), self._index(self._prefix_length)
        self._blender.blank(as_array(copy))
        for k, i in enumerate(end):
            if i > self._low[k]:
                # The windows before `end` that agree with it in the first k coordinates.
                first = (*end[:k], *self._low[k:])
                last = (*end[:k], i - 1, *[a + n - 1 for a, n in zip(self._low, self._widths, strict=True)][k + 1 :])
                bounds = zip(self._start, self._piece_start(first), self._piece_stop(last), strict=True)
                box = tuple([slice(low - begin, high - begin) for begin, low, high in bounds])
                as_array(copy)[box] = self._prefix[box]
        return copy

    def copied(self, record: Record) -> TileInProgress:
        """Return a copy of the tile for another record of the tensor."""
        copy, known = TileInProgress(record, self.tile), self.unstored()
        if known is not None:
            spec = record.spec.gathered
            copy.merge(known._to(record.device, spec.dtype, spec.blender.accumulator))
            # They came from memory, and may have to be copied again.
            copy._stored_prefix, copy._stored_ranks = 0, set()
        return copy

    def mark_stored(self, partial: PartialTile) -> None:
        """Mark the windows in `partial` as stored.

        `partial` is a result of `unstored`.
        """
        self.logged = True
        self._stored_prefix = max(self._stored_prefix, partial.prefix_length)
        self._stored_ranks.update(self._rank(self._lifted(index)) for index in partial.pieces)

    def _check_fits(self, partial: PartialTile) -> None:
        length = partial.prefix_length
        if not 0 <= length <= self.total or (partial.prefix is None) is (length > 0):
            raise DamagedPartialError(
                f"prefix_length {length} does not match the prefix, or exceeds the {self.total} windows of the tile"
            )
        if partial.prefix is not None:
            self._check_block("prefix", partial.prefix, self._blender.accumulator, self._layout.tile_shape)
        for named, piece in partial.pieces.items():
            index = self._lifted(named)
            inside = len(index) == len(self._low) and all(
                0 <= i - low < width for i, low, width in zip(index, self._low, self._widths, strict=True)
            )
            if not inside:
                raise DamagedPartialError(f"window {index} has a piece, but does not touch the tile")
            bounds = zip(self._piece_start(index), self._piece_stop(index), strict=True)
            shape = tuple([b - a for a, b in bounds])
            self._check_block(f"piece of window {index}", piece, self._layout.dtype, shape)

    def _check_block(self, name: str, block: torch.Tensor, dtype: torch.dtype, shape: Index) -> None:
        if block.dtype != dtype or block.shape != shape:
            raise DamagedPartialError(
                f"{name} must have {dtype} and shape {shape}, got {block.dtype} and shape {tuple(block.shape)}"
            )

    def _rank(self, index: Index) -> int:
        """Return the position of a window among all windows over the tile, counted from 0."""
        rank = 0
        for i, low, width in zip(index, self._low, self._widths, strict=True):
            rank = rank * width + i - low
        return rank

    def _index(self, rank: int) -> Index:
        index = []
        for low, width in zip(reversed(self._low), reversed(self._widths), strict=True):
            rank, i = divmod(rank, width)
            index.append(low + i)
        return tuple(reversed(index))

    def _piece_start(self, index: Index) -> list[int]:
        return [max(a, b) for a, b in zip(self._start, self._grid.window.start(index), strict=True)]

    def _piece_stop(self, index: Index) -> list[int]:
        window = self._grid.window
        return [min(a, b + n) for a, b, n in zip(self._stop, window.start(index), window.size, strict=True)]

    def _piece(self, rank: int) -> Array:
        """Return a waiting window, cut to the tile."""
        windows, start = self._rest(self._waiting[rank], rank)
        stop = self._piece_stop(self._index(rank))
        cut = [slice(max(a, b) - b, end - b) for a, b, end in zip(self._start, start, stop, strict=True)]
        return windows[0][tuple(cut)]

    def _keep(self, rank: int, windows: Array) -> None:
        """Keep a row of windows until all windows before it have arrived."""
        index = self._index(rank)
        first, start, stop = self._grid.window.start(index), self._piece_start(index), self._piece_stop(index)
        cut = [slice(a - b, end - b) for a, b, end in zip(start, first, stop, strict=True)]
        if len(windows) > 1:
            d = self._grid.row_dim
            assert d is not None
            start[d], cut[d] = first[d], slice(None)
        row = Row(rank, start, copied(windows[(slice(None), *cut)]))
        self._waiting.update(dict.fromkeys(range(rank, rank + len(windows)), row))
        self._waiting_bytes += row.windows.nbytes

    def _blend_in(self, windows: Array, index: Index, start: Sequence[int] | None = None) -> None:
        tile = self._begun()
        self._blender.fold_row(tile[self._inside], self._start, windows, index, start)
        self._begin_with(tile, self._prefix_length + len(windows))

    def _begin_with(self, tile: Array, length: int) -> None:
        if length == self.total:
            tile = self._finished(tile)
        self._prefix, self._prefix_length = tile, length

    def _finished(self, folded: Array) -> Array:
        tile = folded
        if self._blender.accumulator != self._layout.dtype:
            tile = as_array(self._allocated(self._layout))
        self._blender.finish(folded, self._start, tile)
        if not self._is_reduced:
            return tile
        layout = self._record.layout
        start, pixels = layout.start(self.tile), as_array(self._allocated(layout))
        inside = tuple(map(slice, map(operator.sub, layout.stop(self.tile), start)))
        pixels[...] = 0
        self._reducer.reduce(tile[self._inside], start, pixels[inside])
        return pixels

    def _begun(self) -> Array:
        if self._prefix is not None:
            return self._prefix
        tile = as_array(self._allocated(self._layout, self._blender.accumulator))
        if tile[self._inside].shape == tile.shape:
            self._blender.prepare(tile, self._start)
        else:
            self._blender.blank(tile)
        return tile

    def _allocated(self, layout: TileLayout, dtype: torch.dtype | None = None) -> torch.Tensor:
        shape, dtype = layout.tile_shape, dtype or layout.dtype
        try:
            return new_block(shape, dtype, self._record.device)
        except OutOfMemoryError as error:
            raise StoreError(
                f"no memory for the {math.prod(shape) * dtype.itemsize} bytes of tile {self.tile} of tensor "
                f"{self._record.spec.tensor_id!r}: {error}; give a smaller tile_size to use less memory"
            ) from error

    def _absorb(self) -> None:
        """Blend waiting windows into the prefix, up to the next missing window."""
        while row := self._waiting.get(self._prefix_length):
            rank = self._prefix_length
            windows, start = self._rest(row, rank)
            self._blend_in(windows, self._index(rank), start)
            for each in range(rank, rank + len(windows)):
                del self._waiting[each]
            self._waiting_bytes -= row.windows.nbytes
