"""Responses for one tensor: keys of a Zarr hierarchy, and map tiles."""

from __future__ import annotations

import hashlib
import math
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import numpy as np
from starlette.responses import Response

from infinite_tensor.engine.assemble import Cost, cost_of
from infinite_tensor.engine.chain import Node, chain_of, node_of
from infinite_tensor.engine.reads import DROPPING
from infinite_tensor.errors import TileAccessError, ValidationError
from infinite_tensor.filling.invalidate import forget
from infinite_tensor.geometry.regions import boxes_inside, parse
from infinite_tensor.opening import extent_of
from infinite_tensor.pipelines.pyramid import method_for, stored_levels
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.stopping import Stopped
from infinite_tensor.support.tables import plain
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore
from infinite_tensor.values.coarse import Coarsening
from infinite_tensor.views.colours import Array, Labels
from infinite_tensor.views.face import FaceStore, store_of_levels
from infinite_tensor.views.frame import Frame, as_numpy, numpy_dtype
from infinite_tensor.views.metadata import array_name_of
from infinite_tensor.views.painter import Painter
from infinite_tensor.views.plane import Plane, Tile
from infinite_tensor.views.server.boxes import MOST_BYTES, asked, encoded, picture
from infinite_tensor.views.server.maptiles import Colours, samples, tiles_of

_TILE = re.compile(r"(0|-[1-9]\d?)/(0|-?[1-9]\d{0,15})/(0|-?[1-9]\d{0,15})\.png")
_AT = re.compile(r"-?[0-9]{1,15}(?:,-?[0-9]{1,15}){0,30}")
_LONGEST = 2**30
"""Maximum number of pixels along a side. Clients count in 32 bits."""
_LEVELS = 8
"""Number of levels for an unbounded tensor without stored levels."""
_MOST_PLANNED = 2**14
"""Maximum number of windows to look up for counting missing windows. Larger counts are estimated."""
_LEVELS_BYTES = 64 * 2**20
_AGE_SECONDS = 1.0
"""How long an answer may lag behind what other processes drop."""
_UNFIT = 422
_LONGEST_REASON = 500
_MOST_REASONS = 100
"""How many reasons are printed for a tensor."""
MOST_PIXELS = 2**24
"""The largest number of pixels computed for one response, if windows are not limited."""
_PASSING = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


def answered(
    body: bytes | memoryview, kind: str, *, passing: bool = False, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a successful response.

    Clients may cache the response. With ``passing=True`` they may not: a map tile with missing pixels will change.
    """
    if passing:
        return Response(body, 200, _PASSING, kind)
    etag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    return Response(body, 200, _PASSING | {"Cache-Control": "no-cache", "ETag": etag} | {**(headers or {})}, kind)


def refused(status: int, why: object) -> Response:
    """Return an error response with the reason `why`, also in a header, because some clients hide the body."""
    reason = " ".join(plain(str(why)).encode("ascii", "replace").decode().split())[:_LONGEST_REASON]
    return Response(f"{why}\n", status, _PASSING | {"X-Reason": reason}, "text/plain")


@dataclass(frozen=True)
class Settings:
    """Settings for all tensors.

    Attributes
    ----------
    region : region or None
        The pixels of the Zarr hierarchy; None for all of a finite tensor, or all stored pixels of an unbounded tensor.
    max_windows : int or None
        The largest number of windows computed for one response. None to limit their pixels instead.
    low, high : float or None
        The values at the two ends of the colour scale; None to choose them by the pixels.
    """

    region: Any = None
    max_windows: int | None = None
    low: float | None = None
    high: float | None = None

    def allows(self, cost: Cost) -> bool:
        """Whether so much may be computed for one response."""
        return cost.pixels <= MOST_PIXELS if self.max_windows is None else cost.windows <= self.max_windows

    def told(self, cost: Cost) -> str:
        """Say why so much may not be computed."""
        most = f"{MOST_PIXELS:,} pixels" if self.max_windows is None else f"{self.max_windows:,} windows"
        return (
            f"this answer needs {cost.windows:,} windows with {cost.pixels:,} pixels, but at most {most} are computed "
            "for one answer; ask for less, or start the server with another limit, --max-windows"
        )


class Served:
    """A tensor as seen by clients, as it is in its stores now.

    The first request opens the tensor, and therefore takes longest. At most a second after any process has dropped
    stored pixels of the tensor or of a tensor upstream, they are no longer answered from memory.

    Parameters
    ----------
    opened : callable
        Opens and returns the tensor. It is called again after the tensor was cleared or recreated.
    settings : Settings
        The settings that apply to all tensors.
    """

    def __init__(self, opened: Callable[[], InfiniteTensor], settings: Settings) -> None:
        self._opened = opened
        self._settings = settings
        self._lock = threading.Lock()
        self._content: _Content | None = None
        self._states: dict[Node, tuple[str, str] | None] = {}
        self._looked = (0.0, 0)
        self._reasons: set[str | None] = set()

    def answer(self, path: str, query: str, *, compute: bool) -> Response | None:
        """Answer a request for `path`.

        Return None if pixels must be computed but `compute` is False.
        """
        try:
            found = self.content().answer(path, query, compute=compute)
            return found if found is None else self._told(found)
        except Stopped:
            return refused(503, "the request was cancelled")
        except BaseException as error:  # noqa: BLE001  (what an f raises must not end the server)
            # Requests are checked before anything is computed, so a later ValidationError comes from f.
            if isinstance(error, TileAccessError) or (isinstance(error, ValidationError) and not compute):
                return self._told(refused(422, error))
            traceback.print_exception(error)
            return refused(500, f"{type(error).__name__}: see the log of the server")

    def _told(self, answer: Response) -> Response:
        """Print why an answer is refused, once for each reason: many clients show only the status."""
        reason = answer.headers.get("x-reason")
        if answer.status_code == _UNFIT and reason not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons.add(reason)
            sys.stderr.write(f"{self._content.tensor.tensor_id if self._content else 'a tensor'}: {reason}\n")
        return answer

    def flush(self) -> None:
        """Store pending results."""
        if self._content is not None:
            self._content.tensor.tile_store.flush()

    def content(self) -> _Content:
        """Return the opened tensor, without what was dropped from its stores."""
        with self._lock:
            now, drops = time.monotonic(), DROPPING.count
            if self._content is not None and now < self._looked[0] + _AGE_SECONDS and drops == self._looked[1]:
                return self._content
            states = {node: node.contents.generation(node.spec) for node in self._states}
            changed = [node for node, state in states.items() if state != self._states[node]]
            forget(changed)
            if self._content is None or any(_incarnation(states[n]) != _incarnation(self._states[n]) for n in changed):
                tensor = self._opened()
                states = {node: node.contents.generation(node.spec) for node in chain_of([node_of(tensor)])}
                self._content = _Content(tensor, self._settings)
            # `forget` counts as a drop.
            self._states, self._looked = states, (now, DROPPING.count)
            return self._content


def _incarnation(state: tuple[str, str] | None) -> str | None:
    return None if state is None else state[0]


class _Content:
    """An opened tensor, what clients see of it, and how it is drawn.

    Parameters
    ----------
    tensor : InfiniteTensor
        The tensor.
    settings : Settings
        The settings that apply to all tensors.
    """

    def __init__(self, tensor: InfiniteTensor, settings: Settings) -> None:
        self.tensor = tensor
        self._settings = settings
        self._region = settings.region
        if self._region is None and None in tensor.shape:
            # Now, before clients have pixels computed far away.
            self._region = extent_of(tensor)
        # Two locks, because colours may be chosen by computing windows, and keys must not wait for that.
        self._facing, self._lock = threading.Lock(), threading.Lock()

    def answer(self, path: str, query: str, *, compute: bool) -> Response | None:
        """Answer a request; see `Served.answer`."""
        if path == "box":
            return self._box(query, compute=compute)
        tile = _TILE.fullmatch(path)
        return self._map_tile(tile, query, compute=compute) if tile else self._key(path, compute=compute)

    # Zarr.

    @cached_property
    def _face(self) -> FaceStore:
        region = self._region
        if region is None and None in self.tensor.shape:
            raise ValidationError(
                "this unbounded tensor had no stored pixels to show; start the server with a region, as in "
                '--region "0:512,0:512"'
            )
        frame = Frame.of(self.tensor, region)
        if max(frame.shape) > _LONGEST:
            raise ValidationError(
                f"the region has shape {frame.shape}, but clients support at most {_LONGEST} pixels a side; start the "
                "server with a smaller --region"
            )
        try:
            return store_of_levels(self.tensor, region, stored_levels(self.tensor))
        except ValidationError:
            # OME-Zarr does not allow the dimensions.
            return FaceStore({f"s0/{array_name_of(self.tensor)}": frame.named()}, {})

    def _key(self, key: str, *, compute: bool) -> Response | None:
        with self._facing:
            store = self._face
        document, chunk = store.document(key), store.chunk_of(key)
        if document is not None:
            return answered(document, "application/json" if key.endswith(".json") else "application/octet-stream")
        if chunk is None:
            return refused(404, "there is no such key")
        frame, index = chunk
        cost = _NOTHING if compute else _cost(frame.tensor, frame.box_of(index), self._settings)
        if not self._settings.allows(cost):
            return refused(_UNFIT, self._settings.told(cost))
        return None if cost.windows else answered(frame.chunk(index), "application/octet-stream")

    # Boxes.

    def _box(self, query: str, *, compute: bool) -> Response | None:
        region, form = asked(query, self.tensor)
        selection = parse(region, self.tensor.shape, self.tensor.dims)
        nbytes = math.prod(selection.size) * self.tensor.dtype.itemsize
        if nbytes > MOST_BYTES:
            return refused(_UNFIT, f"a box may have {MOST_BYTES:,} bytes, but this one has {nbytes:,}; ask for less")
        cost = _NOTHING if compute or 0 in selection.size else _cost(self.tensor, region, self._settings)
        if not self._settings.allows(cost):
            return refused(_UNFIT, self._settings.told(cost))
        # Choosing colours may require computing windows.
        if cost.windows or (form == "png" and "_drawing" not in vars(self) and not compute):
            return None
        pixels = as_numpy(self.tensor[region])
        if form == "png":
            with self._lock:
                _, colours = self._drawing
            return answered(picture(pixels, selection.squeezed, self._plane, self.tensor.dims, colours), "image/png")
        body, headers = encoded(pixels, form)
        return answered(body, "application/octet-stream", headers=headers)

    # Map tiles.

    @cached_property
    def _plane(self) -> Plane:
        return Plane.of(self.tensor.shape, self.tensor.dims)

    @cached_property
    def _labels(self) -> Labels:
        return Labels.of(node_of(self.tensor).spec.definition.meaning)

    @cached_property
    def _drawing(self) -> tuple[Painter, Colours]:
        pixels, is_rgb = samples(self.tensor, self._plane, self._sample), self._plane.colours is not None
        return self._drawing_in(Colours.of(pixels, self._settings.low, self._settings.high, self._labels, rgb=is_rgb))

    def _sample(self, region: Any) -> Array | None:
        try:
            is_cheap = self._settings.allows(_cost(self.tensor, region, self._settings))
            return as_numpy(self.tensor[region]) if is_cheap else None
        except TileAccessError:
            return None

    def _drawing_in(self, colours: Colours) -> tuple[Painter, Colours]:
        """Return a painter of the tensor and its levels, and `colours`.

        If no levels are stored, create levels in memory. The method depends on `colours`: the mean suits numbers, but
        not labels.
        """
        tensor = self.tensor
        levels = stored_levels(tensor)
        if not levels:
            number = _LEVELS if None in tensor.shape else None
            method = method_for(tensor, labels=colours.kind == "labels")
            # pyramid() requires dimension names of space, if there are names.
            with suppress(ValidationError):
                levels = tensor.pyramid(number, method, MemoryTileStore(cache_size_bytes=_LEVELS_BYTES))
        return Painter(tensor, levels), colours

    def _map_tile(self, found: re.Match[str], query: str, *, compute: bool) -> Response | None:
        zoom, column, row = map(int, found.groups())
        plane, tile = self._plane.placed(_places(query)), Tile(-zoom, row, column)
        if "_drawing" in vars(self):
            return self._drawn(plane, tile, compute=compute)
        # The colours are not chosen yet, and choosing may require computing windows.
        return self._drawn_anew(plane, tile, compute=True) if compute else None

    def _drawn_anew(self, plane: Plane, tile: Tile, *, compute: bool) -> Response | None:
        """Draw a map tile from stored pixels, or else compute the pixels.

        Return None if pixels must be computed but `compute` is False.
        """
        return self._drawn(plane, tile, compute=False) or (self._drawn(plane, tile, compute=True) if compute else None)

    def _drawn(self, plane: Plane, tile: Tile, *, compute: bool) -> Response | None:
        with self._lock:
            painter, colours = self._drawing
        box = tile.box(plane.extents)
        if tile.level >= len(painter.levels) or box is None:
            return refused(404, "there are no pixels")
        level, region = painter.levels[tile.level], plane.region(box, painter.scales[tile.level])
        cost = _NOTHING if compute else _cost(level, region, self._settings)
        if cost.windows and self._settings.allows(cost) and level.f is not None:
            return None
        try:
            picture = painter.paint(plane, tile, compute=not cost.windows)
        except TileAccessError:
            # An upstream tensor is neither stored nor computable.
            picture = painter.paint(plane, tile, compute=False)
        if colours.kind == "labels" and not painter.labels:
            with self._lock:
                if self._drawing[-1] is colours:
                    values = [*picture.values[np.isfinite(picture.values)], *colours.ends]
                    parts = [np.array(values, numpy_dtype(self.tensor.dtype))]
                    vars(self)["_drawing"] = self._drawing_in(Colours.of(parts, None, None, self._labels, rgb=False))
            return self._drawn_anew(plane, tile, compute=compute)
        return answered(colours.png(picture.values, picture.missing), "image/png", passing=picture.state == "partial")


_NOTHING = Cost(0, 0)


def _cost(tensor: InfiniteTensor, region: Any, settings: Settings) -> Cost:
    """Return what must be computed for a region.

    Return an estimate if there are too many windows to look up.
    """
    selection = parse(region, tensor.shape)
    boxes = boxes_inside(selection, tensor.shape)
    # This check takes less time than counting windows.
    if node_of(tensor).computation.formula is None and not any(tensor.coverage(b, "missing").any() for b in boxes):
        return _NOTHING
    most = max(settings.max_windows or 0, _MOST_PLANNED)
    bound = _bound(tensor, [*zip(selection.start, selection.stop, strict=True)], most)
    if bound.windows > most:
        return bound
    try:
        return cost_of(node_of(tensor), selection)
    except TileAccessError:
        # Some windows cannot be computed. Reading them raises an error with the reason.
        return bound


def _bound(level: InfiniteTensor, spans: Sequence[tuple[int, int]], most: int) -> Cost:
    """Estimate what must be computed for a box of a level.

    If the level is made from a finer level, and some tiles of the finer level are missing, count the windows of the
    finer level. Continue like this down to the tensor itself, or until a count is above the limit `most`.
    """
    strides = level.output_window.stride
    count = math.prod([-(-(b - a) // n) for (a, b), n in zip(spans, strides, strict=True)])
    cost, made = Cost.of(count, level.output_window.size), level.f
    if count > most or not isinstance(made, Coarsening):
        return cost
    scaled = [(a * n, b * n) for (a, b), n in zip(spans, made.factor, strict=True)]
    below = [(a, b if n is None else min(b, n)) for (a, b), n in zip(scaled, made.shape, strict=True)]
    (finer,), box = level.args, tuple([slice(*span) for span in below])
    is_stored = tiles_of(finer, box) <= most and not finer.coverage(box, "missing").any()
    return cost if is_stored else _bound(finer, below, most)


def _places(query: str) -> list[int]:
    """Parse the index along each dimension besides rows, columns and colours, as in ``at=2,5``."""
    for given in parse_qs(query, keep_blank_values=True).get("at", ())[-1:]:
        if not _AT.fullmatch(given):
            raise ValidationError(
                "at=... must have one int for each dimension besides rows, columns and colours, as in at=2,5, got "
                f"{given!r:.80}"
            )
        return list(map(int, given.split(",")))
    return []
