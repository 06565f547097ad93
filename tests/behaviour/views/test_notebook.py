"""What a notebook shows: it computes nothing, never fails, and nothing that users name can run in it."""

from __future__ import annotations

import shutil
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
    TensorGroup,
    TensorWindow,
    ZarrTileStore,
    sl,
)
from infinite_tensor.tilestore import TileStore
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

    def test_looking_asks_no_storage(self, tmp_path: Path) -> None:
        """A store that is closed, gone or damaged is shown like any other."""
        store = ZarrTileStore(tmp_path / "s.zarr", tile_size=16)
        f = Counted(ramp)
        t = tensor_of(f, tile_store=store)
        t[0:16, 0:16]
        store.close()
        shutil.rmtree(tmp_path / "s.zarr")
        calls = list(f.calls)
        assert "height" in shown(t).text
        assert "height" in shown(TensorGroup({"height": t})).text
        assert "s.zarr" in repr(store)
        assert f.calls == calls
        assert list(tmp_path.iterdir()) == []

    def test_a_reduced_tensor(self, store: TileStore) -> None:
        t = tensor_of(lambda _: torch.rand(5, 4, 4), dtype="uint8", tile_store=store, reduce=Reduction("argmax", 5))
        t[0:16, 0:16]
        assert "argmax" in shown(t).text

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
        for value in (source, t, group, store.tensor_info(EVIL), t.plan(sl[0:4, 0:4])):
            page = shown(value)
            assert "<script>" in page.text

    def test_long_texts_are_cut(self) -> None:
        assert len(tensor_of(tensor_id="x" * 5000)._repr_html_()) < 10_000
