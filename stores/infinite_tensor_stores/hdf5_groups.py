"""Groups of tensors in an HDF5 file: a dataset each, JSON that names the tensors, all below one HDF5 group.

The lock of the file is held by the caller.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from infinite_tensor.tilestore.failures import damaged_group
from infinite_tensor_stores.documents import intact, parsed, sealed
from infinite_tensor_stores.hdf5_space import reserve
from infinite_tensor_stores.names import GROUP, id_of, name_of

_FOLDER = "groups"


def read_group(h5: Any, group_id: str, owner: object) -> dict[str, Any] | None:
    """The definition of a group, None where there is none; StoreError where it is damaged."""
    name = name_of(group_id, GROUP)
    if _FOLDER not in h5 or name not in h5[_FOLDER]:
        return None
    try:
        return intact(_parsed(h5[_FOLDER], name))
    except ValueError as error:
        raise damaged_group(owner, group_id, f"/{_FOLDER}/{name}", error) from error


def write_group(h5: Any, group_id: str, definition: dict[str, Any]) -> None:
    """Create a group, unless there is one."""
    name, folder = name_of(group_id, GROUP), h5.require_group(_FOLDER)
    if name not in folder:
        document = json.dumps(sealed(definition), allow_nan=False)
        reserve(h5, len(document))
        folder.create_dataset(name, data=np.bytes_(document))


def delete_group(h5: Any, group_id: str) -> None:
    """Delete a group; one that does not exist is no error."""
    name = name_of(group_id, GROUP)
    if _FOLDER in h5 and name in h5[_FOLDER]:
        del h5[_FOLDER][name]


def groups_in(h5: Any) -> list[str]:
    """Ids of the groups that are defined."""
    names = list(h5[_FOLDER]) if _FOLDER in h5 else []
    found = [_id_in(h5[_FOLDER], name) for name in names if name.startswith(GROUP)]
    return [group_id for group_id in found if group_id is not None]


def _id_in(folder: Any, name: str) -> str | None:
    try:
        group_id = intact(_parsed(folder, name)).get("group_id")
    except ValueError:
        return id_of(name, GROUP)
    return group_id if isinstance(group_id, str) and name_of(group_id, GROUP) == name else id_of(name, GROUP)


def _parsed(folder: Any, name: str) -> dict[str, Any]:
    try:
        document = bytes(folder[name][()])
    except Exception as error:  # (h5py raises what it pleases on a damaged file)
        raise ValueError(f"it cannot be read: {error}") from error
    return parsed(document)
