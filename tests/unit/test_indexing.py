"""What may stand between brackets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, from_array, sl
from infinite_tensor.errors import RegionError
from tests.support.building import built

LIMIT = 2**51
PIXELS = np.arange(80, dtype=np.float32).reshape(10, 8)


def line(size: int = 4, shape: tuple[int | None, ...] = (None,)) -> InfiniteTensor:
    """Each pixel is its coordinate."""
    return built(lambda ctx: torch.arange(size) + size * float(ctx[0]), size, shape=shape)


@pytest.mark.parametrize(
    "index", [np.s_[3], np.s_[-1, 2:5], np.s_[...], np.s_[..., -3:], np.s_[8:1:-3, ::-1], np.s_[4:4], np.s_[-99:99, 7]]
)
def test_finite_dimensions_behave_as_in_torch(index: Any) -> None:
    assert np.array_equal(from_array(PIXELS)[index], PIXELS[index])


def test_numbers_are_coordinates_where_a_dimension_is_unbounded() -> None:
    t = line()
    assert t[-5] == -5
    assert t[-3:2].tolist() == list(range(-3, 2))
    assert t[10:0:-3].tolist() == list(range(10, 0, -3))
    assert t[torch.tensor(-2)] == t[np.int64(-2)] == -2
    assert t[torch.tensor(1) : np.int32(4)].tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.bfloat16, torch.bool])
def test_reversal_works_for_every_dtype(dtype: torch.dtype) -> None:
    pixels = torch.tensor([0, 1, 1]).to(dtype)
    found = built(lambda _ctx: pixels, 3, shape=(3,), dtype=dtype)[::-1]
    assert found.dtype == dtype
    assert found.to(torch.int64).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("index", "shape", "word"),
    [
        (sl[:], (None,), "dimension 0 is unbounded"),
        (sl[0:3, 4:], (None, None), "dimension 1 is unbounded"),
        (3, (None, None), "dimension 1 is unbounded"),
        (sl[0, 0, 0], (None, None), "too many"),
        (sl[..., ...], (None, None), "one Ellipsis"),
        (True, (None,), "bool"),
        (torch.tensor(True), (None,), "Tensor"),
        (torch.tensor([1, 2]), (None,), "slices"),
        (np.array([True]), (None,), "slices"),
        (None, (None,), "NoneType"),
        (1.0, (None,), "float"),
        ("a", (None,), "str"),
        (sl[0:1.5], (None,), "ints"),
        (sl[0:4:0], (None,), "zero"),
        (10, (10,), "out of range"),
        (-11, (10,), "out of range"),
        (LIMIT, (None,), r"2\*\*51"),
        (sl[0 : LIMIT + 1], (None,), r"2\*\*51"),
        (sl[-LIMIT - 1 : 0], (None,), r"2\*\*51"),
    ],
)
def test_other_indices_are_refused(index: Any, shape: tuple[int | None, ...], word: str) -> None:
    t = built(lambda _ctx: torch.zeros((1,) * len(shape)), (1,) * len(shape), shape=shape)
    with pytest.raises(RegionError, match=word) as caught:
        t[index]
    assert isinstance(caught.value, IndexError)


def test_the_limits_themselves_can_be_read() -> None:
    t = built(lambda _ctx: torch.ones(4), 4)
    assert t[LIMIT - 1] == t[-LIMIT] == 1
    assert t[LIMIT - 8 : LIMIT].tolist() == [1] * 8


def test_what_is_read_with_a_step_is_no_view_of_a_larger_block() -> None:
    assert line(1000)[0:1000:10].untyped_storage().nbytes() <= 400


def test_sl_always_gives_a_tuple() -> None:
    assert sl[0:4] == (slice(0, 4),)
    assert sl[0:4, 5] == (slice(0, 4), 5)
