"""Tensors whose f holds a network: other weights are a warning, or another version."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from infinite_tensor import (
    FunctionChangedWarning,
    InfiniteTensor,
    MemoryTileStore,
    Output,
    TensorGroup,
    ValidationError,
    ZarrTileStore,
    digest,
)
from tests.support.building import built, store_of
from tests.support.networks import WINDOW, Net, build, closing_over
from tests.support.stores import sample

Opened: TypeAlias = "Callable[[], Any]"


@pytest.fixture(params=sample(["memory", "zarr", "hdf5"]))
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens one store again and again."""
    if request.param != "memory":
        return partial(store_of, request.param, tmp_path)
    return partial(nullcontext, MemoryTileStore())


def changed(make: Callable[[], object]) -> list[str]:
    """Of which tensors there are warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    assert all(each.category is FunctionChangedWarning for each in caught)
    return [str(each.message).split("'")[1] for each in caught]


ALL = ["closure", "partial", "method", "below"]


def test_other_weights_are_a_warning_and_old_pixels(opened: Opened) -> None:
    with opened() as store:
        before = [t[-4:8] for t in build(store, Net().eval())]
    with opened() as store:
        assert changed(lambda: build(store, Net().eval())) == []
        assert changed(lambda: build(store, Net(0.25).eval())) == ALL
    with opened() as store, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert all(map(torch.equal, [t[-4:8] for t in build(store, Net(0.25).eval())], before))


def test_a_tensor_that_is_opened_again_with_other_weights_is_a_warning(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        build(store, Net())
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        assert changed(lambda: store.open("closure", f=closing_over(Net()))) == []
        assert changed(lambda: store.open("closure", f=closing_over(Net(0.25)))) == ["closure"]


def test_each_output_of_a_network_is_a_warning(opened: Opened) -> None:
    def both(net: Net, ctx: tuple[int, ...]) -> dict[str, torch.Tensor]:
        value = net.sample(ctx)
        return {"one": value, "two": value / 2}

    def make(value: float) -> TensorGroup:
        outputs = {name: Output((None,), torch.float32, WINDOW) for name in ("one", "two")}
        return InfiniteTensor.from_multi(partial(both, Net(value)), outputs, tile_store=store, tensor_id="both")

    with opened() as store:
        make(0.5)
        assert changed(lambda: make(0.5)) == []
        assert changed(lambda: make(0.25)) == ["both/one", "both/two"]


def test_the_digest_as_version_refuses_other_weights(opened: Opened) -> None:
    def make(net: Net) -> InfiniteTensor:
        return built(closing_over(net), 4, store=store, name="t", version=digest(net))

    with opened() as store:
        make(Net())[0:4]
    with opened() as store:
        make(Net())
        with pytest.raises(ValidationError, match=f"version: stored '{digest(Net())}', given '{digest(Net(0.25))}'"):
            make(Net(0.25))
