"""Reads arrays of any library, and the metadata of their pixels.

Parts of an array become torch tensors. A reader works on several threads, in forked children and after unpickling, with
the help of `reopening`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.pipelines.reopening import (
    Opened,
    by_absolute_path,
    is_fork_safe,
    library_of,
    locks_and_folders,
    opened_by,
    opened_in_child,
)
from infinite_tensor.support.forks import renew_in_children
from infinite_tensor.support.given import quoted
from infinite_tensor.values.arrays import (
    CHUNK_BYTES,
    Box,
    Stamps,
    check_unmasked,
    contiguous_box,
    cut,
    digest_of_regions,
    extents_of,
    is_large,
    memory_map_of,
    stamps_of_array,
)
from infinite_tensor.values.checks import dense, stand_in
from infinite_tensor.values.definition import json_value
from infinite_tensor.values.dtypes import DTYPES
from infinite_tensor.values.meaning import MOST_COORDINATES, Attribute, Coordinate, Fact, Meaning, PixelCode
from infinite_tensor_stores.homes import is_in_memory
from infinite_tensor_stores.targets import shown


class Reader(ABC):
    """Reads a finite source region by region.

    Attributes
    ----------
    shape : tuple of int
        Its extents.
    dtype : torch.dtype
        Its element type.
    device : torch.device
        The device of the tensors read.
    chunks : tuple of int or None
        Extents of the blocks to decode as a whole, up to 128 MiB. None if there are no such blocks.
    in_memory : bool
        Whether a read takes no longer than a copy, as from main memory or a mapped file. Blocks then need no cache.
    in_file : bool
        Whether the values lie outside the memory of this process, such as in a file.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device = torch.device("cpu")
    chunks: tuple[int, ...] | None = None
    in_memory = False
    in_file = True

    def read(self, region: Box) -> torch.Tensor:
        """Read a region of the source.

        The slices of `region` have a start and a stop. The result may be a view of the source itself.

        Raises
        ------
        ValidationError
            If the source returns another shape or dtype than expected.
        """
        block, expected = self._read(region), extents_of(region)
        if block.dtype != self.dtype or tuple(block.shape) != expected:
            raise ValidationError(
                f"{self!r} of shape {self.shape} must return {self.dtype} of shape {expected} for a region of this "
                f"shape, got {block.dtype} of shape {tuple(block.shape)}; make the tensor again, from an array that "
                "does not change and has one dtype for all regions, such as a.astype('float64')"
            )
        return block

    @abstractmethod
    def _read(self, region: Box) -> torch.Tensor: ...

    def digest(self) -> str:
        """Return the SHA-256 of the values, as computed by `digest_of_regions`."""
        return digest_of_regions(
            lambda region: _bytes_of(self.read(region)),
            self.shape,
            self.dtype.itemsize,
            in_file=self.in_file,
            chunks=self.chunks,
        )

    def stamps(self) -> Stamps:
        """Return stamps of files by name, to notice changed files.

        The result is empty unless `digest` covers only samples of the files.
        """
        sampled = self.in_file and is_large(self.shape, self.dtype.itemsize)
        return {shown(place): stamp for place, stamp in self._stamps().items()} if sampled else {}

    def _stamps(self) -> Stamps:
        return {}


def _bytes_of(block: torch.Tensor) -> memoryview:
    # A view of one element may have any stride.
    row = block.cpu().contiguous().as_strided((block.numel(),), (1,))
    return row.view(torch.uint8).numpy().data


class ArrayReader(Reader):
    """Reads from an array of any library.

    Parameters
    ----------
    array : object
        Anything with a shape, a dtype and slices.
    """

    def __init__(self, array: Any) -> None:
        self._array = _prepared(array)
        self.shape = _extents_of(self._array)
        if isinstance(self._array, torch.Tensor):
            self.device = self._array.device
        self.in_file = _lies_elsewhere(self._array)
        # A memmap counts as memory: the operating system decides which parts to keep.
        self.in_memory = isinstance(self._array, torch.Tensor | np.ndarray) and self.device.type == "cpu"
        self._locks, self._folders = locks_and_folders(self._array)
        self._inherited = False
        if library_of(self._array) in _FAITHFUL:
            self.dtype = torch_dtype_of(self._array.dtype)
        else:
            # Other libraries may scale values on reading, but report the dtype of the file.
            self.dtype = self._read((slice(0, 1),) * len(self.shape)).dtype
        self.chunks = _chunks_of(self._array, self.shape, self.dtype.itemsize)
        renew_in_children(self)

    def _renew_after_fork(self) -> None:
        self._inherited = not is_fork_safe(self._array)

    def _read(self, region: Box) -> torch.Tensor:
        with contextlib.ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            if self._inherited:
                self._open_in_child()
            block = self._array[region]
            if library_of(block) == "xarray":
                block = block.data
            folders = self._folders
            if hasattr(block, "compute"):
                if len(folders) > 1:
                    # Of an array over many files, open only those of this block.
                    (block,) = import_module("dask").optimize(block)
                    _, folders = locks_and_folders(block.dask.cull(block.__dask_keys__()))
                # Threads of Dask do not exist in a forked child, and would cause a deadlock in a worker of Dask.
                block = block.compute(scheduler="synchronous")
            if folders and _may_lack_chunks(block, region, self._array):
                self._check_there(folders)
            return as_tensor(block)

    def _check_there(self, folders: Sequence[Opened]) -> None:
        """Raise StoreError if a folder cannot be opened again, because missing chunks read as fill values."""
        for function, args in folders:
            try:
                function(*args)
            except Exception as error:
                raise StoreError(
                    f"{self!r} has vanished: {shown(error)}; restore it, or make the tensor again from another copy"
                ) from error

    def _open_in_child(self) -> None:
        try:
            self._array = opened_in_child(self._array)
        except Exception as error:
            raise StoreError(
                f"{self!r} cannot be read in a forked process, because the array cannot be opened again there: "
                f"{error}. Spawn the workers, as in DataLoader(..., multiprocessing_context='spawn'), or open the "
                "array and call from_array in each worker"
            ) from error
        self._folders = locks_and_folders(self._array)[1]
        self._inherited = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the files by location, or the values of an array without files."""
        try:
            opened = opened_by(self._array)
        except pickle.PicklingError as error:
            raise pickle.PicklingError(
                f"a tensor over {quoted(self._array)} cannot be pickled: {error}; give from_array an array in a "
                "file, such as a zarr.Array or a numpy.memmap"
            ) from error
        return _reopened, (repr(self), self.shape, self.dtype, opened)

    def _stamps(self) -> Stamps:
        return stamps_of_array(self._array, _file_of(self._array))

    def __repr__(self) -> str:
        return f"source({type(self._array).__module__}.{type(self._array).__qualname__})"


_IN_A_ROW_BYTES = 2**20
"""Bytes to read at once from a file without chunks, if the first dimension varies fastest."""

_FAITHFUL = {"numpy", "torch", "zarr", "dask", "xarray", "tensorstore", "infinite_tensor", "h5py"}
"""Libraries with reliable dtypes: reads return the dtype of the array."""


def _extents_of(array: Any) -> tuple[int, ...]:
    if array.shape is None:
        raise ValidationError("`a` is an empty dataset, without shape and values; give a dataset with elements")
    if any(extent != extent for extent in array.shape):  # noqa: PLR0124  (only NaN differs from itself)
        raise ValidationError(
            f"`a` has shape {tuple(array.shape)} with an unknown extent, nan; call a.compute_chunk_sizes() first to "
            "compute the extent"
        )
    shape = tuple(int(extent) for extent in array.shape)
    if not shape or not all(shape):
        advice = "a tensor has at least one element" if shape else "for an array of one element, give a.reshape(1)"
        raise ValidationError(f"`a` has shape {shape}; {advice}")
    return shape


def _prepared(array: Any) -> Any:
    if isinstance(array, torch.Tensor):
        return dense(array, "a")
    if library_of(array) == "xarray":
        from xarray import IndexVariable  # noqa: PLC0415  (there is an array of it)

        # Slices of the variable come without coordinates.
        variable = getattr(array, "variable", array)
        in_memory = isinstance(variable, IndexVariable) or isinstance(variable._data, np.ndarray)  # noqa: SLF001
        return _prepared(variable.values) if in_memory else variable
    if library_of(array) in ("zarr", "nibabel"):
        return by_absolute_path(array)
    if library_of(array) == "tensorstore":
        # tensorstore slices in coordinates of the domain, and a domain may not begin at 0.
        return array.translate_to[(0,) * array.ndim]
    if isinstance(array, np.ndarray):
        # Refuse dtypes first: a later check could take a field for an attribute, or one object for a number.
        torch_dtype_of(array.dtype)
    check_unmasked(array, "`a` has")
    return np.asarray(array) if isinstance(array, np.ndarray) else stand_in(array)


def _lies_elsewhere(array: Any) -> bool:
    if isinstance(array, torch.Tensor):
        return _file_of(array) is not None
    if isinstance(array, np.ndarray):
        return memory_map_of(array) is not None
    return library_of(array) != "zarr" or not is_in_memory(array.store_path.store)


def _may_lack_chunks(block: Any, region: Box, array: Any) -> bool:
    """Return whether the first pixel of a chunk in a block has the fill value, or whether that is unknown."""
    if library_of(array) != "zarr":
        return True
    firsts = [
        sorted({0, *range(-each.start % n, each.stop - each.start, n)})
        for each, n in zip(region, array.chunks, strict=True)
    ]
    found = block[np.ix_(*firsts)]
    # NaN differs from itself. Without a fill value, missing chunks read as 0.
    return bool(np.any((found == (array.fill_value or 0)) | (found != found)))  # noqa: PLR0124


def _file_of(array: Any) -> str | None:
    if isinstance(array, torch.Tensor):
        return getattr(array.untyped_storage(), "filename", None)
    mapped = memory_map_of(array)
    return None if mapped is None else os.fspath(mapped.filename)  # type: ignore[arg-type]


def torch_dtype_of(given: Any) -> torch.dtype:
    """Return the torch dtype for the dtype `given` of an array.

    Raise ValidationError for a dtype that tensors cannot have.
    """
    try:
        dtype = given if isinstance(given, torch.dtype) else np.dtype(getattr(given, "numpy_dtype", given))
    except TypeError:
        dtype = None
    found = getattr(torch, dtype.name, None) if isinstance(dtype, np.dtype) else dtype
    if found in DTYPES:
        return found
    fields = getattr(dtype, "names", None)
    advice = f"give one of its fields, such as {fields[0]!r}" if fields else "convert it, as in a.astype('float32')"
    raise ValidationError(f"`a` has the unsupported dtype {quoted(given)}; {advice}")


def _chunks_of(array: Any, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...] | None:
    chunks = _said_chunks(array, shape)
    if isinstance(chunks, list | tuple) and len(chunks) == len(shape) and all(chunks):
        # Dask has the extents of all chunks along each dimension.
        longest = [max(each) if isinstance(each, tuple) else int(each) for each in chunks]
        return cut(list(map(min, longest, shape)), itemsize)
    if getattr(array, "order", None) == "F":
        # nibabel reads consecutive bytes of a file. In a compressed file, all earlier bytes are read too.
        is_compressed = str(getattr(array, "file_like", "")).endswith((".gz", ".bz2", ".zst"))
        room = CHUNK_BYTES if is_compressed else _IN_A_ROW_BYTES
        return tuple(contiguous_box(shape[::-1], itemsize, room)[::-1])
    return None


def _said_chunks(array: Any, shape: tuple[int, ...]) -> Any:
    library = library_of(array)
    if library == "tensorstore":
        return array.chunk_layout.read_chunk.shape
    if library == "netCDF4":
        return array.chunking()
    # A field of an HDF5 table has no chunks, but its dataset has.
    chunks = getattr(getattr(array, "_dset", array), "chunks", None)
    if library == "xarray" and chunks is None:
        preferred = array.encoding.get("preferred_chunks")
        return preferred and [preferred.get(dim, extent) for dim, extent in zip(array.dims, shape, strict=True)]
    return chunks


def as_tensor(block: Any) -> torch.Tensor:
    """Convert a block of an array to a tensor.

    The tensor may be a view of the block.
    """
    if isinstance(block, torch.Tensor):
        return block
    if hasattr(block, "todense"):
        raise ValidationError("`a` has sparse blocks; give a.map_blocks(lambda block: block.todense())")
    check_unmasked(block, "`a` has")
    block = np.asarray(block)
    dtype = torch_dtype_of(block.dtype)
    if dtype is torch.bfloat16:
        return as_tensor(block.view(np.uint16)).view(torch.bfloat16)
    if dtype is torch.bool:
        # pillow stores True as 255, torch as 1.
        block = block.view(np.uint8) != 0
    block = block.astype(block.dtype.newbyteorder("="), copy=False)
    if not block.flags.writeable or any(step < 0 or step % block.itemsize for step in block.strides):
        # torch has no views of such arrays.
        block = block.copy()
    return torch.from_numpy(block)


def _reopened(shown: str, shape: tuple[int, ...], dtype: torch.dtype, opened: Opened) -> ArrayReader:
    function, args = opened
    try:
        reader = ArrayReader(function(*args))
    except Exception as error:
        raise StoreError(f"{shown} cannot be opened again: {error}") from error
    if (reader.shape, reader.dtype) != (shape, dtype):
        raise StoreError(f"{shown} was {dtype} of shape {shape}, but is now {reader.dtype} of shape {reader.shape}")
    return reader


# Metadata of pixels in xarray.


_CODES = {
    "_FillValue": "nodata",
    "missing_value": "nodata",
    "scale_factor": "scale",
    "add_offset": "offset",
    **{name: name for name in ("flag_values", "flag_masks", "flag_meanings", "valid_min", "valid_max", "valid_range")},
}
"""netCDF attributes for the meaning of numbers, with their names in this library."""


def meaning_of_array(array: Any, dims: Sequence[str]) -> Meaning | None:
    """Return the metadata of an xarray array, or None for other arrays.

    `dims` are the dimension names of the tensor over the array.
    """
    if not type(array).__module__.startswith("xarray."):
        return None
    # The attribute `infinite_tensor` of an export describes that export only.
    said, lost = _said({name: value for name, value in array.attrs.items() if name != "infinite_tensor"})
    codes = {_CODES[name]: value for name, value in reversed(said.items()) if name in _CODES}
    facts: list[Fact] = [Attribute(name, value) for name, value in said.items() if name not in _CODES]
    facts += [PixelCode(name, float(value) if value == "NaN" else value) for name, value in codes.items()]
    renamed = dict(zip(array.dims, dims, strict=True))
    for name, coordinate in getattr(array, "coords", {}).items():
        values = _values_of(coordinate)
        if values is None:
            lost.append(f"coordinate {name!r}")
            continue
        called = renamed[name] if coordinate.dims == (name,) else str(name)
        numbers, attrs = [array.dims.index(dim) for dim in coordinate.dims], _said(coordinate.attrs)[0]
        # rioxarray does not update its GeoTransform when pixels are selected. Coordinates contain the same information
        # and stay correct.
        if attrs.pop("GeoTransform", None) and not {*array.dims[-2:]} <= {*array.coords}:
            lost.append("transform")
        facts.append(Coordinate(called, numbers, values, attrs))
    return Meaning(facts, lost)


def _said(attrs: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes representable in JSON, and a list of the rest for messages."""
    said, lost = {}, []
    for name, value in attrs.items():
        try:
            said[str(name)] = json_value(str(name), value.tolist() if isinstance(value, _OF_NUMPY) else value)
        except ValidationError:
            lost.append(f"attribute {name!r}")
    return said, lost


_OF_NUMPY = np.ndarray | np.generic


def _values_of(coordinate: Any) -> npt.NDArray[Any] | None:
    """Return the values of a coordinate: numbers, dates or texts.

    Return None for other values, and for too many values to keep in memory.
    """
    if coordinate.size > MOST_COORDINATES:
        return None
    values = np.asarray(coordinate.values)
    if values.dtype.kind in "OT" and all(isinstance(each, str) for each in values.reshape(-1).tolist()):
        values = values.astype(str)
    kind = values.dtype.kind
    return values if kind == "U" or (kind in "biufmM" and values.itemsize <= 8) else None
