"""The definitions of tensors and groups in a zarr Store: created once, read, listed, and deleted with all they define.

A group of tensors is a Zarr group without arrays, whose attributes name the tensors. The owner of the store is passed
along for its repr, which stands in messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from zarr.abc.store import Store

from infinite_tensor.errors import StoreError
from infinite_tensor.tilestore.failures import damaged_definition, damaged_group, vanished, warn_of_damage
from infinite_tensor_stores.documents import (
    GROUP,
    TENSOR,
    group_id_in,
    id_in,
    intact,
    layout_of,
    name_of,
    sealed,
)
from infinite_tensor_stores.dtypes import stored_dtype
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.zarr.codec import new_codecs_of
from infinite_tensor_stores.zarr.layout import (
    DOCUMENT,
    Place,
    array_bytes,
    attributes_in,
    definition_in,
    group_document,
    incarnation_of,
    origin_of,
)
from infinite_tensor_stores.zarr.objects import children, create, delete_folder, delete_link, get_many, put_many
from infinite_tensor_stores.zarr.root import check_free, check_ours, is_of_others


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
    return _ids_in(store, _documents(store, GROUP, concurrency, owner), _group_id, owner)


def _key(group_id: str) -> str:
    return f"{name_of(group_id, GROUP)}/{DOCUMENT}"


def read_definition(store: Store, tensor_id: str, owner: object) -> dict[str, Any] | None:
    """The definition of a tensor, None where there is none; StoreError where it is damaged, or the store gone."""
    name = name_of(tensor_id)
    root, document = get_many(store, [DOCUMENT, f"{name}/{DOCUMENT}"])
    if document is None:
        _check_root(root, owner)
    try:
        return None if document is None else definition_in(document, name)
    except ValueError as error:
        assert document is not None
        check_ours(store, name, document, f"tensor {tensor_id!r}", owner)
        raise damaged_definition(owner, tensor_id, f"{name}/{DOCUMENT}", error) from error


def write_definition(
    store: Store, tensor_id: str, definition: dict[str, Any], compressors: Any, owner: object
) -> str | None:
    """Create a tensor with its array, compressed by `compressors`.

    Returns its incarnation; None where somebody else was first, whose definition is left. ValidationError for
    compressors that no new tensor may have, StoreError where something lies in its place that is not of this library.
    """
    name, (_, layout) = name_of(tensor_id), layout_of(definition)
    check_free(store, name, f"tensor {tensor_id!r}", owner)
    place = Place.of(
        sealed(
            {
                **definition,
                "incarnation": secrets.token_hex(8),
                "origin": list(origin_of(layout.shape, layout.tile_shape)),
                "codecs": new_codecs_of(stored_dtype(layout.dtype), layout.tile_shape, compressors),
            }
        )
    )
    put_many(store, {f"{place.array}/{DOCUMENT}": array_bytes(place.definition)})
    if sync(create, store, f"{name}/{DOCUMENT}", group_document(place.definition)):
        return str(place.definition["incarnation"])
    winner = read_definition(store, tensor_id, owner)
    # Storage may have hidden for a moment that the definition is ours.
    if winner is not None and winner["incarnation"] != place.definition["incarnation"]:
        sync(delete_folder, store, place.array)
    return None


def delete_tensor(store: Store, tensor_id: str, owner: object) -> None:
    """Delete everything of a tensor; one that does not exist is no error. StoreError if something else lies there."""
    name = name_of(tensor_id)
    (document,) = get_many(store, [f"{name}/{DOCUMENT}"])
    if document is None:
        return
    try:
        incarnations = {definition_in(document, name)["incarnation"]}
    except (ValueError, StoreError):
        check_ours(store, name, document, f"tensor {tensor_id!r}", owner)
        # Damaged, or of a later version.
        incarnations = {incarnation_of(folder) for folder in children(store, name)} - {None}
    if sync(delete_link, store, name):
        return
    # The definition first: without it the rest is garbage, whatever happens to this process.
    sync(store.delete, f"{name}/{DOCUMENT}")
    for incarnation in incarnations:
        for kind in ("tiles", "partial"):
            sync(delete_folder, store, f"{name}/{kind}-{incarnation}")


def tensors_in(store: Store, concurrency: int, owner: object) -> list[str]:
    """Ids of the tensors that are defined."""
    return _ids_in(store, _documents(store, TENSOR, concurrency, owner), _tensor_id, owner)


def definitions_in(store: Store, concurrency: int, owner: object) -> dict[str, dict[str, Any]]:
    """The definitions of tensors that are computed from or beside others, by their ids, without damaged ones."""
    found = {}
    for name, data in _documents(store, TENSOR, concurrency, owner).items():
        try:
            # Checking it takes far longer than reading it.
            attributes = attributes_in(data) or {}
            if attributes.get("args") != [] or "output" in attributes:
                definition = definition_in(data, name)
                found[str(definition["tensor_id"])] = definition
        except (ValueError, StoreError) as error:
            if not is_of_others(store, name, data):
                warn_of_damage(owner, f"the definition in {name}/{DOCUMENT} cannot be read ({error})")
    return found


def check_root(store: Store, owner: object) -> None:
    """StoreError if the store has vanished."""
    (document,) = get_many(store, [DOCUMENT])
    _check_root(document, owner)


def _check_root(document: bytes | None, owner: object) -> None:
    if document is None:
        raise vanished(owner)


def _documents(store: Store, kind: str, concurrency: int, owner: object) -> dict[str, bytes]:
    """What is stored as the definitions of tensors, or of groups, by the names of their Zarr groups."""
    names = [name for name in children(store, "") if name.startswith(kind)]
    keys = [DOCUMENT, *(f"{name}/{DOCUMENT}" for name in names)]
    root, *documents = get_many(store, keys, concurrency)
    _check_root(root, owner)
    return {name: data for name, data in zip(names, documents, strict=True) if data is not None}


def _ids_in(
    store: Store, documents: Mapping[str, bytes], read: Callable[[bytes, str], str], owner: object
) -> list[str]:
    """The ids that documents tell, by the names of their Zarr groups; ``read(document, name)`` reads one."""
    found = [
        id_in(partial(read, data, name), name, f"{name}/{DOCUMENT}", owner, partial(is_of_others, store, name, data))
        for name, data in documents.items()
    ]
    return [told for told in found if told is not None]


def _tensor_id(document: bytes, name: str) -> str:
    return str(definition_in(document, name)["tensor_id"])


def _group_id(document: bytes, name: str) -> str:
    return group_id_in(attributes_in(document), name)
