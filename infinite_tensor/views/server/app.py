"""The web application of the server: tensors and endpoints."""

from __future__ import annotations

import asyncio
import html
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.groups import TensorGroup
from infinite_tensor.opening import for_reading, reader_of
from infinite_tensor.pipelines.pyramid import without_levels
from infinite_tensor.support.given import checked_count, quoted
from infinite_tensor.support.tables import plain
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.documents import name_of
from infinite_tensor.tilestore.inventory import sources_first
from infinite_tensor.values.code import short_name
from infinite_tensor.views.server import WORKERS
from infinite_tensor.views.server.served import Served, Settings, refused
from infinite_tensor.views.server.work import Work

LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""Host names of this machine."""
Source = InfiniteTensor | TensorGroup | TileStore | Mapping[str, InfiniteTensor]
_EXPOSED = ["ETag", "X-Reason", "X-Shape", "X-Dtype"]
_METHODS = "GET, HEAD, OPTIONS"
_LOOKING = 2
"""Threads for reading stored pixels, in addition to the computing threads."""
_GONE = 499
"""Status of a response to a disconnected client."""
_PART_BYTES = 2**16
_UNREAD_SECONDS = 30.0
"""How long a client may read nothing before the rest of its response is dropped."""


def app_of(
    sources: Sequence[Source],
    settings: Settings,
    *,
    hosts: Sequence[str] = LOCAL,
    cors: Sequence[str] = (),
    store_results: bool = False,
    workers: int = WORKERS,
) -> Starlette:
    """Return the web application for `serve`.

    The application refuses requests to host names other than `hosts`, so that foreign pages cannot read pixels by DNS
    rebinding.
    """
    tensors: dict[str, Served] = {}
    random: dict[str, Served] = {}
    for name, tensor_id, opened in _tensors_of(sources, store_results=store_results):
        served = tensors.setdefault(_in_url(name), Served(opened, settings))
        # Whoever knows a random id may use it too.
        random[_in_url(tensor_id)] = served
    routes = _Routes(tensors, random | tensors, checked_count("workers", workers))
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False)]
    if cors:
        methods = _METHODS.split(", ")
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=[*cors], allow_methods=methods, expose_headers=_EXPOSED)
        )
    app = Starlette(
        routes=[
            Route("/", routes.index, methods=["GET"]),
            Route("/{path:path}", routes.tensor, methods=["GET", "OPTIONS"]),
        ],
        middleware=middleware,
        lifespan=routes.lifespan,
    )
    app.router.redirect_slashes = False
    app.state.end = routes.end
    return app


def _in_url(name: str) -> str:
    return name_of(name).removeprefix("t-")


def _tensors_of(
    sources: Sequence[Source], *, store_results: bool
) -> Iterator[tuple[str, str, Callable[[], InfiniteTensor]]]:
    """Yield the name and the id of each tensor, and a function to open it."""
    readers: dict[TileStore, TileStore] = {}
    # Tensors that were given with their f, also as an arg of another tensor, by their store and id.
    computed: dict[tuple[str | None, str], Callable[[], InfiniteTensor]] = {}
    unnamed: Counter[str] = Counter()
    for source in sources:
        for given, tensor in _members_of(source):
            opened = partial(_same, tensor if store_results else for_reading(tensor, readers))
            for each in sources_first([opened()], lambda each: each.args):
                computed[each.tile_store.address, each.tensor_id] = partial(_same, each)
            yield given or _name_of(tensor, unnamed), tensor.tensor_id, opened
    for source in sources:
        if isinstance(source, TileStore):
            store = source if store_results else reader_of(source, readers)
            for tensor_id in without_levels(store.tensor_ids()):
                yield tensor_id, tensor_id, computed.get((store.address, tensor_id), partial(store.open, tensor_id))


def _members_of(source: Source) -> list[tuple[str | None, InfiniteTensor]]:
    """Return the tensors that were given with their functions, each with its name in a dict."""
    if isinstance(source, TileStore):
        return []
    if isinstance(source, InfiniteTensor):
        return [(None, source)]
    if isinstance(source, TensorGroup):
        return [(None, each) for each in source.values(True, True)]
    named: list[Any] = [*source.items()] if isinstance(source, Mapping) else [(None, None)]
    if not all(isinstance(name, str) and isinstance(tensor, InfiniteTensor) for name, tensor in named):
        raise ValidationError(
            "sources must be InfiniteTensors, TensorGroups, TileStores, or dicts of names and InfiniteTensors, got "
            f"{quoted(source)}; open a path with open_store(path, mode='r')"
        )
    return named


def _name_of(tensor: InfiniteTensor, unnamed: Counter[str]) -> str:
    """Return the id of a tensor or, in place of a random one, the name of its function, with a number if need be."""
    if node_of(tensor).tensor.named:
        return tensor.tensor_id
    name = short_name(tensor.f) or "tensor"
    unnamed[name] += 1
    return name if unnamed[name] == 1 else f"{name}-{unnamed[name]}"


def _same(tensor: InfiniteTensor) -> InfiniteTensor:
    return tensor


class _Routes:
    """The endpoints.

    Parameters
    ----------
    listed, tensors : mapping of str to Served
        The tensors, by their names in paths: those on the page, and all that are answered.
    workers : int
        How many responses are computed at a time.
    """

    def __init__(self, listed: Mapping[str, Served], tensors: Mapping[str, Served], workers: int) -> None:
        self._listed = listed
        self._tensors = tensors
        self._stored = Work(_LOOKING)
        self._computed = Work(workers)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Answer open requests with an error now, because the server is about to disconnect all clients."""
        self._ending.set()

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        for work in (self._stored, self._computed):
            await asyncio.to_thread(work.close)
        for served in self._listed.values():
            await asyncio.to_thread(served.flush)

    async def index(self, _request: Request) -> Response:
        """Return a page with links to all tensors."""
        rows = "".join(
            f'<li><a href="/{quote(name)}/zarr.json">{html.escape(plain(name))}</a></li>' for name in self._listed
        )
        told = "<p>Zarr at /name, map tiles at /name/{z}/{x}/{y}.png, boxes at /name/box?y=0:256&amp;x=0:256</p>"
        return HTMLResponse(f"<!doctype html><title>infinite-tensor</title>{told}<ul>{rows}</ul>")

    async def tensor(self, request: Request) -> ASGIApp:
        """Answer a request for a key of a Zarr hierarchy or for a map tile."""
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": _METHODS})
        name, _, path = request.path_params["path"].partition("/")
        served = self._tensors.get(name)
        if served is None:
            return _response(request, refused(404, "there is no such tensor"))
        with ExitStack() as until:
            answering = asyncio.ensure_future(self._answer(request, served, path, until))
            leaving, ending = asyncio.ensure_future(_left(request)), asyncio.ensure_future(self._ending.wait())
            for each in (answering, leaving, ending):
                until.callback(each.cancel)
            await asyncio.wait((answering, leaving, ending), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return partial(_send, _response(request, answering.result()), until.pop_all())
        return refused(503, "the server ends") if self._ending.is_set() else Response(status_code=_GONE)

    async def _answer(self, request: Request, served: Served, path: str, until: ExitStack) -> Response:
        client = request.client.host if request.client else ""
        query = request.url.query
        key = (id(served), path, query)
        for work, compute in ((self._stored, False), (self._computed, True)):
            found = await work.result(client, key, partial(served.answer, path, query, compute=compute), until)
            if found is not None:
                return found
        raise AssertionError("Served.answer returned None with compute=True")


async def _send(answer: Response, until: ExitStack, _scope: Scope, _receive: Receive, send: Send) -> None:
    """Send an answer in parts, and close `until`.

    The web server copies each part for each client, and takes the next part once the client has read.
    """
    body, loop = answer.body, asyncio.get_running_loop()
    with until, suppress(TimeoutError):
        async with asyncio.timeout(_UNREAD_SECONDS) as limit:
            await send({"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
            for at in range(0, max(1, len(body)), _PART_BYTES):
                limit.reschedule(loop.time() + _UNREAD_SECONDS)
                end = at + _PART_BYTES
                await send({"type": "http.response.body", "body": body[at:end], "more_body": end < len(body)})


async def _left(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _response(request: Request, answer: Response) -> Response:
    """Return `answer`, or status 304 if it is in the cache of the client."""
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if "etag" in answer.headers and (answer.headers["etag"] in known or known == ["*"]):
        kept = ("etag", "cache-control", "x-content-type-options")
        return Response(status_code=304, headers={name: answer.headers[name] for name in kept})
    return answer
