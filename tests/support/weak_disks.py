"""File systems that lack a call: it fails as it does there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from typing import Any

import pytest

NO_LINKS = ["EPERM", "ENOTSUP", "ENOSYS", "EINVAL"]
NO_LOCKS = ["ENOSYS", "ENOLCK", "EOPNOTSUPP"]


def without_links(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """As SMB, exFAT and FUSE."""
    monkeypatch.setattr(os, "link", _refusing(code))


def without_locks(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """As Lustre, and NFS that is mounted so."""
    monkeypatch.setattr(fcntl, "flock", _refusing(code))


def without_synced_folders(monkeypatch: pytest.MonkeyPatch, code: str = "EINVAL") -> None:
    """As CIFS."""
    synchronize, refuse = os.fsync, _refusing(code)

    def sync(descriptor: int) -> None:
        (refuse if stat.S_ISDIR(os.fstat(descriptor).st_mode) else synchronize)(descriptor)

    monkeypatch.setattr(os, "fsync", sync)


def _refusing(code: str) -> Callable[..., Any]:
    def refuse(*_arguments: object, **_options: object) -> None:
        number = getattr(errno, code)
        raise OSError(number, os.strerror(number))

    return refuse
