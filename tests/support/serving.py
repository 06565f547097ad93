"""A real server in a thread of this process, on a free port of this machine."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

# Inside: the server in this process.
from infinite_tensor.views.server.app import Source, app_of
from infinite_tensor.views.server.served import Settings

PATIENCE = 30.0


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_ready.set()


@dataclass
class Served:
    """A client of a server; `ended` tells the path of each request that is over, answered or not."""

    port: int
    client: httpx.Client
    ended: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def send(self, path: str, source: str = "127.0.0.1") -> socket.socket:
        """Ask for something, and do not wait for it."""
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE, (source, 0))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        return client


@contextmanager
def served(*sources: Source, settings: Settings | None = None, **options: Any) -> Iterator[Served]:
    """Serve until the end of the block."""
    app = app_of(sources, settings or Settings(), **options)
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        finally:
            if scope["type"] == "http":
                ended.put(scope["path"])

    server = _Server(uvicorn.Config(watched, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.is_ready.wait(PATIENCE)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client:
            yield Served(port, client, ended)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
