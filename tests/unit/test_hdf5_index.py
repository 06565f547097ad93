"""The index of slots against a dictionary."""

from __future__ import annotations

import random
from typing import TypeAlias

import numpy as np

from infinite_tensor_stores.hdf5.slots import TileIndex

Index: TypeAlias = tuple[int, ...]

ABSENT = (10**9, 0)


def checked(index: TileIndex, model: dict[Index, int]) -> None:
    tiles = list(model)
    assert len(index) == len(model)
    assert index.find([*tiles, ABSENT]).tolist() == [*model.values(), -1]
    some = sorted(model.values())[::3]
    assert set(index.tiles_in(some)) == {tile for tile, slot in model.items() if slot in set(some)}


def test_tiles_are_entered_moved_and_taken_out() -> None:
    dice = random.Random(1)  # noqa: S311  (no secret)
    far = 2**51
    tiles: list[Index] = [(dice.randrange(-far, far), dice.randrange(-3, 3)) for _ in range(40)]
    model = dict(zip(tiles[:20], range(20), strict=True))
    index = TileIndex(np.array(tiles[:20]), np.arange(20))
    checked(index, model)
    for turn in range(60):
        chosen = dice.sample(tiles, 4)
        slots = [-1 if dice.random() < 0.3 else 100 * turn + n for n in range(4)]
        index.put(chosen, slots)
        model |= dict(zip(chosen, slots, strict=True))
        model = {tile: slot for tile, slot in model.items() if slot != -1}
        checked(index, model)


def test_an_empty_index_holds_nothing() -> None:
    index = TileIndex(np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64))
    checked(index, {})
    index.put([(1, 2)], [3])
    checked(index, {(1, 2): 3})
