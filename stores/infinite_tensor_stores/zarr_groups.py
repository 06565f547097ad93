"""Groups of tensors in a zarr Store: a Zarr group each, without arrays, whose attributes name the tensors."""

from __future__ import annotations

from typing import Any

from zarr.abc.store import Store

from infinite_tensor.tilestore.failures import damaged_group, warn_of_damage
from infinite_tensor_stores.documents import intact, sealed
from infinite_tensor_stores.names import GROUP, id_of, name_of
from infinite_tensor_stores.zarr_definitions import check_root
from infinite_tensor_stores.zarr_layout import DOCUMENT, attributes_in, group_document
from infinite_tensor_stores.zarr_listing import children
from infinite_tensor_stores.zarr_loop import sync
from infinite_tensor_stores.zarr_objects import create, get_many
from infinite_tensor_stores.zarr_ours import check_free, check_ours, is_of_others


def read_group(store: Store, group_id: str, owner: object) -> dict[str, Any] | None:
    """The definition of a group, None where there is none; StoreError where it is damaged, or the store gone."""
    key = _key(group_id)
    (document,) = get_many(store, [key])
    if document is None:
        check_root(store, owner)
        return None
    try:
        return intact(attributes_in(document))
    except ValueError as error:
        check_ours(store, name_of(group_id, GROUP), document, f"group {group_id!r}", owner)
        raise damaged_group(owner, group_id, key, error) from error


def write_group(store: Store, group_id: str, definition: dict[str, Any], owner: object) -> None:
    """Create a group; the first one to do so wins. StoreError where something lies that is not of this library."""
    check_free(store, name_of(group_id, GROUP), f"group {group_id!r}", owner)
    sync(create, store, _key(group_id), group_document(sealed(definition)))


def delete_group(store: Store, group_id: str, owner: object) -> None:
    """Delete a group; one that does not exist is no error. StoreError for what is not of this library."""
    (document,) = get_many(store, [_key(group_id)])
    if document is not None:
        check_ours(store, name_of(group_id, GROUP), document, f"group {group_id!r}", owner)
    sync(store.delete, _key(group_id))


def groups_in(store: Store, concurrency: int, owner: object) -> list[str]:
    """Ids of the groups that are defined."""
    check_root(store, owner)
    names = [name for name in children(store, "") if name.startswith(GROUP)]
    documents = get_many(store, [f"{name}/{DOCUMENT}" for name in names], concurrency)
    stored = {name: data for name, data in zip(names, documents, strict=True) if data is not None}
    found = [_id_in(store, data, name, owner) for name, data in stored.items()]
    return [group_id for group_id in found if group_id is not None]


def _key(group_id: str) -> str:
    return f"{name_of(group_id, GROUP)}/{DOCUMENT}"


def _id_in(store: Store, document: bytes, name: str, owner: object) -> str | None:
    try:
        group_id = intact(attributes_in(document)).get("group_id")
        if not isinstance(group_id, str) or name_of(group_id, GROUP) != name:
            raise ValueError(f"it defines group {group_id!r:.200}")
    except ValueError as error:
        if is_of_others(store, name, document):
            return None
        told = id_of(name, GROUP)
        if told is None:
            warn_of_damage(owner, f"{name}/{DOCUMENT} is damaged ({error}), and does not tell which group it defined")
        return told
    return group_id
