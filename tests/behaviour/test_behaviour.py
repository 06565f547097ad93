"""What a tensor does, the same over every store."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import (
    DeviceMismatchError,
    DtypeMismatchError,
    InfiniteTensor,
    ShapeMismatchError,
    StoreError,
    TensorWindow,
    TileStore,
    ValidationError,
    sl,
)
from infinite_tensor.errors import RegionError
from tests.support.building import built, each_store
from tests.support.counting import Counted

store = each_store("memory", "zarr", "zarr behind a URL", "hdf5")


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


def test_every_kind_of_region_reads_the_same_pixels(store: TileStore) -> None:
    t = built(Counted(Ramp()), TensorWindow((4, 4), stride=2), shape=(None, 12), store=store)
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
    with pytest.raises(RegionError, match="dimension"):
        t[:, 2]


def test_an_empty_region_computes_nothing(store: TileStore) -> None:
    f = Counted(Ramp())
    t = built(f, (4, 4), shape=(None, 8), store=store)
    assert t[3:3].shape == (0, 8)
    assert t[5:2, 20:].shape == (0, 0)
    assert t[[]] == []
    assert f.calls == []


def test_batches_are_filled_across_all_regions_of_a_list(store: TileStore) -> None:
    f = Counted(Ramp())
    built(f, (4, 4), store=store, batch_size=4)[[sl[0:4, 0:12], sl[40:44, 0:12], sl[80:84, 0:12]]]
    assert f.batches == [4, 4, 1]


def test_iter_regions_yields_what_a_list_gives_and_runs_full_batches(store: TileStore) -> None:
    f = Counted(Ramp())
    t = built(f, TensorWindow((4, 4), stride=3), store=store, batch_size=4)
    regions = [sl[y : y + 5, x] for y in (40, 0, 9, 0) for x in (0, -7)]
    chunks = list(t.iter_regions(iter(regions)))
    assert set(f.batches[:-1]) == {4}
    assert len(chunks) > 1
    assert all(torch.equal(a, b) for a, b in zip(itertools.chain(*chunks), t[regions], strict=True))


def test_iter_regions_draws_no_further_than_it_must(store: TileStore) -> None:
    t = built(lambda ctx: torch.full((4, 4), float(ctx[0])), (4, 4), shape=(None, 4), store=store)
    drawn = itertools.count()
    stream = t.iter_regions((next(drawn) * 4, 0) for _ in itertools.count())
    assert [float(next(stream)[0]) for _ in range(3)] == [0, 1, 2]
    assert next(drawn) == 3


def test_no_gradient_is_recorded(store: TileStore) -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    seen = []

    def f(_ctx: tuple[int, int]) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return weight

    t = built(f, (4, 4), store=store)
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
    t = built(f, (4, 4), store=store, name="brittle")
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
        (torch.zeros(4, 5), ShapeMismatchError, "return"),
        (torch.zeros(1, 4, 4), ShapeMismatchError, r"\(1, 4, 4\)"),
        (torch.zeros(4, 4).double(), DtypeMismatchError, "dtype="),
        (torch.zeros(4, 4, device="meta"), DeviceMismatchError, "meta.*cpu"),
    ],
)
def test_what_f_returns_is_checked(store: TileStore, returned: Any, error: type[Exception], said: str) -> None:
    results = [returned, torch.ones(4, 4)]
    t = built(lambda _ctx: results.pop(0), (4, 4), store=store, name="t")
    with pytest.raises(error, match=said):
        t[0:4, 0:4]
    assert t[0:4, 0:4].unique().tolist() == [1]


def test_a_cleared_tensor_starts_empty(store: TileStore) -> None:
    f = Counted(Ramp())
    t = built(f, (4, 4), store=store, name="t")
    t[0:4, 0:4]
    store.clear_tensor("t")
    assert store.tensor_ids() == []
    t[0:4, 0:4]
    assert len(f.calls) == 2
    assert store.tensor_ids() == ["t"]
    store.clear_tensor("never heard of")


def test_an_id_is_taken_only_by_an_equal_tensor(store: TileStore) -> None:
    def make(seed: int, **options: Any) -> InfiniteTensor:
        return built(Counted(Ramp()), (4, 4), store=store, name="t", version={"seed": seed, "sea": 0.5}, **options)

    make(1)
    make(1)
    with pytest.raises(ValidationError, match=r"(?s)version.seed: stored 1, given 2.*clear_tensor") as caught:
        make(2, dtype=torch.int32)
    assert "dtype: stored 'float32', given 'int32'" in str(caught.value)
    assert "sea" not in str(caught.value)


def test_open_gives_the_tensor_back_from_its_id(store: TileStore) -> None:
    f = Counted(Ramp())
    built(f, TensorWindow((4, 4), stride=2), store=store, name="t", blend=torch.maximum)[0:8, 0:8]
    again = store.open("t", f=f)
    assert torch.equal(again[0:8, 0:8], store.open("t")[0:8, 0:8])
    assert again.blend is torch.maximum
    with pytest.raises(StoreError, match="'u'"):
        store.open("u")


def test_a_closed_store_says_so_and_with_opens_it_again(store: TileStore) -> None:
    t = built(Counted(Ramp()), (4, 4), store=store, name="t")
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
    with built(Counted(Ramp()), (4, 4), store=store) as t:
        t[0:4, 0:4]
    assert t[0:4, 0:4].shape == (4, 4)


def test_an_arg_window_that_leaves_a_finite_dimension_is_refused_as_soon_as_it_is_known(store: TileStore) -> None:
    base = built(Counted(Ramp((8, 4))), (8, 4), shape=(8, None), store=store, name="base")

    def make(window: TensorWindow, shape: tuple[int | None, ...] = (8, None)) -> InfiniteTensor:
        return built(lambda _c, _a: torch.zeros(8, 4), (8, 4), (base, window), shape=shape)

    with pytest.raises(ValidationError, match="dimension"):
        make(TensorWindow((10, 4), stride=(8, 4), offset=(-1, 0)))
    late = make(TensorWindow((8, 4)), (None, None))
    assert late[0:8, 0:4].shape == (8, 4)
    with pytest.raises(IndexError, match="dimension"):
        late[8:9, 0:4]


def test_protocols_name_the_unbounded_dimension(store: TileStore) -> None:
    t = built(Counted(Ramp((3, 4))), (3, 4), shape=(3, None), store=store)
    assert len(t) == 3
    for use in (iter, np.asarray, lambda t: 1.0 in t):
        with pytest.raises(TypeError, match="dimension"):
            use(t)
    u = built(Counted(Ramp((4, 3))), (4, 3), shape=(None, 3), store=store)
    with pytest.raises(TypeError, match=r"len\(\)"):
        len(u)


@pytest.mark.parametrize("shape", [(None, None), (4, 4)])
def test_a_tensor_is_true_and_is_not_read_for_it(shape: tuple[int | None, ...]) -> None:
    ramp = Counted(Ramp((4, 4)))
    t = built(ramp, (4, 4), shape=shape, edge="clip")
    assert (t or None) is t
    assert not ramp.calls


def test_a_finite_tensor_is_a_sequence_and_an_array(store: TileStore) -> None:
    t = built(Counted(Ramp((2, 4))), (2, 4), shape=(2, 4), store=store)
    assert [row.tolist() for row in t] == np.asarray(t).tolist() == t[...].tolist()
    assert 5.0 in t
    assert -1.0 not in t
    assert (t.ndim, t.shape) == (2, (2, 4))


@pytest.mark.parametrize("batch_size", [None, 3])
def test_f_is_told_where_its_window_or_the_region_of_its_first_arg_begins(
    store: TileStore, batch_size: int | None
) -> None:
    far = 2**50

    def place(size: int, start: tuple[int, ...]) -> torch.Tensor:
        rows, columns = (first + torch.arange(size) for first in start)
        return (rows - far)[:, None] * 100 + columns

    def f(_: Any, start: Any) -> Any:
        return place(4, start) if batch_size is None else [place(4, each) for each in start]

    def same(_: Any, regions: Any, start: Any) -> Any:
        each = [(regions, start)] if batch_size is None else zip(regions, start, strict=True)
        found = [place(6, start)[1:-1, 1:-1] - region[1:-1, 1:-1] for region, start in each]
        return found[0] if batch_size is None else found

    options: dict[str, Any] = {"dtype": "int64", "coordinates": True, "batch_size": batch_size}
    window = TensorWindow((4, 4), offset=(1, 3))
    t = InfiniteTensor((None, None), f, window, **options)
    assert torch.equal(t[far - 5 : far + 5, -5:5], place(10, (far - 5, -5)))
    around = TensorWindow((4, 4)).padded(1)
    u = InfiniteTensor((None, None), same, TensorWindow((4, 4)), [t], [around], tile_store=store, **options)
    assert not u[far - 5 : far + 5, -5:5].any()
    InfiniteTensor((None, None), f, window, tile_store=store, tensor_id="t", **options)
    again = store.open("t", f, batch_size=batch_size, coordinates=True)
    assert torch.equal(again[-5:5, 0:7], t[-5:5, 0:7])
