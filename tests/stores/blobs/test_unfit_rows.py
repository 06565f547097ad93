"""What cannot be rows is refused by an error that says what to do, and changes nothing; what can be is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.masked import masked_tensor

from infinite_tensor import TensorBlob, ValidationError
from tests.stores.blobs.conftest import Place

ROWS = torch.arange(12.0).reshape(4, 3)


UNFIT: dict[str, Callable[[], Any]] = {
    "meta": lambda: torch.empty(4, 3, device="meta"),
    "one meta": lambda: torch.empty(3, device="meta"),
    "sparse": ROWS.to_sparse,
    "one sparse": ROWS[0].to_sparse,
    "compressed": ROWS.to_sparse_csr,
    "mkldnn": ROWS.to_mkldnn,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(3)] * 2),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(3)] * 2, layout=torch.jagged),
    "masked": lambda: masked_tensor(ROWS, ROWS > 2),
    "quantized": lambda: torch.quantize_per_tensor(ROWS, 0.1, 0, torch.quint8),
}


def overwrite(blob: TensorBlob, rows: Any) -> None:
    blob[0:4] = rows


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture
def blob(folder: Place) -> Iterator[TensorBlob]:
    """A blob of six rows in blocks of four, of which the last is in memory."""
    with folder.open("w+", dtype="float32", shape=3, block_size=4) as blob:
        blob.write(torch.ones(6, 3))
        yield blob


@pytest.mark.parametrize("store", [TensorBlob.write, overwrite], ids=["write", "overwrite"])
@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT)
# Of torch's own: what is new, or old.
@pytest.mark.filterwarnings("ignore:.*(prototype|beta|deprecated|[Qq]uantiz)")
def test_a_tensor_without_plain_values_is_refused_and_changes_nothing(
    blob: TensorBlob, make: Callable[[], torch.Tensor], store: Callable[[TensorBlob, Any], object]
) -> None:
    before = contents(blob.name)
    with pytest.raises(ValidationError, match=r"rows must (be a dense tensor with values, got|not have a mask)"):
        store(blob, make())
    assert contents(blob.name) == before
    assert (len(blob), blob.tell()) == (6, 6)
    assert torch.equal(blob[:], torch.ones(6, 3))


def test_an_array_that_cannot_be_written_to_is_stored_without_a_warning(blob: TensorBlob) -> None:
    array = ROWS.numpy().copy()
    array.flags.writeable = False
    before = len(blob)
    blob.write(array)
    assert torch.equal(blob[before:], ROWS)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (ROWS.numpy().astype(">f4"), r"rows must be of torch\.float32, got an array of >f4; convert it with \.astype"),
        (ROWS.numpy().astype(object), r"rows must be of torch\.float32, got an array of object"),
        (np.array(["a", "b", "c"]), r"rows must be of torch\.float32, got an array of <U1"),
    ],
)
def test_an_array_that_torch_does_not_know_is_a_type_error(blob: TensorBlob, array: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        blob.write(array)
    assert len(blob) == 6


@pytest.mark.parametrize("store", [TensorBlob.write, overwrite], ids=["write", "overwrite"])
def test_masked_elements_are_refused_and_other_masked_arrays_stored(
    blob: TensorBlob, store: Callable[[TensorBlob, Any], object]
) -> None:
    with pytest.raises(ValidationError, match=r"rows have a mask, but tensors have no masks; give a\.filled\(value\)"):
        store(blob, np.ma.masked_less(ROWS.numpy(), ROWS.max()))
    assert torch.equal(blob[:], torch.ones(6, 3))
    store(blob, np.ma.array(ROWS.numpy()))
    assert torch.equal(blob[0:4] if store is overwrite else blob[-4:], ROWS)


def test_an_index_with_a_mask_is_refused(blob: TensorBlob) -> None:
    with pytest.raises(ValidationError, match="an index has a mask"):
        blob[np.ma.masked_equal(np.arange(3), 1)]


@pytest.mark.parametrize("store", [TensorBlob.write, overwrite], ids=["write", "overwrite"])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ROWS.clone().requires_grad_(), ROWS),
        (torch.nn.Parameter(ROWS.clone()), ROWS),
        (torch.complex(ROWS, ROWS).conj().imag, -ROWS),
        (ROWS.numpy()[::-1], ROWS.flip(0)),
        (ROWS.T.contiguous().T, ROWS),
    ],
    ids=["gradient", "parameter", "negative view", "array from its end", "columns first"],
)
def test_views_and_tensors_with_gradients_are_stored_by_their_values(
    blob: TensorBlob, rows: Any, expected: torch.Tensor, store: Callable[[TensorBlob, Any], object]
) -> None:
    store(blob, rows)
    found = blob[6:] if store is TensorBlob.write else blob[:4]
    assert torch.equal(found, expected)
    assert not found.requires_grad


@pytest.mark.parametrize("count", [1, 5])
def test_a_conjugate_view_is_stored_by_its_values(folder: Place, count: int) -> None:
    rows = torch.full((count, 3), 1 + 2j).conj()
    with folder.open("w+", dtype="complex64", shape=3, block_size=4) as blob:
        blob.write(torch.zeros(1, 3, dtype=torch.complex64))
        blob.write(rows[0] if count == 1 else rows)
        assert torch.equal(blob[1:], torch.full((count, 3), 1 - 2j))
    assert torch.equal(folder.open()[1:], torch.full((count, 3), 1 - 2j))


def test_an_index_without_plain_values_is_refused(blob: TensorBlob) -> None:
    with pytest.raises(ValidationError, match=r"index must be a dense tensor with values, got torch.int64 of layout"):
        blob[torch.ones(2, dtype=torch.int64).to_sparse()]
