"""Storage that fsspec reaches. Its URL and its options may hold credentials, which nothing shows."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self
from urllib.parse import quote, unquote

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore

from infinite_tensor_stores.files import Unreadable

_HIDDEN = "***"
_HARMLESS = "addressing_style endpoint_url host mode port profile project region_name signature_version"
"""Options that say where a storage is and how to speak to it; every other text may be a credential."""
_SHORT = 6
_PLACES = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
_KINDS = (*_PLACES, PermissionError, TimeoutError, ConnectionError)

# A password may hold a slash as it is; what follows a host and its port is no password.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s:@\[]+:(?!:|\d+(?:/|\s|$))(?:(?!::)\S)*|[^/?#\s]*)@")
_QUERY = re.compile(r"(?<=://)([^\s?#\"'<>]*)([?#])([^\s\"'<>)\]]*)")


def without_logins(text: str) -> str:
    """`text` without the ``user:password@``, the queries and the fragments of the URLs in it."""
    return _QUERY.sub(rf"\1\2{_HIDDEN}", _LOGIN.sub(f"{_HIDDEN}@", text))


class Mask:
    """Hides the credentials in a URL and in options in texts, and within a ``with`` block in the error that leaves it.

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
        kind = next((kind for kind in _KINDS if isinstance(error, kind)), OSError)
        return kind(f"{type(error).__name__}: {self.text(str(error))}")

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and (shown := self.error(error)) is not error:
            try:
                raise shown from None
            finally:
                # Not even as the context of the new one, which is set as that is raised.
                shown.__context__ = None


@dataclass
class _Discreet:
    """A file system whose requests raise no error that `mask` would hide."""

    files: Any
    mask: Mask = field(compare=False)

    async def request(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The answer to a request; an underscore is how fsspec names what is awaited."""
        with self.mask:
            return await getattr(self.files, f"_{name}")(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__"):
            return partial(self.request, name[1:])
        # What is copied or unpickled has no file system at first.
        return getattr(object.__getattribute__(self, "files"), name)


class RemoteStore(FsspecStore):
    """What `FsspecStore` does at `path` of the file system `fs`, without showing a credential that `mask` knows."""

    def __init__(self, fs: Any, path: str, mask: Mask, *, read_only: bool = False) -> None:
        super().__init__(_Discreet(fs, mask), read_only, path)
        self.mask = mask

    def with_read_only(self, read_only: bool = False) -> Self:
        """The same store, read-only or not."""
        return type(self)(self.fs.files, self.path, self.mask, read_only=read_only)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.fs.files).__name__}, {self.mask.text(self.path)!r})"

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, None if there is none; `Unreadable` for one that is larger than `most` bytes."""
        found = await self.get(key, default_buffer_prototype())
        if found is None:
            return None
        return Unreadable.too_large(len(found), most) if len(found) > most else found.to_bytes()

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one; whether it was written."""
        self._check_writable()
        try:
            await self._put_new(key, data)
        except FileExistsError:
            return False
        return True

    async def _put_new(self, key: str, data: bytes) -> None:
        await self.fs.request("pipe_file", f"{self.path}/{key}", data, mode="create")

    async def list_sizes(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        """The keys that begin with `prefix`, a folder, with the size of each object in bytes."""
        for path, entry in (await self.fs.request("find", f"{self.path}/{prefix}", detail=True)).items():
            yield path.removeprefix(f"{self.path}/"), entry["size"]

    async def disconnect(self) -> None:
        """Close connections that nobody else uses."""


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
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, str):
        yield from _in_url(value) if name in _HARMLESS.split() else [value]


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
