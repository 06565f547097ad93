"""A zarr store straight on the requests of S3: one for each operation, and one per thousand objects to list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Self

from s3fs import S3FileSystem
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from infinite_tensor_stores.remote import Mask, RemoteStore, discreet
from infinite_tensor_stores.s3_client import Response, S3Client


@discreet
class S3Store(RemoteStore):
    """Objects below a prefix of a bucket.

    zarr's `FsspecStore` goes through s3fs, to which S3 is a file system. So every GET is preceded by a HEAD,
    an object that is missing also costs a listing, as does a deletion, and a bucket that is missing looks like
    one that is empty.

    Parameters
    ----------
    fs : s3fs.S3FileSystem
        Asynchronous, and used by nobody else unless `timeout` is None.
    path : str
        Bucket and prefix.
    mask : Mask
        Knows the credentials.
    read_only : bool
        Whether writing is refused.
    timeout : float or None
        Seconds within which a storage that does not answer is reported; None leaves that to `fs`.
    """

    def __init__(
        self, fs: S3FileSystem, path: str, mask: Mask, *, read_only: bool = False, timeout: float | None = None
    ) -> None:
        super().__init__(fs, path, mask, read_only=read_only)
        self._client = S3Client(fs, timeout)
        self._bucket, root, _ = fs.split_path(path)
        self._root = f"{root}/" if root else ""

    def with_read_only(self, read_only: bool = False) -> Self:
        """The same store, read-only or not."""
        return type(self)(self.fs, self.path, self.mask, read_only=read_only, timeout=self._client.timeout)

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one; whether it was written."""
        self._check_writable()
        try:
            await self._call("put_object", key, data, IfNoneMatch="*")
        except FileExistsError:
            return False
        return True

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The object, or None."""
        if byte_range is not None:
            return await super().get(key, prototype, byte_range)
        found = await self._content(key)
        return None if found is None else prototype.buffer.from_bytes(found)

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, None if there is none; `Unreadable`, and not fetched, if it is larger than `most` bytes."""
        return await self._content(key, most)

    async def set(self, key: str, value: Buffer, byte_range: tuple[int, int] | None = None) -> None:
        """Write an object."""
        self._check_writable()
        if byte_range is not None:
            raise NotImplementedError("S3 writes objects as a whole")
        await self._call("put_object", key, value.to_bytes())

    async def exists(self, key: str) -> bool:
        """Whether there is an object."""
        try:
            await self._call("head_object", key)
        except FileNotFoundError:
            return False
        return True

    async def getsize(self, key: str) -> int:
        """Size of an object in bytes; FileNotFoundError if there is none."""
        return int((await self._call("head_object", key))["ContentLength"])

    async def delete(self, key: str) -> None:
        """Delete an object; one that does not exist is no error."""
        self._check_writable()
        await self._call("delete_object", key)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a folder."""
        self._check_writable()
        async for page in self._pages(_folder(prefix)):
            objects = [{"Key": found["Key"]} for found in page.get("Contents", ())]
            if objects:
                answer = await self._call("delete_objects", Delete={"Objects": objects, "Quiet": True})
                for error in answer.get("Errors", ()):
                    raise OSError(f"{error.get('Key')!r} could not be deleted: {error.get('Message')}")

    async def clear(self) -> None:
        """Delete all objects of the store."""
        await self.delete_dir("")

    async def is_empty(self, prefix: str) -> bool:
        """Whether there is no object below a folder."""
        async for page in self._pages(_folder(prefix), MaxKeys=1):
            return not page.get("Contents")
        raise AssertionError("a listing has a page")

    async def list(self) -> AsyncIterator[str]:
        """The keys of all objects."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """The keys that begin with `prefix`."""
        async for key, _ in self.list_sizes(prefix):
            yield key

    async def list_sizes(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        """The keys that begin with `prefix`, with the size of each object in bytes."""
        async for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                yield found["Key"].removeprefix(self._root), found["Size"]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """The names of what is right below a folder."""
        folder = _folder(prefix)
        async for page in self._pages(folder, Delimiter="/"):
            keys = [found["Key"] for found in page.get("Contents", ())]
            for key in [*keys, *(found["Prefix"] for found in page.get("CommonPrefixes", ()))]:
                yield key.removeprefix(self._root + folder).rstrip("/")

    async def getsize_prefix(self, prefix: str) -> int:
        """Size of all objects that begin with `prefix` in bytes."""
        return sum([size async for _, size in self.list_sizes(prefix)])

    async def disconnect(self) -> None:
        """Close connections that nobody else uses; the next operation opens new ones."""
        await self._client.close()

    async def _content(self, key: str, most: int | None = None) -> bytes | None:
        try:
            response = await self._call("get_object", key, most=most)
        except FileNotFoundError:
            return None
        body: bytes = response["Body"]
        return body

    async def _pages(self, prefix: str, **parameters: Any) -> AsyncIterator[Response]:
        parameters["Prefix"] = self._root + prefix
        while True:
            page = await self._call("list_objects_v2", **parameters)
            yield page
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    async def _call(
        self,
        operation: str,
        key: str | None = None,
        data: bytes | None = None,
        most: int | None = None,
        **parameters: Any,
    ) -> Response:
        if key is not None:
            parameters["Key"] = self._root + key
        return await self._client.call(operation, data, most, Bucket=self._bucket, **parameters)


def _folder(prefix: str) -> str:
    return prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
