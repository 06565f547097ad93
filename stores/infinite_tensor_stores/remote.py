"""Storage through fsspec. Credentials in its URL and options are never shown."""

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
"""Options that only say where a storage is and how to access it; any other text may be a credential."""
_SHORT = 6

# A password may contain an unquoted slash; what follows a host with a port is not a password.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s:@\[]+:(?!:|\d+(?:/|\s|$))(?:(?!::)\S)*|[^/?#\s]*)@")
_QUERY = re.compile(r"(?<=://)([^\s?#\"'<>]*)([?#])([^\s\"'<>)\]]*)")


def without_logins(text: str) -> str:
    """`text` without the ``user:password@``, the queries and the fragments of the URLs in it."""
    return _QUERY.sub(rf"\1\2{_HIDDEN}", _LOGIN.sub(f"{_HIDDEN}@", text))


class LoginMask:
    """Hides the credentials of a URL and of options in texts and in errors.

    Every text in the options counts as a credential, unless it only says where the storage is.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        texts = {form for text in [*_in_url(url), *_in_options(options or {})] for form in _forms(text)}
        # The longest first, because one may be part of another.
        patterns = [_pattern(text) for text in sorted(filter(None, texts), key=len, reverse=True)]
        self._hidden = re.compile("|".join(patterns) or "(?!)")

    def text(self, text: str) -> str:
        """`text` with every credential replaced."""
        return self._hidden.sub(_HIDDEN, without_logins(text))

    def error(self, error: Exception) -> Exception:
        """Return `error`. If it or one of its causes would show credentials, return a similar error without them."""
        if all(self.text(text) == text for text in _texts(error)):
            return error
        kinds = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins" and issubclass(kind, OSError))
        return next(kinds, OSError)(f"{type(error).__name__}: {self.text(str(error))}")


class MaskedFileSystem:
    """A file system of fsspec whose errors show no credentials."""

    creates: bool | None = None
    """Whether `create` refuses to replace a file; None until it has been tried."""

    def __init__(self, files: Any, mask: LoginMask) -> None:
        self.files = files
        self.mask = mask

    async def disconnect(self) -> None:
        """Close connections that are not shared; the next request opens new ones."""

    async def create(self, path: str, data: bytes) -> None:
        """Create a file. Raise FileExistsError if there is one."""
        await self._pipe_file(path, data, mode="create")

    async def hide(self, request: Awaitable[Any]) -> Any:
        """Return the answer to a request. If it fails, the error, its cause and its context show no credentials."""
        try:
            return await request
        except Exception as error:
            shown = self.mask.error(error)
            if shown is error:
                raise
        raise shown

    def __getattr__(self, name: str) -> Any:
        # While this is being copied or unpickled, it has no `files` yet.
        found = getattr(object.__getattribute__(self, "files"), name)
        if not name.startswith("_"):
            return found
        # In fsspec, names with an underscore are coroutines.
        return lambda *args, **kwargs: self.hide(found(*args, **kwargs))


class FilesInMemory(MaskedFileSystem):
    """fsspec's file system in memory. fsspec creates a file in two steps, a check and a write; `create` is atomic."""

    creates = True

    async def create(self, path: str, data: bytes) -> None:
        """Create a file. Raise FileExistsError if there is one."""
        # On the thread of the event loop, no other request can come between the two steps.
        self.files.sync_fs.pipe_file(path, data, mode="create")


class Stored(NamedTuple):
    """The size of an object in bytes, and the time of its last write.

    The time is in seconds since 1970, or None if it is unknown.
    """

    size: int
    changed: float | None = None


class RemoteStore(FsspecStore):
    """A `FsspecStore` that shows no credentials."""

    fs: MaskedFileSystem
    lists_in_pages = False
    """Whether a listing can be stopped early, without requests for the rest."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.fs.files).__name__}, {self.fs.mask.text(self.path)!r})"

    async def read(self, key: str, most: int) -> bytes | None:
        """Read an object. Return None if there is none, `Unreadable` if it is larger than `most` bytes."""
        found = await self.get(key, default_buffer_prototype())
        return None if found is None else bounded(found.to_bytes(), most)

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists, and return whether it was written."""
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

    async def _try_again(self, path: str, data: bytes) -> None:
        """Try to create a file that exists. Set `fs.creates` to True if the file system refuses, else to False."""
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
        """The keys that begin with the folder `prefix`, each with the size and time in the listing."""
        found = await self.fs._find(f"{self.path}/{prefix}", detail=True)  # noqa: SLF001  (the name in fsspec)
        for path, entry in found.items():
            yield path.removeprefix(f"{self.path}/"), Stored(entry["size"], _changed(entry))


def _changed(entry: Mapping[str, Any]) -> float | None:
    """Return the time when an object was written, in seconds since 1970, or None if `entry` does not say."""
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
    """The forms that a credential may have in a URL or a message."""
    return {text, unquote(text), quote(text), quote(text, safe=""), repr(text)[1:-1]}


def _pattern(text: str) -> str:
    # A text as short as a common word is hidden only where it is a whole word.
    return re.escape(text) if len(text) >= _SHORT else rf"(?<!\w){re.escape(text)}(?!\w)"


def _texts(error: BaseException | None) -> Iterator[str]:
    """All texts of an error, its causes and contexts, even if a traceback would not show them."""
    while error is not None:
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        error = error.__cause__ or error.__context__
