"""One ``f`` with several outputs: it runs once for all, and each output is an ordinary tensor."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import zarr
from tensordict import TensorDict

from infinite_tensor import (
    DtypeMismatchError,
    FunctionChangedWarning,
    InfiniteTensor,
    MemoryTileStore,
    Output,
    ShapeMismatchError,
    TensorWindow,
    TileAccessError,
    TileStore,
    ValidationError,
    ZarrTileStore,
    sl,
)
from tests.behaviour.test_threads import together
from tests.support.building import built, each_store
from tests.support.counting import Counted

RGB = Output((3, None, None), torch.float32, TensorWindow((3, 6, 6), stride=(3, 4, 4), dimension_map=(None, 0, 1)))
MASK = Output((None, None), torch.bool, TensorWindow((4, 4)))
CODE = Output((None, None, 2), torch.int64, TensorWindow((1, 1, 2), dimension_map=(0, 1, None)), torch.maximum)
OUTPUTS = {"rgb": RGB, "biome": {"mask": MASK, "code": CODE}}


def painted(ctx: tuple[int, ...], *regions: torch.Tensor) -> dict[str, Any]:
    """An image with overlap, a mask and a code of one window."""
    base = 10.0 * ctx[0] + ctx[1] + (regions[0].sum() if regions else 0)
    picture = torch.arange(108.0).reshape(3, 6, 6) + base
    return {"rgb": picture, "biome": {"mask": picture[0, :4, :4] % 3 == 0, "code": torch.tensor([[ctx]])}}


Painter = partial(Counted, painted)


def paint(f: Callable[..., Any], store: TileStore, tensor_id: str | None = "p", **options: Any) -> list[InfiniteTensor]:
    world: Any = InfiniteTensor.from_multi(f, OUTPUTS, tile_store=store, tensor_id=tensor_id, **options)
    return [world["rgb"], world["biome"]["mask"], world["biome"]["code"]]


store = each_store(tile_size=16)


def test_f_may_return_a_tensordict() -> None:
    rgb = paint(lambda ctx: TensorDict(painted(ctx), []), MemoryTileStore())[0]
    assert torch.equal(rgb[:, 0:9, 0:9], paint(painted, MemoryTileStore())[0][:, 0:9, 0:9])


@pytest.mark.parametrize("form", ["list", "stacked", "lists"])
def test_a_batch_may_be_a_list_of_dicts_or_a_dict_of_batches(form: str) -> None:
    painter = Painter()

    def f(ctx: list[tuple[int, ...]]) -> Any:
        each = painter(ctx)
        if form == "list":
            return each
        pictures = [one["rgb"] for one in each]
        biome = {key: [one["biome"][key] for one in each] for key in ("mask", "code")}
        if form == "lists":
            return {"rgb": pictures, "biome": biome}
        stacked = {key: torch.stack(column) for key, column in biome.items()}
        return TensorDict({"rgb": torch.stack(pictures), "biome": stacked}, [len(ctx)])

    mask = paint(f, MemoryTileStore(), batch_size=4)[1]
    assert torch.equal(mask[0:12, 0:12], paint(Painter(), MemoryTileStore())[1][0:12, 0:12])
    assert painter.batches == [4, 4, 1]


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (lambda d: d["rgb"], ValidationError, "return"),
        (lambda d: {"rgb": d["rgb"]}, ValidationError, "missing"),
        (lambda d: d | {"more": 1}, ValidationError, "'more'"),
        (lambda d: d | {"rgb": d["rgb"][0]}, ShapeMismatchError, "'rgb'"),
        (lambda d: d | {"rgb": d["rgb"].double()}, DtypeMismatchError, r"torch.float64"),
        (lambda d: d | {"rgb": 3}, ValidationError, r"torch.Tensor"),
    ],
)
def test_what_f_returns_is_checked(wrong: Callable[[Any], Any], error: type[Exception], said: str) -> None:
    mask = paint(lambda ctx: wrong(Painter()(ctx)), MemoryTileStore())[1]
    with pytest.raises(error, match=said) as raised:
        mask[0:4, 0:4]
    (note,) = raised.value.__notes__
    assert note.startswith("while computing window (0, 0) of tensor 'p/rgb', 'p/biome/mask', 'p/biome/code'")
    assert f"by <lambda> defined in {__file__}:" in note


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({}, "Output"),
        ([RGB], "Output"),
        ({"a": 1}, "Output"),
        ({1: MASK}, "non-empty"),
        ({"a": Output((None,), "int8", TensorWindow((4, 4)))}, "output_window"),
        ({"a": Output((None, 0), "int8", TensorWindow((4, 4)))}, "contain"),
        ({"rgb": Output((3, None, None), "int8", TensorWindow((3, 4, 4))), "mask": MASK}, "dimension"),
        ({"a": {"b": MASK}, "a/b": MASK}, "without"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(outputs: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        InfiniteTensor.from_multi(Painter(), outputs, tensor_id="t")


def test_what_is_missing_of_one_output_only_is_computed_again_and_the_rest_dropped(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        f = Painter()
        rgb, mask, _ = paint(f, store)
        rgb[:, 0:16, 0:16]
        store.flush()
        before, written = f.counts, store._contents.written("p/rgb")
        mask.invalidate(sl[0:4, 0:4], dependants=False)
        assert mask[0:16, 0:16].dtype == torch.bool
        assert f.counts - before == Counter({(i, j): 1 for i in range(4) for j in range(4)})
        store.flush()
        assert store._contents.written("p/rgb") == written


def test_outputs_of_finer_resolution_are_left_out_where_no_read_reaches(store: TileStore) -> None:
    sizes = {"fine": 64, "coarse": 1}
    outputs = {name: Output((None,), torch.float32, TensorWindow((n,))) for name, n in sizes.items()}
    f = lambda _ctx: {name: torch.ones(n) for name, n in sizes.items()}  # noqa: E731
    world = InfiniteTensor.from_multi(f, outputs, tile_store=store, tensor_id="t")
    assert world["coarse"][2**51 - 4 : 2**51].tolist() == [1.0] * 4
    assert world["coarse"][-(2**51) : -(2**51) + 2].tolist() == [1.0] * 2
    store.flush()
    info = store.tensor_info("t/fine")
    assert info.tiles_complete + info.tiles_partial == 0


def test_each_output_is_an_array_of_its_own_that_plain_zarr_reads(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        rgb, mask, _ = paint(Painter(), store)
        mask.fill(sl[0:16, 0:16], progress=False)
        expected = mask[0:16, 0:16]
        assert store.tensor_ids() == ["p/biome/code", "p/biome/mask", "p/rgb"]
        array = zarr.open_array(str(tmp_path), path=store.tensor_info("p/biome/mask").location, mode="r")
        low, high = (extent // 2 for extent in array.shape)
        assert torch.equal(torch.as_tensor(array[low : low + 16, high : high + 16]), expected)
        assert rgb.to_json()["output"] == ["rgb"]


def test_an_output_that_is_opened_alone_shows_what_is_stored(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        expected = paint(Painter(), store)[1][0:16, 0:16]
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        mask = store.open("p/biome/mask")
        assert torch.equal(mask[0:16, 0:16], expected)
        with pytest.raises(TileAccessError, match="without"):
            mask[40:44, 0:4]
        with pytest.raises(ValidationError, match="from_multi"):
            store.open("p/biome/mask", Painter())


def test_an_id_that_is_another_output_s_is_refused(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        paint(Painter(), store)
        with pytest.raises(ValidationError, match=r"\['rgb'\]"):
            built(Painter(), RGB.window, shape=RGB.shape, store=store, name="p/rgb")


def test_a_new_output_may_be_added_to_what_is_stored(tmp_path: Path) -> None:
    window = TensorWindow((4,))
    one = {"one": Output((None,), torch.float32, window)}
    two = one | {"two": Output((None,), torch.float32, window)}
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        InfiniteTensor.from_multi(one_f, one, tile_store=store, tensor_id="t")["one"][0:16]
        with pytest.warns(FunctionChangedWarning):
            more = InfiniteTensor.from_multi(two_f, two, tile_store=store, tensor_id="t")
        assert more["two"][0:16].tolist() == [2.0 * (x // 4) for x in range(16)]
        assert more["one"][0:16].tolist() == [1.0 * (x // 4) for x in range(16)]


def one_f(ctx: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {"one": torch.full((4,), float(ctx[0]))}


def two_f(ctx: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {"one": torch.full((4,), float(ctx[0])), "two": torch.full((4,), 2.0 * ctx[0])}


def test_threads_that_read_different_outputs_compute_each_window_once(store: TileStore) -> None:
    f = Painter()
    regions = [sl[:, 0:40, 0:40], sl[0:40, 0:40], sl[0:10, 0:10]]
    parts = [*zip(paint(f, store), regions, strict=True)] * 2
    results = together(lambda number: parts[number][0][parts[number][1]], 6)
    assert set(f.counts.values()) == {1}
    assert all(torch.equal(results[n], results[n + 3]) for n in range(3))


def test_an_error_of_f_keeps_what_was_computed_before(store: TileStore) -> None:
    f, broken = Painter(), [True]

    def flaky(ctx: tuple[int, ...]) -> Any:
        if broken and ctx == (1, 1):
            raise OSError("out of reach")
        return f(ctx)

    rgb, mask, _ = paint(flaky, store)
    with pytest.raises(OSError, match="reach"):
        mask[0:8, 0:8]
    broken.clear()
    mask[0:8, 0:8]
    rgb[:, 2:8, 2:8]
    assert set(f.counts.values()) == {1}


def test_one_output_can_be_moved() -> None:
    exact = [torch.float32]
    f = lambda ctx: {"a": torch.full((4,), 1.0 * ctx[0], dtype=exact[0]), "b": torch.full((4,), ctx[0])}  # noqa: E731
    dtypes = {"a": torch.float32, "b": torch.int64}
    world: Any = InfiniteTensor.from_multi(
        f, {name: Output((None,), d, TensorWindow((4,))) for name, d in dtypes.items()}
    )
    assert world["a"][0:8].dtype == torch.float32
    world["a"].to(torch.float64)
    exact[0] = torch.float64
    assert world["a"][0:12].tolist() == [float(x // 4) for x in range(12)]
    assert world["a"][0:12].dtype == torch.float64
    assert world["b"][0:12].dtype == torch.int64


def test_what_several_outputs_hold_is_freed_with_them() -> None:
    store = MemoryTileStore()
    tensors = paint(Painter(), store)
    tensors[0][:, 0:16, 0:16]
    alive = weakref.ref(store)
    gc.disable()
    try:
        del store, tensors
        assert alive() is None
    finally:
        gc.enable()


def test_an_output_alone_keeps_the_others_in_their_store(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        mask = paint(Painter(), store)[1]
        mask[0:16, 0:16]
        assert store.open("p/biome/code")[0:4, 0:4].shape == (4, 4, 2)


def test_a_pickled_output_computes_the_others_too(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        rgb, mask, _ = paint(painted, store)
        again, beside = pickle.loads(pickle.dumps([mask, rgb]))  # noqa: S301
        with again.tile_store as other:
            assert torch.equal(again[0:16, 0:16], mask[0:16, 0:16])
            assert beside.tile_store is other
            assert other.open("p/rgb")[:, 6:12, 6:12].shape == (3, 6, 6)


def test_a_fill_of_one_output_stores_the_others(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16, cache_size_bytes=1) as store:
        f = Painter()
        rgb, mask, _ = paint(f, store)
        mask.fill(sl[0:64, 0:64], progress=False)
        calls = len(f.calls)
        assert calls == 256
        # What lies on the border of the region has other windows too.
        rgb.fill(sl[:, 16:48, 16:48], progress=False)
        assert len(f.calls) == calls
        assert set(f.counts.values()) == {1}


def test_wrong_windows_are_dropped_of_every_output(store: TileStore) -> None:
    f = Painter()
    rgb, mask, code = paint(f, store)
    expected = rgb[:, 0:32, 0:32]
    mask[0:32, 0:32]
    dropped = mask.invalidate(sl[0:4, 0:4])
    assert {one.tensor_id for one in dropped.tensors} == {"p/rgb", "p/biome/mask", "p/biome/code"}
    f.calls.clear()
    assert torch.equal(rgb[:, 0:32, 0:32], expected)
    assert (0, 0) in f.calls
    f.calls.clear()
    code[0, 0]
    assert not f.calls


def test_what_is_wrong_upstream_is_wrong_of_every_output(store: TileStore) -> None:
    f = Painter()
    base = built(lambda _ctx: torch.ones(4, 4), (4, 4), store=store, name="base")
    rgb, mask, _ = paint(f, store, args=[base], args_windows=[TensorWindow((4, 4))])
    rgb[:, 0:64, 0:64], mask[0:64, 0:64]
    dropped = base.invalidate(sl[0:4, 0:4])
    assert {one.tensor_id for one in dropped.tensors} == {"base", "p/rgb", "p/biome/mask", "p/biome/code"}


def test_outputs_that_are_only_stored_are_dropped_with_one_that_is_open(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        paint(Painter(), store)[1][0:16, 0:16]
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        dropped = store.open("p/biome/mask").invalidate()
        assert {one.tensor_id for one in dropped.tensors} == {"p/rgb", "p/biome/mask", "p/biome/code"}
        assert sum(one.tiles > 0 for one in dropped.tensors) == 3


def test_outputs_of_another_f_with_the_same_keys_are_no_concern(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        paint(Painter(), store, "one")
        mask = paint(Painter(), store, "two")[1]
        assert {one.tensor_id for one in mask.invalidate().tensors} == {"two/rgb", "two/biome/mask", "two/biome/code"}
