"""What a store keeps of a group: which tensors it is made of, and how they lie beside each other; and finding these."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.groups.members import GroupMember, Members, shown_scale
from infinite_tensor.support.given import checked_id, quoted
from infinite_tensor.support.nested import Key, named_leaves, nested, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.messages import damaged_group

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
    scale : tuple of Fraction
        As of `GroupMember`.
    """

    key: Key
    tensor_id: str
    digest: str
    dims: tuple[int, ...]
    scale: tuple[Fraction, ...]

    @classmethod
    def of(cls, member: GroupMember) -> StoredMember:
        """What is stored of a member."""
        return cls(member.key, member.tensor.tensor_id, digest_of(member.tensor), member.dims, member.scale)

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
                    return cls(tuple(names), tensor_id, digest, tuple(numbers), tuple(map(Fraction, ratios)))
        raise ValidationError(f"{stored!r:.200} is no tensor of a group")

    def to_json(self) -> dict[str, Any]:
        """What a store holds."""
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return listed | {"scale": list(map(str, self.scale))}


def digest_of(tensor: InfiniteTensor) -> str:
    """What tells a tensor from others of the same id."""
    return node_of(tensor).spec.definition.digest


def save_group(members: Members, store: TileStore, group_id: str) -> None:
    """`TensorGroup.save`; see there."""
    if not isinstance(store, TileStore):
        raise ValidationError(f"a group is saved in a TileStore, got {quoted(store)}")
    group_id = checked_id(group_id, "group_id")
    for member in members.values():
        if not node_of(member.tensor).tensor.named:
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
            f"{store} already holds a group {group_id!r} of other tensors:{lines}\nGive another group_id, or delete "
            f"the stored one with store.clear_group({group_id!r}); its tensors stay."
        )


def _line(member: StoredMember | None) -> str:
    if member is None:
        return "nothing"
    return f"tensor {member.tensor_id!r} ({member.digest[:8]}), dims {list(member.dims)}{shown_scale(member.scale)}"


def stored_members(store: TileStore, group_id: str, stored: Mapping[str, Any] | None) -> dict[Key, StoredMember]:
    """The tensors in what a store holds as a group, which is not trusted; StoreError where it holds none."""
    if stored is None:
        is_tensor = group_id in store
        hint = f"but a tensor of that id: store.open({group_id!r})" if is_tensor else f"it holds {store.group_ids()}"
        raise StoreError(f"{store} holds no group {group_id!r}{', ' if is_tensor else '; '}{hint}")
    try:
        version, members = stored.get("format"), stored.get("members")
        if type(version) is not int or version < 1:
            raise ValidationError(f"its format is {version!r:.200}")
        if version > FORMAT:
            raise StoreError(
                f"{store}: group {group_id!r} has format {version}, this version reads up to {FORMAT}; open it "
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


def opened_tensor(
    group_id: str,
    stored: StoredMember,
    stores: Sequence[TileStore],
    f: Callable[..., Any] | None,
    device: torch.device,
) -> InfiniteTensor:
    """A tensor of a group, from the first of some stores that holds it; StoreError if none does."""
    problems = []
    for store in stores:
        try:
            tensor = store.open(stored.tensor_id, f, device=device)
        except StoreError as error:
            problems.append(str(error))
            continue
        if digest_of(tensor) == stored.digest:
            return tensor
        problems.append(f"{store} holds another tensor {stored.tensor_id!r}, with another definition")
    listed = "".join(f"\n  {problem}" for problem in problems)
    raise StoreError(
        f"{show(stored.key)} of group {group_id!r} is tensor {stored.tensor_id!r}, which cannot be opened:{listed}\n"
        "Name the store that holds it in stores=[...], or give the tensor in members={...}"
    )


def checked_tensor(group_id: str, stored: StoredMember, given: object) -> InfiniteTensor:
    """What a user gives in place of a tensor that would be opened; ValidationError unless it is that one."""
    if not isinstance(given, InfiniteTensor):
        raise ValidationError(f"members must hold InfiniteTensors, got {quoted(given)} for {show(stored.key)}")
    if digest_of(given) != stored.digest:
        raise ValidationError(
            f"{show(stored.key)} of group {group_id!r} is tensor {stored.tensor_id!r} with another definition than the "
            f"tensor {given.tensor_id!r} that is given in members"
        )
    return given
