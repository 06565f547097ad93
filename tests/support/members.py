"""What the members of a team do, each in a process of its own."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from infinite_tensor import InfiniteTensor, StoreError, TensorWindow, TileAccessError, TileStore, ValidationError
from tests.support.chain import NAMES, STAGES, Chain, Part, Window, check_right, open_chain_store, random_box
from tests.support.interpreters import DEADLINE
from tests.support.reference import Box, region

_kept: dict[str, TileStore] = {}


def fill_at_random(path: Path, seed: int, reads: int, options: dict[str, Any]) -> Counter[Window]:
    """Read random parts of the chain, and flush now and then; tells how often each window ran."""
    rng = random.Random(seed)  # noqa: S311
    with open_chain_store(path, **options) as store:
        chain = Chain(store)
        for _ in range(reads):
            stage = rng.randrange(len(STAGES))
            chain.check((stage, random_box(rng, stage)))
            if rng.random() < 0.3:
                store.flush()
    return chain.calls


def fill_parts(path: Path, parts: Sequence[Part]) -> None:
    """Read parts of the chain one by one, each followed by a flush."""
    with open_chain_store(path) as store:
        chain = Chain(store)
        for part in parts:
            chain.check(part)
            store.flush()


def wait_for_parts(path: Path, parts: Sequence[Part]) -> int:
    """Read stored parts of the chain, opened without ``f``, until all are there; tells how many looks it took.

    A part that was there stays there. Every other look is through a store that stays open.
    """
    deadline = time.monotonic() + DEADLINE
    looks, missing = 0, set(parts)
    with open_chain_store(path, mode="r") as lasting:
        while missing:
            assert time.monotonic() < deadline, f"{missing} do not come"
            with open_chain_store(path, mode="r") as fresh:
                store = [lasting, fresh][looks % 2]
                lacking = {part for part in parts if not _is_stored(store, *part)}
            assert lacking <= missing, f"{lacking - missing} were there and are gone"
            for name in NAMES:
                lasting.clear_cache(name)
            looks, missing = looks + 1, lacking
    return looks


def _is_stored(store: TileStore, stage: int, box: Box) -> bool:
    try:
        check_right(store.open(NAMES[stage], blend=STAGES[stage].blend), stage, box)
    except TileAccessError:
        return False
    return True


def plain(store: TileStore, tensor_id: str, number: int) -> InfiniteTensor:
    """A tensor each of whose pixels is `number`, which is its version too. Its windows do not fit its tiles."""
    return InfiniteTensor(
        (None, None),
        lambda _ctx: torch.full((5, 5), float(number)),
        TensorWindow((5, 5)),
        tile_store=store,
        tensor_id=tensor_id,
        version=number,
    )


def keep_open(path: Path) -> None:
    """Open a store for what this process is told to do next."""
    _kept["store"] = open_chain_store(path)


def open_and_create(path: Path, tensor_id: str) -> list[str]:
    """Open a store, or create it, and create a tensor in it; tells which tensors there are then."""
    with open_chain_store(path) as store:
        plain(store, tensor_id, 1)
        return store.tensor_ids()


def create(tensor_id: str, number: int) -> str | None:
    """Make a plain tensor in the store that is kept open; see `create_in`."""
    return create_in(_kept["store"], tensor_id, number)


def create_in_path(path: Path, tensor_id: str, number: int) -> str | None:
    """Make a plain tensor in a store; see `create_in`."""
    with open_chain_store(path) as store:
        return create_in(store, tensor_id, number)


def create_in(store: TileStore, tensor_id: str, number: int) -> str | None:
    """Make a plain tensor, and say where its tiles are; None if the id is taken by a different one."""
    try:
        tensor = plain(store, tensor_id, number)
    except ValidationError:
        return None
    assert tensor[-9:9, -9:9].unique().tolist() == [number]
    return store.tensor_info(tensor_id).location


def read_plain(tensor_id: str, number: int, box: Box) -> None:
    """Read a part of a plain tensor in the store that is kept open."""
    assert plain(_kept["store"], tensor_id, number)[region(box)].unique().tolist() == [number]


def flush() -> str:
    """Flush the store that is kept open, and say how that went: ``stored``, or the name of the error."""
    return _outcome(_kept["store"].flush)


def write_plain(path: Path, tensor_id: str, number: int, box: Box) -> str:
    """Read a part of a plain tensor and store it, and say how that went: ``stored``, or the name of the error."""

    def write() -> None:
        with open_chain_store(path) as store:
            assert plain(store, tensor_id, number)[region(box)].unique().tolist() == [number]

    return _outcome(write)


def _outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except (StoreError, ValidationError) as error:
        return type(error).__name__
    return "stored"


def clear(path: Path, tensor_id: str) -> None:
    """Delete a tensor."""
    with open_chain_store(path) as store:
        store.clear_tensor(tensor_id)


def read_stored_plain(path: Path, tensor_id: str, box: Box) -> list[float]:
    """The values of a stored part of a plain tensor, opened without ``f``."""
    with open_chain_store(path, mode="r") as store:
        values: list[float] = store.open(tensor_id)[region(box)].unique().tolist()
    return values
