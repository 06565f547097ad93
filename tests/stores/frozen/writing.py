"""Small stores as one version of the library writes them: `python tests/stores/frozen/writing.py FOLDER`.

Run by an interpreter in which the wheel of a release is installed, it writes `FOLDER/VERSION.zip`, which is kept beside
this file: from then on, every version reads these stores.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

import infinite_tensor
from infinite_tensor import InfiniteTensor, TensorBlob, TensorGroup, TensorWindow, TileStore, open_store, predict, sl

STORES = ("stores.zarr", "store.h5")
SIZE = TensorWindow((8, 8))


def plane(ctx: Sequence[int]) -> torch.Tensor:
    """Pixel (y, x) of an unbounded tensor is ``1000 * y + x``."""
    rows, columns = (torch.arange(8 * at, 8 * at + 8) for at in ctx)
    return 1000 * rows[:, None] + columns


def ones(ctx: Sequence[int]) -> torch.Tensor:
    """Windows that overlap, so that four of them meet in a pixel."""
    del ctx
    return torch.ones(8, 8)


def twice(ctx: Sequence[int], region: torch.Tensor) -> torch.Tensor:
    """The window of a tensor that is computed from another one."""
    del ctx
    return 2 * region


def halves(ctx: Sequence[int]) -> torch.Tensor:
    """Halves of small numbers, which 16 bits can hold."""
    return torch.full((8, 8), (ctx[0] + 2 * ctx[1]) / 2, dtype=torch.bfloat16)


def scores(batch: torch.Tensor) -> torch.Tensor:
    """Stands for a network: two classes, light and dark."""
    return torch.cat([batch, 1 - batch], 1)


def image() -> torch.Tensor:
    """One channel of 20 x 28 pixels: light on the left, dark on the right."""
    return torch.linspace(1, 0, 28).expand(1, 20, 28).contiguous()


def tensors(store: TileStore) -> dict[str, InfiniteTensor]:
    """The tensors of a store by their ids, as declared by the script that fills them."""
    base = InfiniteTensor(
        (None, None), plane, SIZE, dtype="int64", tile_store=store, tensor_id="plane", dims=("y", "x")
    )
    return {
        "plane": base,
        "sums": InfiniteTensor((None, None), ones, TensorWindow((8, 8), stride=4), tile_store=store, tensor_id="sums"),
        "hann": InfiniteTensor(
            (30, 30),
            ones,
            TensorWindow((8, 8), stride=4),
            blend="hann",
            edge="clip",
            tile_store=store,
            tensor_id="hann",
        ),
        "halves": InfiniteTensor(
            (20, 30),
            halves,
            SIZE,
            edge="clip",
            dtype="bfloat16",
            tile_store=store,
            tensor_id="halves",
            version={"seed": 3},
        ),
        "twice": InfiniteTensor(
            (None, None),
            twice,
            SIZE,
            args=[base],
            args_windows=[SIZE],
            dtype="int64",
            tile_store=store,
            tensor_id="twice",
        ),
    }


FILLED = sl[-20:20, 10:40]
"""What is stored of the unbounded tensors."""


def fill(store: TileStore) -> None:
    """Store regions of all tensors, levels, a prediction and a group."""
    found = tensors(store)
    for name in ("plane", "twice"):
        found[name].fill(FILLED, progress=False)
    found["sums"].read(FILLED)  # unlike a fill, it leaves tiles that lack windows
    for each in (found["hann"], found["halves"], *found["halves"].pyramid(2)):
        each.fill(..., progress=False)
    predict(
        scores,
        image(),
        store,
        window=8,
        dims=("c", "y", "x"),
        reduce="argmax",
        tensor_id="labels",
        version=1,
        progress=False,
    )
    TensorGroup({"plane": found["plane"], "more": {"twice": found["twice"]}}).save(store, "scene")


def write(folder: Path) -> None:
    """Write a Zarr store, an HDF5 file and a blob."""
    for name in STORES:
        with open_store(folder / name, tile_size=16) as store:
            fill(store)
    with TensorBlob.open(folder / "rows.blob", "w", dtype="float32", shape=(3,), block_size=4) as blob:
        blob.write(torch.arange(30.0).view(10, 3))


def main() -> None:
    """Write the archive of the installed version."""
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        shutil.make_archive(str(Path(sys.argv[1]) / infinite_tensor.__version__), "zip", scratch)


if __name__ == "__main__":
    main()
