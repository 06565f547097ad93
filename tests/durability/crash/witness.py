"""Kills processes that fill a store, and notes what they were promised."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.durability.crash.victims import Called, Clearing, Done, Flushed, Idle
from tests.support.chain import Window
from tests.support.inspection import Inspection
from tests.support.interpreters import CONTEXT, DEADLINE
from tests.support.moments import NEVER, Kill, Moment


class Witness(Inspection):
    """Follows one store, in whose service several processes die.

    Attributes
    ----------
    cleared : set of Window
        Windows that were flushed before a process began to clear their stage.
    changes : int
        How many changes to the store's folder a process made that came to its end.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.cleared: set[Window] = set()
        self.changes = 0
        self._called: set[Window] = set()

    def see(self, victim: Callable[..., None], argument: Any, messages: int | None = None, delay: float = 0.0) -> int:
        """Run ``victim(connection, path, argument)`` in a process, and see it end.

        It is killed `delay` seconds after its first `messages`, or when it is idle; or it kills itself; or it
        comes to its end. Its exit code is returned, which is negative for a signal.
        """
        self._called = set()
        receiving, sending = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=victim, args=(sending, self.path, argument), daemon=True)
        process.start()
        sending.close()
        try:
            for number in itertools.count():
                if number == messages:
                    process.join(delay)
                    process.kill()
                assert receiving.poll(DEADLINE), "the process hangs"
                message = receiving.recv()
                self._hear(message)
                if isinstance(message, Idle):
                    process.kill()
        except EOFError:
            process.join(DEADLINE)
        finally:
            process.kill()
            receiving.close()
        assert process.exitcode is not None
        return process.exitcode

    def _hear(self, message: object) -> None:
        match message:
            case Called(window):
                assert window not in self.flushed, f"{window} was flushed, and runs again"
                assert window not in self._called, f"{window} runs twice in one process"
                self._called.add(window)
            case Flushed():
                self.flushed |= self._called
            case Clearing(stage):
                self.cleared = {window for window in self.flushed if window[0] == stage}
                self.flushed -= self.cleared
                self._called -= self.cleared
            case Done(changes):
                self.changes = changes


def survive_every_change(folder: Path, victim: Callable[..., None], survive: Callable[[Path, Kill], object]) -> None:
    """Have `survive` kill a process before each of the changes that `victim` makes, in a place of its own."""
    (folder / "undisturbed").mkdir()
    witness = Witness(folder / "undisturbed")
    assert witness.see(victim, NEVER) == 0
    assert witness.changes > 50
    for number in range(1, witness.changes + 1):
        survive(folder / str(number), Kill(Moment("", "", number)))
