"""What a notebook shows: it computes nothing, never fails, and nothing that users name can run in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    Reduction,
    StoreError,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    ZarrTileStore,
    from_array,
    sl,
)
from infinite_tensor.tilestore import TileStore
from infinite_tensor.views import showing
from tests.behaviour.views import shown as views
from tests.behaviour.views.shown import ramp
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.html import Page
from tests.support.reference import Index
from tests.support.stores import sample

EVIL = "<script>alert('1')</script>\"&amp; <img src=x onerror=y>"


def tensor_of(f: Callable[..., Any] = ramp, **options: Any) -> InfiniteTensor:
    """In memory, and without names of dimensions."""
    return views.tensor_of(f, **{"tile_store": None, "dims": None} | options)


def shown(value: Any) -> Page:
    return Page(value._repr_html_())


@pytest.fixture(params=sample(["memory", "zarr", "hdf5", "dict"]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TileStore]:
    made: dict[str, Callable[[], TileStore]] = {
        "memory": lambda: MemoryTileStore(tile_size=16),
        "zarr": lambda: ZarrTileStore(tmp_path / "s.zarr", tile_size=16),
        "hdf5": lambda: HDF5TileStore(tmp_path / "s.h5", tile_size=16),
        "dict": lambda: DictTileStore({}, tile_size=16),
    }
    with made[request.param]() as opened:
        yield opened


class Failing(DictTileStore):
    """A store that cannot be read."""

    def _stored_size(self, *_: Any) -> None:
        raise OSError(EVIL)


class TestTensor:
    """Its facts, its chain, what is stored of it."""

    def test_it_tells_what_it_is(self, store: TileStore) -> None:
        t = tensor_of(tile_store=store, dims=("y", "x"), blend="max")
        text = shown(t).text
        for fact in ("height", "y:\xa0∞,\xa0x:\xa0∞", "float32", "(4, 4)", "ramp", type(store).__name__, "maximum"):
            assert fact in text, fact

    @pytest.mark.parametrize("name", ["ramp", "unnamed"])
    def test_one_without_an_id_is_called_by_its_function(self, name: str) -> None:
        t = tensor_of(ramp if name == "ramp" else lambda _ctx: torch.ones(4, 4), tensor_id=None, dtype="float32")
        text = shown(t).text
        assert f"{name} {t.tensor_id.removeprefix('ramp-')[:8]}" in text
        assert t.tensor_id not in text

    def test_looking_leaves_no_trace(self) -> None:
        storage: dict[Any, Any] = {}
        with DictTileStore(storage, tile_size=16) as store:
            f = Counted(ramp)
            t = tensor_of(f, tile_store=store)
            t[0:16, 16:32]
            t[0:16, 0:16]
            store.flush()
            calls = list(f.calls)
            before, cached = dict(storage), [key[1] for key, _ in store._contents.tiles.entries.items()]
            shown(t)
            assert f.calls == calls
            assert storage == before
            assert [key[1] for key, _ in store._contents.tiles.entries.items()] == cached

    def test_a_cleared_tensor_is_not_created_again(self, tmp_path: Path) -> None:
        store = ZarrTileStore(tmp_path / "s.zarr", tile_size=16)
        t = tensor_of(tile_store=store)
        t[0:16, 0:16]
        store.clear_tensor("height")
        before = sorted(tmp_path.rglob("*"))
        text = shown(t).text
        assert "StoreError" in text
        assert "cleared" in text
        assert sorted(tmp_path.rglob("*")) == before
        store.close()

    def test_how_much_is_stored(self, store: TileStore) -> None:
        t = tensor_of(tile_store=store)
        t[0:32, 0:32]
        store.flush()
        text = shown(t).text
        counted = {
            "MemoryTileStore": "4 complete tiles, 4.0 KiB",
            "DictTileStore": "not counted: it would take too long",
        }
        assert counted.get(type(store).__name__, "4 complete tiles, ") in text

    def test_what_waits_in_memory_is_told(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "s.zarr", tile_size=16) as store:
            t = tensor_of(tile_store=store)
            t[0:4, 0:4]
            assert "0 complete tiles, 1 more in memory" in shown(t).text

    def test_more_tiles_than_are_counted(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "s.zarr", tile_size=4) as store:
            t = tensor_of(tile_store=store)
            t[0:128, 0:144]
            store.flush()
            assert "at least 1,000 complete tiles, at least " in shown(t).text

    def test_a_reduced_tensor(self, store: TileStore) -> None:
        t = tensor_of(lambda _: torch.rand(5, 4, 4), dtype="uint8", tile_store=store, reduce=Reduction("argmax", 5))
        t[0:16, 0:16]
        assert "argmax" in shown(t).text

    def test_a_blob_and_an_array_in_memory(self, tmp_path: Path) -> None:
        with TensorBlob.open(tmp_path / "b", "w", dtype=torch.float32, shape=(4,)) as blob:
            blob.write(torch.rand(6, 4))
        t = TensorBlob.open(tmp_path / "b", "r").as_tensor()
        for each in (t, from_array(torch.rand(4, 4))):
            assert "nothing: its source is read each time" in shown(each).text
        t.tile_store.close()

    def test_what_it_is_computed_from_is_told_by_ids(self) -> None:
        args = [tensor_of(), tensor_of(tensor_id=None)]
        t = tensor_of(lambda _, x, y: x + y, args=args, args_windows=[TensorWindow((4, 4))] * 2, tensor_id="sum")
        assert "height, ramp " + args[1].tensor_id.removeprefix("ramp-")[:8] in shown(t).text

    def test_functions_that_are_wrapped(self) -> None:
        def painted(_ctx: Index, scale: float) -> torch.Tensor:
            return torch.full((4, 4), scale)

        assert "painted" in shown(tensor_of(partial(painted, scale=2.0), version=1)).text
        assert "avg_pool" in shown(tensor_of().map(avg_pool, window=4)).text


def avg_pool(region: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(region[None, None], 1)[0, 0]


class TestOthers:
    """Groups, stores, and what they tell."""

    def test_a_group_lists_its_tensors(self, store: TileStore) -> None:
        f = Counted(ramp)
        a, b = (tensor_of(f, tile_store=store, tensor_id=name) for name in ("a", "b"))
        a[0:16, 0:16]
        before = list(f.calls)
        page = shown(TensorGroup({"height": a, "more": {"depth": b}}))
        assert f.calls == before
        for text in ("TensorGroup", "'height'", "('more', 'depth')", "float32"):
            assert text in page.text

    def test_a_large_group_is_cut(self) -> None:
        group = TensorGroup({f"t{number}": tensor_of(tensor_id=f"t{number}") for number in range(40)})
        assert "and 28 more" in shown(group).text

    def test_a_store_lists_what_it_holds(self, store: TileStore) -> None:
        f = Counted(ramp)
        tensor_of(f, tile_store=store, dims=("y", "x"))[0:4, 0:4]
        tensor_of(f, tile_store=store, tensor_id="other", dtype="float32")
        before = list(f.calls)
        page = shown(store)
        assert f.calls == before
        for text in (type(store).__name__, "height", "other", "y:\xa0∞,\xa0x:\xa0∞", "(∞,\xa0∞)", "float32"):
            assert text in page.text

    def test_a_store_with_many_tensors_lists_some(self, store: TileStore) -> None:
        for number in range(15):
            tensor_of(tile_store=store, tensor_id=f"t{number:02d}")
        text = shown(store).text
        assert "t11" in text
        assert "t12" not in text
        assert "and 3 more" in text

    def test_an_empty_store(self, store: TileStore) -> None:
        assert "The store has no tensors." in shown(store).text

    def test_a_plan_and_a_report_are_tables(self) -> None:
        t = tensor_of()
        assert "to compute" in shown(t.plan(sl[0:8, 0:8])).text
        assert "windows" in shown(t.fill(sl[0:8, 0:8], progress=False)).text

    def test_what_is_told_of_a_tensor(self, store: TileStore) -> None:
        t = tensor_of(tile_store=store, version={"seed": 1})
        t[0:16, 0:16]
        text = shown(store.tensor_info("height")).text
        for told in ("TensorInfo", "height", "complete tiles", '{"seed": 1}', "location", "[4, 4]"):
            assert told in text


class TestWhateverHappens:
    """A store that is closed, gone, damaged or slow is told of."""

    def test_a_closed_store(self, store: TileStore) -> None:
        t = tensor_of(tile_store=store)
        t[0:4, 0:4]
        store.close()
        assert shown(t).text.count("is closed; open it again with `with store:`") == 1
        assert shown(t).text.count("StoreError") == 1
        assert "The store is closed" in shown(store).text

    def test_a_store_that_has_vanished(self, tmp_path: Path) -> None:
        path = tmp_path / "s.zarr"
        store = ZarrTileStore(path, tile_size=16)
        t = tensor_of(tile_store=store)
        t[0:16, 0:16]
        store.flush()
        path.rename(tmp_path / "away")
        for value in (t, store):
            assert "vanished since it was opened" in shown(value).text
        assert not path.exists()
        store.close(discard=True)

    def test_a_definition_that_is_damaged(self, tmp_path: Path) -> None:
        path = tmp_path / "s.zarr"
        with ZarrTileStore(path, tile_size=16) as store:
            t = tensor_of(tile_store=store)
            tensor_of(tile_store=store, tensor_id="intact")
            (path / "t-height" / "zarr.json").write_text("{}")
            assert "is damaged" in shown(t).text
            text = shown(store).text
        assert "is damaged" in text
        assert "intact" in text

    def test_a_write_that_has_failed_is_still_told_of_at_the_next_flush(self) -> None:
        class Full(DictTileStore):
            def _write_tiles(self, *_: Any) -> None:
                raise OSError("no space")

        store = Full({}, tile_size=4)
        t = tensor_of(tile_store=store)
        t[0:4, 0:4]
        store._contents.tiles._writer.drain()
        shown(t)
        with pytest.raises(StoreError, match="no space"):
            store._contents.raise_failure()
        store.close(discard=True)

    def test_storage_that_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        released = threading.Event()

        class Hanging(DictTileStore):
            def _stored_size(self, *_: Any) -> None:
                released.wait()

        monkeypatch.setattr(showing, "LONGEST_SECONDS", 0.05)
        with Hanging({}, tile_size=16) as store:
            begun = time.monotonic()
            try:
                assert "The store has not answered within 0.05 s." in shown(tensor_of(tile_store=store)).text
            finally:
                released.set()
            assert time.monotonic() - begun < 10


class TestText:
    """What users name stays text."""

    def test_ids_dims_functions_and_versions_cannot_run(self, store: TileStore) -> None:
        def f(ctx: Index, *_: torch.Tensor) -> torch.Tensor:
            return ramp(ctx)

        f.__qualname__ = EVIL
        source = tensor_of(f, tile_store=store, tensor_id=EVIL, dims=("<b>", "x"), version=EVIL)
        t = tensor_of(f, tile_store=store, tensor_id=f"of {EVIL}", args=[source], args_windows=[TensorWindow((4, 4))])
        t[0:4, 0:4]
        group = TensorGroup({EVIL: source, "t": t})
        for value in (source, t, group, store, store.tensor_info(EVIL), t.plan(sl[0:4, 0:4])):
            page = shown(value)
            assert "<script>" in page.text

    def test_texts_of_errors_of_storage_cannot_run(self) -> None:
        with Failing({}, tile_size=16) as store:
            assert EVIL in shown(tensor_of(tile_store=store)).text

    def test_long_texts_are_cut(self) -> None:
        assert len(tensor_of(tensor_id="x" * 5000)._repr_html_()) < 10_000
