"""Boxes of pixels for programs: what is asked for, and how it is sent."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

import numpy as np

from infinite_tensor.errors import ValidationError
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.colours import Array
from infinite_tensor.views.plane import COLOURS, Plane
from infinite_tensor.views.server.maptiles import Colours

MOST_BYTES = 2**26
"""Maximum size of a box."""
_SPAN = re.compile(r"(-?[0-9]{1,20})(?::(-?[0-9]{1,20}))?")
_FORMATS = ("npy", "raw", "png")


def asked(query: str, tensor: InfiniteTensor) -> tuple[tuple[int | slice, ...], str]:
    """Parse the query of a box, as in ``y=0:256&x=-5&format=raw``: the region, and the format.

    Raise ValidationError if it is not one. A finite dimension may be left out.
    """
    given = {name: values[-1] for name, values in parse_qs(query, keep_blank_values=True).items()}
    form = given.pop("format", _FORMATS[0])
    unknown = [*given.keys() - {*tensor.dims}]
    if unknown or form not in _FORMATS:
        example = "&".join(f"{name}=0:256" for name in tensor.dims)
        raise ValidationError(
            f"the query of a box must have ranges of {[*tensor.dims]} and a format, npy, raw or png, as in "
            f"{example}&format=npy, got {unknown or form!r:.80}"
        )
    region: list[int | slice] = []
    for name, extent in zip(tensor.dims, tensor.shape, strict=True):
        span = _SPAN.fullmatch(given.get(name, "" if extent is None else f"0:{extent}"))
        if span is None:
            raise ValidationError(
                f"{name} must be a range of pixels or a pixel, as in {name}=-128:128 or {name}=5, got "
                f"{given.get(name)!r:.80}"
            )
        first, last = span.groups()
        region.append(int(first) if last is None else slice(int(first), int(last)))
    return tuple(region), form


def encoded(pixels: Array, form: str) -> tuple[bytes, Mapping[str, str]]:
    """Return pixels as the bytes of a file of numpy or as they are in memory, and headers with shape and dtype."""
    if form == "raw":
        body = np.ascontiguousarray(pixels).tobytes()
    else:
        written = io.BytesIO()
        np.save(written, pixels, allow_pickle=False)
        body = written.getvalue()
    return body, {"X-Shape": ",".join(map(str, pixels.shape)), "X-Dtype": pixels.dtype.str}


def picture(pixels: Array, squeezed: Sequence[int], plane: Plane, dims: Sequence[str], colours: Colours) -> bytes:
    """Return pixels as PNG, in the colours of map tiles. `squeezed` dimensions are not in `pixels`.

    Raise ValidationError if others than rows, columns and colours are left, or some of these are not.
    """
    left = [d for d in range(len(dims)) if d not in squeezed]
    wanted = [plane.rows, plane.columns, *([] if plane.colours is None else [plane.colours])]
    if sorted(left) != sorted(wanted) or 0 in pixels.shape:
        raise ValidationError(
            f"a png shows slices of {[dims[d] for d in wanted]} that have pixels, got slices of "
            f"{[dims[d] for d in left]} with shape {pixels.shape}; give ints for all other dimensions, as in z=0"
        )
    values = pixels.transpose([left.index(d) for d in wanted])
    values = values if plane.colours is None else values[..., :COLOURS]
    return colours.png(values, np.zeros(values.shape[:2], bool), values.shape[:2])
