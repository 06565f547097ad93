"""Periodic dimensions: the bits of an unbounded tensor whose ``f`` goes around, and as few calls."""

from __future__ import annotations

import io
import itertools
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import httpx
import numpy as np
import pytest
import rasterio
import torch
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    Output,
    Periodic,
    TensorGroup,
    TensorWindow,
    TileStore,
    ZarrTileStore,
    from_array,
    map_windows,
    noise,
    overlay,
    placed,
    predict,
    sl,
)

# Inside: small regions are read in many blocks, and costs are those of the server.
from infinite_tensor.engine import assemble
from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import RegionError, TileAccessError, ValidationError
from infinite_tensor.geometry.regions import parse
from tests.support.counting import Counted
from tests.support.elsewhere import Elsewhere
from tests.support.serving import served

Index: TypeAlias = tuple[int, ...]
Counts: TypeAlias = "tuple[int | None, ...]"

_BLENDS = [None, "max", "first", "last", "hann", "gaussian", torch.atan2, torch.sub]


def checksum(ctx: tuple[int, ...], regions: Sequence[torch.Tensor]) -> int:
    """A number that depends on every bit of the regions, and on where they lie."""
    weighed = [float((each * torch.arange(1, each.numel() + 1).reshape(each.shape)).sum()) for each in regions]
    return hash((ctx, *weighed)) % 2**31


class Function:
    """An ``f`` that hashes what it gets. Its windows go around after so many of each coordinate."""

    # Who counts is no part of what is computed.
    calls: Elsewhere[Counter[Index]] = Elsewhere()

    def __init__(self, size: Index, around: Counts, calls: Counter[Index]) -> None:
        self.size = size
        self.around = around
        self.calls = calls

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        """Compute a window."""
        self.calls[ctx] += 1
        window = tuple([i if n is None else i % n for i, n in zip(ctx, self.around, strict=True)])
        return torch.randn(self.size, generator=torch.Generator().manual_seed(checksum(window, regions)))


@dataclass(frozen=True)
class Chain:
    """Stages, each of which reads the one before: with periodic dimensions, or the same unrolled.

    `periods` has the extent of each dimension once around, None for an unbounded one.
    """

    periods: tuple[int | None, ...]
    stages: tuple[tuple[TensorWindow, TensorWindow, Any], ...]

    @property
    def around(self) -> list[Counts]:
        """The number of windows once around, for each stage."""
        return [
            tuple([None if n is None else n // step for n, step in zip(self.periods, window.stride, strict=True)])
            for window, _, _ in self.stages
        ]

    def built(
        self, calls: Sequence[Counter[Index]], store: TileStore | None = None, *, unrolled: bool
    ) -> InfiniteTensor:
        """Build the last tensor, which counts the calls of each stage."""
        shape = [None if n is None or unrolled else Periodic(n) for n in self.periods]
        tensors: list[InfiniteTensor] = []
        for at, ((window, arg, blend), around) in enumerate(zip(self.stages, self.around, strict=True)):
            made = InfiniteTensor(
                shape,
                Function(window.size, around, calls[at]),
                window,
                tensors[-1:],
                [arg] * len(tensors[-1:]),
                blend=blend,
                tile_store=store,
                tensor_id=None if store is None else f"stage-{at}",
                version="a hash",
            )
            tensors.append(made)
        return tensors[-1]

    def expected(self, region: Sequence[slice]) -> torch.Tensor:
        """Read a region of the unrolled chain: the pixels of once around, as often as they are needed."""
        unrolled = self.built([Counter() for _ in self.stages], unrolled=True)
        along = [*zip(region, self.periods, strict=True)]
        pixels: torch.Tensor = unrolled[tuple([part if n is None else slice(0, n) for part, n in along])]
        for d, (part, n) in enumerate(along):
            if n is not None:
                pixels = pixels.index_select(d, torch.arange(part.start, part.stop, part.step) % n)
        return pixels


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    ndim = draw(st.sampled_from([1, 2, 2]))
    strides = [[draw(st.integers(1, 4)) for _ in range(ndim)] for _ in range(draw(st.integers(1, 3)))]
    periods: list[int | None] = []
    for along in zip(*strides, strict=True):
        n = math.lcm(*along) * draw(st.integers(1, 3))
        periods.append(None if ndim > 1 and draw(st.integers(0, 3)) == 0 else n)
    stages = []
    for stride in strides:
        size = [min(draw(st.integers(1, 9)), n or 9) for n in periods]
        offset = draw(st.sampled_from([[0] * ndim, [draw(st.integers(-30, 30)) for _ in range(ndim)]]))
        # Halos may reach farther than once around.
        arg = TensorWindow([draw(st.integers(1, 15)) for _ in range(ndim)], stride, [draw(st.integers(-9, 9))] * ndim)
        stages.append((TensorWindow(size, stride, offset), arg, draw(st.sampled_from(_BLENDS))))
    return Chain(tuple(periods), tuple(stages))


@st.composite
def regions(draw: st.DrawFn, periods: Sequence[int | None]) -> tuple[slice, ...]:
    found = []
    for n in periods:
        start = draw(st.integers(-3, 3)) * (n or 7) + draw(st.integers(-2, 2))
        found.append(slice(start, start + draw(st.integers(1, 2 * (n or 7) + 2)), draw(st.sampled_from([1, 1, 2, 5]))))
    return tuple(found)


@contextmanager
def opened(kind: str, folder: str, tile: int) -> Iterator[TileStore | None]:
    if kind == "none":
        yield None
    elif kind == "memory":
        yield MemoryTileStore(tile_size=tile)
    else:
        made = ZarrTileStore if kind == "zarr" else HDF5TileStore
        with made(Path(folder) / f"store.{kind}", tile_size=tile) as store:
            yield store


@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
@given(st.data())
def test_bits_and_calls_are_those_of_an_unbounded_tensor(data: st.DataObject) -> None:
    chain = data.draw(chains())
    parts = data.draw(st.lists(regions(chain.periods), min_size=1, max_size=3))
    kind, tile = data.draw(st.sampled_from(["none", "memory", "zarr", "hdf5"])), data.draw(st.integers(2, 7))
    is_filled, at_once = data.draw(st.booleans()), data.draw(st.booleans())
    calls = [Counter[Index]() for _ in chain.stages]
    with tempfile.TemporaryDirectory() as folder:
        with opened(kind, folder, tile) as store:
            tensor = chain.built(calls, store, unrolled=False)
            if is_filled:
                plan, report = tensor.plan(parts[0]), tensor.fill(parts[0], progress=False)
                assert tensor.is_filled(parts[0])
                assert sum(map(Counter.total, calls)) == report.windows == plan.windows
            else:
                assert torch.equal(tensor[parts[0]], chain.expected(parts[0]))
        if kind in ("none", "memory"):
            calls = [Counter[Index]() for _ in chain.stages]
        # A later run computes nothing that is stored, also in tiles that lack windows on the other side of the seam.
        with opened(kind, folder, tile) as store:
            tensor = chain.built(calls, store, unrolled=False)
            read = itertools.chain(*tensor.iter_regions(parts)) if at_once else (tensor[part] for part in parts)
            for part, pixels in zip(parts, read, strict=True):
                assert torch.equal(pixels, chain.expected(part))
    unrolled = [Counter[Index]() for _ in chain.stages]
    chain.built(unrolled, unrolled=True)[parts]
    for own, its, around in zip(calls, unrolled, chain.around, strict=True):
        needed = {tuple([i if n is None else i % n for i, n in zip(ctx, around, strict=True)]) for ctx in its}
        assert max(own.values(), default=1) == 1
        # A fill computes whole tiles.
        assert own.keys() >= needed if is_filled else own.keys() == needed


def image(*, store: TileStore | None = None, tensor_id: str | None = None) -> InfiniteTensor:
    """The pixels of `PIXELS`, around in x."""
    window = TensorWindow((3, 20, 8))
    return InfiniteTensor(
        (3, 20, Periodic(24)), _same, window, [FLAT], [window], dims=DIMS, tile_store=store, tensor_id=tensor_id
    )


def _same(_ctx: Index, region: torch.Tensor) -> torch.Tensor:
    return region


DIMS = ("c", "y", "x")
WINDOW = TensorWindow((3, 20, 8))
PIXELS = torch.randn(3, 20, 24, generator=torch.Generator().manual_seed(0))
FLAT = from_array(PIXELS, dims=DIMS)
ACROSS = sl[:, :, -3:5]


def across(pixels: torch.Tensor) -> torch.Tensor:
    """The pixels of `ACROSS` in x, of an image once around."""
    return pixels.roll(3, -1)[..., :8]


def thrice(pixels: torch.Tensor) -> InfiniteTensor:
    """Three times once around, side by side; the second time has neighbours on both sides."""
    return from_array(torch.cat([pixels] * 3, -1), dims=DIMS)


def smoothed(region: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(region[None], 5, 1)[0]


def test_an_index_is_a_coordinate_and_a_slice_needs_both_ends() -> None:
    tensor = image()
    assert tensor.shape == (3, 20, 24)
    assert repr(tensor.shape) == "(3, 20, Periodic(24))"
    assert torch.equal(tensor[ACROSS], across(PIXELS))
    assert torch.equal(tensor[0, 0, -1], PIXELS[0, 0, 23])
    assert torch.equal(tensor[0, 0, 24 * 10**9 + 5], PIXELS[0, 0, 5])
    assert torch.equal(tensor[:, :, 30:-6:-5], PIXELS[..., [6, 1, 20, 15, 10, 5, 0, 19]])
    assert torch.equal(tensor[...], PIXELS)
    assert torch.equal(tensor[1], PIXELS[1])
    assert tensor[:, :, 5:5].shape == (3, 20, 0)
    for index in (sl[:, :, :], sl[:, :, 3:], sl[..., :3]):
        with pytest.raises(RegionError, match=r"dimension 2 \('x'\) is periodic: a slice over it needs a start and"):
            tensor[index]


def test_a_torus_goes_around_in_both_dimensions() -> None:
    torus = InfiniteTensor(
        (Periodic(6), Periodic(8)),
        lambda ctx: torch.full((5, 7), 10.0 * ctx[0] + ctx[1]),
        TensorWindow((5, 7), stride=(3, 4)),
        blend="last",
    )
    # Seen from pixel 0, the last window over it is window 0 in both.
    assert torus[0:1, 0:1] == 0
    assert torus[-1, -1] == torus[5, 7] == 11
    rolled = torus[...].roll((2, 3), (0, 1))
    assert torch.equal(torus[-2:4, -3:5], rolled)


@pytest.mark.parametrize("offset", [0, 4 * 7])
def test_joint_outputs_go_around(offset: int) -> None:
    calls: list[Index] = []

    def both(ctx: Index) -> dict[str, torch.Tensor]:
        calls.append(ctx)
        return {"fine": torch.full((3, 6), float(ctx[0])), "coarse": torch.full((3,), float(ctx[0]))}

    fine = TensorWindow((3, 6), (3, 4), (0, offset), dimension_map=(None, 0))
    joint = InfiniteTensor.from_multi(
        both,
        {
            "fine": Output((3, Periodic(12)), "float32", fine),
            "coarse": Output((Periodic(6),), "float32", TensorWindow((3,), (2,), offset // 2)),
        },
    )
    first = offset // 4
    coarse = [sum((i - first) % 3 for i in over) for over in ([-1], [-1, 0], [0], [0, 1], [1], [1, 2], [2])]
    assert joint["coarse"].plan(sl[-1:6]).windows == 3
    assert joint["coarse"][-1:6].tolist() == coarse
    assert joint["fine"][0, -2:4].tolist() == [coarse[0]] * 2 + [coarse[1]] * 2 + [coarse[2]] * 2
    assert sorted(calls) == [(0,), (1,), (2,)]


def ring(n: int, store: TileStore | None = None, offset: int = 0) -> tuple[InfiniteTensor, Counted]:
    """A ring of windows that overlap by two pixels, and the number of each as a digit of their sum."""
    f = Counted(lambda ctx: torch.full((6,), 10.0 ** ((ctx[0] + offset // 4) % (n // 4))))
    return InfiniteTensor((Periodic(n),), f, TensorWindow((6,), (4,), offset), tile_store=store), f


def test_plans_and_fills_count_each_window_once() -> None:
    tensor, f = ring(12, MemoryTileStore(tile_size=4))
    regions = sl[0:12], sl[-1:1], sl[-50:50], sl[2:4], sl[11:13]
    assert [tensor.plan(region).windows for region in regions] == [3, 2, 3, 1, 2]
    selections = [parse(region, tensor.shape) for region in regions]
    assert [assemble.cost_of(node_of(tensor), each).windows for each in selections] == [3, 2, 3, 1, 2]
    assert tensor[-1:1].tolist() == [100, 101]
    assert [tensor.plan(region).windows for region in regions] == [1, 0, 1, 0, 0]
    assert tensor.fill(sl[-50:50], progress=False).windows == 1
    assert sorted(f.calls) == [(0,), (1,), (2,)]


def test_a_plan_counts_the_tiles_of_other_outputs_on_both_sides() -> None:
    joint = InfiniteTensor.from_multi(
        lambda _: {"fine": torch.zeros(6), "coarse": torch.zeros(3)},
        {
            "fine": Output((Periodic(24),), "float32", TensorWindow((6,), (4,))),
            "coarse": Output((Periodic(12),), "float32", TensorWindow((3,), (2,))),
        },
        tile_store=MemoryTileStore(tile_size=4),
    )
    joint["coarse"][4]
    # Window 5 alone, over the pixels 20 to 25 of the other output.
    plan = joint["coarse"].plan(sl[11:12])
    assert {each.tensor_id.rpartition("/")[2]: each.tiles for each in plan.tensors} == {"fine": 2, "coarse": 1}


def test_the_finished_pixels_of_a_tile_are_found_across_the_seam() -> None:
    zeros = InfiniteTensor((12,), lambda _: torch.zeros(12), TensorWindow((12,)))
    tensor, _ = ring(12, MemoryTileStore(tile_size=12))
    # Windows 0 and 2 are stored. Window 1, over the pixels 4 to 9, is not.
    assert tensor[0] == 101
    assert tensor.or_else(zeros)[-3:5].tolist() == [0, 100, 100, 101, 101, 1, 1, 0]
    tensor, _ = ring(12, MemoryTileStore(tile_size=12))
    # Windows 0 and 1 are stored. Window 2, over the pixels 8 to 13, is not.
    assert tensor[4] == 11
    assert tensor.or_else(zeros)[-3:7].tolist() == [0, 0, 0, 0, 0, 1, 1, 11, 11, 10]


@pytest.mark.parametrize("offset", [0, 28, -100, 100])
def test_invalidation_goes_around_with_windows_and_halos(offset: int) -> None:
    tensor, _ = ring(24, MemoryTileStore(tile_size=4), offset)
    window = TensorWindow((6,), (4,), offset)
    store = MemoryTileStore(tile_size=4)
    reader = InfiniteTensor(
        (Periodic(24),), lambda _, x: x[1:-1], window, [tensor], [window.padded(1)], tile_store=store
    )
    reader.fill(sl[0:24], progress=False)
    dropped = tensor.invalidate(sl[25:26])
    # The windows at 0 and at 20 are dropped. Those of the reader at 16, 20, 0 and 4 have read some of their pixels.
    assert [tensor.is_filled(sl[at : at + 4]) for at in range(0, 24, 4)] == [False, False, True, True, True, False]
    assert [each.tiles for each in dropped.tensors] == [3, 5]
    assert [(each.start, each.stop) for each in dropped.tensors] == [((0,), (24,))] * 2
    assert reader.plan(sl[0:24]).tensors[-1].windows == 6


@pytest.mark.parametrize("offset", [0, 52, -400])
def test_what_a_later_window_reads_is_kept_until_then(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(store: MemoryTileStore) -> tuple[InfiniteTensor, Counted]:
        f = Counted(lambda ctx: torch.arange(4.0) + 4 * ctx[0])
        line = InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=store)
        window = TensorWindow((6,), (4,), offset)
        return InfiniteTensor((Periodic(48),), lambda _, x: x, window, [line], [TensorWindow((6,), (4,))]), f

    whole, _ = built(MemoryTileStore())
    expected = whole[0:48]
    monkeypatch.setattr(assemble, "_BLOCK_BYTES", 32)
    tensor, f = built(MemoryTileStore(cache_size_windows=1, tile_size=4))
    # The windows along the ring read an endless line, from 0 to 49: the line is read from somewhere in its middle on.
    assert torch.equal(tensor[0:48], expected)
    assert max(f.counts.values()) == 1


def test_maps_predictions_and_levels_have_no_seam() -> None:
    tensor, wide = image(), thrice(PIXELS)
    kinds: list[dict[str, Any]] = [
        {},
        {"window": (20, 6), "store": MemoryTileStore()},
        {"window": (10, 8), "overlap": 0.5},
    ]
    for options in kinds:
        there = wide.map(smoothed, halo=2, dims=("y", "x"), **options)
        here = tensor.map(smoothed, halo=2, dims=("y", "x"), **options)
        assert repr(here.shape[-1]) == "Periodic(24)"
        assert torch.equal(here[:, :, -10:40], there[:, :, 14:64])
    torch.manual_seed(0)
    network = torch.nn.Conv2d(3, 2, 3, padding=1)
    here, there = (predict(network, each, window=8, overlap=0.5, blend="hann", dims=DIMS) for each in (tensor, wide))
    assert torch.equal(here[:, :, -3:40], there[:, :, 21:64])
    for factor, extent in ((2, "Periodic(12)"), (8, "Periodic(3)"), (5, "5"), (16, "2")):
        coarse = tensor.coarsen(factor)
        assert repr(coarse.shape[-1]) == extent
        assert torch.equal(coarse[...], FLAT.coarsen(factor)[...])
    assert torch.equal(tensor.coarsen(2)[:, :, -3:5], across(FLAT.coarsen(2)[...]))


def test_formulas_go_around() -> None:
    tensor, flat = image(), cast("Any", FLAT)
    lazy = cast("Any", tensor)
    cases: list[tuple[Any, torch.Tensor]] = [
        (tensor * 2 + FLAT, PIXELS * 2 + PIXELS),
        (FLAT - tensor, PIXELS - PIXELS),
        (tensor > 0, PIXELS > 0),
        (torch.where(lazy > 0, lazy, 7), torch.where(PIXELS > 0, PIXELS, 7)),
        (torch.cat([flat, lazy]), torch.cat([PIXELS, PIXELS])),
        (torch.stack([lazy, flat]), torch.stack([PIXELS, PIXELS])),
        (tensor.astype(torch.float64), PIXELS.double()),
        (tensor.or_else(FLAT), PIXELS),
        (overlay(FLAT, tensor), PIXELS),
        (tensor.crop(sl[1:2, 3:5]), PIXELS[1:2, 3:5]),
        (FLAT.periodic("x"), PIXELS),
        (FLAT.periodic(-1, 1), PIXELS),
    ]
    for made, pixels in cases:
        assert repr(made.shape[-1]) == "Periodic(24)"
        assert torch.equal(made[(*map(partial(slice, 0), pixels.shape[:-1]), slice(-3, 5))], across(pixels))
    cropped = tensor.crop(ACROSS)
    assert repr(cropped.shape) == "(3, 20, 8)"
    assert torch.equal(cropped[...], across(PIXELS))
    doubled = map_windows(torch.add, tensor, tensor)
    assert torch.equal(doubled[ACROSS], across(PIXELS + PIXELS))


def test_a_tensor_can_be_built_again_from_its_attributes() -> None:
    read = InfiniteTensor((3, 20, Periodic(24)), _same, WINDOW, [image()], [WINDOW], args_padding="reflect")
    options: dict[str, Any] = {"edge": read.edge, "args_padding": read.args_padding}
    again = InfiniteTensor(read.shape, _same, WINDOW, read.args, read.args_windows, **options)
    assert again.to_json() == read.to_json()
    assert (again.edge, again.args_padding) == (("drop", "drop", "wrap"), read.args_padding)
    with pytest.raises(ValidationError, match='edge must be "drop", "clip" or "all"'):
        InfiniteTensor((3, 20, 24), _same, WINDOW, [image()], [WINDOW], edge=read.edge)


@pytest.mark.parametrize(("n", "side"), [(24, 24), (96, 48), (1009, 1009), (2**20, 64), (2**52 - 47, 1)])
def test_default_windows_go_around_a_whole_number_of_times(n: int, side: int) -> None:
    doubled = noise((8, Periodic(n)), seed=0, dims=("y", "x")).map(lambda x: 2 * x)
    assert doubled.output_window.size[1] == side


def test_noise_goes_around_any_number_of_pixels() -> None:
    options: dict[str, Any] = {"seed": 3, "kind": "normal", "dims": DIMS}
    ring, line = noise((4, 32, Periodic(125)), **options), noise((4, 32, 125), **options)
    assert torch.equal(ring[:, :, -5:130], line[...][..., torch.arange(-5, 130) % 125])


def test_a_store_says_that_a_dimension_is_periodic(tmp_path: Path) -> None:
    window = TensorWindow((3, 20, 8))
    for made in (ZarrTileStore, HDF5TileStore):
        path = tmp_path / made.__name__
        with made(path, tile_size=(3, 20, 6)) as store:
            image(store=store, tensor_id="ring").fill(ACROSS, progress=False)
        with made(path) as store:
            found = store.open("ring")
            assert repr(found.shape) == "(3, 20, Periodic(24))"
            assert torch.equal(found[ACROSS], across(PIXELS))
            with pytest.raises(TileAccessError, match="opened without f"):
                found[:, :, 5:20]
            with made(tmp_path / f"copy-{made.__name__}") as other:
                assert store.copy("ring", other, region=ACROSS, progress=False).tiles == 2
                assert torch.equal(other.open("ring")[ACROSS], across(PIXELS))
            with pytest.raises(ValidationError, match=r"edge: stored \['drop', 'drop', 'wrap'\], given 'drop'"):
                InfiniteTensor((3, 20, 24), _same, window, [FLAT], [window], tile_store=store, tensor_id="ring")


def test_what_is_stored_is_known_on_both_sides_of_the_seam() -> None:
    tensor = image(store=MemoryTileStore(tile_size=(3, 20, 6)))
    assert torch.equal(tensor.stored_only(9.0)[ACROSS], torch.full((3, 20, 8), 9.0))
    tensor.fill(ACROSS, progress=False)
    assert tensor.is_filled(sl[:, :, 21:29])
    assert not tensor.is_filled(sl[:, :, 20:50])
    assert tensor.coverage(sl[:, :, 24:48]).tolist() == [[[True, False, False, True]]]
    assert torch.equal(tensor.stored_only()[ACROSS], across(PIXELS))
    assert tensor.stats(sl[:, :, 0:5]).count == 3 * 20 * 5
    assert tensor.stats(ACROSS, compute=True).count == 3 * 20 * 8
    dropped = tensor.invalidate(sl[:, :, -1:1])
    # Windows of the pixels 16:24 and 0:8 touch all tiles.
    assert dropped.tiles == 4
    assert not any(tensor.is_filled(sl[:, :, at : at + 1]) for at in (0, 23, 24))


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.coverage(ACROSS),
        lambda t: t.stats(ACROSS),
        lambda t: t.fill(ACROSS, where=torch.ones(3, 20, 24), progress=False),
    ],
)
def test_a_mask_and_tiles_lie_on_one_side_of_the_seam(ask: Callable[[InfiniteTensor], object]) -> None:
    with pytest.raises(RegionError, match=r"must not lie across the seam .* give one region for each side"):
        ask(image())


def test_invalidation_reaches_what_was_read_across_the_seam() -> None:
    store = MemoryTileStore(tile_size=4)
    tensor = image(store=store)
    mapped = tensor.map(smoothed, halo=2, dims=("y", "x"), window=(20, 4), store=store)
    mapped.fill(sl[:, :, 0:24], progress=False)
    tensor.invalidate(sl[:, :, 0:1])
    # Window 0 of the image had the pixels 0:8, which the maps of -4:12 have read.
    assert mapped.is_filled(sl[:, :, 12:20])
    assert not any(mapped.is_filled(sl[:, :, at : at + 4]) for at in (-4, 0, 4, 8))


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_views_read_across_the_seam(tmp_path: Path) -> None:
    tensor = image()
    tensor.export(ACROSS, tmp_path / "ring.npy", progress=False)
    assert np.array_equal(np.load(tmp_path / "ring.npy"), across(PIXELS))
    tensor.export(ACROSS, tmp_path / "ring.tif", progress=False)
    with rasterio.open(tmp_path / "ring.tif") as file:
        assert np.array_equal(file.read(), across(PIXELS))
    tensor.export(tmp_path / "whole.npy", progress=False)
    assert np.array_equal(np.load(tmp_path / "whole.npy"), PIXELS)
    assert np.array_equal(tensor.to_xarray(ACROSS), across(PIXELS))
    assert tensor.to_xarray(ACROSS).x.values.tolist() == [*range(-3, 5)]
    assert np.array_equal(tensor.to_dask(ACROSS).compute(scheduler="synchronous"), across(PIXELS))
    assert np.array_equal(np.asarray(tensor), PIXELS)
    assert np.array_equal(cast("Any", tensor.as_zarr())[...], PIXELS)
    assert np.array_equal(np.asarray(tensor.show(sl[0, :, -3:5]).images[0].get_array()), across(PIXELS)[0])
    assert "Periodic(24)" in tensor._repr_html_()
    with served(tensor) as server:
        body = httpx.get(f"{server.url}/{tensor.tensor_id}/box", params={"x": "-3:5", "format": "npy"}).content
        assert np.array_equal(np.load(io.BytesIO(body)), across(PIXELS))
        assert np.load(io.BytesIO(httpx.get(f"{server.url}/{tensor.tensor_id}/box").content)).shape == (3, 20, 24)


def test_groups_go_around_where_all_members_do() -> None:
    half = TensorWindow((3, 10, 4))
    coarse = InfiniteTensor((3, 10, Periodic(12)), _halved, half, [FLAT], [TensorWindow((3, 20, 8))], dims=DIMS)
    group = TensorGroup({"a": image(), "b": coarse}, dims=(1, 2), scale={"b": (Fraction(1, 2),) * 2})
    assert repr(group.shape) == "(20, Periodic(24))"
    read = group[0:20, -4:6]
    assert torch.equal(read["a"].movedim(-1, 0), PIXELS.roll(4, -1)[..., :10])
    assert torch.equal(read["b"].movedim(-1, 0), PIXELS[:, ::2, ::2].roll(2, -1)[..., :5])
    group.fill(sl[0:20, -4:6], progress=False)
    assert group.is_filled(sl[0:20, 20:30])
    assert repr(TensorGroup({"a": image(), "b": FLAT}, dims=(1, 2)).shape) == "(20, 24)"


def _halved(_ctx: Index, region: torch.Tensor) -> torch.Tensor:
    return region[..., ::2, ::2]


def test_windows_and_args_that_do_not_meet_at_the_seam_are_refused() -> None:
    def made(n: int, window: TensorWindow, **options: Any) -> InfiniteTensor:
        return InfiniteTensor((4, Periodic(n)), lambda *_: torch.zeros(window.size), window, **options)

    with pytest.raises(ValidationError, match=r"divides 125, .* got a stride of 16; give 5 or 25, or .* 128"):
        made(125, TensorWindow((4, 32), (4, 16)))
    with pytest.raises(ValidationError, match="must not be longer than once around, got a size of 32"):
        made(16, TensorWindow((4, 32), (4, 16)))
    with pytest.raises(ValidationError, match=r"stays in place, and must lie between 0 and 16, got -1:7"):
        made(16, TensorWindow((4, 8), offset=(0, -1), dimension_map=(0, None)))
    with pytest.raises(ValidationError, match="must follow a window coordinate of its own"):
        made(16, TensorWindow((4, 4), dimension_map=(1, 1)))
    ring = made(24, TensorWindow((4, 8)))
    arg = TensorWindow((4, 9), (4, 9))
    with pytest.raises(ValidationError, match=r"3 windows of stride 9 are 27 pixels, but once around is 24"):
        made(24, TensorWindow((4, 8)), args=[ring], args_windows=[arg])
    with pytest.raises(ValidationError, match=r"args_padding\[0\]\[1\] must be None, because .* is periodic"):
        InfiniteTensor((4, 24), _same, TensorWindow((4, 8)), [ring], [arg], args_padding=[("edge", "reflect")])
    with pytest.raises(ValidationError, match="must have ends"):
        placed(ring, (0, 0))
    with pytest.raises(ValidationError, match="must have ends along dimension 1"):
        torch.cat([cast("Any", ring)] * 2, 1)
    for dim in ("z", 3, 0.5, None):
        with pytest.raises(ValidationError, match="dims of periodic must be finite dimensions of a tensor of shape"):
            FLAT.periodic(cast("Any", dim))
    for n in (0, -3, 2**53 + 1, 2.0, True, "4", None):
        with pytest.raises(ValidationError, match="Periodic takes the number of pixels once around"):
            Periodic(cast("Any", n))
