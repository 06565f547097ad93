"""What it may cost to use a hostile store."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SECONDS = 5.0
"""Of processor time, which a busy machine does not lengthen."""

BYTES = 2**30
"""By which the memory that a process holds may grow."""


@contextmanager
def bounded(most: int = BYTES) -> Iterator[None]:
    """Fails if the block takes more than `SECONDS` or `most` bytes."""
    begun, held = time.process_time(), _most_memory()
    yield
    assert time.process_time() - begun < SECONDS
    assert _most_memory() - held < most


def limit_memory(more: int = BYTES) -> None:
    """Let this process take so many bytes more than it has."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, most))


def _most_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
