"""What the tests of views show, and what they ask of arrays of zarr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import zarr

from infinite_tensor import InfiniteTensor, TensorWindow
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index

Pixels: TypeAlias = npt.NDArray[Any]

WINDOW = TensorWindow((4, 4))
NO_NAMES = ["a/b", "a\\b", "..", ".", "...", "__a", "zarr.json", "export.json", "a\0b", "\udcff"]
"""What no array in a group of Zarr is called."""


def ramp(ctx: Index) -> torch.Tensor:
    """Windows of 4x4 in which pixel (y, x) is 1000 y + x."""
    y, x = (torch.arange(4.0) + 4 * i for i in ctx[:2])
    return 1000 * y[:, None] + x


def ramp_of(rows: range, columns: range) -> Pixels:
    """What `ramp` computes there."""
    return np.array([[1000.0 * y + x for x in columns] for y in rows], np.float32)


def tensor_of(
    f: Callable[..., Any] = ramp, shape: tuple[int | None, ...] = (None, None), **options: Any
) -> InfiniteTensor:
    """A tensor of windows and tiles of 4x4."""
    given: dict[str, Any] = {
        "tile_store": DictTileStore({}, tile_size=4),
        "dims": ("y", "x"),
        "tensor_id": "height",
    } | options
    return InfiniteTensor(shape, f, WINDOW, **given)


def pixels_of(tensor: InfiniteTensor, region: object) -> Pixels:
    """A region as an array."""
    return np.asarray(tensor[region])


def member(group: zarr.Group, path: str) -> zarr.Array[Any]:
    """An array in a group."""
    found = group[path]
    assert isinstance(found, zarr.Array)
    return found


def names_of(array: zarr.Array[Any]) -> tuple[str, ...]:
    """The names of its dimensions."""
    names: Any = array.metadata.to_dict()["dimension_names"]
    return tuple(names)


def told_of(array: zarr.Array[Any]) -> dict[str, Any]:
    """What a face tells of its tensor."""
    told: Any = array.attrs.asdict()["infinite_tensor"]
    return dict(told)
