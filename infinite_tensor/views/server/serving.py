"""`serve`: run the server until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from infinite_tensor.errors import ValidationError
from infinite_tensor.groups import TensorGroup
from infinite_tensor.support.exit import flush_all
from infinite_tensor.support.given import checked_count
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.views.server import WORKERS

_ANY = ("0.0.0.0", "::")  # noqa: S104  (to warn of it)
_MOST_CONNECTIONS = 1000
_PATIENCE_SECONDS = 5
"""How long a shutdown waits for clients."""
_LOOK_SECONDS = 0.1
_INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the signal number, as in shells."""


def serve(
    *sources: InfiniteTensor | TensorGroup | TileStore | Mapping[str, InfiniteTensor],
    host: str = "127.0.0.1",
    port: int = 8000,
    cors: Sequence[str] = (),
    region: Any = None,
    store_results: bool = False,
    workers: int = WORKERS,
    max_windows: int | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    ready: Callable[[str], object] | None = None,
) -> None:
    """Serve tensors over HTTP, as Zarr arrays, boxes and map tiles, until Ctrl-C. See the documentation of the server.

    Ctrl-C waits for running calls of ``f``. A second Ctrl-C stores finished results and ends the process.

    Parameters
    ----------
    *sources : InfiniteTensor, TensorGroup, TileStore, or dict of str to InfiniteTensor
        What to serve. A store serves all tensors that it contains now. The name of a tensor in URLs is its key in a
        dict, or its id; in place of a random id, the name of its function. Of equal names, the first is served.
    host : str
        The address to listen at. There is no authentication: an address other than 127.0.0.1 or ::1 gives a warning.
    port : int
        The port; 0 for a free one.
    cors : sequence of str
        Origins whose pages may read, such as ``"https://example.org"``.
    region : optional
        The pixels of the Zarr arrays, at most 2**30 along a side. Default: all of a finite tensor, or all stored pixels
        of an unbounded tensor at its first request. Map tiles have no bounds.
    store_results : bool
        Whether computed results are stored. Otherwise stores are opened read-only, and results are kept in memory.
    workers : int
        How many responses are computed at a time.
    max_windows : int, optional
        The largest number of windows computed for one response. Default: windows of 2**24 pixels together, where a
        window counts as 4,096 pixels at least.
    vmin, vmax : float, optional
        The range of values of the colours of map tiles. Default: estimated from a few tiles.
    ready : callable, optional
        Called with the URL once the server listens. Default: the URL is printed on standard error.

    Raises
    ------
    ImportError
        If starlette, uvicorn, pillow or matplotlib is not installed.
    ValidationError
        If an argument is invalid.
    RuntimeError
        If an event loop runs on this thread, as in a notebook.
    """
    try:
        import uvicorn  # noqa: PLC0415  (an extra)

        from infinite_tensor.views.server.app import LOCAL, app_of  # noqa: PLC0415  (likewise)
        from infinite_tensor.views.server.served import Settings  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ImportError("serve needs packages: pip install matplotlib pillow starlette uvicorn") from error
    if not sources:
        raise ValidationError("there is nothing to serve: give an InfiniteTensor, a TensorGroup or a TileStore")
    _check_no_loop()
    settings = Settings(region, None if max_windows is None else checked_count("max_windows", max_windows), vmin, vmax)
    shown = f"[{host}]" if ":" in host else host
    hosts: tuple[str, ...] = (*LOCAL, shown, socket.gethostname())
    if shown not in LOCAL:
        warnings.warn(
            f"the server has no authentication: anyone with access to {shown}:{port} can read and compute pixels",
            UserWarning,
            stacklevel=2,
        )
        hosts = ("*",) if host in _ANY else hosts
    origins = [cors] if isinstance(cors, str) else cors
    app = app_of(sources, settings, hosts=hosts, cors=origins, store_results=store_results, workers=workers)

    class _Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Shut down. Running computations stop after their current call of ``f``.

            After a second Ctrl-C, end the process without waiting for ``f``, because Python waits for all threads.
            """
            app.state.end()
            forced = asyncio.ensure_future(self._end_if_forced())
            await super().shutdown(sockets)
            if self.force_exit:
                await forced
            forced.cancel()

        async def _end_if_forced(self) -> None:
            while not self.force_exit:  # noqa: ASYNC110  (uvicorn has no event)
                await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.to_thread(flush_all)
            os._exit(_INTERRUPTED)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if self.force_exit:
                # The flush may hang.
                os._exit(_INTERRUPTED)
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        log_level="warning",
        limit_concurrency=_MOST_CONNECTIONS,
        server_header=False,
        timeout_graceful_shutdown=_PATIENCE_SECONDS,
    )
    with listening(host, port) as listener:
        (ready or _tell)(f"http://{shown}:{listener.getsockname()[1]}/")
        with suppress(KeyboardInterrupt):
            _Server(config).run([listener])


def _tell(url: str) -> None:
    sys.stderr.write(f"Serving at {url} until Ctrl-C\n")
    sys.stderr.flush()


def _check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "serve cannot run on a thread with a running event loop, such as that of a notebook; use another thread, as in "
        "threading.Thread(target=serve, args=[t]).start(), or run infinite-tensor serve in a terminal"
    )


def listening(host: str, port: int) -> socket.socket:
    """Return a socket listening at an address.

    Raise ValidationError if the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ValidationError(
            f"cannot listen at {host}:{port}: {error}; give another port, or 0 for a free one"
        ) from error
    # Without this option, the kernel delays ends of responses. Accepted connections inherit the option.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
