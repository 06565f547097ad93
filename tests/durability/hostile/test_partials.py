"""Parts of partial tiles that nobody honest wrote: refused, and their pixels computed again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    DamagedDataWarning,
    InfiniteTensor,
    MemoryTileStore,
    TileAccessError,
    TileStore,
)

# Inside: bytes of a part, one by one.
from infinite_tensor.tilestore.partial import DamagedPartialError, PartialTile
from tests.durability.hostile.honest import Storage, opened
from tests.support.bounds import bounded
from tests.support.building import overlapping
from tests.support.counting import Counted
from tests.support.dict_store import Index
from tests.support.reference import same_bits

KEY = ("t", "partial", (0, 0))
PLACE = str(KEY)
REGION = (slice(0, 8), slice(0, 8))


def window(ctx: Index) -> torch.Tensor:
    """Of 4x4 pixels with a stride of 3, so that -1 to 2 in each dimension cover tile (0, 0)."""
    return torch.arange(16.0).reshape(4, 4) / 3 + 10 * ctx[0] + 0.1 * ctx[1]


def expected() -> torch.Tensor:
    pixels: torch.Tensor = overlapping(opened({}), Counted(window))[REGION]
    return pixels


def stored(make: Callable[[TileStore], InfiniteTensor]) -> Storage:
    """A store that knows windows (-1, -1) to (0, 2) of tile (0, 0) as its prefix, and (2, 2) as a loose piece."""
    entries: Storage = {}
    with opened(entries) as store:
        t = make(store)
        t[-2:2, 0:8]
        t[7:8, 7:8]
    assert KEY in entries
    return entries


@pytest.fixture
def storage() -> Storage:
    return stored(lambda store: overlapping(store, Counted(window)))


_TILE = torch.ones(8, 8)
_MADE_UP = {
    "a prefix of more windows than there are": PartialTile(_TILE, 17),
    "a prefix of absurdly many windows": PartialTile(_TILE, 10**400),
    "a prefix of no window": PartialTile(_TILE, 0),
    "a prefix of -1 windows": PartialTile(_TILE, -1),
    "a number of windows without a prefix": PartialTile(None, 4),
    "a negative number of windows without a prefix": PartialTile(None, -4),
    "a prefix that broadcasts from a row": PartialTile(torch.ones(1, 8), 4),
    "a prefix that broadcasts from a pixel": PartialTile(torch.ones(1, 1), 4),
    "a prefix of fewer dimensions": PartialTile(torch.ones(8), 4),
    "a prefix of more dimensions": PartialTile(torch.ones(1, 8, 8), 4),
    "a prefix larger than the tile": PartialTile(torch.ones(16, 8), 4),
    "an empty prefix": PartialTile(torch.ones(0, 8), 4),
    "a prefix of another dtype": PartialTile(_TILE.double(), 4),
    "a prefix of another dtype of one size": PartialTile(_TILE.int(), 4),
    "a piece of another dtype": PartialTile(pieces={(1, 1): torch.ones(4, 4, dtype=torch.complex64)}),
    "a piece that broadcasts": PartialTile(pieces={(1, 1): torch.ones(1, 4)}),
    "a piece larger than its window": PartialTile(pieces={(1, 1): torch.ones(5, 4)}),
    "a piece larger than what lies in the tile": PartialTile(pieces={(-1, -1): torch.ones(4, 4)}),
    "an empty piece": PartialTile(pieces={(1, 1): torch.ones(0, 4)}),
    "a piece of a window beside the tile": PartialTile(pieces={(3, 0): torch.ones(4, 4)}),
    "a piece of a window before the tile": PartialTile(pieces={(0, -2): torch.ones(4, 4)}),
    "a piece of a window far away": PartialTile(pieces={(10**400, 0): torch.ones(4, 4)}),
    "a piece of a window of fewer dimensions": PartialTile(pieces={(1,): torch.ones(4, 4)}),
    "a piece of a window of more dimensions": PartialTile(pieces={(1, 1, 0): torch.ones(4, 4)}),
    "a right piece beside a wrong one": PartialTile(pieces={(1, 1): torch.ones(4, 4), (9, 9): torch.ones(4, 4)}),
}


@pytest.mark.parametrize("part", _MADE_UP.values(), ids=_MADE_UP)
def test_a_part_that_does_not_fit_is_left_out_though_its_digest_is_right(storage: Storage, part: PartialTile) -> None:
    storage[KEY] = wrong = (part.to_bytes(PLACE),)
    f = Counted(window)
    said = r"partial tile \(0, 0\) of tensor 't' is damaged: (prefix|piece|window).*treated as missing"
    with bounded(), opened(storage) as store, pytest.warns(DamagedDataWarning, match=said):
        assert same_bits(overlapping(store, f)[REGION], expected())
    assert len(f.calls) == len(set(f.calls)) == 16
    assert KEY not in storage
    with opened(storage) as store:
        assert same_bits(store.open("t")[REGION], expected())
    del storage["t", "tile", (0, 0)]
    storage[KEY] = wrong
    with pytest.warns(DamagedDataWarning), pytest.raises(TileAccessError, match="'t' was opened without f"):
        opened(storage).open("t")[0:2, 0:8]


@pytest.mark.parametrize("part", _MADE_UP.values(), ids=_MADE_UP)
@pytest.mark.filterwarnings("ignore::infinite_tensor.DamagedDataWarning")
def test_a_part_that_does_not_fit_spoils_no_pixel_of_those_beside_it(storage: Storage, part: PartialTile) -> None:
    for log in ((*storage[KEY], part.to_bytes(PLACE)), (part.to_bytes(PLACE), *storage[KEY])):
        with opened(storage | {KEY: log}) as store:
            assert same_bits(overlapping(store, Counted(window))[REGION], expected())


def test_what_fits_is_taken_in(storage: Storage) -> None:
    f = Counted(window)
    with opened(storage) as store:
        assert same_bits(store.open("t")[0:2, 0:8], expected()[0:2])
        assert same_bits(overlapping(store, f)[REGION], expected())
    assert sorted(f.calls) == [(1, -1), (1, 0), (1, 1), (1, 2), (2, -1), (2, 0), (2, 1)]


# Bytes.


def _file(header: Any, content: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + content


def _claims(shape: list[int], begin: int, end: int, dtype: str = "U8") -> dict[str, Any]:
    metadata = {"dtype": "uint8", "prefix_length": "1", "digest": "0" * 32}
    return {"__metadata__": metadata, "prefix": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}


_NO_PART = {
    "nothing": b"",
    "a few bytes": b"\0" * 7,
    "a header of no length": b"\0" * 8,
    "a header of 2**63 bytes": _file({}, length=2**63),
    "a header of 2**64 - 1 bytes": _file({}, length=2**64 - 1),
    "a header longer than the file": _file({}, length=100),
    "a header that is no JSON": _file(b"x" * 64),
    "a header that is a list": _file([]),
    "a header that is nested 100,000 deep": _file(b'{"x":' * 100_000),
    "a header of nested lists": _file(b"[" * 100_000 + b"]" * 100_000),
    "no metadata": _file({}),
    "metadata of another kind": _file({"__metadata__": []}),
    "metadata without a digest": _file({"__metadata__": {"dtype": "uint8", "prefix_length": "0"}}),
    "a tensor of 2**60 elements": _file(_claims([2**30, 2**30], 0, 2**60), b"\0" * 64),
    "a tensor whose size overflows": _file(_claims([2**32, 2**32, 2**32], 0, 64), b"\0" * 64),
    "a tensor of negative size": _file(_claims([-1, 64], 0, 64), b"\0" * 64),
    "a tensor that ends before it begins": _file(_claims([64], 64, 0), b"\0" * 64),
    "a tensor of an unknown dtype": _file(_claims([64], 0, 64, "U128"), b"\0" * 64),
    "a tensor of a dtype that numpy lacks": _file(_claims([32], 0, 64, "BF16"), b"\0" * 64),
    "a tensor that is not there": _file(_claims([64], 0, 64)),
}


@pytest.mark.parametrize("data", _NO_PART.values(), ids=_NO_PART)
def test_bytes_that_are_no_part_are_refused_in_time(data: bytes) -> None:
    with bounded(), pytest.raises(DamagedPartialError, match="damaged partial tile here"):
        PartialTile.from_bytes(data, "here")


def _part() -> bytes:
    return PartialTile(torch.ones(2, 2), 3, {(1, 2): torch.zeros(1, 2)}).to_bytes("here")


def test_a_part_that_is_cut_short_anywhere_is_refused() -> None:
    data = _part()
    for length in range(len(data)):
        with pytest.raises(DamagedPartialError):
            PartialTile.from_bytes(data[:length], "here")


def _flipped(data: bytes) -> Iterator[bytes]:
    for at, byte in enumerate(data):
        for bit in range(8):
            yield data[:at] + bytes([byte ^ 1 << bit]) + data[at + 1 :]


def test_a_part_with_any_bit_flipped_is_refused_or_means_the_same() -> None:
    honest, refused = PartialTile.from_bytes(_part(), "here"), 0
    for data in _flipped(_part()):
        try:
            found = PartialTile.from_bytes(data, "here")
        except DamagedPartialError:
            refused += 1
            continue
        assert (found.prefix_length, found.pieces.keys()) == (3, honest.pieces.keys())
        assert found.prefix is not None
        assert honest.prefix is not None
        assert same_bits(found.prefix, honest.prefix)
        assert same_bits(found.pieces[1, 2], honest.pieces[1, 2])
    # What means the same is a blank of JSON in place of another.
    assert refused > len(_part()) * 8 - 20


def test_a_part_of_another_tile_or_tensor_is_refused(storage: Storage, tmp_path: Path) -> None:
    for place in ("", "there", "here ", "here\0", str(tmp_path)):
        with pytest.raises(DamagedPartialError, match="does not match the digest"):
            PartialTile.from_bytes(_part(), place)
    other = ("t", "partial", (0, 1))
    storage[KEY], storage[other] = storage[other], storage[KEY]
    with opened(storage) as store, pytest.warns(DamagedDataWarning):
        assert same_bits(overlapping(store, Counted(window))[REGION], expected())


# Logs of tensors that are blended by a weighted mean: sums in one dtype, pieces in another.

SUMS = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float64: torch.float64}


def mean(store: TileStore, dtype: torch.dtype) -> InfiniteTensor:
    return overlapping(store, lambda ctx: window(ctx).to(dtype), dtype=dtype, blend="hann")


def stored_mean(dtype: torch.dtype) -> Storage:
    return stored(lambda store: mean(store, dtype))


@pytest.mark.parametrize("dtype", SUMS)
def test_a_log_holds_sums_that_are_not_divided_and_plain_pieces(dtype: torch.dtype) -> None:
    (data,) = stored_mean(dtype)[KEY]
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
    expected = mean(MemoryTileStore(), dtype)[REGION]
    entries = stored_mean(dtype)
    with opened(entries) as store:
        # A part of the tile, all of whose windows are known.
        assert same_bits(store.open("t")[0:2, 0:8], expected[0:2])
        assert same_bits(mean(store, dtype)[REGION], expected)
    assert KEY not in entries
    with opened(entries) as store:
        assert same_bits(store.open("t")[REGION], expected)


def test_both_dtypes_are_under_the_digest() -> None:
    part = PartialTile(torch.ones(2, 2), 3, {(1, 2): torch.zeros(1, 2, dtype=torch.bfloat16)})
    data = part.to_bytes("here")
    read = PartialTile.from_bytes(data, "here")
    assert read.prefix is not None
    assert (read.prefix.dtype, read.pieces[1, 2].dtype) == (torch.float32, torch.bfloat16)
    # As long as the one that is there.
    forged = data.replace(b'"prefix_dtype":"float32"', b'"prefix_dtype":"uint32" ')
    assert forged != data
    with pytest.raises(DamagedPartialError, match="does not match the digest"):
        PartialTile.from_bytes(forged, "here")


SUM, PIECE = torch.ones(8, 8), torch.ones(2, 2, dtype=torch.bfloat16)
WRONG_DTYPES: dict[str, Any] = {
    "a prefix in the dtype of pieces": PartialTile(SUM.bfloat16(), 4),
    "a prefix of too wide a dtype": PartialTile(SUM.double(), 4),
    "a piece in the dtype of sums": PartialTile(pieces={(2, 2): PIECE.float()}),
    "a prefix in the dtype of pieces beside a piece": PartialTile(SUM.bfloat16(), 4, {(2, 2): PIECE}),
}


@pytest.mark.parametrize("part", WRONG_DTYPES.values(), ids=WRONG_DTYPES)
def test_a_part_of_the_wrong_dtype_is_left_out(part: PartialTile) -> None:
    entries = stored_mean(torch.bfloat16)
    entries[KEY] = (part.to_bytes(PLACE),)
    said = r"partial tile \(0, 0\) of tensor 't' is damaged: (prefix|piece|window).*treated as missing"
    with bounded(), opened(entries) as store, pytest.warns(DamagedDataWarning, match=said):
        assert same_bits(mean(store, torch.bfloat16)[REGION], mean(MemoryTileStore(), torch.bfloat16)[REGION])
