"""What Zarr, and programs that read it, take as the name of an array or a group."""

from __future__ import annotations

import re

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.support.nested import Key, show
from infinite_tensor.tensor import InfiniteTensor

DOCUMENT = "zarr.json"
UNFINISHED = "export.json"
"""What an export that has not come to its end has in its root, in place of the document."""

_PLAIN_NAME = re.compile(r"[^\W_][\w.-]*")


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
