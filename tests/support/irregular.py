"""What may lie in the place of a file, and would block its reader, or fill the memory of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path


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
REASON = r"not a regular file|68719476736 bytes, but at most \d+ are allowed"
