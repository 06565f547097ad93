"""What a store keeps of a group: which tensors it is made of, and how they lie beside each other; and opening these."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.groups.members import GroupMember, Members, members_of
from infinite_tensor.support.nested import Key, chosen, named_leaves, nested, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.messages import damaged_group
from infinite_tensor.values.checks import checked_device, checked_id

FORMAT = 1
"""Version of what is stored of a group; what a later version has stored is refused."""

_RATIO = re.compile(r"[1-9][0-9]{0,9}(/[1-9][0-9]{0,9})?")


@dataclass(frozen=True)
class StoredMember:
    """One tensor of a group as a store names it.

    Attributes
    ----------
    key : Key
        Its name in the group.
    tensor_id : str
        The id by which a store holds it.
    digest : str
        What it is: the digest of its definition.
    dims : tuple of int
        As of `GroupMember`.
    scale : tuple of str
        As of `GroupMember`: ratios like ``1/8``.
    """

    key: Key
    tensor_id: str
    digest: str
    dims: tuple[int, ...]
    scale: tuple[str, ...]

    @classmethod
    def of(cls, member: GroupMember) -> StoredMember:
        """What is stored of a member."""
        scale = tuple(map(str, member.scale))
        return cls(member.key, member.tensor.tensor_id, digest_of(member.tensor), member.dims, scale)

    @classmethod
    def from_json(cls, stored: object) -> StoredMember:
        """From what a store holds, which is not trusted; ValidationError for anything else."""
        match stored:
            case {
                "key": list(key),
                "tensor_id": str(tensor_id),
                "digest": str(digest),
                "dims": list(dims),
                "scale": list(scale),
            }:
                names = [name for name in key if isinstance(name, str) and name]
                ratios = [ratio for ratio in scale if isinstance(ratio, str) and _RATIO.fullmatch(ratio)]
                numbers = [number for number in dims if type(number) is int]
                if names and tensor_id and (names, numbers, ratios) == (key, dims, scale):
                    return cls(tuple(names), tensor_id, digest, tuple(numbers), tuple(ratios))
        raise ValidationError(f"{stored!r:.200} is no tensor of a group")

    def to_json(self) -> dict[str, Any]:
        """What a store holds."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def digest_of(tensor: InfiniteTensor) -> str:
    """What tells a tensor from others of the same id."""
    return node_of(tensor).spec.definition.digest


def save_group(members: Members, store: TileStore, group_id: str) -> None:
    """`TensorGroup.save`; see there."""
    if not isinstance(store, TileStore):
        raise ValidationError(f"a group is saved in a TileStore, got {store!r}")
    group_id = checked_id(group_id, "group_id")
    for member in members.values():
        if not node_of(member.tensor).member.named:
            raise ValidationError(
                f"{show(member.key)} of the group has no tensor_id by which it could be found again: make it with "
                f"tensor_id=..., or save group.exclude({show(member.key)}) and put it beside what open_group returns"
            )
    given = {key: StoredMember.of(member) for key, member in members.items()}
    listed = [member.to_json() for member in given.values()]
    stored = store.contents.store_group(group_id, {"format": FORMAT, "group_id": group_id, "members": listed})
    found = stored_members(store, group_id, stored)
    if found != given:
        differing = [key for key in {**found, **given} if found.get(key) != given.get(key)]
        lines = "".join(
            f"\n  {show(key)}: stored {_line(found.get(key))}, given {_line(given.get(key))}" for key in differing
        )
        raise ValidationError(
            f"{store!r} already holds a group {group_id!r} of other tensors:{lines}\nGive another group_id, or delete "
            f"the stored one with store.clear_group({group_id!r}); its tensors stay."
        )


def _line(member: StoredMember | None) -> str:
    if member is None:
        return "nothing"
    scale = f", scale {' x '.join(member.scale)}" if set(member.scale) - {"1"} else ""
    return f"tensor {member.tensor_id!r} ({member.digest[:8]}), dims {list(member.dims)}{scale}"


def stored_members(store: TileStore, group_id: str, stored: Mapping[str, Any]) -> dict[Key, StoredMember]:
    """The tensors in the definition of a group, which is not trusted; StoreError where it is none."""
    try:
        version, members = stored.get("format"), stored.get("members")
        if type(version) is not int or version < 1:
            raise ValidationError(f"its format is {version!r:.200}")
        if version > FORMAT:
            raise StoreError(
                f"{store!r}: group {group_id!r} has format {version}, this version reads up to {FORMAT}; open it "
                "with a later version of this library"
            )
        if stored.get("group_id") != group_id:
            raise ValidationError(f"it defines group {stored.get('group_id')!r:.200}")
        if not isinstance(members, list) or not members:
            raise ValidationError(f"its members are {members!r:.200}")
        parts = [StoredMember.from_json(member) for member in members]
        # In the order of nested names, and nothing twice.
        found = dict(named_leaves(nested([(part.key, part) for part in parts])))
    except ValidationError as error:
        raise damaged_group(store, group_id, "its definition", error) from error
    return found


def open_members(
    store: TileStore,
    group_id: str,
    f: Mapping[Any, Callable[..., Any]] | None,
    members: Mapping[Any, InfiniteTensor] | None,
    stores: Sequence[TileStore],
    device: torch.device | str,
) -> dict[Key, GroupMember]:
    """The members of the group that `TileStore.open_group` opens; see there."""
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
        return members_of(tensors, {key: part.dims for key, part in parts.items()}, scale)
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
