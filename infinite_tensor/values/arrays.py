"""Digests of arrays and tensors, and stamps of files.

The digest of a large array in a file covers only samples of the array.

A stamp is a text that changes when a file may have changed, such as size and modification time. Computing a stamp does
not read the file. Each path or URL has one stamp, or none if the file system reports nothing about it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import google_crc32c
import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import halved
from infinite_tensor.support.threads import on_threads

Array: TypeAlias = "np.ndarray[Any, Any] | np.generic"
Box: TypeAlias = tuple[slice, ...]

_ALL_BYTES = 2**26
"""Maximum bytes of an array outside memory to hash completely. Larger arrays are sampled."""
_SAMPLES = 64
_SAMPLE_BYTES = 2**12
_STEP_BYTES = 2**22
_ROW_BYTES = 2**28
"""Maximum bytes to read at once to avoid decoding a chunk twice."""
CHUNK_BYTES = 2**27
"""Larger chunks are read in parts, because some Dask chunks do not fit into memory."""


_LEAF = 1 << 22
"""Bytes of a part. Parts are hashed separately, to share the work among threads."""
_OF_SPARSE = {
    torch.sparse_coo: ("indices", "values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""Methods for the parts of a sparse tensor, by layout."""


def sha256_of(said: Iterable[str]) -> str:
    """Return the SHA-256 of several texts.

    The digest also depends on the boundaries between the texts.
    """
    digest = hashlib.sha256()
    for part in said:
        digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def is_large(shape: Sequence[int], itemsize: int) -> bool:
    """Whether an array takes more than 64 MiB."""
    return math.prod(shape) * itemsize > _ALL_BYTES


def digest_of_regions(
    read: Callable[[Box], Any],
    shape: Sequence[int],
    itemsize: int,
    *,
    in_file: bool,
    chunks: Sequence[int] | None = None,
) -> str:
    """Compute the SHA-256 of an array's bytes, in C order.

    An array of more than 64 MiB is not hashed whole. If the array is in a file, 64 samples of up to 4 KiB are hashed.
    The samples are spread evenly from one end of each dimension to the other. If the array is in memory, its bytes are
    cut into pieces of 4 MiB, and the CRC-32C checksums of the pieces are hashed.

    Parameters
    ----------
    read : callable
        ``read(region)`` returns the bytes of a region, whose slices have a start and a stop.
    shape : sequence of int
        The shape of the array.
    itemsize : int
        The size of an element in bytes.
    in_file : bool
        Whether reading all of the array takes long, because it is in a file or on a server.
    chunks : sequence of int, optional
        The shape of a chunk of the stored array. Chunks are read whole where possible, so that each is read once.
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
    """Read the bytes of all samples, with a single read per chunk."""
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
    """Return the shape of a region.

    All slices must have a start and a stop.
    """
    return tuple(each.stop - each.start for each in region)


def _within(part: Box, box: Box) -> Box:
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(part, box, strict=True))


def _checksums(contents: Iterable[Any]) -> Iterator[bytes]:
    """Yield the CRC-32C of every 4 MiB of the joined contents.

    The boundaries between contents have no effect.
    """
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
    """Compute a SHA-256 from the dtype, shape and values of an array.

    The values are hashed by `digest_of_regions`. A memory map counts as an array in a file.
    """
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
    """Return the CRC-32C of bytes.

    CRC-32C is ten times as fast as SHA-256.
    """
    # google_crc32c takes numpy arrays without a copy, but no memoryview.
    return google_crc32c.value(np.frombuffer(content, np.uint8)).to_bytes(4, "little")  # type: ignore[no-any-return]


class Hash:
    """The digest of an object, computed when it is needed.

    Two digests at the same location are equal if nothing has changed between them, even if they were never computed.

    Parameters
    ----------
    token : object
        A value that differs after most changes of the object, and takes little time.
    compute : callable
        Returns the digest, as text.
    form : callable, optional
        Returns what is known without the values. It stands for the digest if that was needed after a change.
    of : Tensor, optional
        The object, if it is a tensor.
    """

    def __init__(
        self,
        compute: Callable[[], str],
        token: object = None,
        form: Callable[[], str] = str,
        *,
        of: torch.Tensor | None = None,
    ) -> None:
        self._compute, self._token, self._form, self._of = compute, token, form, of
        self._text: str | None = None

    @property
    def is_parameter(self) -> bool:
        """Whether the object is a parameter of a network."""
        return isinstance(self._of, nn.Parameter) and not is_lazy(self._of)

    def mark(self) -> object:
        """Return a value that differs after every change of a tensor, or None for other objects."""
        return None if self._of is None else state_of(self._of)

    def text(self, *, known: bool = False) -> str:
        """Return the digest. If `known` is True, return the form if the digest was not computed yet."""
        if self._text is None and not known:
            self._text = self._compute()
        return self._form() if self._text is None else self._text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hash) or self._token == other._token:
            return isinstance(other, Hash)
        return self._text is not None and self._text == other.text()

    __hash__ = None  # type: ignore[assignment]


def hash_of(value: Any, name: str, *, strict: bool) -> Hash:
    """Return the digest of a tensor or a numpy array, to be computed later.

    `name` is the name in messages. `strict` is True if a tensor without values is an error, and does not count by its
    form.
    """
    if isinstance(value, np.ndarray):
        return Hash(lambda: f"#{digest_of_array(value)}", _sampled(value), lambda: f"{value.dtype} {value.shape}")

    def form() -> str:
        shape = tuple(value.shape) if value.is_meta or _has_bytes(value) else ()
        return f"#{sha256_of([_kind_of(value), str(value.dtype), str(shape)])}"

    def compute() -> str:
        try:
            return f"#{sha256_of([digest_of_tensor(value, name)])}"
        except ValidationError:
            if strict:
                raise
            return form()

    has_version = _has_bytes(value) and not value.is_inference()
    token = (id(value), value.data_ptr(), value._version) if has_version else id(value)  # noqa: SLF001
    return Hash(compute, token, form, of=value)


def _has_bytes(tensor: torch.Tensor) -> bool:
    return not (is_lazy(tensor) or tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided)


def said_of_array(array: Any, *, in_file: bool) -> str:
    """Return the digest of an array of any library, or of its stamp if it is `in_file`.

    Return "" if it would have to be computed first, or cannot be read.
    """
    try:
        if in_file:
            file = memory_map_of(array)
            found = stamps_of_array(array, None if file is None else str(file.filename))
            return f"#{sha256_of(found.values())}" if found else ""
        if getattr(array, "__dask_graph__", lambda: None)() is None:
            values = np.asarray(array)
            return "" if values.dtype.hasobject else f"#{digest_of_array(values)}"
    except Exception:  # noqa: BLE001  (libraries raise different errors)
        return ""
    return ""


def _sampled(array: np.ndarray[Any, Any]) -> object:
    if memory_map_of(array) is not None:
        return id(array)
    boxes = [...] if not is_large(array.shape, array.itemsize) else _samples(array.shape, array.itemsize)
    parts = (
        [checksum(np.ascontiguousarray(array[box]).reshape(-1).view(np.uint8)) for box in boxes] if array.nbytes else []
    )
    return array.dtype, array.shape, parts


def _kind_of(tensor: torch.Tensor) -> str:
    return f"{type(tensor).__module__}.{type(tensor).__qualname__}"


_hashes: dict[int, tuple[weakref.ref[torch.Tensor], tuple[Any, ...], str]] = {}
"""Known digests by tensor id, each with the tensor's `state_of` at the time of hashing."""


def digest_of_tensor(tensor: torch.Tensor, name: str = ".a tensor") -> str:
    """Return dtype, shape and hashes of a tensor, as a text.

    `name` is the name of the tensor in messages, with a dot in front: ``.conv.weight``. Raise ValidationError if the
    tensor has no readable values.
    """
    if is_lazy(tensor) or tensor.is_meta:
        reason = "belongs to a lazy module that was not called yet" if is_lazy(tensor) else "is on the device meta"
        raise ValidationError(f"digest: {name[1:]!r} {reason}, and has no values; load the weights first")
    try:
        key, state = id(tensor), state_of(tensor)
        known = _hashes.get(key)
        if known is not None and known[0]() is tensor and state is not None and known[1] == state:
            return known[2]
        parts = _parts_said(tensor.detach())
        # The extent of a nested dimension is a symbol, valid only in this process.
        shape = [extent if isinstance(extent, int) else "nested" for extent in tensor.shape]
    except (RuntimeError, TypeError) as error:
        raise ValidationError(
            f"digest: the bytes of {name[1:]!r} ({type(tensor).__name__}, {tensor.dtype}, {tensor.layout}) "
            f"cannot be read: {error}; set version= to a text for the weights, such as the name of a checkpoint"
        ) from error
    said = " ".join((str(tensor.dtype), str(shape), *parts))
    if state is not None:
        _hashes[key] = weakref.ref(tensor, lambda _: _hashes.pop(key, None)), state, said
    return said


def state_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return a value for detecting changes of a tensor's content.

    The value has the address and the version of the tensor and, on the CPU, a checksum. Return None if only a full hash
    can detect changes.
    """
    if not _has_bytes(tensor) or tensor.is_inference() or type(tensor) not in (torch.Tensor, nn.Parameter):
        return None
    checked = None
    if tensor.device.type == "cpu" and (dense := _dense(tensor.detach())) is not None:
        # Writing through `tensor.data` or a numpy view does not change the version.
        checked = checksum(dense.contiguous().reshape(-1).view(torch.uint8).numpy())
    return tensor.data_ptr(), tensor._version, tensor.shape, tensor.stride(), tensor.dtype, checked  # noqa: SLF001


def _parts_said(tensor: torch.Tensor) -> list[str]:
    dense = _dense(tensor)
    if dense is None:
        kind, parts = _parts(tensor)
        return [kind, *(digest_of_tensor(part) for part in parts)]
    if not dense.is_contiguous():
        # Leaves must be contiguous. Copy on the CPU, to take no memory of a device.
        dense = dense.cpu().contiguous()
    flat = dense.reshape(-1).view(torch.uint8)
    leaves = [flat[start : start + _LEAF] for start in range(0, len(flat), _LEAF)]
    return on_threads(lambda leaf: hashlib.sha256(leaf.cpu().numpy().data).hexdigest(), leaves, torch.get_num_threads())


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Convert a tensor to a dense tensor.

    Return None for a tensor made of several tensors, such as a sparse tensor.
    """
    if tensor.is_mkldnn:
        return tensor.to_dense()
    if tensor.is_quantized or tensor.layout != torch.strided or hasattr(tensor, "__tensor_flatten__"):
        return None
    return tensor.resolve_conj().resolve_neg()


def _parts(tensor: torch.Tensor) -> tuple[str, list[torch.Tensor]]:
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return _kind_of(tensor), [getattr(tensor, name) for name in names]
    if tensor.layout in _OF_SPARSE:
        if tensor.layout == torch.sparse_coo:
            tensor = tensor.coalesce()
        return str(tensor.layout), [getattr(tensor, method)() for method in _OF_SPARSE[tensor.layout]]
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{tensor.qscheme()} {tensor.q_scale()!r} {tensor.q_zero_point()}", [tensor.int_repr()]
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return f"{tensor.qscheme()} {tensor.q_per_channel_axis()}", [tensor.int_repr(), scales, zeros]


def memory_map_of(array: object) -> np.memmap[Any, Any] | None:
    """Return the memory map behind an array.

    Return None if the array is not a view of a mapped file, or if the file is mapped copy-on-write.
    """
    base = array
    while isinstance(base, np.ndarray):
        # A result computed from a memmap is a memmap without a file mapping. With copy-on-write (mode "c"), changes
        # are not in the file.
        if isinstance(base, np.memmap) and getattr(base, "_mmap", None) is not None and base.mode != "c":
            return base if base.filename is not None else None
        base = base.base
    return None


def check_unmasked(values: Any, has: str) -> None:
    """Raise ValidationError if an array has masked elements.

    `has` is the beginning of the message: "weights have" gives "weights have a mask, but ...".
    """
    mask = values.mask if hasattr(type(values), "mask") else None
    # The attribute `mask` of netCDF4 is a setting, not a mask.
    is_mask = isinstance(mask, np.ndarray | np.bool_ | bool) and not hasattr(values, "set_auto_mask")
    if is_mask and np.any(mask):
        raise ValidationError(
            f"{has} a mask, but tensors have no masks; give a.filled(value), dask.array.ma.filled(a, value) or "
            "numpy.where(a.mask, value, a.data). To read a netCDF4 variable without a mask, call "
            "a.set_auto_mask(False) first"
        )


def cut(chunks: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Reduce the shape of a chunk to at most 128 MiB.

    The longest dimension is halved until the chunk is small enough.
    """
    return tuple(halved(chunks, CHUNK_BYTES / itemsize))


def contiguous_box(shape: Sequence[int], itemsize: int, nbytes: int) -> list[int]:
    """Return the shape of a box with contiguous elements in C order.

    The box has at most `nbytes` bytes, but at least one element.
    """
    room, box = max(1, nbytes // itemsize), []
    for extent in reversed(shape):
        box.append(max(1, min(extent, room)))
        room //= max(1, extent)
    return box[::-1]


def _steps(shape: Sequence[int], itemsize: int, chunks: Sequence[int] | None) -> Iterator[Box]:
    """Yield boxes covering an array, in C order.

    A box takes about 4 MiB, or is a whole row of chunks.
    """
    box = contiguous_box(shape, itemsize, _STEP_BYTES)
    if chunks is not None:
        # Before dimension d, chunks have one element. A row of chunks spans all dimensions after d.
        d = next((d for d, n in enumerate(chunks) if n > 1), len(chunks) - 1)
        row = [*[1] * d, min(chunks[d], shape[d]), *shape[d + 1 :]]
        row_bytes = math.prod(row) * itemsize
        if _STEP_BYTES < row_bytes <= _ROW_BYTES:
            box = row
        elif row_bytes <= _STEP_BYTES and box[d] < shape[d]:
            box[d] -= box[d] % row[d]
    yield from boxes_of(shape, box)


def boxes_of(shape: Sequence[int], box: Sequence[int]) -> Iterator[Box]:
    """Cut an array into boxes, in lexicographic order. The last ones may be smaller."""
    for start in itertools.product(*[range(0, extent, n) for extent, n in zip(shape, box, strict=True)]):
        yield tuple([slice(a, min(a + n, e)) for a, n, e in zip(start, box, shape, strict=True)])


def _samples(shape: Sequence[int], itemsize: int) -> Iterator[Box]:
    box = contiguous_box(shape, itemsize, _SAMPLE_BYTES)
    steps = _SAMPLES - 1
    for i in range(_SAMPLES):
        region = []
        for d, (extent, n) in enumerate(zip(shape, box, strict=True)):
            # 38 is near 63 times the golden ratio, so its multiples spread the samples in two and more dimensions.
            at = i if i == steps else i * 38**d % steps
            start = (at * (extent - n) + steps // 2) // steps
            region.append(slice(start, start + n))
        yield tuple(region)


Stamps: TypeAlias = dict[str, str]

_MOST_FILES = 100_000
"""Maximum number of files to list in a local folder."""
_MOST_REQUESTED = 10_000
"""Maximum number of files to list by requests to a server."""
_TELLING = ("ETag", "etag", "e_tag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")
"""Properties changing with the content of a file, most reliable first."""
_BESIDE = (".aux.xml", ".ovr")
"""Extensions of extra files next to a raster, without full-resolution pixels."""


def stamps_of_file(path: str | os.PathLike[str]) -> Stamps:
    """Return the stamp of a local file or folder.

    The stamp of a file is its size and modification time. The stamp of a folder covers all files in it.
    """
    found = Path(path).absolute()
    return _told(str(found), lambda: _of_folder(found) if found.is_dir() else _of_status(found))


def stamps_of_place(place: str) -> Stamps:
    """Return the stamp of a path or a URL."""
    url = urlsplit(place)
    if "://" not in place or url.scheme == "file":
        return stamps_of_file(unquote(url.path) if url.scheme == "file" else place)
    return _told(place, lambda: _of_url(place))


def stamps_of_raster(path: str, files: Iterable[str]) -> Stamps:
    """Return the stamp of a raster opened by rasterio as `path`.

    `files` are the files of the raster. The stamp covers all of them except overviews (``.ovr``) and ``.aux.xml``
    files. If some are not local files, the stamp of `path` itself is returned.
    """
    held = [each for each in files if not each.endswith(_BESIDE)]
    if held == [path] or not all(map(os.path.exists, held)):
        return stamps_of_place(path)
    return _told(path, lambda: _listed((each, _of_status(Path(each))) for each in held))


def stamps_of_array(array: Any, file: str | None) -> Stamps:
    """Return the stamps of an array in a file or on a server.

    `file` is the memory-mapped file, if any. Return an empty dict if no stamp is known.
    """
    library = type(array).__module__.partition(".")[0]
    if file is not None or library == "h5py":
        # A view of a table's field has no `file`, but the dataset has.
        return stamps_of_file(file or getattr(array, "_dset", array).file.filename)
    if library == "zarr":
        return _of_zarr(array)
    if library == "tensorstore" and array.kvstore is not None:
        return stamps_of_place(array.kvstore.url)
    if library == "xarray":
        source = array.encoding.get("source")
        return stamps_of_place(source) if isinstance(source, str) else stamps_of_array(_read_by_xarray(array), None)
    if library == "infinite_tensor":
        # A TensorBlob counts its edits in `version`.
        return {str(array.tile_store): str(array.version)}
    return {}


def _read_by_xarray(variable: Any) -> Any:
    inner = getattr(variable, "_data", None)
    while type(inner).__module__.startswith("xarray."):
        inner = getattr(inner, "array", getattr(inner, "_array", None))
    return inner


def _told(place: str, stamp: Callable[[], str | None]) -> Stamps:
    try:
        found = stamp()
    except Exception:  # noqa: BLE001  (file systems raise different errors; without an answer there is no stamp)
        return {}
    return {} if found is None else {place: found}


def _of_status(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _listed(entries: Iterable[tuple[str, str | None]]) -> str | None:
    """Return the stamp of several files, or None if nothing is known of one of them."""
    found = list(entries)
    if not found or any(entry is None for _, entry in found):
        return None
    said = "\n".join(sorted(f"{key} {entry}" for key, entry in found))
    return hashlib.sha256(said.encode("utf-8", "surrogateescape")).hexdigest()


def _of_folder(folder: Path) -> str | None:
    def refuse(error: OSError) -> None:
        raise error

    files = (Path(at, name) for at, _, names in os.walk(folder, onerror=refuse, followlinks=True) for name in names)
    some = list(itertools.islice(files, _MOST_FILES + 1))
    is_short = len(some) <= _MOST_FILES
    return _listed((each.relative_to(folder).as_posix(), _of_status(each)) for each in some) if is_short else None


def _of_url(url: str) -> str | None:
    from fsspec.core import url_to_fs  # noqa: PLC0415  (only URLs need it)

    files, path = url_to_fs(url)
    if "http" in files.protocol:
        # For HTTP, ukey depends on the URL alone.
        return _entry(files.info(path))
    return str(files.ukey(path))


def _entry(info: Mapping[str, Any]) -> str | None:
    known = [str(info[name]) for name in _TELLING if info.get(name) is not None]
    return f"{info.get('size')} {known[0]}" if known else None


def _of_zarr(array: Any) -> Stamps:
    from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore, ZipStore  # noqa: PLC0415  (the array is one of zarr)

    store, path = array.store_path.store, array.store_path.path
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001  (zarr has no public name for the wrapped store)
    if isinstance(store, LocalStore | ZipStore):
        return stamps_of_file(store.root / path if isinstance(store, LocalStore) else store.path)
    chunk = array.shards or array.chunks
    if math.prod(-(-extent // n) for extent, n in zip(array.shape, chunk, strict=True)) > _MOST_REQUESTED:
        return {}
    if isinstance(store, FsspecStore):
        place = f"{store.path}/{path}".rstrip("/")
        return _told(place, lambda: _listed(_objects_of_fsspec(store.fs, place)))
    if isinstance(store, ObjectStore):
        return _told(f"{store.store} {path}", lambda: _listed(_objects_of_obstore(store.store, path)))
    return {}


def _objects_of_fsspec(files: Any, path: str) -> Iterator[tuple[str, str | None]]:
    if "http" not in files.protocol:
        # The file system of the store runs on zarr's event loop, so a synchronous one is needed.
        skipped = ("asynchronous", "loop")
        options = {name: value for name, value in files.storage_options.items() if name not in skipped}
        waiting = getattr(files, "sync_fs", None) or type(files)(*files.storage_args, **options)
        waiting.invalidate_cache()
        for name, info in waiting.find(path, detail=True).items():
            yield name, _entry(info)


def _objects_of_obstore(store: Any, prefix: str) -> Iterator[tuple[str, str | None]]:
    import obstore  # noqa: PLC0415  (the array is in a store of obstore)

    for page in obstore.list(store, prefix or None):
        for each in page:
            yield each["path"], _entry(each)
