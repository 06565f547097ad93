"""Large blocks of memory."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch

from infinite_tensor import OutOfMemoryError
from infinite_tensor.support import allocation
from infinite_tensor.support.allocation import new_block, new_result

CPU = torch.device("cpu")
MANY = (2**19,)

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="there are no large pages")


@pytest.fixture(autouse=True)
def nothing_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_FREED", allocation._FreedBlocks())


def test_a_block_that_is_dropped_is_used_again() -> None:
    first = new_block(MANY, torch.float32, CPU)
    address = first.data_ptr()
    del first
    assert new_block((2**18, 2), torch.int32, CPU).data_ptr() == address


def test_blocks_in_use_share_no_memory() -> None:
    blocks = [new_block(MANY, torch.float32, CPU).fill_(number) for number in range(8)]
    assert all(bool((block == number).all()) for number, block in enumerate(blocks))


def test_a_view_keeps_the_memory_of_its_block() -> None:
    view = new_block(MANY, torch.float32, CPU).fill_(1.0)[5:7].numpy()
    gc.collect()
    new_block(MANY, torch.float32, CPU).fill_(2.0)
    assert view.tolist() == [1.0, 1.0]


def test_only_so_much_is_kept_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "_KEPT_BYTES", 3 * 2**21)
    blocks = [new_block(MANY, torch.float32, CPU) for _ in range(8)]
    blocks.clear()
    assert [len(held) for held in allocation._FREED._pages.values()] == [3]


def test_what_is_kept_is_of_few_sizes_and_the_last_ones() -> None:
    for nbytes in range(2**20, 2**20 + 3000):
        new_block((nbytes,), torch.uint8, CPU)
    assert sum(len(held) for held in allocation._FREED._pages.values()) <= 16
    last = new_block(MANY, torch.float32, CPU)
    address = last.data_ptr()
    del last
    assert new_block(MANY, torch.float32, CPU).data_ptr() == address


def test_a_result_is_never_of_memory_that_was_used_before() -> None:
    first = new_result((2**24,), torch.float32, CPU)
    del first
    assert not new_result((2**24,), torch.float32, CPU).any()


@pytest.mark.parametrize("new", [new_block, new_result])
def test_more_than_there_can_be_is_an_error_that_tells_the_size(new: object) -> None:
    assert callable(new)
    with pytest.raises(OutOfMemoryError, match=r"takes 4,194,304.0 GiB, which cannot be allocated; take less"):
        new((2**50,), torch.float32, CPU, "take less")
