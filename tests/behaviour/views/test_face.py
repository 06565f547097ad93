"""A tensor as a Zarr array whose chunks are computed when they are read.

Its keys and bytes are compared with those of an array that zarr wrote.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.buffer.cpu import Buffer as CpuBuffer
from zarr.storage import MemoryStore
from zarr.testing.store import StoreTests

from infinite_tensor import (
    InfiniteTensor,
    RegionError,
    TensorWindow,
    ValidationError,
    sl,
)
from infinite_tensor.views.face import FaceStore
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index

T = TypeVar("T")

WINDOW = TensorWindow((4, 4))
SOME = sl[-5:9, 2:10]
PIXELS = np.s_[:14, :8]


def ramp(ctx: Index) -> torch.Tensor:
    y, x = (torch.arange(4.0) + 4 * i for i in ctx)
    return 1000 * y[:, None] + x


def tensor_of(f: Callable[..., Any] = ramp, **options: Any) -> InfiniteTensor:
    options = {"tile_store": DictTileStore({}, tile_size=4), "dims": ("y", "x"), "tensor_id": "world/height"} | options
    return InfiniteTensor((None, None), f, WINDOW, **options)


def pixels_of(t: InfiniteTensor, region: object) -> np.ndarray[Any, np.dtype[Any]]:
    return np.asarray(t[region])


def everything(found: AsyncIterator[T]) -> list[T]:
    async def collect() -> list[T]:
        return [each async for each in found]

    return asyncio.run(collect())


def written_by_zarr(face: zarr.Array[Any], values: np.ndarray[Any, np.dtype[Any]]) -> zarr.Array[Any]:
    """The same array, its values stored by zarr."""
    group = zarr.create_group(MemoryStore())
    first = [-origin for origin in face.attrs["infinite_tensor"]["origin"]]
    names = face.metadata.dimension_names
    with zarr.config.set({"array.write_empty_chunks": True}):
        arrays = [(face.basename, values, face.chunks, names, face.attrs.asdict())]
        for name, low, n in zip(names, first, face.shape, strict=True):
            arrays.append((name, np.arange(low, low + n), (n,), [name], {}))
        for name, data, chunks, dims, attributes in arrays:
            array = group.create_array(
                name,
                shape=data.shape,
                chunks=chunks,
                dtype=data.dtype,
                compressors=None,
                filters=None,
                dimension_names=dims,
                attributes=attributes,
            )
            array[...] = data
    return group[face.basename]


@pytest.fixture
def face() -> zarr.Array[Any]:
    return tensor_of().as_zarr(SOME)


@pytest.fixture
def oracle(face: zarr.Array[Any]) -> zarr.Array[Any]:
    return written_by_zarr(face, pixels_of(tensor_of(), SOME))


def test_it_is_an_array_of_the_pixels_of_its_region(face: zarr.Array[Any]) -> None:
    t = tensor_of()
    assert isinstance(face, zarr.Array)
    assert (face.shape, face.chunks, face.dtype, face.metadata.dimension_names) == ((14, 8), (4, 4), "<f4", ("y", "x"))
    assert np.array_equal(face[...], pixels_of(t, SOME))
    assert np.array_equal(face[3:7:2, -1], pixels_of(t, sl[-2:2:2, 9]))


def test_it_tells_where_pixel_0_is(face: zarr.Array[Any]) -> None:
    told = face.attrs["infinite_tensor"]
    assert told["tensor_id"] == "world/height"
    assert told["origin"] == [5, -2]
    assert face[5, 3 - 2] == tensor_of()[0, 3]


def test_it_is_named_by_the_last_part_of_the_id() -> None:
    assert tensor_of().as_zarr(SOME).path == "height"
    assert tensor_of(tensor_id=None).as_zarr(SOME).path == "values"
    assert tensor_of(tensor_id="world/y").as_zarr(SOME).path == "values"


def test_of_an_unbounded_tensor_it_shows_a_frame_around_pixel_0() -> None:
    t = tensor_of()
    face = t.as_zarr()
    assert face.shape == (2**31, 2**31)
    y, x = face.attrs["infinite_tensor"]["origin"]
    assert np.array_equal(face[y - 3 : y + 4, x : x + 5], pixels_of(t, sl[-3:4, 0:5]))


def test_of_a_finite_tensor_it_shows_all() -> None:
    t = InfiniteTensor((6, 4), ramp, WINDOW, edge="clip", tile_store=DictTileStore({}, tile_size=4))
    assert np.array_equal(t.as_zarr()[...], np.asarray(t))


def test_coordinates_of_few_pixels_lie_beside_it() -> None:
    group = zarr.open_group(tensor_of().as_zarr(sl[-(2**22) : 2**22, -3:5]).store, mode="r")
    assert sorted(group) == ["height", "x"]
    assert np.array_equal(group["x"][...], np.arange(-3, 5))


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
    face = t.as_zarr(SOME)
    assert face.dtype == np.float32
    assert np.array_equal(face[...], np.asarray(t[SOME].float()))


@pytest.mark.parametrize("region", [sl[0, 2:4], sl[0:4:2, 2:4], sl[4:4, 0:3]])
def test_a_region_must_be_a_box_of_pixels(region: Any) -> None:
    with pytest.raises(ValidationError, match="box of pixels"):
        tensor_of().as_zarr(region)


def test_a_region_must_be_one_of_the_tensor() -> None:
    with pytest.raises(RegionError):
        tensor_of().as_zarr(sl[0:4])


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


def test_chunks_that_are_not_asked_for_are_not_computed(face: zarr.Array[Any]) -> None:
    f = Counted(ramp)
    tensor_of(f).as_zarr(sl[0:16, 0:16])[5:7, 0:8]
    assert sorted(f.calls) == [(1, 0), (1, 1)]


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

    def test_the_chunks_of_an_unbounded_tensor_are_listed_as_one_goes(self) -> None:
        async def some(found: AsyncIterator[str]) -> list[str]:
            return [key async for _, key in _zip(range(3000), found)]

        keys = asyncio.run(some(tensor_of().as_zarr().store.list_prefix("height/c/")))
        assert keys[:2] == ["height/c/0/0", "height/c/0/1"]
        names = asyncio.run(some(tensor_of().as_zarr().store.list_dir("height/c/77")))
        assert names[-1] == "2999"

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
                zarr.open_group(face.store, mode=mode)[face.path][0] = 1


async def _zip(numbers: range, found: AsyncIterator[T]) -> AsyncIterator[tuple[int, T]]:
    for number in numbers:
        yield number, await anext(found)


def _run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: Any, *args: Any, **options: Any) -> None:
        asyncio.run(test(self, *args, **options))  # type: ignore[arg-type]

    return run


class TestZarrsSuiteForStores:
    """Those tests of zarr's own suite that a read-only store can pass; others write through the store first."""

    store_cls = FaceStore
    buffer_cls = CpuBuffer

    async def set(self, store: FaceStore, key: str, value: Buffer) -> None:
        """Have a key from now on; the suite asks for a way past the methods of the store."""
        store._documents[key] = value.to_bytes()

    @pytest.fixture
    def store_kwargs(self) -> dict[str, Any]:
        return {"faces": tensor_of().as_zarr(SOME).store._faces}

    @pytest.fixture
    def open_kwargs(self, store_kwargs: dict[str, Any]) -> dict[str, Any]:
        return store_kwargs

    @pytest.fixture
    def store(self, open_kwargs: dict[str, Any]) -> FaceStore:
        return asyncio.run(self.store_cls.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> FaceStore:
        return self.store_cls(**store_kwargs)

    test_store_supports_partial_writes = StoreTests.test_store_supports_partial_writes
    test_store_type = StoreTests.test_store_type
    test_store_eq = StoreTests.test_store_eq
    test_store_context_manager = _run(StoreTests.test_store_context_manager)
    test_read_only_store_raises = _run(StoreTests.test_read_only_store_raises)
    test_with_read_only_store = _run(StoreTests.test_with_read_only_store)
    test_get = _run(StoreTests.test_get)
    test_get_not_open = _run(StoreTests.test_get_not_open)
    test_get_raises = _run(StoreTests.test_get_raises)
    test_get_many = _run(StoreTests.test_get_many)
    test_getsize = _run(StoreTests.test_getsize)
    test_getsize_raises = _run(StoreTests.test_getsize_raises)
    test_get_partial_values = _run(StoreTests.test_get_partial_values)
    test_get_bytes = _run(StoreTests.test_get_bytes)
    test_get_bytes_sync = StoreTests.test_get_bytes_sync
    test_get_json = _run(StoreTests.test_get_json)
    test_get_json_sync = StoreTests.test_get_json_sync
