"""A zarr store with direct requests to S3.

An operation on an object takes one request. A listing takes one request per thousand objects.
"""

from __future__ import annotations

import asyncio
import io
import math
import os
import random
import time
import weakref
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any

from botocore import exceptions as boto
from botocore.handlers import add_expect_header
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS
from s3fs.errors import translate_boto_error

from infinite_tensor.support.exit import end_after_flush
from infinite_tensor.support.log import LOG
from infinite_tensor_stores.files import Unreadable
from infinite_tensor_stores.loop import running_loop, sync
from infinite_tensor_stores.remote import LoginMask, MaskedFileSystem, RemoteStore, Stored

_SETTINGS = {
    # Enough for many threads, because no request should wait for a connection.
    "max_pool_connections": 256,
    # Botocore's own retries are off: they limit attempts rather than time.
    "retries": {"total_max_attempts": 1, "mode": "standard"},
    # What we store ends with its own checksum.
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
_LIMITS = ("connect_timeout", "read_timeout")
_FIRST_PAUSE = 0.1
_MAY_PASS = (TimeoutError, ConnectionError)
_CODES_THAT_PASS = {"ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "XAmzContentSHA256Mismatch"}
_BROKEN = (*S3_RETRYABLE_ERRORS, boto.ConnectionError, boto.IncompleteReadError)

_owners: dict[Any, int] = {}
"""The process of each open client. References keep clients alive, because deleting an open client warns."""


class S3Store(RemoteStore):
    """A `RemoteStore` for S3, with as few requests as possible."""

    fs: S3Requests
    lists_in_pages = True

    async def read(self, key: str, most: int) -> bytes | None:
        """Read an object.

        Return None if there is no object. Return `Unreadable` if the object has more than `most` bytes.
        """
        with suppress(FileNotFoundError):
            data: bytes = (await self.fs.call("get_object", most, Key=self.fs.root + key))["Body"]
            return data
        return None

    async def delete_dir(self, prefix: str) -> None:
        """Delete all objects below a folder."""
        self._check_writable()
        async for page in self.fs.pages(prefix and f"{prefix.rstrip('/')}/"):
            if objects := [{"Key": found["Key"]} for found in page.get("Contents", ())]:
                answer = await self.fs.call("delete_objects", Delete={"Objects": objects, "Quiet": True})
                for error in answer.get("Errors", ()):
                    raise OSError(f"{error.get('Key')!r} could not be deleted: {error.get('Message')}")

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Iterate over the keys with a prefix."""
        async for key, _ in self.list_objects(prefix):
            yield key

    async def list_objects(self, prefix: str) -> AsyncIterator[tuple[str, Stored]]:
        """Iterate over the objects with a prefix.

        Yields each key with the size and the time from the listing.
        """
        async for page in self.fs.pages(prefix):
            for found in page.get("Contents", ()):
                stored = Stored(found["Size"], found["LastModified"].timestamp())
                yield found["Key"].removeprefix(self.fs.root), stored

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Iterate over the names of the objects and folders in a folder."""
        folder = prefix and f"{prefix.rstrip('/')}/"
        async for page in self.fs.pages(folder, Delimiter="/"):
            keys = [found["Key"] for found in page.get("Contents", ())]
            for key in [*keys, *(found["Prefix"] for found in page.get("CommonPrefixes", ()))]:
                yield key.removeprefix(self.fs.root + folder).rstrip("/")


class S3Requests(MaskedFileSystem):
    """A file system with one S3 request for each operation on an object.

    s3fs creates the client, with the options of the file system `files`. After a temporary failure, a request is sent
    again, for up to `timeout` seconds. An attempt fails if no data moves for a third of `timeout`.
    """

    creates = True

    def __init__(self, files: S3FileSystem, path: str, mask: LoginMask, timeout: float) -> None:
        super().__init__(_like(files, timeout), mask)
        self._bucket, root, _ = files.split_path(path)
        self.root = f"{root}/" if root else ""
        self._folder = f"{path.rstrip('/')}/"
        self._timeout = timeout
        self._patience = max(self.files.config_kwargs[limit] or math.inf for limit in _LIMITS)
        self._clients: set[Any] = set()
        weakref.finalize(self, _dropped, self._clients).atexit = False

    async def disconnect(self) -> None:
        """Close all connections."""
        self.files = _like(self.files, self._timeout)
        await _close(self._clients)

    def _key(self, path: str) -> str:
        return self.root + path.removeprefix(self._folder)

    async def _cat_file(self, path: str, **span: int | None) -> Any:
        if span:
            return await self.hide(self.files._cat_file(path, **span))  # noqa: SLF001  (the name in fsspec)
        return (await self.call("get_object", Key=self._key(path)))["Body"]

    async def _exists(self, path: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(await self.call("head_object", Key=self._key(path)))
        return False

    async def _pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if mode == "create" else {}
        await self.call("put_object", Key=self._key(path), Body=data, **condition)

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        source = {"Bucket": self._bucket, "Key": self._key(path1)}
        await self.call("copy_object", Key=self._key(path2), CopySource=source)

    async def _rm(self, path: str, **_: Any) -> None:
        await self.call("delete_object", Key=self._key(path))

    async def pages(self, prefix: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the pages of a listing.

        The listing contains the objects with a key beginning with `prefix`.
        """
        page: dict[str, Any] = {"IsTruncated": True}
        while page.get("IsTruncated"):
            page = await self.call("list_objects_v2", Prefix=self.root + prefix, **parameters)
            yield page
            parameters["ContinuationToken"] = page.get("NextContinuationToken")

    async def call(self, operation: str, most: float = math.inf, **given: Any) -> Any:
        """Send one request, and return the answer with the whole body.

        Every failure is an OSError.
        """
        return await self.hide(self._insist(operation, most, {"Bucket": self._bucket, **given}))

    async def _insist(self, operation: str, most: float, given: dict[str, Any]) -> Any:
        pause, last_start = _FIRST_PAUSE, 0.0
        while True:
            try:
                # The time to set up the client does not count, because it does not depend on the storage.
                self._adopt(await self.files.set_session())
                last_start = last_start or time.monotonic() + self._timeout - self._patience
                return await self._answer(operation, most, given)
            except Exception as error:
                if not isinstance(self._explained(error), _MAY_PASS) or time.monotonic() + pause > last_start:
                    raise self._explained(error) from error
                # Do not log the text of the error, because a login may be in it.
                what = operation, given.get("Key", given["Bucket"]), type(error).__name__
                LOG.debug("S3 did not carry out %s of %s (%s); the request is sent again", *what)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  (spreads load, hides nothing)
            pause *= 2

    async def _answer(self, operation: str, most: float, given: dict[str, Any]) -> Any:
        client = self._adopt(await self.files.get_s3(self._bucket))
        model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
        # As in s3fs, each request gets all accepted options.
        options = {**self.files.s3_additional_kwargs, **self.files.req_kw}
        known = options.keys() & model.input_shape.members.keys()
        given = {name: options[name] for name in known if options[name] is not None} | given
        upload = _Upload(given.get("Body", b""))
        given |= {"Body": upload} if "Body" in given else {}
        answer = await self._begun(getattr(client, operation)(**given), upload)
        if operation == "get_object":
            size = answer.get("ContentLength", 0)
            async with answer["Body"] as stream:
                answer["Body"] = Unreadable.too_large(size, int(most)) if size > most else await stream.read()
        return answer

    async def _begun(self, request: Coroutine[Any, Any, Any], upload: _Upload) -> Any:
        """Await a request, without reading the body of the answer.

        Raise TimeoutError if no data moves for too long. The client's own time-outs do not cover a stalled upload.
        """
        task = asyncio.ensure_future(request)
        try:
            while (left := upload.moved + self._patience - time.monotonic()) > 0:
                if (await asyncio.wait([task], timeout=left))[0]:
                    return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        raise TimeoutError

    def _adopt(self, client: Any) -> Any:
        if client not in self._clients:
            self._clients.add(client)
            _owners[client] = os.getpid()
            # Waiting for "100 Continue" would make two round trips of each PUT.
            client.meta.events.unregister("before-call.s3", add_expect_header)
        return client

    def _explained(self, error: Exception) -> OSError:
        """Convert an error of a request to a builtin error.

        The result is one of `_MAY_PASS` if a retry may succeed.
        """
        if isinstance(error, boto.ClientError):
            return self._answered(error)
        if isinstance(error, boto.NoCredentialsError):
            return OSError(
                f"{error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give ZarrTileStore(storage_options=...)"
            )
        if isinstance(error, TimeoutError | boto.ReadTimeoutError):
            return TimeoutError(f"no answer for {self._patience:.3g} s")
        passes = isinstance(error, _BROKEN) and not isinstance(error, boto.SSLError)
        if not passes:
            return OSError(str(error))
        return ConnectionError(
            f"{error}; check the network, and the endpoint_url of storage_options or AWS_ENDPOINT_URL"
        )

    def _answered(self, error: Any) -> OSError:
        code = error.response.get("Error", {}).get("Code")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status == 429 or status >= 500 or code in _CODES_THAT_PASS:
            return ConnectionError(str(error))
        if code == "NoSuchBucket":
            return OSError(f"there is no bucket {self._bucket!r}; create it, or correct the URL")
        if code == "PreconditionFailed":
            return FileExistsError(str(error))
        found: OSError = translate_boto_error(error)
        return found


class _Upload(io.BytesIO):
    """A request body with the time of the last read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.moved = time.monotonic()

    def read(self, size: int | None = -1, /) -> bytes:
        self.moved = time.monotonic()
        return super().read(size)


def _like(fs: S3FileSystem, timeout: float) -> S3FileSystem:
    config = {**dict.fromkeys(_LIMITS, timeout / 3), **_SETTINGS, **fs.config_kwargs}
    options = {**fs.storage_options, "config_kwargs": config, "skip_instance_cache": True}
    return type(fs)(*fs.storage_args, **options)


async def _close(clients: set[Any]) -> None:
    """Close clients, except clients inherited from a parent process."""
    while clients:
        if _owners.get(client := clients.pop()) == os.getpid():
            del _owners[client]
            await client.close()


def _dropped(clients: set[Any]) -> None:
    # Must not wait, because a finalizer may run on any thread.
    loop = running_loop()
    if clients and loop is not None:
        closing = asyncio.run_coroutine_threadsafe(_close(clients), loop)
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)


_closing: set[Future[None]] = set()
_MOST_SECONDS_TO_CLOSE = 1.0


def _wait_for_closing() -> None:
    # Otherwise a forked child would have half-closed clients, and asyncio would warn about them.
    wait(list(_closing), _MOST_SECONDS_TO_CLOSE)


os.register_at_fork(before=_wait_for_closing)


def _close_all() -> None:
    if os.getpid() in _owners.values():
        sync(_close, set(_owners))


end_after_flush(_close_all)
