"""HDF5 promises less: what was flushed is there after a kill, if nothing was being written."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.crash.victims import fill_and_idle
from tests.crash.witness import Witness


@pytest.mark.parametrize("seed", range(2))
def test_a_file_holds_all_that_was_flushed_after_kills_while_idle(tmp_path: Path, seed: int) -> None:
    witness = Witness(tmp_path / "store.h5")
    for number in range(4):
        assert witness.see(fill_and_idle, 100 * seed + number) == -signal.SIGKILL
        assert witness.flushed
        witness.check()
    witness.fill()
