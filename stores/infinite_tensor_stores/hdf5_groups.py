"""Groups of tensors in an HDF5 file: a dataset each, JSON that names the tensors, all below one HDF5 group.

The lock of the file is held by the caller.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from infinite_tensor.tilestore.failures import damaged_group
from infinite_tensor_stores.documents import intact, parsed, sealed
from infinite_tensor_stores.hdf5_members import FOLDER, delete_group, document_at, folder_for, groups_in
from infinite_tensor_stores.hdf5_space import reserve
from infinite_tensor_stores.names import GROUP, id_of, name_of


def read_group(h5: Any, group_id: str, owner: object) -> dict[str, Any] | None:
    """The definition of a group, None where there is none; StoreError where it is damaged."""
    name = name_of(group_id, GROUP)
    document = document_at(h5, name)
    try:
        return None if document is None else intact(_parsed(document))
    except ValueError as error:
        raise damaged_group(owner, group_id, f"/{FOLDER}/{name}", error) from error


def write_group(h5: Any, group_id: str, definition: dict[str, Any]) -> None:
    """Create a group, unless there is one; OSError where there is no place."""
    name = name_of(group_id, GROUP)
    if document_at(h5, name) is None:
        document = json.dumps(sealed(definition), allow_nan=False)
        reserve(h5, len(document))
        folder_for(h5, name).create_dataset(name, data=np.bytes_(document))


def clear_group(h5: Any, group_id: str) -> None:
    """Delete a group; one that does not exist is no error."""
    name = name_of(group_id, GROUP)
    if document_at(h5, name) is not None:
        delete_group(h5, name)


def list_groups(h5: Any) -> list[str]:
    """Ids of the groups that are defined."""
    found = [_id_in(document_at(h5, name), name) for name in groups_in(h5)]
    return [group_id for group_id in found if group_id is not None]


def _id_in(document: Any, name: str) -> str | None:
    try:
        group_id = intact(_parsed(document)).get("group_id")
    except ValueError:
        return id_of(name, GROUP)
    return group_id if isinstance(group_id, str) and name_of(group_id, GROUP) == name else id_of(name, GROUP)


def _parsed(document: Any) -> dict[str, Any]:
    try:
        content = bytes(document[()])
    except Exception as error:  # (h5py raises what it pleases on a damaged file)
        raise ValueError(f"it cannot be read: {error}") from error
    return parsed(content)
