"""HDF5's own structures carry no checksums: what damage to them may do to a reader, and what not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from infinite_tensor import HDF5TileStore, StoreError
from tests.durability.damage import flips
from tests.durability.damage.intact import TILE, Outcome, build, fill, is_right, read, truth
from tests.support.interpreters import run


@pytest.fixture
def hdf5_file(tmp_path: Path) -> Path:
    path = tmp_path / "store.h5"
    with HDF5TileStore(path, tile_size=TILE) as store:
        fill(store)
    return path


def _flipped(path: Path, seed: int, count: int) -> Counter[str]:
    """How often a file was read in which way, over `count` flips of one byte anywhere in it."""
    done = run(flips.__file__, path, seed, count, patience=1200)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-100:]
    return Counter(line.split()[1] for line in done.stdout.splitlines())


def test_a_flipped_byte_anywhere_in_an_hdf5_file_gives_right_bits_or_a_store_error(hdf5_file: Path) -> None:
    told = _flipped(hdf5_file, 1, 20)
    assert told.total() == 20
    assert told.keys() <= {"right", "StoreError"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_flipped_bytes_anywhere_in_an_hdf5_file(hdf5_file: Path, seed: int) -> None:
    told = _flipped(hdf5_file, seed, 250)
    assert told.total() == 250
    assert told.keys() <= {"right", "StoreError"}


def test_a_truncated_hdf5_file_is_a_store_error(hdf5_file: Path) -> None:
    data, expected = hdf5_file.read_bytes(), truth()
    for length in range(len(data) - 1, 0, -len(data) // 9):
        hdf5_file.write_bytes(data[:length])
        outcome = Outcome.of(lambda: HDF5TileStore(hdf5_file, tile_size=TILE), StoreError)
        assert isinstance(outcome.error, StoreError)
        assert str(hdf5_file) in str(outcome.error)
    hdf5_file.write_bytes(data)
    with HDF5TileStore(hdf5_file, tile_size=TILE) as store:
        assert is_right(read(build(store)), expected)
