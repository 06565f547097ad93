"""Storage that fsspec reaches. Its URL and its options may hold credentials, which nothing shows."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Self, TypeVar
from urllib.parse import quote, unquote

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore

from infinite_tensor_stores.files import Unreadable

C = TypeVar("C")

HIDDEN = "***"

_HARMLESS = "addressing_style endpoint_url host mode port profile project region_name signature_version"
"""Options that say where a storage is and how to speak to it; every other text may be a credential."""

# A password may hold a slash as it is; what follows a host and its port is no password.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s:@\[]+:(?!:|\d+(?:/|\s|$))(?:(?!::)\S)*|[^/?#\s]*)@")
_QUERY = re.compile(r"(?<=://)([^\s?#\"'<>]*)([?#])([^\s\"'<>)\]]*)")

_SHORT = 6


def without_logins(text: str) -> str:
    """`text` without the ``user:password@``, the queries and the fragments of the URLs in it."""
    return _QUERY.sub(rf"\1\2{HIDDEN}", _LOGIN.sub(f"{HIDDEN}@", text))


class Mask:
    """Hides the credentials of one storage in texts, and within a ``with`` block in the error that leaves it.

    Parameters
    ----------
    url : str
        Where the storage is; what it holds as a login, a query or a fragment is hidden.
    options : mapping, optional
        Options of the storage, nested in any way. Every text in them is hidden, but for the few that only
        say where the storage is.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        texts = {form for text in [*_in_url(url), *_in_options(options or {})] for form in _forms(text)}
        # The longest first: one may be a part of another.
        patterns = [_pattern(text) for text in sorted(filter(None, texts), key=len, reverse=True)]
        self._hidden = re.compile("|".join(patterns) or "(?!)")

    def text(self, text: str) -> str:
        """`text` with every credential replaced."""
        return self._hidden.sub(HIDDEN, without_logins(text))

    def error(self, error: Exception) -> Exception:
        """`error` itself, or one of its kind in its place if it or a cause of it would show a credential."""
        if all(self.text(text) == text for text in _texts(error)):
            return error
        kinds = (PermissionError, FileNotFoundError, TimeoutError, ConnectionError)
        kind = next((kind for kind in kinds if isinstance(error, kind)), OSError)
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


_discreet: set[Callable[..., Any]] = set()
"""What a discreet class has passed on is wrapped already."""


def discreet(store: type[C]) -> type[C]:
    """Let no coroutine and no listing of a store, its own or inherited, raise an error that its `mask` would hide."""
    for name, method in inspect.getmembers(store, inspect.isfunction):
        asks = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if asks and not name.startswith("_") and method not in _discreet:
            masked = _masked(method)
            _discreet.add(masked)
            setattr(store, name, masked)
    return store


def _masked(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(store: Any, *args: Any, **kwargs: Any) -> Any:
        with store.mask:
            return await method(store, *args, **kwargs)

    @wraps(method)
    async def listing(store: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with store.mask:
            async for entry in method(store, *args, **kwargs):
                yield entry

    return listing if inspect.isasyncgenfunction(method) else call


@discreet
class RemoteStore(FsspecStore):
    """What `FsspecStore` does at `path` of the file system `fs`, without showing a credential that `mask` knows."""

    def __init__(self, fs: Any, path: str, mask: Mask, *, read_only: bool = False) -> None:
        super().__init__(fs, read_only, path)
        self.mask = mask

    def with_read_only(self, read_only: bool = False) -> Self:
        """The same store, read-only or not."""
        return type(self)(self.fs, self.path, self.mask, read_only=read_only)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.fs).__name__}, {self.mask.text(self.path)!r})"

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, None if there is none; `Unreadable` for one that is larger than `most` bytes."""
        found = await self.get(key, default_buffer_prototype())
        if found is None:
            return None
        return Unreadable.too_large(len(found), most) if len(found) > most else found.to_bytes()

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one; whether it was written."""
        try:
            # An underscore is how fsspec names what is awaited.
            await self.fs._pipe_file(  # noqa: SLF001  (fsspec names what is awaited so)
                f"{self.path}/{key}", data, mode="create"
            )
        except FileExistsError:
            return False
        return True

    async def list_sizes(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        """The keys that begin with `prefix`, a folder, with the size of each object in bytes."""
        found = await self.fs._find(  # noqa: SLF001  (likewise)
            f"{self.path}/{prefix}", detail=True
        )
        for path, entry in found.items():
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
