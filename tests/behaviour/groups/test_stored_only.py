"""What is stored of a group, and nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorGroup, TensorWindow, ValidationError, ZarrTileStore, sl
from infinite_tensor.errors import RegionError
from tests.support.counting import Counted

Made = tuple[TensorGroup, dict[str, Counted]]


def _fine(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(32.0).reshape(2, 4, 4) + 100 * ctx[1] + ctx[2]


def _coarse(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.full((4, 4), 10 * ctx[0] + ctx[1] + 1, dtype=torch.uint8)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A group of two channels and a map of half the resolution, both stored for ``[0:8, 0:8]`` alone."""
    store = ZarrTileStore(tmp_path, tile_size=4)
    functions = {"fine": Counted(_fine), "coarse": Counted(_coarse)}

    def made(name: str, shape: tuple[int | None, ...], *size: int, dtype: str) -> InfiniteTensor:
        window = TensorWindow(size)
        return InfiniteTensor(shape, functions[name], window, dtype=dtype, tile_store=store, tensor_id=name)

    fine = made("fine", (2, None, None), 2, 4, 4, dtype="float32")
    group = TensorGroup(
        {"fine": fine, "maps": {"coarse": made("coarse", (None, None), 4, 4, dtype="uint8")}}, scale={"maps": 0.5}
    )
    group.fill(sl[0:8, 0:8], progress=False)
    return group, functions


def test_it_shows_what_is_stored_at_the_resolution_of_each_tensor_and_computes_nothing(made: Made) -> None:
    group, functions = made
    calls = {name: len(f.calls) for name, f in functions.items()}
    found = group.stored_only({"fine": -1, "maps": 255})[0:16, 4:12]
    assert {name: len(f.calls) for name, f in functions.items()} == calls
    assert torch.equal(found["fine"][:8, :4], group["fine"][:, 0:8, 4:8].movedim(0, -1))
    assert (found["fine"][8:] == -1).all()
    assert (found["fine"][:, 4:] == -1).all()
    assert found["maps", "coarse"][:, :2].tolist() == [[1, 1]] * 4 + [[255, 255]] * 4
    assert (found["maps", "coarse"][:, 2:] == 255).all()


@pytest.mark.parametrize("region", [sl[0:8, 0:8], sl[2:6, 0:8], sl[0:0, 0:8], sl[3, 4:6], [sl[0:8, 0:4], sl[5, 5]]])
def test_of_what_is_stored_it_is_what_the_group_returns(made: Made, region: Any) -> None:
    group, _ = made
    found, expected = group.stored_only()[region], group[region]
    pairs = zip(found, expected, strict=True) if isinstance(region, list) else [(found, expected)]
    for one, other in pairs:
        assert one.batch_size == other.batch_size
        assert (one == other).all()


def test_another_process_may_be_handed_it(made: Made) -> None:
    group, _ = made
    fine: Any = group["fine"]
    fine.tile_store.flush()
    again = pickle.loads(pickle.dumps(group.exclude("fine").stored_only(9)))  # noqa: S301  (its own)
    assert again[0:8, 6:10]["maps", "coarse"].tolist() == [[1, 9]] * 4


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "uint8"),
        ("x", "number"),
        ({"rough": 1}, "'rough'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(made: Made, value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        made[0].stored_only(value)


@pytest.mark.parametrize("region", ["fine", sl[0:8:2, 0:8], sl[:, 0:8]])
def test_what_is_no_region_of_the_group_is_refused(made: Made, region: Any) -> None:
    with pytest.raises(RegionError):
        made[0].stored_only()[region]
