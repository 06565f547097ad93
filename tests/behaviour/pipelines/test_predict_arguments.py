"""Whatever `predict` is given, it works, or the error is one of ours, and what is stored stays."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensorError, Mask, ValidationError, ZarrTileStore, open_store, predict, sl
from tests.behaviour.test_hostile_arguments import HOSTILE, error_of

IMAGE = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(0))
FREE = ("net", "source", "target", "version", "overwrite", "pyramid")
"""Of what these may be, others tell."""
NAMES = [name for name in signature(predict).parameters if name not in FREE]


def net(batch: torch.Tensor) -> torch.Tensor:
    return torch.cat([batch, batch.flip(1)], 1)


@pytest.mark.parametrize("name", NAMES)
def test_an_argument_is_refused_by_what_it_is(name: str) -> None:
    plain: dict[str, Any] = {"window": (8, 8), "progress": False}
    refused = 0
    for given, value in HOSTILE.items():
        error = error_of(lambda value=value: predict(net, IMAGE, **(plain | {name: value})))  # type: ignore[misc]
        if error is not None:
            assert isinstance(error, InfiniteTensorError), f"{given}: {type(error).__name__}: {error}"
            assert len(str(error)) < 1500, given
            refused += 1
    assert refused > len(HOSTILE) / 3


WRONG: list[dict[str, Any]] = [
    {"workers": 0},
    {"client": "127.0.0.1:8786"},
    {"progress": "often"},
    {"device": "nowhere"},
    {"region": sl[0:10, "all"]},
    {"where": torch.ones(3, 3)},
    {"where": Mask(torch.ones(12, 12), origin=5)},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: next(iter(wrong)))
def test_what_does_not_fit_is_refused_before_anything_is_overwritten(wrong: dict[str, Any], tmp_path: Path) -> None:
    before = predict(net, IMAGE, tmp_path / "s.zarr", window=(8, 8), progress=False)[...]
    options: dict[str, Any] = {"window": (8, 8), "overwrite": True, "progress": False} | wrong
    with pytest.raises(InfiniteTensorError), ZarrTileStore(tmp_path / "s.zarr") as store:
        predict(net, -IMAGE, store, **options)
    with open_store(tmp_path / "s.zarr", mode="r") as store:
        assert torch.equal(store.open("prediction")[...], before)


def failing(_batch: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such planet")


@pytest.mark.parametrize(
    "wrong",
    [*WRONG, {"max_memory": 1}, {"reduce": "argmin"}, {"blend": "sharp"}, {"preprocess": failing}, {"dtype": "text"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_does_not_fit_is_refused_before_a_store_is_created(wrong: dict[str, Any], tmp_path: Path) -> None:
    options: dict[str, Any] = {"window": (8, 8), "progress": False} | wrong
    for target in (tmp_path / "new" / "s.zarr", str(tmp_path / "s.h5")):
        with pytest.raises((InfiniteTensorError, RuntimeError)):
            predict(net, IMAGE, target, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_reduction_that_fails_is_shown_what_it_was_given() -> None:
    with pytest.raises(ValidationError, match=r"does not work on values of shape \(6, 64\).*positional argument"):
        predict(net, IMAGE, window=(8, 8), reduce=lambda: 0, progress=False)
