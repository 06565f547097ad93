"""Stores and tensors in few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, ZarrTileStore
from tests.support.counting import Constant
from tests.support.dict_store import DictTileStore
from tests.support.stores import sample

VARIED: dict[str, Callable[[Path], TileStore]] = {
    "memory": lambda _path: MemoryTileStore(),
    "memory with a limit": lambda _path: MemoryTileStore(cache_size_windows=5),
    "zarr": lambda path: ZarrTileStore(path / "s.zarr", tile_size=16, cache_size_tiles=1),
    "zarr with small tiles": lambda path: ZarrTileStore(path / "s.zarr", tile_size=7, compressors=None),
    "hdf5": lambda path: HDF5TileStore(path / "s.h5", tile_size=13, compression=None, cache_size_tiles=2),
    "dictionary": lambda _path: DictTileStore({}, tile_size=10),
}
"""Stores whose tiles and limits cut windows apart in many ways."""


def store_of(kind: str, folder: Path, tile_size: Any = 8, **options: Any) -> TileStore:
    """The store in a folder that is of a kind: "memory", "zarr", "zarr behind a URL" or "hdf5"."""
    if kind == "memory":
        return MemoryTileStore(**options)
    if kind == "zarr":
        return ZarrTileStore(folder / "s.zarr", tile_size=tile_size, **options)
    if kind == "zarr behind a URL":
        return ZarrTileStore(f"memory://{folder}", tile_size=tile_size, **options)
    return HDF5TileStore(folder / "s.h5", tile_size=tile_size, **options)


def each_store(*kinds: str, tile_size: Any = 8, default: Sequence[str] = ()) -> Any:
    """A fixture ``store``: a store of each kind, of which all are slow but those in `default`; see `sample`."""

    @pytest.fixture(name="store", params=sample(kinds or ("memory", "zarr", "hdf5"), *default))
    def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
        return store_of(request.param, tmp_path, tile_size)

    return store


def built(
    f: Callable[..., Any],
    window: TensorWindow | Sequence[int] | int,
    *reads: InfiniteTensor | tuple[InfiniteTensor, TensorWindow],
    shape: Sequence[int | None] | None = None,
    store: TileStore | None = None,
    name: str | None = None,
    **options: Any,
) -> InfiniteTensor:
    """A tensor, which is unbounded without a shape, and reads others through its own window or a given one each.

    A window is given as such, or by its size; an int is that of the only dimension.
    """
    if not isinstance(window, TensorWindow):
        window = TensorWindow((window,) if isinstance(window, int) else tuple(window))
    args = [read if isinstance(read, tuple) else (read, window) for read in reads]
    return InfiniteTensor(
        (None,) * len(window.size) if shape is None else tuple(shape),
        f,
        window,
        [arg for arg, _ in args],
        [through for _, through in args],
        tile_store=store,
        tensor_id=name,
        **options,
    )


# Tensors for tests of stores, where any would do.

_PLANE = Constant()


def ones(_ctx: object) -> torch.Tensor:
    return torch.ones(4)


def numbers(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.full((4,), float(ctx[0]))


def line(
    store: Any, f: Callable[..., Any] = ones, tensor_id: str | None = "t", *, stride: int = 4, **options: Any
) -> InfiniteTensor:
    """One dimension without end, in windows of four pixels, which are full of ones unless `f` says otherwise."""
    return built(f, TensorWindow((4,), stride), store=store, name=tensor_id, **options)


def halves(store: Any, tensor_id: str = "t") -> InfiniteTensor:
    """Two windows to a tile of eight pixels, each full of its index."""
    return line(store, numbers, tensor_id)


def overlapping(store: Any, f: Callable[..., Any] = _PLANE, tensor_id: str = "t", **options: Any) -> InfiniteTensor:
    """A plane in windows of 4x4 pixels, each of which shares a row or column with those beside it."""
    return built(f, TensorWindow((4, 4), stride=3), store=store, name=tensor_id, **options)
