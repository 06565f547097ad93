"""Stamps: what tells that a file may hold something else than before, without a look at all of it.

A stamp is a text for each place, which people know by its path or URL; where nothing can be told there is none.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

Stamps: TypeAlias = dict[str, str]

_MOST_FILES = 100_000
"""Of a folder that is listed."""
_MOST_REQUESTED = 10_000
"""Of a listing that takes requests."""
_TELLING = ("ETag", "etag", "e_tag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")
"""What file systems tell of a file that changes with its content, the surest first."""
_BESIDE = (".aux.xml", ".ovr")
"""Files that programs write beside a raster, and that hold none of its pixels."""


def of_file(path: str | os.PathLike[str]) -> Stamps:
    """Size and time of change of a local file; of a folder, of all files in it."""
    found = Path(path).absolute()
    return _told(str(found), lambda: _of_folder(found) if found.is_dir() else _of_status(found.stat()))


def of_place(place: str) -> Stamps:
    """What lies at a path or a URL."""
    url = urlsplit(place)
    if "://" not in place or url.scheme == "file":
        return of_file(unquote(url.path) if url.scheme == "file" else place)
    return _told(place, lambda: _of_url(place))


def of_raster(path: str, files: Iterable[str]) -> Stamps:
    """The files that hold a raster, as rasterio knows it by `path`."""
    held = [each for each in files if not each.endswith(_BESIDE)]
    if held == [path] or not all(map(os.path.exists, held)):
        return of_place(path)
    return _told(path, lambda: _listed((each, _of_status(Path(each).stat())) for each in held))


def of_array(array: Any, file: str | None) -> Stamps:
    """An array of some library that does not lie in memory; `file` is known to be the one it is mapped from."""
    library = type(array).__module__.partition(".")[0]
    if file is not None or library == "h5py":
        # One field of a table has no file, and a dataset that has.
        return of_file(file or getattr(array, "_dset", array).file.filename)
    if library == "zarr":
        return _of_zarr(array)
    if library == "tensorstore" and array.kvstore is not None:
        return of_place(array.kvstore.url)
    if library == "xarray":
        source = array.encoding.get("source")
        return of_place(source) if isinstance(source, str) else of_array(_read_by_xarray(array), None)
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
        return of_file(store.root / path)
    if isinstance(store, ZipStore):
        return of_file(store.path)
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
