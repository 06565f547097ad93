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
    with pytest.raises(ValidationError, match=r"dense|mask"):
        store(blob, make())
    assert contents(blob.name) == before
    assert (len(blob), blob.tell()) == (6, 6)
    assert torch.equal(blob[:], torch.ones(6, 3))


@pytest.mark.parametrize(
    "array", [ROWS.numpy().astype(">f4"), ROWS.numpy().astype(object), np.array(["a", "b", "c"])], ids=lambda a: a.dtype
)
def test_an_array_that_torch_does_not_know_is_a_type_error(blob: TensorBlob, array: Any) -> None:
    with pytest.raises(TypeError, match=r"\.astype"):
        blob.write(array)
    assert len(blob) == 6


@pytest.mark.parametrize("store", [TensorBlob.write, overwrite], ids=["write", "overwrite"])
def test_masked_elements_are_refused_and_other_masked_arrays_stored(
    blob: TensorBlob, store: Callable[[TensorBlob, Any], object]
) -> None:
    with pytest.raises(ValidationError, match="mask"):
        store(blob, np.ma.masked_less(ROWS.numpy(), ROWS.max()))
    assert torch.equal(blob[:], torch.ones(6, 3))
    for index in (np.ma.masked_equal(np.arange(3), 1), torch.ones(2, dtype=torch.int64).to_sparse()):
        with pytest.raises(ValidationError, match="index"):
            blob[index]
    store(blob, np.ma.array(ROWS.numpy()))
    assert torch.equal(blob[0:4] if store is overwrite else blob[-4:], ROWS)


@pytest.mark.parametrize("store", [TensorBlob.write, overwrite], ids=["write", "overwrite"])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ROWS.clone().requires_grad_(), ROWS),
        (torch.nn.Parameter(ROWS.clone()), ROWS),
        (torch.complex(ROWS, ROWS).conj().imag, -ROWS),
        (ROWS.numpy()[::-1], ROWS.flip(0)),
        (ROWS.T.contiguous().T, ROWS),
        (np.frombuffer(ROWS.numpy().tobytes(), np.float32).reshape(4, 3), ROWS),
    ],
    ids=["gradient", "parameter", "negative view", "array from its end", "columns first", "read-only"],
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
