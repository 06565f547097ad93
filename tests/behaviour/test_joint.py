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
from infinite_tensor.engine.chain import node_of
from infinite_tensor.filling.mask import Target
from infinite_tensor.filling.plan import demands
from infinite_tensor.filling.progress import Progress
from tests.behaviour.test_threads import together
from tests.support.building import built, each_store
from tests.support.counting import Counted
from tests.support.held import watched
from tests.support.together import fill_together, plan_together, read_together

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


def test_one_call_computes_a_window_of_every_output(store: TileStore) -> None:
    f = Painter()
    rgb, mask, code = paint(f, store)
    assert mask[4:12, 8:20].shape == (8, 12)
    assert f.counts == Counter({(i, j): 1 for i in (1, 2) for j in (2, 3, 4)})
    assert code[1:3, 2:5].tolist() == [[[i, j] for j in (2, 3, 4)] for i in (1, 2)]
    assert rgb[:, 6:12, 10:20].shape == (3, 6, 10)
    assert set(f.counts.values()) == {1}
    assert len(f.counts) == 6


def test_each_output_has_the_pixels_of_a_tensor_of_its_own(store: TileStore) -> None:
    rgb, mask, _ = paint(Painter(), store)
    picture = built(lambda ctx: Painter()(ctx[:2])["rgb"], RGB.window, shape=RGB.shape)
    alone = built(lambda ctx: Painter()(ctx)["biome"]["mask"], MASK.window, shape=MASK.shape, dtype=torch.bool)
    assert torch.equal(mask[-9:30, 5:40], alone[-9:30, 5:40])
    assert torch.equal(rgb[1:, -9:30, 5:40], picture[1:, -9:30, 5:40])


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


def test_several_outputs_read_together_run_full_batches_of_the_windows_of_all() -> None:
    f = Painter()
    _, mask, code = paint(f, MemoryTileStore(), batch_size=4)
    read_together((mask, sl[0:8, 0:8]), (code, sl[0:2, 2:4]))
    # Windows (0, 0) to (1, 1), and (0, 2) to (1, 3).
    assert f.batches == [4, 4]


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (lambda d: d["rgb"], ValidationError, "must return a dict with the keys 'rgb', .*got Tensor"),
        (lambda d: {"rgb": d["rgb"]}, ValidationError, r"\('biome', 'mask'\) is missing, \('biome', 'code'\) is"),
        (lambda d: d | {"more": 1}, ValidationError, "'more' is not an output"),
        (lambda d: d | {"rgb": d["rgb"][0]}, ShapeMismatchError, r"for 'rgb' shape \(6, 6\)"),
        (lambda d: d | {"rgb": d["rgb"].double()}, DtypeMismatchError, "for 'rgb' torch.float64"),
        (lambda d: d | {"rgb": 3}, ValidationError, "torch.Tensor for 'rgb', got int"),
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
        ({}, "at least one Output"),
        ([RGB], "must be a dict of Output"),
        ({"a": 1}, "'a' must be an Output, got 1"),
        ({1: MASK}, "must be non-empty str, got 1"),
        ({"a": Output((None,), "int8", TensorWindow((4, 4)))}, "output 'a': output_window has 2 dimensions"),
        ({"a": Output((None, 0), "int8", TensorWindow((4, 4)))}, "output 'a': shape must contain positive ints"),
        (
            {"rgb": Output((3, None, None), "int8", TensorWindow((3, 4, 4))), "mask": MASK},
            "'mask' has no dimension for entry",
        ),
        ({"a": {"b": MASK}, "a/b": MASK}, "use keys without slashes"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(outputs: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        InfiniteTensor.from_multi(Painter(), outputs, tensor_id="t")


def test_an_arg_window_follows_the_coordinates_that_f_is_given() -> None:
    arg = built(lambda _ctx: torch.ones(2, 2, 2), (2, 2, 2))
    with pytest.raises(
        ValidationError, match="dimension 2 follows window coordinate 2, but the number of coordinates is only 2"
    ):
        InfiniteTensor.from_multi(Painter(), OUTPUTS, [arg], [TensorWindow((2, 2, 2))])


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


def test_a_window_that_one_output_has_and_another_has_not_runs(store: TileStore) -> None:
    f = Counted(lambda ctx: {"short": torch.ones(4), "long": torch.ones(4) * ctx[0]})
    window = TensorWindow((4,))
    outputs = {"short": Output((8,), torch.float32, window), "long": Output((20,), torch.float32, window)}
    short, long = InfiniteTensor.from_multi(f, outputs, tile_store=store, tensor_id="t").values()
    assert long[:].tolist() == [float(x // 4) for x in range(20)]
    assert short[:].tolist() == [1.0] * 8
    assert f.counts == Counter({(i,): 1 for i in range(5)})
    store.flush()
    info = store.tensor_info("t/short")
    assert info.tiles_complete + info.tiles_partial == (1 if store._contents.outlives_process else info.tiles_complete)


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


def test_a_consumer_of_two_outputs_has_each_window_computed_once(store: TileStore) -> None:
    f = Painter()
    rgb, mask, _ = paint(f, store)
    through = TensorWindow((3, 5, 5), dimension_map=(None, 0, 1))
    both = built(lambda _ctx, a, b: a[0] * b, (5, 5), (rgb, through), mask, store=MemoryTileStore(cache_size_bytes=1))
    assert torch.equal(both[0:25, 0:25], rgb[0, 0:25, 0:25] * mask[0:25, 0:25])
    assert set(f.counts.values()) == {1}


def test_an_f_with_several_outputs_may_read_other_tensors(store: TileStore) -> None:
    f, source = Painter(), Counter[tuple[int, ...]]()
    base = built(lambda ctx: source.update([ctx]) or torch.full((4, 4), 1.0 * ctx[0]), (4, 4), store=store, name="base")
    halo = TensorWindow((6, 6), stride=4, offset=-1)
    rgb, mask, _ = paint(f, store, args=[base], args_windows=[halo])
    read_together((rgb, sl[0, 0:16, 0:16]), (mask, sl[0:20, 0:8]))
    assert set(f.counts.values()) == {1}
    assert set(source.values()) == {1}
    assert rgb.args == mask.args == (base,)


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
        with pytest.raises(TileAccessError, match="opened without f"):
            mask[40:44, 0:4]
        with pytest.raises(ValidationError, match=r"output \('biome', 'mask'\) .*from_multi"):
            store.open("p/biome/mask", Painter())


def test_made_again_they_find_what_is_stored(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        expected = paint(Painter(), store)[0][:, 0:16, 0:16]
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        f = Painter()
        rgb, mask, _ = paint(f, store)
        mask[0:16, 0:16]
        assert torch.equal(rgb[:, 0:16, 0:16], expected)
        assert not f.calls


def test_an_id_that_is_another_output_s_is_refused(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        paint(Painter(), store)
        with pytest.raises(ValidationError, match=r"output: stored \['rgb'\], given nothing"):
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


def test_several_threads_run_one_f() -> None:
    f = Painter()
    rgb, mask, _ = paint(f, MemoryTileStore(workers=3))
    assert torch.equal(rgb[:, 0:80, 0:80], paint(Painter(), MemoryTileStore())[0][:, 0:80, 0:80])
    mask[0:76, 0:76]
    assert set(f.counts.values()) == {1}


def test_an_error_of_f_keeps_what_was_computed_before(store: TileStore) -> None:
    f, broken = Painter(), [True]

    def flaky(ctx: tuple[int, ...]) -> Any:
        if broken and ctx == (1, 1):
            raise OSError("out of reach")
        return f(ctx)

    rgb, mask, _ = paint(flaky, store)
    with pytest.raises(OSError, match="out of reach"):
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
            assert node_of(again).computation == node_of(beside).computation
            assert other.open("p/rgb")[:, 6:12, 6:12].shape == (3, 6, 6)


def test_outputs_in_memory_are_pickled_with_the_chain() -> None:
    f_args = paint(painted, MemoryTileStore())
    total = InfiniteTensor(
        (None, None),
        added,
        TensorWindow((4, 4)),
        f_args[:2],
        [TensorWindow((3, 4, 4), dimension_map=(None, 0, 1)), TensorWindow((4, 4))],
    )
    again = pickle.loads(pickle.dumps(total))  # noqa: S301
    assert torch.equal(again[0:9, 0:9], total[0:9, 0:9])
    assert node_of(again.args[0]).computation is node_of(again.args[1]).computation


def added(_ctx: tuple[int, ...], picture: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return picture[0] + where


def test_a_plan_tells_what_a_fill_does_for_each_output(store: TileStore) -> None:
    f = Painter()
    rgb, mask, code = paint(f, store, batch_size=3)
    mask[0:4, 0:4]
    f.calls.clear()
    plan = mask.plan(sl[0:30, 0:30])
    report = mask.fill(sl[0:30, 0:30], progress=False)
    windows = {tensor.tensor_id: tensor.windows for tensor in report.tensors}
    assert {tensor.tensor_id: tensor.windows for tensor in plan.tensors} == windows
    assert sorted(windows.values()) == [0, 0, len(f.calls)]
    assert report.windows == len(f.calls)
    assert plan.calls == -(-len(f.calls) // 3)
    assert mask.is_filled(sl[0:30, 0:30])
    assert mask.plan(sl[0:30, 0:30]).windows == 0
    f.calls.clear()
    parts = (rgb, sl[:, 0:30, 0:40]), (code, sl[0:16, 0:16])
    seen: list[Progress] = []
    planned = plan_together(*parts)
    assert planned.windows == fill_together(*parts, progress=seen.append).windows == len(f.calls)
    assert seen[-1].done == seen[-1].total == len(f.calls)
    assert set(f.counts.values()) == {1}


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


@pytest.mark.parametrize("stored", [False, True])
def test_what_is_to_be_computed_is_told_once_for_all_outputs(tmp_path: Path, stored: bool) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        rgb, mask, _ = paint(Painter(), store)
        if stored:
            mask[0:4, 0:4]
            store.flush()
        targets = [Target(node_of(mask), (0, 0), (32, 32)), Target(node_of(rgb), (0, 0, 0), (3, 32, 32))]
        found, exact = demands(targets)
        # The image has windows that reach in from above and from the left.
        assert exact
        assert sum(demand.runs for demand in found) == 81 - stored


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


def test_a_tensor_opened_alone_and_with_its_f_are_one_in_a_plan(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path, tile_size=16) as store:
        f = Painter()
        _, mask, _ = paint(f, store)
        stored = store.open("p/biome/mask")
        (one,), (other,) = read_together((mask, sl[0:8, 0:8]), (stored, sl[0:8, 0:8]))
        assert torch.equal(one, other)
        assert set(f.counts.values()) == {1}


def test_a_long_read_of_one_output_lets_go_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_tensor.engine.assemble._BLOCK_BYTES", 256)
    f = Painter()
    store, held = watched(tile_size=4)
    paint(f, store)[1][0:400, 0:8]
    assert held.most_windows < 30
    assert set(f.counts.values()) == {1}
