"""The logger "infinite_tensor" says at DEBUG what is computed, read and written, and costs nothing otherwise."""

from __future__ import annotations

import gc
import logging
import re
import weakref
from pathlib import Path

import pytest
import torch

from infinite_tensor import DamagedDataWarning, InfiniteTensor, TensorWindow, ZarrTileStore, sl


def board(store: ZarrTileStore, batch_size: int | None = None) -> InfiniteTensor:
    def f(ctx: tuple[int, ...] | list[tuple[int, ...]]) -> torch.Tensor:
        return torch.ones(4, 4) if batch_size is None else torch.ones(len(ctx), 4, 4)

    return InfiniteTensor(
        (None, None), f, TensorWindow((4, 4)), tile_store=store, tensor_id="board", batch_size=batch_size
    )


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    # Stores that other tests have left open write when they are collected.
    gc.collect()
    caplog.set_level(logging.DEBUG, "infinite_tensor")
    return caplog


def lines(log: pytest.LogCaptureFixture, verb: str) -> list[str]:
    """What is logged since the last call, without the time and the path, which differ from run to run."""
    found = [re.sub(r"in \d\.\d+ s$", "in ... s", line) for line in log.messages if line.startswith(verb)]
    return [re.sub(r"ZarrTileStore\([^)]*\)", "the store", line) for line in found]


@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_fill_and_a_read_say_what_is_computed_written_and_read(
    tmp_path: Path, log: pytest.LogCaptureFixture, batch_size: int | None
) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=8) as store:
        board(store, batch_size).fill(sl[0:8, 0:16], progress=False)
    assert lines(log, "computed") == ["computed windows (0, 0) to (1, 3) of tensor 'board': 8 in ... s"]
    assert lines(log, "wrote") == ["wrote tiles of tensor 'board' to the store: 2 complete, 512 B"]
    log.clear()
    with ZarrTileStore(tmp_path / "s.zarr", mode="r") as store:
        board(store, batch_size)[0:8, 0:8]
    assert lines(log, "") == ["read tiles of tensor 'board' from the store: 1 of 1 complete"]


class Failing(logging.Handler):
    """Raises for messages that begin with a word."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith(self.word):
            raise ArithmeticError(self.word)


@pytest.mark.parametrize("word", ["read", "computed"])
def test_an_error_of_a_handler_is_raised_as_it_is_and_loses_nothing(
    tmp_path: Path, log: pytest.LogCaptureFixture, word: str
) -> None:
    handler, logger = Failing(word), logging.getLogger("infinite_tensor")
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=8) as store:
        t = board(store)
        logger.addHandler(handler)
        try:
            with pytest.raises(ArithmeticError, match=word):
                t[0:8, 0:8]
        finally:
            logger.removeHandler(handler)
        log.clear()
        assert t[0:8, 0:8].sum() == 64
        # The windows whose computation was to be logged are kept.
        assert len(lines(log, "computed")) == (word == "read")


def test_each_damaged_tile_is_logged_and_a_read_warns_once(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=8) as store:
        board(store).fill(sl[0:24, 0:24], progress=False)
    chunks = [path for path in tmp_path.rglob("c/**/*") if path.is_file()]
    for chunk in chunks:
        chunk.write_bytes(b"damaged")
    log.clear()
    with ZarrTileStore(tmp_path / "s.zarr") as store, pytest.warns(DamagedDataWarning) as told:
        board(store)[0:24, 0:24]
    # Python shows a text once.
    (message,) = {str(each.message) for each in told}
    assert "8 more" in message
    logged = {line for line in log.messages if "it is treated as missing" in line}
    assert len(logged) == len(chunks) == 9
    assert "read tiles of tensor 'board' from the store: 0 of 9 complete" in lines(log, "read")


def test_kept_records_keep_no_store_alive(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    store = ZarrTileStore(tmp_path / "s.zarr", tile_size=8)
    board(store).fill(sl[0:8, 0:8], progress=False)
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None
    assert log.records


class Named(ZarrTileStore):
    """Counts how often somebody asks for its name."""

    asked = 0

    def __str__(self) -> str:
        self.asked += 1
        return super().__str__()


def test_without_debug_nothing_is_formatted_and_nothing_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "infinite_tensor")
    store = Named(tmp_path / "s.zarr", tile_size=8)
    t = board(store)
    before = store.asked
    t.fill(sl[0:8, 0:12], progress=False)
    store.clear_cache("board")
    assert t[0:8, 0:16].shape == (8, 16)
    assert store.asked == before
    assert not caplog.records
    assert capsys.readouterr() == ("", "")
