"""The page of the viewer, and a local server for it."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, cast
from weakref import WeakSet

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import Range1d, TextInput
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.routing import HostMatches, Rule, RuleRouter

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import Shape
from infinite_tensor.support.given import as_index, quoted
from infinite_tensor.support.tables import shown_id
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.painter import stored_near
from infinite_tensor.views.plane import Plane
from infinite_tensor.views.server.serving import listening
from infinite_tensor.views.viewer.panel import Panel
from infinite_tensor.views.viewer.viewport import Budget

_LARGEST = 6
"""The largest zoom."""
_FARTHEST = 2.0**50
"""Farthest distance from pixel 0. Up to here, floats of a browser distinguish quarters of pixels."""
_BESIDE = 75
"""Left and right margins of several pictures, in screen pixels, for an axis and a colour bar."""


@dataclass(frozen=True)
class _Place:
    """The pixel in the middle of the screen, and the zoom.

    A pixel covers ``2**zoom`` screen pixels along each side. If `zoom` is None, the extents `whole` are fitted to the
    screen.
    """

    y: float
    x: float
    zoom: float | None = None
    whole: Shape = ()

    @classmethod
    def of(cls, tensor: InfiniteTensor) -> Self:
        """Return the initial position of a page.

        The page shows all of a finite plane, or else the stored tile nearest to pixel 0.
        """
        plane = Plane.of(tensor.shape, tensor.dims)
        near = (0.0, 0.0) if None not in plane.extents else stored_near(tensor, plane)
        y, x = (at if n is None else (n - 1) / 2 for at, n in zip(near, plane.extents, strict=True))
        return cls(y, x, None, plane.extents)

    def asked(self, arguments: Mapping[str, Sequence[bytes]]) -> Self:
        """Return a copy with `y`, `x` and `zoom` from the URL. Invalid numbers are ignored."""
        given: dict[str, Any] = {}
        for name in ("y", "x", "zoom"):
            try:
                number = float(arguments[name][-1])
            except (LookupError, ValueError):
                continue
            if math.isfinite(number):
                given[name] = number
        return replace(self, **given)

    def zoom_for(self, height: float, width: float) -> float:
        if self.zoom is not None:
            return self.zoom
        sides = zip((height, width), self.whole, strict=False)
        return min((math.log2(side / extent) for side, extent in sides if extent), default=0.0)


class _Page:
    """The page in one browser, with panels side by side.

    All panels show the same rows and columns.
    """

    def __init__(self, document: Document, tensors: Sequence[InfiniteTensor], start: _Place, budget: Budget) -> None:
        self._ranges = Range1d(0, 1), Range1d(1, 0)
        self._panels = [Panel(document, tensor, self._ranges, budget, self._fit) for tensor in tensors]
        self._place, self._sizes = start, [(0, 0)] * len(tensors)
        box = TextInput(placeholder="y, x  or  y, x, zoom", title="go to", width=200)
        box.on_change("value", lambda _name, _old, new: self._go(new))
        document.on_session_destroyed(lambda _context: self.close())
        document.title = ", ".join(shown_id(tensor.tensor_id) for tensor in tensors)
        for panel in self._panels[1:] and self._panels:
            # Equal margins, with or without a colour bar.
            panel.figure.update(min_border_left=_BESIDE, min_border_right=_BESIDE)
        # A single row, for figures of equal height.
        widgets = [widget for panel in self._panels for widget in panel.widgets]
        figures = row(*(panel.figure for panel in self._panels), sizing_mode="stretch_both")
        document.add_root(column(row(box, *widgets), figures, sizing_mode="stretch_both"))

    def _go(self, text: str) -> None:
        try:
            given = [float(part) for part in text.replace(",", " ").split()]
            y, x, zoom = [*given, self._zoom] if len(given) == 2 else given
        except ValueError:
            return
        if all(map(math.isfinite, (y, x, zoom))):
            self._show(_Place(y, x, zoom))

    def close(self) -> None:
        """Stop computing for this page."""
        for panel in self._panels:
            panel.close()

    @property
    def _zoom(self) -> float:
        columns, _ = self._ranges
        return math.log2(self._sizes[0][0] / (columns.end - columns.start))

    def _fit(self) -> None:
        """Keep the middle and the zoom when the size of the figures has changed."""
        columns, rows = self._ranges
        sizes = [panel.size for panel in self._panels]
        if not all(sizes[0]) or sizes == self._sizes:
            return
        place = self._place
        if all(self._sizes[0]):
            place = _Place((rows.start + rows.end) / 2, (columns.start + columns.end) / 2, self._zoom)
        self._sizes = sizes
        self._show(place)

    def _show(self, place: _Place) -> None:
        width, height = self._sizes[0]
        if not width or not height:
            self._place = place
            return
        most = 2.0 ** max(panel.coarsest for panel in self._panels) * 1.4
        scale = 2.0 ** -_within(place.zoom_for(height, width), -math.log2(most), _LARGEST)
        columns, rows = self._ranges
        for way, at, size in ((columns, place.x, width), (rows, place.y, height)):
            middle = _within(at, -_FARTHEST, _FARTHEST)
            low, high = middle - size * scale / 2, middle + size * scale / 2
            start, end = (low, high) if way is columns else (high, low)
            # Set the range before its limits, because a browser enforces limits at once.
            way.update(start=start, end=end, reset_start=start, reset_end=end)
            way.update(min_interval=size / 2**_LARGEST, max_interval=size * most)
        for panel in self._panels:
            panel.look(rows.end, columns.start, rows.start, columns.end)


def _within(number: float, least: float, most: float) -> float:
    return min(max(number, least), most)


class View:
    """A page with tensors, served on this machine; see `InfiniteTensor.view`.

    The page is served until it is closed, or until this process ends.

    Attributes
    ----------
    url : str
        The URL of the page, for browsers on this machine. ``?y=&x=&zoom=`` opens it at another position: `zoom` 0 shows
        one pixel per screen pixel, -1 half as large, 1 twice as large.
    """

    def __init__(self, tensors: Sequence[InfiniteTensor], port: int, budget: Budget) -> None:
        start = _Place.of(tensors[0])

        def show(document: Document) -> None:
            context = document.session_context
            arguments = {} if context is None or context.request is None else context.request.arguments
            self._pages.add(_Page(document, tensors, start.asked(arguments), budget))

        self._pages = WeakSet[_Page]()
        self._ready, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._loop: Any = None
        threading.Thread(target=self._serve, args=(show, port), name="infinite_tensor-view", daemon=True).start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _serve(self, show: Any, port: int) -> None:
        async def serve() -> None:
            self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
            listener = listening("127.0.0.1", port)
            listener.setblocking(False)
            bound = listener.getsockname()[1]
            pages = BokehTornado(
                Application(FunctionHandler(show)),
                extra_websocket_origins=[f"localhost:{bound}", f"127.0.0.1:{bound}"],
                # Stop computing for a page soon after it is closed.
                check_unused_sessions_milliseconds=1000,
                unused_session_lifetime_milliseconds=2000,
            )
            # Bokeh trusts a page whose origin is its host, and a foreign page may rebind its own host to this machine.
            http = HTTPServer(RuleRouter([Rule(HostMatches(r"(localhost|127\.0\.0\.1)$"), pages)]))
            http.add_sockets([listener])
            server = BaseServer(IOLoop.current(), pages, http)
            server.start()
            self.url = f"http://localhost:{bound}/"
            self._ready.set()
            await self._end.wait()
            for page in self._pages:
                page.close()
            # Wait until pending messages are sent, at most one second.
            sessions = pages.get_sessions("/")
            sent = [asyncio.ensure_future(session.with_document_locked(lambda: None)) for session in sessions]
            if sent:
                await asyncio.wait(sent, timeout=1)
            server.stop()
            await http.close_all_connections()

        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001  (raised by __init__)
            self._error = error
        finally:
            self._ready.set()
            self._ended.set()

    def wait(self) -> None:
        """Block until the view is closed or Ctrl-C is pressed.

        This is for the last line of a script.
        """
        try:
            self._ended.wait()
        except KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Stop the server.

        A running call of ``f`` is finished, but no further call starts.
        """
        if not self._ended.is_set():
            self._loop.call_soon_threadsafe(self._end.set)
            self._ended.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return f'<iframe src="{self.url}" style="width: 100%; height: 640px; border: 0"></iframe>'

    def __repr__(self) -> str:
        return f"View({self.url!r})"


def view(tensors: Sequence[object], port: object, budget: object, *, open_browser: bool | None) -> View:
    """Show tensors side by side; see `InfiniteTensor.view`."""
    for tensor in tensors:
        if not isinstance(tensor, InfiniteTensor):
            raise ValidationError(
                f"a view shows InfiniteTensors, got {quoted(tensor)}; to reshape pixels, read a region and reshape it"
            )
    number = as_index(port)
    if number is None or not 0 <= number < 2**16:
        raise ValidationError(f"port must be an int from 0 to 65535 (0 for a free port), got {quoted(port)}")
    most = as_index(budget)
    if most is None or most < 0:
        raise ValidationError(f"budget must be a number of windows (0 to compute nothing), got {quoted(budget)}")
    found = View(cast("Sequence[InfiniteTensor]", tensors), number, Budget(most))
    # A notebook shows the page itself.
    if "ipykernel" not in sys.modules if open_browser is None else open_browser:
        webbrowser.open(found.url)
    return found
