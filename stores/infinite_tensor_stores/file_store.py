"""A folder as a zarr Store."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore

from infinite_tensor.support.disks import give_name
from infinite_tensor_stores.files import read_file


class FileStore(LocalStore):
    """What `LocalStore` does, without waiting for a FIFO and without following a link when it deletes.

    Nothing of it takes an event loop or another thread: its coroutines come to their end without a break.
    """

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, as of `read_file`."""
        return read_file(self.root / key, most)

    async def set(self, key: str, value: Buffer) -> None:
        """Write a file beside its place, and rename it."""
        self.write(key, [value.to_bytes()])

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """The same, unless there is one."""
        with suppress(FileExistsError):
            self.write(key, [value.to_bytes()], exclusive=True)

    def write(self, key: str, parts: Sequence[Any], *, exclusive: bool = False) -> None:
        """Write some parts as one file, with another name until it is whole; FileExistsError if there must be none."""
        self._check_writable()
        path = self.root / key
        partial = path.with_suffix(f".{uuid.uuid4().hex}.partial")
        descriptor = _created(partial)
        try:
            try:
                for part in parts:
                    view = memoryview(part)
                    while view:
                        view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)
            if exclusive:
                give_name(partial, path, self.root)
            else:
                partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
        if exclusive:
            # Where there are no hard links it was renamed.
            partial.unlink(missing_ok=True)

    async def exists(self, key: str) -> bool:
        """Whether there is a file."""
        return (self.root / key).is_file()

    async def getsize(self, key: str) -> int:
        """The bytes of a file."""
        return (self.root / key).stat().st_size

    async def delete(self, key: str) -> None:
        """Delete a file."""
        self._check_writable()
        path = self.root / key
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a folder. Of a symbolic link only the link goes."""
        self._check_writable()
        path = self.root / prefix
        if path.is_symlink():
            path.unlink(missing_ok=True)
        elif path.is_dir():
            shutil.rmtree(path)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """The names of what is right below a folder."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(self.root / prefix):  # noqa: PTH208  (only names are wanted)
                yield name


def _created(path: Path) -> int:
    """A descriptor of a new file, in a folder that may be new."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)
    except OSError as error:
        for above in path.parents:
            if os.path.lexists(above) and not above.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(above)) from error
        raise
