"""kill -9 at random moments: whatever is stored is right, and whatever was flushed is not computed again."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.durability.crash.victims import fill_at_random
from tests.durability.crash.witness import Witness


def survive(path: Path, seed: int, kills: int) -> None:
    """One store, filled by one process after the other, each of which is killed."""
    rng = random.Random(seed)  # noqa: S311
    witness = Witness(path)
    for number in range(kills):
        messages, delay = rng.randint(0, 200), rng.choice([0.0, rng.uniform(0, 0.05)])
        assert witness.see(fill_at_random, 1000 * seed + number, messages, delay) == -signal.SIGKILL
        witness.check()
    witness.fill()
    witness.clean()


@pytest.mark.parametrize("seed", range(1))
def test_a_store_survives_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    survive(tmp_path / "store", seed, kills=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 44))
def test_a_store_survives_kills_at_many_more_random_moments(tmp_path: Path, seed: int) -> None:
    survive(tmp_path / "store", seed, kills=5)
