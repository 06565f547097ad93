"""HDF5 files of a user's, and what in them is the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore, sl


def make_theirs(path: Path, **options: Any) -> None:
    """A file as programs write them: settings, and arrays of all kinds."""
    with h5py.File(path, "w", **options) as h5:
        h5.attrs["SETTINGS"] = '{"seed": 7}'
        h5.attrs["scale"] = np.array([0.5, 2.0])
        h5.create_dataset("raw/heights", data=np.arange(600.0).reshape(20, 30), compression="gzip", chunks=(10, 30))
        h5["raw"].attrs["unit"] = "m"
        h5["raw/heights"].attrs["seen"] = True
        h5.create_group("groups/physics")["g"] = 9.81
        h5["alias"] = h5py.SoftLink("/raw/heights")


def theirs(path: Path) -> dict[str, Any]:
    """All that is in a file, but what this library names its own."""
    with h5py.File(path, "r") as h5:
        found: dict[str, Any] = {f"@{key}": _plain(value) for key, value in h5.attrs.items()}
        names: list[str] = []
        h5.visit(names.append)
        for name in names:
            item = h5[name]
            if name.partition("/")[0] != "infinite_tensor":
                found[name] = _plain(item[()]) if isinstance(item, h5py.Dataset) else None
                found |= {f"{name}@{key}": _plain(value) for key, value in item.attrs.items()}
        links = {name: h5.get(name, getlink=True) for name in h5}
        return found | {f"->{name}": link.path for name, link in links.items() if isinstance(link, h5py.SoftLink)}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def tensor(store: TileStore, tensor_id: str = "map") -> InfiniteTensor:
    """Windows of 4 by 4, each full of 100 times its first coordinate plus its second."""
    return InfiniteTensor(
        (None, None),
        lambda ctx: torch.full((4, 4), 100.0 * ctx[0] + ctx[1]),
        TensorWindow((4, 4)),
        tile_store=store,
        tensor_id=tensor_id,
    )


def pixels(store: TileStore, tensor_id: str = "map") -> list[list[float]]:
    """Of a complete tile of 8 by 8, and three that are partial."""
    return [[float(value) for value in row] for row in tensor(store, tensor_id)[PLACE]]


def flip_tile(dataset: Any) -> None:
    """Change a bit of the stored bytes of a tile, a dataset of one chunk."""
    at = (0,) * dataset.ndim
    mask, data = dataset.id.read_direct_chunk(at)
    dataset.id.write_direct_chunk(at, bytes([data[0] ^ 0x10]) + data[1:], mask)


PLACE = sl[0:12:4, -4:8:4]
EXPECTED = [[100.0 * y + x for x in (-1, 0, 1)] for y in (0, 1, 2)]
