"""Copies between the stores of this library: what is moved as it is, what is encoded anew, and what is refused."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from zarr.abc.buffer import Buffer
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.storage import MemoryStore, WrapperStore

from infinite_tensor import (
    DamagedDataWarning,
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    StoreError,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    open_store,
    sl,
)
from infinite_tensor.errors import RegionError
from infinite_tensor_stores.zarr.codec import ChunkCodec
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.reference import same_bits

LZ4 = BloscCodec(cname="lz4")
OVERLAPPING = TensorWindow((6, 6), stride=4)
APART = TensorWindow((6, 6))


def noise(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(6, 6, generator=torch.Generator().manual_seed(100 * ctx[0] + ctx[1] + 5000))


def made(store: Any, f: Any = None, window: TensorWindow = OVERLAPPING, **options: Any) -> InfiniteTensor:
    return InfiniteTensor((None, None), f or Counted(noise), window, tile_store=store, **{"tensor_id": "t", **options})


def chunks_of(store: ZarrTileStore) -> dict[str, bytes]:
    found = Path(str(store.target)) / store.tensor_info("t").location / "c"
    return {str(path.relative_to(found)): path.read_bytes() for path in found.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> ZarrTileStore:
    return ZarrTileStore(tmp_path / "s.zarr", tile_size=8)


@pytest.fixture
def copy(tmp_path: Path) -> ZarrTileStore:
    return ZarrTileStore(tmp_path / "c.zarr", tile_size=8)


@pytest.fixture
def expected(store: ZarrTileStore) -> torch.Tensor:
    """What the store holds of a tensor: four complete tiles, and windows of others."""
    pixels: torch.Tensor = made(store)[0:16, 0:16]
    return pixels


# Where to.


def test_a_copy_goes_to_a_path_a_url_or_a_store(store: ZarrTileStore, expected: torch.Tensor, tmp_path: Path) -> None:
    targets: list[Any] = [
        tmp_path / "a.zarr",
        str(tmp_path / "b.zarr"),
        f"file://{tmp_path}/c.zarr",
        f"memory://{tmp_path}/d.zarr",
        tmp_path / "e.h5",
        HDF5TileStore(tmp_path / "f.h5"),
        ZarrTileStore(MemoryStore()),
        DictTileStore({}),
    ]
    for target in targets:
        report = store.copy("t", target, progress=False)
        f = Counted(noise)
        copy = made(target, f)
        assert same_bits(copy[0:16, 0:16], expected)
        assert (report.tiles, f.calls) == (4, [])
        assert report.target == str(copy.tile_store)
        copy.tile_store.close()


def test_another_program_opens_the_copy(store: ZarrTileStore, tmp_path: Path) -> None:
    expected = made(store, dims=("y", "x"))[0:16, 0:16]
    store.copy("t", tmp_path / "copy.zarr", progress=False)
    info = ZarrTileStore(tmp_path / "copy.zarr", mode="r").tensor_info("t")
    array: Any = zarr.open_array(tmp_path / "copy.zarr" / info.location, mode="r")
    y, x = info.definition["origin"]
    assert np.array_equal(array[y : y + 16, x : x + 16], expected.numpy())
    assert array.metadata.dimension_names == ("y", "x")


# As it is, or encoded anew.


def test_between_zarr_stores_chunks_are_moved_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ZarrTileStore(tmp_path / "s.zarr", tile_size=8, compressors=LZ4)
    made(store)[0:16, 0:16]
    store.flush()
    stored = chunks_of(store)

    def refuse(_codec: ChunkCodec, _chunks: object) -> None:
        pytest.fail("a chunk was decoded or encoded")

    with monkeypatch.context() as patched:
        patched.setattr(ChunkCodec, "decode", refuse)
        patched.setattr(ChunkCodec, "encode", refuse)
        report = store.copy("t", tmp_path / "copy.zarr", progress=False)
    copy = ZarrTileStore(tmp_path / "copy.zarr")
    assert chunks_of(copy) == stored
    assert copy.tensor_definition("t")["codecs"] == store.tensor_definition("t")["codecs"]
    assert report.bytes >= sum(map(len, stored.values())) > 0


@pytest.mark.parametrize("compressors", [None, ZstdCodec(level=9, checksum=True), LZ4], ids=["none", "zstd", "lz4"])
def test_a_store_that_was_given_compressors_encodes_a_copy_anew(tmp_path: Path, compressors: Any) -> None:
    store, copy = (
        ZarrTileStore(tmp_path / "s.zarr", tile_size=8),
        ZarrTileStore(tmp_path / "c.zarr", compressors=compressors),
    )
    expected = made(store)[0:16, 0:16]
    store.copy("t", copy, progress=False)
    assert chunks_of(copy).keys() == chunks_of(store).keys()
    assert chunks_of(copy) != chunks_of(store)
    assert same_bits(copy.open("t")[0:16, 0:16], expected)
    fresh = ZarrTileStore(tmp_path / "fresh.zarr", compressors=compressors, tile_size=8)
    made(fresh)
    assert copy.tensor_definition("t")["codecs"] == fresh.tensor_definition("t")["codecs"]


class Torn(WrapperStore[MemoryStore]):
    """Storage that changes a byte of every chunk that is written to it."""

    async def set(self, key: str, value: Buffer) -> None:
        data = bytearray(value.to_bytes())
        if "/c/" in key:
            data[len(data) // 2] ^= 1
        await super().set(key, value.from_bytes(bytes(data)))


@pytest.mark.parametrize("compressors", ["auto", LZ4], ids=["as it is", "encoded anew"])
def test_damage_on_the_way_is_found_by_checksums_and_computed_again(
    store: ZarrTileStore, expected: torch.Tensor, compressors: Any
) -> None:
    copy = ZarrTileStore(Torn(MemoryStore()), compressors=compressors)
    store.copy("t", copy, progress=False)
    assert len(copy.verify("t")) == 4
    with pytest.warns(DamagedDataWarning):
        assert same_bits(made(copy)[0:16, 0:16], expected)


@pytest.mark.parametrize("compressors", ["auto", LZ4], ids=["as it is", "encoded anew"])
def test_a_damaged_tile_is_left_out(store: ZarrTileStore, expected: torch.Tensor, compressors: Any) -> None:
    store.flush()
    chunk = Path(str(store.target)) / store.tensor_info("t").location / "c" / min(chunks_of(store))
    chunk.write_bytes(b"damaged")
    copy = ZarrTileStore(MemoryStore(), compressors=compressors)
    with pytest.warns(DamagedDataWarning):
        (copied,) = store.copy("t", copy, progress=False).tensors
    assert (copied.tiles, copied.damaged) == (3, 1)
    assert same_bits(made(copy)[0:16, 0:16], expected)


class Full(WrapperStore[Any]):
    """There is room for everything but chunks."""

    async def set(self, key: str, value: Buffer) -> None:
        if "/c/" in key:
            raise OSError(errno.ENOSPC, "No space left on device")
        await super().set(key, value)


@pytest.mark.parametrize("compressors", ["auto", LZ4], ids=["as it is", "encoded anew"])
def test_a_copy_without_room_says_how_to_continue(tmp_path: Path, compressors: Any) -> None:
    store, kept = ZarrTileStore(tmp_path / "s.zarr", tile_size=8), MemoryStore()
    expected = made(store)[0:16, 0:16]
    with pytest.raises(StoreError, match=r"No space left .*copy again"):
        store.copy("t", ZarrTileStore(Full(kept), compressors=compressors), progress=False)
    copy = ZarrTileStore(kept, compressors=compressors)
    store.copy("t", copy, progress=False)
    f = Counted(noise)
    assert same_bits(made(copy, f)[0:16, 0:16], expected)
    assert f.calls == []


# What is copied.


def test_windows_of_incomplete_tiles_are_computed_again(
    store: ZarrTileStore, copy: ZarrTileStore, expected: torch.Tensor
) -> None:
    """What an open tensor of the target has in memory does not hide the copy."""
    there = made(copy)
    there[0:1, 0:1]
    (copied,) = store.copy("t", copy, progress=False).tensors
    assert (copied.tiles, copied.there) == (4, 0)
    calls = len(there.f.calls)  # type: ignore[union-attr]
    assert same_bits(there[0:16, 0:16], expected)
    assert len(there.f.calls) == calls  # type: ignore[union-attr]
    assert same_bits(there[0:20, 0:20], store.open("t", f=Counted(noise))[0:20, 0:20])


def test_a_region_copies_the_tiles_that_it_touches(store: ZarrTileStore, tmp_path: Path) -> None:
    for name, source in (("a.zarr", MemoryTileStore(tile_size=8)), ("c.zarr", store)):
        made(source)[0:40, 0:40]
        report = source.copy("t", tmp_path / name, region=sl[9:12, 3:20], progress=False)
        assert report.tiles == 3
    assert store.copy("t", tmp_path / "c.zarr", region=sl[5:5, 0:3], progress=False).tiles == 0


def chained(store: TileStore) -> InfiniteTensor:
    below = made(store, tensor_id="below")
    return made(
        store, lambda ctx, region: noise(ctx) + region, tensor_id="above", args=(below,), args_windows=(OVERLAPPING,)
    )


def test_upstream_copies_the_named_tensors_of_a_chain_and_tells_which_are_elsewhere(tmp_path: Path) -> None:
    store, other = ZarrTileStore(tmp_path / "s.zarr", tile_size=8), ZarrTileStore(tmp_path / "o.zarr", tile_size=8)
    far = made(other, tensor_id="far")
    top = made(
        store,
        lambda ctx, below, far: noise(ctx) + below + far,
        tensor_id="top",
        args=(chained(store), far),
        args_windows=(OVERLAPPING, OVERLAPPING),
    )
    top[0:12, 0:12]
    alone = store.copy("top", tmp_path / "alone.zarr", progress=False)
    assert [each.tensor_id for each in alone.tensors] == ["top"]
    report = store.copy("top", tmp_path / "c.zarr", upstream=True, progress=False)
    assert [each.tensor_id for each in report.tensors] == ["below", "above", "top"]
    assert report.absent == ("far",)
    assert "upstream tensors not in the store: 'far'" in str(report)


def test_another_tensor_of_the_id_of_an_upstream_one_is_not_copied(store: ZarrTileStore, tmp_path: Path) -> None:
    chained(store)[0:6, 0:6]
    with pytest.warns(UserWarning, match="are kept unchanged: 'above'"):
        store.clear_tensor("below")
    made(store, tensor_id="below", version=2)
    report = store.copy("above", tmp_path / "c.zarr", upstream=True, progress=False)
    assert ([each.tensor_id for each in report.tensors], report.absent) == (["above"], ("below",))


def test_one_conflict_in_a_chain_keeps_all_of_it_from_being_copied(store: ZarrTileStore, copy: ZarrTileStore) -> None:
    chained(store)[0:6, 0:6]
    made(copy, tensor_id="above", version=7)
    with pytest.raises(ValidationError, match="already contains a tensor 'above'"):
        store.copy("above", copy, upstream=True, progress=False)
    assert copy.tensor_ids() == ["above"]


def test_what_is_in_the_way_is_overwritten_when_that_is_said_and_nothing_else(
    store: ZarrTileStore, copy: ZarrTileStore
) -> None:
    expected = chained(store)[0:6, 0:6]
    store.copy("below", copy, progress=False)
    made(copy, tensor_id="above", version=7).pyramid(2)
    report = store.copy("above", copy, upstream=True, overwrite=True, progress=False)
    # Levels go with their tensor.
    assert copy.tensor_ids() == ["above", "below"]
    assert [(each.tensor_id, each.tiles > 0, each.there > 0) for each in report.tensors] == [
        ("below", False, True),
        ("above", True, False),
    ]
    assert same_bits(copy.open("above")[0:6, 0:6], expected)


def test_a_tensor_that_another_function_has_filled_is_another_one(store: ZarrTileStore, copy: ZarrTileStore) -> None:
    made(store)[0:6, 0:6]
    made(copy, lambda ctx: noise(ctx) + 1)[0:6, 0:6]
    with pytest.raises(ValidationError, match="code of f"):
        store.copy("t", copy, progress=False)


def test_another_tile_size_or_other_names_of_dimensions_are_listed(tmp_path: Path) -> None:
    store, copy = ZarrTileStore(tmp_path / "s.zarr", tile_size=8), ZarrTileStore(tmp_path / "c.zarr", tile_size=9)
    made(store, dims=("y", "x"))
    made(copy, dims=("a", "b"))
    with pytest.raises(ValidationError, match=r"(?s)tile_size: .*dims: "):
        store.copy("t", copy, progress=False)


# From memory.


def test_tiles_in_memory_are_copied_with_their_size_and_continue_there(tmp_path: Path) -> None:
    store, f = MemoryTileStore(tile_size=8), Counted(noise)
    expected = made(store, f)[0:16, 0:16]
    calls = len(f.calls)
    (copied,) = store.copy("t", tmp_path / "c.zarr", progress=False).tensors
    assert (copied.tiles, copied.there) == (4, 0)
    copy = made(ZarrTileStore(tmp_path / "c.zarr"), f)
    assert copy.tile_store.tensor_info("t").definition["tile_size"] == [8, 8]
    assert same_bits(copy[0:16, 0:16], expected)
    assert len(f.calls) == calls
    (again,) = store.copy("t", tmp_path / "c.zarr", progress=False).tensors
    assert (again.tiles, again.there) == (0, 4)


def test_tiles_that_leave_memory_while_they_are_copied_are_computed_in_the_copy(tmp_path: Path) -> None:
    store = MemoryTileStore(tile_size=6)
    expected = made(store, window=APART)[0:120, 0:120]
    (copied,) = store.copy("t", tmp_path / "c.zarr", progress=lambda _: store.clear_cache("t")).tensors
    # Those that had been moved by then.
    assert (copied.tiles, copied.there, copied.damaged) == (256, 0, 0)
    f = Counted(noise)
    assert same_bits(made(tmp_path / "c.zarr", f, APART)[0:120, 0:120], expected)
    assert len(f.calls) == 20**2 - 256


def test_a_store_that_stores_nothing_takes_no_copies() -> None:
    store = MemoryTileStore()
    made(store, window=APART)
    with pytest.raises(ValidationError, match="memory://name"):
        store.copy("t", MemoryTileStore(), progress=False)


# What is refused.


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_store_is_not_copied_into_itself(
    store: ZarrTileStore, expected: torch.Tensor, tmp_path: Path, overwrite: bool
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "s.zarr")
    for same in (store, tmp_path / "s.zarr", tmp_path / "link", ZarrTileStore(tmp_path / "s.zarr")):
        with pytest.raises(ValidationError, match="into itself"):
            store.copy("t", same, overwrite=overwrite, progress=False)
    assert same_bits(store.open("t")[0:16, 0:16], expected)


@pytest.mark.parametrize("name", ["s.zarr", "s.h5"])
def test_a_copy_of_all_files_of_a_store_is_another_store(tmp_path: Path, name: str) -> None:
    store = open_store(tmp_path / name, tile_size=8)
    t = made(store)
    t[0:16, 0:16]
    store.close()
    (shutil.copytree if (tmp_path / name).is_dir() else shutil.copy)(tmp_path / name, tmp_path / f"backup-{name}")
    with store:
        expected = t[16:32, 0:16]
        (copied,) = store.copy("t", tmp_path / f"backup-{name}", progress=False).tensors
    assert copied.tiles > 0
    assert copied.there > 0
    f = Counted(noise)
    assert same_bits(made(tmp_path / f"backup-{name}", f)[16:32, 0:16], expected)
    assert f.calls == []


def test_a_store_that_is_read_only_gives_copies_and_takes_none(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=8) as store:
        made(store)[0:16, 0:16]
    reading = ZarrTileStore(tmp_path / "s.zarr", mode="r")
    assert reading.copy("t", tmp_path / "c.zarr", progress=False).tiles > 0
    with pytest.raises(ValidationError, match="read-only"):
        ZarrTileStore(tmp_path / "c.zarr").copy("t", reading, progress=False)


def test_bad_arguments_are_told_before_anything_is_touched(store: ZarrTileStore, tmp_path: Path) -> None:
    made(store)
    target = tmp_path / "c.zarr"
    for tensor_id, options, kind, told in (
        ("x", {}, StoreError, "'x'"),
        ("", {}, ValidationError, "tensor_id"),
        ("t", {"region": sl[0:2]}, RegionError, "dimension 1"),
        ("t", {"upstream": 1}, ValidationError, "upstream"),
        ("t", {"progress": "no"}, ValidationError, "progress"),
    ):
        with pytest.raises(kind, match=told):
            store.copy(tensor_id, target, **options)
    assert not target.exists()
    for other in (5, None, MemoryStore(), Path):
        with pytest.raises(ValidationError, match="other_store"):
            store.copy("t", other)  # type: ignore[arg-type]


def test_a_closed_store_copies_nothing(tmp_path: Path) -> None:
    store, closed = (ZarrTileStore(tmp_path / name, tile_size=8) for name in ("s.zarr", "c.zarr"))
    made(store)
    closed.close()
    for source, target in ((store, closed), (closed, store)):
        with pytest.raises(StoreError, match="is closed"):
            source.copy("t", target, progress=False)


# What it tells.


def test_progress_may_use_the_stores_and_ends_with_the_report(
    store: ZarrTileStore, expected: torch.Tensor, tmp_path: Path
) -> None:
    assert expected.shape == (16, 16)
    told: list[tuple[Any, int]] = []
    report = store.copy("t", tmp_path / "c.zarr", progress=lambda each: told.append((each, len(store))))
    last, count = told[-1]
    assert (last.report, count) == (report, 1)
    assert last.done == last.total == report.tiles == 4
    title, headings, row, _ = str(report).splitlines()
    assert title.startswith("copied to ZarrTileStore(")
    assert headings.split() == ["tensor", "tiles", "moved"]
    assert row.split()[:2] == ["t", "4"]
    assert "<table>" in report._repr_html_()


def test_a_copy_takes_memory_for_a_few_tiles_only(tmp_path: Path) -> None:
    # 64 MiB of tiles, in batches of 32 MiB of pixels: what is allocated by Python and numpy is traced.
    import tracemalloc  # noqa: PLC0415  (slows down what comes after it)

    store = ZarrTileStore(tmp_path / "s.zarr", tile_size=512, cache_size_bytes=2**20, compressors=None)
    big = InfiniteTensor(
        (None, None),
        lambda ctx: torch.full((512, 512), float(ctx[0])),
        TensorWindow((512, 512)),
        tile_store=store,
        tensor_id="t",
    )
    big.fill(sl[0 : 8 * 512, 0 : 16 * 512], progress=False)
    store.flush()
    tracemalloc.start()
    try:
        assert store.copy("t", tmp_path / "c.zarr", progress=False).tiles == 128
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * 2**25 + 2**23


def test_an_interrupted_copy_continues(store: ZarrTileStore, expected: torch.Tensor, tmp_path: Path) -> None:
    assert expected.shape == (16, 16)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        store.copy("t", tmp_path / "c.zarr", progress=interrupt)
    assert "store.copy again" in caught.value.__notes__[0]
    assert store.copy("t", tmp_path / "c.zarr", progress=False).tensors[0].there > 0
