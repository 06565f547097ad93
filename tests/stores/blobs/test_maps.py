"""Blocks that are mapped: they take no descriptors, and what follows the last row takes no room."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from infinite_tensor import StoreError, TensorBlob
from tests.durability.faults.disks import mounted
from tests.support.interpreters import Team

pytestmark = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what is mapped")

ROWS, BLOCK = 3000, 2


def made(path: Path) -> torch.Tensor:
    rows = torch.arange(ROWS * 4.0).view(ROWS, 4)
    with TensorBlob.open(path, "w", dtype="float32", shape=(4,), block_size=BLOCK) as blob:
        blob.write(rows)
    return rows


def read_with_few_descriptors(path: str) -> torch.Tensor:
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20,) * 2)  # noqa: PTH208  (as many)
    with TensorBlob.open(path) as blob:
        return torch.stack([blob[number] for number in range(ROWS)])


def test_a_blob_of_many_blocks_is_read_with_few_descriptors(tmp_path: Path) -> None:
    rows = made(tmp_path / "blob")
    with Team(1) as team:
        assert torch.equal(team.members[0].call(read_with_few_descriptors, str(tmp_path / "blob")), rows)


def read_with_little_address_space(path: str) -> list[float]:
    with TensorBlob.open(path) as blob:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
        try:
            return [blob[number].max().item() for number in range(len(blob))]
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_blob_gives_maps_back_where_there_is_no_room_for_more(tmp_path: Path) -> None:
    rows = torch.arange(40.0).repeat_interleave(2**20).view(40, 2**20)
    with TensorBlob.open(tmp_path / "blob", "w", dtype="float32", shape=(2**20,), block_size=1) as blob:
        blob.write(rows)
    with Team(1) as team:
        found = team.members[0].call(read_with_little_address_space, str(tmp_path / "blob"))
    assert found == list(range(40))


def test_blocks_that_are_held_are_mapped_and_no_copies(tmp_path: Path) -> None:
    made(tmp_path / "blob")
    with TensorBlob.open(tmp_path / "blob") as blob:
        # Other maps of the process need room too.
        assert blob.max_cached_blocks <= 4096
        blob[0], blob[-1]
        mapped = Path("/proc/self/maps").read_text()
        assert f"{tmp_path / 'blob' / 'c.0.0'}\n" in mapped
        assert f"{tmp_path / 'blob'}/c.{(ROWS - 1) // BLOCK}.0\n" in mapped


def used_on_a_full_disk(place: str, ballast: str) -> torch.Tensor:
    """All that a user may do with a blob, on a disk that has been filled up."""
    with TensorBlob.open(place) as blob:
        found = blob[:]
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):  # noqa: PTH123
        while True:
            file.write(bytes(4096))
    # Another process has not checked it yet; it reads the file to its end.
    with TensorBlob.open(place) as blob:
        assert torch.equal(blob[:], found)
    with pytest.raises(StoreError, match="No space left"), TensorBlob.open(place, "r+") as blob:
        blob[0] = torch.zeros(1024)
    Path(ballast).unlink()
    with TensorBlob.open(place, "r+") as blob:
        blob[0] = torch.zeros(1024)
        blob.seek(0, 2)
        blob.write(torch.ones(1024))
        return blob[:]


def test_the_hole_after_the_last_row_takes_no_room_on_a_full_tmpfs(tmp_path: Path) -> None:
    rows = torch.rand(3, 1024)
    folder = tmp_path / "disk"
    folder.mkdir()
    with mounted(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        # A block of 16 MiB on a disk of 1 MiB.
        with TensorBlob.open(folder / "blob", "w", dtype="float32", shape=(1024,), block_size=4096) as blob:
            blob.write(rows)
        with Team(1) as team:
            found = team.members[0].call(used_on_a_full_disk, str(folder / "blob"), str(folder / "ballast"))
    assert torch.equal(found, torch.cat([torch.zeros(1, 1024), rows[1:], torch.ones(1, 1024)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", [True, False])
def test_rows_are_written_in_inference_mode_and_outside_of_it(first: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    with TensorBlob.open(tmp_path / "blob", "w+", dtype=dtype, shape=(4,), block_size=8) as blob:
        for number in range(20):
            with torch.inference_mode(bool(number % 2) == first):
                row = torch.full((4,), float(number), dtype=dtype)
                blob.write(row)
                blob[number // 2] = row
                if number % 7 == 0:
                    blob.flush()
        assert blob[:][:, 0].tolist() == [2.0 * n + 1 for n in range(10)] + [float(n) for n in range(10, 20)]
