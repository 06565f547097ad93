from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def often_switched() -> Iterator[None]:
    """Threads are switched between as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
