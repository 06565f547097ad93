"""What a blob does when nothing goes wrong, one behaviour a test."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.storage import LocalStore

from infinite_tensor import StoreError, TensorBlob, ValidationError
from infinite_tensor.errors import BlobModeError, RegionError
from tests.stores.blobs.conftest import Place
from tests.stores.blobs.rows import ROWS, SHAPE, made, numbered
from tests.support.stored import DTYPES

# Opening.


@pytest.mark.parametrize("mode", ["r", "r+", "a", "a+"])
def test_only_w_creates_a_blob(place: Place, mode: str) -> None:
    with pytest.raises(FileNotFoundError, match="mode 'w' creates one") as raised:
        place.open(mode, dtype="float32", shape=3)
    assert isinstance(raised.value, StoreError)


def test_a_new_blob_needs_dtype_and_shape(place: Place) -> None:
    with pytest.raises(ValueError, match="needs dtype and shape, got dtype=None"):
        place.open("w", shape=3)
    with pytest.raises(ValueError, match="needs dtype and shape"):
        place.open("w", dtype="float32")


def test_a_mode_that_is_none_is_refused(place: Place) -> None:
    with pytest.raises(ValueError, match="mode must be one of"):
        place.open("rw")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"dtype": 3, "shape": 1}, TypeError, "dtype must be a torch.dtype or its name"),
        ({"dtype": "float", "shape": 1}, ValueError, "unknown dtype 'float'"),
        ({"dtype": torch.qint8, "shape": 1}, ValueError, "dtype must be one of"),
        ({"dtype": "int8", "shape": 0}, ValueError, "positive ints, got 0"),
        ({"dtype": "int8", "shape": (3, -1)}, ValueError, "positive ints"),
        ({"dtype": "int8", "shape": "3"}, ValueError, "an int or a tuple of ints"),
        ({"dtype": "int8", "shape": 1, "block_size": 0}, ValueError, "block_size must be a positive int"),
        ({"dtype": "int8", "shape": 1, "max_cached_blocks": -1}, ValueError, "max_cached_blocks must be"),
        (
            {"dtype": "int8", "shape": 2**31, "block_size": 1},
            ValueError,
            "a block of 1 rows has more than 2147483647 bytes",
        ),
        ({"dtype": "int8", "shape": 1, "compressors": "fast"}, ValueError, "compressors must be .*'fast'"),
        ({"dtype": "int8", "shape": 1, "compressors": GzipCodec()}, ValueError, "Zstandard or Blosc"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(
    folder: Place, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        folder.open("w", **options)
    assert not Path(folder.target).exists()


@pytest.mark.parametrize(("given", "shape"), [(5, (5,)), ((), ()), ([2, 3], (2, 3)), (torch.Size([4]), (4,))])
def test_a_shape_is_an_int_or_a_sequence(place: Place, given: Any, shape: tuple[int, ...]) -> None:
    with place.open("w", dtype="int16", shape=given) as blob:
        assert blob.shape == shape
        assert blob.write(torch.ones(7, *shape, dtype=torch.int16)) == 7
    assert place.open()[6].shape == shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_as_it_was(place: Place, dtype: torch.dtype) -> None:
    bits = torch.randint(
        0, 256, (11, 3 * dtype.itemsize), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    rows = (bits % 2).bool()[:, :3].contiguous() if dtype is torch.bool else bits.view(dtype)
    with place.open("w+", dtype=dtype, shape=3, block_size=4) as blob:
        blob.write(rows)
        blob[4] = rows[0]
    blob = place.open()
    expected = rows.clone()
    expected[4] = rows[0]
    for found in (blob.read(), blob[:], blob[list(range(11))], torch.stack([blob[i] for i in range(11)])):
        assert found.dtype == dtype
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_w_begins_anew_with_the_dtype_and_shape_that_are_given(filled: Place) -> None:
    with filled.open("w", dtype="int64", shape=5) as blob:
        assert (len(blob), blob.dtype, blob.shape) == (0, torch.int64, (5,))
        blob.write(torch.ones(2, 5, dtype=torch.int64))
    assert filled.open().read().sum() == 10


def test_w_keeps_the_dtype_and_shape_that_are_not_given(filled: Place) -> None:
    with filled.open("w") as blob:
        assert (len(blob), blob.dtype, blob.shape) == (0, torch.float32, SHAPE)


def test_a_blob_that_is_there_is_compared_with_what_is_expected(filled: Place) -> None:
    with pytest.raises(ValidationError, match=r"shape \(2, 3\), got \(6,\); mode 'w' makes a new one"):
        filled.open("a", shape=6)
    with filled.open("a", shape=SHAPE, dtype=torch.float32) as blob:
        assert len(blob) == 10


def test_w_leaves_alone_what_is_not_a_blob(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match=r"'letter.txt' is there already; choose an empty location"):
        TensorBlob.open(tmp_path, "w", dtype="int8", shape=1)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("compressors", [None, ZstdCodec(level=1)], ids=["mapped", "decoded"])
def test_a_read_only_zarr_store_is_read_and_not_written(folder: Place, compressors: Any) -> None:
    rows = numbered(3)
    with folder.open("w", dtype="float32", shape=SHAPE, compressors=compressors) as blob:
        blob.write(rows)
    store = LocalStore(folder.target, read_only=True)
    assert torch.equal(TensorBlob.open(store)[:], rows)
    for attempt in (
        lambda: TensorBlob.open(store, "w", dtype="float32", shape=SHAPE),
        lambda: TensorBlob.open(store, "a"),
        lambda: TensorBlob.unlink(store),
    ):
        with pytest.raises(StoreError, match="is read-only"):
            attempt()
    assert torch.equal(folder.open()[:], rows)


# Modes.


@pytest.mark.parametrize("mode", ["w", "a"])
def test_w_and_a_do_not_read(filled: Place, mode: str) -> None:
    with filled.open(mode) as blob, pytest.raises(io.UnsupportedOperation, match="not open for reading") as raised:
        blob.read()
    assert isinstance(raised.value, BlobModeError | OSError)


def test_r_does_not_write(filled: Place) -> None:
    blob = filled.open()
    for attempt in (
        lambda: blob.write(ROWS),
        blob.flush,
        blob.truncate,
        lambda: blob.extend(filled.open()),
        lambda: blob.__setitem__(0, ROWS[0]),
    ):
        with pytest.raises(OSError, match="open it with mode"):
            attempt()
    assert len(blob) == 10


@pytest.mark.parametrize(
    ("mode", "able"),
    [("r", (True, False)), ("r+", (True, True)), ("w", (False, True)), ("a", (False, True)), ("a+", (True, True))],
)
def test_a_blob_says_what_it_can_do(filled: Place, mode: str, able: tuple[bool, bool]) -> None:
    with filled.open(mode) as blob:
        assert (blob.readable(), blob.writable()) == able
        assert blob.seekable()
        assert (blob.mode, blob.name) == (mode, filled.target)
        assert repr(blob).startswith(f"TensorBlob({filled.target!r}, mode={mode!r}, dtype=torch.float32, shape=(2, 3)")


@pytest.mark.parametrize("mode", ["r", "r+", "w", "a", "a+"])
def test_rows_are_indexed_in_every_mode(filled: Place, mode: str) -> None:
    with filled.open(mode) as blob:
        if mode == "w":
            blob.write(ROWS)
        assert torch.equal(blob[3], ROWS[3])


def test_a_closed_blob_does_nothing_but_say_so(filled: Place) -> None:
    blob = filled.open("r+")
    blob.close()
    blob.close()
    assert blob.closed
    for attempt in (
        blob.read,
        blob.tell,
        blob.seek,
        blob.flush,
        blob.truncate,
        blob.refresh,
        blob.as_tensor,
        blob.__enter__,
        lambda: len(blob),
        lambda: blob[0],
        lambda: blob[:2],
        lambda: next(iter(blob)),
        lambda: next(blob),
        lambda: blob.write(numbered(1)),
    ):
        with pytest.raises(OSError, match="is closed; open it again"):
            attempt()
    assert "closed" in repr(blob)


# Writing.


@pytest.mark.parametrize(
    ("shape", "count"), [((2, 3), 1), ((5, 2, 3), 5), ((3, 5, 2, 3), 15), ((12,), 2), ((0, 2, 3), 0), ((0,), 0)]
)
def test_write_takes_a_row_several_rows_and_their_numbers(place: Place, shape: tuple[int, ...], count: int) -> None:
    made(place, 0)
    rows = torch.rand(shape)
    with place.open("a") as blob:
        assert blob.write(rows) == count
        assert len(blob) == count
    assert torch.equal(place.open().read(), rows.reshape(-1, *SHAPE))


@pytest.mark.parametrize("shape", [(3, 2), (7,), (4, 6), (2, 3, 1), ()])
def test_write_refuses_rows_of_another_shape(filled: Place, shape: tuple[int, ...]) -> None:
    with filled.open("a") as blob, pytest.raises(ValueError, match=r"the last dimensions of rows must be \(2, 3\)"):
        blob.write(torch.zeros(shape))
    assert len(filled.open()) == 10


def test_write_refuses_another_dtype(filled: Place) -> None:
    with filled.open("a") as blob:
        with pytest.raises(TypeError, match=r"rows must be of torch.float32, got torch.float64; convert them"):
            blob.write(numbered(1).double())
        with pytest.raises(TypeError, match="got list"):
            blob.write([1.0])  # type: ignore[arg-type]


def test_write_takes_arrays_and_tensors_that_are_not_contiguous_or_need_a_gradient(place: Place) -> None:
    made(place, 0)
    rows = numbered(6)
    with place.open("a") as blob:
        blob.write(rows[:2].numpy())
        blob.write(rows[2:4].transpose(1, 2).contiguous().transpose(1, 2))
        blob.write(rows[4:].clone().requires_grad_())
    assert torch.equal(place.open().read(), rows)


def test_what_is_written_does_not_follow_the_buffer_that_it_came_from(place: Place) -> None:
    buffer = torch.ones(6, *SHAPE)
    with place.open("w+", dtype="float32", shape=SHAPE, block_size=4) as blob:
        blob.write(buffer)
        buffer.zero_()
        assert blob[:].min() == 1


def test_a_and_a_plus_always_write_at_the_end(filled: Place) -> None:
    with filled.open("a+") as blob:
        assert blob.tell() == 10
        blob.seek(2)
        blob.write(ROWS[0])
        assert (len(blob), blob.tell()) == (11, 11)
    assert torch.equal(filled.open().read(), torch.cat([ROWS, ROWS[:1]]))


def test_r_plus_overwrites_and_then_grows(filled: Place) -> None:
    with filled.open("r+") as blob:
        blob.seek(7)
        assert blob.write(numbered(6, 100)) == 6
        assert (len(blob), blob.tell()) == (13, 13)
        assert torch.equal(blob[:], torch.cat([ROWS[:7], numbered(6, 100)]))
    assert torch.equal(filled.open().read(), torch.cat([ROWS[:7], numbered(6, 100)]))


def test_many_rows_in_one_write_are_those_in_many_writes(place: Place) -> None:
    rows = numbered(37)
    with place.open("w", dtype="float32", shape=SHAPE, block_size=5) as blob:
        for start, stop in ((0, 1), (1, 2), (2, 5), (5, 10), (10, 24), (24, 25), (25, 37)):
            blob.write(rows[start:stop])
    assert torch.equal(place.open().read(), rows)


def test_extend_appends_another_blob_and_leaves_that_as_it_is(filled: Place, tmp_path: Path) -> None:
    other = Place(str(tmp_path / "other"), {})
    more = made(other, 7, block_size=3)
    source = other.open()
    source.seek(2)
    with filled.open("r+") as blob:
        blob.extend(source)
        assert (len(blob), blob.tell()) == (17, 17)
        blob.extend(source, maintain_order=True)
        blob.extend(blob)
    assert (source.tell(), len(source)) == (2, 7)
    once = torch.cat([ROWS, more, more])
    assert torch.equal(filled.open().read(), torch.cat([once, once]))


def test_extend_refuses_what_is_not_a_blob_of_the_same_rows(filled: Place, tmp_path: Path) -> None:
    other = TensorBlob.open(tmp_path / "other", "w", dtype="float32", shape=6)
    with filled.open("a") as blob:
        for wrong in (other, numbered(1)):
            with pytest.raises(ValueError, match="other must be a blob of dtype"):
                blob.extend(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("index", "count"), [(3, 1), (-1, 1), (slice(1, 9, 3), 3), ([0, 5, -1], 3), (slice(None, None, -1), 10), ([], 0)]
)
def test_rows_are_overwritten_by_their_numbers(filled: Place, index: Any, count: int) -> None:
    new = numbered(count, 50)
    expected = ROWS.clone()
    for number, row in zip(torch.arange(10).numpy()[index].reshape(-1) if index != [] else [], new, strict=True):
        expected[number] = row
    with filled.open("r+") as blob:
        blob[index] = new
        assert blob.tell() == 0
        assert torch.equal(blob[:], expected)
    assert torch.equal(filled.open().read(), expected)


def test_one_row_or_number_overwrites_many_rows(filled: Place) -> None:
    with filled.open("r+") as blob:
        blob[2:5] = numbered(1, 70)
        blob[torch.tensor([True] + [False] * 9)] = 7
    expected = ROWS.clone()
    expected[2:5] = numbered(1, 70)
    expected[0] = 7
    assert torch.equal(filled.open().read(), expected)


def test_overwriting_refuses_what_does_not_fit(filled: Place) -> None:
    with filled.open("r+") as blob:
        with pytest.raises(ValueError, match="the index selects 3 rows, got values for 2"):
            blob[0:3] = numbered(2)
        with pytest.raises(IndexError, match="row 10 is out of range"):
            blob[10] = ROWS[0]
    with filled.open("a+") as blob, pytest.raises(BlobModeError, match=r"open it with mode 'r\+'"):
        blob[0] = ROWS[0]


# The cursor.


def test_seek_stays_between_the_beginning_and_the_end(filled: Place) -> None:
    blob = filled.open()
    assert [blob.seek(-3), blob.seek(100), blob.seek(-2, 2), blob.seek(-3, 1), blob.seek(-9, 1)] == [0, 10, 8, 5, 0]
    assert blob.seek() == blob.tell() == 0


def test_seek_refuses_an_origin_that_is_none(filled: Place) -> None:
    with pytest.raises(ValueError, match="whence must be 0"):
        filled.open().seek(0, 3)


def test_read_takes_rows_from_the_cursor_on(filled: Place) -> None:
    blob = filled.open()
    assert torch.equal(blob.read(3), ROWS[:3])
    assert blob.read(0).shape == (0, *SHAPE)
    assert blob.tell() == 3
    assert torch.equal(blob.read(-1), ROWS[3:])
    assert blob.read().shape == (0, *SHAPE)
    blob.seek(6)
    assert torch.equal(blob.read(100), ROWS[6:])
    assert blob.tell() == 10


def test_iteration_goes_on_from_the_cursor(filled: Place) -> None:
    blob = filled.open()
    blob.seek(7)
    assert torch.equal(next(blob), ROWS[7])
    assert torch.equal(torch.stack(list(blob)), ROWS[8:])
    assert blob.tell() == 10
    assert list(blob) == []


def test_what_is_read_are_copies(filled: Place) -> None:
    blob = filled.open()
    for index in (2, slice(1, 3), [2, 3]):
        blob[index].zero_()
    blob.read().zero_()
    next(filled.open()).zero_()
    blob.__getitems__([0, 1])[0].zero_()
    assert torch.equal(blob[:], ROWS)


# Numbers between brackets.

INDICES: list[tuple[Any, list[int]]] = [
    (slice(None), list(range(10))),
    (slice(3, 8), [3, 4, 5, 6, 7]),
    (slice(-3, None), [7, 8, 9]),
    (slice(8, 3), []),
    (slice(8, 2, -2), [8, 6, 4]),
    (slice(None, None, -3), [9, 6, 3, 0]),
    (slice(-100, 100, 4), [0, 4, 8]),
    ([3, 0, 3, -1], [3, 0, 3, 9]),
    ([], []),
    (np.array([9, 0, 4], dtype=np.uint8), [9, 0, 4]),
    (torch.tensor([5, -5, 5]), [5, 5, 5]),
    (torch.tensor([], dtype=torch.int64), []),
    (torch.tensor([True, False] * 5), [0, 2, 4, 6, 8]),
    (np.array([False] * 10), []),
    ([False, True] * 5, [1, 3, 5, 7, 9]),
]


@pytest.mark.parametrize(("index", "selected"), INDICES, ids=[str(index) for index, _ in INDICES])
def test_an_index_selects_rows_as_it_does_of_a_tensor(filled: Place, index: Any, selected: list[int]) -> None:
    blob = filled.open()
    blob.seek(4)
    found = blob[index]
    assert found.shape == (len(selected), *SHAPE)
    assert torch.equal(found, ROWS[torch.tensor(selected, dtype=torch.int64)])
    assert blob.tell() == 4


@pytest.mark.parametrize(("index", "selected"), [(0, 0), (9, 9), (-1, 9), (-10, 0)])
def test_an_int_selects_one_row(filled: Place, index: int, selected: int) -> None:
    assert torch.equal(filled.open()[index], ROWS[selected])


@pytest.mark.parametrize("index", [np.int64(3), torch.tensor(3), np.array(3)], ids=["int64", "tensor", "array"])
def test_an_integer_without_dimensions_selects_one_row(filled: Place, index: Any) -> None:
    assert torch.equal(filled.open()[index], ROWS[3])


def test_a_tuple_is_a_list_of_rows(filled: Place) -> None:
    assert torch.equal(filled.open()[0, 2], ROWS[[0, 2]])


@pytest.mark.parametrize("index", [10, -11, [0, 10], torch.tensor([-11]), [True] * 9, [True] * 11])
def test_a_row_out_of_range_is_an_index_error(filled: Place, index: Any) -> None:
    with pytest.raises(IndexError, match="10 rows") as raised:
        filled.open()[index]
    assert isinstance(raised.value, RegionError)


@pytest.mark.parametrize("index", [1.0, "a", None, ..., [0.5], [slice(1)], torch.rand(2), [True, 1]])
def test_what_is_no_index_is_a_type_error(filled: Place, index: Any) -> None:
    with pytest.raises(TypeError, match="an index must be an int, a slice, a list or tuple of ints"):
        filled.open()[index]


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 2), (0, 3)])
def test_an_index_array_of_more_dimensions_puts_them_before_those_of_a_row(
    place: Place, shape: tuple[int, ...]
) -> None:
    rows = made(place)
    index = (torch.arange(math.prod(shape)) * 7 % 10).reshape(shape)
    with place.open("r+") as blob:
        assert torch.equal(blob[index], rows[index])
        assert torch.equal(blob[index.numpy() - 10], rows[index])
        rows[index] = -rows[index]
        blob[index] = -blob[index]
        assert torch.equal(blob[:], rows)


def test_a_mask_has_one_dimension(filled: Place) -> None:
    with pytest.raises(IndexError, match=r"one dimension, along the rows; got shape \(10, 2\)"):
        filled.open()[torch.ones(10, 2, dtype=torch.bool)]


# Shrinking and deleting.


def test_truncate_drops_the_rows_from_a_position_on(filled: Place) -> None:
    with filled.open("r+") as blob:
        blob.seek(8)
        assert blob.truncate(5) == 5
        assert (len(blob), blob.tell()) == (5, 5)
        assert blob.truncate(7) == 5
        blob.seek(2)
        assert blob.truncate() == 2
        blob.write(ROWS[9])
    assert torch.equal(filled.open().read(), ROWS[[0, 1, 9]])


def test_truncate_to_nothing_empties_a_blob(filled: Place) -> None:
    with filled.open("a") as blob:
        assert blob.truncate(0) == 0
    assert len(filled.open()) == 0


def test_truncate_refuses_a_negative_length(filled: Place) -> None:
    with filled.open("a") as blob, pytest.raises(ValueError, match="cannot be truncated to -1 rows"):
        blob.truncate(-1)


def test_unlink_deletes_a_blob_whether_or_not_there_is_one(place: Place) -> None:
    made(place)
    for _ in range(2):
        assert TensorBlob.unlink(filename=place.target) is True
    with pytest.raises(FileNotFoundError):
        place.open()
    made(place)
    assert len(place.open()) == 10


def test_unlink_leaves_alone_what_is_not_of_the_blob(local: Place) -> None:
    letter = Path(local.target, "letter.txt")
    letter.write_text("dear")
    TensorBlob.unlink(local.target)
    assert [path.name for path in Path(local.target).iterdir()] == ["letter.txt"]


def test_unlink_refuses_an_array_that_is_not_a_blob(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "array"), shape=(3,), dtype="int8")
    with pytest.raises(StoreError, match="there is data, but not a TensorBlob"):
        TensorBlob.unlink(tmp_path / "array")
    assert (tmp_path / "array" / "zarr.json").exists()


def test_a_blob_of_one_row_takes_little_room_on_a_disk(folder: Place) -> None:
    with folder.open("w", dtype="float32", shape=768) as blob:
        blob.write(torch.ones(768))
    assert sum(path.stat().st_blocks * 512 for path in Path(folder.target).iterdir()) < 50_000


def test_a_block_may_have_more_bytes_than_a_document(place: Place) -> None:
    shape = (2**18,)
    rows = torch.from_numpy(np.random.default_rng(0).random((41, *shape), np.float32))
    with place.open("w", dtype="float32", shape=shape, block_size=len(rows)) as blob:
        blob.write(rows)
    assert place.open()[-1].equal(rows[-1])
