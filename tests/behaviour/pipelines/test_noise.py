"""Noise: a value belongs to a seed, a stream and a coordinate, whatever is read."""

from __future__ import annotations

import gc
import itertools
import math
import multiprocessing
import os
import pickle
import random
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, ZarrTileStore, noise, sl, window_rng
from infinite_tensor.errors import RegionError
from infinite_tensor.pipelines import noise as module
from infinite_tensor.values.functions import Functions
from tests.support.counting import Counted
from tests.support.philox import halves, philox, signed, words_of_cell
from tests.support.reference import Index
from tests.support.stores import sample

LIMIT = 2**51
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = ("uniform", "normal")

PUBLISHED = {
    "zeros": (
        (0,) * 2,
        (0,) * 4,
        (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
    ),
    "ones": (
        (2**64 - 1,) * 2,
        (2**64 - 1,) * 4,
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    "pi": (
        (0x452821E638D01377, 0xBE5466CF34E90C6C),
        (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
}
"""Key, counter and words, from the known answers that come with Random123."""


def words(numbers: Sequence[int]) -> npt.NDArray[np.uint64]:
    return np.array(numbers, dtype=np.uint64)


def as_words(number: int) -> list[int]:
    return [number >> shift & 2**64 - 1 for shift in (0, 64, 128, 192)]


def as_number(words: Sequence[int]) -> int:
    return sum(word << 64 * at for at, word in enumerate(words))


def digest(pixels: torch.Tensor) -> str:
    return sha256(pixels.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(("key", "counter", "expected"), PUBLISHED.values(), ids=PUBLISHED)
def test_words_are_those_that_the_authors_of_philox_published(key: Any, counter: Any, expected: Any) -> None:
    assert philox(key, counter) == expected
    before = as_words((as_number(counter) - 1) % 2**256)
    assert tuple(np.random.Philox(key=words(key), counter=words(before)).random_raw(4).tolist()) == expected


@pytest.mark.parametrize(
    ("shape", "place"),
    [
        ((None,), (-3,)),
        ((None, None), (5, -1)),
        ((None, None), (-1, 0)),
        ((None, None), (-(2**45), 2**45 - 1)),
        ((3, None, None), (2, -7, 1)),
        ((None, None, None), (-(2**51), 0, 9)),
        ((None, 2, None, None), (2**51 - 1, 1, -2, -2)),
        ((2, None, 3, None, None), (1, -5, 2, 4, -4)),
        ((2, 2, 2, 1, 64, 64), (1, 0, 1, 0, 0, 0)),
    ],
)
def test_cells_hold_the_words_that_the_documentation_says(shape: Any, place: Any) -> None:
    cell = (4096,) if len(shape) == 1 else (*(1,) * (len(shape) - 2), 64, 64)
    region = tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, cell, strict=True))
    seed, stream = 2**64 - 59, 2**63 + 5
    narrow = list(halves(words_of_cell(seed, stream, place, 512)))
    wide = list(words_of_cell(seed, stream, place, 1024))

    def read(dtype: torch.dtype, kind: Any = "uniform") -> list[float]:
        pixels = noise(shape, seed, stream, kind, dtype)[region]
        assert pixels.dtype is dtype
        found: list[float] = pixels.double().flatten().tolist()
        return found

    assert read(torch.float32) == [(word >> 8) / 2**24 for word in narrow]
    assert read(torch.float16) == [(word >> 21) / 2**11 for word in narrow]
    assert read(torch.bfloat16) == [(word >> 24) / 2**8 for word in narrow]
    assert read(torch.float64) == [(word >> 11) / 2**53 for word in wide]

    def quantiles(numbers: list[int], bits: int) -> torch.Tensor:
        return torch.tensor([quantile(Fraction(2 * signed(n, bits) + 1, 2 ** (bits + 1))) for n in numbers]).double()

    def apart(pixels: list[float], expected: torch.Tensor) -> float:
        return ((torch.tensor(pixels).double() - expected) / expected).abs().max().item()

    of_words = quantiles([word >> 8 for word in narrow], 24)
    normal = read(torch.float32, "normal")
    assert apart(normal, of_words) < 2**-21
    assert read(torch.float16, "normal") == torch.tensor(normal).half().tolist()
    assert read(torch.bfloat16, "normal") == torch.tensor(normal).bfloat16().tolist()
    assert apart(read(torch.float64, "normal"), quantiles([word >> 11 for word in wide], 53)) < 2**-50


def quantile(beyond_half: Fraction) -> float:
    """What a normal number is below with a probability of 1/2 and this, by the library of Python."""
    # From the nearer end, where numbers are finer.
    from_below = statistics.NormalDist().inv_cdf(float(Fraction(1, 2) - abs(beyond_half)))
    return math.copysign(from_below, beyond_half)


PINNED = {
    (torch.float32, "uniform"): "dabc05251ae5abe5",
    (torch.float64, "uniform"): "0e553b9e13accdc0",
    (torch.float16, "uniform"): "5f8e1ddce84173d5",
    (torch.bfloat16, "uniform"): "1660780dab1748ad",
    (torch.float32, "normal"): "1a3920e170ba832d",
    (torch.float64, "normal"): "5a8db4721d941093",
    (torch.float16, "normal"): "3a505a9cf9fcce7c",
    (torch.bfloat16, "normal"): "3d1f6766caf7eea4",
}


@pytest.mark.parametrize(("dtype", "kind"), PINNED, ids=str)
def test_bits_are_those_of_the_first_version(dtype: torch.dtype, kind: Any) -> None:
    assert digest(noise((None, None), 3, 1, kind, dtype)[-70:70, -70:70]) == PINNED[dtype, kind]


@pytest.mark.parametrize(("dtype", "bits"), [(np.float32, 24), (np.float64, 53)])
def test_both_ends_of_the_words_give_finite_numbers(dtype: Any, bits: int) -> None:
    ends = np.array([0, 2**bits - 1], dtype)
    module.to_uniform(ends, bits)
    assert ends.tolist() == [0, 1 - 2**-bits]
    ends = np.array([-(2 ** (bits - 1)), -1, 0, 2 ** (bits - 1) - 1], dtype)
    module.to_normal(ends, bits)
    assert np.isfinite(ends).all()
    assert ends.tolist() == (-ends)[::-1].tolist()
    assert 0 < ends[2] < 2.0 ** (2 - bits)
    assert ends[3].item() == pytest.approx(5.42 if bits == 24 else 8.29, abs=5e-3)


@pytest.mark.parametrize(("dtype", "bits", "error"), [(np.float32, 24, 2**-21), (np.float64, 53, 2**-50)])
def test_normal_numbers_are_right_everywhere(dtype: Any, bits: int, error: float) -> None:
    """In the middle, in the tails, where those begin, and as far out as there are numbers."""
    half = 2 ** (bits - 1)
    near = np.arange(-300, 300)
    numbers = np.concatenate(
        [near, half - 1 - np.arange(600), round(0.85 * half) + near, np.geomspace(600, half - 600, 3000).astype(int)]
    )
    # One half of them in one piece of those that are worked on at once.
    computed = np.resize(np.concatenate([numbers, -1 - numbers]), 70_000).astype(dtype)
    module.to_normal(computed, bits)
    for sign, found in ((1, computed[: len(numbers)]), (-1, computed[len(numbers) : 2 * len(numbers)])):
        expected = [sign * quantile(Fraction(2 * int(number) + 1, 2 ** (bits + 1))) for number in numbers]
        assert found.astype(float) == pytest.approx(expected, rel=error, abs=0)
    assert (computed[-len(numbers) :] == np.resize(computed[: 2 * len(numbers)], 70_000)[-len(numbers) :]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coarse_dtypes_never_reach_one_nor_infinity(dtype: torch.dtype) -> None:
    uniform = noise((None, None), 1, dtype=dtype)[0:512, 0:512]
    assert uniform.min() == 0
    assert uniform.max().item() == 1 - 2.0 ** -{torch.float16: 11, torch.bfloat16: 8}[dtype]
    assert noise((None, None), 1, kind="normal", dtype=dtype)[0:512, 0:512].isfinite().all()


def coordinates(extent: int | None) -> st.SearchStrategy[int]:
    """First pixels of small regions, many of them at borders."""
    if extent is not None:
        return st.integers(0, extent - 1)
    near = [sign * base for base in (0, 64, 512, 4096, 2**31, 2**45) for sign in (1, -1)]
    ends = st.sampled_from([-LIMIT, LIMIT - 40, *near])
    return st.tuples(ends, st.integers(-20, 20)).map(lambda pair: min(LIMIT - 40, max(-LIMIT, sum(pair))))


@pytest.mark.parametrize(
    "shapes",
    [
        [(None,), (5000,), (100,)],
        [(None, None), (100, 700), (None, 64), (1000, None)],
        [(None, None, None), (3, None, None), (5, 70, None), (100, 100, 100)],
        [(None, 4, None, None), (2, 3, 66, 66), (None,) * 4],
        [(None,) * 5, (2, 2, None, 2, None)],
    ],
    ids=lambda shapes: f"{len(shapes[0])}-D",
)
@given(data=st.data())
def test_a_value_depends_on_its_coordinate_alone(shapes: list[Any], data: st.DataObject) -> None:
    """Not on the extents, nor on the windows, which differ with them, nor on what was read before."""
    kind: Any = data.draw(st.sampled_from(KINDS))
    shape, other = data.draw(st.sampled_from(shapes)), data.draw(st.sampled_from(shapes))
    smaller = [a if b is None else b if a is None else min(a, b) for a, b in zip(shape, other, strict=True)]
    first = [data.draw(coordinates(extent)) for extent in smaller]
    region = tuple(
        slice(a, min(a + (40 if d >= len(smaller) - 2 else 2), LIMIT if extent is None else extent))
        for d, (a, extent) in enumerate(zip(first, smaller, strict=True))
    )
    one, two = noise(shape, 9, kind=kind), noise(other, 9, kind=kind)
    whole = one[region]
    pixel = [data.draw(st.integers(part.start, part.stop - 1)) for part in region]
    assert two[tuple(pixel)] == whole[tuple(at - part.start for at, part in zip(pixel, region, strict=True))]
    assert torch.equal(two[region], whole)
    assert torch.equal(in_windows(one, region), whole)


def in_windows(t: InfiniteTensor, region: Any) -> torch.Tensor:
    """A region as it is put together of windows, which a store takes."""
    assert t.f is not None
    kept = InfiniteTensor(
        t.shape, t.f, t.output_window, dtype=t.dtype, edge="clip", batch_size=4, tile_store=ZarrTileStore(MemoryStore())
    )
    pixels: torch.Tensor = kept[region]
    return pixels


FORMS = {
    "small": ((None, None), sl[-70:-5, 61:131]),
    "a row": ((None, None), sl[7, -100:4000]),
    "a column": ((None, None), sl[-100:4000, -3:-1]),
    "wide": ((None, None), sl[-70:-30, -5000:30_000]),
    "high": ((None, None), sl[-1000:2000, 100:165]),
    "large": ((None, None), sl[-700:500, -300:777]),
    "long": ((None,), sl[-100_001:200_003]),
    "short": ((None,), sl[4090:4100]),
    "channels": ((3, None, None), sl[:, -150:150, 20:200]),
    "many channels": ((None, None, None), sl[-5:95, 60:70, 60:120]),
    "small extents": ((5, 70, 33), sl[1:, 3:, :30]),
    "five dimensions": ((2, 2, None, None, None), sl[:, 1, -1:2, 60:200, -7:300]),
}


@pytest.mark.parametrize(("shape", "region"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_regions_of_any_form_have_the_bits_of_windows(shape: Any, region: Any, dtype: torch.dtype, kind: Any) -> None:
    t = noise(shape, 9, 2, kind, dtype)
    drawn = t[region]
    assert drawn.dtype is dtype
    assert torch.equal(in_windows(t, region), drawn)


def test_regions_agree_in_whatever_order_they_are_read() -> None:
    expected = noise((None, None), 4)[-600:700, -650:600]
    places = list(itertools.product(range(-600, 700, 100), range(-650, 600, 125)))
    random.Random(0).shuffle(places)  # noqa: S311  (an order)
    t = noise((None, None), 4)
    for y, x in places:
        assert torch.equal(t[y : y + 100, x : x + 125], expected[y + 600 :, x + 650 :][:100, :125])
        if y % 300 == 0:
            t.clear_cache()


def test_the_limits_of_coordinates_can_be_read() -> None:
    t = noise((None, None), 4, kind="normal")
    corners = [t[a : a + 3, b : b + 3] for a, b in itertools.product((-LIMIT, LIMIT - 3), repeat=2)]
    assert len({digest(corner) for corner in corners}) == 4
    with pytest.raises(RegionError, match="2251799813685248"):
        t[LIMIT - 3 : LIMIT + 1, 0]
    assert torch.equal(noise((2**53, None), 4, kind="normal")[LIMIT - 3 : LIMIT, -LIMIT : 3 - LIMIT], corners[2])


def places(rng: random.Random, count: int, ndim: int) -> Iterator[tuple[int, ...]]:
    """Different indices of cells, of which a half lie around 0 and a half anywhere, up to the limits."""
    side = math.ceil((count / 2) ** (1 / ndim))
    yield from itertools.islice(itertools.product(range(-side // 2, side // 2 + 1), repeat=ndim), count // 2)
    limits = [*[LIMIT] * max(0, ndim - 2), *[LIMIT // (4096 if ndim == 1 else 64)] * min(2, ndim)]
    for _ in range(count - count // 2):
        # Beyond those around 0.
        yield tuple(rng.choice((-1, 1)) * rng.randrange(limit // 2, limit) for limit in limits)


@pytest.mark.parametrize("share", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_no_words_are_drawn_at_two_of_a_million_places(share: int) -> None:
    """Cells of 1 to 6 dimensions, of streams too, and generators: none begins at, or within, the words of another."""
    rng = random.Random(0)  # noqa: S311  (some places)
    begins: list[module.Address] = []
    for ndim in range(1, 7):
        for place in set(places(rng, 75_000 // share, ndim)):
            begins += [module.cell_address(3, 0, place, 512), module.generator_address(3, place)]
    for stream in range(1, 11):
        begins += [module.cell_address(3, stream, place, 512) for place in set(places(rng, 10_500 // share, 2))]
    assert len(set(begins)) == len(begins) >= 10**6 // share
    # Where nothing but the lowest word differs, there is room for 512 counters, and a generator is alone.
    assert all(counter[0] % 512 == 0 for _, counter in begins)
    generators = [(key, counter[1:]) for key, counter in begins if counter[1] >> 56 > 127]
    assert len(set(generators)) == len(generators) > 0


@given(
    ndim=st.integers(1, 4),
    place=st.tuples(*[st.integers(-(2**52), 2**53)] * 2, *[st.integers(-(2**46), 2**47)] * 2),
    counters=st.sampled_from([512, 1024]),
)
def test_the_place_of_a_cell_can_be_told_from_its_counter(ndim: int, place: tuple[int, ...], counters: int) -> None:
    """With up to four dimensions, no two cells of a seed and stream can be the same."""
    place = place[4 - ndim :]
    key, counter = module.cell_address(5, 6, place, counters)
    column, start = divmod(counter[0], counters)
    told = [column - 2**52, signed(counter[1] % 2**56, 56), signed(counter[2], 64), signed(counter[3], 64)]
    assert (key, start, counter[1] >> 56) == ((5, 6), 0, ndim)
    assert tuple(told[ndim - 1 :: -1]) == place
    assert counter[0] + counters < 2**64


SEEDS = [(1, 0), (2**32 + 1, 0), (2**64 - 1, 0), (0, 1), (1, 1), (1, 2**32 + 1), (0, 2**64 - 1)]


def test_seeds_of_generators_differ_in_every_bit_that_they_have() -> None:
    assert len({window_rng(seed, (0, 0)).random() for seed in (0, 1, 2**32 + 1, 2**64 - 1)}) == 4


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])


def kolmogorov_smirnov(ranks: torch.Tensor) -> float:
    """The largest distance from the uniform distribution, times the root of the count."""
    ranks = ranks.flatten().sort().values
    steps = torch.arange(len(ranks) + 1, dtype=torch.float64) / len(ranks)
    return float(torch.maximum(steps[1:] - ranks, ranks - steps[:-1]).max() * math.sqrt(len(ranks)))


@pytest.mark.parametrize("shape", sample([(None,), (None, None), (16, None, None)], (None, None)), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_distributed_as_they_should_be(shape: tuple[int | None, ...], kind: Any) -> None:
    """A million numbers, around 0: of what is allowed, one seed in 10,000 or so exceeds each."""
    side = round(2 ** (20 / 2)) // (4 if len(shape) == 3 else 1)
    around = slice(-side // 2, side // 2)
    region = {1: sl[-(2**19) : 2**19], 2: (around, around), 3: (slice(None), around, around)}
    pixels = noise(shape, 11, kind=kind)[region[len(shape)]].double()
    assert pixels.numel() == 2**20
    mean, variance = (0, 1) if kind == "normal" else (0.5, 1 / 12)
    few = 4 / 2**10
    assert float(pixels.mean()) == pytest.approx(mean, abs=few * math.sqrt(variance))
    assert float(pixels.var()) == pytest.approx(variance, rel=few * math.sqrt(2))
    for d, distance in itertools.product(range(pixels.ndim), (1, 2, 64, 4096)):
        if distance < pixels.shape[d]:
            near, far = (pixels.narrow(d, at, pixels.shape[d] - distance) for at in (distance, 0))
            assert abs(correlation(near, far)) < 4 / math.sqrt(near.numel())
    ranks = pixels if kind == "uniform" else torch.special.ndtr(pixels)
    assert kolmogorov_smirnov(ranks) < 2.2


def test_streams_and_seeds_are_not_correlated() -> None:
    numbers = [noise((None, None), seed, stream)[0:512, 0:512] for seed, stream in SEEDS]
    for one, other in itertools.combinations(numbers, 2):
        assert abs(correlation(one, other)) < 4.5 / 512


def _blur(ctx: Index, region: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return torch.nn.functional.avg_pool2d(region[None], 3, 1)[0]


def blurred(source: InfiniteTensor, store: ZarrTileStore) -> tuple[InfiniteTensor, list[Index]]:
    """A stored tensor that reads another one, and the windows that are computed of it."""
    window, f = TensorWindow((50, 50)), Counted(_blur)
    t = InfiniteTensor((None, None), f, window, [source], [window.padded(1)], tile_store=store, tensor_id="blurred")
    return t, f.calls


def test_it_is_an_arg_of_stored_tensors_and_reopens_with_them(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "store.zarr") as store:
        t, _ = blurred(noise((None, None), seed=3), store)
        written = t[-70:80, 0:100]
    with ZarrTileStore(tmp_path / "store.zarr") as store:
        t, calls = blurred(noise((None, None), seed=3), store)
        assert torch.equal(t[-70:80, 0:100], written)
        assert not calls
        assert torch.equal(t[-100:200, 0:100][30:180], written)
        assert calls


@pytest.mark.parametrize("other", [{"seed": 4}, {"stream": 1}, {"kind": "normal"}], ids=lambda other: next(iter(other)))
def test_another_seed_stream_or_kind_is_another_definition(tmp_path: Path, other: dict[str, Any]) -> None:
    changed = noise((None, None), **({"seed": 3} | other))
    assert changed.version != noise((None, None), seed=3).version
    with ZarrTileStore(tmp_path / "store.zarr") as store:
        blurred(noise((None, None), seed=3), store)
        with pytest.raises(ValidationError, match="blurred"):
            blurred(changed, store)


def test_what_is_stored_does_not_warn_of_changes_within_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    f = noise((None, None), seed=3).f
    assert f is not None
    before = Functions({"f": f}).record
    monkeypatch.setattr(type(f), "windows", lambda self, contexts: torch.zeros(len(contexts), *self.size))
    assert Functions({"f": f}).record == before


def test_nothing_is_kept() -> None:
    t, region = noise((None, None), seed=3), sl[1000:1064, 10**9 + 100 : 10**9 + 164]
    assert t[region].shape == (64, 64)
    for _ in t.iter_regions(sl[y : y + 512, 0:4096] for y in range(0, 4096, 512)):
        pass
    assert t.tile_store.tensor_info(t.tensor_id).bytes_stored == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.float16, r"make it with noise\(\.\.\., dtype=torch.float16\), or convert the pixels"),
        (torch.float64, r"make it with noise\(\.\.\., dtype=torch.float64\), or convert the pixels"),
        (torch.int32, r"a fixed dtype; convert the pixels: t\[\.\.\.\]\.to\(torch.int32\)"),
        ("meta", r"drawn on the CPU; move the pixels: t\[\.\.\.\]\.to\('meta'\)"),
    ],
)
def test_it_is_not_converted_or_moved(given: Any, message: str) -> None:
    """Converted it would pass for the noise of that dtype, of which it has not the bits."""
    t = noise((None, None), seed=3)
    before = t[0:9, 0:9]
    with pytest.raises(ValidationError, match=message):
        t.to(given)
    assert torch.equal(t[0:9, 0:9], before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_tensor_has_the_same_numbers(kind: Any) -> None:
    t = noise((3, None, None), 2**64 - 1, 7, kind, "bfloat16", dims=("c", "y", "x"))
    copy = pickle.loads(pickle.dumps(t))  # noqa: S301  (its own)
    assert (copy.dims, copy.dtype, copy.version) == (("c", "y", "x"), torch.bfloat16, t.version)
    assert torch.equal(copy[:, -9:9, 0:9], t[:, -9:9, 0:9])


@pytest.mark.usefixtures("often_switched")
def test_threads_read_one_tensor() -> None:
    t, expected = noise((None, None), 3), noise((None, None), 3)[0:2048, 0:2048]
    corners = list(itertools.product(range(0, 2048, 512), repeat=2))
    with ThreadPoolExecutor(4) as pool:
        read = pool.map(lambda at: t[at[0] : at[0] + 512, at[1] : at[1] + 512], corners)
        for (y, x), found in zip(corners, read, strict=True):
            assert torch.equal(found, expected[y : y + 512, x : x + 512])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_children_read_what_their_parent_reads() -> None:
    """Also normal numbers, where torch has begun threads in the parent, which the child lacks."""
    gc.collect()
    tensors = [noise((None, None), 3, kind="normal", dtype=dtype) for dtype in DTYPES]
    expected = [digest(t[0:600, 0:600]) for t in tensors]
    torch.ones(2**22).exp_()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_digests, (tensors,)).get(timeout=60) == expected


def _digests(tensors: Sequence[InfiniteTensor]) -> list[str]:
    return [digest(t[0:600, 0:600]) for t in tensors]


def test_default_device_and_dtype_of_torch_do_not_matter() -> None:
    expected = noise((None, None), 3, kind="normal", dtype="float16")[0:9, 0:9]
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            found = noise((None, None), 3, kind="normal", dtype="float16")[0:9, 0:9]
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, expected)


NO_WORDS: list[Any] = [-1, 2**64, 10**5000, True, np.True_, 1.0, torch.tensor(1.0), "1", None, [1]]


def test_a_seed_or_stream_that_is_no_word_is_told() -> None:
    for number in NO_WORDS:
        with pytest.raises(ValidationError, match=r"^seed must be an int from 0 to 2\*\*64 - 1, got "):
            noise((None, None), number)
        with pytest.raises(ValidationError, match=r"^stream must be an int from 0 to 2\*\*64 - 1, got "):
            noise((None, None), 1, number)
        with pytest.raises(ValidationError, match=r"^seed must be an int from 0 to 2\*\*64 - 1, got "):
            window_rng(number, (0, 0))


def test_other_ints_are_seeds_too() -> None:
    expected = noise((None,), 7, 8)[0:5]
    assert torch.equal(noise((None,), np.uint64(7), torch.tensor(8))[0:5], expected)  # type: ignore[arg-type]
    assert noise((None,), np.uint64(7), np.int8(8)).version == noise((None,), 7, 8).version  # type: ignore[arg-type]


NO_ARGUMENTS: dict[str, tuple[list[Any], str]] = {
    "dtype": (
        [torch.int32, torch.bool, torch.complex64, "int8", "float", float, None, torch.tensor(1)],
        "one of torch.float16, .*torch.float64, got ",
    ),
    "kind": (["gaussian", "", None, 1, ["normal"]], '"uniform" or "normal", got '),
    "shape": ([(), None, 5, "ab", (0, None), (-4,), (1.5, None), (None, True), (2**60,)], ""),
    "dims": ([("c", "y", "x")], "a tuple of 2 str"),
}


@pytest.mark.parametrize("name", NO_ARGUMENTS)
def test_an_argument_that_is_none_is_told(name: str) -> None:
    values, message = NO_ARGUMENTS[name]
    for value in values:
        with pytest.raises(ValidationError, match=rf"^{name} must (be )?{message}"):
            noise(**{"shape": (None, None), "seed": 1, name: value})


def test_a_generator_begins_where_the_documentation_says() -> None:
    low = philox((5, 0), (1, 2**56 * 130 + 2**56 - 3, 7, 0))
    assert tuple(window_rng(5, (7, -3)).bit_generator.random_raw(4).tolist()) == low
    high = philox((2**64 - 1, 0), (1, 2**56 * 131 + 2**55 - 1, 2**64 - 2**55, 2**64 - 1))
    assert tuple(window_rng(2**64 - 1, (-1, -(2**55), 2**55 - 1)).bit_generator.random_raw(4).tolist()) == high


TRIPLES = [
    *itertools.product((0, 1, 3), range(-12, 12), range(-12, 12)),
    # What repeats where a seed keeps 32 bits, where coordinates are added up, and where words of any length are joined.
    *((0, 0, 2**32 * n) for n in range(-4, 5) if n),
    *((0, row, -1_000_003 * row) for row in range(1, 9)),
    *((2**32 * n, 0, 0) for n in (1, 2, 3)),
    *itertools.product((0, 2**63 - 1, 2**64 - 1), (-LIMIT, LIMIT), (-LIMIT, LIMIT)),
]


def test_every_seed_and_place_has_a_generator_of_its_own() -> None:
    drawn = {window_rng(seed, place).bytes(16) for seed, *place in TRIPLES}
    assert len(drawn) == len(set(TRIPLES)) == len(TRIPLES)


def test_a_generator_is_another_one_for_each_index() -> None:
    indices = [(0,), (0, 0), (0, 0, 0), (0,) * 4, (0,) * 5, (1, 0), (0, 1), (-1, 0), (1, 0, 0, 0), (0,) * 127]
    assert len({window_rng(0, ctx).random() for ctx in indices}) == len(indices)
    assert window_rng(0, [np.int64(-1), 0]).random() == window_rng(0, (-1, 0)).random()  # type: ignore[list-item]


@pytest.mark.parametrize(
    "ctx", [(), None, 3, "ab", (1.0,), (True, 0), (2**55,), (-(2**55) - 1, 0), (0,) * 128, ((1, 2), 3)]
)
def test_a_ctx_that_is_no_index_is_told(ctx: Any) -> None:
    with pytest.raises(ValidationError, match=r"^ctx must be a tuple of 1 to 127 ints"):
        window_rng(1, ctx)
