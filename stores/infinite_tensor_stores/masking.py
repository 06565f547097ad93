"""Keeping credentials out of everything that is shown: URLs may hold them, and so do the options of a storage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

HIDDEN = "***"

_HARMLESS = frozenset(
    {
        "addressing_style",
        "endpoint_url",
        "host",
        "mode",
        "port",
        "profile",
        "project",
        "region_name",
        "signature_version",
    }
)
"""Options that say where a storage is and how to speak to it; every other text may be a credential."""

# A password may hold a slash as it is; what follows a host and its port is no password.
_LOGIN = re.compile(r"(?<=://)(?:[^/\s:@\[]+:(?!:|\d+(?:/|\s|$))(?:(?!::)\S)*|[^/?#\s]*)@")
_QUERY = re.compile(r"(?<=://)([^\s?#\"'<>]*)([?#])([^\s\"'<>)\]]*)")

_SHORT = 6


def without_logins(text: str) -> str:
    """`text` without the ``user:password@``, the queries and the fragments of the URLs in it."""
    return _QUERY.sub(rf"\1\2{HIDDEN}", _LOGIN.sub(f"{HIDDEN}@", text))


class Mask:
    """Hides the credentials of one storage in texts and errors.

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
        patterns = [_pattern(text) for text in sorted(texts, key=len, reverse=True) if text]
        self._hidden = re.compile("|".join(patterns)) if patterns else None

    def text(self, text: str) -> str:
        """`text` with every credential replaced."""
        shown = without_logins(text)
        return shown if self._hidden is None else self._hidden.sub(HIDDEN, shown)

    def error(self, error: Exception) -> Exception:
        """`error` itself, or one of its kind in its place if it or a cause of it would show a credential."""
        if all(self.text(text) == text for text in _texts(error)):
            return error
        kinds = (PermissionError, FileNotFoundError, TimeoutError, ConnectionError)
        kind = next((kind for kind in kinds if isinstance(error, kind)), OSError)
        return kind(f"{type(error).__name__}: {self.text(str(error))}")


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
    elif isinstance(value, str) and name not in _HARMLESS:
        yield value
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, str):
        yield from _in_url(value)


def _forms(text: str) -> set[str]:
    """How one credential may stand in a URL or a message."""
    return {text, unquote(text), quote(text), quote(text, safe=""), repr(text)[1:-1]}


def _pattern(text: str) -> str:
    # What is as short as a word of a message counts only where it stands alone.
    return re.escape(text) if len(text) >= _SHORT else rf"(?<!\w){re.escape(text)}(?!\w)"


def _texts(error: BaseException | None) -> Iterator[str]:
    """What a traceback shows of an error and of those that led to it."""
    while error is not None:
        yield from (str(error), repr(error), *getattr(error, "__notes__", ()))
        error = error.__cause__ or error.__context__
