"""Files of version 0.4: what that version has stored of a tensor, read and never written.

/tensors/<id>/metadata     attributes meta (JSON) and tile_size, per unbounded dimension
/tensors/<id>/tiles/<i_j>  a tile, finite dimensions whole; attribute contributions: the windows blended into it
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor_stores.hdf5.members import MARK, check_size, import_h5py

_ROOT = "tensors"


@dataclass(frozen=True)
class OldTensor:
    """One tensor in a file of version 0.4.

    Attributes
    ----------
    meta : mapping
        What decided its values, as far as that version wrote it: shape, dtype, windows and the ids of its args.
    tile_size : tuple of int
        Extent of a tile per unbounded dimension.
    """

    meta: Mapping[str, Any]
    tile_size: Index
    _tiles: Any

    def tiles(self) -> list[Index]:
        """The tiles of which something is stored, with an index per unbounded dimension."""
        found = (_index_of(name) for name in self._tiles if isinstance(name, str))
        return sorted(index for index in found if index is not None)

    def windows(self, tile: Index) -> frozenset[Index]:
        """The windows that were blended into a tile; none where that cannot be read."""
        try:
            listed = self._tiles[_name_of(tile)].attrs.get("contributions", ())
            names = [name.decode() if isinstance(name, bytes) else str(name) for name in listed]
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  (h5py raises what it pleases on a damaged file)
            return frozenset()
        return frozenset(index for name in names if (index := _index_of(name)) is not None)

    def pixels(self, tile: Index, dtype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
        """The pixels of a tile; ValueError where they cannot be read, or are not of this dtype and shape."""
        try:
            dataset = self._tiles[_name_of(tile)]
            if (dataset.dtype, dataset.shape) != (np.dtype(dtype), tuple(shape)):
                raise ValueError(f"it is {dataset.dtype} {dataset.shape}, not {dtype} {tuple(shape)}")
            check_size(dataset, dataset.nbytes)
            found: npt.NDArray[Any] = dataset[()]
        except MemoryError:
            raise
        except Exception as error:  # (the same)
            raise ValueError(str(error)) from error
        return found


def _name_of(tile: Index) -> str:
    return "_".join(map(str, tile))


def _index_of(name: str) -> Index | None:
    try:
        index = tuple([int(part) for part in name.split("_")])
    except ValueError:
        return None
    return index if _name_of(index) == name else None


@contextmanager
def opened(path: Path, tensor_id: str) -> Iterator[OldTensor]:
    """One tensor of a file of version 0.4, while the file is open; StoreError where there is none."""
    h5py = import_h5py()
    if not path.is_file():
        raise StoreError(f"{str(path)!r}: there is no file")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be opened as an HDF5 file: {error}") from error
    with file:
        if MARK in file.attrs:
            raise StoreError(
                f"{str(path)!r} is a store of this version: HDF5TileStore(path, mode='r').copy(...) copies its tensors"
            )
        yield _tensor_in(file, path, tensor_id)


def _tensor_in(file: Any, path: Path, tensor_id: str) -> OldTensor:
    h5py = import_h5py()
    root = file.get(_ROOT)
    if not isinstance(root, h5py.Group):
        raise StoreError(f"{str(path)!r} is no file of version 0.4: it has no group /{_ROOT}")
    group = root.get(tensor_id)
    if not _is_tensor(group):
        held = _ids_in(root)
        raise StoreError(f"{str(path)!r} holds no tensor {tensor_id!r}; it holds {held}")
    try:
        attributes = group["metadata"].attrs
        meta = json.loads(attributes["meta"])
        tile_size = tuple([int(size) for size in attributes["tile_size"]])
        if not isinstance(meta, dict) or not {"shape", "dtype", "args", "args_windows", "output_window"} <= meta.keys():
            raise ValueError("it is of another version")
    except Exception as error:  # (h5py raises what it pleases on a damaged file)
        raise StoreError(f"{str(path)!r}: what describes tensor {tensor_id!r} cannot be read: {error}") from error
    return OldTensor(meta, tile_size, group["tiles"])


def _is_tensor(item: Any) -> bool:
    h5py = import_h5py()
    return isinstance(item, h5py.Group) and all(
        isinstance(item.get(name), h5py.Group) for name in ("metadata", "tiles")
    )


def _ids_in(root: Any) -> list[str]:
    found: list[str] = []

    def look_at(name: str, item: Any) -> None:
        if _is_tensor(item):
            found.append(name)

    root.visititems(look_at)
    return sorted(found)
