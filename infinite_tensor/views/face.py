"""Zarr arrays whose chunks are computed when somebody reads them."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from infinite_tensor.engine.chain import node_of
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.forks import cached_property
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.frame import Frame, shown, shown_dtype
from infinite_tensor.views.requests import Requests

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer, BufferPrototype

Bytes: TypeAlias = "bytes | memoryview"

_DOCUMENT = "zarr.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_KEYS_AT_ONCE = 1000


def zarr_of(tensor: InfiniteTensor, region: object = None) -> zarr.Array[Any]:
    """A tensor as a Zarr array; see `InfiniteTensor.as_zarr`."""
    name = name_of(tensor)
    face = FaceStore({name: Face(tensor, Frame.of(tensor, region), tensor.dims)})
    return zarr.open_array(face, path=name, mode="r")


def name_of(tensor: InfiniteTensor) -> str:
    """What the array of a tensor is called in its group: the last part of its id where that can be, else "values"."""
    named, last = node_of(tensor).tensor.named, tensor.tensor_id.rpartition("/")[2]
    return last if named and _NAME.fullmatch(last) and last not in tensor.dims else "values"


def zarr_of_members(members: Mapping[tuple[str, ...], tuple[InfiniteTensor, object]]) -> zarr.Group:
    """Tensors, each with a region of it, as a Zarr group; see `TensorGroup.as_zarr`."""
    faces = {
        "/".join(key): Face(tensor, Frame.of(tensor, region), tensor.dims) for key, (tensor, region) in members.items()
    }
    return zarr.open_group(FaceStore(with_dims_of_their_own(faces)), mode="r")


@dataclass(frozen=True)
class Face:
    """A tensor as one array.

    Attributes
    ----------
    tensor : InfiniteTensor
        What computes its chunks.
    frame : Frame
        Which pixels it shows.
    dims : tuple of str
        Names of its dimensions.
    """

    tensor: InfiniteTensor
    frame: Frame
    dims: tuple[str, ...]

    @property
    def identity(self) -> tuple[object, ...]:
        """What equal faces have in common."""
        spec = node_of(self.tensor).spec
        return spec.tensor_id, spec.definition.digest, self.frame, self.dims

    @property
    def document(self) -> dict[str, Any]:
        """The metadata of the array. Pixel ``p`` of the tensor is at ``p + origin`` in it."""
        attributes = {
            "infinite_tensor": {"tensor_id": self.tensor.tensor_id, "origin": [-first for first in self.frame.origin]}
        }
        dtype = shown_dtype(self.tensor.dtype)
        return _array_document(self.frame.shape, self.frame.chunks, dtype, self.dims, attributes)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk."""
        return math.prod(self.frame.chunks) * shown_dtype(self.tensor.dtype).itemsize

    def chunk(self, index: Index) -> memoryview:
        """The bytes of a chunk."""
        pixels = shown(self.tensor[self.frame.chunk(index)])
        if pixels.shape != self.frame.chunks:
            whole = np.zeros(self.frame.chunks, pixels.dtype)
            whole[tuple(map(slice, pixels.shape))] = pixels
            pixels = whole
        return _bytes_of(pixels)


def with_dims_of_their_own(faces: Mapping[str, Face]) -> dict[str, Face]:
    """The same faces, where arrays have a dimension in common only if its pixels are the same.

    xarray refuses others, in one Zarr group and in those above and below it.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    renamed = {}
    for path, face in faces.items():
        above, _, key = path.rpartition("/")
        dims = []
        for dim, span in zip(face.dims, zip(face.frame.origin, face.frame.shape, strict=True), strict=True):
            known = {each for (group, name), each in found.items() if name == dim and _is_in_line(group, above)}
            dims.append(dim if known <= {span} else f"{key}_{dim}")
            found.setdefault((above, dim), span)
        renamed[path] = replace(face, dims=tuple(dims))
    return renamed


def _is_in_line(group: str, other: str) -> bool:
    """Whether one of two Zarr groups is the other, or is in it."""
    shorter, longer = sorted([f"{group}/".lstrip("/"), f"{other}/".lstrip("/")], key=len)
    return longer.startswith(shorter)


def _array_document(
    shape: Index, chunks: Index, dtype: np.dtype[Any], dims: Sequence[str], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    zero: Any = {"b": False, "c": [0.0, 0.0], "f": 0.0}.get(dtype.kind, 0)
    codec: dict[str, Any] = {"name": "bytes"}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": zero,
        "codecs": [codec if dtype.itemsize == 1 else codec | {"configuration": {"endian": "little"}}],
        "attributes": attributes,
        "dimension_names": dims,
    }


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


class FaceStore(Store):
    """A read-only Zarr hierarchy of tensors, and of the coordinates of their pixels.

    Parameters
    ----------
    faces : mapping of str to Face
        The arrays by their paths.
    """

    supports_writes = False
    supports_deletes = False
    supports_listing = True

    def __init__(self, faces: Mapping[str, Face], *, read_only: bool = True) -> None:
        if not read_only:
            raise ValueError("what a tensor computes cannot be written; open it with read_only=True, or mode='r'")
        super().__init__(read_only=True)
        self._faces = dict(faces)
        self._requests: Requests[Bytes] = Requests()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._faces,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FaceStore) and self._identities == other._identities

    __hash__ = None  # type: ignore[assignment]  # as other stores

    @property
    def _identities(self) -> dict[str, tuple[object, ...]]:
        return {path: face.identity for path, face in self._faces.items()}

    def __repr__(self) -> str:
        return f"FaceStore({', '.join(f'{path}: {face.tensor.tensor_id!r}' for path, face in self._faces.items())})"

    __str__ = __repr__

    @cached_property
    def _documents(self) -> dict[str, bytes]:
        """What is known without computing: metadata and coordinates, by their keys."""
        nodes: dict[str, Any] = {}
        documents: dict[str, bytes] = {}
        for path, face in self._faces.items():
            parts = path.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                nodes.setdefault("/".join(parts[:depth]), _group_document())
            nodes[path] = face.document
            for d, dim in enumerate(face.dims):
                array, pixels = "/".join([*parts, dim]), face.frame.coordinates(d)
                if pixels is not None and array not in nodes and array not in self._faces:
                    nodes[array] = _array_document(pixels.shape, pixels.shape, pixels.dtype, [dim], {})
                    documents[f"{array}/c/0"] = bytes(_bytes_of(pixels))
        root = _group_document() | {
            # xarray looks for it, and need not list the store.
            "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": nodes}
        }
        said = {_DOCUMENT: root} | {f"{path}/{_DOCUMENT}": node for path, node in nodes.items()}
        return {key: json.dumps(node).encode() for key, node in said.items()} | documents

    def _chunk_of(self, key: str) -> tuple[Face, Index] | None:
        """The face whose chunk has a key, and which one that is."""
        path, _, chunk = key.partition("/c/")
        face = self._faces.get(path)
        if face is None or not re.fullmatch(r"(0|[1-9][0-9]{0,17})(/(0|[1-9][0-9]{0,17}))*", chunk):
            return None
        index = tuple(map(int, chunk.split("/")))
        return (face, index) if face.frame.has_chunk(index) else None

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """What has a key, or a range of its bytes; None where there is no such key."""
        await self._ensure_open()
        found: Bytes | None = self._documents.get(key)
        if found is None:
            chunk = self._chunk_of(key)
            if chunk is None:
                return None
            face, index = chunk
            found = await self._requests.get(key, partial(face.chunk, index))
        return (prototype or default_buffer_prototype()).buffer.from_bytes(found[_range_of(byte_range, len(found))])

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """What has some keys, or ranges of it."""
        return list(await asyncio.gather(*[self.get(key, prototype, part) for key, part in key_ranges]))

    async def exists(self, key: str) -> bool:
        """Whether there is a key; computes nothing."""
        return key in self._documents or self._chunk_of(key) is not None

    async def getsize(self, key: str) -> int:
        """The bytes behind a key; computes nothing."""
        chunk = self._chunk_of(key)
        if chunk is not None:
            return chunk[0].chunk_bytes
        if key not in self._documents:
            raise FileNotFoundError(key)
        return len(self._documents[key])

    async def set(self, key: str, value: Buffer) -> None:  # noqa: ARG002
        """ValueError: the store is read-only."""
        self._check_writable()

    async def delete(self, key: str) -> None:  # noqa: ARG002
        """ValueError: the store is read-only."""
        self._check_writable()

    def list(self) -> AsyncIterator[str]:
        """All keys: those of all chunks too, of which an unbounded tensor has many."""
        return self.list_prefix("")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """The keys that begin so."""
        for key in self._documents:
            if key.startswith(prefix):
                yield key
        for path, face in self._faces.items():
            folder = f"{path}/c/"
            inside = folder.startswith(prefix) or prefix.startswith(folder)
            for count, index in enumerate(_indices(face.frame.grid) if inside else ()):
                if count % _KEYS_AT_ONCE == 0:
                    # Whatever else runs on this loop has its turn.
                    await asyncio.sleep(0)
                key = folder + "/".join(map(str, index))
                if key.startswith(prefix):
                    yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names of what lies in a folder."""
        folder = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        inside = [key.removeprefix(folder).partition("/")[0] for key in self._documents if key.startswith(folder)]
        for name in dict.fromkeys(inside):
            yield name
        path, _, above = folder.partition("/c/")
        face = self._faces.get(folder.rstrip("/"))
        if face is not None:
            yield "c"
        face = self._faces.get(path)
        if face is not None and folder.startswith(f"{path}/c/"):
            depth = len(above.rstrip("/").split("/")) if above else 0
            for i in range(face.frame.grid[depth]) if depth < len(face.frame.grid) else ():
                if i % _KEYS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                yield str(i)


def _indices(grid: Index) -> Iterator[Index]:
    """All indices of chunks. `itertools.product` would first list those of each dimension."""
    for i in range(grid[0]):
        for others in _indices(grid[1:]) if grid[1:] else [()]:
            yield (i, *others)


def _group_document() -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": {}}


def _range_of(part: ByteRequest | None, length: int) -> slice:
    match part:
        case None:
            return slice(None)
        case RangeByteRequest(start, end):
            return slice(start, end)
        case OffsetByteRequest(offset):
            return slice(offset, None)
        case SuffixByteRequest(suffix):
            return slice(max(0, length - suffix), None)
    raise TypeError(f"Unexpected byte_range, got {part!r}; zarr.abc.store has the kinds that there are")
