"""A home on S3, through s3fs.

An operation on an object takes one request. A listing takes one request per thousand objects.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from botocore import exceptions as boto
from botocore.handlers import add_expect_header
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS

from infinite_tensor.support.log import LOG
from infinite_tensor_stores.homes import Stored, check_writable
from infinite_tensor_stores.remote import LoginMask, RemoteHome

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
_SLOWEST = 2**16
"""How many bytes a second an upload moves at least. An upload that stalls ends no sooner."""

_MAY_PASS = (TimeoutError, ConnectionError)
_CODES_THAT_PASS = {"ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "XAmzContentSHA256Mismatch"}
_BROKEN = (*S3_RETRYABLE_ERRORS, boto.ConnectionError, boto.IncompleteReadError)


class S3Home(RemoteHome):
    """A `RemoteHome` with one request for each operation.

    After a temporary failure, a request is sent again, for up to `timeout` seconds. An attempt fails if no answer comes
    for a third of `timeout`.
    """

    files: S3FileSystem

    def __init__(
        self, files: S3FileSystem, path: str, mask: LoginMask, *, read_only: bool, at_once: int, timeout: float
    ) -> None:
        config = {**dict.fromkeys(_LIMITS, timeout / 3), **_SETTINGS, **files.config_kwargs}
        changes = {
            # With more than one connection for an object, s3fs first asks for its size.
            "max_concurrency": files.storage_options.get("max_concurrency", 1),
            "config_kwargs": config,
            "asynchronous": False,
        }
        super().__init__(files, path, mask, read_only=read_only, at_once=at_once, **changes)
        self._bucket, root, _ = files.split_path(self.path)
        self._root = f"{root}/" if root else ""
        self._timeout = timeout
        self._patience = max(config[limit] or math.inf for limit in _LIMITS)
        self._creates = True
        self._client: Any = None

    def copy(self, keys: Mapping[str, str]) -> None:
        """See `Home`."""
        check_writable(self)
        # `cp_file` first asks for the size.
        sources = {to: {"Bucket": self._bucket, "Key": self._root + key} for key, to in keys.items()}
        self._call("copy_object", [{"Key": self._root + to, "CopySource": source} for to, source in sources.items()])

    def exist(self, keys: Iterable[str]) -> list[bool]:
        """See `Home`."""
        # In s3fs, `exists` also lists if there is no object.
        found = self._call("head_object", [{"Key": self._root + key} for key in keys], FileNotFoundError)
        return [not isinstance(answer, FileNotFoundError) for answer in found]

    def _delete_folder(self, folder: str) -> None:
        check_writable(self)
        for page in self._pages(folder):
            if objects := [{"Key": found["Key"]} for found in page.get("Contents", ())]:
                (answer,) = self._call("delete_objects", [{"Delete": {"Objects": objects, "Quiet": True}}])
                for error in answer.get("Errors", ()):
                    raise OSError(f"{error.get('Key')!r} could not be deleted: {error.get('Message')}")

    def names(self, folder: str) -> list[str]:
        """See `Home`."""
        found: list[str] = []
        for page in self._pages(folder, Delimiter="/"):
            found += [each["Key"] for each in page.get("Contents", ())]
            found += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
        return [key.removeprefix(self._prefix(folder)).rstrip("/") for key in found]

    def entries(self, folder: str) -> Iterator[tuple[str, Stored]]:
        """See `Home`."""
        for page in self._pages(folder):
            for found in page.get("Contents", ()):
                stored = Stored(found["Size"], found["LastModified"].timestamp())
                yield found["Key"].removeprefix(self._root), stored

    def _pages(self, folder: str, **given: Any) -> Iterator[dict[str, Any]]:
        page: dict[str, Any] = {"IsTruncated": True}
        while page.get("IsTruncated"):
            (page,) = self._call("list_objects_v2", [{"Prefix": self._prefix(folder), **given}])
            yield page
            given["ContinuationToken"] = page.get("NextContinuationToken")

    def _prefix(self, folder: str) -> str:
        return self._root + (f"{folder}/" if folder else "")

    def _call(self, operation: str, given: Iterable[dict[str, Any]], *harmless: type[Exception]) -> list[Any]:
        return self.ask("call_s3", [(operation, each) for each in given], *harmless, Bucket=self._bucket)

    async def _send(self, method: str, options: dict[str, Any], given: tuple[Any, ...]) -> Any:
        # The client's own time-outs do not cover a stalled upload.
        sizes = [len(data) for data in given if isinstance(data, bytes)]
        limit = self._patience + sum(sizes) / _SLOWEST if sizes and self._patience < math.inf else None
        pause, last_start = _FIRST_PAUSE, 0.0
        while True:
            try:
                # The time to set up the client does not count, because it does not depend on the storage.
                await self._set_up()
                last_start = last_start or time.monotonic() + self._timeout - self._patience
                async with asyncio.timeout(limit):
                    return await super()._send(method, options, given)
            except Exception as error:
                explained = self._explained(error)
                if not isinstance(explained, _MAY_PASS) or time.monotonic() + pause > last_start:
                    if explained is error:
                        raise
                    raise explained from error
                # Do not log the text of the error, because a login may be in it.
                LOG.debug("S3 did not carry out a request (%s); it is sent again", type(error).__name__)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  (spreads load, hides nothing)
            pause *= 2

    async def _set_up(self) -> None:
        files = self.files
        files.retries = 1
        client = await files.set_session()
        if client is not self._client:
            # Waiting for "100 Continue" would make two round trips of each PUT.
            client.meta.events.unregister("before-call.s3", add_expect_header)
            self._client = client

    def _explained(self, error: Exception) -> OSError:
        """Convert an error of a request to a builtin error.

        The result is one of `_MAY_PASS` if a retry may succeed.
        """
        answer = error if isinstance(error, boto.ClientError) else error.__cause__
        if isinstance(answer, boto.ClientError):
            return self._answered(answer, error)
        if isinstance(error, boto.NoCredentialsError):
            return OSError(
                f"{error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give ZarrTileStore(storage_options=...)"
            )
        if isinstance(error, TimeoutError | boto.ReadTimeoutError):
            return TimeoutError(f"no answer for {self._patience:.3g} s")
        if isinstance(error, _BROKEN) and not isinstance(error, boto.SSLError):
            return ConnectionError(
                f"{error}; check the network, and the endpoint_url of storage_options or AWS_ENDPOINT_URL"
            )
        return error if isinstance(error, OSError) else OSError(str(error))

    def _answered(self, answer: Any, error: Exception) -> OSError:
        code = answer.response.get("Error", {}).get("Code")
        status = answer.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status == 429 or status >= 500 or code in _CODES_THAT_PASS:
            return ConnectionError(str(answer))
        if code == "NoSuchBucket":
            return OSError(f"there is no bucket {self._bucket!r}; create it, or correct the URL")
        if code == "PreconditionFailed":
            return FileExistsError(str(answer))
        return error if isinstance(error, OSError) else OSError(str(answer))
