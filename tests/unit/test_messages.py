"""What users are told."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from infinite_tensor import DamagedDataWarning
from infinite_tensor.tilestore.messages import one_warning_of_damage, warn_of_damage


def test_a_read_that_is_cut_off_silences_no_later_one() -> None:
    def cut_off() -> None:
        # A signal may end a read between any two lines, so that no context manager is left.
        one_warning_of_damage().__enter__()
        with pytest.warns(DamagedDataWarning, match="tile 7"):
            warn_of_damage("store", "tile 7 is damaged")

    copy_context().run(cut_off)


def test_a_read_gives_one_warning_of_all_damages() -> None:
    with pytest.warns(DamagedDataWarning, match="tile 1 .*2 more") as told, one_warning_of_damage():
        for number in (1, 2, 3):
            warn_of_damage("store", f"tile {number} is damaged")
    assert len(told) == 1
