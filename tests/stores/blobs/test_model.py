"""A blob against a list of tensors, through any history of writes, reads and reopenings."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from zarr.codecs import ZstdCodec

from infinite_tensor import TensorBlob
from tests.stores.blobs.rows import blocks_held

_numbers = itertools.count()
COUNTS = st.integers(0, 13)
POSITIONS = st.integers(-3, 40)


class BlobAndList(RuleBasedStateMachine):
    """One blob and a reader beside it; `rows` is what it must hold, `stored` what must be committed at least."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.position = 0
        self.next = 0
        self.folder = tempfile.mkdtemp()

    @initialize(
        block_size=st.integers(1, 6),
        most_blocks=st.sampled_from([None, 1, 2]),
        place=st.sampled_from(["plain", "zstd", "memory"]),
    )
    def begin(self, block_size: int, most_blocks: int | None, place: str) -> None:
        self.target = f"memory://model-{next(_numbers)}" if place == "memory" else f"{self.folder}/blob"
        self.options: dict[str, Any] = {"max_cached_blocks": most_blocks}
        compressors = ZstdCodec() if place == "zstd" else "auto"
        created: dict[str, Any] = {
            "dtype": torch.int32,
            "shape": (2,),
            "block_size": block_size,
            "compressors": compressors,
        }
        self.blob = TensorBlob.open(self.target, "w+", **created, **self.options)
        self.reader = TensorBlob.open(self.target, **self.options)

    def teardown(self) -> None:
        if hasattr(self, "blob"):
            self.blob.close()
        shutil.rmtree(self.folder)

    def made(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    @property
    def writes(self) -> bool:
        return self.blob.writable()

    @precondition(lambda self: self.writes)
    @rule(count=COUNTS)
    def write(self, count: int) -> None:
        new = self.made(count)
        start = len(self.rows) if self.blob.mode[0] == "a" else self.position
        self.rows[start : start + count] = new
        self.position = start + count
        assert self.blob.write(tensor(new)) == count

    @precondition(lambda self: self.writes and self.blob.mode in ("r+", "w+"))
    @rule(where=st.lists(st.integers(0, 100), max_size=5))
    def overwrite(self, where: list[int]) -> None:
        where = [at % len(self.rows) for at in where] if self.rows else []
        new = self.made(len(where))
        for at, value in zip(where, new, strict=True):
            self.rows[at] = value
        self.blob[where] = tensor(new)

    @precondition(lambda self: self.writes)
    @rule(length=st.integers(0, 40))
    def truncate(self, length: int) -> None:
        del self.rows[length:]
        self.position = min(self.position, len(self.rows))
        assert self.blob.truncate(length) == len(self.rows)

    @precondition(lambda self: self.writes)
    @rule()
    def flush(self) -> None:
        self.blob.flush()
        assert self.reader.refresh() == len(self.rows)
        assert torch.equal(self.reader[:], tensor(self.rows))

    @precondition(lambda self: self.writes)
    @rule()
    def extend_by_itself(self) -> None:
        if len(self.rows) < 60:
            self.blob.extend(self.blob)
            self.rows *= 2
            self.position = len(self.rows)

    @rule(mode=st.sampled_from(["r", "r+", "a", "a+", "w", "w+"]), close=st.booleans())
    def reopen(self, mode: Any, close: bool) -> None:
        if close:
            self.blob.close()
        else:
            del self.blob
        if mode[0] == "w":
            self.rows = []
        self.blob = TensorBlob.open(self.target, mode, **self.options)
        self.position = len(self.rows) if mode[0] == "a" else 0
        if mode[0] == "w":
            self.reader = TensorBlob.open(self.target, **self.options)

    @rule(pos=POSITIONS, whence=st.integers(0, 2))
    def seek(self, pos: int, whence: int) -> None:
        base = (0, self.position, len(self.rows))[whence]
        self.position = min(max(0, base + pos), len(self.rows))
        assert self.blob.seek(pos, whence) == self.position

    @precondition(lambda self: self.blob.readable())
    @rule(size=st.none() | st.integers(-1, 20))
    def read(self, size: int | None) -> None:
        stop = len(self.rows) if size is None or size < 0 else min(self.position + size, len(self.rows))
        assert torch.equal(self.blob.read(size), tensor(self.rows[self.position : stop]))
        self.position = stop

    @rule(count=st.integers(0, 3))
    def step(self, count: int) -> None:
        found = list(itertools.islice(self.blob, count))
        expected = self.rows[self.position : self.position + count]
        assert [int(row[0]) for row in found] == expected
        self.position += len(expected)

    @rule(
        index=st.builds(slice, st.none() | POSITIONS, st.none() | POSITIONS, st.sampled_from([None, 1, 2, 3, -1, -2]))
        | st.lists(st.integers(0, 100), max_size=6)
    )
    def look(self, index: slice | list[int]) -> None:
        if isinstance(index, slice):
            assert torch.equal(self.blob[index], tensor(self.rows[index]))
        elif self.rows:
            where = [at % len(self.rows) for at in index]
            assert torch.equal(self.blob[where], tensor([self.rows[at] for at in where]))

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "blob"):
            assert (len(self.blob), self.blob.tell()) == (len(self.rows), self.position)
            limit = self.options["max_cached_blocks"]
            assert limit is None or blocks_held(self.blob) <= 2 * limit


def tensor(values: list[int]) -> torch.Tensor:
    """Rows that hold a value and its negative."""
    return torch.tensor([[value, -value] for value in values], dtype=torch.int32).reshape(-1, 2)


TestBlobAndList = BlobAndList.TestCase
TestBlobAndList.settings = settings(stateful_step_count=30)
