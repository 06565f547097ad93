"""What the tests of exports export, and how other programs read it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
import xarray

from infinite_tensor import InfiniteTensor, TensorWindow
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index

FORMS = ["zarr", "npy", "png", "tif"]
forms = pytest.mark.parametrize("form", FORMS)

REGION = (slice(-5, 9), slice(2, 25))
"""Neither begins nor ends with a tile."""


def pattern(ctx: Index) -> torch.Tensor:
    """A window of 4x4 pixels, none of them 0, that has no like nearby."""
    y, x = (slice(4 * i, 4 * i + 4) for i in ctx)
    return torch.from_numpy(truth((y, x)))


def plane(f: Callable[..., Any] = pattern, dtype: str = "uint8", **options: Any) -> InfiniteTensor:
    """A tensor of windows of 4x4, in tiles of 8x8."""

    def cast(ctx: Index) -> torch.Tensor:
        window: torch.Tensor = f(ctx).to(getattr(torch, dtype))
        return window

    store, named = DictTileStore({}, tile_size=8), {"dims": ("y", "x"), "tensor_id": "world/height"}
    given: dict[str, Any] = {"tile_store": store} | named | options
    return InfiniteTensor((None, None), cast, TensorWindow((4, 4)), dtype=dtype, **given)


def truth(region: tuple[slice, slice] = REGION) -> np.ndarray[Any, np.dtype[Any]]:
    """The pixels of a region, computed by hand."""
    y, x = (np.arange(part.start, part.stop) for part in region)
    pixels: np.ndarray[Any, np.dtype[Any]] = 1 + (37 * y[:, None] + 11 * x + (y[:, None] * x) % 5) % 200
    return pixels


def names_in(folder: Path) -> list[str]:
    """What lies in a folder, hidden or not."""
    return sorted(path.name for path in folder.iterdir())


def opened(target: Path | str) -> Any:
    """What another program finds in an exported file, as numpy has it."""
    match Path(target).suffix:
        case ".zarr":
            # As they were written: what is nodata would be NaN.
            with xarray.open_zarr(target, mask_and_scale=False) as found:
                (name,) = found.data_vars
                return found[name].to_numpy()
        case ".npy":
            return np.load(target)
        case _:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
                with rasterio.open(target) as file:
                    bands = file.read()
                    return bands[0] if file.count == 1 else bands
