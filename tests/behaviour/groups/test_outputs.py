"""The outputs of one ``f`` are a group."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, MemoryTileStore, Output, TensorGroup, TensorWindow, ZarrTileStore, sl
from tests.support.counting import Counted

pytest.importorskip("tensordict")

WINDOW = TensorWindow((3, 8, 8), dimension_map=(None, 0, 1))


def painted(ctx: tuple[int, ...]) -> dict[str, Any]:
    """An image of 8 x 8 pixels, and a mask of 2 x 2 for the same place."""
    picture = torch.arange(192.0).reshape(3, 8, 8) + 10 * ctx[0] + ctx[1]
    return {"rgb": picture, "coarse": {"mask": picture[0, ::4, ::4] > 20}}


def world(f: Counted, store: Any = None) -> TensorGroup:
    outputs = {
        "rgb": Output((3, None, None), torch.float32, WINDOW),
        "coarse": {"mask": Output((None, None), torch.bool, TensorWindow((2, 2)))},
    }
    return InfiniteTensor.from_multi(f, outputs, tile_store=store or MemoryTileStore(), tensor_id="w")


def test_a_region_of_all_outputs_is_one_tensordict_and_runs_f_once_for_each_window() -> None:
    f = Counted(painted)
    place = world(f)[0:16, 8:24]
    assert place["rgb"].shape == (16, 16, 3)
    assert place["coarse", "mask"].shape == (4, 4)
    assert f.counts == Counter({(i, j): 1 for i in (0, 1) for j in (1, 2)})


def test_a_fill_of_the_group_runs_each_window_once_and_its_plan_says_so(tmp_path: Path) -> None:
    f = Counted(painted)
    with ZarrTileStore(tmp_path / "s", tile_size=8) as store:
        group = world(f, store)
        plan = group.plan(sl[0:32, 0:32])
        report = group.fill(sl[0:32, 0:32], progress=False)
        assert plan.calls == len(f.calls) == 16
        assert report.windows == plan.windows
        assert group.is_filled(sl[0:32, 0:32])


def test_it_is_saved_and_opened_as_any_group(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s", tile_size=8) as store:
        group = world(Counted(painted), store)
        expected = group[0:8, 0:8]
        group.save(store, "painting")
    with ZarrTileStore(tmp_path / "s", mode="r") as store:
        again = store.open_group("painting")
        assert torch.equal(again[0:8, 0:8]["rgb"], expected["rgb"])
        assert again.scale(("coarse", "mask")) == (Fraction(1, 4), Fraction(1, 4))


def test_outputs_of_different_extents_share_the_pixels_that_all_have() -> None:
    group = InfiniteTensor.from_multi(
        lambda _ctx: {"cells": torch.ones(4), "corners": torch.zeros(5)},
        {
            "cells": Output((16,), torch.float32, TensorWindow((4,))),
            "corners": Output((17,), torch.float32, TensorWindow((5,), stride=4), torch.maximum),
        },
    )
    assert group.shape == (16,)
    assert group[0:16].batch_size == (16,)
    assert group["corners"][:].shape == (17,)


def test_channels_that_all_outputs_have_whole_are_not_shared() -> None:
    outputs = {
        "rgb": Output((3, None, None), torch.float32, TensorWindow((3, 4, 4))),
        "flow": Output((2, None, None), torch.float32, TensorWindow((2, 4, 4))),
    }
    group = InfiniteTensor.from_multi(lambda _ctx: {"rgb": torch.ones(3, 4, 4), "flow": torch.zeros(2, 4, 4)}, outputs)
    assert group.shape == (None, None)
    place = group[0:4, 0:6]
    assert place.batch_size == (4, 6)
    assert place["flow"].shape == (4, 6, 2)
