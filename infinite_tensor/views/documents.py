"""What the ``zarr.json`` of a hierarchy of arrays says, by the specification of Zarr v3."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.geometry.points import Index
from infinite_tensor.values.definition import Number, json_number
from infinite_tensor.views.names import DOCUMENT


def array_document(
    shape: Index,
    chunks: Index,
    dtype: np.dtype[Any],
    dims: Sequence[str],
    attributes: Mapping[str, Any],
    fill_value: Number = 0,
    compressors: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The metadata of an array whose chunks are little-endian."""
    order = {"configuration": {"endian": "little"}} if dtype.itemsize > 1 else {}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": json_number(np.asarray(fill_value, dtype).item()),
        "codecs": [{"name": "bytes", **order}, *compressors],
        "attributes": attributes,
        "dimension_names": dims,
    }


def group_document(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def hierarchy(arrays: Mapping[str, Mapping[str, Any]], attributes: Mapping[str, Any]) -> dict[str, bytes]:
    """All documents of a group, by their keys, the root last; `arrays` holds those of its arrays by their paths."""
    nodes: dict[str, Any] = {}
    for path, document in arrays.items():
        nodes |= {above: group_document({}) for above in groups_above(path)} | {path: document}
    # xarray looks for it, and need not list the store.
    consolidated = {"kind": "inline", "must_understand": False, "metadata": nodes}
    root = group_document(attributes) | {"consolidated_metadata": consolidated}
    documents = {f"{path}/{DOCUMENT}": node for path, node in nodes.items()} | {DOCUMENT: root}
    return {key: json.dumps(document).encode() for key, document in documents.items()}


def groups_above(path: str) -> Iterator[str]:
    """The paths of the groups that an array is in, from the outermost on, but for the root."""
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def chunk_bytes(array: npt.NDArray[Any]) -> memoryview:
    """The pixels of a chunk as they are stored."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data.toreadonly()
