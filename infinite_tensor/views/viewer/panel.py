"""A tensor on a Bokeh page.

A figure requests the visible tiles, and draws each tile when it arrives.
"""

from __future__ import annotations

import math
import textwrap
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from bokeh.document import Document
from bokeh.events import RangesUpdate
from bokeh.models import (
    BasicTicker,
    BasicTickFormatter,
    Checkbox,
    ColumnDataSource,
    CustomJSHover,
    Div,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    PlainText,
    Range1d,
    Select,
    Spinner,
    Title,
    UIElement,
)
from bokeh.palettes import Viridis256
from bokeh.plotting import figure

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import TileAccessError
from infinite_tensor.support.stopping import Stopped, stopping
from infinite_tensor.support.tables import count_of, shown_id
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.colours import MOST_LABELS, full_range, range_of, rgba
from infinite_tensor.views.frame import numpy_dtype
from infinite_tensor.views.painter import Painter, Picture
from infinite_tensor.views.plane import Plane, Tile
from infinite_tensor.views.viewer.viewport import Budget, Viewport, coarsest

_MOST_HELD = 512
"""Maximum number of tiles of a level in a browser."""
_LOOK_AGAIN = 5.0
"""Seconds until an incomplete tile is looked up again on a move of the view."""
_BETWEEN = 0.15
"""Minimum seconds between two updates of a browser, because each update redraws all tiles."""
_BLANK = "#d9d9d9"
"""Grey of missing pixels."""
_LONGEST = 300
"""Maximum number of characters of an error to show."""
_COLOURS = ("red", "green", "blue")
_NUMBER = """
if (Number.isSafeInteger(value)) return `${value}`
return Math.abs(value) < 1e6 ? `${Number(value.toPrecision(6))}` : value.toExponential(5)
"""
"""JavaScript for formatting a value. Whole numbers keep all digits up to 2**53, the limit of exact floats."""
_MARKS = {"pending": ("#4477aa", 0.12), "failed": ("#cc3311", 0.25), "stored": ("#ee3377", 0.22)}
"""Colour and opacity of the overlay of a tile, by state."""

Work: TypeAlias = Callable[[], None]


class Lane:
    """A thread for running one function at a time, with at most one waiting.

    A new function replaces the waiting function. Every function has a number. Once ``unwanted(number)`` is True, the
    running function is stopped before its next call of an ``f``.
    """

    def __init__(self, unwanted: Callable[[int], bool]) -> None:
        self._next: tuple[int, Work] | None = None
        self._unwanted = unwanted
        self._busy = False
        self._lock = threading.Lock()

    def give(self, number: int, work: Work) -> None:
        """Run the function `work` next, in place of the waiting function."""
        with self._lock:
            self._next = number, work
            if not self._busy:
                self._busy = True
                # Not a daemon: a thread still in C++ code would crash Python at exit.
                threading.Thread(target=self._run, name="infinite_tensor-look", daemon=False).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                given, self._next = self._next, None
                if given is None:
                    self._busy = False
                    return
            number, work = given
            try:
                with suppress(Stopped), stopping(partial(self._unwanted, number)):
                    work()
            except BaseException as error:  # noqa: BLE001  (the next function runs whatever this one raises)
                traceback.print_exception(error)


class _Layer:
    """The images of a level in a figure, one image per tile."""

    def __init__(self, fig: figure, mapper: LinearColorMapper, *, colours: bool) -> None:
        names = ["image", "x", "y", "dw", "dh", *(_COLOURS if colours else ())]
        self.source = ColumnDataSource({name: [] for name in names}, name="tiles")
        options: dict[str, Any] = {"source": self.source, "level": "image", "visible": False}
        if colours:
            self.drawn = fig.image_rgba("image", "x", "y", "dw", "dh", **options)
        else:
            self.drawn = fig.image("image", "x", "y", "dw", "dh", color_mapper=mapper, **options)
        self.pictures: dict[Tile, tuple[Picture, float]] = {}

    def add(self, pictures: Sequence[Picture], plane: Plane, ends: tuple[float, float]) -> None:
        """Draw tiles over existing tiles, and drop the oldest if there are too many.

        For three channels, `ends` are the values of the darkest and the brightest red, green and blue.
        """
        rows: dict[str, list[Any]] = {name: [] for name in self.source.data}
        for picture in pictures:
            self.pictures.pop(picture.tile, None)
            self.pictures[picture.tile] = (picture, time.monotonic())
            if picture.range is None:
                continue
            box, scale = picture.tile.box(plane.extents), 2**picture.tile.level
            assert box is not None
            is_rgb = plane.colours is not None
            rows["image"].append(rgba(picture.values, ends).view(np.uint32)[..., 0] if is_rgb else picture.values)
            for name, size, part, extent in zip("yx", ("dh", "dw"), box, plane.extents, strict=True):
                stop = part.stop * scale if extent is None else min(part.stop * scale, extent)
                rows[name].append(part.start * scale - 0.5)
                rows[size].append(stop - part.start * scale)
            for channel, colour in enumerate(_COLOURS if is_rgb else ()):
                rows[colour].append(np.ascontiguousarray(picture.values[..., channel]))
        if rows["x"]:
            self.source.stream(rows, rollover=_MOST_HELD)
        while len(self.pictures) > _MOST_HELD:
            del self.pictures[next(iter(self.pictures))]

    def clear(self) -> None:
        """Remove all tiles."""
        self.source.data = {name: [] for name in self.source.data}
        self.pictures.clear()


def _figure(tensor: InfiniteTensor, plane: Plane, ranges: tuple[Range1d, Range1d]) -> figure:
    fig = figure(
        x_range=ranges[0],
        y_range=ranges[1],
        sizing_mode="stretch_both",
        tools="pan,wheel_zoom,reset",
        active_scroll="wheel_zoom",
        output_backend="canvas",
        background_fill_color=_BLANK,
        # As plain text, because a browser would draw dollars and backslashes in a name as mathematics.
        x_axis_label=PlainText(text=tensor.dims[plane.columns]),
        y_axis_label=PlainText(text=tensor.dims[plane.rows]),
        title=Title(text=PlainText(text=shown_id(tensor.tensor_id))) if node_of(tensor).tensor.named else None,
        lod_threshold=None,
    )
    fig.grid.visible = False
    fig.toolbar.logo = None
    for axis in fig.axis:
        axis.formatter = BasicTickFormatter(use_scientific=False)
    return fig


def _marks_on(fig: figure) -> ColumnDataSource:
    names = ["left", "right", "top", "bottom", "fill", "alpha", "x", "y", "text"]
    marks = ColumnDataSource({name: [] for name in names}, name="marks")
    fig.quad("left", "right", "top", "bottom", source=marks, fill_color="fill", fill_alpha="alpha", line_color=None)
    fig.text("x", "y", "text", source=marks, text_font_size="11px", text_color="#660000")
    return marks


class Panel:
    """A tensor on a page.

    Parameters
    ----------
    document : Document
        The page.
    tensor : InfiniteTensor
    ranges : pair of Range1d
        The visible columns and rows; other panels may share them.
    budget : Budget
        How much may be computed for one view.
    resized : callable
        Called when the size of the figure changes.

    Attributes
    ----------
    figure : figure
    widgets : list of UIElement
        The widgets above the figure.
    size : pair of int
        Width and height of the picture on the screen; 0 until it is known.
    coarsest : int
        The coarsest level to zoom out to.
    """

    def __init__(
        self,
        document: Document,
        tensor: InfiniteTensor,
        ranges: tuple[Range1d, Range1d],
        budget: Budget,
        resized: Callable[[], None],
    ) -> None:
        self._document, self._tensor, self._budget, self._resized = document, tensor, budget, resized
        self._painter, self._plane = Painter(tensor), Plane.of(tensor.shape, tensor.dims)
        self._computable = node_of(tensor).computation.copied or (budget.windows > 0 and tensor.f is not None)
        self._failed: dict[tuple[Plane, Tile], Picture] = {}
        self.coarsest = coarsest(self._plane.extents, len(self._painter.levels) - 1)
        self._ends = full_range(numpy_dtype(tensor.dtype), rgb=True)
        self._looking, self._computing = Lane(self._is_over), Lane(self._is_over)
        self._came: deque[tuple[int, list[Picture]]] = deque()
        self._coming, self._taken = False, -math.inf
        self._view, self._wanted = Viewport(0, 0, 0, 0, 0), list[Tile]()
        self._level = self._look_number = self._first_look = 0
        self._looked_at: Plane | None = None
        self.size = 0, 0
        self.figure = _figure(tensor, self._plane, ranges)
        self._mapper = LinearColorMapper(palette=Viridis256, nan_color=(0, 0, 0, 0), low=0, high=1, name="scale")
        self._labelled = False
        self._layers = {
            (level, colours): _Layer(self.figure, self._mapper, colours=colours)
            for level in range(self.coarsest, -1, -1)
            for colours in ([False, True] if self._plane.colours is not None else [False])
        }
        self._marks = _marks_on(self.figure)
        self._bar = next(iter(self._layers.values())).drawn.construct_color_bar(width=12)
        self.figure.add_layout(self._bar, "right")
        formatters = dict.fromkeys([f"@{name}" for name in ("image", *_COLOURS)], CustomJSHover(code=_NUMBER))
        self._hover = HoverTool(point_policy="follow_mouse", formatters=formatters)
        self.figure.add_tools(self._hover)
        self._listen()
        self._status = Div(text="", name="status", styles={"white-space": "nowrap"})
        self._tint = Checkbox(label="tint what is stored", active=False)
        self._tint.on_change("active", lambda _name, _old, _new: self._mark())
        self._hold = Checkbox(label="hold the scale", active=False)
        self._hold.on_change("active", lambda _name, _old, _new: self._scale())
        self.widgets = [*map(self._choice, self._plane.others), self._tint, self._hold, self._status]

    def _listen(self) -> None:
        self.figure.on_event(RangesUpdate, lambda event: self.look(event.y0, event.x0, event.y1, event.x1))
        self.figure.on_change("inner_width", lambda _name, _old, new: self._resize(new, self.size[1]))
        self.figure.on_change("inner_height", lambda _name, _old, new: self._resize(self.size[0], new))

    def _resize(self, width: int, height: int) -> None:
        self.size = width, height
        # In the next tick, after both width and height have changed.
        self._document.add_next_tick_callback(self._resized)

    def _choice(self, d: int) -> UIElement:
        name, extent = self._tensor.dims[d], self._tensor.shape[d]

        def chosen(_name: str, _old: object, new: object) -> None:
            at = list(self._plane.at)
            at[d] = None if new == "RGB" else int(str(new))
            self._plane = replace(self._plane, at=tuple(at))
            for layer in self._layers.values():
                layer.clear()
            # Tiles arriving later for earlier views belong to another plane.
            self._first_look = self._look_number + 1
            x, y = self.figure.x_range, self.figure.y_range
            self.look(y.start, x.start, y.end, x.end)

        if d == self._plane.colours:
            options = ["RGB", *map(str, range(extent or 0))]
            choice: Any = Select(value="RGB", options=options, title=name, width=80)
        else:
            low, high = (None, None) if extent is None else (0, extent - 1)
            choice = Spinner(value=0, low=low, high=high, step=1, title=name, width=80)
        choice.on_change("value", chosen)
        return choice

    def look(self, y0: float, x0: float, y1: float, x1: float) -> None:
        """Show a part of the plane.

        Tiles already in the browser appear at once, then stored tiles, then computed tiles.
        """
        if not all(self.size) or any(edge is None or math.isnan(edge) for edge in (y0, x0, y1, x1)):
            return
        view = self._view = Viewport(min(y0, y1), min(x0, x1), max(y0, y1), max(x0, x1), self.size[0])
        level, plane = view.level(self.coarsest), self._plane
        wanted = view.tiles(level, plane.extents)
        if (wanted, plane) == (self._wanted, self._looked_at):
            self._scale()
            return
        self._level, self._wanted, self._looked_at = level, wanted, plane
        self._look_number += 1
        number, now, pictures = self._look_number, time.monotonic(), self._layer(level).pictures
        asked = [tile for tile in wanted if not _is_known(pictures.get(tile), now)]
        self._looking.give(number, lambda: self._find(number, plane, asked))
        self._draw()

    def _layer(self, level: int) -> _Layer:
        return self._layers[level, self._plane.colours is not None]

    def _is_over(self, number: int) -> bool:
        """Whether view `number` has been replaced by a later view, or the process is about to end."""
        return number != self._look_number or not threading.main_thread().is_alive()

    def _find(self, number: int, plane: Plane, asked: list[Tile]) -> None:
        """Send stored tiles to the page. Have missing tiles computed if the budget allows. Runs on a thread."""
        try:
            lacking: dict[Tile, Picture] = {}
            for found in self._painter.stored(plane, asked):
                if stored := [picture for picture in found if picture.state == "stored"]:
                    self._bring(number, stored)
                lacking.update({picture.tile: picture for picture in found if picture.state == "partial"})
            tiles = [tile for tile in asked if tile in lacking]
            cost = self._painter.window(plane), self._painter.scale(plane, tiles)
            if self._computable and self._budget.allows(tiles, *cost):
                self._computing.give(number, lambda: self._compute(number, plane, tiles))
                return
            for tile in tiles:
                self._bring(number, [self._painter.filled(plane, lacking[tile])])
        except Stopped:
            raise
        except BaseException as error:  # noqa: BLE001  (errors of a store are shown on the page)
            self._bring(number, [Picture.failed(plane, tile, error) for tile in asked])

    def _compute(self, number: int, plane: Plane, tiles: Sequence[Tile]) -> None:
        for tile in tiles:
            self._bring(number, [self._failed.get((plane, tile)) or self._computed(plane, tile)])

    def _computed(self, plane: Plane, tile: Tile) -> Picture:
        try:
            return self._painter.computed(plane, tile)
        except Stopped:
            raise
        except TileAccessError as error:
            return Picture.failed(plane, tile, error, "partial")
        except BaseException as error:  # noqa: BLE001  (code of the user may raise anything)
            return self._failed.setdefault((plane, tile), Picture.failed(plane, tile, error))

    def _bring(self, number: int, pictures: list[Picture]) -> None:
        """Queue tiles for drawing on the event loop of the page. Runs on a thread."""
        for picture in pictures:
            # Compute the cached range here, not on the drawing thread.
            _ = picture.range
        self._came.append((number, pictures))
        if not self._coming:
            self._coming = True
            self._document.add_next_tick_callback(self._take)

    def _take(self) -> None:
        if time.monotonic() - self._taken < _BETWEEN:
            self._document.add_timeout_callback(self._take, int(_BETWEEN * 1000))
            return
        self._coming, self._taken = False, time.monotonic()
        came: dict[int, dict[Tile, Picture]] = {}
        while self._came:
            number, pictures = self._came.popleft()
            for picture in pictures if number >= self._first_look else ():
                some, drawn = came.setdefault(picture.tile.level, {}), self._layer(picture.tile.level).pictures
                held = some.get(picture.tile) or drawn.get(picture.tile, [None])[0]
                # A later view may already have found the same tile stored.
                if held is None or held.state == "partial":
                    some[picture.tile] = picture
        for level, some in came.items():
            if self._ends is None:
                self._ends = range_of([picture.values for picture in some.values()])
            self._layer(level).add(list(some.values()), self._plane, self._ends or (0, 1))
        self._draw()

    def _draw(self) -> None:
        layer = self._layer(self._level)
        lacking = [tile for tile in self._wanted if tile not in layer.pictures]
        for (level, colours), other in self._layers.items():
            mine = colours == (self._plane.colours is not None)
            # Finer layers stay visible until no tile is missing.
            other.drawn.visible = mine and (level >= self._level or bool(lacking))
        if self._hover.renderers != [layer.drawn]:
            self._hover.renderers = [layer.drawn]
            self._hover.tooltips = self._told(("image",) if self._plane.colours is None else _COLOURS)
            self._bar.visible = self._plane.colours is None
        self._scale()
        self._mark()
        self._tell(len(lacking))

    def _told(self, columns: Sequence[str]) -> list[tuple[str, str]]:
        y, x = (self._tensor.dims[d] for d in (self._plane.rows, self._plane.columns))
        return [(y, "$y{0}"), (x, "$x{0}"), ("value", " ".join(f"@{name}{{custom}}" for name in columns))]

    def _scale(self) -> None:
        """Fit the colours to the visible pixels: one colour per label, or a scale from minimum to maximum."""
        if self._painter.labels != self._labelled:
            # Only on a change, because each update of a model makes Bokeh check all models.
            self._labelled = self._painter.labels
            labels = self._painter.colours
            colours = [f"#{bytes(each).hex()}" for each in labels.colours]
            self._mapper.palette = colours if self._labelled else Viridis256
            ticks = [*labels.names] or list(range(min(len(colours), MOST_LABELS)))
            self._bar.ticker = FixedTicker(ticks=ticks) if self._labelled else BasicTicker()
            self._bar.major_label_overrides = dict(labels.names) if self._labelled else {}
        if self._labelled:
            self._mapper.update(low=-0.5, high=len(self._painter.colours.colours) - 0.5)
            return
        if self._hold.active:
            return
        pictures, ranges = self._layer(self._level).pictures, []
        for tile in self._wanted:
            box = tile.box(self._plane.extents)
            if tile in pictures and box is not None:
                ranges.append(pictures[tile][0].range_in(self._view.part(box, self._level)))
        found = range_of([np.array([ends for ends in ranges if ends is not None])])
        if found is not None:
            low, high = found
            # For equal values, set the upper end far enough above for different floats.
            self._mapper.update(low=low, high=high if high > low else low + max(1.0, abs(low) / 1000))

    def _mark(self) -> None:
        """Tint pending and failed tiles. If the checkbox is active, also tint stored tiles."""
        rows: dict[str, list[Any]] = {name: [] for name in self._marks.data}
        pictures = self._layer(self._level).pictures
        for tile in self._wanted:
            picture = pictures[tile][0] if tile in pictures else None
            state = "pending" if picture is None else picture.state
            box = tile.box(self._plane.extents)
            if box is None or state not in _MARKS or (state == "stored" and not self._tint.active):
                continue
            (top, bottom), (left, right) = (
                (part.start * 2**tile.level - 0.5, part.stop * 2**tile.level - 0.5) for part in box
            )
            text = "" if picture is None else "\n".join(textwrap.wrap(picture.error[:_LONGEST], 30))
            mark = (left, right, top, bottom, *_MARKS[state], left, top, text)
            for name, value in zip(rows, mark, strict=True):
                rows[name].append(value)
        if rows != self._marks.data:
            self._marks.data = rows

    def _tell(self, lacking: int) -> None:
        told = [] if self._level == 0 else [f"a pixel shows {2**self._level} x {2**self._level}"]
        pictures = self._layer(self._level).pictures
        if lacking:
            told.append(f"{count_of(lacking)} tile{'s' * (lacking != 1)} to come")
        elif self._computable and any(pictures[tile][0].state == "partial" for tile in self._wanted):
            told.append("too much to compute: zoom in")
        self._status.text = ", ".join(told)

    def close(self) -> None:
        """Stop computing, because the page is closed."""
        self._look_number += 1
        self._first_look = self._look_number


def _is_known(held: tuple[Picture, float] | None, now: float) -> bool:
    """Whether a tile on the page need not be looked up again.

    `held` is the tile with the time of the last look-up. A tile with missing pixels is looked up again after some
    seconds, because more pixels may have been stored since.
    """
    return held is not None and (held[0].state != "partial" or now - held[1] < _LOOK_AGAIN)
