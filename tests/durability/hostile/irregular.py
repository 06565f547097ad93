"""What may lie in the place of a file, and would block its reader, or fill the memory of it."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

MEMORY = 2**30
"""Bytes that a process may take beyond those that it has."""


def _link_to_a_fifo(path: Path) -> None:
    os.mkfifo(f"{path}.partial")
    path.symlink_to(f"{path}.partial")


def _endless_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**36)


IRREGULAR: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a link to a FIFO": _link_to_a_fifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "a file of 64 GiB": _endless_file,
}
REASON = r"it is not a regular file|it has 68719476736 bytes, and can have \d+ at most"


def limit_memory(more: int = MEMORY) -> None:
    """Let this process take so many bytes more than it has."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, most))
