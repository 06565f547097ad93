"""What is interrupted: what it can be asked for, and what must be right of it afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, MemoryTileStore, TensorBlob, TileStore, ZarrTileStore, sl

# Inside: locks that no call takes for long.
from infinite_tensor.support.disks import alone_in
from infinite_tensor.support.forks import Lock
from tests.durability.faults.conftest import pair

SMALL = 3000
"""Bytes of a cache that holds a few windows, or a tile or two."""


class Subject(ABC):
    """Something that one thread uses, and that may be interrupted while it does."""

    @abstractmethod
    def action(self, turn: int, draw: np.random.Generator) -> Callable[[], object]:
        """The next thing to do with it."""

    def look(self) -> None:  # noqa: B027  (a lock has none)
        """What a signal handler does in the middle of that: it reads something right, or StoreError is raised."""

    @abstractmethod
    def check(self) -> None:
        """It is right, and as usable as before."""

    def flush(self) -> None:  # noqa: B027  (a lock has none)
        """What it holds is stored."""

    def end(self) -> None:  # noqa: B027  (a lock has none)
        """It is left, and right where it is opened again."""


# Tile stores.

STORES: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _: MemoryTileStore(),
    "memory-limited": lambda _: MemoryTileStore(cache_size_bytes=SMALL),
    "zarr": lambda path: ZarrTileStore(path / "t.zarr", tile_size=16, cache_size_bytes=SMALL),
    "hdf5": lambda path: HDF5TileStore(path / "t.h5", tile_size=16, cache_size_bytes=SMALL),
}


def plot(y: int) -> tuple[slice, slice]:
    return slice(y, y + 14), slice(0, 14)


class Tiles(Subject):
    """A chain of two tensors in a store."""

    USES: tuple[Callable[[InfiniteTensor, int], object], ...] = (
        lambda t, y: t.read(plot(y)),
        lambda t, y: list(t.iter_regions([sl[y : y + 3, 0:9], sl[y + 9 : y + 14, 2:14]])),
        lambda t, y: t.fill(plot(y), progress=False),
        lambda t, y: t.read(plot(y), workers=2),
        lambda t, y: t.args[0].invalidate((slice(max(0, y - 9), y + 1), slice(0, 14))),
        lambda t, _y: t.clear_cache(),
        lambda t, _y: t.tile_store.flush(),
        lambda t, y: t.plan(plot(y)),
        lambda t, _y: t.tile_store.clear_tensor("slope", dependants=True),
        lambda t, _y: t.tile_store.tensor_info("slope"),
    )

    def __init__(self, kind: str, folder: Path) -> None:
        self._open, self._is_kept = partial(STORES[kind], folder), not kind.startswith("memory")
        self.store = self._open()
        self.slope, self._true, self._y = pair(self.store).slope, pair(MemoryTileStore()).slope, 0

    def action(self, turn: int, draw: np.random.Generator) -> Callable[[], object]:
        self._y = 5 * int(draw.integers(80))
        return partial(self.USES[turn % len(self.USES)], self.slope, self._y)

    def look(self) -> None:
        assert torch.equal(self.slope[0:6, 0:6], self._true[0:6, 0:6])
        self.store.flush()

    def check(self) -> None:
        assert torch.equal(self.slope.read(plot(self._y)), self._true[plot(self._y)])
        assert not self.store.closed

    def flush(self) -> None:
        self.store.flush()

    def end(self) -> None:
        self.store.close()
        if self._is_kept:
            assert torch.equal(pair(self._open()).slope[0:400, 0:14], self._true[0:400, 0:14])


# Blobs.

OTHER = list(range(-10, -1))


def rows(values: list[int]) -> torch.Tensor:
    """Rows that hold one number each."""
    return torch.tensor(values, dtype=torch.int64).reshape(-1, 1).expand(-1, 3).clone()


def values(found: torch.Tensor) -> list[int]:
    """The number of each row, all of whose entries must agree."""
    assert torch.equal(found, found[:, :1].expand(-1, 3))
    return [int(value) for value in found[:, 0]]


class Rows(Subject):
    """A blob that is written, and a reader that was there before.

    Attributes
    ----------
    held, after, stored : list of int
        What its rows hold, will hold after what is being done, and held when they were last flushed.
    """

    def __init__(self, _kind: str, folder: Path) -> None:
        self._open = partial(TensorBlob.open, folder / "blob")
        self.held = self.after = self.stored = list(range(9))
        with self._open("w", dtype="int64", shape=(3,), block_size=4) as blob:
            blob.write(rows(self.held))
        self.other = TensorBlob.open(folder / "other", "w+", dtype="int64", shape=(3,), block_size=3)
        self.other.write(rows(OTHER))
        self.other.flush()
        self.reader, self.blob = self._open("r", max_cached_blocks=2), self._open("r+", max_cached_blocks=2)
        self._next = 100

    def _new(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))

    # Each says what the rows hold in the end, and what is to be done for that.

    def write(self, count: int) -> tuple[list[int], Callable[[], object]]:
        new = self._new(count)
        return self.held + new, partial(self.blob.write, rows(new) if count > 1 else rows(new)[0])

    def overwrite_at_the_cursor(self) -> tuple[list[int], Callable[[], object]]:
        new, at = self._new(14), max(0, len(self.held) - 11)
        self.blob.seek(at)
        return self.held[:at] + new, partial(self.blob.write, rows(new))

    def overwrite_by_number(self) -> tuple[list[int], Callable[[], object]]:
        new, after = self._new(3), list(self.held)
        places = [0, len(after) // 2, len(after) - 1]
        for place, value in zip(places, new, strict=True):
            after[place] = value
        return after, partial(self.blob.__setitem__, places, rows(new))

    def truncate(self) -> tuple[list[int], Callable[[], object]]:
        kept = max(3, len(self.held) - 7)
        return self.held[:kept], partial(self.blob.truncate, kept)

    def reopen(self) -> tuple[list[int], Callable[[], object]]:
        self.blob.close()

        def opened() -> None:
            self.blob = self._open("r+", max_cached_blocks=2)

        return self.held, opened

    def reads(self) -> tuple[list[int], Callable[[], object]]:
        def read() -> None:
            for blob in (self.reader, self._open("r"), self.blob):
                blob.seek(0)
                _ = [blob[n] for n in range(0, len(blob), 2)], blob[1:], blob[[0, len(blob) - 1]], blob.read(), [*blob]

        return self.held, read

    USES: tuple[Callable[[Any], tuple[list[int], Callable[[], object]]], ...] = (
        lambda s: s.write(1),
        lambda s: s.write(13),
        overwrite_at_the_cursor,
        overwrite_by_number,
        truncate,
        lambda s: (s.held, s.reader.refresh),
        reopen,
        lambda s: (s.held + OTHER, partial(s.blob.extend, s.other)),
        lambda s: (s.held, s.blob.flush),
        lambda s: (s.held, s.blob.close),
        reads,
    )

    def action(self, turn: int, draw: np.random.Generator) -> Callable[[], object]:  # noqa: ARG002  (as of all)
        """After some rows were stored, and some overwritten and appended since."""
        if len(self.held) > 30:
            self.blob.truncate(9)
            self.held = self.held[:9]
        self.blob.flush()
        self.reader.refresh()
        self.stored = list(self.held)
        one, two, three = self._new(3)
        self.blob.seek(0, 2)
        self.blob.write(rows([one, two]))
        self.blob[4] = rows([three])
        self.held = [*self.held[:4], three, *self.held[5:], one, two]
        self.after, act = self.USES[turn % len(self.USES)](self)
        return act

    def _is_possible(self, found: list[int]) -> bool:
        """Whether each row is that from before or from after."""
        states = (self.held, self.after, self.stored)
        return all(value in [held[n] for held in states if n < len(held)] for n, value in enumerate(found))

    def look(self) -> None:
        assert self._is_possible(values(self.blob[:]))

    def check(self) -> None:
        if self.blob.closed or not self.blob.writable():
            self.blob.close()
            self.blob = self._open("r+", max_cached_blocks=2)
        found = values(self.blob[:])
        # Rows that were added are all there, or none is, but for those of an extension, which comes in pieces.
        assert len(found) in (len(self.held), len(self.after)) or self.after[-len(OTHER) :] == OTHER
        assert self._is_possible(found)
        assert self._is_possible(values(self._open("r")[:]))
        self.blob.seek(0, 2)
        self.blob.write(rows(self._new(1))[0])
        self.held = [*found, self._next - 1]
        self.blob.flush()
        self.reader.refresh()
        assert values(self.blob[:]) == values(self.reader[:]) == values(self._open("r")[:]) == self.held

    def end(self) -> None:
        for blob in (self.blob, self.reader, self.other):
            blob.close()
        with self._open("r+") as blob:
            assert values(blob[:]) == self.held


# Locks.


class Locked(Subject):
    """A lock of this process, or a folder that processes enter one at a time."""

    def __init__(self, kind: str, folder: Path) -> None:
        lock = Lock()
        self._enter: Callable[[], Any] = (lambda: lock) if kind == "lock" else partial(alone_in, folder)
        self._times = 5000 if kind == "lock" else 200

    def action(self, turn: int, draw: np.random.Generator) -> Callable[[], object]:  # noqa: ARG002  (as of all)
        def enter_often() -> None:
            for _ in range(self._times):
                self.check()

        return enter_often

    def check(self) -> None:
        with self._enter():
            pass


SUBJECTS: dict[str, Callable[[str, Path], Subject]] = {
    **dict.fromkeys(STORES, Tiles),
    "blob": Rows,
    "lock": Locked,
    "folder": Locked,
}
