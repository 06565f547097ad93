"""What a user may give as the place of a store: paths, URLs, zarr Stores; and the modes to open it in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore

from infinite_tensor.errors import StoreError, ValidationError

MODES = ("r", "r+", "a", "w", "w-")


def check_mode(mode: object) -> str:
    """`mode`, if it is one of r, r+, a, w, w-."""
    if mode not in MODES:
        raise ValidationError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    return str(mode)


def local_path(target: str) -> Path:
    """The path that a plain path or a ``file://`` URL names."""
    if "://" not in target:
        return Path(target).expanduser()
    parts = urlsplit(target)
    if parts.scheme not in ("file", "local"):
        raise ValidationError(f"{shown(target)} is not a local file")
    return Path(unquote(parts.netloc + parts.path))


def zarr_store(target: object, storage_options: dict[str, Any] | None, read_only: bool) -> Store:
    """The zarr Store for a path, an fsspec URL or a Store."""
    if isinstance(target, Store):
        if storage_options:
            raise ValidationError("storage_options go with a URL; a zarr Store has its own")
        return target.with_read_only(True) if read_only and not target.read_only else target
    if not isinstance(target, str | os.PathLike):
        raise ValidationError(f"target must be a path, an fsspec URL or a zarr Store, got {target!r}")
    url = os.fspath(target)
    if "://" not in url or url.startswith(("file://", "local://")):
        # LocalStore creates files exclusively, which zarr's fsspec store over file:// cannot.
        return LocalStore(local_path(url).absolute(), read_only=read_only)
    try:
        # A cached listing would hide what another process has written.
        options = {"use_listings_cache": False, **(storage_options or {})}
        return FsspecStore.from_url(url, storage_options=options, read_only=read_only)
    except ImportError as error:
        extra = '; pip install "infinite-tensor[s3]"' if url.startswith("s3") else ""
        raise ImportError(f"{shown(url)} needs another package: {error}{extra}") from error
    except (ValueError, OSError) as error:
        raise StoreError(f"cannot open {shown(url)}: {error}") from error


def shown(target: object) -> str:
    """`target` for messages, without credentials that a URL may hold."""
    if isinstance(target, Store):
        return str(target)
    text = os.fspath(target) if isinstance(target, str | os.PathLike) else repr(target)
    scheme, separator, rest = text.partition("://")
    head, slash, tail = rest.partition("/")
    return f"{scheme}{separator}{head.rpartition('@')[2]}{slash}{tail}" if separator else text
