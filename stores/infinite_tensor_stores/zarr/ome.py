"""What a tensor's group says to programs that read OME-Zarr 0.5 (https://ngff.openmicroscopy.org/0.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infinite_tensor.tilestore.persistent.documents import layout_of
from infinite_tensor.values.definition import Definition

OME = "ome"
"""The attribute of a group that these programs look for."""

_VERSION = "0.5"
_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
_EXAMPLES = {2: ("y", "x"), 3: ("c", "y", "x"), 4: ("c", "z", "y", "x"), 5: ("t", "c", "z", "y", "x")}


def ome_of(definition: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """The attribute of a tensor's group, or None where `why_no_ome` says why there is none.

    Parameters
    ----------
    definition : mapping
        What defines the tensor.
    path : str
        Path of its array within the group.
    """
    tensor, _ = layout_of(definition)
    if _misfit(tensor) is not None or tensor.dims is None:
        return None
    return {
        "version": _VERSION,
        "multiscales": [
            {
                "name": definition["tensor_id"],
                "axes": [{"name": name, "type": _TYPES[name]} for name in tensor.dims],
                "datasets": [
                    {
                        "path": path,
                        # A finite tensor begins at index 0 of its array, so that there is nothing to translate.
                        "coordinateTransformations": [{"type": "scale", "scale": [1.0] * len(tensor.dims)}],
                    }
                ],
            }
        ],
    }


def why_no_ome(definition: Mapping[str, Any]) -> str | None:
    """What keeps a tensor from being told of in OME-Zarr; None if nothing does."""
    return _misfit(layout_of(definition)[0])


def _misfit(tensor: Definition) -> str | None:
    ndim, dims = len(tensor.shape), tensor.dims
    if None in tensor.shape:
        return f"OME-Zarr holds finite arrays, and shape {tensor.shape} is unbounded"
    if ndim not in _EXAMPLES:
        return f"OME-Zarr holds arrays of 2 to 5 dimensions, and shape {tensor.shape} has {ndim}"
    if tensor.dtype is torch.bfloat16:
        return "its bfloat16 is stored as the uint16 of its bits, which other programs would show as numbers"
    if dims is None:
        return f"its dimensions have no names; store a new tensor with dims={_EXAMPLES[ndim]}, if that is what they are"
    if not _fit(dims):
        return (
            f"its dims are {dims}, and those of OME-Zarr are t, c, z, y and x in this order, some left out, with at "
            "least two of z, y and x"
        )
    return None


def _fit(dims: Sequence[str]) -> bool:
    in_order = [name for name in _TYPES if name in dims]
    return list(dims) == in_order and sum(_TYPES[name] == "space" for name in dims) >= 2
