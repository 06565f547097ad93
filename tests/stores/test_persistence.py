"""What a persistent store keeps, and when."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import h5py
import pytest
import torch

from infinite_tensor import (
    FunctionChangedWarning,
    HDF5TileStore,
    InfiniteTensor,
    StoreError,
    TensorWindow,
    TileAccessError,
    ValidationError,
    ZarrTileStore,
    open_store,
)

# Inside: the moment when the thread of a writer has the last reference.
from infinite_tensor.tilestore.persistent import PersistentTileStore
from infinite_tensor.tilestore.storage import Storage
from tests.support.building import line, numbers, overlapping
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index
from tests.support.stores import sample

Make = Callable[..., PersistentTileStore]


@pytest.fixture(params=["zarr", "hdf5"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Opens one store again and again."""
    kind, name = (ZarrTileStore, "s.zarr") if request.param == "zarr" else (HDF5TileStore, "s.h5")
    return lambda **options: kind(tmp_path / name, **({"tile_size": 8} | options))


def test_cache_limits_of_one_tile_lose_nothing(make: Make) -> None:
    f = Counted()
    with make(cache_size_tiles=1) as store:
        t = overlapping(store, f)
        for y in range(-20, 20, 3):
            t[y : y + 3, -9:9]
        assert len(store._contents.tiles.entries) <= 1
        t[-20:20, -9:9]
    assert len(f.calls) == len(set(f.calls))


def test_windows_do_not_wait_longer_than_the_flush_interval(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=8, flush_interval=0.0)
    t = overlapping(store, Counted())
    t[0:2, 0:2]
    t[0:2, 3:5]
    store._contents.tiles._writer.drain()
    assert ZarrTileStore(tmp_path, mode="r").open("t")[0:2, 0:2].shape == (2, 2)


LEFT = """
import gc, sys, torch
from infinite_tensor import InfiniteTensor, TensorWindow, open_store
def made(target):
    store = open_store(target, tile_size=8)
    f = lambda ctx: torch.full((4, 4), float(sum(ctx)))
    t = InfiniteTensor((None, None), f, TensorWindow((4, 4), stride=3), tile_store=store, tensor_id="t")
    t[-9:9, 0:3]
    return t, store
opened, closed, collected, cyclic, dropped = [list(map(made, sys.argv[n::5])) for n in range(1, 6)]
for _, store in closed:
    store.close()
cycle = [cyclic]
cycle.append(cycle)
del collected, cyclic, cycle
gc.collect()
del dropped
"""
ENDS = ("opened", "closed", "collected", "cyclic", "dropped")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of stores that a process has left behind."""
    folder = tmp_path_factory.mktemp("left")
    targets = [folder / f"{end}.{kind}" for kind in ("zarr", "h5") for end in ENDS]
    done = subprocess.run([sys.executable, "-c", LEFT, *targets], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
    return folder


@pytest.mark.parametrize("kind", ["zarr", "h5"])
def test_what_a_process_leaves_behind_is_complete(left: Path, kind: str) -> None:
    for end in ENDS:
        with open_store(left / f"{end}.{kind}", mode="r") as store:
            assert store.open("t")[-9:9, 0:3].shape == (18, 3)


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_finalizer_may_use_a_store_that_is_freed_with_it(tmp_path: Path, mode: Any) -> None:
    with ZarrTileStore(tmp_path, tile_size=8) as store:
        overlapping(store, Counted())[0:2, 0:2]
    found = []

    class Owner:
        def __init__(self) -> None:
            self.store = ZarrTileStore(tmp_path, mode=mode)
            self.itself = self

        def __del__(self) -> None:
            found.append(self.store.tensor_ids())

    Owner()
    gc.collect()
    assert found == [["t"]]


def test_without_f_the_stored_part_is_readable_and_the_rest_is_named(make: Make) -> None:
    with make() as store:
        overlapping(store, Counted())[0:6, 0:6]
    with make() as store:
        t = store.open("t")
        assert t.f is None
        assert t[3:6, 0:6].shape == (3, 6)
        with pytest.raises(TileAccessError, match=r"'t' was opened without f.*\[99:103, -3:4\].*f=\.\.\."):
            t[100:102, 0:1]


def test_a_chain_reopens_from_the_id_of_its_end(make: Make) -> None:
    with make() as store:
        base = overlapping(store, Counted())
        top = InfiniteTensor(
            (None, None),
            lambda _ctx, a: a * 2,
            TensorWindow((4, 4)),
            args=(base,),
            args_windows=(TensorWindow((4, 4)),),
            tile_store=store,
            tensor_id="top",
        )
        expected = top[0:4, 0:4]
    with make() as store:
        again = store.open("top")
        assert torch.equal(again[0:4, 0:4], expected)
        assert again.args[0].tensor_id == "t"
        assert torch.equal(again.args[0][0:4, 0:4] * 2, expected)
        source = store.open("t", f=Counted())
        longer = store.open("top", f=lambda _ctx, a: a * 2, args=[source])
        assert longer[0:8, 0:4].shape == (8, 4)
        with pytest.raises(ValidationError, match=r"args\[0\].digest"):
            store.open("top", args=[again])


def test_a_changed_function_warns_once_and_keeps_its_pixels(make: Make) -> None:
    with make() as store:
        overlapping(store, lambda _ctx: torch.ones(4, 4))[0:4, 0:4]
        # Also on the store that was just filled.
        with pytest.warns(FunctionChangedWarning) as caught:
            overlapping(store, lambda _ctx: torch.zeros(4, 4))
        assert caught[0].filename == overlapping.__code__.co_filename
    with make() as store:
        with pytest.warns(FunctionChangedWarning, match="code.*clear_tensor"):
            t = overlapping(store, lambda _ctx: torch.zeros(4, 4))
        with warnings.catch_warnings(action="error"):
            assert t[0:8, 0:8].unique().tolist() != [0]
            overlapping(store, lambda _ctx: torch.ones(4, 4))


def test_another_definition_is_refused_with_each_field_that_differs_and_open_takes_the_stored_one(make: Make) -> None:
    with make() as store:
        overlapping(store, Counted(), version={"seed": 1, "name": "x"})[0:8, 0:8]
    given: dict[str, Any] = {"dtype": torch.float64, "blend": torch.maximum, "blend_init": 2, "tensor_id": "t"}
    version, window = {"seed": 2, "name": "x"}, TensorWindow((4, 4), offset=1)
    with make(tile_size=7) as store:
        with pytest.raises(ValidationError) as raised:
            InfiniteTensor((None, None), Counted(), window, tile_store=store, version=version, **given)
        assert store.open("t")[0:8, 0:8].shape == (8, 8)
    fields = {line.split(":")[0].strip(): line for line in str(raised.value).splitlines()[1:-1]}
    windows = {"output_window.stride", "output_window.offset"}
    assert fields.keys() == {"dtype", "blend", "blend_init", "version.seed", "tile_size", *windows}
    assert "stored 1, given 2" in fields["version.seed"]
    assert "stored [8, 8], given [7, 7]" in fields["tile_size"]
    assert "clear_tensor('t', dependants=True)" in str(raised.value)


def test_modes(make: Make) -> None:
    for mode in ("r", "r+"):
        with pytest.raises(StoreError, match="there is no"):
            make(mode=mode)
    with pytest.raises(ValidationError, match=r"mode must be one of r, r\+, a, w, w-, got 'x'"):
        make(mode="x")
    with make(mode="w-") as store:
        overlapping(store, Counted())[0:4, 0:4]
    with pytest.raises(StoreError, match="already"):
        make(mode="w-")
    with make(mode="r+") as store:
        assert store.tensor_ids() == ["t"]
    store = make(mode="w")
    assert store.tensor_ids() == []
    overlapping(store, Counted())
    store.close()
    with store:
        assert store.tensor_ids() == ["t"]


def test_import_is_light() -> None:
    code = "import sys, infinite_tensor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"zarr", "h5py", "xarray", "dask", "rasterio"} & set(done.stdout.split())


def test_a_tensor_opened_without_its_blend_goes_on_once_the_blend_is_there(make: Make) -> None:
    def halved(existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        return existing * 0.5 + incoming

    f = Counted()
    with make() as store:
        expected = overlapping(store, f, blend=halved)[0:8, 0:8]
        store.clear_tensor("t")
        overlapping(store, f, blend=halved)[0:8, 0:2]
    with make() as store:
        stored = store.open("t")
        with pytest.raises(ValidationError, match=r"halved.* is needed"):
            stored[0:2, 0:2]
        with pytest.raises(ValidationError, match="give blend="):
            store.open("t", f=f)
        assert torch.equal(store.open("t", f=f, blend=halved)[0:8, 0:8], expected)


class ClosedInAReadStore(DictTileStore):
    """Another thread closes it while a read looks up what is stored."""

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        found = super()._read_tiles(tensor_id, tile_indices)
        closing = threading.Thread(target=self.close)
        closing.start()
        closing.join()
        return found


def test_a_store_that_is_closed_in_the_middle_of_a_read_does_not_seem_to_have_lost_anything() -> None:
    storage: dict[Any, Any] = {}
    with DictTileStore(storage, tile_size=8) as store:
        overlapping(store, Counted())[0:16, 0:16]
    f = Counted()
    t = overlapping(ClosedInAReadStore(storage), f)
    with pytest.raises(StoreError, match="is closed; open it again"):
        t[0:16, 0:16]
    assert f.calls == []


# Tensors that nobody has any more.


@pytest.fixture(params=sample([ZarrTileStore, HDF5TileStore], ZarrTileStore))
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Opens a store, again and again."""
    return lambda **options: request.param(tmp_path / "store", tile_size=8, **options)


def named(store: PersistentTileStore, name: str, f: Counted) -> InfiniteTensor:
    return line(store, f, name, stride=2)


def test_what_is_pending_of_a_dropped_tensor_is_stored_whoever_else_is_used(reopen: Make) -> None:
    first = Counted(numbers)
    with reopen() as store:
        expected = named(store, "first", first)[2:30]
        calls = len(first.calls)
        for number in range(200):
            named(store, f"t{number}", Counted(numbers))[0:8]
    with reopen() as store:
        assert torch.equal(named(store, "first", first)[2:30], expected)
        assert len(first.calls) == calls


def test_logs_of_tiles_that_were_completed_are_deleted_though_nobody_has_the_tensor(reopen: Make) -> None:
    with reopen(cache_size_tiles=1) as store:
        t = named(store, "a", Counted(numbers))
        t[2:6]
        store.flush()
        t[0:64]
        del t
        for number in range(200):
            named(store, f"t{number}", Counted(numbers))
    with reopen() as store:
        assert store.gc().objects == 0


# A write to an HDF5 file that fails midway, and is tried again.


def test_what_is_stored_at_the_second_attempt_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1.0, 2.0]

    def tensor(store: HDF5TileStore) -> InfiniteTensor:
        def f(_ctx: object) -> torch.Tensor:
            return torch.full((8,), values[0])

        return InfiniteTensor((None,), f, TensorWindow((8,)), tile_store=store, tensor_id="t", version=1)

    link, failed = h5py.h5o.link, list[bytes]()

    def fail_once(data: Any, group: Any, name: bytes, **options: Any) -> None:
        link(data, group, name, **options)
        if name[:1].isdigit() and not failed:
            failed.append(name)
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(h5py.h5o, "link", fail_once)
    with HDF5TileStore(tmp_path / "store.h5", tile_size=8) as store:
        t = tensor(store)
        # The end of the fill is the second attempt, where the first one was made in the background before it.
        with suppress(StoreError):
            t.fill((slice(0, 32),), progress=False)
        store.flush()
        assert failed
    with HDF5TileStore(tmp_path / "store.h5") as store:
        assert store.tensor_info("t").tiles_complete == 4
        values.reverse()
        with pytest.warns(FunctionChangedWarning):
            t = tensor(store)
        t.invalidate()
        assert t[0:32].tolist() == [2.0] * 32
    with HDF5TileStore(tmp_path / "store.h5", mode="r") as store:
        assert store.open("t")[0:32].tolist() == [2.0] * 32


# Stores of other authors.


class Looked(DictTileStore):
    """Counts the looks at documents."""

    looks = 0

    def _read_documents(self, names: Sequence[str]) -> list[Any]:
        self.looks += len(names)
        return super()._read_documents(names)


def test_a_definition_is_read_once_for_an_open() -> None:
    storage: dict[Any, Any] = {}
    with DictTileStore(storage, tile_size=8) as store:
        overlapping(store, Counted())[0:16, 0:16]
    with Looked(storage) as looked:
        looked.open("t")[0:16, 0:16]
        assert looked.looks == 1


class Connected(DictTileStore):
    """Has a connection in a slot, known by the store itself, that is closed when the store is freed."""

    __slots__ = ("connection",)
    connections: ClassVar[weakref.WeakKeyDictionary[Connected, list[str]]] = weakref.WeakKeyDictionary()

    def __init__(self, storage: dict[Any, Any], **options: Any) -> None:
        self.connection = ["open"]
        self.connections[self] = self.connection
        weakref.finalize(self, self.connection.clear)
        super().__init__(storage, **options)

    def _write_partials(self, *given: Any) -> None:
        assert self.connections[self] is self.connection == ["open"]
        super()._write_partials(*given)


def test_a_dropped_store_of_methods_stores_the_rest_itself_and_is_freed() -> None:
    storage: dict[Any, Any] = {}
    f = Counted()
    store = Connected(storage, tile_size=8)
    overlapping(store, f)[0:2, 0:2]
    tiles, freed = store._contents.tiles, threading.Event()
    weakref.finalize(store, freed.set)
    gc.disable()
    try:
        del store
        assert freed.wait(60)
    finally:
        gc.enable()
    assert tiles.failure() is None
    assert overlapping(DictTileStore(storage, tile_size=8), f)[0:2, 0:2].shape == (2, 2)
    assert len(f.calls) == len(set(f.calls))


@pytest.mark.parametrize("name", ["_read_documents", "_create_document", "_write_partials"])
def test_a_method_that_is_replaced_on_a_store_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute_and_store() -> None:
        overlapping(store, Counted())[0:2, 0:2]
        store.flush()

    store = DictTileStore({}, tile_size=8)
    monkeypatch.setattr(store, name, Mock(side_effect=OSError("replaced")))
    with pytest.raises(StoreError, match="replaced"):
        compute_and_store()
    monkeypatch.undo()
    compute_and_store()
    store.close()


def test_the_thread_of_a_writer_frees_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It would wait for its own lock, because what is left of a freed store goes to the same writer.
    write, go, alive = Storage._store_tensor, threading.Event(), []

    def write_later(*given: Any) -> None:
        go.wait(60)
        gc.collect()
        alive.append(gone() is not None)
        write(*given)

    monkeypatch.setattr(Storage, "_store_tensor", write_later)
    store: Any = ZarrTileStore(tmp_path / "s", tile_size=8)
    named(store, "a", Counted(numbers))[0:16]
    # Only the garbage collector frees it.
    store.itself, gone, tiles = store, weakref.ref(store), store._contents.tiles
    del store
    go.set()
    tiles.flush()
    assert alive
    assert all(alive)
