"""How much of a claim is begun at once."""

from __future__ import annotations

import time

_TURN_SECONDS = 0.001
_TOO_LONG_SECONDS = 0.004
_MOST_CALLS = 1024


class Pace:
    """Lets a thread begin as many calls of ``f`` as take about a millisecond.

    Beginning takes a lock, which costs as much as a quick call. What has been begun is no other read's to
    take, so of slow calls one is begun at a time.

    Attributes
    ----------
    calls : int
        How many to begin next.
    """

    def __init__(self) -> None:
        self.calls = 1
        self._begun = 0.0

    def begin(self) -> None:
        """So many calls have been begun."""
        self._begun = time.perf_counter()

    def is_over(self) -> bool:
        """Whether calls take so much longer than the last ones that the rest had better not have been begun."""
        return time.perf_counter() - self._begun > _TOO_LONG_SECONDS

    def end(self, called: int) -> None:
        """So many of them have been carried out."""
        fitting = int(called * _TURN_SECONDS / max(time.perf_counter() - self._begun, 1e-9))
        self.calls = max(1, min(fitting, 4 * self.calls, _MOST_CALLS))
