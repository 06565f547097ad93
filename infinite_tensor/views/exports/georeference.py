"""Where on Earth the pixels of a tensor are: those of a raster, and of what is computed from one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import TensorWindow, followed
from infinite_tensor.pipelines.sources import RasterTensor
from infinite_tensor.tensor import InfiniteTensor

_ROWS, _COLUMNS = 1, 2
"""The dimensions of a raster."""
_SAME_SIZE, _SAME_PLACE = 1e-6, 1e-3
"""By no more does rounding change the size of a pixel, and where the first one lies, in pixels."""


@dataclass(frozen=True)
class Georeference:
    """How pixels become coordinates.

    Attributes
    ----------
    crs : rasterio.crs.CRS or None
        Of the coordinates.
    transform : affine.Affine
        From (column, row) to coordinates.
    nodata : number or None
        The value of pixels without data.
    """

    crs: Any
    transform: Any
    nodata: Any

    def moved(self, x: float, y: float, scale: tuple[float, float] = (1, 1)) -> Georeference:
        """The same for pixels of other sizes, of which the first one begins at (`x`, `y`) in these."""
        a, b, c, d, e, f = self.transform[:6]
        across, down = scale
        transform = type(self.transform)(
            a * across, b * down, a * x + b * y + c, d * across, e * down, d * x + e * y + f
        )
        return replace(self, transform=transform)

    def agrees_with(self, other: Georeference) -> bool:
        """Whether pixels lie at the same places, but for rounding."""
        if self.crs != other.crs:
            return False
        a, b, c, d, e, f = (abs(p - q) for p, q in zip(self.transform[:6], other.transform[:6], strict=True))
        # Ten metres, say, or a billionth of a degree.
        pixel = math.hypot(self.transform.a, self.transform.d)
        return bool(max(a, b, d, e) <= _SAME_SIZE * pixel and max(c, f) <= _SAME_PLACE * pixel)


def georeference_of(tensor: InfiniteTensor, rows: int, columns: int) -> Georeference | None:
    """Where the pixels of a tensor are, along two of its dimensions; None where no raster is upstream that says so.

    The middle of a window lies over the middle of what it reads, at a scale that follows from the strides.

    Raises
    ------
    ValidationError
        If it is computed from rasters whose pixels lie elsewhere.
    """
    if isinstance(tensor, RasterTensor):
        known = tensor.crs is not None or not tensor.transform.is_identity
        found = Georeference(tensor.crs, tensor.transform, tensor.nodata)
        return found if known and (rows, columns) == (_ROWS, _COLUMNS) else None
    every = list(_upstream(tensor, rows, columns))
    for other in every[1:]:
        if not every[0].agrees_with(other):
            raise ValidationError(
                f"tensor {tensor.tensor_id!r} is computed from rasters that lie in different places, so it has none of "
                f"its own: {every[0].crs} {every[0].transform!r}, and {other.crs} {other.transform!r}; write .npy or "
                ".zarr, or export one of the rasters"
            )
    return every[0] if every else None


def _upstream(tensor: InfiniteTensor, rows: int, columns: int) -> Iterator[Georeference]:
    if not tensor.args:
        # It may have been opened by its id, which finds no args but those in its store.
        return
    for arg, window in zip(tensor.args, tensor.args_windows, strict=True):
        across = [_dimension_along(tensor.output_window, d, window) for d in (columns, rows)]
        if None not in across:
            column, row = (d or 0 for d in across)
            found = georeference_of(arg, row, column)
            if found is not None:
                x = _along(tensor.output_window, columns, window, column)
                y = _along(tensor.output_window, rows, window, row)
                yield replace(found.moved(x[1], y[1], (x[0], y[0])), nodata=None)


def _dimension_along(output: TensorWindow, d: int, window: TensorWindow) -> int | None:
    """The only dimension of an arg along which its windows move with a dimension of the output."""
    number = followed(output)[d]
    along = [dim for dim, follows in enumerate(followed(window)) if follows == number and number is not None]
    return along[0] if len(along) == 1 else None


def _along(output: TensorWindow, d: int, window: TensorWindow, dim: int) -> tuple[float, float]:
    """Pixels of an arg along one of the output, and where the first one of the output begins."""
    scale = window.stride[dim] / output.stride[d]
    middle, middle_of_arg = output.offset[d] + output.size[d] / 2, window.offset[dim] + window.size[dim] / 2
    return scale, middle_of_arg - middle * scale
