"""Several reductions of the scores of one network: kept and blended once, and a group of tensors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from infinite_tensor import (
    InfiniteTensor,
    Mask,
    TensorGroup,
    ValidationError,
    ZarrTileStore,
    open_store,
    predict,
    sl,
)
from tests.support.counting import Counted
from tests.support.files_of_a_store import Files

NET = nn.Conv2d(3, 5, 3, padding=1)
IMAGE = torch.rand(3, 90, 70, generator=torch.Generator().manual_seed(0))
HOW: dict[str, Any] = {"window": 32, "overlap": 0.5, "dims": ("c", "y", "x"), "progress": False}


def confidence(scores: torch.Tensor) -> torch.Tensor:
    return scores.softmax(0).amax(0)


def pair(scores: torch.Tensor) -> torch.Tensor:
    return scores.topk(2, 0).values


REDUCE: dict[str, Any] = {"sure": confidence, "labels": "argmax", "best": pair, "scores": None}


def test_each_is_what_it_is_alone() -> None:
    group = predict(NET, IMAGE, reduce=REDUCE, **HOW)
    assert isinstance(group, TensorGroup)
    assert group.shape == (90, 70)
    assert [*group] == ["best", "labels", "scores", "sure"]
    for name, reduction in REDUCE.items():
        alone = predict(NET, IMAGE, reduce=reduction, **HOW)
        assert isinstance(alone, InfiniteTensor)
        assert (group[name].shape, group[name].dtype) == (alone.shape, alone.dtype)
        assert torch.equal(group[name][...], alone[...])


def test_scores_may_be_of_a_dtype_that_numpy_has_not() -> None:
    half = HOW | {"autocast": torch.bfloat16}
    group, alone = (predict(NET, IMAGE, reduce=each, **half) for each in ({"labels": "argmax"}, "argmax"))
    assert torch.equal(group["labels"][...], alone[...])


def test_scores_are_kept_once(tmp_path: Path) -> None:
    half: dict[str, Any] = {"region": sl[0:32, 0:70]}
    with ZarrTileStore(tmp_path / "both", tile_size=16) as both, ZarrTileStore(tmp_path / "one", tile_size=16) as one:
        predict(NET, IMAGE, both, reduce={"labels": "argmax", "sure": confidence}, **HOW, **half)
        predict(NET, IMAGE, one, reduce="argmax", **HOW, **half)
    found, alone = Files(tmp_path / "both").tensors, Files(tmp_path / "one").tensors
    assert found.keys() == alone.keys() == {"prediction"}
    assert found["prediction"].logs == alone["prediction"].logs == set()
    assert len(found["prediction"].chunks) == len(alone["prediction"].chunks) == 2 * math.ceil(70 / 16)


def test_it_is_continued_in_whatever_order_they_are_given(tmp_path: Path) -> None:
    net = Counted(NET)
    corner = Mask(lambda pixels: pixels[0].start < 32 and pixels[1].start < 32)
    with open_store(tmp_path / "s.zarr") as store:
        predict(net, IMAGE, store, reduce={"labels": "argmax", "sure": confidence}, where=corner, version=1, **HOW)
    before = len(net.calls)
    with open_store(tmp_path / "s.zarr") as store:
        group = predict(net, IMAGE, store, reduce={"sure": confidence, "labels": "argmax"}, version=1, **HOW)
        again = len(net.calls) - before
        predict(net, IMAGE, store, reduce={"sure": confidence, "labels": "argmax"}, version=1, **HOW)
        assert len(net.calls) - before == again
        assert store.open("prediction").shape == (2, 90, 70)
        assert isinstance(group, TensorGroup)
        assert torch.equal(group["labels"][...], predict(NET, IMAGE, reduce="argmax", **HOW)[...])


@pytest.mark.parametrize(
    "other",
    [
        {"labels": "argmax", "best": confidence},
        {"labels": "argmax", "sure": pair},
        {"labels": confidence, "sure": "argmax"},
    ],
    ids=["name", "function", "exchanged"],
)
def test_other_reductions_under_the_same_id_are_refused(other: dict[str, Any], tmp_path: Path) -> None:
    with open_store(tmp_path / "s.zarr") as store:
        predict(NET, IMAGE, store, reduce={"labels": "argmax", "sure": confidence}, **HOW)
        with pytest.raises(ValidationError, match="already holds a tensor 'prediction'"):
            predict(NET, IMAGE, store, reduce=other, **HOW)


def test_what_no_dtype_holds_is_refused() -> None:
    def large(scores: torch.Tensor) -> torch.Tensor:
        return scores.argmax(0) + 2**60

    with pytest.raises(ValidationError, match=r"no dtype holds the values of .*'large': torch\.int64"):
        predict(NET, IMAGE, reduce={"large": large, "sure": confidence}, **HOW)
