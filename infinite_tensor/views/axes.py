"""Which dimensions of a tensor a picture shows, and where it stands along the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from infinite_tensor.tensor import InfiniteTensor

_CHANNELS = frozenset(
    ("c", "ch", "channel", "channels", "band", "bands", "class", "classes", "rgb", "rgba", "colour", "color", "feature")
)
_COLOUR_COUNTS = (3, 4)
_COLOUR_DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Axes:
    """The dimensions of a picture.

    Attributes
    ----------
    channels : int or None
        The dimension of channels; None where there is none.
    rows, columns : int or None
        Those that it extends along. One that extends along one alone has columns.
    """

    channels: int | None
    rows: int | None
    columns: int | None

    @classmethod
    def of(cls, tensor: InfiniteTensor) -> Axes:
        """The axes of a tensor: rows and columns are the last two dimensions that are no channels."""
        channels = _channels_of(tensor)
        rows, columns = [None, None, *(d for d in range(tensor.ndim) if d != channels)][-2:]
        return cls(channels, rows, columns)

    def spans(self, d: int) -> bool:
        """Whether it extends along a dimension."""
        return d in (self.rows, self.columns)

    def is_colour(self, tensor: InfiniteTensor) -> bool:
        """Whether the channels are those of a picture in colours."""
        return (
            self.channels is not None
            and tensor.shape[self.channels] == _COLOUR_COUNTS[0]
            and tensor.dtype in _COLOUR_DTYPES
        )


def _channels_of(tensor: InfiniteTensor) -> int | None:
    """The dimension that is called so; of three without names, the first that is finite, or a last one of colours."""
    named = [d for d, name in enumerate(tensor.dims) if name.lower() in _CHANNELS and tensor.shape[d] is not None]
    if named or tensor.ndim != 3 or tensor.dims != ("dim_0", "dim_1", "dim_2"):
        return named[0] if named else None
    if tensor.shape[2] in _COLOUR_COUNTS and tensor.shape[0] not in _COLOUR_COUNTS:
        return 2
    return None if tensor.shape[0] is None else 0


def standing(extent: int | None) -> int:
    """Where a picture stands along a dimension that it does not show: at the origin, or in the middle."""
    return 0 if extent is None else extent // 2
