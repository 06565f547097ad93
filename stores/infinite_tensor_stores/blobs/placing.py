"""Any rows of a blob, block by block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor_stores.dtypes import to_stored

Places = npt.NDArray[np.int64]


def parts_of(rows: Places, block_size: int) -> Iterator[tuple[int, tuple[Places, Places]]]:
    """Per block in which some of `rows` lie: its number, their places in `rows`, and where in the block they are."""
    if not len(rows):
        return
    numbers, at = np.divmod(rows, block_size)
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for places in np.split(order, cuts):
        yield int(numbers[places[0]]), (places, at[places])


def whole_rows(block: torch.Tensor) -> npt.NDArray[np.void]:
    """The rows of a tensor as items that numpy copies as they are."""
    array = to_stored(block)
    width = array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    items: npt.NDArray[np.void] = array.reshape(-1).view(np.uint8).view(np.dtype((np.void, width)))
    return items
