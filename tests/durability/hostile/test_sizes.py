"""Sizes that no memory holds: refused before it is taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from infinite_tensor import (
    DamagedDataWarning,
    InfiniteTensor,
    MemoryTileStore,
    TensorWindow,
    TileAccessError,
    TileStore,
    ValidationError,
)
from infinite_tensor.tilestore.persistent import PartialTile
from tests.durability.hostile.honest import EXPECTED, REGION, Storage, make_base, nested, opened
from tests.support.bounds import bounded
from tests.support.building import built, line
from tests.support.dict_store import DictTileStore
from tests.support.interpreters import run
from tests.support.reference import same_bits


def test_a_tile_of_two_gibibytes_or_more_is_refused_before_anything_is_written() -> None:
    for tile_size, dtype in ((10**6, torch.uint8), (2**15, torch.float32), ((2**31, 1), torch.bool)):
        storage: Storage = {}
        store = DictTileStore(storage, tile_size=tile_size)
        with bounded(), pytest.raises(ValidationError, match=r"would have \d+ bytes.*smaller tile_size"):
            InfiniteTensor(
                (None, None), lambda _ctx: None, TensorWindow((4, 4)), tile_store=store, dtype=dtype, tensor_id="t"
            )
        assert storage == {}


def test_a_tile_that_memory_cannot_hold_is_an_error_of_ours() -> None:
    code = (
        "import resource, torch\n"
        "from infinite_tensor import InfiniteTensor, StoreError, TensorWindow\n"
        "from tests.support.dict_store import DictTileStore\n"
        "store = DictTileStore({}, tile_size=2**14)\n"
        "f = lambda ctx: torch.ones(4, 4)\n"
        "t = InfiniteTensor((None, None), f, TensorWindow((4, 4)), tile_store=store, tensor_id='t')\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**29, resource.RLIM_INFINITY))\n"
        "try:\n    t[0, 0]\nexcept StoreError as error:\n    print(error)\n"
    )
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert "no memory for the 1073741824 bytes of tile (0, 0) of tensor 't'" in done.stdout


def test_a_window_that_overlaps_itself_without_end_is_refused() -> None:
    with bounded(), pytest.raises(ValidationError, match="larger stride"):
        built(lambda _ctx: torch.zeros(4, 4), TensorWindow((2**11, 2**10), stride=1))
    built(lambda _ctx: torch.zeros(4, 4), TensorWindow((2**20, 2**20), stride=2**17))


@pytest.mark.parametrize(
    ("store", "regions"),
    [
        (MemoryTileStore(), [(0, slice(0, 65))]),
        (DictTileStore({}, tile_size=64), [(0, slice(0, 64)), (7, slice(64, 70))]),
    ],
    ids=["one region", "a list"],
)
def test_more_windows_than_can_be_worked_on_at_once_are_refused(store: TileStore, regions: Any) -> None:
    # 2**17 windows over each pixel are allowed.
    window = TensorWindow((2**17, 1), stride=1)
    t = InfiniteTensor((None, None), lambda _ctx: torch.zeros(2**17, 1), window, tile_store=store)
    with bounded(), pytest.raises(ValidationError, match="windows or tiles at once"):
        t[regions]


def test_a_tensor_has_at_most_32_dimensions() -> None:
    t = built(lambda _ctx: torch.ones((1,) * 32), (1,) * 32, store=DictTileStore({}, tile_size=1))
    assert t[(slice(-1, 1), *(0,) * 31)].tolist() == [1, 1]
    with pytest.raises(ValidationError, match="at most 32"):
        TensorWindow((1,) * 33)


@pytest.mark.parametrize("version", [nested(100), 10**3999, -(10**3999), [[1] * 10_000], {"": {"\ud800": "\ud800"}}])
def test_an_extreme_version_is_kept(version: Any) -> None:
    entries: Storage = {}
    with DictTileStore(entries, tile_size=4) as store:
        line(store, version=version)[0:3]
    assert DictTileStore(entries).open("t").version == version
    assert DictTileStore(entries).open("t")[0:3].tolist() == [1, 1, 1]


@pytest.mark.parametrize("version", [nested(101), 10**4001, -(10**5000), nested(100_000)], ids=["deep", *"abc"])
def test_a_version_that_could_not_be_read_back_is_refused(version: Any) -> None:
    with bounded(), pytest.raises(ValidationError, match="version"):
        line(MemoryTileStore(), version=version)


# Tiles.


@pytest.mark.parametrize(
    "tile",
    [
        torch.zeros(8, 7),
        torch.zeros(1, 8),
        torch.zeros(1),
        torch.zeros(8, 8, dtype=torch.float64),
        torch.zeros(8, 8, dtype=torch.complex64),
        torch.zeros(64),
        torch.zeros(0, 8),
    ],
    ids=lambda tile: f"{tile.dtype} {tuple(tile.shape)}",
)
def test_a_tile_of_another_kind_is_computed_again_with_a_warning(storage: Storage, tile: torch.Tensor) -> None:
    key = ("base", "tile", (0, 0))
    storage[key] = wrong = (PartialTile(tile).to_bytes(str(key)),)
    said = r"tile \(0, 0\) of tensor 'base' is .* not torch.float32 \(8, 8\)"
    with opened(storage) as store, pytest.warns(DamagedDataWarning, match=said):
        assert same_bits(make_base(store)[REGION], EXPECTED["base"])
    storage[key] = wrong
    with pytest.warns(DamagedDataWarning), pytest.raises(TileAccessError):
        opened(storage).open("base")[0:8, 0:6]
