"""Checks for the target, the mode and other options of a store."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args
from urllib.parse import unquote

from fsspec import AbstractFileSystem, available_protocols
from fsspec.core import url_to_fs
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.support.given import as_index, quoted
from infinite_tensor.tilestore.stored_definition import FORMAT
from infinite_tensor_stores.homes import DEFAULT_CONCURRENCY, FileHome, Home, StoreHome
from infinite_tensor_stores.remote import LoginMask, RemoteHome, without_logins

DEFAULT_TIMEOUT = 15.0
MOST_CONCURRENT = 256
Mode: TypeAlias = Literal["r", "r+", "a", "w", "w-"]
MODES: tuple[Mode, ...] = get_args(Mode)

ModeT = TypeVar("ModeT")

_S3 = ("s3://", "s3a://")


def check_mode(mode: object, modes: Sequence[ModeT]) -> ModeT:
    """Check that `mode` is one of `modes`.

    Return `mode`, or raise ValidationError.
    """
    for each in modes:
        if each == mode:
            return each
    raise ValidationError(f"mode must be one of {', '.join(map(str, modes))}, got {quoted(mode)}")


def check_found(mode: str, owner: object, found: str | None, *, is_store: bool, place: str) -> None:
    """Check that `mode` matches the content found at the target.

    Raise StoreError otherwise.

    Parameters
    ----------
    mode : str
        One of `MODES`.
    owner : object
        The store; messages show its str.
    found : str or None
        What is at the target; None for nothing.
    is_store : bool
        Whether a store is at the target.
    place : str
        What a new store needs, such as "an empty folder", for messages.
    """
    if found is None:
        if mode in ("r", "r+"):
            raise StoreError(f"{owner}: there is no store; mode 'a' or 'w' creates one in {place}")
    elif mode == "w-":
        raise StoreError(f"{owner}: the target exists already; open a store with mode 'a', or choose {place}")
    elif mode == "r" and not is_store:
        raise StoreError(f"{owner}: there is {found}, but no store; open it with mode 'a' to create a store")


def check_writable(path: Path, owner: object) -> None:
    """Check that a store at `path` can be written, or created in the nearest folder that exists.

    Raise StoreError otherwise, or NotADirectoryError if a file is in the way.
    """
    there = next(each for each in (path, *path.parents) if _is_there(each))
    if there != path and not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(there))
    if not os.access(there, os.W_OK):
        raise StoreError(f"{owner} cannot be opened: {str(there)!r} is not writable; open a store with mode 'r'")


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_format(version: object, owner: object, advice: str = "", known: range = range(1, FORMAT + 1)) -> None:
    """Check the format version of a store.

    Raise StoreError if the version is invalid, or later than the `known` ones. `advice` says in the message what to do
    about an invalid version.
    """
    number = as_index(version)
    if number is None or number < known.start:
        raise StoreError(f"{owner} has the invalid format {version!r:.200}; it may be damaged. {advice}")
    if number >= known.stop:
        raise StoreError(
            f"{owner} has format {number}, this version reads up to {known.stop - 1}; open it with a later version of "
            "this library"
        )


def local_path(target: str) -> Path:
    """Convert a plain path or a ``file://`` URL to an absolute path.

    Raises
    ------
    ValidationError
        If `target` is another URL, a URL with a single slash, a path in the home folder of an unknown user, or a
        relative path in a deleted folder.
    """
    scheme, is_url, rest = target.partition("://")
    if is_url:
        if scheme not in ("file", "local"):
            raise ValidationError(f"{shown(target)} is not a local file")
        host, slash, path = rest.partition("/")
        if "@" in host:
            raise ValidationError(f"a {scheme}:// URL must not contain a login; write {scheme}:///{path}")
        target = unquote(slash + path if host == "localhost" else rest)
    protocol, is_cut, _ = target.partition(":/")
    if is_cut and protocol in available_protocols():
        raise ValidationError(f"a URL begins with {protocol}://, but pathlib removes a slash; give the URL as a str")
    try:
        return (Path(target) if is_url else Path(target).expanduser()).absolute()
    except FileNotFoundError as error:
        raise ValidationError(f"{target!r} is in the current folder, which was deleted; give the whole path") from error
    except RuntimeError as error:
        raise ValidationError(f"{target!r} names a user who has no home directory here; give the whole path") from error


def text_of(target: str | os.PathLike[str]) -> str:
    """Return a path or a URL as a str.

    Raises
    ------
    ValidationError
        If `target` is empty, or neither a path nor a str.
    """
    try:
        text = os.fspath(target)
    except Exception as error:
        raise ValidationError(f"target must be a path or a URL, got {quoted(target)}: {error}") from error
    if not isinstance(text, str) or not text:
        raise ValidationError(
            f"target must be a path or a URL as a str, got {quoted(text)}; give '.' for the current folder"
        )
    return text


def absolute(target: Any) -> Any:
    """Make a local path absolute, also the path of a `LocalStore`.

    A later change of the current folder then has no effect. Other targets are returned unchanged.
    """
    if type(target) is LocalStore:
        return LocalStore(target.root.expanduser().absolute(), read_only=target.read_only)
    if not isinstance(target, str | os.PathLike) or not is_local(text_of(target)):
        return target
    path = local_path(text_of(target))
    return str(path) if isinstance(target, str) else path


def is_local(target: str) -> bool:
    """Return whether a target is a plain path or a ``file://`` URL."""
    return "://" not in target or target.startswith(("file://", "local://"))


def check_timeout(timeout: object) -> float:
    """Check that `timeout` is a positive and finite number of seconds.

    Return `timeout` as a float, or raise ValidationError.
    """
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not 0 < timeout < float("inf"):  # type: ignore[operator]
        raise ValidationError(f"timeout must be a number of seconds above 0, got {quoted(timeout)}")
    return float(timeout)  # type: ignore[arg-type]


def check_concurrency(concurrency: object) -> int:
    """Check that `concurrency` is an allowed number of concurrent requests.

    Return `concurrency`, or raise ValidationError.
    """
    number = as_index(concurrency)
    if number is None or not 1 <= number <= MOST_CONCURRENT:
        raise ValidationError(f"concurrency must be an int from 1 to {MOST_CONCURRENT}, got {quoted(concurrency)}")
    return number


def home_of(
    target: object,
    storage_options: dict[str, Any] | None,
    read_only: bool,
    timeout: float = DEFAULT_TIMEOUT,
    at_once: int = DEFAULT_CONCURRENCY,
) -> Home:
    """Return the home at a path, an fsspec URL or in a zarr Store.

    Parameters
    ----------
    target : str, path or zarr Store
        The target of a `ZarrTileStore`.
    storage_options : dict or None
        Passed to fsspec.
    read_only : bool
        Whether writing is refused.
    timeout : float
        Seconds after which a request fails if S3 does not answer.
    at_once : int
        The number of requests of one call that are under way at a time.

    Raises
    ------
    ValidationError
        If `target` is neither a path, a URL nor a zarr Store.
    StoreError
        If the target cannot be opened. The message shows no credentials.
    ImportError
        If a package is missing; the message says how to install it.
    """
    if isinstance(target, Store):
        if storage_options:
            raise ValidationError("storage_options are only for URLs; set those of a zarr Store when it is created")
        return _of_store(target, read_only, timeout, at_once)
    if not isinstance(target, str | os.PathLike):
        raise ValidationError(f"target must be a path, an fsspec URL or a zarr Store, got {quoted(target)}")
    url = text_of(target)
    if is_local(url):
        # Unlike fsspec's files, FileHome can create files exclusively.
        return FileHome(local_path(url), read_only=read_only)
    mask = LoginMask(url, storage_options)
    # A cached listing would hide what another process has written, and connections of a cached instance may be shared.
    options = {"use_listings_cache": False, **(storage_options or {}), "skip_instance_cache": True}
    try:
        files, path = url_to_fs(url, **options)
        return _remote(files, path, mask, read_only, timeout, at_once)
    except ImportError as error:
        extra = "; pip install s3fs aiobotocore" if url.startswith(_S3) else ""
        raise ImportError(f"{shown(url)} needs another package: {error}{extra}") from error
    except Exception as error:  # noqa: BLE001  (file systems raise different errors)
        failure = mask.error(error)
    raise StoreError(f"cannot open {shown(url)}: {type(failure).__name__}: {failure}") from failure


def _of_store(target: Store, read_only: bool, timeout: float, at_once: int) -> Home:
    try:
        store = target.with_read_only(True) if read_only and not target.read_only else target
    except NotImplementedError as error:
        kind = type(target).__name__
        raise ValidationError(f"mode 'r' needs a read-only {kind}: give {kind}(..., mode='r')") from error
    # Only exact types are replaced: a subclass may behave differently.
    if type(store) is LocalStore:
        return FileHome(store.root.absolute(), read_only=store.read_only)
    if type(store) is FsspecStore:
        mask = LoginMask(store.path, store.fs.storage_options)
        if isinstance(store.fs, AsyncFileSystemWrapper):
            return _remote(store.fs.sync_fs, store.path, mask, store.read_only, timeout, at_once)
        return _remote(store.fs, store.path, mask, store.read_only, timeout, at_once, asynchronous=False)
    return StoreHome(store, at_once)


def _remote(
    files: AbstractFileSystem, path: str, mask: LoginMask, read_only: bool, timeout: float, at_once: int, **changes: Any
) -> Home:
    if "s3" in files.protocol:
        # The packages of the extra `s3` may not be installed.
        from infinite_tensor_stores.s3 import S3Home  # noqa: PLC0415

        return S3Home(files, path, mask, read_only=read_only, at_once=at_once, timeout=timeout)
    return RemoteHome(files, path, mask, read_only=read_only, at_once=at_once, **changes)


def shown(target: object) -> str:
    """Return `target` as a text without credentials, for messages."""
    return without_logins(os.fspath(target) if isinstance(target, str | os.PathLike) else str(target))
