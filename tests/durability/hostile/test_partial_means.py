"""Logs of tensors that are blended by a weighted mean: sums in one dtype, pieces in another."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from safetensors.torch import load

from infinite_tensor import DamagedDataWarning, InfiniteTensor, MemoryTileStore, TensorWindow, TileStore
from infinite_tensor.tilestore.partial import DamagedPartialError, PartialTile
from tests.durability.hostile.honest import Storage, opened
from tests.support.bounds import bounded
from tests.support.counting import Counted
from tests.support.dict_store import Index
from tests.support.reference import same_bits

KEY = ("t", "partial", (0, 0))
PLACE = str(KEY)
REGION = (slice(0, 8), slice(0, 8))
SUMS = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float64: torch.float64}


def tensor(store: TileStore, dtype: torch.dtype, f: Counted | None = None) -> InfiniteTensor:
    """Windows -1 to 2 in each dimension cover tile (0, 0)."""

    def window(ctx: Index) -> torch.Tensor:
        return (torch.arange(16.0).reshape(4, 4) / 3 + 10 * ctx[0] + 0.1 * ctx[1]).to(dtype)

    f = Counted(window) if f is None else f
    return InfiniteTensor(
        (None, None), f, TensorWindow((4, 4), stride=3), dtype=dtype, tile_store=store, tensor_id="t", blend="hann"
    )


def stored(dtype: torch.dtype) -> Storage:
    """A store that knows windows (-1, -1) to (0, 2) of tile (0, 0) as its prefix, and (2, 2) as a loose piece."""
    entries: Storage = {}
    with opened(entries) as store:
        t = tensor(store, dtype)
        t[-2:2, 0:8]
        t[7:8, 7:8]
    return entries


@pytest.mark.parametrize("dtype", SUMS)
def test_a_log_holds_sums_that_are_not_divided_and_plain_pieces(dtype: torch.dtype) -> None:
    (data,) = stored(dtype)[KEY]
    part = PartialTile.from_bytes(data, PLACE)
    assert part.prefix is not None
    assert part.prefix.dtype == SUMS[dtype]
    assert part.pieces[2, 2].dtype == dtype
    expected = torch.arange(16.0).reshape(4, 4)[:2, :2] / 3 + 20 + 0.2
    assert same_bits(part.pieces[2, 2], expected.to(dtype))
    # Corners of windows (-1, -1), (-1, 0), (0, -1) and (0, 0) lie on pixel (0, 0), of one weight.
    weighted = math.sin(math.pi / 8) ** 4 * (15 / 3 - 10.1 + 12 / 3 - 10 + 3 / 3 - 0.1 + 0)
    torch.testing.assert_close(
        part.prefix[0, 0].item(), weighted, rtol=1e-2 if dtype is torch.bfloat16 else 1e-3, atol=0
    )


@pytest.mark.parametrize("dtype", SUMS)
def test_a_tile_is_continued_from_its_log(dtype: torch.dtype) -> None:
    expected = tensor(MemoryTileStore(), dtype)[REGION]
    entries = stored(dtype)
    with opened(entries) as store:
        # A part of the tile, all of whose windows are known.
        assert same_bits(store.open("t")[0:2, 0:8], expected[0:2])
        assert same_bits(tensor(store, dtype)[REGION], expected)
    assert KEY not in entries
    with opened(entries) as store:
        assert same_bits(store.open("t")[REGION], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64])
def test_parts_of_one_dtype_are_the_bytes_that_they_were(dtype: torch.dtype) -> None:
    data = PartialTile(torch.ones(2, 2, dtype=dtype), 3, {(1, 2): torch.zeros(1, 2, dtype=dtype)}).to_bytes("here")
    assert b"prefix_dtype" not in data
    assert set(load(data)) == {"prefix", "piece 1,2"}


def test_both_dtypes_are_under_the_digest() -> None:
    part = PartialTile(torch.ones(2, 2), 3, {(1, 2): torch.zeros(1, 2, dtype=torch.bfloat16)})
    data = part.to_bytes("here")
    read = PartialTile.from_bytes(data, "here")
    assert read.prefix is not None
    assert (read.prefix.dtype, read.pieces[1, 2].dtype) == (torch.float32, torch.bfloat16)
    # As long as the one that is there.
    forged = data.replace(b'"prefix_dtype":"float32"', b'"prefix_dtype":"uint32" ')
    assert forged != data
    with pytest.raises(DamagedPartialError, match="does not match its digest"):
        PartialTile.from_bytes(forged, "here")


SUM, PIECE = torch.ones(8, 8), torch.ones(2, 2, dtype=torch.bfloat16)
WRONG: dict[str, Any] = {
    "a prefix in the dtype of pieces": PartialTile(SUM.bfloat16(), 4),
    "a prefix of too wide a dtype": PartialTile(SUM.double(), 4),
    "a piece in the dtype of sums": PartialTile(pieces={(2, 2): PIECE.float()}),
    "a prefix in the dtype of pieces beside a piece": PartialTile(SUM.bfloat16(), 4, {(2, 2): PIECE}),
}


@pytest.mark.parametrize("part", WRONG.values(), ids=WRONG)
def test_a_part_of_the_wrong_dtype_is_left_out(part: PartialTile) -> None:
    entries = stored(torch.bfloat16)
    entries[KEY] = (part.to_bytes(PLACE),)
    said = r"tile \(0, 0\) of tensor 't' has a (prefix|piece).*treated as missing"
    with bounded(), opened(entries) as store, pytest.warns(DamagedDataWarning, match=said):
        assert same_bits(tensor(store, torch.bfloat16)[REGION], tensor(MemoryTileStore(), torch.bfloat16)[REGION])


@pytest.mark.parametrize("dtype", SUMS)
def test_a_log_whose_sums_hold_all_windows_is_divided_when_it_is_read(dtype: torch.dtype) -> None:
    entries = stored(dtype)
    # Of windows of ones the sum is that of the weights.
    weights = torch.sin(torch.pi * (torch.arange(4, dtype=torch.float64) + 0.5) / 4) ** 2
    line = torch.zeros(14, dtype=torch.float64)
    for index in range(-1, 3):
        line[3 * index + 3 : 3 * index + 7] += weights
    sums = (line[3:11, None] * line[None, 3:11]).to(SUMS[dtype])
    entries[KEY] = (PartialTile(2 * sums, 16).to_bytes(PLACE),)
    with opened(entries) as store:
        pixels = store.open("t")[REGION]
    torch.testing.assert_close(pixels.double(), torch.full((8, 8), 2.0, dtype=torch.float64), rtol=1e-6, atol=0)
