"""What a notebook shows: it computes nothing, never fails, and nothing that users name can run in it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
from infinite_tensor.views import notebook, thumbnail
from infinite_tensor.views.colours import ramp
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.html import Page
from tests.support.reference import Index

EVIL = "<script>alert('1')</script>\"&amp; <img src=x onerror=y>"


def ramp_of(ctx: Index) -> torch.Tensor:
    """1000 times the row, and the column."""
    y, x = (torch.arange(4.0) + 4 * i for i in ctx)
    return 1000 * y[:, None] + x


def tensor_of(
    f: Callable[..., Any] = ramp_of, shape: tuple[int | None, ...] = (None, None), **options: Any
) -> InfiniteTensor:
    options = {"tensor_id": "height"} | options
    return InfiniteTensor(shape, f, TensorWindow((4, 4)), **options)


def shown(value: Any) -> Page:
    return Page(value._repr_html_())


@pytest.fixture(params=["memory", "zarr", "hdf5", "dict"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TileStore]:
    made: dict[str, Callable[[], TileStore]] = {
        "memory": MemoryTileStore,
        "zarr": lambda: ZarrTileStore(tmp_path / "s.zarr", tile_size=16),
        "hdf5": lambda: HDF5TileStore(tmp_path / "s.h5", tile_size=16),
        "dict": lambda: DictTileStore({}, tile_size=16),
    }
    with made[request.param]() as opened:
        yield opened


class Failing(DictTileStore):
    """A store that cannot be read."""

    def __init__(self, reason: str) -> None:
        super().__init__({}, tile_size=16)
        self.reason = reason

    def _read_tiles(self, *_: Any) -> list[torch.Tensor | None]:
        raise OSError(self.reason)


class TestTensor:
    """Its facts, its chain, what is stored of it."""

    def test_it_tells_what_it_is(self, store: TileStore) -> None:
        t = tensor_of(tile_store=store, dims=("y", "x"), blend="max")
        text = shown(t).text
        for fact in ("height", "y:\xa0∞,\xa0x:\xa0∞", "float32", "(4, 4)", "ramp_of", type(store).__name__, "maximum"):
            assert fact in text, fact

    def test_one_without_an_id_is_unnamed(self) -> None:
        t = tensor_of(tensor_id=None, dtype="float32")
        text = shown(t).text
        assert f"unnamed {t.tensor_id[:8]}" in text
        assert t.tensor_id not in text

    def test_it_computes_nothing_and_shows_what_is_stored(self, store: TileStore) -> None:
        f = Counted(ramp_of)
        t = tensor_of(f, tile_store=store)
        assert "Nothing is stored around the origin. t.tile_store.extent(t.tensor_id) tells" in shown(t).text
        assert f.calls == []
        t[0:4, 0:8]
        before = list(f.calls)
        page = shown(t)
        assert f.calls == before
        assert "Nothing is stored" not in page.text
        assert "missing" in page.text
        assert "[-1:5, -1:9]" in page.text

    def test_its_pixels_are_those_of_the_tensor_and_what_is_missing_is_grey(self, store: TileStore) -> None:
        t = tensor_of(lambda ctx: torch.full((4, 4), float(ctx[1] > 0)), tile_store=store)
        t[0:4, 0:8]
        pixels = shown(t).pixels()
        assert pixels.shape == (6, 10, 4)
        low, high = ramp(np.array([0.0, 1.0]))
        assert (pixels[1:5, 1:5] == low).all()
        assert (pixels[1:5, 5:9] == high).all()
        around = np.ones((6, 10), bool)
        around[1:5, 1:9] = False
        assert (pixels[around][:, :3] == 128).all()

    def test_pixels_under_windows_that_are_not_all_there_are_missing(self, store: TileStore) -> None:
        t = InfiniteTensor(
            (None,), lambda ctx: torch.full((4,), float(ctx[0])), TensorWindow((4,), 2), tile_store=store, blend="mean"
        )
        t[0:6]
        page = shown(t)
        # Of the windows -1 to 2, which are known, the pixels -2:0 and 6:8 lack another one.
        assert "[-1:7]" in page.text
        colours = page.pixels()[0]
        assert (colours[[0, 7], :3] == 128).all()
        assert (colours[1:7] == ramp(np.array([0.0, 0.0, 0.5, 0.5, 1.0, 1.0]))).all()

    def test_looking_leaves_no_trace(self) -> None:
        storage: dict[Any, Any] = {}
        with DictTileStore(storage, tile_size=16) as store:
            t = tensor_of(tile_store=store)
            t[0:16, 16:32]
            t[0:16, 0:16]
            store.flush()
            before, cached = dict(storage), [key[1] for key, _ in store.contents.tiles.entries.items()]
            assert shown(t).images
            assert storage == before
            assert [key[1] for key, _ in store.contents.tiles.entries.items()] == cached

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
        counted = {"MemoryTileStore": "64 windows, 4.0 KiB", "DictTileStore": "not counted: it would take a long look"}
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

    def test_a_finite_tensor_is_shown_from_its_middle(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "s.zarr", tile_size=4) as store:
            t = tensor_of(shape=(40, 40), tile_store=store)
            t[...]
            page = shown(t)
        assert "[12:28, 12:28]" in page.text
        assert page.pixels().shape == (16, 16, 4)
        small = tensor_of(shape=(8, 12), tile_store=MemoryTileStore())
        small[...]
        assert "[0:8, 0:12]" in shown(small).text

    @pytest.mark.parametrize(
        ("shape", "dims", "told"),
        [
            ((3, 8, 12), ("c", "y", "x"), "[0:3, 0:8, 0:12]"),
            ((8, 12, 3), None, "[0:8, 0:12, 0:3]"),
            ((5, 8, 12), None, "[0, 0:8, 0:12]"),
            ((5, 8, 12), ("z", "y", "x"), "[2, 0:8, 0:12]"),
            ((2, 7, 8, 12), ("t", "band", "y", "x"), "[1, 0, 0:8, 0:12]"),
            ((9,), None, "[0:9]"),
        ],
    )
    def test_which_dimensions_are_shown(self, shape: Index, dims: Sequence[str] | None, told: str) -> None:
        t = from_array(torch.rand(shape), dims=dims)
        assert told in shown(t).text
        assert "all of it lies in memory" in shown(t).text

    def test_three_channels_are_colours(self) -> None:
        colours = torch.randint(0, 256, (3, 6, 9), dtype=torch.uint8)
        t = from_array(colours, dims=("c", "y", "x"))
        t[...]
        pixels = shown(t).pixels()
        assert np.array_equal(pixels[..., :3], colours.movedim(0, -1).numpy())

    @pytest.mark.parametrize(
        "dtype",
        ["bool", "uint8", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float64", "complex64"],
    )
    def test_every_dtype_has_a_picture(self, dtype: str) -> None:
        t = from_array(torch.arange(48).reshape(6, 8).to(getattr(torch, dtype)))
        t[...]
        page = shown(t)
        assert page.pixels().shape == (6, 8, 4)
        assert len(np.unique(page.pixels().reshape(-1, 4), axis=0)) > 1

    def test_values_that_are_not_finite(self) -> None:
        t = from_array(torch.tensor([[0.0, 1.0, float("nan"), float("inf"), float("-inf")]]))
        t[...]
        pixels = shown(t).pixels()[0]
        assert pixels[:, 3].tolist() == [255, 255, 0, 255, 255]
        assert (pixels[3] == pixels[1]).all()
        assert (pixels[4] == pixels[0]).all()

    def test_one_value_everywhere(self) -> None:
        t = from_array(torch.full((4, 4), 7))
        t[...]
        assert shown(t).pixels()[0, 0, 3] == 255

    def test_tiles_that_are_too_large_are_not_read(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "s.zarr", tile_size=5000) as store:
            t = InfiniteTensor(
                (None, None), lambda _: torch.ones(8, 8), TensorWindow((8, 8)), tile_store=store, tensor_id="t"
            )
            assert "No picture: a tile has 95.4 MiB." in shown(t).text

    def test_of_many_small_windows_in_memory_the_middle_is_shown(self) -> None:
        t = InfiniteTensor((None, None), lambda _: torch.rand(1, 1), TensorWindow((1, 1)), tensor_id="t")
        t[-70:70, -70:70]
        page = shown(t)
        rows, columns, _ = page.pixels().shape
        assert rows == columns
        assert 60 < rows <= 128

    def test_a_reduced_tensor(self, store: TileStore) -> None:
        t = InfiniteTensor(
            (None, None),
            lambda _: torch.rand(5, 4, 4),
            TensorWindow((4, 4)),
            dtype=torch.uint8,
            tile_store=store,
            tensor_id="labels",
            reduce=Reduction("argmax", 5),
        )
        t[0:16, 0:16]
        page = shown(t)
        assert "argmax" in page.text
        assert page.pixels().shape[2] == 4

    def test_a_blob(self, tmp_path: Path) -> None:
        with TensorBlob.open(tmp_path / "b", "w", dtype=torch.float32, shape=(4,)) as blob:
            blob.write(torch.rand(6, 4))
        t = TensorBlob.open(tmp_path / "b", "r").as_tensor()
        page = shown(t)
        assert page.pixels().shape == (6, 4, 4)
        t.tile_store.close()


class TestChain:
    """The tensors that one is computed from."""

    def chain(self, length: int, width: int = 1) -> InfiniteTensor:
        found = [tensor_of(tensor_id=f"t0-{number}") for number in range(width)]
        for step in range(1, length):
            found = [
                tensor_of(
                    lambda _, *regions: sum(regions),
                    args=found,
                    args_windows=[TensorWindow((4, 4))] * len(found),
                    tensor_id=f"t{step}",
                )
            ]
        return found[0]

    def test_what_is_upstream_stands_to_the_left(self) -> None:
        drawn = shown(self.chain(3)).drawn
        assert [name for name in drawn if name.startswith("t")] == ["t2", "t1", "t0-0"]
        found = re.findall(r'<text [^>]* x="(\d+)"[^>]*>(t[^<]*)<', self.chain(3)._repr_html_())
        places = {name: int(x) for x, name in found}
        assert places["t0-0"] < places["t1"] < places["t2"]

    def test_a_tensor_that_reads_none_has_no_drawing(self) -> None:
        assert "<svg" not in tensor_of()._repr_html_()

    def test_one_without_an_id_is_called_after_its_function(self) -> None:
        source = tensor_of(tensor_id=None)
        t = tensor_of(lambda _, region: region, args=[source], args_windows=[TensorWindow((4, 4))])
        assert "ramp_of" in shown(t).drawn

    def test_functions_that_are_wrapped(self) -> None:
        def painted(_ctx: Index, scale: float) -> torch.Tensor:
            return torch.full((4, 4), scale)

        assert "painted" in shown(tensor_of(partial(painted, scale=2.0), version=1)).text
        assert "avg_pool" in shown(tensor_of().map(avg_pool, window=4)).text

    def test_one_read_twice_is_drawn_once_and_to_the_left_of_both(self) -> None:
        a = tensor_of(tensor_id="a")
        window = [TensorWindow((4, 4))]
        b = tensor_of(lambda _, x: x, args=[a], args_windows=window, tensor_id="b")
        c = tensor_of(lambda _, x, y: x + y, args=[a, b], args_windows=window * 2, tensor_id="c")
        assert [name for name in shown(c).drawn if len(name) == 1] == ["c", "a", "b"]

    @pytest.mark.parametrize(("length", "width"), [(400, 1), (2, 200), (5, 30)])
    def test_a_long_chain_is_cut(self, length: int, width: int) -> None:
        page = shown(self.chain(length, width))
        assert len(page.drawn) < 50
        assert any(text.startswith("+") and text.endswith(" more") for text in page.drawn)


def avg_pool(region: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(region[None, None], 1)[0, 0]


class TestOthers:
    """Groups, stores, and what they tell."""

    def test_a_group_lists_its_tensors_and_shows_the_first(self, store: TileStore) -> None:
        f = Counted(ramp_of)
        a, b = (tensor_of(f, tile_store=store, tensor_id=name) for name in ("a", "b"))
        a[0:16, 0:16]
        before = list(f.calls)
        page = shown(TensorGroup({"height": a, "more": {"depth": b}}))
        assert f.calls == before
        for text in ("TensorGroup", "'height'", "('more', 'depth')", "float32"):
            assert text in page.text
        assert len(page.images) == 1
        assert "Nothing is stored around the origin." in page.text

    def test_a_large_group_is_cut(self) -> None:
        group = TensorGroup({f"t{number}": tensor_of(tensor_id=f"t{number}") for number in range(40)})
        assert "and 28 more" in shown(group).text

    def test_a_store_lists_what_it_holds(self, store: TileStore) -> None:
        f = Counted(ramp_of)
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
        assert "It holds no tensors." in shown(store).text

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
        assert "is closed" in shown(TensorGroup({"a": t})).text

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

    def test_a_tile_that_is_damaged(self, tmp_path: Path) -> None:
        path = tmp_path / "s.zarr"
        with ZarrTileStore(path, tile_size=16) as store:
            tensor_of(tile_store=store)[0:16, 0:32]
        damaged = next(path.glob("t-height/tiles-*/c/*/*"))
        damaged.write_bytes(b"not a chunk")
        with ZarrTileStore(path, mode="r") as store, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            page = shown(tensor_of(tile_store=store))
        assert "1 tile is damaged" in page.text
        assert page.images

    def test_warnings_that_are_errors(self, tmp_path: Path) -> None:
        path = tmp_path / "s.zarr"
        with ZarrTileStore(path, tile_size=16) as store:
            tensor_of(tile_store=store)[0:16, 0:16]
        next(path.glob("t-height/tiles-*/c/*/*")).write_bytes(b"not a chunk")
        with ZarrTileStore(path, mode="r") as store:
            assert "is damaged" in shown(tensor_of(tile_store=store)).text

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

    def test_storage_that_fails(self) -> None:
        store = Failing("no such luck")
        t = tensor_of(tile_store=store)
        assert "no such luck" in shown(t).text
        store.close()

    def test_a_write_that_has_failed_is_still_told_of_at_the_next_flush(self) -> None:
        class Full(DictTileStore):
            def _write_tiles(self, *_: Any) -> None:
                raise OSError("no space")

        store = Full({}, tile_size=4)
        t = tensor_of(tile_store=store)
        t[0:4, 0:4]
        store.contents.tiles._writer.drain()
        page = shown(t)
        assert page.images
        with pytest.raises(StoreError, match="no space"):
            store.contents.raise_failure()
        store.close(discard=True)

    def test_storage_that_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        released = threading.Event()

        class Hanging(DictTileStore):
            def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
                released.wait()
                return super()._read_tiles(tensor_id, tile_indices)

        monkeypatch.setattr(notebook, "LONGEST_SECONDS", 0.05)
        store = Hanging({}, tile_size=16)
        t = tensor_of(tile_store=store)
        begun = time.monotonic()
        try:
            assert "The store has not answered within 0.05 s." in shown(t).text
        finally:
            released.set()
        assert time.monotonic() - begun < 10
        store.close()

    def test_a_store_whose_text_fails(self) -> None:
        class Shy(MemoryTileStore):
            def __str__(self) -> str:
                raise RuntimeError("no")

        store = Shy()
        for value in (tensor_of(tile_store=store), store):
            assert "whose str is a RuntimeError" in shown(value).text


class TestText:
    """What users name stays text."""

    def test_ids_dims_functions_and_versions_cannot_run(self, store: TileStore) -> None:
        def f(ctx: Index, *_: torch.Tensor) -> torch.Tensor:
            return ramp_of(ctx)

        f.__qualname__ = EVIL
        source = tensor_of(f, tile_store=store, tensor_id=EVIL, dims=("<b>", "x"), version=EVIL)
        t = tensor_of(f, tile_store=store, tensor_id=f"of {EVIL}", args=[source], args_windows=[TensorWindow((4, 4))])
        t[0:4, 0:4]
        group = TensorGroup({EVIL: source, "t": t})
        for value in (source, t, group, store, store.tensor_info(EVIL), t.plan(sl[0:4, 0:4])):
            page = shown(value)
            assert "<script>" in page.text or "<script>" in "".join(page.drawn)

    def test_texts_of_errors_cannot_run(self) -> None:
        store = Failing(EVIL)
        assert EVIL in shown(tensor_of(tile_store=store)).text
        store.close()

    def test_long_texts_are_cut(self) -> None:
        assert len(tensor_of(tensor_id="x" * 5000)._repr_html_()) < 10_000


def test_it_reads_a_bounded_number_of_tiles_and_bytes() -> None:
    asked: list[Index] = []

    class Watched(DictTileStore):
        def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
            asked.extend(tile_indices)
            return super()._read_tiles(tensor_id, tile_indices)

    cases: list[tuple[tuple[int | None, ...], Any]] = [
        ((None, None), 512),
        ((None, None, None), 16),
        ((None,), 4),
        ((4, None, None), 300),
        ((3, None, None), (1, 16, 16)),
        ((2000, 2000), 8),
    ]
    for shape, tile in cases:
        asked.clear()
        size = (min(shape[0] or 4, 4), 4, 4)[: len(shape)]
        store = Watched({}, tile_size=tile)
        t = InfiniteTensor(shape, lambda _, size=size: torch.ones(size), TensorWindow(size), tile_store=store)
        shown(t)
        # Backends that cannot tell whether a tile is there without reading it read those that they lack twice.
        assert len(set(asked)) <= thumbnail.MOST_TILES
        assert len(asked) <= 2 * thumbnail.MOST_TILES
        assert len(set(asked)) * store.contents.layout(t._spec).tile_bytes <= 2**26
        store.close()


def test_it_needs_neither_matplotlib_nor_pillow() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = sys.modules['PIL'] = None\n"
        "from infinite_tensor import from_array; import torch\n"
        "t = from_array(torch.ones(4, 4)); t[...]\n"
        "assert 'data:image/png' in t._repr_html_()\n"
        "try:\n    t.show()\nexcept ImportError as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "t.show draws with matplotlib; pip install matplotlib"
