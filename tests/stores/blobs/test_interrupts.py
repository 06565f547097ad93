"""Ctrl-C anywhere in what a thread does with a blob: every row stays right, the lock too, and nobody hangs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType

import numpy as np
import pytest
import torch

from infinite_tensor import StoreError, TensorBlob
from tests.stores.blobs.conftest import Place
from tests.support.interrupts import LIBRARY, finishes, handled, interrupted_by_a_timer, lines_seen

OTHER = list(range(-10, -1))


def rows(values: Sequence[int]) -> torch.Tensor:
    """Rows that hold one number each."""
    return torch.tensor(values, dtype=torch.int64).reshape(-1, 1).expand(-1, 3).clone()


def values(found: torch.Tensor) -> list[int]:
    """The number of each row, all of whose entries must agree."""
    assert torch.equal(found, found[:, :1].expand(-1, 3))
    return [int(value) for value in found[:, 0]]


@dataclass
class Case:
    """A blob that is being written, what it holds, and a reader that was there before.

    Attributes
    ----------
    held : list of int
        What its rows hold.
    stored : list of int
        What they held when they were last flushed.
    """

    place: Place
    blob: TensorBlob
    reader: TensorBlob
    other: TensorBlob
    held: list[int]
    stored: list[int]

    def next(self, count: int) -> list[int]:
        first = max([*self.held, *self.stored, 0]) + 1
        return list(range(first, first + count))


Action = Callable[[Case], tuple[list[int], Callable[[], object]]]
"""What the rows hold in the end, and what is to be done for that."""


def write_one(case: Case) -> tuple[list[int], Callable[[], object]]:
    (value,) = case.next(1)
    return [*case.held, value], lambda: case.blob.write(rows([value])[0])


def write_some(case: Case) -> tuple[list[int], Callable[[], object]]:
    new = case.next(2)
    return case.held + new, lambda: case.blob.write(rows(new))


def write_across_blocks(case: Case) -> tuple[list[int], Callable[[], object]]:
    new = case.next(13)
    return case.held + new, lambda: case.blob.write(rows(new))


def overwrite_at_the_cursor(case: Case) -> tuple[list[int], Callable[[], object]]:
    new, at = case.next(14), max(0, len(case.held) - 11)
    case.blob.seek(at)
    return case.held[:at] + new, lambda: case.blob.write(rows(new))


def overwrite_by_number(case: Case) -> tuple[list[int], Callable[[], object]]:
    new, held = case.next(3), list(case.held)
    places = [0, len(held) // 2, len(held) - 1]
    for place, value in zip(places, new, strict=True):
        held[place] = value

    def overwrite() -> None:
        case.blob[places] = rows(new)

    return held, overwrite


def truncate(case: Case) -> tuple[list[int], Callable[[], object]]:
    kept = max(3, len(case.held) - 7)
    return case.held[:kept], lambda: case.blob.truncate(kept)


def refresh(case: Case) -> tuple[list[int], Callable[[], object]]:
    case.blob.flush()
    return case.held, case.reader.refresh


def reopen(case: Case) -> tuple[list[int], Callable[[], object]]:
    case.blob.close()

    def opened() -> None:
        case.blob = case.place.open("r+", max_cached_blocks=2)

    return case.held, opened


def look(case: Case, looked: Callable[[TensorBlob], object]) -> tuple[list[int], Callable[[], object]]:
    """A reader whose rows have all changed, and the writer, read them."""
    fresh = case.place.open("r", max_cached_blocks=2)

    def look_at_all() -> None:
        for blob in (case.reader, fresh, case.blob):
            blob.seek(0)
            looked(blob)

    return case.held, look_at_all


READS: dict[str, Callable[[TensorBlob], object]] = {
    "index": lambda blob: [blob[n] for n in range(0, len(blob), 2)],
    "slice": lambda blob: blob[1:],
    "gather": lambda blob: blob[[0, 1, len(blob) - 1]],
    "read": lambda blob: blob.read(),
    "iterate": list,
}
CHANGES = (
    *(write_one, write_some, write_across_blocks, overwrite_at_the_cursor, overwrite_by_number, truncate),
    *(refresh, reopen),
)
ACTIONS: dict[str, Action] = {
    **{action.__name__: action for action in CHANGES},
    "extend": lambda case: (case.held + OTHER, lambda: case.blob.extend(case.other)),
    "flush": lambda case: (case.held, case.blob.flush),
    "close": lambda case: (case.held, case.blob.close),
    **{name: partial(look, looked=looked) for name, looked in READS.items()},
}


@pytest.fixture
def case(place: Place) -> Iterator[Case]:
    with place.open("w", dtype="int64", shape=(3,), block_size=4) as blob:
        blob.write(rows(range(9)))
    other = TensorBlob.open(f"{place.target}-other", "w+", dtype="int64", shape=(3,), block_size=3)
    other.write(rows(OTHER))
    other.flush()
    writer = place.open("r+", max_cached_blocks=2)
    case = Case(place, writer, place.open("r", max_cached_blocks=2), other, list(range(9)), list(range(9)))
    yield case
    for blob in (case.blob, case.reader, other):
        blob.close()


def prepare(case: Case) -> None:
    """Some rows are stored, some were overwritten and some appended since."""
    case.blob.seek(0, 2)
    if len(case.held) > 30:
        case.blob.truncate(9)
        case.held = case.held[:9]
    case.blob.flush()
    case.reader.refresh()
    case.stored = list(case.held)
    new = case.next(3)
    case.blob.write(rows(new[:1])[0])
    case.blob.write(rows(new[1:2]))
    case.blob[4] = rows(new[2:])
    case.held = [*case.held, *new[:2]]
    case.held[4] = new[2]
    case.blob.seek(0, 2)
    assert values(case.reader[:]) == values(case.reader[list(range(len(case.reader)))])


def check(case: Case, after: list[int], *, partly: bool) -> None:
    """Every row is that from before or from after; rows that were added are all there, or none is."""
    before = case.held
    found = values(case.blob[:])
    assert len(found) in (range(len(before), len(after) + 1) if partly else (len(before), len(after)))
    assert_each(found, before, after)
    anew = values(case.place.open("r")[:])
    assert_each(anew, before, after, case.stored)
    assert [values(case.blob[n : n + 1])[0] for n in range(len(found))] == found
    case.held = found


def assert_each(found: list[int], *possible: list[int]) -> None:
    for number, value in enumerate(found):
        assert value in [held[number] for held in possible if number < len(held)]


def go_on(case: Case) -> None:
    """The blob is as usable as before, and what it holds is what others see."""
    (value,) = case.next(1)
    case.blob.seek(0, 2)
    case.blob.write(rows([value])[0])
    case.held.append(value)
    case.blob.flush()
    case.reader.refresh()
    assert values(case.blob[:]) == values(case.reader[:]) == values(case.place.open("r")[:]) == case.held
    with pytest.raises(StoreError, match="has it open for writing"):
        case.place.open("r+")


def end(case: Case) -> None:
    """It can be closed, which lets others write, and loses nothing."""
    case.blob.close()
    case.blob = case.place.open("r+", max_cached_blocks=2)
    assert values(case.blob[:]) == case.held


def of(file: str) -> Callable[[FrameType], bool]:
    """Which calls are of a module of the library."""
    return lambda frame: frame.f_code.co_filename.startswith(LIBRARY) and frame.f_code.co_filename.endswith(file)


# Python itself drops an exception that comes in a callback of the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that send signals are POSIX")
@pytest.mark.parametrize("turns", [32, pytest.param(3000, marks=pytest.mark.slow)])
def test_ctrl_c_by_a_timer(case: Case, turns: int) -> None:
    draw, interrupts = np.random.default_rng(turns), 0
    with interrupted_by_a_timer() as is_interrupted:
        for turn in range(turns):
            name = list(ACTIONS)[turn % len(ACTIONS)]
            prepare(case)
            after, act = ACTIONS[name](case)
            interrupts += is_interrupted(draw.uniform(1e-5, 2e-3), act)
            if name in ("close", "reopen") and (case.blob.closed or not case.blob.writable()):
                end(case)
            check(case, after, partly=name == "extend")
            go_on(case)
    assert interrupts > turns // 20
    finishes(lambda: end(case))


INNER: dict[str, Callable[[Case], object]] = {
    "write": lambda case: case.blob.write(rows([7])),
    "write one": lambda case: case.blob.write(rows([7])[0]),
    "extend": lambda case: case.blob.extend(case.other),
    "overwrite": lambda case: case.blob.__setitem__(0, rows([7])),
    "truncate": lambda case: case.blob.truncate(1),
    "flush": lambda case: case.blob.flush(),
    "close": lambda case: case.blob.close(),
    "tensor": lambda case: case.blob.as_tensor(),
}


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this signal is POSIX")
@pytest.mark.parametrize("outer", [name for name in ACTIONS if name not in ("write_one", "refresh", "reopen")])
def test_a_signal_handler_that_changes_the_blob_in_the_middle_of_a_call_is_refused(case: Case, outer: str) -> None:
    prepare(case)
    case.other = TensorBlob.open(case.other.filename)
    after, act = ACTIONS[outer](case)
    told = list[str]()

    def handler(_number: int, _frame: FrameType | None) -> None:
        for name, inner in INNER.items():
            with pytest.raises(StoreError, match="signal handler"):
                inner(case)
            told.append(name)
        assert values(case.blob[:1]) == [0]

    def deep(_frame: FrameType) -> None:
        """Where blocks are loaded or stored, which is done in the middle of a call."""
        if case.blob._rows.lock._is_owned() and not told:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGUSR1)

    with handled(signal.SIGUSR1, handler), lines_seen(of("blobs/blocks.py"), deep):
        act()
    assert told == list(INNER)
    if outer == "close":
        case.blob = case.place.open("r+")
    case.held = after
    assert values(case.blob[:]) == after
    go_on(case)
    end(case)


def test_a_signal_handler_is_refused_between_the_pieces_of_an_extension(case: Case) -> None:
    refused = list[bool]()

    def between(_frame: FrameType) -> None:
        if case.other._rows.lock._is_owned():  # type: ignore[attr-defined]
            with pytest.raises(StoreError, match="signal handler"):
                case.blob.write(rows([7]))
            refused.append(True)

    with lines_seen(of("blobs/rows.py"), between):
        case.blob.extend(case.other)
    assert refused
    assert values(case.blob[:]) == case.held + OTHER


@pytest.mark.parametrize("number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, 7))])
def test_a_signal_handler_that_reads_at_any_line_finds_right_rows(case: Case, number: int) -> None:
    """Rows that are being overwritten are old or new, and nothing that it loads is served later."""
    for name, action in ACTIONS.items():
        prepare(case)
        after, act = action(case)
        before, count = case.held, 0

        def read(_frame: FrameType, before: list[int] = before, after: list[int] = after) -> None:
            nonlocal count
            count += 1
            if count % 7 == number:
                with suppress(StoreError):
                    assert_each(values(case.blob[:]), before, after)

        with lines_seen(of(""), read):
            act()
        if name in ("close", "reopen") and case.blob.closed:
            end(case)
        assert values(case.blob[:]) == after
        case.held = after
        go_on(case)
