"""The threads on which the viewer reads."""

from __future__ import annotations

import threading

import pytest

from infinite_tensor.views.viewer.panel import Lane
from tests.support.interpreters import DEADLINE


def test_a_thread_of_the_viewer_outlives_what_an_f_raises(capsys: pytest.CaptureFixture[str]) -> None:
    lane, ran = Lane(lambda _number: False), threading.Event()

    def ends() -> None:
        lane.give(2, ran.set)
        raise SystemExit("of an f")

    lane.give(1, ends)
    assert ran.wait(DEADLINE)
    assert "of an f" in capsys.readouterr().err
