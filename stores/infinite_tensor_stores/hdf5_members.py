"""What in an HDF5 file is of this library, and what is somebody else's, which stays as it is.

A file may be a user's own: programs keep settings in its attributes, and arrays of their own beside ours. Of this
library is a group ``t-<id>`` that holds nothing but `MEMBERS`, or beside them a definition that is intact. The lock of
the file is held by the caller.
"""

from __future__ import annotations

from typing import Any

from infinite_tensor.errors import StoreError
from infinite_tensor_stores.hdf5_slots import COPY, DEFINITION, MEMBERS, definition_in, import_h5py
from infinite_tensor_stores.names import TENSOR


def group_at(h5: Any, name: str) -> Any | None:
    """The HDF5 group of that name; None where there is nothing, a dataset, or a link to another place."""
    h5py = import_h5py()
    found = h5[name] if isinstance(h5.get(name, getlink=True), h5py.HardLink) else None
    return found if isinstance(found, h5py.Group) else None


def tensor_at(h5: Any, name: str) -> Any | None:
    """The HDF5 group of that name if it is a tensor's, defined or not; None for anything else."""
    group = group_at(h5, name)
    if group is None:
        return None
    names = set(group)
    ours = bool(names) if names <= set(MEMBERS) else any(_is_intact(group, key) for key in (DEFINITION, COPY))
    return group if ours else None


def tensors_in(h5: Any) -> list[str]:
    """The names of all groups that are tensors', defined or not."""
    return [name for name in h5 if name.startswith(TENSOR) and tensor_at(h5, name) is not None]


def room_for(h5: Any, name: str) -> Any:
    """The HDF5 group for a new tensor; OSError where something of somebody else's lies in its place."""
    group = group_at(h5, name)
    if group is None and h5.get(name, getlink=True) is None:
        return h5.create_group(name)
    if group is None or any(member in group for member in MEMBERS):
        raise in_the_way(f"/{name}")
    return group


def delete_members(h5: Any, name: str) -> None:
    """Delete what is ours in the group of a tensor, and the group if nothing else is in it."""
    group = h5[name]
    for member in MEMBERS:
        if member in group:
            del group[member]
    if not len(group):
        del h5[name]


def in_the_way(path: str) -> OSError:
    """The error for something of somebody else's that has the name of something of ours."""
    return OSError(f"{path} is in the way, and not of this library: rename it, or choose another id")


def _is_intact(group: Any, key: str) -> bool:
    try:
        return definition_in(group, key) is not None
    except ValueError:
        return False
    except StoreError:
        # Of a later version.
        return True
