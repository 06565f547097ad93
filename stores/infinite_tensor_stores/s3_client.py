"""Requests to S3 that end in time, through the client that s3fs sets up."""

from __future__ import annotations

import asyncio
import io
import itertools
import math
import random
import time
from typing import Any, TypeAlias

import aiohttp
from botocore import exceptions as boto
from botocore.handlers import add_expect_header
from botocore.parsers import ResponseParserError
from s3fs import S3FileSystem

from infinite_tensor_stores import s3_lifetime as lifetime
from infinite_tensor_stores.files import Unreadable

Response: TypeAlias = dict[str, Any]

_CONNECTIONS = 256
"""Enough for what many threads ask for at a time, so that no request waits for another's connection."""

_FIRST_PAUSE = 0.1

_TIMEOUTS = (TimeoutError, boto.ReadTimeoutError, boto.ConnectTimeoutError)
_BROKEN = (
    aiohttp.ClientError,
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    ResponseParserError,
)
_PASSING_CODES = frozenset(
    {"ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "XAmzContentSHA256Mismatch"}
)


class S3Client:
    """Sends requests, again after a failure that may pass, and gives up in time.

    Botocore's own retries count attempts, whatever time they take. And a server that accepts connections but
    is dead would hold a PUT for ever: nothing limits the wait for room to send.

    Parameters
    ----------
    fs : S3FileSystem
        Asynchronous, and used by nobody else unless `timeout` is None.
    timeout : float or None
        Seconds within which a storage that does not answer is reported; None leaves that to `fs`.
    """

    def __init__(self, fs: S3FileSystem, timeout: float | None) -> None:
        self.fs = fs
        self.timeout = timeout
        self._patience = math.inf
        if timeout is not None:
            self._patience = _set_timeouts(fs, timeout)
        self._connections: Any = None

    async def call(
        self, operation: str, data: bytes | None = None, most: int | None = None, **parameters: Any
    ) -> Response:
        """The response to one request, with its whole body.

        Parameters
        ----------
        operation : str
            A method of the botocore client.
        data : bytes, optional
            The body to send.
        most : int, optional
            How many bytes of a body are fetched: `Unreadable` stands for one that has more.
        **parameters
            What the method takes.

        Raises
        ------
        OSError
            Whatever goes wrong; FileNotFoundError only if the bucket has no such object.
        """
        await self._connect()
        last_start = time.monotonic() + (self.timeout or 0.0) - self._patience
        for attempt in itertools.count():
            try:
                return await self._send(operation, data, most, parameters)
            except Exception as error:
                pause = _FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1)  # noqa: S311  (spreads load, hides nothing)
                if not _may_pass(error) or time.monotonic() + pause > last_start:
                    raise _explained(error, parameters["Bucket"]) from error
            await asyncio.sleep(pause)
        raise AssertionError("a count has no end")

    async def close(self) -> None:
        """Close all connections, unless others use them too; the next request opens new ones."""
        if self._connections is not None:
            connections, self._connections = self._connections, None
            self.fs._s3 = None
            await lifetime.close(connections)

    async def _connect(self) -> None:
        # It takes a while of this machine's time, which says nothing of the storage.
        try:
            await self.fs.set_session()
        except boto.BotoCoreError as error:
            raise OSError(str(error)) from error
        if self.timeout is not None and self.fs._s3creator is not self._connections:
            self._connections = self.fs._s3creator
            lifetime.close_with(self, self._connections)
            # Waiting for "100 Continue" would make two round trips of each PUT.
            self.fs._s3.meta.events.unregister("before-call.s3", add_expect_header)

    async def _send(self, operation: str, data: bytes | None, most: int | None, parameters: dict[str, Any]) -> Response:
        upload = _Upload(data or b"")
        body = {} if data is None else {"Body": upload}
        response = await self._begun(operation, {**parameters, **body}, upload)
        if operation == "get_object":
            size = response.get("ContentLength", 0)
            async with response["Body"] as stream:
                too_large = most is not None and size > most
                response["Body"] = Unreadable.too_large(size, most or 0) if too_large else await stream.read()
        return response

    async def _begun(self, operation: str, parameters: dict[str, Any], upload: _Upload) -> Response:
        """The response, once it has begun; TimeoutError where nothing moves for too long."""
        request = asyncio.ensure_future(self.fs._call_s3(operation, **parameters))
        try:
            while not request.done():
                left = upload.moved + self._patience - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no answer for {self._patience:.3g} s")
                await asyncio.wait([request], timeout=None if math.isinf(left) else left)
            response: Response = await request
            return response
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)


class _Upload(io.BytesIO):
    """A body that knows when some of it was last taken."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.moved = time.monotonic()

    def read(self, size: int | None = -1, /) -> bytes:
        self.moved = time.monotonic()
        return super().read(size)


def code_of(error: Exception) -> str:
    """The code of S3 that an error of s3fs or botocore stands for, or an empty string."""
    return str(_answer(error).get("Error", {}).get("Code", ""))


def _answer(error: BaseException | None) -> dict[str, Any]:
    """What S3 has answered, where an error stands for that."""
    while error is not None and not isinstance(error, boto.ClientError):
        error = error.__cause__
    return {} if error is None else dict(error.response)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, _TIMEOUTS + _BROKEN):
        return not isinstance(error, boto.SSLError)
    status = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status == 429 or status >= 500 or code_of(error) in _PASSING_CODES


def _explained(error: Exception, bucket: str) -> OSError:
    """The builtin error that says what `error` does."""
    code = code_of(error)
    if code == "NoSuchBucket":
        return OSError(f"there is no bucket {bucket!r}; create it, or correct the URL")
    if code == "PreconditionFailed":
        return FileExistsError(str(error))
    kinds = (PermissionError, FileNotFoundError, FileExistsError)
    kind = next((kind for kind in kinds if isinstance(error, kind)), OSError)
    if isinstance(error, _TIMEOUTS):
        kind = TimeoutError
    elif isinstance(error, _BROKEN):
        kind = ConnectionError
    return kind(str(error))


def _set_timeouts(fs: S3FileSystem, timeout: float) -> float:
    """Let `fs` wait for a third of `timeout`, unless the user has said how long; how long it is then."""
    settings: dict[str, Any] = {
        "connect_timeout": timeout / 3,
        "read_timeout": timeout / 3,
        "max_pool_connections": _CONNECTIONS,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        # What we store ends in a checksum of its own.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        **fs.config_kwargs,
    }
    fs.config_kwargs, fs.retries = settings, 1
    limits = settings["connect_timeout"], settings["read_timeout"]
    return math.inf if None in limits else max(limits)
