"""Storage through fsspec, with credentials hidden."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

from fsspec import asyn

from infinite_tensor.support.disks import tell_weaker
from infinite_tensor.support.forks import Lock
from infinite_tensor.support.interrupts import at_rest
from infinite_tensor_stores.files import LARGEST_DOCUMENT, bounded
from infinite_tensor_stores.homes import Home, Stored, check_writable
from infinite_tensor_stores.many import each, on_loop

_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_HIDDEN = "***"
_HARMLESS = "addressing_style endpoint_url host mode port profile project region_name signature_version"
"""Options without credentials, except for a login in a URL. The text of any other option may be a credential."""
_SHORT = 6

# A password may contain an unquoted slash. Text after a host with a port is no password.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s:@\[]+:(?!:|\d+(?:/|\s|$))(?:(?!::)\S)*|[^/?#\s]*)@")
_QUERY = re.compile(r"(?<=://)([^\s?#\"'<>]*)([?#])([^\s\"'<>)\]]*)")


def without_logins(text: str) -> str:
    """Hide the logins, queries and fragments of URLs in a text."""
    return _QUERY.sub(rf"\1\2{_HIDDEN}", _LOGIN.sub(f"{_HIDDEN}@", text))


class LoginMask:
    """Hides credentials in texts and errors.

    The credentials are taken from a URL and from options. Every text in the options counts as a credential, except in
    options such as ``region_name``.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        texts = {form for text in [*_in_url(url), *_in_options(options or {})] for form in _forms(text)}
        # The longest first, because one may be part of another.
        patterns = [_pattern(text) for text in sorted(filter(None, texts), key=len, reverse=True)]
        self._hidden = re.compile("|".join(patterns) or "(?!)")

    def text(self, text: str) -> str:
        """Replace every credential in `text`."""
        return self._hidden.sub(_HIDDEN, without_logins(text))

    def error(self, error: Exception) -> Exception:
        """Return `error` without credentials.

        If the error or one of its causes would show credentials, a similar error without them is returned. Else the
        same object is returned.
        """
        if all(self.text(text) == text for text in _texts(error)):
            return error
        kinds = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins" and issubclass(kind, OSError))
        return next(kinds, OSError)(f"{type(error).__name__}: {self.text(str(error))}")


class RemoteHome(Home):
    """A folder of a file system of fsspec, with credentials hidden in errors.

    Parameters
    ----------
    files : AbstractFileSystem
        The file system.
    path : str
        The folder in the file system.
    mask : LoginMask
        Hides credentials.
    read_only : bool
        Whether writing is refused.
    at_once : int
        The number of requests of one call that are under way at a time.
    **changes
        Options in place of those of `files`. If there are any, a file system like `files` is used.
    """

    def __init__(
        self, files: Any, path: str, mask: LoginMask, *, read_only: bool, at_once: int, **changes: Any
    ) -> None:
        options = {**files.storage_options, **changes, "skip_instance_cache": True}
        kind: Any = type(files)
        self._open = partial(kind, *files.storage_args, **options)
        self._files: Any = None if changes else files
        self._process = os.getpid()
        # Some file systems keep a final slash when a key is appended, but not in listings.
        self.path = path.rstrip("/")
        self.mask = mask
        self.read_only = read_only
        self.in_memory = self.is_near = "memory" in files.protocol
        self.at_once = 1 if self.in_memory else at_once
        # None if not tried yet.
        self._creates: bool | None = True if self.in_memory else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.files).__name__}, {self.mask.text(self.path)!r})"

    @property
    def files(self) -> Any:
        """The file system. A forked child opens its own, because connections do not survive a fork."""
        if self._process != os.getpid():
            # Freed, it would close connections of the parent.
            _inherited.append(self._files)
            self._files, self._process = None, os.getpid()
            # fsspec before 2025 keeps the parent's event loop, which no thread runs here.
            if asyn.iothread[0] is not None and not asyn.iothread[0].is_alive():
                asyn.reset_lock()
        if self._files is None:
            self._files = self._open()
        return self._files

    def disconnect(self) -> None:
        """See `Home`."""
        self._files = None

    def ask(
        self, method: str, arguments: Iterable[tuple[Any, ...]], *harmless: type[Exception], **options: Any
    ) -> list[Any]:
        """Call a method of the file system for each tuple of arguments, with credentials hidden in errors.

        Errors of the kinds `harmless` are returned in place of results.
        """
        try:
            files = self.files
            if isinstance(files, asyn.AsyncFileSystem) and files.async_impl:
                call = partial(self._send, f"_{method}", options)
                return on_loop(files.loop, call, arguments, self.at_once, harmless)
            with at_rest():
                return each(lambda given: getattr(files, method)(*given, **options), arguments, self.at_once, harmless)
        except Exception as error:
            # The cause and the context of an error are hidden too.
            shown = self.mask.error(error)
            if shown is error:
                raise
        raise shown

    async def _send(self, method: str, options: dict[str, Any], given: tuple[Any, ...]) -> Any:
        return await getattr(self.files, method)(*given, **options)

    def get(self, keys: Iterable[str], most: int = LARGEST_DOCUMENT) -> list[bytes | None]:
        """See `Home`."""
        found = self.ask("cat_file", self._at(keys), *_MISSING)
        return [bounded(data, most) if isinstance(data, bytes) else None for data in found]

    def put(self, objects: Mapping[str, bytes]) -> None:
        """See `Home`."""
        check_writable(self)
        self.ask("pipe_file", [(self._path(key), data) for key, data in objects.items()])

    def _create(self, objects: Mapping[str, bytes]) -> list[bool]:
        check_writable(self)
        there = [False] * len(objects) if self._creates else self.exist(objects)
        free = {key: data for (key, data), is_there in zip(objects.items(), there, strict=True) if not is_there}
        created = dict(zip(free, self._pipe_new(free), strict=True))
        if self._creates is None and (key := next((key for key in created if created[key]), None)) is not None:
            # Test whether the file system can create files exclusively: the file is created again, which should fail.
            self._creates = self._pipe_new({key: objects[key]}) == [False]
            if not self._creates:
                tell_weaker(
                    repr(self),
                    "this file system cannot create files exclusively, so if two processes create a file at the same "
                    "time, the later one wins",
                )
        return [created.get(key, False) for key in objects]

    def _pipe_new(self, objects: Mapping[str, bytes]) -> list[bool]:
        given = [(self._path(key), data) for key, data in objects.items()]
        # In memory, fsspec creates a file in two steps, a check and a write.
        with _creating if self.in_memory else nullcontext():
            answers = self.ask("pipe_file", given, FileExistsError, mode="create")
        return [not isinstance(answer, FileExistsError) for answer in answers]

    def delete(self, keys: Iterable[str]) -> None:
        """See `Home`."""
        check_writable(self)
        self.ask("rm_file", self._at(keys), *_MISSING)

    def _delete_folder(self, folder: str) -> None:
        check_writable(self)
        self.ask("rm", self._at([folder]), *_MISSING, recursive=True)

    def exist(self, keys: Iterable[str]) -> list[bool]:
        """See `Home`."""
        return [bool(found) for found in self.ask("exists", self._at(keys))]

    def sizes(self, keys: Iterable[str]) -> list[int]:
        """See `Home`."""
        return [size if isinstance(size, int) else 0 for size in self.ask("size", self._at(keys), *_MISSING)]

    def names(self, folder: str) -> list[str]:
        """See `Home`."""
        (found,) = self.ask("ls", self._at([folder]), *_MISSING, detail=False)
        paths = [] if isinstance(found, Exception) else [path.rstrip("/") for path in found]
        return [path.rpartition("/")[2] for path in paths if path != self._path(folder)]

    def keys(self, folder: str) -> Iterator[str]:
        """See `Home`."""
        return (key for key, _ in self.entries(folder))

    def entries(self, folder: str) -> Iterator[tuple[str, Stored]]:
        """See `Home`."""
        (found,) = self.ask("find", self._at([folder]), detail=True)
        for path, entry in found.items():
            yield path.removeprefix(f"{self.path}/"), Stored(entry["size"], _changed(entry))

    def copy(self, keys: Mapping[str, str]) -> None:
        """Copy objects, without moving their content through this machine if the storage can do that."""
        check_writable(self)
        try:
            self.ask("cp_file", [(self._path(key), self._path(to)) for key, to in keys.items()])
        except NotImplementedError:
            super().copy(keys)

    def _path(self, key: str) -> str:
        return f"{self.path}/{key}" if key else self.path

    def _at(self, keys: Iterable[str]) -> list[tuple[str]]:
        return [(self._path(key),) for key in keys]


_inherited: list[Any] = []
_creating = Lock()


def _changed(entry: Mapping[str, Any]) -> float | None:
    """Return the time of the last write, in seconds since 1970, or None if unknown."""
    named = [entry[name] for name in ("LastModified", "last_modified", "mtime", "created") if name in entry]
    times = [each.timestamp() if isinstance(each, datetime) else each for each in named]
    return next((float(each) for each in times if isinstance(each, int | float)), None)


def _in_url(url: str) -> Iterator[str]:
    for login in _LOGIN.findall(url):
        yield from login.removesuffix("@").split(":", 1)
    for query in _QUERY.finditer(url):
        for entry in re.split("[?&#]", query[3]):
            # Without a name, the whole entry is the value.
            yield entry.partition("=")[2] or entry


def _in_options(value: object, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _in_options(inner, str(key))
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _in_options(inner, name)
    elif isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode(errors="replace")
        yield from _in_url(text) if name in _HARMLESS.split() else [text]


def _forms(text: str) -> set[str]:
    return {text, unquote(text), quote(text), quote(text, safe=""), repr(text)[1:-1]}


def _pattern(text: str) -> str:
    # Short text is hidden only as a whole word, because longer words may contain it.
    return re.escape(text) if len(text) >= _SHORT else rf"(?<!\w){re.escape(text)}(?!\w)"


def _texts(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        error = error.__cause__ or error.__context__
