"""Reopening a group, and its tensors, from its id alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.groups.group import TensorGroup
from infinite_tensor.groups.members import members_of
from infinite_tensor.groups.saved import StoredMember, digest_of, stored_members
from infinite_tensor.support.nested import chosen, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.failures import damaged_group
from infinite_tensor.values.checks import checked_device, checked_id


def open_group(
    store: TileStore,
    group_id: str,
    f: Mapping[Any, Callable[..., Any]] | None,
    members: Mapping[Any, InfiniteTensor] | None,
    stores: Sequence[TileStore],
    device: torch.device | str,
) -> TensorGroup:
    """`TileStore.open_group`; see there."""
    group_id, device = checked_id(group_id, "group_id"), checked_device(device)
    places = _places(store, stores)
    stored = store.contents.stored_group(group_id)
    if stored is None:
        raise _unknown_group(store, group_id)
    parts = stored_members(store, group_id, stored)
    functions = chosen("f", _mapping("f", f), parts, None)
    given = chosen("members", _mapping("members", members), parts, None)
    tensors = {
        key: _opened(group_id, part, places, functions[key], device)
        if given[key] is None
        else _checked_member(group_id, part, given[key])
        for key, part in parts.items()
    }
    scale = {key: tuple(map(Fraction, part.scale)) for key, part in parts.items()}
    try:
        return TensorGroup.of_members(members_of(tensors, {key: part.dims for key, part in parts.items()}, scale))
    except ValidationError as error:
        raise damaged_group(store, group_id, "its definition", error) from error


def _mapping(name: str, given: object) -> Mapping[Any, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ValidationError(f"{name} must be a mapping from keys of the group, got {given!r}")
    return given or {}


def _places(store: TileStore, stores: Sequence[TileStore]) -> list[TileStore]:
    if not isinstance(stores, list | tuple) or not all(isinstance(other, TileStore) for other in stores):
        raise ValidationError(f"stores must be a list of TileStores, got {stores!r}")
    return [store, *stores]


def _opened(
    group_id: str,
    part: StoredMember,
    places: Sequence[TileStore],
    f: Callable[..., Any] | None,
    device: torch.device,
) -> InfiniteTensor:
    problems = []
    for place in places:
        try:
            tensor = place.open(part.tensor_id, f, device=device)
        except StoreError as error:
            problems.append(str(error))
            continue
        if digest_of(tensor) == part.digest:
            return tensor
        problems.append(f"{place!r} holds another tensor {part.tensor_id!r}, with another definition")
    listed = "".join(f"\n  {problem}" for problem in problems)
    raise StoreError(
        f"{show(part.key)} of group {group_id!r} is tensor {part.tensor_id!r}, which cannot be opened:{listed}\n"
        "Name the store that holds it in stores=[...], or give the tensor in members={...}"
    )


def _checked_member(group_id: str, part: StoredMember, given: object) -> InfiniteTensor:
    if not isinstance(given, InfiniteTensor):
        raise ValidationError(f"members must hold InfiniteTensors, got {given!r} for {show(part.key)}")
    if digest_of(given) != part.digest:
        raise ValidationError(
            f"{show(part.key)} of group {group_id!r} is tensor {part.tensor_id!r} with another definition than the "
            f"tensor {given.tensor_id!r} that is given in members"
        )
    return given


def _unknown_group(store: TileStore, group_id: str) -> StoreError:
    if group_id in store.tensor_ids():
        return StoreError(f"{store!r} holds no group {group_id!r}, but a tensor of that id: store.open({group_id!r})")
    return StoreError(f"{store!r} holds no group {group_id!r}; it holds {store.group_ids()}")
