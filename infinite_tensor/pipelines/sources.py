"""Sources: tensors over an array, an image, a raster or a TensorDict.

Sources are finite. Nothing is stored, except blocks of a TensorDict if a user gives a `store`.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.groups.tensordicts import import_tensordict
from infinite_tensor.pipelines.images import ImageReader
from infinite_tensor.pipelines.rasters import RasterReader
from infinite_tensor.pipelines.readers import ArrayReader, Reader, meaning_of_array
from infinite_tensor.support.allocation import as_array
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.functions import RegionWriter
from infinite_tensor.support.given import as_index, members, quoted, word
from infinite_tensor.support.nested import Key, as_key, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.arrays import Box, Stamps, contiguous_box, stamps_of_file
from infinite_tensor.values.definition import ContentVersion, checked_dims, names_of
from infinite_tensor.values.fingerprint import STAMP, Item
from infinite_tensor.values.meaning import Meaning

if TYPE_CHECKING:
    from tensordict import TensorDictBase


_USEFUL_BYTES = 2**20
"""Maximum bytes of a block, except for larger chunks. Small patches need small blocks, but each block costs time."""
_CACHE_BYTES = 2**27
"""Bytes of a source's cache. Two rows of 1 MiB blocks fit in, for a colour image with 40,000 columns."""


T = TypeVar("T", bound=InfiniteTensor)


def from_array(
    a: Any,
    dims: Sequence[str] | None = None,
    chunks: str | SupportsIndex | Sequence[SupportsIndex] = "auto",
    name: str | None = None,
) -> InfiniteTensor:
    """Create a tensor over an array.

    A read of the tensor reads only the needed blocks of the array.

    Parameters
    ----------
    a : array
        Anything with a shape, a dtype and slices: a `torch.Tensor`, numpy array or memmap, zarr.Array, h5py.Dataset,
        Dask array, xarray.DataArray, TensorStore or `TensorBlob`. It must not change while the tensor is used.
    dims : tuple of str, optional
        Names of the dimensions. Default: those of an xarray.DataArray, none for others.
    chunks : "auto" or int or tuple of int
        Extents of the blocks in which the array is read, one for all dimensions or one for each. They are part of the
        tensor's definition. Default: the chunks of the array; small chunks are joined to blocks of up to 1 MiB, and
        large ones are cut to at most 128 MiB. For an array without chunks, blocks of up to 1 MiB.
    name : str, optional
        Identifies the content, so that no digest of it is computed: give other content another name. Default: a digest
        of the whole content, or of 64 samples of 4 KiB if it lies in a file and is larger than 64 MiB. The size and
        modification time of such a file are compared as well: if it was edited, there is a `FunctionChangedWarning`.

    Returns
    -------
    InfiniteTensor
        A tensor with the shape and values of `a` and the dtype of its slices, on the same device if `a` is a
        `torch.Tensor`. It keeps the coordinates and attributes of an xarray.DataArray, and so do tensors computed from
        it. If `a` is not in memory, the tensor caches the blocks that were read last, up to 128 MiB and at least two;
        ``tensor.tile_store.cache_size_bytes = "1GB"`` raises this limit.

    Raises
    ------
    ValidationError
        If an argument is invalid, or `a` has no elements, is sparse, is masked, or has a dtype that tensors do not
        have. If elements in a file are masked, reading them raises this error.

    Notes
    -----
    In a forked process, and when it is unpickled, the tensor opens the files of `a` again, by path, URL or store. If it
    cannot, it raises a StoreError or a `pickle.PicklingError`. Values that are only in memory are pickled with it.

    Examples
    --------
    >>> image = from_array(torch.arange(12).reshape(3, 4), dims=("y", "x"))
    >>> image[1, 1:3]
    tensor([5, 6])
    """
    _check_array(a)
    try:
        reader = ArrayReader(a)
    except TypeError as error:
        # The shape and the slices mean something else, as those of a list of pages.
        raise _no_array(a) from error
    if dims is None and isinstance(getattr(a, "dims", None), tuple):
        dims = a.dims
    names = names_of(checked_dims(dims, len(reader.shape)), len(reader.shape))
    return _source(InfiniteTensor, reader, dims, chunks, name, meaning_of_array(a, names))


def from_image(
    path: str | os.PathLike[str],
    chunks: str | SupportsIndex | Sequence[SupportsIndex] = "auto",
    name: str | None = None,
    page: SupportsIndex | None = None,
) -> InfiniteTensor:
    """Create a tensor over an image file, with channels first.

    The first read decodes the whole file, because pillow cannot read parts of images. The pixels stay in memory as long
    as the tensor exists. For images too large for memory, use `from_raster`: it reads parts of the file.

    Parameters
    ----------
    path : path
        Any image that pillow opens, with the extra ``image``. Files that pillow cannot open, or whose values it would
        change, are read by rasterio, with the extra ``raster``: all with more than 8 bits a value, for example.
    chunks : "auto" or int or tuple of int
        As for `from_array`.
    name : str, optional
        As for `from_array`; the default is a digest of the file.
    page : int, optional
        Which of several images in a file to read: a page of a TIFF, a frame of an animation. Default: the first, with
        a `UserWarning` if there are others.

    Returns
    -------
    InfiniteTensor
        A tensor with dims ``("c", "y", "x")``, or ``("y", "x")`` if there is one channel, turned as the EXIF
        orientation says. It has the dtype and values of the file; values of one bit become bool. Palettes, CMYK and
        YCbCr become RGB. A palette with transparency becomes RGBA. Alpha channels stay as they are.

    Raises
    ------
    ImportError
        If pillow is missing.
    StoreError
        If the file cannot be read, or cannot be read without changing its values. Also raised by the first read if the
        file has changed since the tensor was made.
    ValidationError
        If an argument is invalid.
    """
    reader = ImageReader(_checked_path(path), _checked_name(name), page)
    return _source(InfiniteTensor, reader, ("c", "y", "x")[-len(reader.shape) :], chunks, name, reader.meaning)


class RasterTensor(InfiniteTensor):
    """A tensor over a raster, created by `from_raster`.

    Its attributes tell the location of the pixels on Earth.
    """

    @property
    def _raster(self) -> RasterReader:
        assert isinstance(self.f, Source)
        assert isinstance(self.f.reader, RasterReader)
        return self.f.reader

    @property
    def crs(self) -> Any:
        """The coordinate reference system, a `rasterio.crs.CRS`.

        None if the file has no coordinate reference system.
        """
        return self._raster.crs

    @property
    def transform(self) -> Any:
        """The `affine.Affine` from (column, row) to coordinates of `crs`.

        The identity if the file has no transform.
        """
        return self._raster.transform

    def __repr__(self) -> str:
        # A name such as EPSG:32633, where there is one, because WKT fills the screen.
        crs = None if self.crs is None else self.crs.to_string()
        return super().__repr__().replace("InfiniteTensor(", f"RasterTensor(crs={quoted(crs)}, ", 1)

    @property
    def nodata(self) -> Any:
        """The value of pixels without data.

        Reads return this value for pixels without data. None if the file names no value.
        """
        return self._raster.nodata


def from_raster(
    path: str | os.PathLike[str],
    chunks: str | SupportsIndex | Sequence[SupportsIndex] = "auto",
    name: str | None = None,
    page: SupportsIndex | None = None,
) -> RasterTensor:
    """Create a tensor over the bands of a raster, read block by block.

    Parameters
    ----------
    path : path or str
        Any raster that rasterio opens: a GeoTIFF, another large TIFF, a URL. This needs the extra ``raster``.
    chunks : "auto" or int or tuple of int
        As for `from_array`.
    name : str, optional
        As for `from_array`.
    page : int, optional
        Which page of a TIFF to read. Default: the first, with a `UserWarning` if there are others.

    Returns
    -------
    RasterTensor
        A tensor with dims ``("band", "y", "x")`` and the values that are stored: no mask, scale or offset is applied.
        Complex integers of 16 bits become complex64. It has the attributes `crs`, `transform` and `nodata`. It keeps
        the metadata of the file; tensors computed from it keep the georeference. As in rasterio, an EXIF orientation
        turns nothing.

    Raises
    ------
    ImportError
        If rasterio is missing.
    StoreError
        If the raster cannot be opened or read.
    ValidationError
        If an argument is invalid, or the bands have different dtypes, or one that torch does not have.
    """
    reader = RasterReader(_checked_path(path), page)
    return _source(RasterTensor, reader, ("band", "y", "x"), chunks, name, reader.meaning)


def is_source(tensor: InfiniteTensor) -> bool:
    """Whether the pixels of a tensor are in an array or a file, so that no pixel needs computation or storage."""
    return isinstance(tensor.f, Source) and not contents_of(tensor.tile_store).outlives_process


class Source(RegionWriter):
    """The ``f`` of a source, returning block `ctx`.

    If the values are in memory, a read copies them directly, without blocks.

    Parameters
    ----------
    reader : Reader
        Reads the values.
    size : tuple of int
        Extents of a block.
    named : bool
        Whether a user has given a name for the content.
    meaning : Meaning or None
        Metadata of the pixels: what is known of them in addition to their values.
    """

    def __init__(self, reader: Reader, size: tuple[int, ...], *, named: bool, meaning: Meaning | None) -> None:
        self.reader = reader
        self.meaning = meaning
        self.size = size
        self._named = named

    @cached_property
    def stamps(self) -> Stamps:
        """Stamps of the files, such as size and modification time, to notice later changes.

        Empty if the user has named the content, or if all values are digested, not only samples.
        """
        return {} if self._named else self.reader.stamps()

    def _reaches(self) -> Mapping[str, object]:
        return {file: Item(repr(file), f"#{stamp}", STAMP) for file, stamp in self.stamps.items()}

    def __call__(self, ctx: tuple[int, ...]) -> torch.Tensor:
        """Return block `ctx`.

        Stored tensors remember the code of this method, and warn after changes in the code.
        """
        return self.block(ctx)

    def instead(self, dtype: torch.dtype, device: torch.device) -> str:
        """Tell how to get pixels in another dtype or on another device, for an error message."""
        if dtype is self.reader.dtype:
            return f"a source is read as stored; move the pixels: t[...].to({str(device)!r})"
        return (
            "a source is read as stored; convert the pixels, or make a converted tensor: "
            f"t.map(lambda x: x.to({dtype}), dtype={dtype})"
        )

    @property
    def copies(self) -> bool:
        """Whether all values are in memory, so that blocks need not be stored.

        See `RegionWriter.copies`.
        """
        return self.reader.in_memory

    def writes(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
        """Return whether `write` can write windows of this size, dtype and device.

        The values must be in memory. See `RegionWriter.writes`.
        """
        reader = self.reader
        return reader.in_memory and (self.size, reader.dtype, reader.device) == (tuple(size), dtype, device)

    def write(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Copy the pixels from `start` on, as in `RegionWriter.write`."""
        pixels = self.reader.read(tuple([slice(a, a + n) for a, n in zip(start, out.shape, strict=True)]))
        as_array(out)[...] = as_array(pixels)

    def block(self, ctx: tuple[int, ...]) -> torch.Tensor:
        """Return block `ctx`.

        Pixels beyond the end of the array have arbitrary values.
        """
        starts = map(operator.mul, ctx, self.size)
        inside = self.reader.read(
            tuple(
                slice(start, min(start + n, extent))
                for start, n, extent in zip(starts, self.size, self.reader.shape, strict=True)
            )
        )
        if inside.shape == self.size:
            return inside
        whole = inside.new_empty(self.size)
        whole[tuple(map(slice, inside.shape))] = inside
        return whole


def _source(
    kind: type[T],
    reader: Reader,
    dims: Sequence[str] | None,
    chunks: object,
    name: object,
    meaning: Meaning | None = None,
) -> T:
    size, known = _block_of(reader, chunks), _checked_name(name)
    version = None if known is None else {"name": known}
    store = MemoryTileStore(max(_CACHE_BYTES, least_cache_of(size, reader.dtype)))
    return tensor_over(kind, reader, size, version, meaning, tile_store=store, dims=dims)


def least_cache_of(size: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes of two blocks.

    With a cache of two blocks, windows across a border of blocks read each block only once.
    """
    return 2 * math.prod(size) * dtype.itemsize


def tensor_over(
    kind: type[T],
    reader: Reader,
    size: tuple[int, ...],
    version: object,
    meaning: Meaning | None = None,
    **options: Any,
) -> T:
    """Create a tensor over a reader.

    If `version` is None, the version of the tensor is a digest of the values.
    """
    return kind(
        reader.shape,
        Source(reader, size, named=version is not None, meaning=meaning),
        TensorWindow(size),
        dtype=reader.dtype,
        device=reader.device,
        version=ContentVersion(reader.digest) if version is None else version,
        edge="clip",
        **options,
    )


def _check_array(a: Any) -> None:
    if isinstance(a, InfiniteTensor):
        raise ValidationError("`a` is an InfiniteTensor already: use it as it is")
    if isinstance(a, str | os.PathLike):
        raise ValidationError(
            f"`a` must be an array, got the path {quoted(a)}; call from_image(path) or from_raster(path), or open the "
            "file, as in from_array(numpy.load(path, mmap_mode='r'))"
        )
    if hasattr(a, "todense"):
        raise ValidationError(f"`a` must be dense, got {quoted(type(a))}; give a.todense()")
    if not all(hasattr(a, part) for part in ("shape", "dtype", "__getitem__")):
        raise _no_array(a)


def _no_array(a: Any) -> ValidationError:
    return ValidationError(
        f"`a` must be an array, with a shape, a dtype and slices, got {quoted(a)}; give its array, as in a['name'], "
        "a.data, a.read() or numpy.asarray(a)"
    )


def _checked_path(path: object) -> str:
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ValidationError(f"path must be a str or a path, got {quoted(path)}; give an open array to from_array")
    text = os.fspath(path)
    # Make paths absolute, because processes may differ in the working directory. Leave URLs and other texts unchanged.
    return str(Path(text).absolute()) if os.path.exists(text) else text  # noqa: PTH110  (no name is too long for it)


def _checked_name(name: object) -> str | None:
    known = word(name)
    if name is not None and not known:
        raise ValidationError(f"name must be a non-empty str to identify the content, or None, got {quoted(name)}")
    return known


def _block_of(reader: Reader, chunks: object) -> tuple[int, ...]:
    shape = reader.shape
    if word(chunks) == "auto":
        find = _even_block if reader.chunks is None else _block_of_chunks
        return find(shape, reader.chunks or (), reader.dtype.itemsize)
    entries = members(chunks)
    extents = [as_index(each) or 0 for each in ((chunks,) * len(shape) if entries is None else entries)]
    if len(extents) != len(shape) or min(extents) < 1:
        raise ValidationError(
            f"chunks must be 'auto', a positive int, or a tuple with one such int for each of {len(shape)} "
            f"dimensions, got {quoted(chunks)}"
        )
    return tuple(map(min, extents, shape))


def _even_block(shape: tuple[int, ...], _chunks: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return a block of about the same length in each dimension.

    Patches of any shape then lie in few blocks.
    """
    side = 1
    while side < max(shape) and math.prod(min(n, 2 * side) for n in shape) * itemsize <= _USEFUL_BYTES:
        side *= 2
    return tuple(-(-n // -(-n // side)) for n in shape)


def _block_of_chunks(shape: tuple[int, ...], chunks: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    block = list(map(min, chunks, shape))
    while unlike := [d for d, n in enumerate(shape) if block[d] < n]:
        d = min(unlike, key=block.__getitem__)
        joined = [*block[:d], min(2 * block[d], shape[d]), *block[d + 1 :]]
        if math.prod(joined) * itemsize > _USEFUL_BYTES:
            break
        block = joined
    return tuple(block)


_BLOCK_BYTES = 2**20
"""Bytes read by a window. Do not change this number: stored definitions contain the resulting windows."""
_DICT_CACHE_BYTES = 2**26


def tensors_of(
    td: TensorDictBase, version: object, given: TileStore | str | os.PathLike[str] | None, tensor_id: str | None
) -> dict[Key, InfiniteTensor]:
    """Return the tensors of a TensorDict by key.

    See `TensorGroup.from_tensordict` for the arguments.
    """
    package = import_tensordict()
    if not isinstance(td, package.TensorDictBase):
        raise ValidationError(f"from_tensordict takes a TensorDict, got {type(td).__name__} {td!r:.200}")
    keys = [as_key(key) for key in td.keys(True, True)]
    above = {key[:depth] for key in keys for depth in range(1, len(key) + 1)}
    others = [key for key in map(as_key, td.keys(True)) if key not in above]
    if others:
        raise ValidationError(
            f"the TensorDict must contain only tensors, got no tensor for {', '.join(map(show, others))}; give "
            f"td.exclude({', '.join(map(show, others))})"
        )
    if not keys:
        raise ValidationError("the TensorDict must contain at least one tensor")
    store = MemoryTileStore(cache_size_bytes=_DICT_CACHE_BYTES) if given is None else given
    return {key: _tensor(TensorDictReader(td, key), version, store, tensor_id) for key in keys}


class TensorDictReader(Reader):
    """Reads from one tensor of a TensorDict.

    Parameters
    ----------
    td : TensorDictBase
        It must stay open.
    key : tuple of str
        The key of a tensor in it.
    """

    def __init__(self, td: Any, key: Key) -> None:
        self._td, self.key = td, key
        self.shape = tuple(td.get_item_shape(key))
        if not self.shape or not all(self.shape):
            raise ValidationError(
                f"{show(key)} of the TensorDict must have at least one dimension, and no dimension of size 0, got "
                f"shape {self.shape}; give td.exclude({show(key)})"
            )
        sample = td.get_at(key, (slice(0, 0),))
        self.dtype, self.device = sample.dtype, sample.device
        self.chunks = tuple(contiguous_box(self.shape, self.dtype.itemsize, _BLOCK_BYTES))
        # Getting a tensor from a PersistentTensorDict reads the whole tensor.
        is_one_file = isinstance(td, import_tensordict().PersistentTensorDict)
        self._file = getattr(td if is_one_file else td.get(key), "filename", None)
        self.in_file = is_one_file or self._file is not None

    def _read(self, region: Box) -> torch.Tensor:
        return self._td.get_at(self.key, region).clone()  # type: ignore[no-any-return]

    def _stamps(self) -> Stamps:
        return stamps_of_file(self._file) if isinstance(self._file, str | os.PathLike) else {}

    def __repr__(self) -> str:
        return f"{show(self.key)} of the TensorDict"


def _tensor(
    reader: TensorDictReader, version: object, store: TileStore | str | os.PathLike[str], tensor_id: str | None
) -> InfiniteTensor:
    assert reader.chunks is not None
    known = None if version is None else {"tensordict": list(reader.key), "version": version}
    name = None if tensor_id is None else "/".join((tensor_id, *reader.key))
    try:
        return tensor_over(InfiniteTensor, reader, reader.chunks, known, tile_store=store, tensor_id=name)
    except ValidationError as error:
        raise ValidationError(f"{reader!r}: {error}") from error
