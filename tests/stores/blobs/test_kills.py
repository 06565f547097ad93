"""kill -9 at any moment: the rows of the last flush are there, no half-written row is, and nothing stays locked."""

from __future__ import annotations

import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from zarr.codecs import ZstdCodec

from infinite_tensor import TensorBlob
from tests.durability.crash.victims import Done
from tests.durability.crash.witness import Witness
from tests.stores.blobs.killed import WIDTH, kill_at_random, rows
from tests.support.interpreters import enter_child
from tests.support.moments import NEVER, Kill, Moment
from tests.support.stores import sample


def empty(tmp_path: Path, *, compressed: bool) -> str:
    target = str(tmp_path / "blob")
    compressors = ZstdCodec(level=1) if compressed else None
    TensorBlob.open(target, "w", dtype="int64", shape=WIDTH, block_size=4, compressors=compressors).close()
    return target


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 4), (2, 4), *(pytest.param(seed, 10, marks=pytest.mark.slow) for seed in range(10, 50))]
)
def test_a_blob_survives_kills_at_random_moments(tmp_path: Path, seed: int, kills: int) -> None:
    rng, before, target = random.Random(seed), 0, empty(tmp_path, compressed=seed % 2 == 0)  # noqa: S311
    for number in range(kills):
        messages, delay = rng.randint(1, 120), rng.choice([0.0, rng.uniform(0, 0.03)])
        least, most = kill_at_random(target, 1000 * seed + number, messages, delay)
        reader = TensorBlob.open(target)
        assert least <= len(reader) <= max(most, before), (least, len(reader), most)
        assert torch.equal(reader.read(), rows(0, len(reader)))
        before = len(reader)
    with TensorBlob.open(target, "a+") as blob:
        blob.write(rows(len(blob), 40))
        assert torch.equal(blob[:], rows(0, len(blob)))


def write_and_die(sending: Connection, target: Path, kill: Kill) -> None:
    """Add to a blob of six flushed rows, flush, overwrite, truncate; unless killed before."""
    enter_child()
    changes = kill.arm(target)
    blob = TensorBlob.open(target, "r+")
    blob.seek(0, 2)
    blob.write(rows(6, 5))
    blob.flush()
    blob[1:9] = rows(1, 8)
    blob.flush()
    blob.truncate(3)
    blob.write(rows(3, 2))
    blob.close()
    sending.send(Done(changes()))


def outlive(tmp_path: Path, kill: Kill) -> int:
    """Have a process write a blob, and look at what it leaves; how many changes it made if it was not killed."""
    target = empty(tmp_path, compressed=False)
    with TensorBlob.open(target, "a") as blob:
        blob.write(rows(0, 6))
    witness = Witness(Path(target))
    code = witness.see(write_and_die, kill)
    assert witness.changes if code == 0 else code == -signal.SIGKILL
    reader = TensorBlob.open(target)
    # The last flush but one, or all of a step that was under way.
    assert len(reader) in (6, 8, 11, 3, 4, 5)
    assert torch.equal(reader.read(), rows(0, len(reader)))
    with TensorBlob.open(target, "a+") as blob:
        blob.write(rows(len(blob), 9))
        assert torch.equal(blob[:], rows(0, len(blob)))
    return witness.changes


@pytest.mark.parametrize("step", sample([3, 1], 3), ids=["some", "all"])
def test_before_whatever_change_a_writer_is_killed_rows_are_whole(step: int, tmp_path: Path) -> None:
    changes = outlive(tmp_path, NEVER)
    assert changes > 20
    for number in range(1, changes + 1, step):
        outlive(tmp_path, Kill(Moment("", "", number), torn=number % 2 == 0))
