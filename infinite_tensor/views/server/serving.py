"""`serve`: a server that runs until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from infinite_tensor.errors import ValidationError
from infinite_tensor.groups import TensorGroup
from infinite_tensor.support.given import checked_count
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.views.face import PLACES

_ANY = ("0.0.0.0", "::")  # noqa: S104  (to warn of it)
_MOST_CONNECTIONS = 1000
_PATIENCE_SECONDS = 5
"""For clients, at the end."""


def serve(
    *sources: InfiniteTensor | TensorGroup | TileStore,
    host: str = "127.0.0.1",
    port: int = 8000,
    cors: Sequence[str] = (),
    region: Any = None,
    store_results: bool = False,
    workers: int = PLACES,
    max_windows: int = 256,
    vmin: float | None = None,
    vmax: float | None = None,
    ready: Callable[[str], object] | None = None,
) -> None:
    """Serve tensors over HTTP until Ctrl-C: as Zarr arrays and as map tiles; see the page on the server.

    Parameters
    ----------
    *sources : InfiniteTensor, TensorGroup or TileStore
        What is served; of a store all that it holds now. Of two tensors of one id the first.
    host : str
        The address on which to listen. There is no authentication: another than 127.0.0.1 or ::1 is a warning.
    port : int
        The port; 0 for one that is free.
    cors : sequence of str
        Origins whose pages may read, such as ``"https://example.org"``.
    region : optional
        Which pixels the Zarr arrays have, at most 2**30 along a side. Default: all of a finite tensor, of others all
        that is stored when one is first asked for. Map tiles have no bounds.
    store_results : bool
        Whether what is computed is stored. Otherwise stores are opened for reading, and it is kept in memory.
    workers : int
        How many answers are computed at a time.
    max_windows : int
        The most windows that are computed for one answer.
    vmin, vmax : float, optional
        The range of colours of map tiles. Default: that of a few tiles.
    ready : callable, optional
        Is given the URL once the server listens. Default: it is printed on standard error.

    Raises
    ------
    ImportError
        If starlette, uvicorn, pillow or matplotlib is not installed.
    ValidationError
        If an argument does not fit.
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
    settings = Settings(region, checked_count("max_windows", max_windows), vmin, vmax)
    shown = f"[{host}]" if ":" in host else host
    hosts: tuple[str, ...] = (*LOCAL, shown, socket.gethostname())
    if shown not in LOCAL:
        warnings.warn(
            f"there is no authentication: who reaches {shown}:{port} reads all pixels, and has windows computed",
            UserWarning,
            stacklevel=2,
        )
        hosts = ("*",) if host in _ANY else hosts
    origins = [cors] if isinstance(cors, str) else cors
    app = app_of(sources, settings, hosts=hosts, cors=origins, store_results=store_results, workers=workers)

    class _Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """End; what is computed ends after its present call of an ``f``."""
            app.state.end()
            await super().shutdown(sockets)

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
        "serve runs until Ctrl-C, and an event loop is running on this thread, as in a notebook; call it on another "
        "one, as by threading.Thread(target=serve, args=[t]).start(), or run infinite-tensor serve in a terminal"
    )


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; ValidationError if that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ValidationError(
            f"cannot listen at {host}:{port}: {error}; give another port, or 0 for a free one"
        ) from error
    # Else the kernel holds back the ends of answers; those who connect inherit it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
