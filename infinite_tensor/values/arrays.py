"""Digests of arrays: of all that is in them, or of samples of what lies in a file and is large. And stamps of files.

A stamp tells that a file may hold something else than before, without a look at all of it. It is a text for each place,
which people know by its path or URL; where nothing can be told there is none.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import google_crc32c
import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import halved

Array: TypeAlias = "np.ndarray[Any, Any] | np.generic"
Box: TypeAlias = tuple[slice, ...]

_ALL_BYTES = 2**26
"""Of what does not lie in memory, a digest sees all up to this size, and samples of what is larger."""
_SAMPLES = 64
_SAMPLE_BYTES = 2**12
_STEP_BYTES = 2**22
_ROW_BYTES = 2**28
"""The most that is read at once so that a chunk is decoded once."""
CHUNK_BYTES = 2**27
"""Larger chunks are read in parts: Dask has some that no memory holds."""


def is_large(shape: Sequence[int], itemsize: int) -> bool:
    """Whether a digest is of the CRC-32C of each 4 MiB, or of samples; it is of the bytes of all else."""
    return math.prod(shape) * itemsize > _ALL_BYTES


def digest_of_regions(
    read: Callable[[Box], Any],
    shape: Sequence[int],
    itemsize: int,
    *,
    in_file: bool,
    chunks: Sequence[int] | None = None,
) -> str:
    """SHA-256 of values, as bytes in C order; beyond 64 MiB of the CRC-32C of each 4 MiB, in a file of samples.

    A sample is a run of values of up to 4 KiB. 64 of them are spread evenly along each dimension; the first and the
    last are at the two ends of the array.

    Parameters
    ----------
    read : callable
        ``read(region)``: the bytes of a region, which has both ends of each slice.
    shape : sequence of int
        Extents.
    itemsize : int
        Bytes of an element.
    in_file : bool
        Whether it lies in a file, or wherever else to read all of it takes long.
    chunks : sequence of int, optional
        What is decoded at once where it lies. Each chunk is read once, unless a row of chunks takes more than 256 MiB.
    """
    if is_large(shape, itemsize) and in_file:
        samples = list(_samples(shape, itemsize))
        contents: Iterable[Any] = map(read, samples) if chunks is None else _by_chunk(read, samples, itemsize, chunks)
    else:
        contents = map(read, _steps(shape, itemsize, chunks))
        if is_large(shape, itemsize):
            contents = _checksums(contents)
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _by_chunk(
    read: Callable[[Box], Any], samples: Sequence[Box], itemsize: int, chunks: Sequence[int]
) -> list[np.ndarray[Any, Any]]:
    """The bytes of each sample; all that is needed of a chunk is read at once."""
    found = [np.empty((*extents_of(sample), itemsize), np.uint8) for sample in samples]
    needed: dict[tuple[int, ...], list[tuple[int, Box]]] = {}
    for number, sample in enumerate(samples):
        along = [range(each.start // n, -(-each.stop // n)) for each, n in zip(sample, chunks, strict=True)]
        for chunk in itertools.product(*along):
            part = tuple(
                slice(max(each.start, i * n), min(each.stop, (i + 1) * n))
                for each, i, n in zip(sample, chunk, chunks, strict=True)
            )
            needed.setdefault(chunk, []).append((number, part))
    for parts in needed.values():
        sides = zip(*(part for _, part in parts), strict=True)
        box = tuple(slice(min(each.start for each in side), max(each.stop for each in side)) for side in sides)
        content = np.frombuffer(read(box), np.uint8).reshape(*extents_of(box), itemsize)
        for number, part in parts:
            found[number][_within(part, samples[number])] = content[_within(part, box)]
    return found


def extents_of(region: Box) -> tuple[int, ...]:
    """The shape of a region, which has both ends of each slice."""
    return tuple(each.stop - each.start for each in region)


def _within(part: Box, box: Box) -> Box:
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(part, box, strict=True))


def _checksums(contents: Iterable[Any]) -> Iterator[bytes]:
    """The CRC-32C of each 4 MiB of what stands in a row, however it comes."""
    crc, room = 0, _STEP_BYTES
    for content in contents:
        rest = np.frombuffer(content, np.uint8)
        while len(rest):
            crc = google_crc32c.extend(crc, rest[:room])
            rest, room = rest[room:], room - len(rest[:room])
            if not room:
                yield crc.to_bytes(4, "little")
                crc, room = 0, _STEP_BYTES
    if room < _STEP_BYTES:
        yield crc.to_bytes(4, "little")


def digest_of_array(array: Array) -> str:
    """SHA-256 of dtype, shape and values, as `digest_of_regions` looks at them."""
    values, digest = np.asarray(array), ""
    if values.nbytes:
        digest = digest_of_regions(
            lambda region: np.ascontiguousarray(values[region]).reshape(-1).view(np.uint8).data,
            values.shape,
            values.itemsize,
            in_file=memory_map_of(array) is not None,
        )
    return hashlib.sha256(f"{values.dtype.str} {values.shape} {digest}".encode()).hexdigest()


def checksum(content: Any) -> bytes:
    """The CRC-32C of bytes, which is ten times as fast as SHA-256."""
    # It takes arrays of numpy as they are, and no memoryview.
    return google_crc32c.value(np.frombuffer(content, np.uint8)).to_bytes(4, "little")  # type: ignore[no-any-return]


def memory_map_of(array: object) -> np.memmap[Any, Any] | None:
    """The memory map of a file that an array shows a part of."""
    base = array
    while isinstance(base, np.ndarray):
        # What was computed from a memmap is one without pages, and changes to a copy on write are in no file.
        if isinstance(base, np.memmap) and getattr(base, "_mmap", None) is not None and base.mode != "c":
            return base if base.filename is not None else None
        base = base.base
    return None


def check_unmasked(values: Any, has: str) -> None:
    """ValidationError, which begins with `has`, if elements of an array are masked, as numpy and astropy have it."""
    mask = values.mask if hasattr(type(values), "mask") else None
    # netCDF4 has a mask of that name which says what reads do.
    is_mask = isinstance(mask, np.ndarray | np.bool_ | bool) and not hasattr(values, "set_auto_mask")
    if is_mask and np.any(mask):
        raise ValidationError(
            f"{has} a mask, for which there is no place in a tensor; give a.filled(value), "
            "dask.array.ma.filled(a, value) or numpy.where(a.mask, value, a.data), or call a.set_auto_mask(False) of "
            "netCDF4, which then reads what the file holds"
        )


def cut(chunks: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Chunks, halved along their longest dimension until they take up to 128 MiB."""
    return tuple(halved(chunks, CHUNK_BYTES / itemsize))


def contiguous_box(shape: Sequence[int], itemsize: int, nbytes: int) -> list[int]:
    """The extents of a box of up to so many bytes, whose elements follow each other in C order."""
    room, box = max(1, nbytes // itemsize), []
    for extent in reversed(shape):
        box.append(max(1, min(extent, room)))
        room //= extent
    return box[::-1]


def _steps(shape: Sequence[int], itemsize: int, chunks: Sequence[int] | None) -> Iterator[Box]:
    """All of an array, in C order, in boxes of about 4 MiB or of one row of chunks, so that each chunk lies in one."""
    box = contiguous_box(shape, itemsize, _STEP_BYTES)
    if chunks is not None:
        # Chunks have one element before this dimension; a row of them is whole behind it.
        d = next((d for d, n in enumerate(chunks) if n > 1), len(chunks) - 1)
        row = [*[1] * d, min(chunks[d], shape[d]), *shape[d + 1 :]]
        row_bytes = math.prod(row) * itemsize
        if _STEP_BYTES < row_bytes <= _ROW_BYTES:
            box = row
        elif row_bytes <= _STEP_BYTES and box[d] < shape[d]:
            box[d] -= box[d] % row[d]
    for start in itertools.product(*(range(0, extent, n) for extent, n in zip(shape, box, strict=True))):
        yield tuple(slice(a, min(a + n, e)) for a, n, e in zip(start, box, shape, strict=True))


def _samples(shape: Sequence[int], itemsize: int) -> Iterator[Box]:
    """A few places of a large array: no two of them at the same level of a dimension that is long enough."""
    box = contiguous_box(shape, itemsize, _SAMPLE_BYTES)
    steps = _SAMPLES - 1
    for i in range(_SAMPLES):
        region = []
        for d, (extent, n) in enumerate(zip(shape, box, strict=True)):
            # Multiples of 38, near the golden ratio of 63, keep places apart in two dimensions and more.
            at = i if i == steps else i * 38**d % steps
            start = (at * (extent - n) + steps // 2) // steps
            region.append(slice(start, start + n))
        yield tuple(region)


Stamps: TypeAlias = dict[str, str]

_MOST_FILES = 100_000
"""Of a folder that is listed."""
_MOST_REQUESTED = 10_000
"""Of a listing that takes requests."""
_TELLING = ("ETag", "etag", "e_tag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")
"""What file systems tell of a file that changes with its content, the surest first."""
_BESIDE = (".aux.xml", ".ovr")
"""Files that programs write beside a raster, and that hold none of its pixels."""


def stamps_of_file(path: str | os.PathLike[str]) -> Stamps:
    """Size and time of change of a local file; of a folder, of all files in it."""
    found = Path(path).absolute()
    return _told(str(found), lambda: _of_folder(found) if found.is_dir() else _of_status(found.stat()))


def stamps_of_place(place: str) -> Stamps:
    """What lies at a path or a URL."""
    url = urlsplit(place)
    if "://" not in place or url.scheme == "file":
        return stamps_of_file(unquote(url.path) if url.scheme == "file" else place)
    return _told(place, lambda: _of_url(place))


def stamps_of_raster(path: str, files: Iterable[str]) -> Stamps:
    """The files that hold a raster, as rasterio knows it by `path`."""
    held = [each for each in files if not each.endswith(_BESIDE)]
    if held == [path] or not all(map(os.path.exists, held)):
        return stamps_of_place(path)
    return _told(path, lambda: _listed((each, _of_status(Path(each).stat())) for each in held))


def stamps_of_array(array: Any, file: str | None) -> Stamps:
    """An array of some library that does not lie in memory; `file` is known to be the one it is mapped from."""
    library = type(array).__module__.partition(".")[0]
    if file is not None or library == "h5py":
        # One field of a table has no file, and a dataset that has.
        return stamps_of_file(file or getattr(array, "_dset", array).file.filename)
    if library == "zarr":
        return _of_zarr(array)
    if library == "tensorstore" and array.kvstore is not None:
        return stamps_of_place(array.kvstore.url)
    if library == "xarray":
        source = array.encoding.get("source")
        return stamps_of_place(source) if isinstance(source, str) else stamps_of_array(_read_by_xarray(array), None)
    if library == "infinite_tensor":
        # A blob, which counts its edits.
        return {str(array.tile_store): str(array.version)}
    return {}


def _read_by_xarray(variable: Any) -> Any:
    """The array of another library that lies within the wrappers of a lazy variable."""
    inner = getattr(variable, "_data", None)
    while type(inner).__module__.startswith("xarray."):
        inner = getattr(inner, "array", getattr(inner, "_array", None))
    return inner


def _told(place: str, stamp: Callable[[], str | None]) -> Stamps:
    try:
        found = stamp()
    except Exception:  # noqa: BLE001  (each file system has errors of its own; what cannot be asked says nothing)
        return {}
    return {} if found is None else {place: found}


def _of_status(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns}"


def _listed(entries: Iterable[tuple[str, str]]) -> str:
    said = "\n".join(sorted(f"{key} {entry}" for key, entry in entries))
    return hashlib.sha256(said.encode("utf-8", "surrogateescape")).hexdigest()


def _of_folder(folder: Path) -> str | None:
    files = (Path(at, name) for at, _, names in os.walk(folder, onerror=_raised, followlinks=True) for name in names)
    some = list(itertools.islice(files, _MOST_FILES + 1))
    if len(some) > _MOST_FILES:
        return None
    return _listed((each.relative_to(folder).as_posix(), _of_status(each.stat())) for each in some)


def _raised(error: OSError) -> None:
    raise error


def _of_url(url: str) -> str | None:
    from fsspec.core import url_to_fs  # noqa: PLC0415  (only what lies elsewhere needs it)

    files, path = url_to_fs(url)
    if "http" in files.protocol:
        # Its ukey is the URL alone.
        return _entry(files.info(path))
    return str(files.ukey(path))


def _entry(info: Mapping[str, Any]) -> str | None:
    """Size and what else is told of a file; None where nothing else is."""
    known = [str(info[name]) for name in _TELLING if info.get(name) is not None]
    return f"{info.get('size')} {known[0]}" if known else None


def _of_zarr(array: Any) -> Stamps:
    from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore, ZipStore  # noqa: PLC0415  (there is an array of it)

    store, path = array.store_path.store, array.store_path.path
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001  (zarr tells what is wrapped nowhere else)
    if isinstance(store, LocalStore):
        return stamps_of_file(store.root / path)
    if isinstance(store, ZipStore):
        return stamps_of_file(store.path)
    chunk = array.shards or array.chunks
    if math.prod(-(-extent // n) for extent, n in zip(array.shape, chunk, strict=True)) > _MOST_REQUESTED:
        return {}
    if isinstance(store, FsspecStore):
        place = f"{store.path}/{path}".rstrip("/")
        return _told(place, lambda: _of_objects(store.fs, place))
    if isinstance(store, ObjectStore):
        return _told(f"{store.store} {path}", lambda: _all_told(_objects(store.store, path)))
    return {}


def _of_objects(files: Any, path: str) -> str | None:
    if "http" in files.protocol:
        return None
    # That of the store works on an event loop of zarr.
    waiting = getattr(files, "sync_fs", None)
    if waiting is None:
        options = {name: value for name, value in files.storage_options.items() if name not in ("asynchronous", "loop")}
        waiting = type(files)(*files.storage_args, **options)
    waiting.invalidate_cache()
    return _all_told((name, _entry(info)) for name, info in waiting.find(path, detail=True).items())


def _objects(store: Any, prefix: str) -> Iterator[tuple[str, str | None]]:
    import obstore  # noqa: PLC0415  (there is an array in a store of it)

    for page in obstore.list(store, prefix or None):
        for each in page:
            yield each["path"], _entry(each)


def _all_told(entries: Iterable[tuple[str, str | None]]) -> str | None:
    """One stamp of several files; None where one of them tells nothing."""
    found = list(entries)
    known = [(key, entry) for key, entry in found if entry is not None]
    return _listed(known) if known and len(known) == len(found) else None
