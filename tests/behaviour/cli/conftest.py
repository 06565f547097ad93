"""A command line, and stores that it looks at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.support.command_line import CommandLine

SIZE = 4


def ramp(ctx: tuple[int, ...]) -> torch.Tensor:
    """The rows of a window count up from its first one's coordinate."""
    return torch.arange(SIZE).add(SIZE * ctx[0])[:, None].repeat(1, SIZE).float()


def doubled(_ctx: tuple[int, ...], region: torch.Tensor) -> torch.Tensor:
    return region * 2


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    """What a command imports is gone after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("COLUMNS", raising=False)
    before = set(sys.modules)
    yield CommandLine(capsys)
    for name in set(sys.modules) - before:
        if not hasattr(sys.modules[name], "__path__") and "site-packages" not in str(
            getattr(sys.modules[name], "__file__", "site-packages")
        ):
            monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The unbounded tensor ``rows``, of which eight tiles are stored, and ``twice``, which is computed from it."""
    path = tmp_path / "s.zarr"
    with ZarrTileStore(path, tile_size=SIZE) as opened:
        window = TensorWindow((SIZE, SIZE))
        rows = InfiniteTensor((None, None), ramp, window, tile_store=opened, tensor_id="rows", dims=("y", "x"))
        rows[-8:8, 0:8]
        twice = InfiniteTensor((8, None), doubled, window, [rows], [window], tile_store=opened, tensor_id="twice")
        twice[0:8, 0:4]
    return path
