"""Opens the files of an array again: in a forked child, and when a pickle is loaded.

A forked child shares the position in every open file with its parent, and a pickle cannot contain open files. So this
module walks over all objects in an array, as pickle does. It replaces each file, and each array of a file, by a path,
URL or store. A file without a path, URL or store is an error.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import mmap
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
import zarr
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, ZipStore

from infinite_tensor.support.forks import Lock
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.values.arrays import memory_map_of
from infinite_tensor.values.code import is_installed
from infinite_tensor_stores.homes import is_in_memory

try:
    # Dask arrays contain functions, and only cloudpickle can pickle such functions. Dask depends on cloudpickle.
    from cloudpickle import Pickler
except ImportError:

    class Pickler(pickle.Pickler):  # type: ignore[no-redef]
        """Replaces the pickler of cloudpickle if cloudpickle is not installed."""

        def reducer_override(self, obj: Any) -> Any:  # noqa: ARG002
            """Pickle `obj` in the normal way.

            Subclasses call this method, which the class of cloudpickle has as well.
            """
            return NotImplemented


Opened: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...]]"
"""Function for opening something, and its arguments."""


def library_of(obj: object) -> str:
    """Return the package of a type, or of the type of an object."""
    kind = obj if isinstance(obj, type) else type(obj)
    return str(kind.__module__).partition(".")[0]


# Other processes


def opened_by(array: Any) -> Opened:
    """Return a function and arguments for recreating an array in another process.

    The function opens the files of the array again. Values that are only in memory become part of the arguments.

    Raises
    ------
    pickle.PicklingError
        If the array can be neither opened again nor copied. The message says why.
    """
    if isinstance(array, torch.Tensor | np.ndarray):
        return _mapped(array) or _by_value(array)
    walk = _ToOtherProcess()
    try:
        walk.dump(array)
    except Exception as error:
        raise pickle.PicklingError(str(error)) from error
    return pickle.loads, (walk.pickled.getvalue(),)


def _by_value(array: Any) -> Opened:
    if isinstance(array, np.ndarray):
        return _unchanged, (array,)
    if array.untyped_storage().nbytes() > array.nbytes:
        # Pickling a view would pickle its whole storage.
        array = array.clone()
    signed = _AS_SIGNED.get(array.dtype)
    return (_unchanged, (array,)) if signed is None else (torch.Tensor.view, (array.view(signed), array.dtype))


_AS_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Signed dtypes to pickle in place of unsigned dtypes. torch cannot unpickle these unsigned dtypes."""


def _unchanged(array: Any) -> Any:
    return array


class _ToOtherProcess(Pickler):  # type: ignore[misc]
    def __init__(self) -> None:
        self.pickled = io.BytesIO()
        super().__init__(self.pickled, pickle.HIGHEST_PROTOCOL)

    def reducer_override(self, obj: Any) -> Any:
        find = _FINDERS.get(library_of(obj))
        found = None if find is None else find(obj)
        return super().reducer_override(obj) if found is None else found


# Forked children


def is_fork_safe(obj: object) -> bool:
    """Return whether a forked child can use an object as it is.

    This is True for values such as tensors and bytes, for classes, modules and code, for stores in memory, and for
    objects of this library, which handle forks themselves.
    """
    if isinstance(obj, Store):
        return is_in_memory(obj) or _is_of_fsspec_in_memory(obj) or library_of(obj) in _OURS
    return is_plain(obj) or library_of(obj) in _OURS


def is_plain(obj: object) -> bool:
    """Return whether an object is a value, such as a tensor or bytes, or code, such as a class or a module."""
    return isinstance(obj, _VALUES_AND_CODE) or (isinstance(obj, np.ndarray) and not obj.dtype.hasobject)


_VALUES_AND_CODE = (torch.Tensor, bytes, bytearray, io.BytesIO, mmap.mmap, type, ModuleType, CodeType)

_OURS = ("infinite_tensor", "infinite_tensor_stores")

_WITH_THREADS = {"tensorstore", "obstore", "icechunk"}
"""Libraries with threads of their own. A forked child lacks the threads, and does not restart them."""

_parents: list[Any] = []
"""Objects of the parent, never freed in a child. Some libraries would write to a file on closing."""


def opened_in_child(array: Any) -> Any:
    """Return a copy of the array for a forked child, with all files opened again.

    Raises
    ------
    Exception
        If an object in the array is not known to be fork-safe, and cannot be pickled.
    """
    _parents.append(array)
    walk = _ToChild()
    walk.dump(array)
    return _InChild(walk).load()


class _ToChild(_ToOtherProcess):
    """Pickles an array for a forked child, except fork-safe objects."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def persistent_id(self, obj: Any) -> int | None:
        """Add a fork-safe object to `kept` and return the index. Return None for objects to pickle."""
        if not is_fork_safe(obj):
            return None
        self.kept.append(obj)
        return len(self.kept) - 1

    def reducer_override(self, obj: Any) -> Any:
        # zarr's ObjectStore pickles the wrapped store itself, so look at the wrapped store.
        library, kind = library_of(obj.store if isinstance(obj, ObjectStore) else obj), type(obj).__name__
        if library in _WITH_THREADS:
            raise pickle.PicklingError(f"the threads of {library} do not exist in a forked process")
        if kind == "SerializableLock":
            # A lock of xarray or Dask. In a process, equal tokens mean the same lock.
            return type(obj), (f"{obj.token} of {os.getpid()}",)
        if library == "xarray" and kind == "CachingFileManager":
            return _own_manager, (type(obj), *obj.__getstate__()[:5])
        return super().reducer_override(obj)


class _InChild(pickle.Unpickler):
    def __init__(self, walk: _ToChild) -> None:
        super().__init__(io.BytesIO(walk.pickled.getvalue()))
        self._kept = walk.kept

    def persistent_load(self, pid: int) -> Any:
        return self._kept[pid]


def _own_manager(kind: Any, opener: Any, args: Any, mode: Any, kwargs: Any, lock: Any) -> Any:
    """Create a file manager of xarray with a new id.

    With the same id, the manager would use the file opened by the parent.
    """
    return kind(opener, *args, mode=mode, kwargs=kwargs, lock=lock)


# One thread at a time


_locks: dict[str, Lock] = {}
"""The lock of each library that is not thread-safe, and of all open files in arrays."""

_PARALLEL = {"numpy", "torch", "zarr", "tensorstore", "infinite_tensor"}
"""Libraries with thread-safe reads of any array."""
_WRAPPERS = {"dask", "xarray"}
"""Libraries with thread-safe reads if reads of the wrapped objects are thread-safe."""
_ONE_STATE = {"netCDF4": "HDF5", "h5py": "HDF5"}
"""Libraries with a global state for all open files, and the owner of the state."""


def locks_and_folders(array: Any) -> tuple[tuple[Lock, ...], tuple[Opened, ...]]:
    """Return the locks for reading an array, in order of acquisition, and how to open its folders again.

    All arrays of a library that is not thread-safe share a lock, and so do all arrays with open files in them.

    A folder is an array whose chunks are files or objects of their own, such as a zarr.Array inside a Dask array. If
    it is deleted while it is open, its chunks read as fill values, but opening it again raises an error.
    """
    library = library_of(array)
    keys: set[str] = set()
    folders: list[Opened] = []

    def visit(obj: object) -> bool:
        kind = type(obj)
        is_netcdf, is_file = library_of(obj) == "netCDF4", hasattr(kind, "seek") and hasattr(kind, "read")
        if is_netcdf or is_file:
            keys.add(_ONE_STATE["netCDF4"] if is_netcdf else "files")
        folder = _folder_of(obj)
        if folder is not None:
            folders.append(folder)
        return not (is_netcdf or is_file or isinstance(obj, zarr.Array) or is_fork_safe(obj))

    walk(array, visit)
    if library in _PARALLEL:
        keys = set()
    elif not keys and library not in _WRAPPERS:
        keys = {_ONE_STATE.get(library, library)}
    return tuple([_locks.setdefault(key, Lock()) for key in sorted(keys)]), tuple(folders)


# All objects in an object


def walk(root: object, visit: Callable[[object], bool]) -> None:
    """Call `visit` with an object and the objects in it.

    The objects are found by pickling. The pickle is never loaded, and no methods of unknown classes are called. An
    object without a state to pickle, such as a lock, is not looked into.

    Parameters
    ----------
    root : object
        The object where the walk begins.
    visit : callable
        ``visit(obj)`` returns whether to look inside `obj`.
    """
    with contextlib.suppress(Exception):
        _Walk(visit).dump(root)


def sources_in(given: Iterable[object]) -> Iterator[InfiniteTensor | str]:
    """Yield all tensors that `given` objects lead to, and all strings and paths there.

    They may be hidden in args, in views, in arrays of other libraries and in functions.
    """
    waiting = [*given]
    seen: dict[int, object] = {}
    found: list[str] = []

    def visit(obj: object) -> bool:
        if isinstance(obj, InfiniteTensor):
            waiting.append(obj)
        elif isinstance(obj, str | PurePath):
            found.append(str(obj))
        elif isinstance(obj, FunctionType) and not is_installed(str(obj.__module__), obj.__code__.co_filename):
            waiting.extend(obj.__globals__.get(name) for name in obj.__code__.co_names)
            return True
        else:
            # The keys of a store in memory name all tensors in it.
            return not isinstance(obj, TileStore | MemoryStore) and not is_plain(obj)
        return False

    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, InfiniteTensor):
            waiting += [*each.args, each.f]
            yield each
        else:
            walk(each, visit)
            yield from found
            found.clear()


class _Walk(_ToOtherProcess):
    def __init__(self, visit: Callable[[object], bool]) -> None:
        super().__init__()
        self._visit = visit

    def persistent_id(self, obj: Any) -> int | None:
        """Return None to let pickle look inside `obj`, or 0 to skip `obj`."""
        return None if self._visit(obj) else 0

    def reducer_override(self, obj: Any) -> Any:
        """Pickle a list with the state of `obj`, or with the variables in the closure of a function.

        Normal pickling would call methods of `obj`.
        """
        held: list[Any] = []
        if isinstance(obj, FunctionType):
            held = [cell.cell_contents for cell in obj.__closure__ or ()]
        elif obj is list:
            return NotImplemented
        elif not isinstance(obj, type):
            with contextlib.suppress(TypeError):
                if library_of(obj) in (*_WRAPPERS, "builtins", "collections", "functools"):
                    return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
                held = [object.__getstate__(obj)]
        return list, (held,)


def _folder_of(obj: Any) -> Opened | None:
    library, kind = library_of(obj), type(obj).__name__
    if isinstance(obj, zarr.Array):
        return _of_zarr(obj)
    if (library, kind) == ("tensorstore", "TensorStore") and obj.kvstore is not None:
        return _open_tensorstore, (obj.spec(retain_context=True),)
    if (library, kind) == ("netCDF4", "Variable") and _NCZARR in obj.group().filepath():
        return _of_netcdf(obj.group())
    if (library, kind) == ("xarray", "CachingFileManager"):
        state = obj.__getstate__()[:5]
        return (_open_manager, (type(obj), *state)) if _NCZARR in str(state[1]) else None
    return None


_NCZARR = "#mode="
"""In the URL of a folder with a netCDF file as Zarr arrays."""


def _open_manager(*state: Any) -> None:
    manager = _own_manager(*state)
    manager.acquire()
    manager.close()


def _open_tensorstore(spec: Any) -> Any:
    import tensorstore  # noqa: PLC0415  (there is an array of it)

    return tensorstore.open(spec, open=True, read=True).result()


# How to open the files of each library again. With None, the library's own pickling is used.


def _mapped(array: Any) -> Opened | None:
    if type(array) is torch.Tensor:
        storage = array.untyped_storage()
        path = storage.filename if array.device.type == "cpu" else None
        form = (array.dtype, array.storage_offset(), tuple(array.shape), array.stride())
        return (_open_mapped_tensor, (path, storage.nbytes(), *form)) if path and Path(path).is_file() else None
    base = memory_map_of(array) if type(array) in (np.ndarray, np.memmap) else None
    if base is None or not Path(base.filename).is_file():  # type: ignore[arg-type]
        return None
    begin = base.offset - base.offset % mmap.ALLOCATIONGRANULARITY
    first, mapped = (
        each.__array_interface__["data"][0]
        for each in (array, np.frombuffer(base._mmap, np.uint8))  # type: ignore[attr-defined]  # noqa: SLF001
    )
    return _open_mapped, (os.fspath(base.filename), begin + first - mapped, array.shape, array.dtype, array.strides)  # type: ignore[arg-type]


def _open_mapped(path: str, offset: int, shape: Any, dtype: Any, strides: Any) -> np.ndarray[Any, Any]:
    return np.ndarray(shape, dtype, np.memmap(path, np.uint8, "r"), offset, strides)


def _open_mapped_tensor(path: str, nbytes: int, dtype: Any, offset: int, shape: Any, strides: Any) -> torch.Tensor:
    # torch has no read-only tensors. Writes to this tensor do not reach the file.
    return torch.from_file(path, size=nbytes // dtype.itemsize, dtype=dtype).as_strided(shape, strides, offset)


def _path_of(name: str, what: str) -> str:
    path = os.path.abspath(name)  # noqa: PTH100
    with contextlib.suppress(OSError):
        there = os.stat(path)  # noqa: PTH116
        for number in os.listdir(_OPEN):  # noqa: PTH208
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(int(number)), there):
                    return path
    raise pickle.PicklingError(f"{what} cannot be opened again, because {path} is not the open file")


_OPEN = "/dev/fd"
"""Folder with the open files of a process."""


def _of_file(file: Any) -> Opened | None:
    if library_of(file) == "tempfile":
        # A copy of the wrapper would delete the file too.
        file = getattr(file, "file", file)
    raw = getattr(file, "raw", file)
    if type(file) not in (io.BufferedReader, io.FileIO) or type(raw) is not io.FileIO or raw.writable():
        return None
    if not isinstance(raw.name, str):
        raise pickle.PicklingError(f"{file!r} cannot be opened again, because it has no path")
    return _open_file, (_path_of(raw.name, repr(file)), 0 if file is raw else -1, file.tell())


def _open_file(path: str, buffering: int, position: int) -> Any:
    file = open(path, "rb", buffering)  # noqa: PTH123, SIM115  (whoever has the array closes it)
    file.seek(position)
    return file


def _of_hdf5(obj: Any) -> Opened | None:
    import h5py  # noqa: PLC0415  (of an extra)

    if not isinstance(obj, h5py.Dataset | h5py.Group):
        return None
    file, what = obj.file, f"h5py object {obj.name!r} in {obj.file.filename!r}"
    if file.driver == "core" and file.mode == "r":
        # h5py has read the whole file and closed it.
        path = str(Path(file.filename).absolute())
    elif file.driver in ("sec2", "stdio", "direct", "windows"):
        path = _path_of(file.filename, what)
    else:
        raise pickle.PicklingError(
            f"the file with {obj.name!r} cannot be opened again by its path, because it is in memory or was "
            "opened from a file object: open it with h5py.File(path)"
        )
    name = obj.name
    if name is None or file.get(name) != obj:
        # The object was reached through a link in another file, and has the name of the link.
        found = h5py.h5r.get_name(obj.ref, file.id)
        if found is None:
            raise pickle.PicklingError(f"{what} has no name in the file")
        name = found.decode()
    locks, if_possible = file.id.get_access_plist().get_file_locking()
    locking = "best-effort" if locks and if_possible else bool(locks)
    return _open_hdf5, (path, name, file.swmr_mode, locking)


def _open_hdf5(path: str, name: str, swmr: bool, locking: Any) -> Any:
    import h5py  # noqa: PLC0415  (of an extra)

    return h5py.File(path, "r", swmr=swmr, locking=locking)[name]


def _of_netcdf(obj: Any) -> Opened | None:
    import netCDF4  # noqa: PLC0415  (there is an array of it)

    if not isinstance(obj, netCDF4.Dataset | netCDF4.Variable):
        return None
    group = obj.group() if isinstance(obj, netCDF4.Variable) else obj
    place = group.filepath()
    if "://" not in place:
        place = _path_of(place, f"netCDF4 object {obj.name!r} in {place!r}")
    if obj is group:
        return _open_netcdf, (place, group.path)
    return _open_variable, (group, obj.name, obj.mask, obj.scale, obj.always_mask, obj.chartostring)


def _open_netcdf(place: str, path: str) -> Any:
    import netCDF4  # noqa: PLC0415  (there was an array of it)

    file = netCDF4.Dataset(place)
    return file if path == "/" else file[path]


def _open_variable(group: Any, name: str, mask: bool, scale: bool, always_mask: bool, chartostring: bool) -> Any:
    variable = group.variables[name]
    variable.set_auto_mask(mask)
    variable.set_auto_scale(scale)
    variable.set_always_mask(always_mask)
    variable.set_auto_chartostring(chartostring)
    return variable


def _of_zarr(obj: Any) -> Opened | None:
    if isinstance(obj, zarr.Array):
        return _open_zarr, (obj.store_path.store, obj.store_path.path, obj.metadata.zarr_format)
    if type(obj) is LocalStore:
        return functools.partial(LocalStore, read_only=obj.read_only), (str(obj.root.absolute()),)
    if type(obj) is ZipStore:
        # Use mode r, because the mode of a written store would empty the file on reopening.
        return functools.partial(ZipStore, mode="r"), (str(obj.path.absolute()),)
    if isinstance(obj, Store) and _is_of_fsspec_in_memory(obj):
        raise pickle.PicklingError(f"{obj} exists only in the memory of this process")
    return None


def _is_of_fsspec_in_memory(store: Store) -> bool:
    """Return whether a store is under ``memory://``, with separate data in each process."""
    return isinstance(store, FsspecStore) and "memory" in store.fs.protocol


def _open_zarr(store: Store, path: str, zarr_format: Any) -> Any:
    return zarr.open_array(store, path=path, mode="r" if store.read_only else "r+", zarr_format=zarr_format)


def by_absolute_path(array: Any) -> Any:
    """Return the array with an absolute path.

    zarr and nibabel resolve relative paths in the current working directory.
    """
    if library_of(array) == "nibabel":
        name = getattr(array, "file_like", None)
        if isinstance(name, str) and not os.path.isabs(name):  # noqa: PTH117
            array = copy.copy(array)
            array.file_like = os.path.abspath(name)  # noqa: PTH100
        return array
    store, path = array.store_path.store, array.store_path.path
    if type(store) is LocalStore and not store.root.is_absolute():
        store = LocalStore(store.root.absolute(), read_only=store.read_only)
    elif type(store) is ZipStore and store.read_only and not store.path.is_absolute():
        # Only read-only stores, because an unfinished ZIP file cannot be read by path.
        store = ZipStore(store.path.absolute(), mode="r")
    else:
        return array
    return _open_zarr(store, path, array.metadata.zarr_format)


def _of_lock(obj: Any) -> Opened | None:
    """Replace a lock by a new lock, because the state of a lock is only valid in its process."""
    new = {type(threading.Lock()): threading.Lock, type(threading.RLock()): threading.RLock}.get(type(obj))
    return new and (new, ())


_FINDERS: dict[str, Callable[[Any], Opened | None]] = {
    "numpy": _mapped,
    "torch": _mapped,
    "_thread": _of_lock,
    "_io": _of_file,
    "tempfile": _of_file,
    "h5py": _of_hdf5,
    "netCDF4": _of_netcdf,
    "zarr": _of_zarr,
}
