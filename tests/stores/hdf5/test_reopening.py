"""A closed store that is entered again opens the file that it had, and makes no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from infinite_tensor import HDF5TileStore, StoreError
from tests.stores.hdf5.files import EXPECTED, make_theirs, pixels, theirs

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


@pytest.mark.parametrize("mode", MODES)
def test_no_file_is_made_where_it_has_vanished(mode: Any, path: Path) -> None:
    store = closed(path, mode)
    path.unlink()
    for _ in range(2):
        with (
            pytest.raises(StoreError, match="there is no store; mode 'a' or 'w' creates one in a new file"),
            store,
        ):
            pass
        assert not path.exists()


@pytest.mark.parametrize("mode", MODES)
def test_a_file_of_somebody_elses_that_has_taken_its_place_is_left_alone(mode: Any, path: Path) -> None:
    store = closed(path, mode)
    path.unlink()
    make_theirs(path)
    before, bits = theirs(path), path.read_bytes()
    with pytest.raises(StoreError, match="there is an HDF5 file, but no store; open it with mode 'a'"), store:
        pass
    assert path.read_bytes() == bits
    with HDF5TileStore(path, tile_size=8) as adopted:
        assert pixels(adopted) == EXPECTED
    with store:
        assert pixels(store) == EXPECTED
    assert theirs(path) == before


def test_results_do_not_go_to_a_file_that_another_one_has_replaced(path: Path) -> None:
    closed(path, "r+")
    with HDF5TileStore(path, tile_size=8) as store:
        path.rename(path.with_suffix(".bak"))
        HDF5TileStore(path, mode="w").close()
        with pytest.raises(StoreError, match="vanished"):
            pixels(store)
        store.close(discard=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("content", [b"", b"not HDF5 at all"])
def test_a_file_that_is_not_hdf5_any_more_is_left_alone(content: bytes, mode: Any, path: Path) -> None:
    store = closed(path, mode)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"the file is not an HDF5 file|there is an empty file, but no store"), store:
        pass
    assert path.read_bytes() == content


def test_it_opens_once_its_file_is_back(path: Path) -> None:
    store = closed(path, "r+")
    path.rename(path.with_suffix(".bak"))
    with pytest.raises(StoreError, match="there is no store"), store:
        pass
    path.with_suffix(".bak").rename(path)
    with store:
        assert store.tensor_info("map").tiles_complete == 1


def test_stores_are_opened_by_several_threads_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        for turn in range(20):
            together = Barrier(2)

            def opened(number: int, turn: int = turn, together: Barrier = together) -> list[str]:
                together.wait(30)
                with HDF5TileStore(tmp_path / f"{turn}-{number}.h5") as store:
                    return store.tensor_ids()

            assert list(threads.map(opened, range(2))) == [[], []]
