"""What ``f`` returned is what is stored: every bit of it, and nothing that happens to it later."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    MemoryTileStore,
    TensorWindow,
    TileStore,
    ZarrTileStore,
    sl,
)
from tests.support.building import built
from tests.support.stored import DTYPES, dtype_name
from tests.support.stores import sample

Index: TypeAlias = tuple[int, ...]
Open: TypeAlias = Callable[..., TileStore]
Bytes: TypeAlias = npt.NDArray[np.uint8]

SIZE = (4, 6)
WINDOW = TensorWindow(SIZE)

PERSISTENT: dict[str, Callable[..., TileStore]] = {
    "zarr": lambda path, **options: ZarrTileStore(path / "s.zarr", **options),
    "zarr, not compressed": lambda path, **options: ZarrTileStore(path / "s.zarr", compressors=None, **options),
    "hdf5": lambda path, **options: HDF5TileStore(path / "s.h5", **options),
    "hdf5, not compressed": lambda path, **options: HDF5TileStore(path / "s.h5", compression=None, **options),
}


@pytest.fixture(params=sample(PERSISTENT))
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens one persistent store again and again."""
    return partial(PERSISTENT[request.param], tmp_path)


@pytest.fixture(params=sample(["memory", *PERSISTENT]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    """A store whose tiles cut windows apart."""
    return MemoryTileStore() if request.param == "memory" else PERSISTENT[request.param](tmp_path, tile_size=5)


def make(store: TileStore, f: Callable[..., Any], *reads: InfiniteTensor, **options: Any) -> InfiniteTensor:
    return built(f, WINDOW, *reads, store=store, name="t", **options)


def bits(tensor: torch.Tensor) -> Bytes:
    """The bytes of each pixel, in a last dimension."""
    raw: Bytes = tensor.contiguous().unsqueeze(-1).view(torch.uint8).numpy()
    return raw


# Every bit.

_MANTISSA = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def extremes(dtype: torch.dtype) -> torch.Tensor:
    """Values at the edges of a dtype, given by their bits so that no arithmetic touches them."""
    if dtype in _PARTS:
        parts = extremes(_PARTS[dtype])
        return torch.view_as_complex(torch.stack([parts, parts.roll(5)], dim=-1))
    if dtype is torch.bool:
        return torch.tensor([False, True])
    width = 8 * dtype.itemsize
    if not dtype.is_floating_point:
        patterns = [0, 1, 2**width - 1, 2 ** (width - 1), 2 ** (width - 1) - 1, 0x5A % 2**width]
    else:
        one, infinity = 1 << _MANTISSA[dtype], (1 << (width - 1)) - (1 << _MANTISSA[dtype])
        quiet = infinity | one >> 1
        positive = [
            *(0, 1, one - 1, one, infinity - 1, infinity),
            *(infinity | 1, infinity | (one >> 1) - 1, infinity | one >> 2),  # signalling NaN
            *(quiet, quiet | 1, quiet | one >> 3, infinity | one - 1),
        ]
        patterns = positive + [bit_pattern | 1 << (width - 1) for bit_pattern in positive]
    signed = [pattern - 2**width if pattern >= 2 ** (width - 1) else pattern for pattern in patterns]
    return torch.tensor(signed, dtype=_SIGNED[dtype.itemsize]).view(dtype)


def extreme_window(dtype: torch.dtype, ctx: Index) -> torch.Tensor:
    values = extremes(dtype)
    picks = (torch.arange(math.prod(SIZE)) + 5 * ctx[0] + 11 * ctx[1]) % len(values)
    return values[picks].reshape(SIZE)


def extreme_bits(dtype: torch.dtype, rows: range, columns: range) -> Bytes:
    """Windows side by side."""
    windows = [[bits(extreme_window(dtype, (y, x))) for x in columns] for y in rows]
    return np.concatenate([np.concatenate(row, axis=1) for row in windows], axis=0)


def extreme_tensor(store: TileStore, dtype: torch.dtype) -> InfiniteTensor:
    f = partial(extreme_window, dtype)
    return built(f, WINDOW, store=store, name=dtype_name(dtype), dtype=dtype)


@pytest.mark.parametrize("tile_size", [SIZE, (5, 5)], ids=["windows are tiles", "windows straddle tiles"])
def test_every_bit_of_every_dtype_comes_back_from_complete_tiles(reopen: Open, tile_size: Index) -> None:
    region = sl[-8:12, -12:18]
    with reopen(tile_size=tile_size) as store:
        for dtype in DTYPES:
            t = extreme_tensor(store, dtype)
            for _ in range(2):
                assert np.array_equal(bits(t[region]), extreme_bits(dtype, range(-2, 3), range(-2, 3))), dtype
            assert store.tensor_info(t.tensor_id).tiles_complete > 0
    with reopen() as store:
        for dtype in DTYPES:
            found = store.open(dtype_name(dtype))[region]
            assert np.array_equal(bits(found), extreme_bits(dtype, range(-2, 3), range(-2, 3))), dtype


def test_every_bit_of_every_dtype_comes_back_from_partial_tiles_that_grow_over_sessions(reopen: Open) -> None:
    known: list[Index] = []
    for ctx in ((1, 1), (0, 0), (1, 0)):
        with reopen(tile_size=12) as store:
            for dtype in DTYPES:
                extreme_tensor(store, dtype)[WINDOW.get_bounds(ctx)]
        known.append(ctx)
        with reopen() as store:
            for dtype in DTYPES:
                assert store.tensor_info(dtype_name(dtype)).tiles_partial == 1
                found = store.open(dtype_name(dtype))[[WINDOW.get_bounds(index) for index in known]]
                for index, window in zip(known, found, strict=True):
                    assert np.array_equal(bits(window), bits(extreme_window(dtype, index))), (dtype, index)
    with reopen(tile_size=12) as store:
        for dtype in DTYPES:
            t = extreme_tensor(store, dtype)
            assert np.array_equal(bits(t[0:12, 0:12]), extreme_bits(dtype, range(3), range(2))), dtype
            assert store.tensor_info(t.tensor_id).tiles_complete == 1


# Where a sum begins.


def _one_value(bit_pattern: int) -> Callable[[Index], torch.Tensor]:
    value = torch.tensor(bit_pattern, dtype=torch.int32).view(torch.float32)
    return lambda _ctx: value.expand(SIZE)


_NEGATIVE_ZERO, _SIGNALLING, _PAYLOAD = -(2**31), 0x7F800001, 0x7FC01234


@pytest.mark.parametrize("pattern", [_NEGATIVE_ZERO, _SIGNALLING, _PAYLOAD], ids=hex)
def test_without_a_blend_init_a_pixel_is_its_first_window(store: TileStore, pattern: int) -> None:
    t = make(store, _one_value(pattern))
    assert t[0:9, 0:9].view(torch.int32).unique().tolist() == [pattern]


@pytest.mark.parametrize(("blend_init", "pattern"), [(None, 0), (0, 0), (-0.0, _NEGATIVE_ZERO), (math.inf, 0x7F800000)])
@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_a_pixel_without_a_window_is_blend_init_or_0(store: TileStore, blend_init: float | None, pattern: int) -> None:
    gaps = TensorWindow(SIZE, stride=20, offset=10)
    t = built(lambda _ctx: torch.ones(SIZE), gaps, store=store, name="t", blend_init=blend_init)
    assert t[0:9, 0:9].view(torch.int32).unique().tolist() == [pattern]
    assert t[9:11, 12].view(torch.int32)[0] == pattern


# What f may return.


def _numbered() -> torch.Tensor:
    return torch.arange(24.0).reshape(SIZE) / 3


def _with_grad() -> torch.Tensor:
    with torch.enable_grad():
        return _numbered().requires_grad_() * 1


def _inferred() -> torch.Tensor:
    with torch.inference_mode():
        return _numbered() * 1


def _in_a_buffer() -> torch.Tensor:
    buffer = torch.full((9, 9), 7.0)
    buffer[2:6, 1:7] = _numbered()
    return buffer[2:6, 1:7]


def _strided() -> torch.Tensor:
    buffer = torch.full((8, 18), 7.0)
    buffer[::2, ::3] = _numbered()
    return buffer[::2, ::3]


_RETURNED: dict[str, tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], bool]]] = {
    "a view of a larger buffer": (_in_a_buffer, lambda x: x._base is not None),
    "a transposed tensor": (lambda: _numbered().t().contiguous().t(), lambda x: not x.is_contiguous()),
    "a tensor of every third column": (_strided, lambda x: x.stride() == (36, 3)),
    "an expanded row": (lambda: torch.arange(6.0).expand(SIZE), lambda x: x.stride() == (0, 1)),
    "an expanded pixel": (lambda: torch.tensor(0.3).expand(SIZE), lambda x: x.stride() == (0, 0)),
    "a negative view": (lambda: torch.complex(_numbered(), -_numbered()).conj().imag, torch.is_neg),
    "a conjugate view": (lambda: torch.complex(_numbered(), _numbered()).conj(), torch.is_conj),
    "a transposed conjugate view": (lambda: torch.complex(_numbered(), _numbered()).t().contiguous().mH, torch.is_conj),
    "a leaf that requires grad": (lambda: _numbered().requires_grad_(), lambda x: x.requires_grad and x.is_leaf),
    "a result that requires grad": (_with_grad, lambda x: x.requires_grad and not x.is_leaf),
    "a parameter": (lambda: torch.nn.Parameter(_numbered()), lambda x: isinstance(x, torch.nn.Parameter)),
    "a tensor of inference mode": (_inferred, lambda x: x.is_inference()),
}


@pytest.mark.parametrize("kind", _RETURNED)
def test_whatever_kind_of_tensor_f_returns_its_values_are_stored(store: TileStore, kind: str) -> None:
    returned, is_of_kind = _RETURNED[kind]
    one = returned()
    assert is_of_kind(one)
    values = one.detach().resolve_conj().resolve_neg().clone()
    t = make(store, lambda _ctx: returned(), dtype=values.dtype)
    for pixels in (t[0:4, 0:6], t[4:8, -6:0], t[0:4, 0:6]):
        assert np.array_equal(bits(pixels), bits(values))
        assert not pixels.requires_grad
        assert not pixels.is_inference()
        assert not pixels.is_conj()
        assert not pixels.is_neg()
    store.clear_cache("t")
    assert np.array_equal(bits(store.open("t", f=t.f)[0:4, 0:6]), bits(values))


def _spoil(tensors: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor in tensors:
            tensor.detach().fill_(-99)


class Hoarder:
    """An ``f`` that keeps all that it was given and has returned, and spoils it at every later call."""

    def __init__(self, window: Callable[[Index], torch.Tensor]) -> None:
        self.window = window
        self.kept: list[torch.Tensor] = []

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        _spoil(self.kept)
        output = self.window(ctx)
        for region in regions:
            output = output + region
        self.kept += [output, *regions]
        return output


class HoarderOfBatches(Hoarder):
    """Hands out views of one stack."""

    def __call__(self, contexts: Any, *regions: Any) -> Any:
        _spoil(self.kept)
        stack = torch.stack([self.window(ctx) for ctx in contexts])
        for column in regions:
            stack += torch.stack(column)
            self.kept += column
        self.kept.append(stack)
        return list(stack)


class HoarderOfStacks(HoarderOfBatches):
    """Hands out the stack itself."""

    def __call__(self, contexts: Any, *regions: Any) -> Any:
        super().__call__(contexts, *regions)
        return self.kept[-1]


def _told(ctx: Index) -> torch.Tensor:
    return _numbered() + 100 * ctx[0] + 10 * ctx[1]


def _told_region(rows: range, columns: range) -> torch.Tensor:
    return torch.cat([torch.cat([_told((y, x)) for x in columns], dim=1) for y in rows])


HOARDERS = pytest.mark.parametrize(
    ("kind", "batch_size"), [(Hoarder, None), (HoarderOfBatches, 3), (HoarderOfStacks, 3)]
)


@HOARDERS
def test_what_f_changes_later_changes_nothing(store: TileStore, kind: type[Hoarder], batch_size: int | None) -> None:
    f = kind(_told)
    t = make(store, f, batch_size=batch_size)
    first = t[0:8, 0:12]
    _spoil(f.kept)
    assert torch.equal(first, _told_region(range(2), range(2)))
    for _ in range(2):
        assert torch.equal(t[-4:8, -6:12], _told_region(range(-1, 2), range(-1, 2)))
        _spoil(f.kept)
        t.clear_cache()


@HOARDERS
def test_what_f_does_to_its_args_changes_nothing(store: TileStore, kind: type[Hoarder], batch_size: int | None) -> None:
    base = built(_told, WINDOW, store=store, name="base")
    f = kind(_told)
    t = make(store, f, base, batch_size=batch_size)
    for _ in range(2):
        assert torch.equal(t[-4:8, -6:12], 2 * _told_region(range(-1, 2), range(-1, 2)))
        _spoil(f.kept)
        assert torch.equal(base[-4:8, -6:12], _told_region(range(-1, 2), range(-1, 2)))


@pytest.mark.parametrize("returned", [lambda region: region, lambda region: region[:], lambda region: region.t().t()])
def test_what_f_hands_on_is_not_shared(store: TileStore, returned: Callable[[torch.Tensor], torch.Tensor]) -> None:
    base = built(_told, WINDOW, store=store, name="base")
    kept: list[torch.Tensor] = []

    def f(_ctx: Index, region: torch.Tensor) -> torch.Tensor:
        kept.append(region)
        return returned(region)

    t = make(store, f, base)
    t[0:4, 0:12].fill_(-5)
    _spoil(kept)
    for tensor in (t, base):
        assert torch.equal(tensor[0:4, 0:12], _told_region(range(1), range(2)))


# What a read returns.

_READS: dict[str, Callable[[InfiniteTensor], list[torch.Tensor]]] = {
    "a region": lambda t: [t[0:4, 0:6]],
    "a whole window and its neighbours": lambda t: [t[-4:8, -6:12]],
    "a pixel": lambda t: [t[1, 1]],
    "a row": lambda t: [t[1, 0:6]],
    "every other pixel": lambda t: [t[0:8:2, 0:6:2]],
    "a region backwards": lambda t: [t[7:-1:-1, 5:-1:-1]],
    "a list": lambda t: list(t[[sl[0:4, 0:6], sl[0:4, 0:6], sl[2, 0:6]]]),
    "a stream": lambda t: [r for ready in t.iter_regions([sl[0:4, 0:6], sl[0:4, 0:6]]) for r in ready],
}


@pytest.mark.parametrize("how", _READS)
def test_writing_into_a_result_changes_nothing_else(store: TileStore, how: str) -> None:
    t = make(store, _told)
    expected = [result.clone() for result in _READS[how](t)]
    for _ in range(3):
        results = _READS[how](t)
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
        for number, result in enumerate(results):
            result.fill_(-99)
            # Those of one read share nothing with each other either.
            assert all(torch.equal(a, b) for a, b in zip(results[number + 1 :], expected[number + 1 :], strict=True))
    t.clear_cache()
    assert torch.equal(t[-4:8, -6:12], _told_region(range(-1, 2), range(-1, 2)))
