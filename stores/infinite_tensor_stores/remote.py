"""Storage through fsspec, with credentials hidden."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from zarr.buffer import default_buffer_prototype
from zarr.storage import FsspecStore

from infinite_tensor.support.disks import tell_weaker
from infinite_tensor_stores.files import bounded

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


class MaskedFileSystem:
    """A file system of fsspec, with credentials hidden in errors."""

    creates: bool | None = None
    """Whether `create` refuses to replace a file. None if not tried yet."""

    def __init__(self, files: Any, mask: LoginMask) -> None:
        self.files = files
        self.mask = mask

    async def disconnect(self) -> None:
        """Close unshared connections.

        The next request opens new connections.
        """

    async def create(self, path: str, data: bytes) -> None:
        """Create a file.

        Raise FileExistsError if the file exists.
        """
        await self._pipe_file(path, data, mode="create")

    async def hide(self, request: Awaitable[Any]) -> Any:
        """Await a request, with credentials hidden in errors.

        This includes the cause and the context of an error.
        """
        try:
            return await request
        except Exception as error:
            shown = self.mask.error(error)
            if shown is error:
                raise
        raise shown

    def __getattr__(self, name: str) -> Any:
        # During copying or unpickling, `files` is not set yet.
        found = getattr(object.__getattribute__(self, "files"), name)
        if not name.startswith("_"):
            return found
        # In fsspec, names with an underscore are coroutines.
        return lambda *args, **kwargs: self.hide(found(*args, **kwargs))


class FilesInMemory(MaskedFileSystem):
    """fsspec's file system in memory, with an atomic `create`.

    fsspec itself creates a file in two steps, a check and a write.
    """

    creates = True

    async def create(self, path: str, data: bytes) -> None:
        """Create a file.

        Raise FileExistsError if the file exists.
        """
        # On the thread of the event loop, no other request can come between the two steps.
        self.files.sync_fs.pipe_file(path, data, mode="create")


class Stored(NamedTuple):
    """Size and last modification of an object.

    The size is in bytes. The time is in seconds since 1970, or None if unknown.
    """

    size: int
    changed: float | None = None


class RemoteStore(FsspecStore):
    """A `FsspecStore` with credentials hidden."""

    fs: MaskedFileSystem
    lists_in_pages = False
    """Whether a listing can be stopped early, without requests for the rest."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.fs.files).__name__}, {self.fs.mask.text(self.path)!r})"

    async def read(self, key: str, most: int) -> bytes | None:
        """Read an object.

        Return None if there is no object. Return `Unreadable` if the object has more than `most` bytes.
        """
        found = await self.get(key, default_buffer_prototype())
        return None if found is None else bounded(found.to_bytes(), most)

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists.

        Return whether the object was written.
        """
        self._check_writable()
        path = f"{self.path}/{key}"
        if self.fs.creates is not True and await self.fs._exists(path):  # noqa: SLF001  (the name in fsspec)
            return False
        try:
            await self.fs.create(path, data)
        except FileExistsError:
            return False
        if self.fs.creates is None:
            await self._try_again(path, data)
        return True

    async def copy(self, key: str, to: str) -> None:
        """Copy an object to another key, without moving its content through this machine if the storage can do that."""
        self._check_writable()
        paths = f"{self.path}/{key}", f"{self.path}/{to}"
        try:
            await self.fs._cp_file(*paths)  # noqa: SLF001  (the name in fsspec)
        except NotImplementedError:
            await self.fs._pipe_file(paths[1], await self.fs._cat_file(paths[0]))  # noqa: SLF001

    async def _try_again(self, path: str, data: bytes) -> None:
        """Test whether the file system can create files exclusively.

        The existing file `path` is created again, which should fail. Sets `fs.creates`.
        """
        self.fs.creates = True
        with suppress(FileExistsError):
            await self.fs.create(path, data)
            self.fs.creates = False
            tell_weaker(
                repr(self),
                "this file system cannot create files exclusively, so if two processes create a file at the same time, "
                "the later one wins",
            )

    async def list_objects(self, prefix: str) -> AsyncIterator[tuple[str, Stored]]:
        """Iterate over the objects below the folder `prefix`.

        Yields each key with the size and the time from the listing.
        """
        found = await self.fs._find(f"{self.path}/{prefix}", detail=True)  # noqa: SLF001  (the name in fsspec)
        for path, entry in found.items():
            yield path.removeprefix(f"{self.path}/"), Stored(entry["size"], _changed(entry))


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
