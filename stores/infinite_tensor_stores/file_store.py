"""A folder as a zarr Store."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore

from infinite_tensor.errors import LinkNotFollowedWarning, StoreError
from infinite_tensor.support.disks import give_name
from infinite_tensor.support.publishing import remove
from infinite_tensor.support.threads import on_threads
from infinite_tensor_stores.files import read_file

_DELETING = 4
"""On how many threads folders are deleted."""


class LeadsOutError(StoreError):
    """What was to be deleted or repaired lies behind a link that leads out of the store."""


def own_path(root: Path, key: str) -> Path:
    """The path of an object that may be deleted or repaired.

    Whoever made the store may have put a link there to what belongs to somebody else.

    Raises
    ------
    LeadsOutError
        If a folder above it, but not the root, is a link that leads out of the root.
    """
    folder = os.fspath(root)
    for name in key.split("/")[:-1]:
        folder = f"{folder}/{name}"
        # A Path takes longer, and this is asked for each file.
        if os.path.islink(folder) and not Path(folder).resolve().is_relative_to(root.resolve()):  # noqa: PTH114
            raise LeadsOutError(
                f"{folder!r} is a link out of the store, to {str(Path(folder).resolve())!r}: what lies there is read, "
                "and never deleted or repaired. Delete the link, or move what it leads to into its place"
            )
    return root / key


@contextmanager
def left_alone() -> Iterator[None]:
    """Within it, a link that leads out of the store ends what is being done with a warning."""
    try:
        yield
    except LeadsOutError as error:
        warnings.warn(str(error), LinkNotFollowedWarning, stacklevel=4)


class FileStore(LocalStore):
    """What `LocalStore` does, without waiting for a FIFO and without following a link when it deletes.

    Nothing of it takes an event loop: its coroutines come to their end without a break.
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
        """Delete a file, or a folder with all that is in it; of a symbolic link only the link. Errors of `own_path`."""
        self._check_writable()
        remove(own_path(self.root, key))

    async def delete_dir(self, prefix: str) -> None:
        """The same, unless it is a file."""
        self._check_writable()
        path = own_path(self.root, prefix)
        if path.is_dir() and not path.is_symlink():
            # A disk that is busy makes each file wait that goes; those of several folders wait at the same time.
            on_threads(shutil.rmtree, _folders_of_chunks(path), _DELETING)
        if path.is_dir() or path.is_symlink():
            remove(path)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """The names of what is right below a folder."""
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(self.root / prefix):  # noqa: PTH208  (only names are wanted)
                yield name


def _folders_of_chunks(array: Path) -> list[str]:
    """The folders, no links to any, right below that of the chunks of an array; none where it is no array."""
    chunks = array / "c"
    if chunks.is_symlink() or not chunks.is_dir():
        return []
    with os.scandir(chunks) as inside:
        return [entry.path for entry in inside if entry.is_dir(follow_symlinks=False)]


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
