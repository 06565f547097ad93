"""A zarr store straight on the requests of S3: one for each operation, and one per thousand objects to list."""

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
from infinite_tensor_stores.files import Unreadable
from infinite_tensor_stores.loop import running_loop, sync
from infinite_tensor_stores.remote import LoginMask, MaskedFileSystem, RemoteStore, Stored

_SETTINGS = {
    # Enough for what many threads ask for at a time, so that no request waits for another's connection.
    "max_pool_connections": 256,
    # Botocore's own retries count attempts, whatever time they take.
    "retries": {"total_max_attempts": 1, "mode": "standard"},
    # What we store ends in a checksum of its own.
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
_LIMITS = ("connect_timeout", "read_timeout")
_FIRST_PAUSE = 0.1
_MAY_PASS = (TimeoutError, ConnectionError)
_CODES_THAT_PASS = {"ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "XAmzContentSHA256Mismatch"}
_BROKEN = (*S3_RETRYABLE_ERRORS, boto.ConnectionError, boto.IncompleteReadError)

_owners: dict[Any, int] = {}
"""The process of each client that is open. They are kept: one that is dropped says aloud that it is open."""


class S3Store(RemoteStore):
    """Objects below a prefix of a bucket, without the further requests that make a file system of them."""

    fs: S3Requests
    lists_in_pages = True

    async def read(self, key: str, most: int) -> bytes | None:
        """The object, None if there is none; `Unreadable`, and not fetched, if it is larger than `most` bytes."""
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
        """The keys that begin with `prefix`."""
        async for key, _ in self.list_objects(prefix):
            yield key

    async def list_objects(self, prefix: str) -> AsyncIterator[tuple[str, Stored]]:
        """The keys that begin with `prefix`, with what a listing tells of each object."""
        async for page in self.fs.pages(prefix):
            for found in page.get("Contents", ()):
                stored = Stored(found["Size"], found["LastModified"].timestamp())
                yield found["Key"].removeprefix(self.fs.root), stored

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """The names of what is right below a folder."""
        folder = prefix and f"{prefix.rstrip('/')}/"
        async for page in self.fs.pages(folder, Delimiter="/"):
            keys = [found["Key"] for found in page.get("Contents", ())]
            for key in [*keys, *(found["Prefix"] for found in page.get("CommonPrefixes", ()))]:
                yield key.removeprefix(self.fs.root + folder).rstrip("/")


class S3Requests(MaskedFileSystem):
    """A file system that asks S3 once for what zarr does with one object.

    Its client is what s3fs makes of the options of `files`. What fails in a way that may pass is tried again as long as
    an answer can come within `timeout` seconds; each time it is given up when nothing moves for a third of that.
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
            return await self.hide(self.files._cat_file(path, **span))  # noqa: SLF001  (so fsspec names it)
        return (await self.call("get_object", Key=self._key(path)))["Body"]

    async def _exists(self, path: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(await self.call("head_object", Key=self._key(path)))
        return False

    async def _pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if mode == "create" else {}
        await self.call("put_object", Key=self._key(path), Body=data, **condition)

    async def _rm(self, path: str, **_: Any) -> None:
        await self.call("delete_object", Key=self._key(path))

    async def pages(self, prefix: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
        """The answers that list all objects whose keys begin with `prefix`."""
        page: dict[str, Any] = {"IsTruncated": True}
        while page.get("IsTruncated"):
            page = await self.call("list_objects_v2", Prefix=self.root + prefix, **parameters)
            yield page
            parameters["ContinuationToken"] = page.get("NextContinuationToken")

    async def call(self, operation: str, most: float = math.inf, **given: Any) -> Any:
        """The answer to one request, with its whole body. Whatever goes wrong is an OSError."""
        return await self.hide(self._insist(operation, most, {"Bucket": self._bucket, **given}))

    async def _insist(self, operation: str, most: float, given: dict[str, Any]) -> Any:
        pause, last_start = _FIRST_PAUSE, 0.0
        while True:
            try:
                # Setting it up takes a while of our own, which says nothing of the storage.
                self._adopt(await self.files.set_session())
                last_start = last_start or time.monotonic() + self._timeout - self._patience
                return await self._answer(operation, most, given)
            except Exception as error:
                if not isinstance(self._explained(error), _MAY_PASS) or time.monotonic() + pause > last_start:
                    raise self._explained(error) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  (spreads load, hides nothing)
            pause *= 2

    async def _answer(self, operation: str, most: float, given: dict[str, Any]) -> Any:
        client = self._adopt(await self.files.get_s3(self._bucket))
        model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation])
        # What the options add to each request that can have it, as s3fs does.
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
        """An answer that has begun. The time-outs of the client leave out the wait for room to send."""
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
        """The builtin error that says what `error` does, of the kinds in `_MAY_PASS` if it may."""
        if isinstance(error, boto.ClientError):
            return self._answered(error)
        if isinstance(error, boto.NoCredentialsError):
            return OSError(
                f"{error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give ZarrTileStore(storage_options=...)"
            )
        if isinstance(error, TimeoutError | boto.ReadTimeoutError):
            return TimeoutError(f"no answer for {self._patience:.3g} s")
        passes = isinstance(error, _BROKEN) and not isinstance(error, boto.SSLError)
        return ConnectionError(str(error)) if passes else OSError(str(error))

    def _answered(self, error: Any) -> OSError:
        """The same for what S3 has answered."""
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
    """A body that knows when some of it was last taken."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.moved = time.monotonic()

    def read(self, size: int | None = -1, /) -> bytes:
        self.moved = time.monotonic()
        return super().read(size)


def _like(fs: S3FileSystem, timeout: float) -> S3FileSystem:
    """A file system with the options of `fs`, and time-outs where these have none, that nobody else uses."""
    config = {**dict.fromkeys(_LIMITS, timeout / 3), **_SETTINGS, **fs.config_kwargs}
    options = {**fs.storage_options, "config_kwargs": config, "skip_instance_cache": True}
    return type(fs)(*fs.storage_args, **options)


async def _close(clients: set[Any]) -> None:
    """Close those of `clients` that are this process's own: what a forked child inherits is its parent's."""
    while clients:
        if _owners.get(client := clients.pop()) == os.getpid():
            del _owners[client]
            await client.close()


def _dropped(clients: set[Any]) -> None:
    # Whatever thread this runs on, it must not wait.
    loop = running_loop()
    if clients and loop is not None:
        closing = asyncio.run_coroutine_threadsafe(_close(clients), loop)
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)


_closing: set[Future[None]] = set()
_MOST_SECONDS_TO_CLOSE = 1.0


def _wait_for_closing() -> None:
    # A forked child would have them half closed, and asyncio would complain there.
    wait(list(_closing), _MOST_SECONDS_TO_CLOSE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_closing)


def _close_all() -> None:
    if os.getpid() in _owners.values():
        sync(_close, set(_owners))


end_after_flush(_close_all)
