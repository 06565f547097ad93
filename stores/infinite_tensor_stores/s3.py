"""A zarr store straight on the requests of S3: one for each operation, and one per thousand objects to list."""

from __future__ import annotations

import asyncio
import atexit
import io
import math
import os
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, Self

from botocore import exceptions as boto
from botocore.handlers import add_expect_header
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS
from s3fs.errors import translate_boto_error
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.sync import loop

from infinite_tensor_stores.files import Unreadable
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.remote import Mask, RemoteStore

_SETTINGS = {
    # Enough for what many threads ask for at a time, so that no request waits for another's connection.
    "max_pool_connections": 256,
    # Botocore's own retries count attempts, whatever time they take.
    "retries": {"total_max_attempts": 1, "mode": "standard"},
    # What we store ends in a checksum of its own.
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
_FIRST_PAUSE = 0.1
_LIMITS = ("connect", "read")
_TIMEOUTS = (TimeoutError, boto.ReadTimeoutError, boto.ConnectTimeoutError)
_BROKEN = (*S3_RETRYABLE_ERRORS, boto.ConnectionError, boto.IncompleteReadError)
_PASSING = {"ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "XAmzContentSHA256Mismatch"}

_owners: dict[Any, int] = {}
"""The process of each client that is open. They are kept: one that is dropped says aloud that it is open."""


class S3Store(RemoteStore):
    """Objects below a prefix of a bucket, without the further requests that make a file system of them.

    Its client is what s3fs makes of the options of `fs`. What fails in a way that may pass is tried again as long as
    an answer can come within `timeout` seconds; each time it is given up when nothing moves for a third of that.
    """

    def __init__(self, fs: S3FileSystem, path: str, mask: Mask, *, read_only: bool = False, timeout: float) -> None:
        fs = _like(fs, timeout)
        super().__init__(fs, path, mask, read_only=read_only)
        self._timeout = timeout
        self._patience = max(fs.config_kwargs[f"{limit}_timeout"] or threading.TIMEOUT_MAX for limit in _LIMITS)
        self._bucket, root, _ = fs.split_path(path)
        self._root = f"{root}/" if root else ""
        self._clients: set[Any] = set()
        weakref.finalize(self, _dropped, self._clients).atexit = False

    def with_read_only(self, read_only: bool = False) -> Self:
        """The same store, read-only or not."""
        return type(self)(self.fs.files, self.path, self.mask, read_only=read_only, timeout=self._timeout)

    async def disconnect(self) -> None:
        """Close all connections; the next operation opens new ones."""
        self.fs.files = _like(self.fs.files, self._timeout)
        await _close(self._clients)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """The object, or None."""
        if byte_range is not None:
            return await super().get(key, prototype, byte_range)
        found = await self.read(key)
        return None if found is None else prototype.buffer.from_bytes(found)

    async def read(self, key: str, most: float = math.inf) -> bytes | None:
        """The object, None if there is none; `Unreadable`, and not fetched, if it is larger than `most` bytes."""
        with suppress(FileNotFoundError):
            data: bytes = (await self._call("get_object", key, most=most))["Body"]
            return data
        return None

    async def exists(self, key: str) -> bool:
        """Whether there is an object."""
        with suppress(FileNotFoundError):
            return bool(await self._call("head_object", key))
        return False

    async def getsize(self, key: str) -> int:
        """Size of an object in bytes; FileNotFoundError if there is none."""
        return int((await self._call("head_object", key))["ContentLength"])

    async def _put_new(self, key: str, data: bytes) -> None:
        await self._call("put_object", key, data, IfNoneMatch="*")

    async def set(self, key: str, value: Buffer, byte_range: tuple[int, int] | None = None) -> None:
        """Write an object."""
        if byte_range is not None:
            raise NotImplementedError("S3 writes objects as a whole")
        self._check_writable()
        await self._call("put_object", key, value.to_bytes())

    async def delete(self, key: str) -> None:
        """Delete an object; one that does not exist is no error."""
        self._check_writable()
        await self._call("delete_object", key)

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a folder."""
        self._check_writable()
        async for page in self._pages(prefix and f"{prefix.rstrip('/')}/"):
            if objects := [{"Key": found["Key"]} for found in page.get("Contents", ())]:
                answer = await self._call("delete_objects", Delete={"Objects": objects, "Quiet": True})
                for error in answer.get("Errors", ()):
                    raise OSError(f"{error.get('Key')!r} could not be deleted: {error.get('Message')}")

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
        folder = prefix and f"{prefix.rstrip('/')}/"
        async for page in self._pages(folder, Delimiter="/"):
            keys = [found["Key"] for found in page.get("Contents", ())]
            for key in [*keys, *(found["Prefix"] for found in page.get("CommonPrefixes", ()))]:
                yield key.removeprefix(self._root + folder).rstrip("/")

    async def _pages(self, prefix: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
        page: dict[str, Any] = {"IsTruncated": True}
        while page.get("IsTruncated"):
            page = await self._call("list_objects_v2", Prefix=self._root + prefix, **parameters)
            yield page
            parameters["ContinuationToken"] = page.get("NextContinuationToken")

    async def _call(
        self, operation: str, key: str | None = None, data: bytes | None = None, most: float = math.inf, **given: Any
    ) -> Any:
        """The answer to one request, with its whole body. Whatever goes wrong is an OSError."""
        given |= {"Bucket": self._bucket} if key is None else {"Bucket": self._bucket, "Key": self._root + key}
        pause, last_start = _FIRST_PAUSE, 0.0
        with self.mask:
            while True:
                try:
                    # Setting it up takes a while of our own, which says nothing of the storage.
                    self._adopt(await self.fs.set_session())
                    last_start = last_start or time.monotonic() + self._timeout - self._patience
                    return await self._answer(operation, data, most, given)
                except Exception as error:
                    if not _may_pass(error) or time.monotonic() + pause > last_start:
                        raise _explained(error, self._bucket) from error
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  (spreads load, hides nothing)
                pause *= 2

    async def _answer(self, operation: str, data: bytes | None, most: float, given: dict[str, Any]) -> Any:
        client = self._adopt(await self.fs.get_s3(self._bucket))
        model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
        # What the options add to each request that can have it, as s3fs does.
        options = {**self.fs.s3_additional_kwargs, **self.fs.req_kw}
        known = options.keys() & model.input_shape.members.keys()
        given = {name: options[name] for name in known if options[name] is not None} | given
        upload = _Upload(data or b"")
        given |= {} if data is None else {"Body": upload}
        answer = await self._begun(getattr(client, operation)(**given), upload)
        if operation == "get_object":
            size = answer.get("ContentLength", 0)
            async with answer["Body"] as stream:
                answer["Body"] = Unreadable.too_large(size, int(most)) if size > most else await stream.read()
        return answer

    async def _begun(self, request: Coroutine[Any, Any, Any], upload: _Upload) -> Any:
        """An answer that has begun. The time-outs of the client leave out the wait for room to send."""
        task, cause = asyncio.ensure_future(request), None
        try:
            while (left := upload.moved + self._patience - time.monotonic()) > 0:
                if (await asyncio.wait([task], timeout=left))[0]:
                    return await task
        except boto.ReadTimeoutError as error:
            # The client's clock was first.
            cause = error
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        raise TimeoutError(f"no answer for {self._patience:.3g} s") from cause

    def _adopt(self, client: Any) -> Any:
        if client not in self._clients:
            self._clients.add(client)
            _owners[client] = os.getpid()
            # Waiting for "100 Continue" would make two round trips of each PUT.
            client.meta.events.unregister("before-call.s3", add_expect_header)
        return client


class _Upload(io.BytesIO):
    """A body that knows when some of it was last taken."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.moved = time.monotonic()

    def read(self, size: int | None = -1, /) -> bytes:
        self.moved = time.monotonic()
        return super().read(size)


def _like(fs: S3FileSystem, timeout: float) -> S3FileSystem:
    """A file system with the options of `fs`, and time-outs where these have none, that nobody else uses."""
    config = {**{f"{limit}_timeout": timeout / 3 for limit in _LIMITS}, **_SETTINGS, **fs.config_kwargs}
    options = {**fs.storage_options, "config_kwargs": config, "skip_instance_cache": True}
    return type(fs)(*fs.storage_args, **options)


def _code(error: Exception) -> str:
    """The code of S3 that an error of botocore stands for, or an empty string."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, boto.ClientError) else ""


def _may_pass(error: Exception) -> bool:
    if isinstance(error, boto.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status == 429 or status >= 500 or _code(error) in _PASSING
    return isinstance(error, _TIMEOUTS + _BROKEN) and not isinstance(error, boto.SSLError)


def _explained(error: Exception, bucket: str) -> OSError:
    """The builtin error that says what `error` does."""
    if _code(error) == "NoSuchBucket":
        return OSError(f"there is no bucket {bucket!r}; create it, or correct the URL")
    if _code(error) == "PreconditionFailed":
        return FileExistsError(str(error))
    if isinstance(error, boto.ClientError):
        found: OSError = translate_boto_error(error)
        return found
    kind = TimeoutError if isinstance(error, _TIMEOUTS) else ConnectionError if isinstance(error, _BROKEN) else OSError
    return kind(str(error))


async def _close(clients: set[Any]) -> None:
    """Close those of `clients` that are this process's own: what a forked child inherits is its parent's."""
    while clients:
        if _owners.get(client := clients.pop()) == os.getpid():
            del _owners[client]
            await client.close()


def _dropped(clients: set[Any]) -> None:
    # Whatever thread this runs on, it must not wait.
    if clients and loop[0] is not None and loop[0].is_running():
        asyncio.run_coroutine_threadsafe(_close(clients), loop[0])


@atexit.register
def _close_all() -> None:
    if os.getpid() in _owners.values():
        sync(_close, set(_owners))
