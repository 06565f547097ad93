"""Storage that fsspec reaches. Its URL and its options may hold credentials, which nothing shows."""

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
"""Options that say where a storage is and how to speak to it; every other text may be a credential."""
_SHORT = 6

# A password may hold a slash as it is; what follows a host and its port is no password.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s:@\[]+:(?!:|\d+(?:/|\s|$))(?:(?!::)\S)*|[^/?#\s]*)@")
_QUERY = re.compile(r"(?<=://)([^\s?#\"'<>]*)([?#])([^\s\"'<>)\]]*)")


def without_logins(text: str) -> str:
    """`text` without the ``user:password@``, the queries and the fragments of the URLs in it."""
    return _QUERY.sub(rf"\1\2{_HIDDEN}", _LOGIN.sub(f"{_HIDDEN}@", text))


class LoginMask:
    """Hides the credentials in a URL and in options, in texts and in errors.

    Every text in the options is one, however they are nested, but for the few that only say where the storage is.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        texts = {form for text in [*_in_url(url), *_in_options(options or {})] for form in _forms(text)}
        # The longest first: one may be a part of another.
        patterns = [_pattern(text) for text in sorted(filter(None, texts), key=len, reverse=True)]
        self._hidden = re.compile("|".join(patterns) or "(?!)")

    def text(self, text: str) -> str:
        """`text` with every credential replaced."""
        return self._hidden.sub(_HIDDEN, without_logins(text))

    def error(self, error: Exception) -> Exception:
        """`error` itself, or one of its kind in its place if it or a cause of it would show a credential."""
        if all(self.text(text) == text for text in _texts(error)):
            return error
        kinds = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins" and issubclass(kind, OSError))
        return next(kinds, OSError)(f"{type(error).__name__}: {self.text(str(error))}")


class MaskedFileSystem:
    """A file system of fsspec whose requests raise no error that `mask` would hide."""

    creates: bool | None = None
    """Whether `create` replaces nothing; None until it has been tried."""

    def __init__(self, files: Any, mask: LoginMask) -> None:
        self.files = files
        self.mask = mask

    async def disconnect(self) -> None:
        """Close connections that nobody else uses; the next request opens new ones."""

    async def create(self, path: str, data: bytes) -> None:
        """Write a file; FileExistsError if there is one."""
        await self._pipe_file(path, data, mode="create")

    async def hide(self, request: Awaitable[Any]) -> Any:
        """The answer to a request. An error shows no credential, nor has it one that does as its cause or context."""
        try:
            return await request
        except Exception as error:
            shown = self.mask.error(error)
            if shown is error:
                raise
        raise shown

    def __getattr__(self, name: str) -> Any:
        # What is copied or unpickled has no file system at first.
        found = getattr(object.__getattribute__(self, "files"), name)
        if not name.startswith("_"):
            return found
        # So fsspec names what is awaited.
        return lambda *args, **kwargs: self.hide(found(*args, **kwargs))


class FilesInMemory(MaskedFileSystem):
    """Fsspec's memory of this process, which looks for a file first and writes it then, on a thread of its own."""

    creates = True

    async def create(self, path: str, data: bytes) -> None:
        """Write a file; FileExistsError if there is one."""
        # On the thread of the event loop nobody comes in between.
        self.files.sync_fs.pipe_file(path, data, mode="create")


class Stored(NamedTuple):
    """The bytes of an object, and when it was written, in seconds since 1970; None where nobody tells."""

    size: int
    changed: float | None = None


class RemoteStore(FsspecStore):
    """What `FsspecStore` does, without showing a credential."""

    fs: MaskedFileSystem
    lists_in_pages = False
    """Whether a listing that is given up asks for no more of it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.fs.files).__name__}, {self.fs.mask.text(self.path)!r})"

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, None if there is none; `Unreadable` for one that is larger than `most` bytes."""
        found = await self.get(key, default_buffer_prototype())
        return None if found is None else bounded(found.to_bytes(), most)

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one; whether it was written."""
        self._check_writable()
        path = f"{self.path}/{key}"
        if self.fs.creates is not True and await self.fs._exists(path):  # noqa: SLF001  (so fsspec names it)
            return False
        try:
            await self.fs.create(path, data)
        except FileExistsError:
            return False
        if self.fs.creates is None:
            await self._try_again(path, data)
        return True

    async def _try_again(self, path: str, data: bytes) -> None:
        """Create what was just created, with the same content, to see whether the file system refuses that."""
        self.fs.creates = True
        with suppress(FileExistsError):
            await self.fs.create(path, data)
            self.fs.creates = False
            tell_weaker(
                repr(self),
                "this file system creates no file exclusively, so where two processes create the same at the same "
                "moment, the later one wins",
            )

    async def list_objects(self, prefix: str) -> AsyncIterator[tuple[str, Stored]]:
        """The keys that begin with `prefix`, a folder, with what a listing tells of each object."""
        found = await self.fs._find(f"{self.path}/{prefix}", detail=True)  # noqa: SLF001  (so fsspec names it)
        for path, entry in found.items():
            yield path.removeprefix(f"{self.path}/"), Stored(entry["size"], _changed(entry))


def _changed(entry: Mapping[str, Any]) -> float | None:
    """When an object was written, in seconds since 1970; each file system has a name of its own for that."""
    named = [entry[name] for name in ("LastModified", "last_modified", "mtime", "created") if name in entry]
    times = [each.timestamp() if isinstance(each, datetime) else each for each in named]
    return next((float(each) for each in times if isinstance(each, int | float)), None)


def _in_url(url: str) -> Iterator[str]:
    for login in _LOGIN.findall(url):
        yield from login.removesuffix("@").split(":", 1)
    for query in _QUERY.finditer(url):
        for entry in re.split("[?&#]", query[3]):
            # Without a name it is all value.
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
    """How one credential may stand in a URL or a message."""
    return {text, unquote(text), quote(text), quote(text, safe=""), repr(text)[1:-1]}


def _pattern(text: str) -> str:
    # What is as short as a word of a message counts only where it stands alone.
    return re.escape(text) if len(text) >= _SHORT else rf"(?<!\w){re.escape(text)}(?!\w)"


def _texts(error: BaseException | None) -> Iterator[str]:
    """What an error, and those that led to it, would show, whether a traceback does or not."""
    while error is not None:
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        error = error.__cause__ or error.__context__
