"""Frames: boxes of pixels, as seen by other programs.

A frame is indexed from 0 and divided into chunks.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import Node, node_of
from infinite_tensor.engine.reads import DROPPING
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.stored_only import StoredOnly, stored_pixels
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.given import checked_count, quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.definition import Number
from infinite_tensor.values.dtypes import dtype_name
from infinite_tensor.values.meaning import Lens, Meaning

_HALF = 2**30
"""Pixels of an unbounded dimension on each side of 0. Viewers count in 32 bits."""

MOST_LABELS = 2**27
"""Maximum length of a dimension with coordinates. xarray loads all of them, here 1 GiB, when it opens a group."""
T = TypeVar("T", float, npt.NDArray[Any])


class Sampling(NamedTuple):
    """Positions of the pixels of a level along one dimension.

    Attributes
    ----------
    pixels : int
        The number of pixels of the tensor in one pixel of the level.
    shift : float
        The position of the middle of pixel 0, in pixels of the tensor.
    """

    pixels: int = 1
    shift: float = 0

    def middle(self, pixel: T) -> T:
        """Return the position of the middle of `pixel`, in pixels of the tensor. `pixel` may be an array."""
        return pixel * self.pixels + self.shift


@dataclass(frozen=True, eq=False)
class Frame:
    """A box of pixels of a tensor, sliced like a numpy array.

    Each slice is a read.

    Attributes
    ----------
    tensor : InfiniteTensor
        The tensor.
    origin : tuple of int
        The first pixel of the box.
    shape : tuple of int
        The number of pixels per dimension.
    tile : tuple of int
        The shape of the tiles of the tensor.
    dtype : numpy.dtype
        The dtype in which pixels are shown.
    dims : mapping of int to str
        The name of each dimension of the array of pixels, by the number of the dimension in the tensor. The box has one
        pixel along the others.
    fill_value : number or None
        The value where a tile is not stored; None if missing tiles are computed.
    along : tuple of Sampling
        The positions of its pixels along each dimension of the tensor.
    """

    tensor: InfiniteTensor
    origin: Index
    shape: Index
    tile: Index
    dtype: np.dtype[np.generic]
    dims: Mapping[int, str]
    fill_value: Number | None = None
    along: tuple[Sampling, ...] = ()

    @classmethod
    def of(cls, source: InfiniteTensor | StoredOnly, region: object = None) -> Frame:
        """Return the frame of a region.

        By default, the frame has all pixels of a finite dimension, and about 2**30 pixels on each side of 0 of an
        unbounded dimension.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a region of the tensor.
        ValidationError
            If `region` is not a box of pixels.
        """
        tensor, fill_value = (source.tensor, source.fill_value) if isinstance(source, StoredOnly) else (source, None)
        node = node_of(tensor)
        tile, dtype = node.contents.layout(node.spec).tile_shape, numpy_dtype(tensor.dtype)
        dims, along = dict(enumerate(tensor.dims)), (Sampling(),) * tensor.ndim
        if region is None:
            halves = [-(-_HALF // n) * n for n in tile]
            spans = [
                (-half, 2 * half) if extent is None else (0, extent)
                for extent, half in zip(tensor.shape, halves, strict=True)
            ]
            origin, shape = zip(*spans, strict=True)
            return cls(tensor, origin, shape, tile, dtype, dims, fill_value, along)
        selection = parse(region, tensor.shape, node.spec.labels)
        if selection.squeezed or set(selection.steps) - {1} or 0 in selection.shape:
            raise ValidationError(
                f"the region must be a box of pixels, given by a slice a:b for each dimension, got {quoted(region)}"
            )
        return cls(tensor, selection.start, selection.shape, tile, dtype, dims, fill_value, along)

    @property
    def token(self) -> tuple[object, ...]:
        """An identifier for the pixels of the frame. It need not be hashable.

        It changes when windows of the tensor are dropped. It is the same in all processes if the tensor is stored and
        its functions can be identified. Otherwise each tensor object has its own value. If a frame shows only stored
        pixels, each frame has its own value, because these pixels may change at any time.
        """
        if self.fill_value is not None:
            return (self._own_token,)
        node = node_of(self.tensor)
        return state_of(node) or (node.token, DROPPING.count), self.origin, self.shape

    @cached_property
    def _own_token(self) -> str:
        return secrets.token_hex(8)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields and the token, because Dask identifies some objects by their pickle."""
        own = (self.tensor, self.origin, self.shape, self.tile, self.dtype, self.dims, self.fill_value, self.along)
        return _unpickled, (*own, self.token)

    @cached_property
    def chunk_shape(self) -> Index:
        """The shape of a chunk.

        It is the shape of a tile, limited to the shape of the frame.
        """
        return tuple(map(min, self.tile, self.shape))

    @cached_property
    def chunk_counts(self) -> Index:
        """The number of chunks per dimension."""
        return tuple([-(-extent // n) for extent, n in zip(self.shape, self.chunk_shape, strict=True)])

    def has_chunk(self, chunk: Sequence[int]) -> bool:
        """Whether the frame has a chunk with this index."""
        return len(chunk) == len(self.shape) and all(0 <= i < n for i, n in zip(chunk, self.chunk_counts, strict=True))

    def box_of(self, chunk: Sequence[int]) -> tuple[slice, ...]:
        """Return the region of a chunk in the tensor, clipped to the frame."""
        lows = [first + i * n for first, i, n in zip(self.origin, chunk, self.chunk_shape, strict=True)]
        ends = [first + extent for first, extent in zip(self.origin, self.shape, strict=True)]
        return tuple([slice(low, min(low + n, end)) for low, n, end in zip(lows, self.chunk_shape, ends, strict=True)])

    @property
    def tile_counts(self) -> Index:
        """The number of tiles intersecting the frame, per dimension."""
        spans = zip(self.origin, self.shape, self.tile, strict=True)
        return tuple([(first + extent - 1) // n - first // n + 1 for first, extent, n in spans])

    @property
    def tile_cuts(self) -> tuple[tuple[int, ...], ...]:
        """The number of pixels of each tile inside the frame, per dimension."""
        cuts = []
        for first, extent, n in zip(self.origin, self.shape, self.tile, strict=True):
            borders = [first, *range(first - first % n + n, first + extent, n), first + extent]
            cuts.append(tuple(int(size) for size in np.diff(borders)))
        return tuple(cuts)

    def named(self, dims: Mapping[int, str] | None = None, along: tuple[Sampling, ...] | None = None) -> Frame:
        """Return a copy for an array with coordinates.

        `dims` are by default those of the frame. A dimension too long for coordinates is renamed, see `label_of`.
        """
        names = {d: label_of(name, self.shape[d]) for d, name in (self.dims if dims is None else dims).items()}
        return replace(self, dims=names, along=self.along if along is None else along)

    @cached_property
    def meaning(self) -> Meaning:
        """The metadata of the pixels, such as coordinates and units."""
        known = node_of(self.tensor).spec.definition.meaning or Meaning()
        array = {d: (name, self.shape[d]) for d, name in self.dims.items()}
        return known.through(Lens.of_region(self.tensor.dims, self.origin, array))

    def read(self, region: Selection | tuple[slice, ...]) -> npt.NDArray[np.generic]:
        """Return the pixels of a region, in a new array.

        Raises
        ------
        ValidationError
            If the tensor has been moved to another dtype since the frame was made.
        """
        source = self.tensor if self.fill_value is None else self.tensor.stored_only(self.fill_value)
        pixels = source[region]
        if numpy_dtype(pixels.dtype) != self.dtype:
            raise ValidationError(
                f"tensor {self.tensor.tensor_id!r} was moved to {pixels.dtype} after this view of {self.dtype} was "
                "made; make a new view, as with t.as_zarr()"
            )
        return as_numpy(pixels)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __getitem__(self, key: tuple[int | slice, ...]) -> npt.NDArray[Any]:
        starts, stops, steps = [], [], []
        for entry, first, extent in zip(key, self.origin, self.shape, strict=True):
            elements = range(extent)
            picked = elements[entry] if isinstance(entry, slice) else [elements[entry]]
            ends = (first + min(picked[0], picked[-1]), first + max(picked[0], picked[-1]) + 1) if picked else (0, 0)
            starts.append(ends[0])
            stops.append(ends[1])
            steps.append(picked.step if isinstance(picked, range) else 1)
        squeezed = tuple([d for d, entry in enumerate(key) if not isinstance(entry, slice)])
        return self.read(Selection(tuple(starts), tuple(stops), tuple(steps), squeezed))

    def __dask_tokenize__(self) -> object:
        return "infinite_tensor", self.token

    def tile_in_memory(self, box: tuple[slice, ...]) -> npt.NDArray[np.generic] | None:
        """Return the pixels of a whole tile in memory.

        Return None if the box is not a whole tile in memory. The caller must not change the pixels.
        """
        node = node_of(self.tensor)
        tile = node.contents.tile_in_memory(node.spec, [part.start for part in box], [part.stop for part in box])
        return None if tile is None or numpy_dtype(tile.dtype) != self.dtype else as_numpy(tile)

    @property
    def chunk_size(self) -> int:
        """The size of a chunk in bytes."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    def chunk_in_memory(self, index: Index) -> memoryview | None:
        """Return the bytes of a chunk in memory, without waiting.

        Return None unless the chunk is a whole tile in memory. Must not be called on the main thread.
        """
        pixels = self.tile_in_memory(self.box_of(index))
        return None if pixels is None or pixels.shape != self.chunk_shape else chunk_bytes(pixels)

    def chunk(self, index: Index) -> memoryview:
        """Return the bytes of a chunk. Pixels outside of the frame are 0. The caller must not change the bytes."""
        found = self.chunk_in_memory(index)
        if found is not None:
            return found
        pixels = self.read(self.box_of(index))
        if pixels.shape != self.chunk_shape:
            whole = np.zeros(self.chunk_shape, pixels.dtype)
            whole[tuple(map(slice, pixels.shape))] = pixels
            pixels = whole
        return chunk_bytes(pixels)


def _unpickled(*fields: Any) -> Frame:
    return Frame(*fields[:-1])


def state_of(node: Node) -> tuple[object, ...] | None:
    """Return an identifier for the pixels of a tensor, valid in all processes.

    Dropping windows changes the identifier. Return None if the tensor is not stored, or if its functions cannot be
    identified.
    """
    generation, definition = node.contents.generation(node.spec), node.spec.definition
    if generation is None or definition.functions.record.opaque:
        return None
    functions = definition.functions.identity.to_json()
    return node.store.address, node.spec.tensor_id, definition.digest, functions, *generation


def label_of(dim: str, extent: int) -> str:
    """Return the name of a dimension in an array.

    It ends in ``_index`` if the dimension is too long for coordinates: programs then count from the first pixel of the
    array, and must not find ``y=1000`` anywhere else than at pixel 1000.
    """
    return dim if extent <= MOST_LABELS else f"{dim}_index"


def step_of(extents: Sequence[int], every: object, max_pixels: object) -> int:
    """Return the step between shown pixels.

    If `every` is given, it is the step. If `max_pixels` is given, return the smallest step that leaves at most this
    number of pixels. Otherwise, return 1.

    Raises
    ------
    ValidationError
        If `every` or `max_pixels` is not a positive int, or both are given.
    """
    if every is not None and max_pixels is not None:
        raise ValidationError(
            f"give every=... or max_pixels=..., not both; got {quoted(every)} and {quoted(max_pixels)}"
        )
    if every is not None:
        return checked_count("every", every)
    if max_pixels is None:
        return 1
    most = checked_count("max_pixels", max_pixels)
    steps = range(1, max(extents, default=1) + 1)
    fits = partial(_fits, extents, most)
    return steps[bisect_left(steps, True, key=fits)]


def _fits(extents: Sequence[int], most: int, step: int) -> bool:
    return math.prod(-(-extent // step) for extent in extents) <= most


def chunk_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of the pixels of a chunk, little-endian."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data.toreadonly()


def numpy_dtype(dtype: torch.dtype) -> np.dtype[np.generic]:
    """Return the numpy dtype for showing pixels.

    It is float32 for bfloat16, because numpy lacks bfloat16.
    """
    return np.dtype(dtype_name(torch.float32 if dtype is torch.bfloat16 else dtype))


def as_numpy(pixels: torch.Tensor) -> npt.NDArray[np.generic]:
    """Return pixels as an array of `numpy_dtype`, sharing their memory if possible."""
    array: npt.NDArray[np.generic] = (pixels.float() if pixels.dtype is torch.bfloat16 else pixels).numpy(force=True)
    return array


def stored_as_numpy(tensor: InfiniteTensor, region: object) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.bool_]]:
    """Return the stored pixels of a region, and a mask of missing pixels.

    The mask is True for pixels with a missing window.
    """
    node = node_of(tensor)
    selection = parse(region, tensor.shape, node.spec.labels)
    missing = torch.ones(selection.size, dtype=torch.bool, device="cpu")
    pixels = stored_pixels(node, selection, 0, missing)
    return as_numpy(pixels), selection.pick(missing).numpy()


def numpy_value(value: Number, dtype: torch.dtype) -> np.generic:
    """Return `value` as a numpy scalar of ``numpy_dtype(dtype)``."""
    pixel: np.generic = as_numpy(torch.full((1,), value, dtype=dtype, device="cpu"))[0]
    return pixel
