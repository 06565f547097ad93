"""The definitions of tensors and groups in an HDF5 file: created, read, listed and deleted.

A group of tensors is a dataset, JSON that names the tensors; all of them lie below one HDF5 group. The owner of the
file is passed along for its repr, which stands in messages. The caller holds the lock of the file.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.failures import damaged_definition, damaged_group, vanished, warn_of_damage
from infinite_tensor_stores.documents import GROUP, TENSOR, group_id_in, id_in, intact, name_of, parsed, sealed
from infinite_tensor_stores.hdf5.file import SharedFile, reserve
from infinite_tensor_stores.hdf5.members import (
    FOLDER,
    delete_group,
    document_at,
    folder_for,
    group_at,
    groups_in,
    names_in,
    room_for,
    tensor_at,
)
from infinite_tensor_stores.hdf5.slots import DEFINITION, TileSlots, definition_in


def read_definition(file: SharedFile, tensor_id: str, owner: object) -> dict[str, Any] | None:
    """The definition of a tensor, None where there is none; StoreError where it is damaged, or the file gone."""
    check_there(file, owner)
    name = name_of(tensor_id)
    try:
        return _definition_at(file.h5, name)
    except ValueError as error:
        raise damaged_definition(owner, tensor_id, f"/{name}/{DEFINITION}", error) from error


def write_definition(
    file: SharedFile, tensor_id: str, definition: Mapping[str, Any], filters: Mapping[str, Any]
) -> None:
    """Create a tensor, its datasets compressed by `filters`, unless there is one; OSError where there is no place."""
    name = name_of(tensor_id)
    group = tensor_at(file.h5, name)
    if group is not None and DEFINITION in group:
        return
    reserve(file.h5, 0)
    file.delete(name)
    TileSlots.create(room_for(file.h5, name), sealed({**definition, "incarnation": secrets.token_hex(8)}), filters)


def is_defined(file: SharedFile, tensor_id: str) -> bool:
    """Whether there is a definition, damaged or not."""
    group = tensor_at(file.h5, name_of(tensor_id))
    return group is not None and DEFINITION in group


def list_tensors(file: SharedFile, owner: object) -> list[str]:
    """Ids of the tensors that are defined."""
    check_there(file, owner)
    found = [
        id_in(partial(_tensor_id, file.h5, name), name, f"/{name}/{DEFINITION}", owner)
        for name in names_in(file.h5)
        if name.startswith(TENSOR)
    ]
    return [tensor_id for tensor_id in found if tensor_id is not None]


def definitions_in(file: SharedFile, owner: object) -> dict[str, dict[str, Any]]:
    """The definitions of tensors, by their ids, without damaged ones."""
    check_there(file, owner)
    found = {}
    for name in [name for name in names_in(file.h5) if name.startswith(TENSOR)]:
        try:
            definition = _definition_at(file.h5, name)
        except (ValueError, StoreError) as error:
            warn_of_damage(owner, f"the definition in /{name}/{DEFINITION} cannot be read ({error})")
        else:
            if definition is not None:
                found[str(definition["tensor_id"])] = definition
    return found


def check_there(file: SharedFile, owner: object) -> None:
    """StoreError if the file has vanished."""
    if file.vanished:
        raise vanished(owner)


def _definition_at(h5: Any, name: str) -> dict[str, Any] | None:
    """The definition of the tensor in a group, None where there is none; ValueError if it is damaged."""
    group = group_at(h5, name)
    try:
        return None if group is None else definition_in(group)
    except ValueError:
        # Looked at only now: it takes longer than reading the definition.
        if tensor_at(h5, name) is None:
            return None
        raise


def _tensor_id(h5: Any, name: str) -> str | None:
    definition = _definition_at(h5, name)
    return None if definition is None else str(definition["tensor_id"])


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


def list_groups(h5: Any, owner: object) -> list[str]:
    """Ids of the groups that are defined."""
    found = [id_in(partial(_group_id, h5, name), name, f"/{FOLDER}/{name}", owner) for name in groups_in(h5)]
    return [group_id for group_id in found if group_id is not None]


def _group_id(h5: Any, name: str) -> str:
    return group_id_in(_parsed(document_at(h5, name)), name)


def _parsed(document: Any) -> dict[str, Any]:
    try:
        content = bytes(document[()])
    except Exception as error:  # (h5py raises what it pleases on a damaged file)
        raise ValueError(f"it cannot be read: {error}") from error
    return parsed(content)
