"""What a blob does when nothing goes wrong, one behaviour a test."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
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

# Arguments.


REFUSED: dict[str, tuple[Callable[[TensorBlob], object], type[Exception], str]] = {
    "a shape of rows": (lambda blob: blob.write(torch.zeros(3, 2)), ValueError, "shape"),
    "a row with a dimension more": (lambda blob: blob.write(torch.zeros(2, 3, 1)), ValueError, "shape"),
    "a dtype of rows": (lambda blob: blob.write(numbered(1).double()), TypeError, "float64"),
    "a list": (lambda blob: blob.write([1.0]), TypeError, "list"),  # type: ignore[arg-type]
    "no blob": (lambda blob: blob.extend(numbered(1)), ValueError, "other"),  # type: ignore[arg-type]
    "two rows for three": (lambda blob: blob.__setitem__(slice(3), numbered(2)), ValueError, "3 rows"),
    "a row to overwrite that is not there": (lambda blob: blob.__setitem__(10, ROWS[0]), IndexError, "row 10"),
    "an origin": (lambda blob: blob.seek(0, 3), ValueError, "whence"),
    "a negative length": (lambda blob: blob.truncate(-1), ValueError, "-1"),
    "a mask of two dimensions": (lambda blob: blob[torch.ones(10, 2, dtype=torch.bool)], IndexError, "one dimension"),
    **{
        f"{index}": (lambda blob, index=index: blob[index], RegionError, "10 rows")  # type: ignore[misc]
        for index in (10, -11, [0, 10], torch.tensor([-11]), [True] * 9, [True] * 11)
    },
    **{
        f"{index!r}": (lambda blob, index=index: blob[index], TypeError, "index")  # type: ignore[misc]
        for index in (1.0, "a", None, ..., [0.5], [slice(1)], torch.tensor([0.25, 0.75]), [True, 1])
    },
}


@pytest.mark.parametrize(("use", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_an_argument_that_does_not_fit_changes_nothing(
    filled: Place, use: Callable[[TensorBlob], object], error: type[Exception], said: str
) -> None:
    with filled.open("r+") as blob:
        with pytest.raises(error, match=said):
            use(blob)
        assert (len(blob), blob.tell()) == (10, 0)
        assert torch.equal(blob[:], ROWS)


# Opening.


@pytest.mark.parametrize("mode", ["r", "r+", "a", "a+"])
def test_only_w_creates_a_blob(place: Place, mode: str) -> None:
    with pytest.raises(FileNotFoundError, match="mode 'w' creates one") as raised:
        place.open(mode, dtype="float32", shape=3)
    assert isinstance(raised.value, StoreError)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"shape": 3}, ValueError, "dtype"),
        ({"dtype": "float32"}, ValueError, "shape"),
        ({"mode": "rw"}, ValueError, "mode"),
        ({"dtype": 3, "shape": 1}, TypeError, "dtype"),
        ({"dtype": "float", "shape": 1}, ValueError, "'float'"),
        ({"dtype": torch.qint8, "shape": 1}, ValueError, "dtype"),
        ({"dtype": "int8", "shape": 0}, ValueError, "positive"),
        ({"dtype": "int8", "shape": (3, -1)}, ValueError, "positive"),
        ({"dtype": "int8", "shape": "3"}, ValueError, "shape"),
        ({"dtype": "int8", "shape": 1, "block_size": 0}, ValueError, "block_size"),
        ({"dtype": "int8", "shape": 1, "max_cached_blocks": -1}, ValueError, "max_cached_blocks"),
        ({"dtype": "int8", "shape": 2**31, "block_size": 1}, ValueError, "block_size"),
        ({"dtype": "int8", "shape": 1, "compressors": "fast"}, ValueError, "compressors"),
        ({"dtype": "int8", "shape": 1, "compressors": GzipCodec()}, ValueError, "Zstandard"),
    ],
)
def test_an_argument_of_open_that_does_not_fit_is_named(
    folder: Place, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        folder.open(**{"mode": "w", **options})
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


def test_a_appends_and_does_not_overwrite(filled: Place) -> None:
    with filled.open("a+") as blob, pytest.raises(BlobModeError, match=r"r\+"):
        blob[0] = ROWS[0]


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


# The cursor.


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
    ((0, 2), [0, 2]),
    (torch.tensor([True, False] * 5), [0, 2, 4, 6, 8]),
    (np.array([False] * 10), []),
    ([False, True] * 5, [1, 3, 5, 7, 9]),
]


@pytest.mark.parametrize(("index", "selected"), INDICES, ids=[str(index) for index, _ in INDICES])
def test_an_index_selects_rows_as_it_does_of_a_tensor(filled: Place, index: Any, selected: list[int]) -> None:
    where = torch.tensor(selected, dtype=torch.int64)
    with filled.open("r+") as blob:
        blob.seek(4)
        found = blob[index]
        assert found.shape == (len(selected), *SHAPE)
        assert torch.equal(found, ROWS[where])
        for values in (-found, numbered(1, 70), 7):
            blob[index] = values
            expected = ROWS.clone()
            expected[where] = torch.as_tensor(values, dtype=torch.float32)
            assert torch.equal(blob[:], expected)
        assert blob.tell() == 4
    assert torch.equal(filled.open().read(), expected)


@pytest.mark.parametrize("index", [3, -7, np.int64(3), torch.tensor(3), np.array(3)], ids=repr)
def test_an_int_selects_one_row(filled: Place, index: Any) -> None:
    with filled.open("r+") as blob:
        assert torch.equal(blob[index], ROWS[3])
        blob[index] = ROWS[0]
        assert torch.equal(blob[3], ROWS[0])


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


# Shrinking and deleting.


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
