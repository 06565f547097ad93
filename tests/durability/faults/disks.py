"""Disks that are really full, and folders that really cannot be written to."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_TMPFS_BYTES = 8 * 2**20


class SmallDisk(ABC):
    """A folder on which there may be no room.

    Attributes
    ----------
    root : Path
        The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def fill(self, leaving: int = 0) -> None:
        """Leave no room, or `leaving` bytes of it."""

    @abstractmethod
    def free(self) -> None:
        """Make room again."""


class Tmpfs(SmallDisk):
    """A small file system in memory, filled up with a file."""

    def fill(self, leaving: int = 0) -> None:
        """See `SmallDisk.fill`."""
        with (self.root / "ballast").open("ab", buffering=0) as ballast:
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(4096))
            ballast.truncate(ballast.tell() - leaving)

    def free(self) -> None:
        """See `SmallDisk.free`."""
        (self.root / "ballast").unlink()


class FileLimit(SmallDisk):
    """A folder in which no file can be written beyond what an HDF5 file there has: a limit of this process.

    The test is skipped where a process has no limits.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._resource = pytest.importorskip("resource")
        self._before, self._most = self._resource.getrlimit(self._resource.RLIMIT_FSIZE)

    def fill(self, leaving: int = 0) -> None:
        """See `SmallDisk.fill`."""
        # What other tests have dropped still wants to write as it is closed.
        gc.collect()
        self._limit(max((file.stat().st_size for file in self.root.glob("*.h5")), default=0) + leaving)

    def free(self) -> None:
        """See `SmallDisk.free`."""
        self._limit(self._before)

    def _limit(self, nbytes: int) -> None:
        self._resource.setrlimit(self._resource.RLIMIT_FSIZE, (nbytes, self._most))


@contextmanager
def small_disk(kind: str, root: Path) -> Iterator[SmallDisk]:
    """A disk of a kind, ``tmpfs`` or ``limit``, at `root`; the test is skipped where it cannot be had."""
    if kind == "tmpfs":
        with mounted(root, "-t", "tmpfs", "-o", f"size={_TMPFS_BYTES}", "tmpfs"):
            yield Tmpfs(root)
        return
    disk = FileLimit(root)
    try:
        yield disk
    finally:
        disk.free()


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    """A file system mounted at `folder`; the test is skipped where that is not allowed."""
    try:
        subprocess.run(["mount", *arguments, str(folder)], check=True, capture_output=True)  # noqa: S607  (or skipped)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user cannot mount file systems")
    try:
        yield
    finally:
        # A file that is still open keeps a file system busy.
        gc.collect()
        subprocess.run(["umount", str(folder)], check=True)  # noqa: S607  (as it was mounted)


@contextmanager
def read_only(kind: str, folder: Path) -> Iterator[None]:
    """`folder` cannot be written to: a read-only ``mount``, or its ``permissions`` where these bind.

    The test is skipped where it cannot be had.
    """
    if kind == "mount":
        with mounted(folder, "--bind", "-o", "ro", str(folder)):
            yield
        return
    paths = [folder, *folder.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    try:
        for path in paths:
            path.chmod(modes[path] & ~0o222)
        if os.access(folder, os.W_OK):
            pytest.skip("permissions do not bind this user")
        yield
    finally:
        for path in paths:
            path.chmod(modes[path])
