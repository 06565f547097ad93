"""Encoding and decoding of chunks in a Zarr array, many at a time.

A checksum detects damage. Here, numcodecs and google-crc32c apply the codecs `bytes`, `zstd`, `blosc` and `crc32c`. The
resulting bytes are the same as zarr's. Zarr's own pipelines run each codec of each chunk as a task of an event loop,
and differ between versions of zarr.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import Blosc, Zstd  # type: ignore[import-untyped]
from zarr.storage import MemoryStore

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.threads import on_threads
from infinite_tensor_stores.files import content
from infinite_tensor_stores.homes import FileHome, Home
from infinite_tensor_stores.many import each, threads_for

Bytes: TypeAlias = bytes | npt.NDArray[np.uint8]
"""Bytes for reading without a copy."""

_BLOSC_HEADER = 16
_LONGEST_HEADER = 18
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_ORDERS = {"little": "<", "big": ">"}
_CRC_LENGTH = 4
_LARGEST_HEADER = 2**16


class ChunkCodec:
    """Encodes and decodes the chunks of an array.

    Parameters
    ----------
    document : mapping
        The array's ``zarr.json``.

    Raises
    ------
    ValueError
        If the codecs of the array are not ``bytes``, then any number of ``zstd`` and ``blosc``, then ``crc32c``.

    Attributes
    ----------
    most_bytes : int
        The largest allowed size of an encoded chunk, in bytes.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        try:
            serializer, *compressors, checksum = map(_extension, document["codecs"])
            if (serializer["name"], checksum["name"]) != ("bytes", "crc32c"):
                raise ValueError("the first must be bytes, and the last crc32c")
            self._compressors = list(map(_compressor, compressors))
            self._dtype = np.dtype(document["data_type"])
            order = serializer["configuration"].get("endian", sys.byteorder)
            self._stored_dtype = self._dtype.newbyteorder(_ORDERS[order])
            self._shape = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
        except Exception as error:  # (invalid codecs raise any kind of exception)
            raise ValueError(
                "codecs must be 'bytes', then any number of 'zstd' and 'blosc', then 'crc32c', got "
                f"{document.get('codecs')!r:.500}: {error}"
            ) from error
        self._size = self._dtype.itemsize * math.prod(self._shape)
        self.most_bytes = 2 * self._size + _LARGEST_HEADER
        # Incompressible data grows a little.
        self._most_between = self._size + self._size // 64 + 2**10

    def read(self, home: Home, keys: Sequence[str]) -> list[npt.NDArray[Any] | Exception | None]:
        """Read and decode the chunks under `keys`.

        Return None for a missing chunk, and an exception for a damaged chunk.
        """
        if isinstance(home, FileHome):

            def read(key: str) -> npt.NDArray[Any] | Exception | None:
                (found,) = home.get([key], self.most_bytes)
                return None if found is None else self.decoded(found)

            return each(read, keys, self.threads(len(keys)))
        found = home.get(keys, self.most_bytes)
        present = {key: data for key, data in zip(keys, found, strict=True) if data is not None}
        blocks = dict(zip(present, self.decode(list(present.values())), strict=True))
        return [blocks.get(key) for key in keys]

    def write(self, home: Home, blocks: Mapping[str, npt.NDArray[Any]]) -> None:
        """Encode blocks, and write each chunk under its key."""
        home.put(dict(zip(blocks, self.encode(list(blocks.values())), strict=True)))

    def encode(self, blocks: Sequence[npt.NDArray[Any]]) -> list[bytes]:
        """Encode blocks."""
        return on_threads(self._encoded, blocks, self.threads(len(blocks)))

    def decode(self, stored: Sequence[bytes]) -> list[npt.NDArray[Any] | Exception]:
        """Decode stored chunks.

        A damaged chunk becomes an exception.
        """
        return on_threads(self.decoded, stored, self.threads(len(stored)))

    def intact(self, stored: Sequence[bytes]) -> list[bytes | Exception]:
        """Check the checksums of stored chunks.

        A damaged chunk becomes an exception.
        """
        return on_threads(_checked, stored, threads_for(sum(map(len, stored))))

    def threads(self, chunks: int) -> int:
        """Return the number of threads for encoding or decoding `chunks` chunks."""
        return threads_for(self._size * chunks)

    def decoded(self, data: bytes) -> npt.NDArray[Any] | Exception:
        """Decode one stored chunk.

        A damaged chunk becomes an exception.
        """
        try:
            return self._decompressed(_unsealed(data)).astype(self._dtype, copy=False)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  (codecs raise any exception on damaged data)
            return error

    def _encoded(self, block: npt.NDArray[Any]) -> bytes:
        data: Bytes = np.ascontiguousarray(block, self._stored_dtype).reshape(-1).view(np.uint8)
        for compressor in self._compressors:
            data = compressor.encode(data)
        view = np.frombuffer(data, np.uint8)
        checksum: int = google_crc32c.value(view)
        return b"".join([view.data, checksum.to_bytes(_CRC_LENGTH, "little")])

    def _decompressed(self, data: Bytes) -> npt.NDArray[Any]:
        """Decompress a block.

        Raise ValueError if a size stated in `data` is wrong or too large. Each stated size is checked before memory is
        allocated for it. Without compressors, the block may be a view of `data`.
        """
        if not self._compressors:
            return np.frombuffer(data, self._stored_dtype).reshape(self._shape)
        first, *others = self._compressors
        for compressor in reversed(others):
            size = _size_in(compressor, data)
            if size is None or size > self._most_between:
                raise ValueError(
                    f"the chunk claims to decompress to {size} bytes, too many for a tile of {self._size} bytes"
                )
            data = compressor.decode(data)
        size = _size_in(first, data)
        if size != self._size:
            raise ValueError(f"the chunk claims to decompress to {size} bytes, not {self._size}")
        block = np.empty(self._shape, self._stored_dtype)
        first.decode(data, block)
        return block


def _extension(given: object) -> dict[str, Any]:
    """Return a codec or other entry of a ``zarr.json`` as a dict with name and configuration."""
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        raise ValueError(f"{given!r:.100} has no name")  # noqa: TRY004  (not a type error of the caller)
    return {"name": given["name"], "configuration": dict(given.get("configuration") or {})}


def _compressor(codec: Mapping[str, Any]) -> Any:
    name, given = codec["name"], codec["configuration"]
    if name == "zstd":
        made = Zstd(given.get("level", 0), given.get("checksum", False))
    elif name == "blosc":
        shuffle = _SHUFFLES.index(given["shuffle"])
        made = Blosc(given["cname"], given["clevel"], shuffle, given["blocksize"], given.get("typesize"))
    else:
        raise ValueError(f"{name!r:.100} is not supported here; zarr.open_array may read the array")
    # Invalid settings raise an error only when the codec is used, so use it.
    made.encode(bytes(16))
    return made


def _size_in(compressor: Any, data: Bytes) -> int | None:
    header = bytes(data[:_LONGEST_HEADER])
    if isinstance(compressor, Zstd):
        return content_size(header)
    # Blosc would read as many bytes as the header claims, even beyond the end of `data`.
    if len(data) < _BLOSC_HEADER or int.from_bytes(header[12:16], "little") != len(data):
        raise ValueError("not a complete Blosc buffer")
    return int.from_bytes(header[4:8], "little")


def content_size(frame: bytes) -> int | None:
    """Return the decompressed size stated in a Zstandard frame (RFC 8878).

    Return None if the frame states no size, or if `frame` is not a Zstandard frame.
    """
    if len(frame) < 6 or frame[:4] != _ZSTD_MAGIC:
        return None
    descriptor = frame[4]
    single = descriptor >> 5 & 1
    length = (single, 2, 4, 8)[descriptor >> 6]
    # Next come a byte for the window (except in a single segment) and the id of a dictionary.
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    # Sizes from 256 to 65791 are stored in two bytes, less 256.
    return int.from_bytes(frame[start : start + length], "little") + (256 if length == 2 else 0) if length else None


def codecs_of(dtype: str, compressors: Any = "auto") -> list[dict[str, Any]]:
    """Return the codecs of a new array, as written in ``zarr.json``.

    Parameters
    ----------
    dtype : str
        The data type of the array, as in its ``zarr.json``.
    compressors : zarr codec, sequence of them, "auto" or None
        As given by a user. A codec may be a mapping, as in a ``zarr.json``.

    Raises
    ------
    ValidationError
        For any codecs other than Zstandard and Blosc.
    """
    several = isinstance(compressors, Sequence) and not isinstance(compressors, str)
    chosen = list(compressors) if several else [] if compressors is None else [compressors]
    try:
        documents = [_extension(each) for each in _documents_of(dtype, chosen)]
        for each in documents:
            _compressor(each)
    except Exception as error:
        # zarr raises any kind of exception on invalid codecs.
        raise ValidationError(
            f"compressors must be one or several Zstandard or Blosc codecs, or None, got {compressors!r:.200}; give, "
            "for example, compressors=zarr.codecs.ZstdCodec(level=1)"
        ) from error
    order = {"configuration": {"endian": sys.byteorder}} if np.dtype(dtype).itemsize > 1 else {}
    return [{"name": "bytes", **order}, *documents, {"name": "crc32c"}]


def _documents_of(dtype: str, compressors: list[Any]) -> Sequence[Any]:
    if compressors == ["auto"]:
        return [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
    if not compressors:
        return []
    # Ask zarr, because some settings depend on the array and on the version of zarr.
    options: dict[str, Any] = {"shape": (1,), "chunks": (1,), "dtype": dtype, "zarr_format": 3}
    array = zarr.create_array(MemoryStore(), compressors=compressors, filters=None, **options)
    described: Any = array.metadata.to_dict()["codecs"]
    return list(described)[1:]


def normal_form(document: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the ``zarr.json`` of an array to a normal form.

    The specification (https://zarr-specs.readthedocs.io/en/latest/v3/core/) allows several forms with the same meaning.
    Raise ValueError if `document` is invalid.
    """
    found = {"storage_transformers": [], **document}
    try:
        for name in ("data_type", "chunk_grid", "chunk_key_encoding"):
            found[name] = _extension(found[name])
        found["chunk_key_encoding"]["configuration"].setdefault("separator", "/")
        found["codecs"] = list(map(_extension, found["codecs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the metadata of a Zarr array: {error!r}") from error
    return found


def _checked(data: bytes) -> bytes | Exception:
    try:
        _unsealed(data)
    except ValueError as error:
        return error
    return data


def _unsealed(data: bytes) -> npt.NDArray[np.uint8]:
    compressed = np.frombuffer(content(data), np.uint8)[:-_CRC_LENGTH]
    if google_crc32c.value(compressed) != int.from_bytes(data[-_CRC_LENGTH:], "little"):
        raise ValueError("the checksum does not match the content")
    return compressed
