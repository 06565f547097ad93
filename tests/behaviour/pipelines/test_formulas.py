"""Maps without a window or a store are formulas: computed where they are read, with the pixels of brute force."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    TensorGroup,
    TensorWindow,
    from_array,
    map_cache,
    map_windows,
    noise,
    open_store,
    sl,
)
from tests.support.counting import Counted

MODES = ("edge", "reflect", "symmetric", "wrap", "constant")
REACH = 160
"""Pixels on each side of 0 that brute force computes of an unbounded dimension."""


class Whole(NamedTuple):
    """All pixels of a tensor, as brute force has them: of an unbounded dimension those around 0."""

    pixels: np.ndarray[Any, Any]
    first: tuple[int, ...]
    extents: tuple[int | None, ...]


def box_sum(x: torch.Tensor, halo: int) -> torch.Tensor:
    n = 2 * halo + 1
    rows = torch.stack([x[i : x.shape[0] - n + 1 + i] * (i + 1) for i in range(n)]).sum(0)
    return torch.stack([rows[:, i : x.shape[1] - n + 1 + i] * (i + 2) for i in range(n)]).sum(0) % 1009


def padded(source: Whole, halo: int, mode: str) -> np.ndarray[Any, Any]:
    pixels = source.pixels
    for d, extent in enumerate(source.extents):
        if extent is None:
            continue
        widths = [(halo, halo) if d == n else (0, 0) for n in range(2)]
        pixels = np.pad(pixels, widths, mode=mode)  # type: ignore[call-overload]
    return pixels


def summed(source: Whole, halo: int, mode: str) -> Whole:
    found = box_sum(torch.from_numpy(padded(source, halo, mode)), halo).numpy()
    first = tuple([a if n is not None else a + halo for a, n in zip(source.first, source.extents, strict=True)])
    return Whole(found, first, source.extents)


def enlarged(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, 0).repeat_interleave(2, 1)


def halved(x: torch.Tensor) -> torch.Tensor:
    return (x[::2, ::2] + 3 * x[1::2, 1::2]) % 1009


class Pair(NamedTuple):
    """A lazy tensor, and what brute force computes."""

    lazy: InfiniteTensor
    whole: Whole


@st.composite
def chains(draw: st.DrawFn) -> Pair:
    """A chain of maps over integers, some of them with windows, some read by several others."""
    extents = tuple(draw(st.lists(st.sampled_from([None, 1, 7, 30]), min_size=2, max_size=2)))
    sides = [2 * REACH if n is None else n for n in extents]
    first = tuple([-REACH if n is None else 0 for n in extents])
    world = noise(extents, seed=draw(st.integers(0, 5)), dims=("y", "x")).map(
        lambda x: (x * 1009).long(), dtype=torch.int64
    )
    region = tuple([slice(a, a + n) for a, n in zip(first, sides, strict=True)])
    made = [Pair(world, Whole(world[region].numpy(), first, extents))]
    for _ in range(draw(st.integers(1, 5))):
        one = made[-1]
        kind = draw(st.sampled_from(["sum", "sum", "add", "enlarge", "halve"]))
        how: dict[str, Any] = {"window": draw(st.sampled_from([16, (8, 32)]))} if draw(st.integers(0, 3)) == 0 else {}
        made.append(step(draw, kind, made, one, how))
    return made[-1]


def step(draw: st.DrawFn, kind: str, made: list[Pair], one: Pair, how: dict[str, Any]) -> Pair:
    whole = one.whole
    if kind == "sum":
        halo = draw(st.integers(0, 3))
        mode = draw(st.sampled_from(MODES))
        if mode == "reflect" and 1 in whole.extents:
            mode = "edge"
        given_mode = ("constant", 0) if mode == "constant" else mode
        lazy = one.lazy.map(lambda x: box_sum(x, halo), halo=halo, padding=given_mode, **how)
        return Pair(lazy, summed(whole, halo, mode))
    if kind == "add":
        others = [each for each in made if each.whole.extents == whole.extents]
        other = draw(st.sampled_from(others))
        return Pair(map_windows(torch.add, one.lazy, other.lazy, **how), added(whole, other.whole))
    if kind == "enlarge" and whole.pixels.size < 500_000:
        pixels = enlarged(torch.from_numpy(whole.pixels)).numpy()
        extents = tuple([None if n is None else 2 * n for n in whole.extents])
        return Pair(one.lazy.map(enlarged, scale=2, **how), Whole(pixels, tuple([2 * a for a in whole.first]), extents))
    if kind == "halve" and not any(n is not None and n % 2 for n in whole.extents):
        begin = [a % 2 for a in whole.first]
        pixels = whole.pixels[begin[0] :, begin[1] :]
        pixels = pixels[: len(pixels) // 2 * 2, : pixels.shape[1] // 2 * 2]
        found = halved(torch.from_numpy(pixels)).numpy()
        first = tuple([(a + b) // 2 for a, b in zip(whole.first, begin, strict=True)])
        extents = tuple([None if n is None else n // 2 for n in whole.extents])
        return Pair(one.lazy.map(halved, scale=Fraction(1, 2), **how), Whole(found, first, extents))
    return one


def added(one: Whole, other: Whole) -> Whole:
    first = tuple(map(max, one.first, other.first))
    ends = [
        min(a + n, b + m)
        for a, n, b, m in zip(one.first, one.pixels.shape, other.first, other.pixels.shape, strict=True)
    ]
    parts = [
        each.pixels[tuple([slice(a - c, b - c) for a, b, c in zip(first, ends, each.first, strict=True)])]
        for each in (one, other)
    ]
    return Whole(parts[0] + parts[1], first, one.extents)


@st.composite
def boxes(draw: st.DrawFn, whole: Whole) -> tuple[slice, ...]:
    found = []
    for a, n in zip(whole.first, whole.pixels.shape, strict=True):
        begin = draw(st.integers(a, a + n - 1))
        found.append(slice(begin, min(a + n, begin + draw(st.integers(1, 90)))))
    return tuple(found)


@given(st.data())
def test_chains_of_formulas_have_the_pixels_of_brute_force(data: st.DataObject) -> None:
    lazy, whole = data.draw(chains())
    regions = data.draw(st.lists(boxes(whole), min_size=1, max_size=3))
    workers = data.draw(st.sampled_from([None, 1, 3]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lazy.read([*regions], workers=workers)
    for region, pixels in zip(regions, found, strict=True):
        inside = tuple([slice(s.start - a, s.stop - a) for s, a in zip(region, whole.first, strict=True)])
        np.testing.assert_array_equal(pixels.numpy(), whole.pixels[inside])


class Counting:
    """A mean over 9 x 9 pixels that remembers the sizes that it was called with."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, ...]] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.append(tuple(x.shape))
        return avg_pool2d(x[None], 9, stride=1)[0]


def test_a_read_computes_its_region_and_halo_after_halo_around_it() -> None:
    steps = [Counting() for _ in range(3)]
    world = noise((None, None), seed=1)
    for each in steps:
        world = world.map(each, halo=4)
    world[0:16, 0:16]
    for each in steps:
        # The first calls also see whether a pixel depends on more than it says.
        each.sizes.clear()
    for number in (1, 2):
        world[100 * number : 100 * number + 16, -7:13]
        assert [each.sizes[number - 1 :] for each in steps] == [[(40, 44)], [(32, 36)], [(24, 28)]]


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean()


def far_sighted(x: torch.Tensor) -> torch.Tensor:
    return avg_pool2d(x[None], 9, stride=1, padding=4)[0]


@pytest.mark.parametrize(("fn", "halo"), [(centred, 2), (torch.cumsum, 0), (far_sighted, 1)])
@pytest.mark.parametrize("size", [1, 5, 64, 700])
def test_a_function_that_depends_on_its_region_gets_windows_and_a_warning(fn: Any, halo: int, size: int) -> None:
    fn = partial(fn, dim=0) if fn is torch.cumsum else fn
    world = noise((None, None), seed=1)
    region = slice(0, size), slice(3, 3 + size)
    expected = world.map(fn, halo=halo, window=world.map(fn, halo=halo).output_window.size)[region]
    for reader in (world.map(fn, halo=halo), world.map(fn, halo=halo).map(torch.clone)):
        with pytest.warns(UserWarning, match="is computed in windows of"):
            assert torch.equal(reader[region], expected)


def test_a_batch_has_always_as_many_regions() -> None:
    sizes = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x * 2

    numbers = noise((None, None), seed=1)
    doubled = numbers.map(fn, batch_size=4, window=16)
    for region in (sl[0:16, 0:16], sl[0:16, 16:48], sl[160:208, 0:32]):
        assert torch.equal(doubled[region], numbers[region] * 2)
    assert {*sizes} == {4}


def crop(x: torch.Tensor) -> torch.Tensor:
    return x[1:-1, 1:-1]


def test_work_that_is_mostly_waste_is_told_before_and_after(tmp_path: Path) -> None:
    world = noise((None, None), seed=1).map(torch.clone, window=512).map(torch.neg)
    region = sl[510:514, 510:514]
    plan = world.plan(region)
    assert plan.work > 2**16
    assert plan.wasteful == world.args[0].tensor_id
    assert "give clone" in str(plan)
    with pytest.warns(UserWarning, match="has computed 1,048,576 pixels of .* in windows of"):
        world[region]
    with pytest.warns(UserWarning, match="has computed 1,048,576 pixels"):
        noise((None, None), seed=1).map(torch.clone, window=1024)[0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world[5110:5114, 5110:5114]  # once
        noise((None, None), seed=1).map(torch.clone, window=32).map(torch.neg)[30:34, 30:34]
        noise((None, None), seed=1).map(torch.clone, window=512)[0, 0]
        deep = noise((None, None), seed=1)
        for _ in range(30):
            deep = deep.map(torch.neg, window=128)
        deep[0:128, 0:128]  # all of these pixels are needed
        small = noise((None, None), seed=1).map(torch.neg, window=128).map(lambda x: x[::16, ::16], scale=1 / 16)
        assert small.plan(sl[0:64, 0:64]).wasteful is None
        small[0:64, 0:64]
        with open_store(tmp_path / "kept.zarr", "a") as store:
            kept = noise((None, None), seed=1).map(crop, halo=1, store=store).map(crop, halo=1, store=store)
            kept[2000:2064, 2000:2064]  # of both, whole tiles are kept


def test_a_chain_may_be_hundreds_of_tensors_deep(tmp_path: Path) -> None:
    pixels = torch.arange(64 * 64).view(64, 64)
    deep = from_array(pixels, dims=("y", "x"))
    for _ in range(500):
        deep = deep.map(plus_one)
    with open_store(tmp_path / "deep.zarr", "a") as store:
        stored = deep.map(torch.neg, store=store)
        stored.fill(progress=False)
        assert torch.equal(stored[...], -(pixels + 500))


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_maps_with_windows_share_a_cache_of_which_a_fill_takes_little() -> None:
    one, other = (noise((None, None), seed=seed).map(torch.clone, window=64) for seed in (1, 2))
    assert one.tile_store is other.tile_store is map_cache()
    assert one.plan(sl[0:64, 0:64]).peak_memory < 2**28
    ids = {one.tensor_id, other.tensor_id}
    assert ids <= {*map_cache().tensor_ids()}
    del one, other
    gc.collect()
    assert not ids & {*map_cache().tensor_ids()}


def drawn(ctx: Sequence[int]) -> torch.Tensor:
    return torch.rand(64, 64, generator=torch.Generator().manual_seed(hash(tuple(ctx)) % 2**31))


def windows() -> InfiniteTensor:
    return InfiniteTensor((None, None), drawn, TensorWindow((64, 64)))


def test_what_is_invalidated_below_a_formula_is_computed_again() -> None:
    value, calls = [1.0], [0]

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return x.abs()

    below = InfiniteTensor((None, None), lambda _: torch.full((64, 64), value[0]), TensorWindow((64, 64)))
    above = below.map(torch.neg).map(counted, window=64)
    above[640:1280, 0:640]
    value[0], calls[0] = 2.0, 0
    below.invalidate(sl[640:704, 0:64])
    assert above[640:1280, 0:640].sum() == 640**2 + 64**2
    assert calls == [1]


def test_whatever_reads_a_formula_computes_the_windows_below() -> None:
    region, below = sl[10:90, -30:100], windows()
    negative = below.map(torch.neg)
    expected = -below[region]
    read: dict[str, Callable[[InfiniteTensor], torch.Tensor]] = {
        "iter_regions": lambda t: next(t.iter_regions([region]))[0],
        "as_zarr": lambda t: torch.from_numpy(t.as_zarr(region)[:]),
        "fill": lambda t: filled(t.map(torch.clone, store=MemoryTileStore(), tensor_id="t"), region),
        "group": lambda t: TensorGroup({"a": t, "b": t.map(torch.neg)})[region]["a"],
    }
    for how in read.values():
        assert torch.equal(how(windows().map(torch.neg)), expected)
    assert negative.stats(region, compute=True).mean == pytest.approx(float(expected.double().mean()))
    assert (windows().map(torch.neg).stored_only(7)[region] == 7).all()


def filled(t: InfiniteTensor, region: Any) -> torch.Tensor:
    t.fill(region, progress=False)
    pixels: torch.Tensor = t.tile_store.open("t")[region]
    return pixels


FIRST_USES: dict[str, Callable[[InfiniteTensor], object]] = {
    "a large read": lambda t: t[0:3000, 0:3000],
    "several regions": lambda t: t.read([sl[0:10, 0:10], sl[1000:1010, 0:10]]),
    "steps": lambda t: t[640:0:-100, 0:64],
    "windows above": lambda t: t.map(torch.neg, window=64)[0:300, 0:300],
    "a group": lambda t: TensorGroup({"a": t, "b": t.map(torch.neg)})[0:100, 0:100],
    "levels": lambda t: t.coarsen(4)[0:100, 0:100],
    "a fill": lambda t: t.map(torch.abs, store=MemoryTileStore()).fill(sl[0:200, 0:200], progress=False),
    "a stream": lambda t: [*t.iter_regions([sl[0:200, 0:200]])],
}


@pytest.mark.parametrize("use", FIRST_USES.values(), ids=list(FIRST_USES))
def test_the_first_use_of_a_function_that_depends_on_its_region_may_be_any(use: Callable[..., object]) -> None:
    made = windows().map(centred)
    with pytest.warns(UserWarning, match="is computed in windows of"):
        use(made)
    assert torch.equal(made[0:90, 5:77], windows().map(centred, window=made.output_window.size)[0:90, 5:77])


def test_threads_that_use_a_function_first_get_the_same_windows() -> None:
    together = threading.Barrier(6)

    def read(tensor: InfiniteTensor, region: Any) -> torch.Tensor:
        together.wait(60)
        pixels: torch.Tensor = tensor.read(region)
        return pixels

    for _ in range(5):
        inner = windows().map(centred)
        outer = inner.map(torch.neg)
        readers = [inner, outer, outer.map(torch.abs, window=64)]
        with warnings.catch_warnings(), ThreadPoolExecutor(6) as pool:
            warnings.simplefilter("ignore")
            found = [pool.submit(read, readers[k % 3], sl[k * 40 : k * 40 + 100, 0:100]) for k in range(6)]
            results = [each.result(60) for each in found]
        expected = windows().map(centred, window=inner.output_window.size)
        changes: list[Callable[[torch.Tensor], torch.Tensor]] = [torch.clone, torch.neg, torch.abs]
        for k, pixels in enumerate(results):
            assert torch.equal(pixels, changes[k % 3](expected[k * 40 : k * 40 + 100, 0:100]))


def test_a_channel_of_many_is_read_block_by_block() -> None:
    most = [0]

    def channels(x: torch.Tensor) -> torch.Tensor:
        most[0] = max(most[0], 300 * x.numel() * x.element_size())
        return x.expand(300, *x.shape)

    numbers = noise((None, None), seed=1)
    assert torch.equal(numbers.map(channels, channels=300)[7, 0:1024, 0:1024], numbers[0:1024, 0:1024])
    assert most[0] <= 2**26


def test_formulas_over_arrays_lack_nothing() -> None:
    over_array = from_array(torch.ones(8, 8), dims=("y", "x")).map(plus_one)
    assert over_array.is_filled()
    assert over_array.coverage().all()
    over_windows = windows().map(plus_one)
    assert not over_windows.is_filled(sl[0:64, 0:64])
    assert not over_windows.coverage(sl[0:64, 0:64]).any()


def test_what_is_read_as_stored_is_looked_at_too() -> None:
    tensor = noise((None, None), seed=1).map(centred)
    with pytest.warns(UserWarning, match="windows"):
        stored = tensor.stored_only(-9)[0:10, 0:10]
    assert torch.equal(stored, torch.full((10, 10), -9.0))
    assert tensor[0:10, 0:10].shape == (10, 10)


def test_an_arg_that_fails_at_the_first_read_leaves_the_decision_to_the_next() -> None:
    failures = [OSError("no")]

    def failing(ctx: Sequence[int]) -> torch.Tensor:
        if failures:
            raise failures.pop()
        return drawn(ctx)

    tensor = InfiniteTensor((None, None), failing, TensorWindow((64, 64))).map(centred)
    with pytest.raises(OSError, match="no"):
        tensor[0:16, 0:16]
    with pytest.warns(UserWarning, match="windows"):
        small = tensor[0:16, 0:16]
    assert torch.equal(small, tensor[0:64, 0:64][:16, :16])


@pytest.mark.parametrize("at", [(0, 0), (63, 0), (0, 63), (63, 63), (30, 62), (-1, -64)])
def test_finding_out_what_is_local_computes_no_window_that_the_read_does_not_need(at: tuple[int, int]) -> None:
    f = Counted(drawn)
    tensor = InfiniteTensor((None, None), f, TensorWindow((64, 64))).map(torch.neg)
    tensor[at[0] : at[0] + 1, at[1] : at[1] + 1]
    assert len(f.calls) == 1


@pytest.mark.parametrize("period", [2, 3, 4, 5, 6, 8, 16])
@pytest.mark.parametrize("size", [1, 9, 40])
def test_functions_that_take_pixels_in_blocks_get_windows(period: int, size: int) -> None:
    tensor = windows().map(lambda x: x * (torch.arange(x.shape[0]) % period == 0)[:, None])
    with pytest.warns(UserWarning, match="windows"):
        tensor[0:size, 0:size]


def test_one_thread_at_a_time_finds_out_what_is_local() -> None:
    calls: list[threading.Thread] = []
    other_is_in = threading.Event()

    def doubled(x: torch.Tensor) -> torch.Tensor:
        calls.append(threading.current_thread())
        if len(calls) == 1:
            other.start()
            assert not other_is_in.wait(0.5)
        elif calls[-1] is other:
            other_is_in.set()
        return x * 2

    tensor = windows().map(doubled)
    other = threading.Thread(target=lambda: tensor[0:9, 0:9])
    tensor[0:9, 0:9]
    other.join(60)
    assert len(calls) == 4  # on two regions to find out, and once for each thread


def test_functions_may_return_the_same_memory_change_their_input_or_want_even_sizes() -> None:
    memory: dict[tuple[int, ...], torch.Tensor] = {}

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, 2, out=memory.setdefault(tuple(x.shape), torch.empty(x.shape)))

    below = windows()
    buffer = torch.zeros(200, 200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = below.map(lambda x: buffer[: x.shape[0], : x.shape[1]].copy_(x))
        assert torch.equal(copied[0:100, 0:30], below[0:100, 0:30])
    difference = map_windows(torch.sub, below.map(doubled), below.map(lambda x: x + 1).map(doubled))
    torch.testing.assert_close(difference[0:9, 0:9], torch.full((9, 9), -2.0))
    assert torch.equal(below.map(lambda x: x.sub_(1))[0:32, 0:32], below[0:32, 0:32] - 1)
    pairs = below.map(lambda x: avg_pool2d(x[None], 2)[0].repeat_interleave(2, 0).repeat_interleave(2, 1))
    assert torch.equal(pairs[0:63, 1:64], pairs[0:64, 0:64][:63, 1:])
