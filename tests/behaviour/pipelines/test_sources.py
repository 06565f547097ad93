"""`from_array`: what it reads, keeps, identifies and refuses."""

from __future__ import annotations

import io
import math
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.masked import masked_tensor

import infinite_tensor
from infinite_tensor import (
    GridDataset,
    InfiniteTensor,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
)
from tests.behaviour.pipelines.arrays import Located, Recorded, assert_reads, bits, numbers, sent
from tests.support.counting import Counted
from tests.support.interpreters import CONTEXT
from tests.support.stored import DTYPES

NAMES = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
NUMPYS = [name for name in NAMES if name != "bfloat16"]


def mapped(path: Path, values: np.ndarray[Any, Any]) -> Any:
    np.save(path, values)
    return np.load(path, mmap_mode="r")


# Values.


@pytest.mark.parametrize("name", NUMPYS)
def test_an_array_of_numpy_is_read_bit_by_bit(name: str) -> None:
    values = numbers((3, 40, 50), name)
    assert_reads(from_array(values, chunks=(2, 16, 30)), torch.from_numpy(values.copy()))


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_torch_is_read_bit_by_bit(name: str) -> None:
    dtype = getattr(torch, name)
    values = torch.from_numpy(numbers((24, 30), "bool" if name == "bool" else "uint8").copy())
    values = values if name == "bool" else values.repeat(1, dtype.itemsize).view(dtype)
    assert_reads(from_array(values, chunks=7), values)


LAYOUTS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "Fortran order": np.asfortranarray,
    "every other column": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "negative strides": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "one row repeated": lambda a: np.broadcast_to(a[:1], a.shape),
    "not aligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "a field of a record": lambda a: np.rec.fromarrays([a, a > 0], dtype=[("a", a.dtype), ("b", bool)]).a,
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "long long": lambda a: a.view(np.uint32).astype(np.longlong),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_does_not_matter_how_an_array_lies_in_memory(layout: str) -> None:
    values = LAYOUTS[layout](numbers((30, 40)))
    native = np.array(values, dtype=values.dtype.newbyteorder("="), order="C")
    t = from_array(values, chunks=16)
    assert_reads(t, torch.from_numpy(native))
    assert t.version == from_array(native).version


def test_a_tensor_that_requires_grad_gives_pixels_that_do_not() -> None:
    weights = torch.nn.Parameter(torch.rand(5, 6))
    t = from_array(weights * 2)
    assert_reads(t, weights.detach() * 2)
    assert not t[...].requires_grad
    assert torch.equal(sent(t)[...], t[...])


def test_a_subclass_of_tensor_is_read_as_its_values() -> None:
    values = torch.rand(5, 6)
    t = from_array(values.as_subclass(Located))
    assert_reads(t, values)
    assert type(t[...]) is torch.Tensor
    assert t.version == from_array(values).version
    assert type(sent(t)[...]) is torch.Tensor


def test_what_a_tensor_was_computed_from_is_not_kept() -> None:
    weights = torch.rand(5, 6, requires_grad=True)
    t, gone = from_array(weights * 2), weakref.ref(weights)
    del weights
    assert gone() is None
    assert t[...].shape == (5, 6)


def test_a_view_that_is_conjugate_or_negative_is_what_it_stands_for() -> None:
    values = torch.rand(5, 6, dtype=torch.complex64)
    assert_reads(from_array(values.conj()), values.conj().resolve_conj())
    assert_reads(from_array(values.conj().imag), values.conj().imag.clone())


def test_an_array_that_scales_what_it_reads_has_the_dtype_of_that() -> None:
    values = np.linspace(0, 1, 200).reshape(10, 20)
    array = Recorded(values)
    # As that of what lies in its file.
    array.dtype = np.dtype(np.int16)
    assert_reads(from_array(array), torch.from_numpy(values))


def test_a_masked_array_without_a_masked_element_is_read() -> None:
    values = numbers((4, 5), "int32")
    for mask in (False, np.zeros((4, 5), bool)):
        assert_reads(from_array(np.ma.array(values, mask=mask)), torch.from_numpy(values))


# What is read.


def test_only_the_blocks_that_a_region_meets_are_read() -> None:
    array = Recorded(numbers((1000, 1000)))
    t = from_array(array, chunks=(100, 50), name="a")
    array.regions.clear()
    t[150:250, 340:360]
    assert sorted((y.start, y.stop, x.start, x.stop) for y, x in array.regions) == [
        (100, 200, 300, 350),
        (100, 200, 350, 400),
        (200, 300, 300, 350),
        (200, 300, 350, 400),
    ]


def test_windows_that_overlap_read_every_block_once() -> None:
    array = Recorded(numbers((512, 2048), "uint8"))
    t = from_array(array, chunks=128, name="a")
    array.regions.clear()
    for y in range(0, 512 - 63, 32):
        for x in range(0, 2048 - 63, 32):
            t[y : y + 64, x : x + 64]
    assert array.elements == 512 * 2048


def test_it_keeps_what_was_read_last_within_a_limit() -> None:
    array = Recorded(numbers((64, 1024), "uint8"))
    t = from_array(array, chunks=64, name="a")
    array.regions.clear()
    assert t.tile_store.cache_size_bytes == 128 * 2**20  # type: ignore[attr-defined]
    t.tile_store.cache_size_bytes = 2 * 64 * 64  # type: ignore[attr-defined]
    for x in (0, 64, 0, 128, 64):
        t[:, x]
    assert [region[1].start for region in array.regions] == [0, 64, 128, 64]


def test_a_large_array_is_looked_at_in_64_places_of_4_kib() -> None:
    array = Recorded(np.broadcast_to(numbers((1, 1, 4000), "uint8"), (3, 9000, 4000)))
    t = from_array(array)
    array.regions.clear()
    assert t.version
    assert len(array.regions) == 64
    assert all(array.values[region].nbytes <= 4096 for region in array.regions)
    assert array.elements > 60 * 4000
    assert array.regions[0] == (slice(0, 1), slice(0, 1), slice(0, 4000))
    assert array.regions[-1] == (slice(2, 3), slice(8999, 9000), slice(0, 4000))
    rows = sorted(region[1].start for region in array.regions)
    assert max(np.diff(rows)) < 2 * 9000 / 63
    assert {region[0].start for region in array.regions} == {0, 1, 2}


# Blocks.


@pytest.mark.parametrize(
    ("shape", "dtype", "block"),
    [
        ((3, 4096, 6144), "uint8", (3, 512, 512)),
        ((4096, 6144, 3), "float32", (256, 256, 3)),
        ((4096, 6144), "float32", (512, 512)),
        ((256, 256, 256), "float32", (64, 64, 64)),
        ((3, 600, 700), "uint8", (3, 300, 350)),
        ((10,), "uint8", (10,)),
    ],
)
def test_blocks_of_an_array_without_chunks_are_about_as_long_in_each_dimension(
    shape: tuple[int, ...], dtype: str, block: tuple[int, ...]
) -> None:
    t = from_array(np.broadcast_to(np.zeros(1, dtype), shape), name="a")
    assert t.output_window == TensorWindow(block)
    assert math.prod(block) * np.dtype(dtype).itemsize <= 2**20


@pytest.mark.parametrize(
    ("shape", "chunks", "block"),
    [
        ((3, 20000, 20000), (1, 256, 256), (3, 512, 512)),
        ((1, 20000, 20000), (1, 1, 20000), (1, 32, 20000)),
        ((100, 2048, 2048), (1, 2048, 2048), (1, 2048, 2048)),
        ((10000, 10000), (10000, 10000), (10000, 10000)),
        ((20000, 20000), (20000, 20000), (10000, 10000)),
        ((100, 100), (1000, 30), (100, 100)),
    ],
)
def test_blocks_follow_chunks_joined_or_cut(
    shape: tuple[int, ...], chunks: tuple[int, ...], block: tuple[int, ...]
) -> None:
    values = np.broadcast_to(np.zeros(1, np.uint8), shape)
    assert from_array(Recorded(values, chunks), name="a").output_window == TensorWindow(block)


# Identity.


def means(source: InfiniteTensor, store: ZarrTileStore) -> tuple[InfiniteTensor, Counted]:
    """Half of each pixel, stored; and how often it was computed."""
    f = Counted(lambda _ctx, part: part / 2)
    window = TensorWindow((50, 50))
    return InfiniteTensor(source.shape, f, window, [source], [window], tile_store=store, tensor_id="means"), f


def fill(source: InfiniteTensor, path: Path) -> int:
    """Fill and count the calls."""
    with ZarrTileStore(path, tile_size=100) as store:
        t, f = means(source, store)
        t[...]
        return len(f.calls)


def as_zarr(folder: Path, values: np.ndarray[Any, Any]) -> Any:
    array = zarr.create_array(folder / "a.zarr", shape=values.shape, chunks=values.shape, dtype=values.dtype)
    array[...] = values
    return array


def test_the_same_content_elsewhere_and_in_another_library_resumes(tmp_path: Path) -> None:
    values = numbers((200, 200), "uint8").astype(np.float32)
    assert fill(from_array(values), tmp_path / "store") == 16
    (tmp_path / "copy").mkdir()
    for same in (
        mapped(tmp_path / "a.npy", values),
        mapped(tmp_path / "copy" / "b.npy", values),
        torch.from_numpy(values),
        as_zarr(tmp_path, values),
        values.astype(">f4"),
        Recorded(values),
    ):
        assert fill(from_array(same), tmp_path / "store") == 0


def test_one_other_pixel_is_another_source(tmp_path: Path) -> None:
    values = numbers((200, 200), "uint8").astype(np.float32)
    fill(from_array(values), tmp_path / "store")
    values[150, 7] += 1
    with pytest.raises(ValidationError, match="digest"):
        fill(from_array(values), tmp_path / "store")
    assert from_array(values).version != from_array(values + 1).version


def test_a_name_stands_for_the_content(tmp_path: Path) -> None:
    values = torch.rand(200, 200)
    t = from_array(values, name="scan 7")
    assert t.version == {"name": "scan 7"}
    fill(t, tmp_path / "store")
    assert fill(from_array(values + 1, name="scan 7"), tmp_path / "store") == 0
    with pytest.raises(ValidationError, match="digest"):
        fill(from_array(values, name="scan 8"), tmp_path / "store")


def test_a_sampled_digest_sees_the_places_that_it_looks_at_and_no_others() -> None:
    array = Recorded(np.zeros((9, 1024, 8192), np.uint8))
    t = from_array(array)
    array.regions.clear()
    before = t.version
    seen = {tuple(each.start for each in region) for region in array.regions}
    unseen = next((0, y, 0) for y in range(1024) if not any(start[:2] == (0, y) for start in seen))
    array.values[unseen] = 1
    assert from_array(array).version == before
    array.values[-1, -1, -1] = 1
    assert from_array(array).version != before


def test_dims_are_kept_and_are_no_part_of_what_a_source_is() -> None:
    values = torch.rand(3, 4)
    t = from_array(values, dims=("y", "x"))
    assert t.dims == ("y", "x")
    assert t.version == from_array(values).version


# Threads, processes, pickles.


class Alone(Recorded):
    """An array that notices when two threads read it at a time."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        super().__init__(values)
        self.busy = threading.Lock()
        self.clashes = 0
        self.threads: set[int] = set()

    def __getitem__(self, region: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        self.threads.add(threading.get_ident())
        if not self.busy.acquire(blocking=False):
            self.clashes += 1
            return super().__getitem__(region)
        try:
            # Long enough for another thread to come in between.
            for _ in range(10_000):
                pass
            return super().__getitem__(region)
        finally:
            self.busy.release()


@pytest.mark.usefixtures("often_switched")
def test_an_array_of_no_known_library_is_read_by_one_thread_at_a_time() -> None:
    array = Alone(numbers((400, 400)))
    t = from_array(array, chunks=10, name="a")
    assert torch.equal(bits(t.read((slice(None), slice(None)), workers=8)), bits(torch.from_numpy(array.values.copy())))
    assert len(array.threads) > 1
    assert array.clashes == 0


def part_of(t: Any) -> Any:
    return t[3:17, 10:20]


def test_a_pickled_tensor_reads_the_same(tmp_path: Path) -> None:
    values = numbers((60, 70), "int32")
    with ProcessPoolExecutor(1, CONTEXT) as child:
        for array in (
            values,
            values[::-1, ::2],
            torch.from_numpy(values.copy()),
            mapped(tmp_path / "a.npy", values),
            mapped(tmp_path / "a.npy", values)[::-3, 5:],
            np.asarray(mapped(tmp_path / "a.npy", values).T),
            as_zarr(tmp_path, values),
            Recorded(values),
        ):
            t = from_array(array, chunks=20)
            found = child.submit(part_of, t).result()
            assert np.array_equal(found, np.asarray(array[slice(0, None), slice(0, None)])[3:17, 10:20])
            copied = sent(t)
            assert sent(copied)[5, 6] == t[5, 6]
            assert copied.to_json() == t.to_json()


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.bfloat16])
def test_a_tensor_of_any_dtype_is_pickled_with_its_values(dtype: torch.dtype) -> None:
    t = from_array(torch.arange(24).to(dtype).reshape(4, 6)[:, ::2])
    assert_reads(sent(t), t[...])


@pytest.mark.parametrize("of", [torch.arange, np.arange])
def test_one_element_of_any_stride_is_a_source(of: Any) -> None:
    assert from_array(of(12).reshape(4, 3)[::4, ::3])[...].tolist() == [[0]]


def test_a_part_of_a_tensor_is_pickled_without_the_rest() -> None:
    t = from_array(torch.rand(1000, 1000)[:10])
    assert len(pickle.dumps(t)) < 100_000
    assert torch.equal(sent(t)[...], t[...])


# Blobs, and places where tensors are expected.


def test_a_blob_is_read_by_its_rows(tmp_path: Path) -> None:
    rows = torch.rand(100, 3, 4)
    with TensorBlob.open(tmp_path / "rows", "w", dtype=torch.float32, shape=(3, 4)) as blob:
        blob.write(rows)
    t = from_array(TensorBlob.open(tmp_path / "rows"), dims=("n", "y", "x"), chunks=30)
    assert_reads(t, rows)
    assert t.version == from_array(rows).version
    assert torch.equal(sent(t)[20:40], rows[20:40])


@pytest.mark.parametrize(
    "array",
    [torch.ones(4, 4), torch.ones(4, 4).as_subclass(Located), np.ones((4, 4)), zarr.ones((4, 4))],
    ids=["torch", "a subclass with as_tensor", "numpy", "zarr"],
)
def test_an_array_in_place_of_a_tensor_is_told_of_from_array(array: Any) -> None:
    window = TensorWindow((2, 2))
    t = InfiniteTensor((4, 4), lambda _ctx, part: part, window, [from_array(torch.ones(4, 4))], [window])
    for attempt in (
        lambda: InfiniteTensor((4, 4), lambda _ctx, part: part, window, [array], [window]),
        lambda: t.tile_store.open(t.tensor_id, args=[array]),
        lambda: TensorGroup({"a": array}),
        lambda: GridDataset(array, 2),
        lambda: infinite_tensor.map_windows(torch.relu, array, window=2),
    ):
        with pytest.raises(ValidationError, match="from_array"):
            attempt()


# Refusals.

NO_ARRAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "a list": (lambda: [1, 2], "asarray"),
    "None": (lambda: None, "asarray"),
    "a path": (lambda: "image.png", "from_image"),
    "a tensor of ours": (lambda: from_array(torch.ones(3)), "as it is"),
    "a group of zarr": (zarr.group, "name"),
    "no dimensions": (lambda: torch.tensor(3.0), "reshape"),
    "no elements": (lambda: np.zeros((3, 0)), "at least one element"),
    "a mask": (lambda: np.ma.masked_less(np.arange(4), 2), "filled"),
    "a mask of torch": (lambda: masked_tensor(torch.ones(2), torch.arange(2) > 0), "to_tensor"),
    "records": (lambda: np.zeros(3, [("x", "f4")]), "field"),
    "a table with a mask": (lambda: np.rec.array(np.ones(3, [("mask", "?")])), "field"),
    "objects": (lambda: np.array([{}, 1]), "unsupported dtype"),
    "one object": (lambda: np.array(object()), "unsupported dtype"),
    "words": (lambda: np.array(["a", "b"]), "unsupported dtype"),
    "no values": (lambda: torch.ones(3, device="meta"), "meta"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "to_dense"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "dequantize"),
    "float8": (lambda: torch.ones(3).to(torch.float8_e4m3fn), "unsupported dtype"),
    "half complex": (lambda: torch.ones(3, dtype=torch.complex32), "unsupported dtype"),
    "a file": (lambda: io.BytesIO(b"abc"), "asarray"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning", "ignore:ComplexHalf:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@pytest.mark.parametrize("kind", NO_ARRAYS)
def test_what_is_no_array_of_numbers_is_refused_with_advice(kind: str) -> None:
    given, word = NO_ARRAYS[kind]
    with pytest.raises(ValidationError, match=word):
        from_array(given())


@pytest.mark.parametrize(
    ("argument", "values"),
    [("chunks", (0, (4,), (4, -1), True, "large", 2.0, None)), ("name", ("", 7)), ("dims", (("y",),))],
)
def test_arguments_that_do_not_fit_are_refused(argument: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ValidationError, match=f"{argument} must"):
            from_array(torch.ones(4, 4), **{argument: value})


class Liar(Recorded):
    """An array that is something else when it is read."""

    answer: Any = None

    def __getitem__(self, region: tuple[slice, ...]) -> Any:
        values = super().__getitem__(region)
        return values if self.answer is None else self.answer(values)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (lambda values: values[:1], "must return"),
        (lambda values: values.astype("f8"), "must return"),
        (lambda values: np.ma.masked_less(values, 2), "mask"),
    ],
    ids=["shrunk", "scaled", "masked"],
)
def test_an_array_that_has_become_another_one_is_not_read(answer: Any, word: str) -> None:
    array = Liar(np.ones((4, 4), np.float32))
    t = from_array(array)
    array.answer = answer
    with pytest.raises(ValidationError, match=word):
        t[0, 0]


def test_another_dtype_is_that_of_a_map() -> None:
    image = from_array(torch.arange(12, dtype=torch.uint8).reshape(3, 4))
    with pytest.raises(ValidationError, match="map"):
        image.to(torch.float32)
    assert image.map(lambda x: x.to(torch.float32), dtype=torch.float32, dims=(0, 1))[2].tolist() == [8, 9, 10, 11]
    assert image[2].tolist() == [8, 9, 10, 11]


def test_another_device_is_where_what_is_read_is_moved_to() -> None:
    with pytest.raises(ValidationError, match="move"):
        from_array(torch.ones(3)).to("meta")


def test_a_read_after_a_change_of_an_array_in_memory_gives_the_new_values() -> None:
    array = np.zeros((4, 4))
    source = from_array(array, dims=("y", "x"))
    before, computed = source[0:2, :], source.map(torch.clone, window=4)
    computed[...]
    array[:] = 1
    assert [float(each.max()) for each in (before, source[0:2, :], computed[...])] == [0, 1, 0]
    source.invalidate()
    assert computed[...].min() == 1
