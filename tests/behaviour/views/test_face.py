"""A tensor as a Zarr array whose chunks are computed when they are read.

Its keys and bytes are compared with those of an array that zarr wrote.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import tensorstore
import torch
import xarray
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.buffer.cpu import Buffer
from zarr.storage import MemoryStore
from zarr.testing.store import StoreTests

from infinite_tensor import (
    HDF5TileStore,
    MemoryTileStore,
    TileAccessError,
    TileStore,
    ValidationError,
    ZarrTileStore,
    sl,
)
from infinite_tensor.views.face import FaceStore
from tests.behaviour.views.shown import Pixels, member, names_of, pixels_of, ramp, tensor_of, told_of
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore

T = TypeVar("T")

SOME = sl[-5:9, 2:10]


def everything(found: AsyncIterator[T], most: int | None = None) -> list[T]:
    async def collect() -> list[T]:
        collected: list[T] = []
        async for each in found:
            collected.append(each)
            if len(collected) == most:
                break
        return collected

    return asyncio.run(collect())


def written_by_zarr(face: zarr.Array[Any], values: Pixels) -> zarr.Array[Any]:
    """The same array, its values stored by zarr."""
    group = zarr.create_group(MemoryStore())
    first = [-origin for origin in told_of(face)["origin"]]
    names = names_of(face)
    with zarr.config.set({"array.write_empty_chunks": True}):
        arrays: list[Any] = [(face.basename, values, face.chunks, names, face.attrs.asdict())]
        for name, low, n in zip(names, first, face.shape, strict=True):
            arrays.append((name, np.arange(low, low + n), (n,), [name], {}))
        for name, data, chunks, dims, attributes in arrays:
            described: Any = {"compressors": None, "filters": None, "dimension_names": dims, "attributes": attributes}
            group.create_array(name, data=data, chunks=chunks, **described)
    return member(group, face.basename)


@pytest.fixture
def face() -> zarr.Array[Any]:
    return tensor_of().as_zarr(SOME)


@pytest.fixture
def oracle(face: zarr.Array[Any]) -> zarr.Array[Any]:
    return written_by_zarr(face, pixels_of(tensor_of(), SOME))


def test_it_is_an_array_of_the_pixels_of_its_region(face: zarr.Array[Any]) -> None:
    t = tensor_of()
    assert isinstance(face, zarr.Array)
    assert (face.shape, face.chunks, names_of(face)) == ((14, 8), (4, 4), ("y", "x"))
    assert face.dtype == np.dtype("<f4")
    assert np.array_equal(face[...], pixels_of(t, SOME))
    assert np.array_equal(face[3:7:2, -1], pixels_of(t, sl[-2:2:2, 9]))


def test_it_is_named_by_the_last_part_of_the_id() -> None:
    assert tensor_of().as_zarr(SOME).path == "height"
    assert tensor_of(tensor_id="world/height").as_zarr(SOME).path == "height"
    assert tensor_of(tensor_id=None).as_zarr(SOME).path == "values"
    assert tensor_of(tensor_id="world/y").as_zarr(SOME).path == "values"


def test_of_an_unbounded_tensor_it_shows_a_frame_around_pixel_0() -> None:
    t = tensor_of()
    face = t.as_zarr()
    assert face.shape == (2**31, 2**31)
    y, x = told_of(face)["origin"]
    assert np.array_equal(face[y - 3 : y + 4, x : x + 5], pixels_of(t, sl[-3:4, 0:5]))


@pytest.mark.parametrize(
    ("stop", "entries"),
    [(5, ["height", "x", "y"]), (2**25, ["height", "x", "y"]), (2**31, ["height", "x"])],
)
def test_a_label_is_its_pixel_or_an_error(stop: int, entries: list[str]) -> None:
    t = tensor_of()
    # xarray says only in its documentation that it takes stores of zarr.
    store: Any = t.as_zarr(sl[-3:stop, -3:5]).store
    group: Any = zarr.open_group(store, mode="r")
    assert sorted(group) == entries
    data = xarray.open_dataset(store, engine="zarr", chunks=None)["height"]
    if "y" in entries:
        assert group["y"].nchunks == -(-(stop + 3) // 2**20)
        assert data.sel(y=stop - 1, x=-1).item() == t[stop - 1, -1]
    else:
        assert data.isel(y_index=5).sel(x=-1).item() == t[2, -1]
        with pytest.raises(KeyError, match="'y'"):
            data.sel(y=5)


@pytest.mark.parametrize(
    ("dtype", "shown"),
    [(torch.uint8, "|u1"), (torch.bool, "|b1"), (torch.int16, "<i2"), (torch.float16, "<f2"), (torch.complex64, "<c8")],
)
def test_it_has_the_dtype_of_the_tensor(dtype: torch.dtype, shown: str) -> None:
    t = tensor_of(lambda _ctx: torch.eye(4).to(dtype), dtype=dtype)
    face = t.as_zarr(SOME)
    assert face.dtype == np.dtype(shown)
    assert np.array_equal(face[...], pixels_of(t, SOME))


def test_bfloat16_becomes_float32() -> None:
    t = tensor_of(lambda ctx: ramp(ctx).bfloat16(), dtype=torch.bfloat16)
    face = t.as_zarr(sl[-4:8, 0:8])
    assert face.dtype == np.float32
    for _ in ("computed", "from memory"):
        assert np.array_equal(face[...], np.asarray(t[-4:8, 0:8].float()))


STORES: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _path: MemoryTileStore(),
    "zarr": lambda path: ZarrTileStore(path / "s", tile_size=4),
    "hdf5": lambda path: HDF5TileStore(path / "s.h5", tile_size=4),
}


@pytest.mark.parametrize("region", [SOME, sl[-4:8, 0:8], sl[1:3, 2:3]])
@pytest.mark.parametrize("kind", STORES)
def test_it_is_the_same_from_any_store_computed_cached_and_stored(kind: str, region: object, tmp_path: Path) -> None:
    expected = pixels_of(tensor_of(), region)
    with STORES[kind](tmp_path) as store:
        t = tensor_of(tile_store=store)
        for _ in ("computed", "from memory"):
            assert np.array_equal(t.as_zarr(region)[...], expected)
        t.clear_cache()
        assert np.array_equal(t.as_zarr(region)[...], expected)


@pytest.mark.parametrize("region", [SOME, sl[-4:8, 0:8]])
def test_what_is_done_to_a_result_changes_nothing_else(region: object) -> None:
    t = tensor_of()
    face = t.as_zarr(region)
    for _ in ("computed", "from memory"):
        face[...]
        written: Any = face[0:4, 0:4]
        written[...] = -1
        assert np.array_equal(face[...], pixels_of(tensor_of(), region))
        buffer = asyncio.run(face.store.get("height/c/0/0", default_buffer_prototype()))
        assert buffer is not None
        with pytest.raises(ValueError, match="read-only"):
            buffer.as_numpy_array()[...] = 0


def test_a_tensor_that_was_moved_to_another_dtype_needs_a_new_face() -> None:
    t = tensor_of(lambda ctx: ramp(ctx).to(t.dtype), tile_store=MemoryTileStore())
    face = t.as_zarr(SOME)
    before = face[...]
    t.to(torch.float64)
    with pytest.raises(ValidationError, match=r"moved to torch\.float64 after"):
        face[...]
    assert np.array_equal(t.as_zarr(SOME)[...], before)


def test_a_tensor_that_was_opened_without_f_shows_what_is_stored() -> None:
    storage: dict[Any, Any] = {}
    with DictTileStore(storage, tile_size=4) as store:
        tensor_of(tile_store=store)[0:4, 0:4]
    stored = DictTileStore(storage).open("height").as_zarr(sl[0:8, 0:4])
    assert np.array_equal(stored[0:4], pixels_of(tensor_of(), sl[0:4, 0:4]))
    with pytest.raises(TileAccessError):
        stored[...]


@pytest.mark.parametrize("region", [sl[0, 2:4], sl[0:4:2, 2:4], sl[4:4, 0:3]])
def test_a_region_must_be_a_box_of_pixels(region: Any) -> None:
    with pytest.raises(ValidationError, match="box of pixels"):
        tensor_of().as_zarr(region)


def test_what_is_read_is_stored() -> None:
    f = Counted(ramp)
    t = tensor_of(f)
    face = t.as_zarr(SOME)
    assert f.calls == []
    face[...]
    assert t.is_filled(SOME)
    t[SOME]
    face[...]
    assert set(f.counts.values()) == {1}


class TestItsStore:
    """The keys and bytes of the face, and those that zarr wrote."""

    def test_it_lists_the_same_keys(self, face: zarr.Array[Any], oracle: zarr.Array[Any]) -> None:
        assert sorted(everything(face.store.list())) == sorted(everything(oracle.store.list()))

    def test_prefixes_and_folders(self, face: zarr.Array[Any], oracle: zarr.Array[Any]) -> None:
        keys = everything(oracle.store.list())
        prefixes = {key[:end] for key in keys for end in range(len(key) + 1)} | {"nothing", "height/c/9", "heigh/"}
        for prefix in prefixes:
            ours, theirs = (everything(each.store.list_prefix(prefix)) for each in (face, oracle))
            assert sorted(ours) == sorted(theirs), prefix
        folders = {prefix for prefix in prefixes if any(key.startswith(f"{prefix}/") for key in keys)} | {"", "no"}
        for folder in folders:
            for spelling in [folder, f"{folder}/"] if folder else [""]:
                ours, theirs = (everything(each.store.list_dir(spelling)) for each in (face, oracle))
                assert sorted(ours) == sorted(theirs), spelling
            empty = [asyncio.run(each.store.is_empty(folder)) for each in (face, oracle)]
            assert empty[0] == empty[1], folder

    def test_bytes_and_ranges_of_them(self, face: zarr.Array[Any], oracle: zarr.Array[Any]) -> None:
        ranges = [
            None,
            RangeByteRequest(3, 17),
            RangeByteRequest(0, 0),
            RangeByteRequest(60, 90),
            OffsetByteRequest(5),
            OffsetByteRequest(64),
            SuffixByteRequest(7),
            SuffixByteRequest(1),
        ]

        async def got(store: Store, key: str) -> list[bytes | None]:
            prototype = default_buffer_prototype()
            one_by_one = [await store.get(key, prototype, part) for part in ranges]
            at_once = await store.get_partial_values(prototype, [(key, part) for part in ranges])
            return [None if each is None else each.to_bytes() for each in [*one_by_one, *at_once]]

        chunks = [key for key in everything(oracle.store.list()) if "/c/" in key]
        for key in [*chunks, "height/c/4/0", "height/c/0", "height/c/00/0", "height/c/-1/0", "no", "height/c/0/0/"]:
            assert asyncio.run(got(face.store, key)) == asyncio.run(got(oracle.store, key)), key

    def test_sizes_are_known_without_computing(self, oracle: zarr.Array[Any]) -> None:
        f = Counted(ramp)
        face = tensor_of(f).as_zarr(SOME)
        for key in everything(oracle.store.list()):
            assert asyncio.run(face.store.exists(key))
            if "/c/" in key:
                assert asyncio.run(face.store.getsize(key)) == asyncio.run(oracle.store.getsize(key))
        assert asyncio.run(face.store.getsize_prefix("height/c")) == 8 * 64
        assert not asyncio.run(face.store.exists("height/c/4/0"))
        assert f.calls == []

    def test_what_describes_it_is_the_same(self, face: zarr.Array[Any], oracle: zarr.Array[Any]) -> None:
        ours, theirs = ({**each.metadata.to_dict(), "storage_transformers": ()} for each in (face, oracle))
        assert ours == theirs

    def test_what_is_far_into_an_unbounded_tensor_is_listed_at_once(self) -> None:
        store, deep = tensor_of().as_zarr().store, 2**28
        assert everything(store.list_prefix(f"height/c/{deep}/{deep}"), 2) == [f"height/c/{deep}/{deep}"]
        assert everything(store.list_prefix(f"height/c/{deep}"), 2) == [f"height/c/{deep}/0", f"height/c/{deep}/1"]
        assert not asyncio.run(store.is_empty(f"height/c/{deep}"))

    def test_it_cannot_be_written(self, face: zarr.Array[Any]) -> None:
        with pytest.raises(ValueError, match="read-only"):
            face[0, 0] = 1
        with pytest.raises(ValueError, match="read-only"):
            asyncio.run(face.store.delete("zarr.json"))
        with pytest.raises(ValueError, match="read_only=True"):
            FaceStore({}, read_only=False)

    def test_zarr_opens_it_in_no_mode_that_writes(self, face: zarr.Array[Any]) -> None:
        for mode in ("w", "w-", "r+"):
            with pytest.raises((ValueError, FileExistsError)):
                member(zarr.open_group(face.store, mode=mode), face.path)[0] = 1


def _run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: Any, *args: Any, **options: Any) -> None:
        asyncio.run(test(self, *args, **options))  # type: ignore[arg-type]

    return run


NOT_FOR_READERS = re.compile(
    "test_("
    # They ask for a store that is writable.
    "store_read_only|set.*|delete.*|clear"
    # They write by the methods of the store what they then look at.
    "|serializable_store|exists|getsize_prefix"
    # They begin with a store that has no keys, where a face has its metadata.
    "|is_empty|list.*"
    # They are for stores that answer without an event loop.
    "|get_sync.*|sync_async.*"
    # They are abstract.
    "|store_repr|store_supports_writes|store_supports_listing"
    ")"
)
"""Tests of zarr's suite that do not apply to a read-only store; those above take the place of what they look at."""


class TestZarrsSuiteForStores:
    """Those tests of zarr's own suite, as it is installed, that a read-only store can pass."""

    store_cls = FaceStore
    buffer_cls = Buffer

    async def set(self, store: FaceStore, key: str, value: Buffer) -> None:
        """Have a key from now on; the suite asks for a way past the methods of the store."""
        store._contents[0][key] = value.to_bytes()

    @pytest.fixture
    def store_kwargs(self) -> dict[str, Any]:
        store = tensor_of().as_zarr(SOME).store
        assert isinstance(store, FaceStore)
        return {"frames": store._frames}

    @pytest.fixture
    def open_kwargs(self, store_kwargs: dict[str, Any]) -> dict[str, Any]:
        return store_kwargs

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> FaceStore:
        return asyncio.run(self.store_cls.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> FaceStore:
        return self.store_cls(**store_kwargs)

    def test_store_open_read_only(self, open_kwargs: dict[str, Any]) -> None:
        test = StoreTests.test_store_open_read_only
        asyncio.run(test(self, open_kwargs, read_only=True))


for _name, _test in inspect.getmembers(StoreTests, callable):
    known = NOT_FOR_READERS.fullmatch(_name) or hasattr(TestZarrsSuiteForStores, _name)
    if _name.startswith("test_") and not known:
        setattr(TestZarrsSuiteForStores, _name, _run(_test) if inspect.iscoroutinefunction(_test) else _test)


# What other programs than zarr-python make of its keys and bytes.


async def contents(store: Store) -> dict[str, bytes]:
    """All keys of a store, and what they stand for."""
    found = {}
    async for key in store.list():
        buffer = await store.get(key, default_buffer_prototype())
        assert buffer is not None
        found[key] = buffer.to_bytes()
    return found


def test_tensorstore_reads_its_keys(tmp_path: Path) -> None:
    face = tensor_of().as_zarr(sl[-5:9, 2:10])
    for key, value in asyncio.run(contents(face.store)).items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(value)
    for name in ("height", "y", "x"):
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / name)}}
        array = tensorstore.open(spec, read=True).result()
        assert np.array_equal(array.read().result(), member(zarr.open_group(face.store, mode="r"), name)[...])
        assert array.domain.labels == (names_of(face) if name == "height" else (name,))
