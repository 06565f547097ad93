"""An HTTP proxy before an S3 server that counts requests, delays them, and answers in its stead."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import aiohttp
from aiohttp import web
from yarl import URL

Request: TypeAlias = tuple[str, str]
"""Method and target of a request, as it was on the wire."""

_SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_NOT_FORWARDED = {
    "connection",
    "content-encoding",
    "content-length",
    "date",
    "expect",
    "keep-alive",
    "transfer-encoding",
}


class Proxy:
    """Passes everything on to the server at `target`, and remembers it.

    Attributes
    ----------
    url : str
        Where it listens.
    requests : list
        What came in, in this order.
    most_at_a_time : int
        How many requests were in progress at once.
    delay : float
        Seconds before a request is passed on.
    refuse : callable, optional
        Called with each request; whether it is answered by a 503 and goes no further.
    lose : callable, optional
        Called with each request that was carried out; whether the connection ends in the middle of the answer.
    """

    def __init__(self, target: str) -> None:
        self.requests: list[Request] = []
        self.most_at_a_time = 0
        self.delay = 0.0
        self.refuse: Callable[[Request], bool] = lambda _request: False
        self.lose: Callable[[Request], bool] = lambda _request: False
        self._at_a_time = 0
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    @contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """How many requests of each kind came in within the block: by method, LIST for a listing."""
        before, kinds = len(self.requests), Counter[str]()
        yield kinds
        kinds.update("LIST" if "list-type=" in target else method for method, target in self.requests[before:])

    async def _start(self) -> str:
        self._session = aiohttp.ClientSession(auto_decompress=False)
        application = web.Application(client_max_size=2**30)
        application.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.raw_path))
        data = await request.read()
        self._at_a_time += 1
        self.most_at_a_time = max(self.most_at_a_time, self._at_a_time)
        try:
            await asyncio.sleep(self.delay)
            if self.refuse((request.method, request.raw_path)):
                return web.Response(status=503, text=_SLOW_DOWN)
            return await self._passed_on(request, data)
        finally:
            self._at_a_time -= 1

    async def _passed_on(self, request: web.Request, data: bytes) -> web.StreamResponse:
        # The signature holds for the name that the client has used as the host.
        url, headers = URL(self._target + request.raw_path, encoded=True), _kept(request.headers)
        async with self._session.request(request.method, url, headers=headers, data=data) as response:
            body, headers = await response.read(), _kept(response.headers)
            if self.lose((request.method, request.raw_path)):
                return await _cut_off(request, body)
            if request.method == "HEAD":
                headers["Content-Length"] = response.headers.get("Content-Length", "0")
            return web.Response(status=response.status, headers=headers, body=body)


async def _cut_off(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(len(body) + 1)})
    await response.prepare(request)
    await response.write(body)
    assert request.transport is not None
    request.transport.close()
    return response


def _kept(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_FORWARDED}
