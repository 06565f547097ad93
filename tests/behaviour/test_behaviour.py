"""What a tensor does, the same over every store."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import (
    DeviceMismatchError,
    DtypeMismatchError,
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    ShapeMismatchError,
    StoreError,
    TensorWindow,
    TileStore,
    UncoveredPixelsWarning,
    ValidationError,
    ZarrTileStore,
    sl,
)
from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import RegionError
from tests.support.counting import Counted
from tests.support.interpreters import run
from tests.support.stores import sample

STORES: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _path: MemoryTileStore(),
    "zarr": lambda path: ZarrTileStore(path / "s.zarr", tile_size=8),
    "zarr-memory": lambda path: ZarrTileStore(f"memory://{path}", tile_size=(5, 16)),
    "hdf5": lambda path: HDF5TileStore(path / "s.h5", tile_size=8),
}


@pytest.fixture(params=sample(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    return STORES[request.param](tmp_path)


@dataclass(frozen=True)
class Ramp:
    """A function of the window index, and of the middle of its args."""

    size: tuple[int, ...] = (4, 4)
    dtype: torch.dtype = torch.float32
    crop: int = 0

    def __call__(self, ctx: tuple[int, ...], *args: torch.Tensor) -> torch.Tensor:
        value = torch.arange(math.prod(self.size), dtype=torch.float32).reshape(self.size) + sum(
            n * 10.0**d for d, n in enumerate(ctx)
        )
        inside = slice(self.crop, -self.crop or None)
        return sum((arg[..., inside, inside].float() for arg in args), value).to(self.dtype)


def blurred(source: InfiniteTensor, f: Counted, store: TileStore, **options: Any) -> InfiniteTensor:
    """A tensor that reads `source` with a halo of one pixel."""
    halo = TensorWindow((6, 6), stride=4, offset=-1)
    return InfiniteTensor(
        (None, None), f, TensorWindow((4, 4)), args=(source,), args_windows=(halo,), tile_store=store, **options
    )


def test_only_windows_that_intersect_the_region_run_and_each_once(store: TileStore) -> None:
    f = Counted(Ramp())
    t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store)
    t[-1:5, 3:9]
    assert sorted(f.calls) == [(y, x) for y in (-1, 0, 1) for x in (0, 1, 2)]
    t[0:4, 0:12]
    assert len(f.calls) == 9


def test_every_kind_of_region_reads_the_same_pixels(store: TileStore) -> None:
    t = InfiniteTensor((None, 12), Counted(Ramp()), TensorWindow((4, 4), stride=2), tile_store=store)
    pixels = t[-10:20].numpy()
    at = 10
    for region, expected in [
        (sl[3, 5], pixels[at + 3, 5]),
        (sl[-4, -1], pixels[at - 4, -1]),
        (sl[0:6], pixels[at : at + 6]),
        (sl[7:-8:-3, ::-2], pixels[at + 7 : at - 8 : -3, ::-2]),
        (sl[2:9:4, ..., 3:5], pixels[at + 2 : at + 9 : 4, 3:5]),
    ]:
        assert np.array_equal(t[region].numpy(), expected)
    with pytest.raises(RegionError, match="dimension 0 is unbounded"):
        t[..., 2]


def test_an_empty_region_computes_nothing(store: TileStore) -> None:
    f = Counted(Ramp())
    t = InfiniteTensor((None, 8), f, TensorWindow((4, 4)), tile_store=store)
    assert t[3:3].shape == (0, 8)
    assert t[5:2, 20:].shape == (0, 0)
    assert t[[]] == []
    assert f.calls == []


def test_a_list_of_regions_shares_its_windows(store: TileStore) -> None:
    f = Counted(Ramp())
    t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store)
    one, other = t[[sl[0:4, 0:6], sl[2, 4:8]]]
    assert (one.shape, other.shape) == ((4, 6), (4,))
    assert sorted(f.calls) == [(0, 0), (0, 1)]


def test_batches_are_filled_across_all_regions_of_a_list(store: TileStore) -> None:
    sizes: list[int] = []

    def f(contexts: list[tuple[int, int]]) -> torch.Tensor:
        sizes.append(len(contexts))
        return torch.zeros(len(contexts), 4, 4)

    t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store, batch_size=4)
    t[[sl[0:4, 0:12], sl[40:44, 0:12], sl[80:84, 0:12]]]
    assert sizes == [4, 4, 1]


def test_batches_reach_through_a_chain(store: TileStore) -> None:
    sizes: list[int] = []

    def source(contexts: list[tuple[int, int]]) -> list[torch.Tensor]:
        sizes.append(len(contexts))
        return [torch.full((4, 4), float(y + x)) for y, x in contexts]

    base = InfiniteTensor((None, None), source, TensorWindow((4, 4)), tile_store=store, batch_size=(1, 8))
    blurred(base, Counted(Ramp(crop=1)), store)[0:8, 0:8]
    assert sizes == [8, 8]


def test_iter_regions_yields_what_a_list_gives_and_runs_full_batches(store: TileStore) -> None:
    sizes: list[int] = []

    def f(contexts: list[tuple[int, int]]) -> list[torch.Tensor]:
        sizes.append(len(contexts))
        return [torch.full((4, 4), 10.0 * y + x) for y, x in contexts]

    t = InfiniteTensor((None, None), f, TensorWindow((4, 4), stride=3), tile_store=store, batch_size=4)
    regions = [sl[y : y + 5, x] for y in (40, 0, 9, 0) for x in (0, -7)]
    chunks = list(t.iter_regions(iter(regions)))
    assert sizes[:-1] == [4] * (len(sizes) - 1)
    assert len(chunks) > 1
    whole = [region for chunk in chunks for region in chunk]
    assert all(torch.equal(a, b) for a, b in zip(whole, t[regions], strict=True))
    assert len(whole) == len(regions)


def test_iter_regions_draws_no_further_than_it_must(store: TileStore) -> None:
    t = InfiniteTensor((None, 4), lambda ctx: torch.full((4, 4), float(ctx[0])), TensorWindow((4, 4)), tile_store=store)
    drawn = itertools.count()
    stream = t.iter_regions((next(drawn) * 4, 0) for _ in itertools.count())
    assert [float(next(stream)[0]) for _ in range(3)] == [0, 1, 2]
    assert next(drawn) == 3


def test_a_diamond_runs_its_shared_source_once(store: TileStore) -> None:
    f = Counted(Ramp())
    base = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store)
    left = blurred(base, Counted(Ramp(crop=1)), store)
    right = blurred(base, Counted(Ramp(crop=1)), store)
    both = InfiniteTensor(
        (None, None),
        lambda _ctx, a, b: a - b,
        TensorWindow((4, 4)),
        args=(left, right),
        args_windows=(TensorWindow((4, 4)),) * 2,
        tile_store=store,
    )
    assert torch.equal(both[0:8, 0:8], torch.zeros(8, 8))
    assert len(f.calls) == len(set(f.calls)) == 16


def test_a_chain_across_stores_dtypes_and_resolutions(store: TileStore) -> None:
    coarse = InfiniteTensor(
        (None, None), lambda ctx: torch.tensor([[sum(ctx)]]), TensorWindow((1, 1)), dtype=torch.int64
    )
    fine = InfiniteTensor(
        (2, None, None),
        lambda _ctx, a: a.repeat_interleave(4, 0).repeat_interleave(4, 1)[None].expand(2, 4, 4).to(torch.float64),
        TensorWindow((2, 4, 4)),
        args=(coarse,),
        args_windows=(TensorWindow((1, 1), dimension_map=(1, 2)),),
        dtype=torch.float64,
        tile_store=store if not isinstance(store, ZarrTileStore) else MemoryTileStore(),
    )
    assert fine[1, -4:8:4, 8:9].flatten().tolist() == [1.0, 2.0, 3.0]


def test_a_chain_two_hundred_deep() -> None:
    store = MemoryTileStore()
    t = InfiniteTensor((None, None), Counted(Ramp()), TensorWindow((4, 4)), tile_store=store, tensor_id="source")
    first = t[0:4, 0:4]
    for _ in range(200):
        t = InfiniteTensor(
            (None, None),
            lambda _ctx, a: a + 1,
            TensorWindow((4, 4)),
            args=(t,),
            args_windows=(TensorWindow((4, 4)),),
            tile_store=store,
        )
    assert torch.equal(t[0:4, 0:4], first + 200)


def test_overlaps_blend_in_window_order_whatever_the_order_of_reads(store: TileStore) -> None:
    def make(where: TileStore) -> InfiniteTensor:
        return InfiniteTensor(
            (None, None),
            Counted(Ramp()),
            TensorWindow((4, 4), stride=2),
            blend=lambda a, b: a * 0.5 + b,
            blend_init=1.5,
            tile_store=where,
        )

    expected = make(MemoryTileStore())[-6:14, -6:14]
    t = make(store)
    for y, x in [(3, 3), (-6, 5), (9, -2), (0, 0)]:
        assert torch.equal(t[y : y + 5, x : x + 5], expected[y + 6 : y + 11, x + 6 : x + 11])
    assert torch.equal(t[-6:14, -6:14], expected)


def test_pixels_that_no_window_covers_are_blend_init(store: TileStore) -> None:
    f = Counted(Ramp((2, 2)))
    gaps = TensorWindow((2, 2), stride=5)
    with pytest.warns(UncoveredPixelsWarning):
        zero = InfiniteTensor((None, 7), f, gaps, tile_store=store)
    with pytest.warns(UncoveredPixelsWarning):
        seven = InfiniteTensor((None, 7), f, gaps, tile_store=store, blend_init=7)
    assert zero[2:5, 2:5].tolist() == [[0.0] * 3] * 3
    assert seven[2:5].unique().tolist() == [7]
    assert f.calls == []


def test_results_alias_nothing(store: TileStore) -> None:
    buffer = torch.zeros(4, 4)

    def f(ctx: tuple[int, int]) -> torch.Tensor:
        return buffer.fill_(ctx[1])

    t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store)
    assert t[0, 0:12:4].tolist() == [0, 1, 2]
    t[0:4, 0:4].fill_(99)
    buffer.fill_(77)
    assert t[0, 0:12:4].tolist() == [0, 1, 2]


def test_an_f_that_writes_into_its_arg_harms_nothing(store: TileStore) -> None:
    base = InfiniteTensor((None, None), lambda _ctx: torch.ones(4, 4), TensorWindow((4, 4)), tile_store=store)
    spoilt = blurred(base, Counted(Ramp()), store)
    node_of(spoilt).computation.f = lambda _ctx, a: a.mul_(5)[1:-1, 1:-1]
    assert spoilt[0:4, 0:4].unique().tolist() == [5]
    assert base[-4:8, -4:8].unique().tolist() == [1]


def test_no_gradient_is_recorded(store: TileStore) -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    seen = []

    def f(_ctx: tuple[int, int]) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return weight

    t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store)
    assert not t[0:4, 0:4].requires_grad
    assert seen == [False]
    assert torch.is_grad_enabled()


def test_what_f_raises_comes_through_with_tensor_and_window_and_earlier_windows_stay(store: TileStore) -> None:
    good = Counted(Ramp())

    def f(ctx: tuple[int, int]) -> torch.Tensor:
        if ctx == (0, 2) and failing:
            raise KeyError("no data")
        window: torch.Tensor = good(ctx)
        return window

    failing = True
    t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store, tensor_id="brittle")
    with pytest.raises(KeyError, match="no data") as caught:
        t[0:4, 0:16]
    assert any("(0, 2)" in note and "'brittle'" in note for note in caught.value.__notes__)
    assert good.calls == [(0, 0), (0, 1)]
    failing = False
    t[0:4, 0:16]
    assert good.calls == [(0, 0), (0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize(
    ("returned", "error", "said"),
    [
        (None, ValidationError, "got NoneType"),
        (np.zeros((4, 4)), ValidationError, "got ndarray"),
        (torch.zeros(4, 5), ShapeMismatchError, r"\(4, 5\).*\(4, 4\)"),
        (torch.zeros(1, 4, 4), ShapeMismatchError, r"\(1, 4, 4\)"),
        (torch.zeros(4, 4, dtype=torch.float64), DtypeMismatchError, "float64.*float32"),
        (torch.zeros(4, 4, device="meta"), DeviceMismatchError, "meta.*cpu"),
    ],
)
def test_what_f_returns_is_checked(store: TileStore, returned: Any, error: type[Exception], said: str) -> None:
    t = InfiniteTensor((None, None), lambda _ctx: returned, TensorWindow((4, 4)), tile_store=store, tensor_id="t")
    with pytest.raises(error, match=said):
        t[0:4, 0:4]
    node_of(t).computation.f = lambda _ctx: torch.ones(4, 4)
    assert t[0:4, 0:4].unique().tolist() == [1]


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ([torch.zeros(4, 4)], ShapeMismatchError),
        (torch.zeros(3, 4, 4), ShapeMismatchError),
        ([torch.zeros(4, 4), torch.zeros(4)], ShapeMismatchError),
        (None, ValidationError),
        ([torch.zeros(4, 4), None], ValidationError),
        (iter([torch.zeros(4, 4)] * 2), ValidationError),
    ],
)
def test_what_a_batched_f_returns_is_checked_and_nothing_of_it_is_stored(
    store: TileStore, returned: Any, error: type[Exception]
) -> None:
    t = InfiniteTensor((None, None), lambda _ctx: returned, TensorWindow((4, 4)), tile_store=store, batch_size=2)
    with pytest.raises(error):
        t[0:4, 0:8]
    node_of(t).computation.f = lambda contexts: torch.ones(len(contexts), 4, 4)
    assert t[0:4, 0:8].unique().tolist() == [1]


def test_clear_cache_forgets_only_what_can_be_had_again(store: TileStore) -> None:
    f = Counted(Ramp())
    t = InfiniteTensor((None, None), f, TensorWindow((4, 4), stride=3), tile_store=store, tensor_id="t")
    before = t[0:6, 0:6]
    calls = len(f.calls)
    t.clear_cache()
    assert torch.equal(t[0:6, 0:6], before)
    assert len(f.calls) == (2 * calls if isinstance(store, MemoryTileStore) else calls)


def test_a_cleared_tensor_starts_empty(store: TileStore) -> None:
    f = Counted(Ramp())
    t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store, tensor_id="t")
    t[0:4, 0:4]
    store.clear_tensor("t")
    assert store.tensor_ids() == []
    t[0:4, 0:4]
    assert len(f.calls) == 2
    assert store.tensor_ids() == ["t"]
    store.clear_tensor("never heard of")


def test_an_id_is_taken_only_by_an_equal_tensor(store: TileStore) -> None:
    def make(**options: Any) -> InfiniteTensor:
        return InfiniteTensor((None, None), Counted(Ramp()), TensorWindow((4, 4)), tile_store=store, **options)

    make(tensor_id="t", version={"seed": 1, "sea": 0.5})
    make(tensor_id="t", version={"seed": 1, "sea": 0.5})
    with pytest.raises(ValidationError, match=r"(?s)version.seed: stored 1, given 2.*clear_tensor") as caught:
        make(tensor_id="t", version={"seed": 2, "sea": 0.5}, dtype=torch.int32)
    assert "dtype: stored 'float32', given 'int32'" in str(caught.value)
    assert "sea" not in str(caught.value)


def test_one_store_serves_tensors_of_any_shape(store: TileStore) -> None:
    finite = InfiniteTensor((3, 5), Counted(Ramp((3, 5))), TensorWindow((3, 5)), tile_store=store, tensor_id="finite")
    mixed = InfiniteTensor((None, 2, None), Counted(Ramp((4, 2, 4))), TensorWindow((4, 2, 4)), tile_store=store)
    assert finite[...].shape == (3, 5)
    assert mixed[0:5, :, -3:1].shape == (5, 2, 4)
    assert len(store.tensor_ids()) == 2


def test_open_gives_the_tensor_back_from_its_id(store: TileStore) -> None:
    f = Counted(Ramp())
    InfiniteTensor(
        (None, None), f, TensorWindow((4, 4), stride=2), tile_store=store, tensor_id="t", blend=torch.maximum
    )[0:8, 0:8]
    again = store.open("t", f=f)
    assert torch.equal(again[0:8, 0:8], store.open("t")[0:8, 0:8])
    assert again.blend is torch.maximum
    with pytest.raises(StoreError, match=r"no tensor 'u'.*'t'"):
        store.open("u")


def test_a_closed_store_says_so_and_with_opens_it_again(store: TileStore) -> None:
    t = InfiniteTensor((None, None), Counted(Ramp()), TensorWindow((4, 4)), tile_store=store, tensor_id="t")
    expected = t[0:6, 0:6]
    store.close()
    store.close()
    for use in (lambda: t[0:4, 0:4], store.flush, store.tensor_ids, t.clear_cache, lambda: store.clear_tensor("t")):
        with pytest.raises(StoreError, match="closed"):
            use()
    with store:
        assert torch.equal(t[0:6, 0:6], expected)
    with pytest.raises(StoreError, match="closed"):
        t[0:4, 0:4]


def test_leaving_a_tensor_flushes_but_leaves_the_store_open(store: TileStore) -> None:
    with InfiniteTensor((None, None), Counted(Ramp()), TensorWindow((4, 4)), tile_store=store) as t:
        t[0:4, 0:4]
    assert t[0:4, 0:4].shape == (4, 4)


def test_large_coordinates_stay_exact(store: TileStore) -> None:
    f = Counted(Ramp(dtype=torch.int64))
    t = InfiniteTensor(
        (None, None), lambda ctx: f(ctx) * 0 + ctx[0] * 4, TensorWindow((4, 4)), dtype=torch.int64, tile_store=store
    )
    edge = 2**51
    assert t[edge - 1, 0] == edge - 4
    assert t[-edge, 0] == -edge
    for outside in (edge, -edge - 1):
        with pytest.raises(IndexError, match="limit"):
            t[outside, 0]


def test_an_arg_window_that_leaves_a_finite_dimension_is_refused_as_soon_as_it_is_known(store: TileStore) -> None:
    base = InfiniteTensor((8, None), Counted(Ramp((8, 4))), TensorWindow((8, 4)), tile_store=store, tensor_id="base")

    def make(window: TensorWindow, shape: tuple[int | None, ...] = (8, None)) -> InfiniteTensor:
        return InfiniteTensor(
            shape, lambda _c, _a: torch.zeros(8, 4), TensorWindow((8, 4)), args=(base,), args_windows=(window,)
        )

    with pytest.raises(ValidationError, match=r"\[-1, 9\) in dimension 0 of 'base'.*\[0, 8\)"):
        make(TensorWindow((10, 4), stride=(8, 4), offset=(-1, 0)))
    late = make(TensorWindow((8, 4)), (None, None))
    assert late[0:8, 0:4].shape == (8, 4)
    with pytest.raises(IndexError, match=r"\[8, 16\) in dimension 0 of 'base'"):
        late[8:9, 0:4]


def test_protocols_name_the_unbounded_dimension(store: TileStore) -> None:
    t = InfiniteTensor((3, None), Counted(Ramp((3, 4))), TensorWindow((3, 4)), tile_store=store)
    assert len(t) == 3
    for use in (iter, np.asarray, lambda t: 1.0 in t):
        with pytest.raises(TypeError, match="dimension 1 is unbounded"):
            use(t)
    u = InfiniteTensor((None, 3), Counted(Ramp((4, 3))), TensorWindow((4, 3)), tile_store=store)
    with pytest.raises(TypeError, match="dimension 0 is unbounded"):
        len(u)


@pytest.mark.parametrize("shape", [(None, None), (4, 4)])
def test_a_tensor_is_true_and_is_not_read_for_it(shape: tuple[int | None, ...]) -> None:
    ramp = Counted(Ramp((4, 4)))
    t = InfiniteTensor(shape, ramp, TensorWindow((4, 4)), edge="clip")
    assert (t or None) is t
    assert not ramp.calls


def test_a_finite_tensor_is_a_sequence_and_an_array(store: TileStore) -> None:
    t = InfiniteTensor((2, 4), Counted(Ramp((2, 4))), TensorWindow((2, 4)), tile_store=store)
    assert [row.tolist() for row in t] == np.asarray(t).tolist() == t[...].tolist()
    assert 5.0 in t
    assert -1.0 not in t
    assert (t.ndim, t.shape) == (2, (2, 4))


def test_another_process_finds_everything_again(tmp_path: Path) -> None:
    for name in ("zarr", "hdf5"):
        with STORES[name](tmp_path) as store:
            t = InfiniteTensor(
                (None, None), Counted(Ramp()), TensorWindow((4, 4), stride=3), tile_store=store, tensor_id="t"
            )
            expected = t[-5:9, 0:9]
        target = next(path for path in tmp_path.iterdir() if path.suffix in (".zarr", ".h5"))
        code = (
            "import json, sys, infinite_tensor\n"
            "with infinite_tensor.open_store(sys.argv[1], mode='r') as store:\n"
            "    print(json.dumps(store.open('t')[-5:9, 0:9].tolist()))"
        )
        read = run("-c", code, target)
        assert (read.returncode, read.stderr) == (0, "")
        assert json.loads(read.stdout) == expected.tolist()
        target.rename(tmp_path / f"done-{name}")
