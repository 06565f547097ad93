"""Growing collections of rows on a local disk: ours, the peer's, and one plain mapped file as the floor."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from .stage import Stage

ROWS, WIDTH = 100_000, 768
SINGLE = 20_000
"""Rows that are written, read or walked over one by one."""
BATCH = 1000
GATHERED = 10_000
SLICES = 20


def write(stage: Stage) -> None:
    """All rows, `size` at a time."""
    rows, step = _rows(), stage.size
    stage.timed(lambda: _written(stage, stage.scratch / "blob", torch.split(rows, step)))
    _check(stage, stage.scratch / "blob", rows)


def write_singly(stage: Stage) -> None:
    """Rows one by one."""
    rows = _rows()[:SINGLE]
    single = list(rows)
    stage.timed(lambda: _written(stage, stage.scratch / "blob", single), per=SINGLE)
    _check(stage, stage.scratch / "blob", rows)


def write_floor(stage: Stage) -> None:
    """All rows into one file, `size` at a time."""
    parts = [part.numpy() for part in torch.split(_rows(), stage.size)]

    def work() -> None:
        with (stage.scratch / "rows").open("wb", buffering=0) as file:
            for part in parts:
                file.write(part.data)

    stage.timed(work)


def read_all(stage: Stage) -> None:
    """All rows in one call, of a blob that has just been opened."""
    path = _prepared(stage)

    def work() -> torch.Tensor:
        with _open(stage, path) as blob:
            found: torch.Tensor = blob.read()
        return found

    assert torch.equal(stage.timed(work, rounds=2), _rows())


def read_all_floor(stage: Stage) -> None:
    """All of a mapped file."""
    file = _mapped(stage)
    assert torch.equal(stage.timed(file.clone, rounds=2), _rows())


def rows(stage: Stage) -> None:
    """Random rows, one by one."""
    where = _random(SINGLE).tolist()
    with _open(stage, _prepared(stage)) as blob:
        found = stage.timed(lambda: [blob[at] for at in where], per=SINGLE, rounds=3)
    assert torch.equal(torch.stack(found), _rows()[where])


def rows_floor(stage: Stage) -> None:
    """Random rows of a mapped file, one by one."""
    file, where = _mapped(stage), _random(SINGLE).tolist()
    found = stage.timed(lambda: [file[at].clone() for at in where], per=SINGLE, rounds=3)
    assert torch.equal(torch.stack(found), _rows()[where])


def slices(stage: Stage) -> None:
    """`size` rows that lie side by side."""
    starts = (_random(SLICES) % (ROWS - stage.size)).tolist()
    with _open(stage, _prepared(stage)) as blob:
        work = _read_slices(blob, starts, stage.size)
        work()
        found = stage.timed(work, per=SLICES, rounds=3)
    assert torch.equal(found, _rows()[starts[-1] : starts[-1] + stage.size])


def slices_floor(stage: Stage) -> None:
    """`size` rows of a mapped file that lie side by side."""
    starts, file = (_random(SLICES) % (ROWS - stage.size)).tolist(), _mapped(stage)

    def work() -> None:
        for start in starts:
            file[start : start + stage.size].clone()

    stage.timed(work, per=SLICES, rounds=3)


def gather(stage: Stage) -> None:
    """A batch of random rows."""
    where = _random(GATHERED)
    with _open(stage, _prepared(stage)) as blob:
        blob[where]
        found = stage.timed(lambda: blob[where], rounds=3)
    assert torch.equal(found, _rows()[where])


def gather_floor(stage: Stage) -> None:
    """A batch of random rows of a mapped file."""
    where, file = _random(GATHERED), _mapped(stage)
    file[where]
    assert torch.equal(stage.timed(lambda: file[where], rounds=3), _rows()[where])


def walk(stage: Stage) -> None:
    """The first rows, one after the other."""

    def walked(blob: Any) -> Iterator[torch.Tensor]:
        blob.seek(0)
        return islice(iter(blob), SINGLE)

    with _open(stage, _prepared(stage)) as blob:
        found = stage.timed(lambda: list(walked(blob)), per=SINGLE, rounds=2)
    assert torch.equal(torch.stack(found), _rows()[:SINGLE])


def _read_slices(blob: Any, starts: list[int], size: int) -> Callable[[], torch.Tensor]:
    def work() -> torch.Tensor:
        for start in starts:
            found: torch.Tensor = blob[start : start + size]
        return found

    return work


def _open(stage: Stage, path: Path, mode: str = "r") -> Any:
    if stage.variant == "tensorblob":
        from tensorblob import TensorBlob  # noqa: PLC0415  (is in the peer's environment only)
    else:
        from infinite_tensor import TensorBlob  # noqa: PLC0415  (is in ours only)
    options = {"dtype": "float32", "shape": (WIDTH,)} if mode == "w" else {}
    return TensorBlob.open(str(path), mode, **options)


def _written(stage: Stage, path: Path, parts: Any) -> None:
    with _open(stage, path, "w") as blob:
        for part in parts:
            blob.write(part)


def _check(stage: Stage, path: Path, rows: torch.Tensor) -> None:
    with _open(stage, path) as blob:
        assert torch.equal(blob.read(), rows)


def _prepared(stage: Stage) -> Path:
    """A blob of all rows, written once per process."""
    path = stage.kept / f"rows-{stage.variant}"
    if not path.exists():
        _written(stage, path, [_rows()])
    return path


def _mapped(stage: Stage) -> torch.Tensor:
    path = stage.kept / "rows"
    if not path.exists():
        _rows().numpy().tofile(path)
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return torch.frombuffer(pages, dtype=torch.float32).view(ROWS, WIDTH)


@lru_cache(maxsize=1)
def _rows() -> torch.Tensor:
    return torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


def _random(count: int) -> torch.Tensor:
    return torch.randint(0, ROWS, (count,), generator=torch.Generator().manual_seed(2))
