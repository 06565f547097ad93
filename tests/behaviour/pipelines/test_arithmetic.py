"""Operators and functions of torch over tensors: lazy, with the pixels that torch makes of the whole arrays."""

from __future__ import annotations

import itertools
import operator
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    TensorBlob,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
    overlay,
    placed,
    sl,
)
from tests.support.reference import Index

# Type checkers know nothing of functions of torch that take others than its tensors.
where: Any = torch.where
stack: Any = torch.stack
cat: Any = torch.cat

LOW, HIGH = -12, 17
"""What is read of unbounded dimensions, and a little more around it."""
Known = tuple[InfiniteTensor, torch.Tensor]
"""A tensor, and its pixels from LOW to HIGH in unbounded dimensions."""


def numbers(seed: int, shape: Index) -> torch.Tensor:
    """Small whole numbers, of which sums and products are exact."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-5, 6, shape)).double()


class Counted:
    """Computes windows of an array whose first pixel is LOW, and counts them."""

    def __init__(self, values: torch.Tensor, side: int) -> None:
        self.values, self.side, self.calls = values, side, Counter[Index]()

    def __call__(self, ctx: Index) -> torch.Tensor:
        self.calls[ctx] += 1
        found = self.values
        for d, n in enumerate(ctx):
            at = torch.arange(n * self.side, (n + 1) * self.side) - LOW
            found = found.index_select(d, at.clamp(0, self.values.shape[d] - 1))
        return found


def unbounded(values: torch.Tensor, side: int = 4, **options: Any) -> InfiniteTensor:
    window = TensorWindow((side,) * values.ndim)
    return InfiniteTensor((None,) * values.ndim, Counted(values, side), window, dtype=values.dtype, **options)


def calls_of(tensor: InfiniteTensor) -> Counter[Index]:
    assert isinstance(tensor.f, Counted)
    return tensor.f.calls


SIDE = HIGH - LOW
UNARY: list[Callable[[Any], Any]] = [operator.neg, abs, lambda x: x + 1, lambda x: 2 - x, torch.sign, lambda x: x * x]
BINARY: list[Callable[[Any, Any], Any]] = [
    *(operator.add, operator.sub, operator.mul, torch.maximum, torch.fmin),
    lambda x, y: where(x > y, x, 3.0 * y),
    lambda x, y: where((x == y) | (x > 0), y, x),
    lambda x, y: where(x >= 7, y, -1.0),
    lambda x, y: (x != y) * x + (x <= y) * y,
]
SHAPES: list[Index] = [(SIDE, SIDE), (SIDE,), (3, SIDE, SIDE), (3, 1, 1), (1, SIDE)]


@st.composite
def _sources(draw: st.DrawFn) -> Known:
    values = numbers(draw(st.integers(0, 5)), draw(st.sampled_from(SHAPES)))
    if SIDE not in values.shape:
        return from_array(values), values
    if len(values) == 1:
        # A dimension of one pixel beside an unbounded one.
        return stack([unbounded(values[0])]), values
    if values.ndim == 3:
        return stack([unbounded(each) for each in values]), values
    plane = unbounded(values, draw(st.sampled_from([3, 4, 8])))
    return draw(st.sampled_from([plane, plane.map(torch.clone), plane.map(torch.clone, window=5)])), values


@st.composite
def _trees(draw: st.DrawFn, depth: int = 3) -> Known:
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(_sources())
    if draw(st.booleans()):
        fn = draw(st.sampled_from(UNARY))
        (tensor, values) = draw(_trees(depth - 1))
        return fn(tensor), fn(values)
    (one, first), (other, second) = draw(_trees(depth - 1)), draw(_trees(depth - 1))
    both = draw(st.sampled_from(BINARY))
    return both(one, other), both(first, second)


@given(_trees(), st.lists(st.integers(LOW, HIGH), min_size=6, max_size=6), st.booleans())
def test_pixels_are_those_that_torch_makes_of_the_arrays(tree: Known, ends: list[int], is_kept: bool) -> None:
    tensor, values = tree
    if is_kept:
        dims = tuple(range(tensor.ndim))
        tensor = tensor.map(torch.clone, store=MemoryTileStore(), window=(5,) * tensor.ndim, dims=dims)
    region, expected = [], values
    for d, extent in enumerate(tensor.shape):
        low, high = sorted(ends[2 * d : 2 * d + 2])
        region.append(slice(low, high) if extent is None else slice(None))
        if extent is None:
            expected = expected.narrow(d, low - LOW, high - low)
    assert torch.equal(tensor[tuple(region)], expected)


OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "xor", "lt", "le", "gt", "ge", "eq")
DTYPES = [*itertools.combinations_with_replacement([torch.float32, torch.int64, torch.bool], 2)]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtypes", DTYPES)
def test_operators_have_the_pixels_and_dtypes_of_torch(name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    operate = getattr(operator, name)
    one, other = (numbers(seed, (SIDE, SIDE)).abs().add(1).to(dtype) for seed, dtype in enumerate(dtypes))
    a, b = unbounded(one), unbounded(other)
    region = sl[LOW:HIGH, LOW:HIGH]
    cases: list[tuple[tuple[Any, Any], tuple[Any, Any]]] = [
        ((a, b), (one, other)),
        ((b, 3), (other, 3)),
        ((0.5, a), (0.5, one)),
        ((np.int64(2), b), (2, other)),
        ((torch.tensor(2), b), (torch.tensor(2), other)),
    ]
    for lazy, eager in cases:
        try:
            expected = operate(*eager)
        except (RuntimeError, TypeError):
            with pytest.raises(TypeError):
                operate(*lazy)
            continue
        found = operate(*lazy)
        assert (found.dtype, found.shape) == (expected.dtype, (None, None))
        assert torch.equal(found[region], expected)


def test_what_is_not_chosen_is_not_computed() -> None:
    mask = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    mask[:, 4 - LOW :] = True
    condition, left, right = unbounded(mask), unbounded(numbers(1, (SIDE, SIDE))), unbounded(numbers(2, (SIDE, SIDE)))
    chosen = where(condition, right, left)
    assert isinstance(chosen, InfiniteTensor)
    assert torch.equal(chosen[0:4, -4:4], left[0:4, -4:4])
    assert not calls_of(right)
    assert torch.equal(chosen[-4:0, 4:12], right[-4:0, 4:12])
    assert set(calls_of(left)) == {(0, -1), (0, 0)}
    # Of a region with both, each is computed where it is chosen.
    assert torch.equal(chosen[8:12, 0:8], cat([left[8:12, 0:4], right[8:12, 4:8]], 1))
    assert set(calls_of(right)) == {(-1, 1), (-1, 2), (2, 1)}
    # Neither is computed for windows of others that do not need it.
    kept = chosen.map(torch.clone, window=4)
    kept[4:8, -8:-4]
    assert (1, -2) not in calls_of(right)
    assert calls_of(left).most_common(1)[0][1] == 1


def test_a_fill_computes_what_is_chosen_and_counts_it() -> None:
    mask = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    mask[:, 4 - LOW :] = True
    sources = unbounded(mask), unbounded(numbers(1, (SIDE, SIDE))), unbounded(numbers(2, (SIDE, SIDE)))
    condition, left, right = sources
    chosen = where(condition, right, left + 1)
    for filled in (chosen, chosen.map(torch.clone, window=4, store=MemoryTileStore())):
        for each in sources:
            each.clear_cache()
            calls_of(each).clear()
        plan = filled.plan(sl[0:8, 0:8])
        report = filled.fill(sl[0:8, 0:8], progress=False)
        assert [len(calls_of(each)) for each in sources] == [4, 2, 2]
        assert sum(calls_of(each).total() for each in sources) == 8
        counted = {each.tensor_id: each.windows for each in report.tensors}
        assert [counted[each.tensor_id] for each in sources] == [4, 2, 2]
        # Nobody knows before what is chosen.
        assert plan.windows >= report.windows
        before = [calls_of(each).total() for each in sources]
        assert torch.equal(filled[0:8, 0:8], torch.where(condition[0:8, 0:8], right[0:8, 0:8], left[0:8, 0:8] + 1)[0:8])
        assert calls_of(condition).total() == before[0]


def test_choices_within_choices_read_what_is_chosen() -> None:
    ramp = unbounded(torch.arange(LOW, HIGH).double()[:, None].expand(SIDE, SIDE), 1)
    worlds = [unbounded(numbers(seed, (SIDE, SIDE)), 1) for seed in range(12)]
    chosen = worlds[0]
    for number, world in enumerate(worlds[1:], 1):
        chosen = where(ramp >= number, world, chosen)
    for number, world in enumerate(worlds):
        assert torch.equal(chosen[number, 0:3], world[number, 0:3])
        assert {row for row, _ in calls_of(world)} == {number}


def test_a_change_of_what_is_chosen_drops_what_was_computed_from_it() -> None:
    values = numbers(1, (SIDE, SIDE))
    source = unbounded(values, tile_store=MemoryTileStore(), tensor_id="source")
    kept = where(source > 0, source * 2, 0.0).map(torch.clone, store=MemoryTileStore(), window=4)
    before = kept[0:8, 0:8].clone()
    assert isinstance(source.f, Counted)
    source.f.values = -values
    source.invalidate(sl[0:4, 0:4])
    after = kept[0:8, 0:8]
    assert torch.equal(after[0:4, 0:4], (-values[-LOW : 4 - LOW, -LOW : 4 - LOW] * 2).clamp(min=0))
    assert torch.equal(after[4:], before[4:])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(-2, 1), st.integers(0, 9), st.integers(0, 9))
def test_stacks_and_rows_of_tensors(extents: list[int], dim: int, low: int, high: int) -> None:
    arrays = [numbers(n, (n, 3) if dim % 2 == 0 else (3, n)) for n in extents]
    joined = cat([from_array(each) for each in arrays], dim)
    assert torch.equal(joined[...], cat(arrays, dim))
    assert torch.equal(joined[low:high, low:], cat(arrays, dim)[low:high, low:])
    layers = [numbers(n, (4, 3)) for n in extents]
    stacked = stack([from_array(each) for each in layers], dim)
    assert torch.equal(stacked[...], stack(layers, dim))
    assert torch.equal(stacked[0, low:high], stack(layers, dim)[0, low:high])


def test_of_a_stack_only_the_layers_that_are_read_are_computed() -> None:
    layers = [unbounded(numbers(seed, (SIDE, SIDE))) for seed in range(3)]
    stacked = stack(layers)
    assert torch.equal(stacked[1, 0:4, 0:4], layers[1][0:4, 0:4])
    assert [len(calls_of(each)) for each in layers] == [0, 1, 0]


@given(st.integers(LOW, HIGH - 1), st.integers(1, 9), st.integers(-9, 9), st.booleans())
def test_a_crop_is_the_region_from_pixel_0_on(begin: int, length: int, at: int, drops: bool) -> None:
    values = numbers(0, (SIDE, SIDE))
    length = min(length, HIGH - begin)
    region = sl[begin : begin + length, at] if drops else sl[begin : begin + length, at : at + 3]
    cropped = unbounded(values).crop(region)
    assert cropped.shape == ((length,) if drops else (length, 3))
    assert torch.equal(cropped[...], unbounded(values)[region])
    assert torch.equal(cropped[-1:], unbounded(values)[region][-1:])


@given(st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([0, 7, float("nan")]), st.integers(0, 2))
def test_a_finite_tensor_lies_where_it_is_placed(row: int, column: int, fill: float, channels: int) -> None:
    values = numbers(0, (channels, 4, 3) if channels else (4, 3))
    world = placed(values, (row, column), fill)
    assert world.shape == ((channels, None, None) if channels else (None, None))
    expected = torch.full((*values.shape[:-2], 24, 24), fill, dtype=torch.float64)
    expected[..., row + 10 : row + 14, column + 10 : column + 13] = values
    assert torch.equal(world[..., -10:14, -10:14].nan_to_num(99), expected.nan_to_num(99))


def test_edits_lie_over_a_world_that_is_computed_where_there_are_none() -> None:
    below = numbers(1, (SIDE, SIDE))
    base = unbounded(below)
    edits = torch.full((4, 4), float("nan"), dtype=torch.float64)
    edits[1:3, 1:3] = 100
    world = overlay(placed(edits, (0, 0), float("nan")), base)
    expected = below[-LOW:, -LOW:][:8, :8].clone()
    expected[1:3, 1:3] = 100
    assert torch.equal(world[0:8, 0:8], expected)
    # Labels, which have no NaN.
    labels = placed(torch.tensor([[1, 255], [255, 2]], dtype=torch.uint8), (0, 0), 255)
    found = overlay(labels, torch.zeros(1, dtype=torch.uint8), nodata=255)[0:3, 0:3]
    assert found.tolist() == [[1, 0, 0], [0, 2, 0], [0, 0, 0]]
    # With a nodata value, NaN is missing, too.
    assert overlay(torch.tensor([-1.0, 2.0, float("nan")]), 5.0, nodata=-1)[...].tolist() == [5, 2, 5]
    calls_of(base).clear()
    overlay(torch.ones(4, 4), base.crop(sl[0:4, 0:4]))[...]
    assert not calls_of(base)
    with pytest.raises(ValidationError, match="nodata="):
        overlay(torch.ones(2, 2, dtype=torch.int64), base)


def test_what_is_stored_of_an_old_world_goes_on_in_a_new_one(tmp_path: Path) -> None:
    old, new = numbers(1, (SIDE, SIDE)), unbounded(numbers(2, (SIDE, SIDE)))
    with ZarrTileStore(tmp_path / "old.zarr", tile_size=8) as store:
        # Of the second tile, only some windows are stored.
        unbounded(old, tile_store=store, tensor_id="world")[0:8, 0:12]
    with ZarrTileStore(tmp_path / "old.zarr", mode="r") as store:
        world = store.open("world").or_else(new)
        expected = cat([old[-LOW:, -LOW:][:8, :12], new[0:8, 12:16]], 1)
        calls_of(new).clear()
        assert torch.equal(world[0:8, 0:16], expected)
        new.clear_cache()
        smooth = world.map(lambda x: x[:, :-2] + x[:, 2:], halo=(0, 1), window=4)
        around = cat([world[0:8, 7:17][:, :-2] + world[0:8, 7:17][:, 2:]], 1)
        assert torch.equal(smooth[0:8, 8:16], around)
        assert not [index for index in calls_of(new) if index[0] in (0, 1) and index[1] in (0, 1, 2)]
        with pytest.raises(ValidationError, match="astype"):
            store.open("world").or_else(new.astype(torch.float32))


def test_a_formula_of_operators_is_pickled_and_has_an_identity(tmp_path: Path) -> None:
    a = from_array(numbers(0, (9, 9)))
    made = where(a > 1, a * 2, a - 1)
    assert torch.equal(pickle.loads(pickle.dumps(made))[...], made[...])  # noqa: S301  (our own)
    ids = {
        each.map(torch.clone, store=tmp_path / "a.zarr", window=4, dims=(0, 1)).tensor_id
        for each in (made, where(a > 1, a * 2, a - 1), where(a > 2, a * 2, a - 1), a * 3, 3 * a, a - 3)
    }
    assert len(ids) == 5


def test_dimensions_correspond_by_name_if_all_have_names(tmp_path: Path) -> None:
    volume, profile = numbers(0, (3, 4, 5)), numbers(1, (3,))
    v = from_array(volume, dims=("z", "y", "x"))
    p = from_array(profile, dims=("z",))
    assert (v + p).dims == ("z", "y", "x")
    assert torch.equal((v + p)[...], volume + profile[:, None, None])
    assert torch.equal((v * numbers(2, (5,)))[...], volume * numbers(2, (5,)))
    with pytest.raises(ValidationError, match="by name"):
        v + from_array(profile, dims=("t",))
    with pytest.raises(ValidationError, match="extents must be equal"):
        v + numbers(2, (4,))
    with TensorBlob.open(tmp_path / "rows", "w+", dtype="float64", shape=(5,)) as blob:
        blob.write(volume[0])
        assert torch.equal((v + blob)[...], volume + volume[0])


def test_comparisons_have_no_truth_value_and_others_are_true() -> None:
    a = unbounded(numbers(0, (SIDE, SIDE)))
    for each in (a == a, a != 2, a > 1):  # noqa: PLR0124  (a lazy tensor)
        with pytest.raises(TypeError, match=r"`is`"):
            bool(each)
    assert bool(a)
    assert bool(a + 1)
    assert not [each for each in (None, "a") if a == each]
    assert {a: 1}[a] == 1


@pytest.mark.parametrize("name", ["iadd", "imul", "ior", "ipow"])
def test_operators_in_place_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"t = t \+ 1"):
        getattr(operator, name)(unbounded(numbers(0, (SIDE, SIDE))), 1)


def test_what_torch_does_not_do_pixel_by_pixel_is_refused() -> None:
    a = unbounded(numbers(0, (SIDE, SIDE)))
    mean: Any = torch.mean
    add: Any = torch.add
    calls: list[Callable[[], Any]] = [
        lambda: mean(a),
        lambda: add(a, a, out=torch.zeros(3)),
        lambda: a @ a,  # type: ignore[operator]
        lambda: ~a,
        lambda: a + "1",  # type: ignore[arg-type]
        lambda: where(a, a, a),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
