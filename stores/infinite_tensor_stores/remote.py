"""A zarr store over fsspec that shows no credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Self

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import FsspecStore

from infinite_tensor_stores.files import Unreadable
from infinite_tensor_stores.masking import Mask


class RemoteStore(FsspecStore):
    """What `FsspecStore` does, without showing a credential.

    Parameters
    ----------
    fs : fsspec.asyn.AsyncFileSystem
        The storage.
    path : str
        Where the store is in it.
    mask : Mask
        Knows the credentials.
    read_only : bool
        Whether writing is refused.
    """

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
        with self._discreet():
            try:
                await self.fs._pipe_file(f"{self.path}/{key}", data, mode="create")
            except FileExistsError:
                return False
            return True

    async def list_sizes(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        """The keys that begin with `prefix`, a folder, with the size of each object in bytes."""
        with self._discreet():
            found = await self.fs._find(f"{self.path}/{prefix}", detail=True)
            for path, entry in found.items():
                yield path.removeprefix(f"{self.path}/"), entry["size"]

    async def disconnect(self) -> None:
        """Close connections that nobody else uses."""

    # What zarr asks of a store.

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The object, or None."""
        with self._discreet():
            return await super().get(key, prototype, byte_range)

    async def set(self, key: str, value: Buffer, byte_range: tuple[int, int] | None = None) -> None:
        """Write an object."""
        with self._discreet():
            await super().set(key, value, byte_range)

    async def exists(self, key: str) -> bool:
        """Whether there is an object."""
        with self._discreet():
            return await super().exists(key)

    async def getsize(self, key: str) -> int:
        """Size of an object in bytes; FileNotFoundError if there is none."""
        with self._discreet():
            return await super().getsize(key)

    async def delete(self, key: str) -> None:
        """Delete an object; one that does not exist is no error."""
        with self._discreet():
            await super().delete(key)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a folder."""
        with self._discreet():
            await super().delete_dir(prefix)

    async def clear(self) -> None:
        """Delete all objects of the store."""
        with self._discreet():
            await super().clear()

    async def list(self) -> AsyncIterator[str]:
        """The keys of all objects."""
        with self._discreet():
            async for key in super().list():
                yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """The keys that begin with `prefix`."""
        with self._discreet():
            async for key in super().list_prefix(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """The names of what is right below a folder."""
        with self._discreet():
            async for name in super().list_dir(prefix):
                yield name

    @contextmanager
    def _discreet(self) -> Iterator[None]:
        """Within it, an error that would show a credential is replaced by one of its kind that does not."""
        try:
            yield
        except Exception as error:
            shown = self.mask.error(error)
            if shown is error:
                raise
            # Not even as the context of the new one.
            raise shown from None
