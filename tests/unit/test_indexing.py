"""What may stand between brackets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, sl
from infinite_tensor.errors import RegionError
from infinite_tensor.geometry.points import COORDINATE_LIMIT
from infinite_tensor.geometry.regions import SelectionBlocks, parse
from infinite_tensor.geometry.window import WindowGrid

UNBOUNDED = (None, None)
FINITE = (10, 8)


@pytest.mark.parametrize(
    "index", [np.s_[3], np.s_[-1, 2:5], np.s_[...], np.s_[..., -3:], np.s_[8:1:-3, ::-1], np.s_[4:4], np.s_[-99:99, 7]]
)
def test_finite_dimensions_behave_as_in_torch(index: Any) -> None:
    pixels = np.arange(80).reshape(FINITE)
    selection = parse(index, FINITE)
    wanted = torch.from_numpy(pixels[np.ix_(*selection.pixels)])
    assert wanted.shape == selection.size
    assert torch.equal(selection.pick(wanted), torch.from_numpy(np.ascontiguousarray(pixels[index])))


@pytest.mark.parametrize("most", [1, 7, 10**6])
@pytest.mark.parametrize("index", [np.s_[8:1:-3, ::5], np.s_[::4, 1:8], np.s_[::3, ::2], np.s_[3, ::7], np.s_[4:4]])
def test_the_blocks_of_a_selection_hold_what_is_wanted_and_meet_no_window_besides(index: Any, most: int) -> None:
    pixels = torch.arange(80).reshape(FINITE)
    grid = WindowGrid(TensorWindow((3, 3), stride=2, offset=-1), FINITE, ("clip", "clip"))
    selection = parse(index, FINITE)
    blocks = SelectionBlocks.of(selection, grid.window).cut(most)
    out, wanted = torch.full(selection.size, -1), set(itertools.product(*selection.pixels))
    for block in blocks:
        stop = tuple(a + n for a, n in zip(block.start, block.shape, strict=True))
        for window in itertools.product(*map(range, *grid.box(block.start, stop))):
            spans = [range(a, a + 3) for a in grid.window.start(window)]
            assert wanted & set(itertools.product(*spans))
        blocks.fill(
            block,
            out,
            lambda start, box: box.copy_(pixels[tuple(map(slice, start, FINITE))][tuple(map(slice, box.shape))]),
        )
    assert torch.equal(out, pixels[np.ix_(*selection.pixels)])


def test_negative_numbers_are_coordinates_where_unbounded() -> None:
    selection = parse(sl[-5, -3:2], UNBOUNDED)
    assert (selection.start, selection.stop, selection.squeezed) == ((-5, -3), (-4, 2), (0,))


def test_negative_step_spans_the_same_pixels_as_a_range() -> None:
    selection = parse(sl[10:0:-3, 0:1], UNBOUNDED)
    assert (selection.start[0], selection.stop[0]) == (1, 11)
    assert list(selection.pixels[0]) == [1, 4, 7, 10]
    assert selection.pick(torch.tensor([[1], [4], [7], [10]]))[:, 0].tolist() == list(range(10, 0, -3))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.bfloat16, torch.bool])
def test_reversal_works_for_every_dtype(dtype: torch.dtype) -> None:
    pixels = torch.tensor([0, 1, 1]).to(dtype)
    picked = parse(sl[2::-1], (3,)).pick(pixels)
    assert picked.dtype == dtype
    assert picked.to(torch.int64).tolist() == [1, 1, 0]


def test_anything_with_index_is_an_int() -> None:
    assert parse((np.int64(3), torch.tensor(-2)), UNBOUNDED).start == (3, -2)
    assert parse(sl[torch.tensor(1) : np.int32(4)], (None,)).stop == (4,)


@pytest.mark.parametrize(
    ("index", "shape", "said"),
    [
        (sl[:], (None,), "dimension 0 is unbounded.*got :"),
        (sl[0:3, 4:], UNBOUNDED, "dimension 1 is unbounded.*got 4:"),
        (3, UNBOUNDED, "dimension 1 is unbounded"),
        (sl[0, 0, 0], UNBOUNDED, "too many indices"),
        (sl[..., ...], UNBOUNDED, "one Ellipsis"),
        (True, (None,), "cannot index with bool"),
        (torch.tensor(True), (None,), "cannot index with Tensor"),
        (torch.tensor([1, 2]), (None,), "give ints, slices"),
        ([sl[0:1], sl[2:3]], (None,), "list .*for several regions"),
        (np.array([True]), (None,), "give ints, slices"),
        (None, (None,), "cannot index with NoneType"),
        (1.0, (None,), "cannot index with float"),
        ("a", (None,), "cannot index with str"),
        (sl[0:1.5], (None,), "a slice takes ints"),
        (sl[0:4:0], (None,), "step cannot be zero"),
        (10, (10,), "out of range for dimension 0 with size 10"),
        (-11, (10,), "out of range"),
        (COORDINATE_LIMIT, (None,), r"beyond the limit of 2\*\*51"),
        (sl[0 : COORDINATE_LIMIT + 1], (None,), f"go from -{COORDINATE_LIMIT} to {COORDINATE_LIMIT - 1}$"),
        (sl[-COORDINATE_LIMIT - 1 : 0], (None,), "beyond the limit"),
    ],
)
def test_other_indices_are_refused(index: object, shape: tuple[int | None, ...], said: str) -> None:
    with pytest.raises(RegionError, match=said) as caught:
        parse(index, shape)
    assert isinstance(caught.value, IndexError)


def test_the_limits_themselves_can_be_read() -> None:
    assert parse(sl[COORDINATE_LIMIT - 1], (None,)).start == (COORDINATE_LIMIT - 1,)
    assert parse(sl[0:COORDINATE_LIMIT], (None,)).stop == (COORDINATE_LIMIT,)
    assert parse(sl[-COORDINATE_LIMIT], (None,)).start == (-COORDINATE_LIMIT,)


def test_what_is_read_with_a_step_is_no_view_of_a_larger_block() -> None:
    t = InfiniteTensor((None,), lambda _: torch.zeros(1000), TensorWindow((1000,)))
    assert t[0:1000:10].untyped_storage().nbytes() <= 400


def test_sl_always_gives_a_tuple() -> None:
    assert sl[0:4] == (slice(0, 4),)
    assert sl[0:4, 5] == (slice(0, 4), 5)


def test_a_selection_means_itself() -> None:
    selection = parse(sl[-3:9:2, 4], UNBOUNDED)
    assert parse(selection, UNBOUNDED) is selection
