"""kill -9 at random moments: whatever is stored is right, and whatever was flushed is not computed again."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.durability.crash.victims import fill_at_random
from tests.durability.crash.witness import Witness
from tests.support.stores import sample


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(range(44), 0))
def test_a_store_survives_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    """One store, filled by one process after the other, each of which is killed."""
    rng = random.Random(seed)  # noqa: S311
    witness = Witness(tmp_path / "store")
    for number in range(5):
        messages, delay = rng.randint(0, 200), rng.choice([0.0, rng.uniform(0, 0.05)])
        assert witness.see(fill_at_random, 1000 * seed + number, messages, delay) == -signal.SIGKILL
        witness.check()
    witness.fill()
    witness.clean()
