"""A reduction is applied to all values of a pixel once all its windows are there, in every store, after any history."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    Reduction,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
)
from tests.support.building import VARIED, built
from tests.support.reference import Index, same_bits
from tests.support.stores import sample

pytestmark = pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")

CHANNELS = 5

STORES = VARIED | {"zarr with its own tiles": lambda path: ZarrTileStore(path / "s.zarr")}


@dataclass(frozen=True)
class Scores:
    """An ``f`` of random values, with as many equal ones as argmax needs to show which of them it takes."""

    size: Index
    dtype: torch.dtype = torch.float32

    def __call__(self, ctx: Index) -> torch.Tensor:
        """The window at `ctx`, whose leading entries of 0 do not count: those are of dimensions without windows."""
        place = [i for i in ctx if i] or [0]
        random = torch.Generator().manual_seed(zlib.crc32(repr(place).encode()))
        return torch.randint(-3, 4, self.size, generator=random).to(self.dtype)


def second(values: torch.Tensor) -> torch.Tensor:
    """The second largest value of each pixel."""
    return values.topk(2, 0).values[1]


def ends(values: torch.Tensor) -> torch.Tensor:
    """The least and the largest value of each pixel."""
    return torch.stack([values.amin(0), values.amax(0)])


@dataclass(frozen=True)
class Case:
    """Pixels of a tensor, by the dimensions along which they lie."""

    shape: tuple[int | None, ...]
    window: TensorWindow
    low: Index
    high: Index
    edge: str = "drop"

    def with_channels(self, count: int) -> Case:
        """The same pixels with some values each."""
        window, mapped = self.window, self.window.dimension_map
        follows = None if mapped is None else (None, *(None if k is None else k + 1 for k in mapped))
        moved = TensorWindow((count, *window.size), (count, *window.stride), (0, *window.offset), follows)
        return Case((count, *self.shape), moved, (0, *self.low), (count, *self.high), self.edge)

    @property
    def region(self) -> tuple[slice, ...]:
        return tuple(map(slice, self.low, self.high))


CASES = {
    "overlapping": Case((None, None), TensorWindow((8, 12), (4, 6)), (-9, -20), (21, 17)),
    "apart": Case((None, None), TensorWindow((4, 4)), (-9, -5), (11, 17)),
    "much": Case((None,), TensorWindow((16,), 2), (-40,), (70,)),
    "no divisor": Case((None, None), TensorWindow((7, 5), (3, 4), (2, -1)), (-11, 3), (14, 30)),
    "with gaps": Case((None, None), TensorWindow((3, 6), (5, 2)), (-6, 0), (12, 20)),
    "finite": Case((23, 40), TensorWindow((8, 8), 3), (0, 0), (23, 40)),
    "clipped": Case((23, 40), TensorWindow((8, 9), (3, 4), (-2, 0)), (0, 0), (23, 40), "clip"),
    "diagonal": Case((None, None), TensorWindow((6, 8), (2, 3), dimension_map=(0, 0)), (-3, -8), (13, 17)),
    "kept": Case((9, None), TensorWindow((4, 8), 3, (2, 0), (None, 1)), (0, 0), (9, 31)),
    "volume": Case((9, None, None), TensorWindow((4, 6, 6), (2, 3, 4)), (0, -3, 0), (9, 9, 12)),
}


ARGMAX = Reduction("argmax", CHANNELS)


def tensor(case: Case, dtype: Any, reduce: Any, f: Callable[..., Any] | None = None, **options: Any) -> InfiniteTensor:
    f = f or Scores((CHANNELS, *case.window.size))
    return built(f, case.window, shape=case.shape, dtype=dtype, edge=case.edge, reduce=reduce, **options)


def values_of(case: Case, blend: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All values of the pixels of a case, and which of them some window covers."""
    scores = Case.with_channels(case, CHANNELS)
    whole = built(Scores(scores.window.size), scores.window, shape=scores.shape, edge=case.edge, blend=blend)
    ones = built(lambda _ctx: torch.ones(case.window.size), case.window, shape=case.shape, edge=case.edge)
    return whole[scores.region], ones[case.region] > 0


def reads(case: Case) -> list[tuple[slice, ...]]:
    """Parts of the region of a case, and at last all of it."""
    chance = random.Random(3)  # noqa: S311  (no secret)
    parts = []
    for _ in range(6):
        ends = [sorted(chance.sample(range(a, b + 1), 2)) for a, b in zip(case.low, case.high, strict=True)]
        parts.append(tuple(slice(a, b) for a, b in ends))
    return [*parts, case.region]


def part_of(values: torch.Tensor, case: Case, region: tuple[slice, ...]) -> torch.Tensor:
    """What lies in a region of values of a case, whose last dimensions are its pixels."""
    for d, (r, a) in enumerate(zip(region, case.low, strict=True), -len(region)):
        values = values.narrow(d, r.start - a, r.stop - r.start)
    return values


@pytest.mark.parametrize("case", [CASES[name] for name in ("overlapping", "clipped", "with gaps", "volume")])
@pytest.mark.parametrize("kind", sample(STORES, "zarr with small tiles"))
def test_a_pixel_may_become_several_values(case: Case, kind: str, tmp_path: Path) -> None:
    values, covered = values_of(case, "hann")
    two, kept = case.with_channels(2), case.with_channels(CHANNELS)
    f = Scores((CHANNELS, *case.window.size))
    with STORES[kind](tmp_path) as store:
        bounds = tensor(two, "float32", Reduction(ends, CHANNELS, 2), f, blend="hann", store=store)
        shares = tensor(kept, "float32", Reduction("softmax", CHANNELS), f, blend="hann", store=store)
        for region in reads(case):
            of, inside = part_of(values, case, region), part_of(covered, case, region)
            assert torch.equal(bounds[(slice(None), *region)], torch.where(inside, ends(of), 0))
            assert torch.equal(bounds[(1, *region)], torch.where(inside, of.amax(0), 0))
            torch.testing.assert_close(shares[(slice(None), *region)], torch.where(inside, of.softmax(0), 0))


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_the_bits_of_a_pixel_depend_neither_on_the_store_nor_on_what_is_read_with_it(name: Any, tmp_path: Path) -> None:
    found = []
    for make in (MemoryTileStore, lambda: ZarrTileStore(tmp_path / "s.zarr", tile_size=37)):
        case = Case((None, None), TensorWindow((16, 16), 8), (-20, 3), (71, 90)).with_channels(CHANNELS)
        f = lambda ctx: Scores((CHANNELS, 16, 16))(ctx) * 0.37  # noqa: E731
        t = tensor(case, "float32", Reduction(name, CHANNELS), f, store=make(), blend="gaussian")
        whole = t[:, -20:71, 3:90]
        found.append(whole)
        for y, x, n in ((-20, 3, 1), (-3, 17, 7), (20, 30, 33)):
            assert same_bits(t[:, y : y + n, x : x + n], whole[:, y + 20 : y + 20 + n, x - 3 : x - 3 + n].contiguous())
    assert same_bits(*found)


def test_only_what_pixels_become_is_stored_of_complete_tiles(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=16, compressors=None) as store:
        t = tensor(CASES["apart"], "uint8", ARGMAX, store=store, name="labels")
        t.fill((slice(0, 64), slice(0, 64)), progress=False)
        info = store.tensor_info("labels")
        assert (info.tiles_complete, info.tiles_partial) == (16, 0)
        array = next((tmp_path / "s.zarr").glob("t-labels/tiles-*/zarr.json"))
        assert json.loads(array.read_text())["data_type"] == "uint8"
        chunks = [path.stat().st_size for path in array.parent.glob("c/**/*") if path.is_file()]
        assert len(chunks) == 16
        # A checksum of four bytes each.
        assert set(chunks) == {16 * 16 + 4}


def test_a_reduction_is_part_of_the_definition(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        tensor(CASES["apart"], "uint8", ARGMAX, store=store, name="a")
        tensor(CASES["apart"], "float32", Reduction(second, CHANNELS), store=store, name="b")
        definitions = [store.tensor_info(name).definition for name in ("a", "b")]
    assert definitions[0]["reduce"] == {
        "function": "argmax",
        "in_channels": CHANNELS,
        "out_channels": None,
        "dtype": "float32",
    }
    assert definitions[1]["reduce"]["function"] == f"{__name__}.second"


def test_a_tensor_that_a_function_reduced_is_read_without_it_and_computed_with_it(tmp_path: Path) -> None:
    case = CASES["overlapping"]
    f = Scores((CHANNELS, *case.window.size))
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=8) as store:
        t = tensor(case, "float32", Reduction(second, CHANNELS), store=store, name="t")
        t[0:16, 0:16]
        found = t[case.region]
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        assert "second" in repr(store.open("t").reduce)
        assert torch.equal(store.open("t")[0:8, 0:8], part_of(found, case, (slice(0, 8), slice(0, 8))))
        with pytest.raises(ValidationError, match="reduce=Reduction"):
            store.open("t", f)
        with pytest.raises(ValidationError, match=r"reduce\.function: stored"):
            store.open("t", f, reduce=Reduction(ends, CHANNELS, 2))
        with pytest.raises(ValidationError, match="Reduction"):
            store.open("t", f, reduce="second")  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match="second'"):
            store.open("t")[-9:21, -20:17]
        again = store.open("t", f, reduce=Reduction(second, CHANNELS))
        assert torch.equal(again[case.region], found)


def test_a_reduction_that_raises_leaves_what_was_computed(tmp_path: Path) -> None:
    case, fails = CASES["apart"], [True]

    def picky(values: torch.Tensor) -> torch.Tensor:
        if fails and values.any():
            raise ArithmeticError("not now")
        return values[0]

    for store in (MemoryTileStore(), ZarrTileStore(tmp_path / "s.zarr", tile_size=10)):
        fails[:] = [True]
        t = tensor(case, "float32", Reduction(picky, CHANNELS), store=store)
        with pytest.raises(ArithmeticError, match="not now"):
            t[0:20, 0:20]
        fails.clear()
        assert torch.equal(t[case.region], values_of(case, None)[0][0])


@pytest.mark.parametrize("f", [lambda values: values, lambda values: values.sum(), lambda _values: 3])
def test_a_function_that_does_not_return_what_it_must_is_told_at_once(f: Any) -> None:
    with pytest.raises(ValidationError, match="return"):
        tensor(CASES["apart"], "float32", Reduction(f, CHANNELS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("median", 3), "'softmax'"),
        ((None, 3), "callable"),
        (("argmax", 0), "in_channels"),
        (("argmax", 2.5), "in_channels"),
        (("argmax", 3, 1), "out_channels"),
        ((second, 3, 0), "out_channels"),
        (("softmax", 3, None, torch.int32), r"dtype=torch.int32"),
        (("argmax", 3, None, torch.complex64), r"dtype=torch.complex64"),
        (("argmax", 3, None, "float8"), "'float8'"),
    ],
)
def test_a_reduction_that_there_is_not_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Reduction(*arguments)


@pytest.mark.parametrize(
    ("dtype", "reduce", "message"),
    [
        ("uint8", "argmax", "Reduction"),
        ("uint8", Reduction("argmax", 300), r"torch.uint8"),
        ("float32", ARGMAX, r"torch.float32"),
        ("uint8", Reduction("softmax", CHANNELS), r"torch.uint8"),
        ("float32", Reduction("softmax", CHANNELS), "reduction"),
    ],
)
def test_a_reduction_that_does_not_fit_its_tensor_is_refused(dtype: str, reduce: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        tensor(CASES["apart"], dtype, reduce)


def test_tiles_hold_all_values_of_a_pixel(tmp_path: Path) -> None:
    kept = CASES["apart"].with_channels(CHANNELS)
    for size in ((2, 8, 8), (8, 8)):
        with ZarrTileStore(tmp_path / "s.zarr", tile_size=size) as store:
            tensor(kept, "float32", Reduction("softmax", CHANNELS), store=store, name="t")
            definition = store.tensor_info("t").definition
    assert definition["tile_size"] == [CHANNELS, 8, 8]


def test_a_large_region_is_reduced_in_parts() -> None:
    """Gathered at once, the values of these pixels would take 4 GiB."""
    channels, window = 64, TensorWindow((64, 64))
    options: dict[str, Any] = {"dtype": "uint8", "reduce": Reduction("argmax", channels)}
    options["store"] = MemoryTileStore(cache_size_bytes=2**24)
    t = built(lambda ctx: torch.full((1, 64, 64), float(sum(ctx))).expand(channels, 64, 64), window, **options)
    assert not t[0:4096, 0:64].any()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int16", "uint8", "bool"])
@pytest.mark.parametrize("channels", [1, 2, 7, 300])
def test_the_first_of_equal_values_is_the_largest_and_nan_is_larger(dtype: str, channels: int) -> None:
    of = getattr(torch, dtype)
    values = torch.randint(0, 5, (channels, 40, 30), generator=torch.Generator().manual_seed(channels)).to(of)
    if of.is_floating_point:
        values[torch.rand(values.shape, generator=torch.Generator().manual_seed(1)) < 0.01] = torch.nan
        values[values == 0] = -0.0
        values[0, 3] = -torch.inf
    reduce = Reduction("argmax", channels, dtype=dtype)
    t = built(lambda _ctx: values, (40, 30), shape=(40, 30), dtype="int32", reduce=reduce)
    expected = values.to(torch.float64).argmax(0).to(torch.int32)
    assert torch.equal(t[...], expected)
