"""What the ``zarr.json`` of a hierarchy of arrays says, by the specification of Zarr v3, and what names it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.nested import Key, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.definition import Number, json_number

DOCUMENT = "zarr.json"
UNFINISHED = "export.json"
"""What an export that has not come to its end has in its root, in place of the document."""

_PLAIN_NAME = re.compile(r"[^\W_][\w.-]*")


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


# Names.


def plain_name_of(tensor: InfiniteTensor) -> str | None:
    """The last part of a tensor's id; None if it has a random id, or one that other programs may not take as a name."""
    last = tensor.tensor_id.rpartition("/")[2]
    return last if node_of(tensor).tensor.named and is_plain_name(last) and last not in tensor.dims else None


def array_name_of(tensor: InfiniteTensor) -> str:
    """What the array of a tensor is called where it needs a name; it has that of no dimension, as coordinates do."""
    name = plain_name_of(tensor) or "values"
    while name in tensor.dims:
        name += "_"
    return name


def is_plain_name(name: str) -> bool:
    """Whether a name is made of letters, digits, dots, hyphens and underscores, as all programs take it."""
    return _PLAIN_NAME.fullmatch(name) is not None and is_name(name)


def is_name(name: str) -> bool:
    """Whether an array or a group can have a name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return (
        re.search(r"[/\\\0]", name) is None
        and bool(name.strip("."))
        and not name.startswith("__")
        and name not in (DOCUMENT, UNFINISHED)
    )


def path_of(key: Key) -> str:
    """The path of a member of a group; ValidationError if one of its names can be none in Zarr."""
    if not all(map(is_name, key)):
        raise ValidationError(
            f"{show(key)} cannot be the path of a Zarr array: names there are valid Unicode without slashes and NUL, "
            f"are not made of dots alone, do not begin with '__', and are neither {DOCUMENT!r} nor {UNFINISHED!r}; "
            "give the tensor another name, as by TensorGroup({'another': group[key]})"
        )
    return "/".join(key)
