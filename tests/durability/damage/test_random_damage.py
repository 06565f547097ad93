"""Whatever happens to a stored object: right bits, a recompute with a warning, or a named error; never wrong pixels."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import pytest

from infinite_tensor import HDF5TileStore, StoreError, TileStore, ZarrTileStore
from infinite_tensor.tilestore import Damage
from tests.durability.damage import flips
from tests.durability.damage.intact import READS, TILE, Outcome, build, fill, is_right, read, tiles_read, truth
from tests.support.interpreters import run

Open: TypeAlias = Callable[[Any], TileStore]

WEIGHTS = {"tile": 4, "partial": 1, "definition": 1, "array": 1, "root": 1}
"""How often an object is hit."""

TENSOR_OF = {"t-base": "base", "t-top": "top", "t-=53trip": "Strip", "t-veil": "veil"}
"""What the folders of tensors are called."""


@dataclass(frozen=True)
class Hit:
    """One damage.

    ``kind`` is as in `Damage`, or ``root``; ``found`` whether the content tells that it is damaged.
    """

    kind: str
    tensor_id: str | None
    location: str
    how: str
    found: bool


def survives(store_at: Open, put_back: Callable[[], object], hits: Sequence[Hit], expected: dict[str, Any]) -> None:
    """Read, verify, repair, put damaged definitions back, and read again."""
    with store_at("r") as store:
        outcome = Outcome.of(lambda: read(build(store)), StoreError)
        listed = _verified(store, repair=False)
    if outcome.error is None:
        assert is_right(outcome.result, expected)
        assert outcome.warned or not any(_met(name, damage) for name, damage in listed)
    else:
        assert "definition" in {hit.kind for hit in hits}
        assert "damaged" in str(outcome.error)
    with store_at("a") as store:
        assert _verified(store, repair=True) == listed
    if any(hit.kind == "definition" for hit in hits):
        put_back()
        with store_at("a") as store:
            # What it had hidden of the tensor.
            listed += _verified(store, repair=True)
    missed = {hit.location for hit in hits if hit.found} - {damage.location for _, damage in listed}
    assert not missed, (missed, listed)
    with store_at("a") as store:
        outcome = Outcome.of(lambda: read(build(store)))
        assert is_right(outcome.result, expected)
        assert not outcome.warned
        assert _verified(store, repair=False) == []


def _met(tensor_id: str, damage: Damage) -> bool:
    """Whether `read` comes across a damage. A part that has been deleted looks like the end of its log."""
    return damage.tile in tiles_read(tensor_id) and "missing" not in damage.reason


def _verified(store: TileStore, *, repair: bool) -> list[tuple[str, Damage]]:
    known = [tensor_id for tensor_id in READS if tensor_id in store.tensor_ids()]
    return [(tensor_id, damage) for tensor_id in known for damage in store.verify(tensor_id, repair=repair)]


# Zarr: any stored object.


@pytest.fixture(scope="module")
def zarr_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("intact") / "store"
    with ZarrTileStore(path, tile_size=TILE) as store:
        fill(store)
    return path


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return truth()


def _kind_of(key: str) -> str:
    parts = key.split("/")
    if parts[-1] == "zarr.json":
        return ("root", "definition", "array")[len(parts) - 1]
    return "tile" if parts[2] == "c" else "partial"


def _owner(key: str) -> str:
    """What one object may stand for another of: parts of one log are of one tile, and no chunk tells its place."""
    return "/".join(key.split("/")[:2]) if _kind_of(key) == "tile" else str(Path(key).parent)


def _changed(data: bytes, how: str, other: bytes, dice: random.Random) -> bytes | None:
    at = dice.randrange(len(data))
    if how == "flip":
        return data[:at] + bytes([data[at] ^ dice.randrange(1, 256)]) + data[at + 1 :]
    if how == "append":
        return data + dice.randbytes(dice.randrange(1, 20))
    return {"truncate": data[:at], "replace": other, "delete": None}[how]


def _tells(kind: str, before: bytes, after: bytes | None) -> bool:
    """Whether the content of an object tells that it is damaged."""
    if kind == "root" or after is None:
        return kind == "array"
    if kind in ("tile", "partial"):
        return True
    try:
        return bool(json.loads(after) != json.loads(before))
    except ValueError:
        return True


def _hit_zarr(root: Path, dice: random.Random, spared: set[str]) -> Hit:
    everything = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    keys = [key for key in everything if key not in spared]
    (key,) = dice.choices(keys, [WEIGHTS[_kind_of(key)] for key in keys])
    kind = _kind_of(key)
    before = (root / key).read_bytes()
    others = [name for name in keys if _owner(name) != _owner(key)]
    same_kind = [name for name in others if _kind_of(name) == kind and dice.random() < 0.9]
    other = (root / dice.choice(same_kind or others)).read_bytes()
    how = dice.choice(["flip", "flip", "truncate", "append", "delete", "replace"])
    after = _changed(before, how, other, dice)
    if after is None:
        (root / key).unlink()
    else:
        (root / key).write_bytes(after)
    return Hit(kind, TENSOR_OF.get(key.split("/")[0]), key, how, _tells(kind, before, after))


def _hits_zarr(root: Path, dice: random.Random, count: int) -> list[Hit]:
    """Damages of different objects, at most one of them a document: that of a second one would hide the first."""
    hits: list[Hit] = []
    while len(hits) < count and not any(hit.kind in ("root", "definition", "array") for hit in hits):
        hits.append(_hit_zarr(root, dice, {hit.location for hit in hits}))
    *before, last = hits
    if last.kind == "definition" and last.how == "delete":
        # As if it had been cleared: nothing of it is there any more.
        before = [replace(hit, found=hit.found and hit.tensor_id != last.tensor_id) for hit in before]
    return [*before, last]


def _open_zarr(path: Path) -> Open:
    return lambda mode: ZarrTileStore(path, mode=mode, tile_size=TILE)


def _mend_root(path: Path) -> None:
    """Do what the error says."""
    outcome = Outcome.of(lambda: ZarrTileStore(path).close(), StoreError)
    if outcome.error is not None:
        assert "move it away" in str(outcome.error)
        (path / "zarr.json").unlink()
        ZarrTileStore(path).close()


def _put_back_zarr(intact: Path, path: Path, hits: Sequence[Hit]) -> None:
    for hit in hits:
        if hit.kind == "definition" and hit.how != "delete":
            shutil.copy(intact / hit.location, path / hit.location)


def _zarr_rounds(intact: Path, tmp_path: Path, expected: dict[str, Any], seed: int, count: int, each: int) -> None:
    total = rounds = 0
    while total < count:
        rounds += 1
        path = tmp_path / str(rounds)
        shutil.copytree(intact, path)
        hits = _hits_zarr(path, random.Random(f"{seed} {rounds}"), each)  # noqa: S311  (no secret)
        total += len(hits)
        try:
            _mend_root(path)
            survives(_open_zarr(path), partial(_put_back_zarr, intact, path, hits), hits, expected)
        except BaseException as error:
            error.add_note(f"round {rounds}: {hits}")
            raise
        shutil.rmtree(path)


@pytest.mark.slow
def test_300_random_damages_of_a_zarr_store(zarr_store: Path, tmp_path: Path, expected: dict[str, Any]) -> None:
    _zarr_rounds(zarr_store, tmp_path, expected, 1, 300, 12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 7))
def test_many_random_damages_of_a_zarr_store(
    zarr_store: Path, tmp_path: Path, expected: dict[str, Any], seed: int
) -> None:
    _zarr_rounds(zarr_store, tmp_path, expected, seed, 400, 1)


# HDF5: what lies in its datasets.


@pytest.fixture(scope="module")
def hdf5_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("intact") / "store.h5"
    with HDF5TileStore(path, tile_size=TILE) as store:
        fill(store)
    return path


@dataclass(frozen=True)
class Span:
    """Bytes of a file that are the content of something."""

    kind: str
    tensor_id: str
    location: str
    begin: int
    length: int


def _spans(path: Path) -> list[Span]:
    spans = []
    with h5py.File(path, "r") as file:
        for name, tensor_id in TENSOR_OF.items():
            group = file["infinite_tensor"][name]
            for member, data in group.items():
                if "part" in member:
                    spans += [_span("partial", tensor_id, data)] if member.partition(".")[0] not in group else []
                elif member == "definition":
                    spans.append(_span("definition", tensor_id, data))
                else:
                    chunk = data.id.get_chunk_info(0)
                    spans.append(Span("tile", tensor_id, data.name, chunk.byte_offset, chunk.size))
    return spans


def _span(kind: str, tensor_id: str, data: Any) -> Span:
    return Span(kind, tensor_id, data.name, data.id.get_offset(), data.id.get_storage_size())


def _hit_hdf5(path: Path, dice: random.Random) -> Hit:
    span = dice.choice(_spans(path))
    data = bytearray(path.read_bytes())
    at = span.begin + dice.randrange(span.length)
    before = bytes(data)
    how = dice.choice(["flip", "flip", "blank", "replace"])
    if how == "flip":
        data[at] ^= dice.randrange(1, 256)
    else:
        stop = span.begin + span.length
        source = dice.choice([other for other in _spans(path) if other.length >= stop - at])
        data[at:stop] = bytes(stop - at) if how == "blank" else data[source.begin : source.begin + stop - at]
    path.write_bytes(data)
    return Hit(span.kind, span.tensor_id, span.location, how, data != before)


def _open_hdf5(path: Path) -> Open:
    return lambda mode: HDF5TileStore(path, mode=mode, tile_size=TILE)


def _put_back_hdf5(intact: Path, path: Path) -> None:
    definitions = [span for span in _spans(intact) if span.kind == "definition"]
    with intact.open("rb") as source, path.open("r+b") as target:
        for span in definitions:
            source.seek(span.begin)
            target.seek(span.begin)
            target.write(source.read(span.length))


@pytest.mark.parametrize(("seed", "rounds", "each"), [(1, 6, 5), pytest.param(2, 300, 1, marks=pytest.mark.slow)])
def test_random_damages_of_what_an_hdf5_file_holds(
    hdf5_file: Path, tmp_path: Path, expected: dict[str, Any], seed: int, rounds: int, each: int
) -> None:
    path = tmp_path / "store.h5"
    for number in range(rounds):
        shutil.copy(hdf5_file, path)
        dice = random.Random(f"{seed} {number}")  # noqa: S311  (no secret)
        hits = [_hit_hdf5(path, dice) for _ in range(each)]
        try:
            survives(_open_hdf5(path), partial(_put_back_hdf5, hdf5_file, path), hits, expected)
        except BaseException as error:
            error.add_note(f"round {number}: {hits}")
            raise


# HDF5's own structures, which carry no checksums: what damage to them may do to a reader, and what not.


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 20), *(pytest.param(seed, 250, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_a_flipped_byte_anywhere_in_an_hdf5_file_gives_right_bits_or_a_store_error(
    hdf5_file: Path, tmp_path: Path, seed: int, count: int
) -> None:
    done = run(flips.__file__, shutil.copy(hdf5_file, tmp_path), seed, count, patience=1200)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-100:]
    told = Counter(line.split()[1] for line in done.stdout.splitlines())
    assert told.total() == count
    assert told.keys() <= {"right", "StoreError"}


def test_a_truncated_hdf5_file_is_a_store_error(hdf5_file: Path, tmp_path: Path, expected: dict[str, Any]) -> None:
    data, path = hdf5_file.read_bytes(), tmp_path / "store.h5"
    for length in range(len(data) - 1, 0, -len(data) // 9):
        path.write_bytes(data[:length])
        with pytest.raises(StoreError, match=re.escape(str(path))):
            HDF5TileStore(path, tile_size=TILE)
    path.write_bytes(data)
    with HDF5TileStore(path, tile_size=TILE) as store:
        assert is_right(read(build(store)), expected)
