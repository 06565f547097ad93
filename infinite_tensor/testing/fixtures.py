"""Base class, tensors and pixels for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pytest
import torch

from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore
from infinite_tensor.tilestore.backend import Backend, TensorHandle
from infinite_tensor.tilestore.persistent import PartialTile, PersistentTileStore
from infinite_tensor.tilestore.store import TileStore, contents_of
from infinite_tensor.values.dtypes import DTYPES, dtype_name

TILE = 5
WINDOW = TensorWindow((4, 4), stride=3)

Tiles: TypeAlias = dict[Index, torch.Tensor]
Partials: TypeAlias = dict[Index, PartialTile | None]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)

HOSTILE_IDS = {
    "parent": "../x",
    "parents": "../../x",
    "slash": "a/b",
    "absolute": "/x",
    "backslash": "..\\x",
    "dot": ".",
    "dots": "..",
    "umlaut": "ü",
    "emoji": "\N{WORLD MAP}",
    "long": "x" * 1000,
    "long umlauts": "ü" * 1000,
    "nul": "a\0b",
    "newline": "a\nb",
    "space": " ",
    "percent": "a%2Fb",
    "metadata": "zarr.json",
    "device": "con",
    "url": "memory://x",
    "format": "{0} %s =41",
}
"""Ids dangerous for a backend without escaping. Each key names the danger."""


class Ramp:
    """The ``f`` of the test tensors.

    Values depend on window and pixel. `calls` lists the computed windows.
    """

    def __init__(self) -> None:
        self.calls: list[Index] = []

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        """Compute the window `ctx`."""
        self.calls.append(ctx)
        ramp = torch.arange(16.0).reshape(4, 4) / 3 + 0.1 * ctx[0] + 1e4 * ctx[1]
        return sum((region[:4, :4] for region in regions), ramp)


class OtherRamp(Ramp):
    """An ``f`` with the negated values of `Ramp`."""

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        """Compute the window `ctx`, negated."""
        return -super().__call__(ctx, *regions)


def tensor_on(store: PersistentTileStore | MemoryTileStore, f: Ramp, name: str = "t", **options: Any) -> InfiniteTensor:
    """Create a test tensor in a store."""
    return InfiniteTensor((None, None), f, options.pop("window", WINDOW), tile_store=store, tensor_id=name, **options)


def reader_of(store: PersistentTileStore | MemoryTileStore, f: Ramp, tensor: InfiniteTensor) -> InfiniteTensor:
    """Create a tensor with `tensor` as an arg."""
    return tensor_on(store, f, "top", args=[tensor], args_windows=[WINDOW])


def backend_of(store: TileStore) -> Backend:
    """Return the backend of a store."""
    return contents_of(store).storage.backend


def definition_of(store: TileStore, name: str) -> dict[str, Any] | None:
    """Return the stored definition of a tensor, or None."""
    stored = contents_of(store).storage.documents.tensor(name)
    return None if stored is None else dict(stored.fields)


def handle_of(store: TileStore, name: str) -> TensorHandle:
    """Return the handle of a tensor that is in use."""
    return contents_of(store).registry.records[name].handle


def declare(store: PersistentTileStore, name: str = "t", dtype: torch.dtype = torch.float32) -> None:
    """Create a tensor with the id `name`.

    Tests can then call storage methods with this id.
    """
    vars(store).setdefault("_declared", []).append(tensor_on(store, Ramp(), name, dtype=dtype))


def pixels(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Return pixels of random bits.

    If the dtype has -0.0 and NaNs with payloads, the pixels include both.
    """
    generator = torch.Generator().manual_seed(seed)
    size = (*shape, dtype.itemsize)
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, size, dtype=torch.uint8, generator=generator)
    pixels = raw.view(dtype).squeeze(-1)
    if dtype.is_floating_point or dtype.is_complex:
        pixels.view(-1)[0] = -0.0
        raw.view(-1, dtype.itemsize)[1:3] = 0xFF
    return pixels


def same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Return whether two blocks have the same dtype, shape and bits.

    Return True if both are None.
    """
    if a is None or b is None:
        return a is b
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


class BackendTests:
    """Base class of all tests, with the methods for a backend author to override."""

    concurrent: ClassVar[bool] = True

    def open_store(self, location: Any, **options: Any) -> PersistentTileStore:
        """Open or create the store at `location`.

        Parameters
        ----------
        location : object
            The value of the fixture `location`; the same for all stores that a test opens.
        **options
            `tile_size`, `cache_size_bytes` and `cache_size_tiles`, for `PersistentTileStore`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    def location(self, tmp_path: Path) -> Any:
        """An unused location for a store.

        The default is a path below `tmp_path`.
        """
        return tmp_path / "store"

    def damage_tile(self, location: Any, tensor_id: str, tile: Index) -> None:
        """Damage a stored complete tile without using the store.

        Override this method to test `verify`. It is called while no store is open on `location`.

        Parameters
        ----------
        location : object
            The location of the store.
        tensor_id : str
            The id of a tensor in the store.
        tile : tuple of int
            One of its complete tiles.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define damage_tile")

    def _open(
        self, location: Any, *declared: str, dtype: torch.dtype = torch.float32, **options: Any
    ) -> PersistentTileStore:
        store = self.open_store(location, **{"tile_size": TILE, **options})
        for name in declared:
            declare(store, name, dtype)
        return store

    def _write(
        self, location: Any, tiles: Tiles, partials: Partials | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        with self._open(location, "t", dtype=dtype) as store:
            handle_of(store, "t").write_tiles(tiles)
            handle_of(store, "t").write_partials(partials or {})

    def _tiles(self, location: Any, tiles: Sequence[Index], dtype: torch.dtype = torch.float32) -> list[Any]:
        with self._open(location, "t", dtype=dtype) as store:
            return list(handle_of(store, "t").read_tiles(tiles))

    def _partials(self, location: Any, tiles: Sequence[Index], dtype: torch.dtype = torch.float32) -> list[Any]:
        with self._open(location, "t", dtype=dtype) as store:
            return list(handle_of(store, "t").read_partials(tiles))

    def _open_with(self, method: str, location: Any, *declared: str) -> PersistentTileStore:
        store = self._open(location, *declared)
        if method in backend_of(store).lacks:
            store.close()
            pytest.skip(f"this backend has no {method}")
        return store

    def _needs_two_stores(self) -> None:
        if not self.concurrent:
            pytest.skip("one store object at a time")
