"""Writes the files of this folder with version 0.4 of the package, in which these tensors are declared as they are now.

Run it by ``python write_files.py`` in an environment of its own, where version 0.4.0 of that package is installed from
the registry, with h5py and torch.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, TensorWindow

HERE = Path(__file__).parent
OVERLAPPING = TensorWindow((6, 6), stride=(4, 4))

CALLS: list[tuple[int, ...]] = []
"""Which windows were computed."""


def value(ctx: tuple[int, ...]) -> torch.Tensor:
    """A window of integers, whose sums are exact in any order."""
    CALLS.append(ctx)
    return torch.arange(36.0).reshape(6, 6) + 100 * ctx[0] + 7 * ctx[1]


def doubled(ctx: tuple[int, ...], region: torch.Tensor) -> torch.Tensor:
    """Twice what it reads."""
    CALLS.append(ctx)
    return region * 2


def coloured(ctx: tuple[int, ...]) -> torch.Tensor:
    """A window of three channels."""
    CALLS.append(ctx)
    return torch.full((3, 6, 6), float(ctx[1] * 10 + ctx[2]))


def ramp(ctx: tuple[int, ...]) -> torch.Tensor:
    """A window of integers, some below 0."""
    CALLS.append(ctx)
    return torch.arange(-10, -4) + ctx[0]


def chain(store: Any) -> dict[str, InfiniteTensor]:
    """Two tensors, one of which reads the other, and one whose id has slashes."""
    below = InfiniteTensor((None, None), value, OVERLAPPING, tile_store=store, tensor_id="below")
    top = InfiniteTensor(
        (None, None), doubled, OVERLAPPING, (below,), (OVERLAPPING,), tile_store=store, tensor_id="top"
    )
    slashed = InfiniteTensor((None, None), value, OVERLAPPING, tile_store=store, tensor_id="maps/of/heights")
    return {"below": below, "top": top, "maps/of/heights": slashed}


def shapes(store: Any) -> dict[str, InfiniteTensor]:
    """Tensors with a finite dimension, with a blend and integers, and with an arg that has no id."""
    channels = InfiniteTensor(
        (3, None, None), coloured, TensorWindow((3, 6, 6), stride=(3, 4, 4)), tile_store=store, tensor_id="channels"
    )
    highest = InfiniteTensor(
        (None,),
        ramp,
        TensorWindow((6,), stride=(4,)),
        dtype=torch.int64,
        tile_store=store,
        tensor_id="highest",
        blend=torch.maximum,
        blend_init=-100,
    )
    unnamed = InfiniteTensor((None, None), value, OVERLAPPING)
    twice = InfiniteTensor(
        (None, None), doubled, OVERLAPPING, (unnamed,), (OVERLAPPING,), tile_store=store, tensor_id="twice"
    )
    return {"channels": channels, "highest": highest, "twice": twice}


def oblong(store: Any) -> dict[str, InfiniteTensor]:
    """Tiles of (4, 6), and windows that do not overlap."""
    return {"t": InfiniteTensor((None, None), value, TensorWindow((6, 6)), tile_store=store, tensor_id="t")}


def mapped(store: Any) -> dict[str, InfiniteTensor]:
    """A tensor whose dimensions follow the coordinates of windows in another order."""
    window = TensorWindow((6, 6), dimension_map=(1, 0))
    return {"t": InfiniteTensor((None, None), value, window, tile_store=store, tensor_id="t")}


READ: Mapping[str, tuple[Callable[[Any], dict[str, InfiniteTensor]], Any, dict[str, tuple[slice, ...]]]] = {
    "chain": (chain, 8, {"top": (slice(8), slice(9)), "maps/of/heights": (slice(1), slice(1))}),
    "shapes": (
        shapes,
        8,
        {
            "channels": (slice(0, 3), slice(0, 8), slice(0, 9)),
            "highest": (slice(-8, 9),),
            "twice": (slice(0, 8), slice(0, 8)),
        },
    ),
    "oblong": (oblong, (4, 6), {"t": (slice(0, 6), slice(0, 6))}),
    "mapped": (mapped, 6, {"t": (slice(0, 6), slice(0, 6))}),
}
"""What is read of the tensors of each file, with the size of their tiles."""


def write() -> None:
    """Fill each file as far as these reads do, and keep it compressed."""
    for name, (tensors, tile_size, reads) in READ.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "store.h5")
            with HDF5TileStore(path, mode="w", tile_size=tile_size) as store:
                made = tensors(store)
                for tensor_id, region in reads.items():
                    start = [slice(part.start or 0, part.stop) for part in region]
                    made[tensor_id][tuple(start)]
            (HERE / f"{name}.h5.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


if __name__ == "__main__":
    write()
