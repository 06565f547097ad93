"""A closed store that is entered again opens the file that it had, and makes no other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from infinite_tensor import HDF5TileStore, StoreError
from tests.stores.hdf5.files import EXPECTED, make_theirs, pixels

MODES = ["r", "r+", "a", "w", "w-"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "world.h5"


def closed(path: Path, mode: Any) -> HDF5TileStore:
    """A closed store in `mode`, whose file holds a tensor."""
    if mode != "w-":
        with HDF5TileStore(path, tile_size=8) as store:
            pixels(store)
    store = HDF5TileStore(path, mode, tile_size=8)
    if mode in ("w", "w-"):
        pixels(store)
    store.close()
    return store


@pytest.mark.parametrize("mode", MODES)
def test_it_finds_what_it_has_stored(mode: Any, path: Path) -> None:
    store = closed(path, mode)
    for _ in range(2):
        with store:
            assert store.tensor_info("map").tiles_complete == 1
            assert pixels(store) == EXPECTED


VANISHED: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda _path: None, "there is no store"),
    "theirs": (make_theirs, "no store; open it with mode 'a'"),
    "empty": (Path.touch, "an empty file"),
    "no HDF5": (lambda path: path.write_text("not HDF5 at all"), "not an HDF5 file"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", VANISHED)
def test_what_has_taken_the_place_of_its_file_is_left_alone_and_it_opens_once_that_is_back(
    name: str, mode: Any, path: Path
) -> None:
    put, word = VANISHED[name]
    store, away = closed(path, mode), path.with_suffix(".bak")
    path.rename(away)
    put(path)
    before = path.read_bytes() if path.exists() else None
    for _ in range(2):
        with pytest.raises(StoreError, match=word), store:
            pass
        assert (path.read_bytes() if path.exists() else None) == before
    away.replace(path)
    with store:
        assert store.tensor_info("map").tiles_complete == 1


def test_results_do_not_go_to_a_file_that_another_one_has_replaced(path: Path) -> None:
    closed(path, "r+")
    with HDF5TileStore(path, tile_size=8) as store:
        path.rename(path.with_suffix(".bak"))
        HDF5TileStore(path, mode="w").close()
        with pytest.raises(StoreError, match="vanished"):
            pixels(store)
        store.close(discard=True)


def test_stores_are_opened_by_several_threads_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        for turn in range(20):
            together = Barrier(2)

            def opened(number: int, turn: int = turn, together: Barrier = together) -> list[str]:
                together.wait(30)
                with HDF5TileStore(tmp_path / f"{turn}-{number}.h5") as store:
                    return store.tensor_ids()

            assert list(threads.map(opened, range(2))) == [[], []]
