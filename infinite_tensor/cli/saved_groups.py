"""What commands tell of groups that `TensorGroup.save` has stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from infinite_tensor.cli.output import jsonable, print_facts, print_table, shown_shape
from infinite_tensor.errors import StoreError


def means_group(store: Any, name: str, *, group: bool) -> bool:
    """Whether an id is that of a group: where somebody says so, or where no tensor has it and a group does."""
    return group or (name not in store and name in store.group_ids())


def members_of(store: Any, group_id: str) -> list[dict[str, Any]]:
    """A line for each tensor of a group; StoreError where there is no such group, or a damaged one."""
    from infinite_tensor.groups.saved import stored_members  # noqa: PLC0415  (needs torch)

    found = stored_members(store, group_id, store.contents.stored_group(group_id))
    return [{**jsonable(member), **_here(store, member)} for member in found.values()]


def _here(store: Any, member: Any) -> dict[str, Any]:
    """What the store itself has of a tensor of a group, which may lie in another one."""
    try:
        definition = store.tensor_definition(member.tensor_id)
    except StoreError:
        readable = member.tensor_id not in store
        return {"found": "not in this store" if readable else "its definition cannot be read"}
    if store.contents.digest_of(member.tensor_id) != member.digest:
        return {"found": "another tensor of this id"}
    labels = definition.get("dims") or [f"dim_{d}" for d in range(len(definition["shape"]))]
    shares = [labels[d] for d in member.dims]
    return {"found": "here", "shape": definition["shape"], "dtype": definition["dtype"], "shares": shares}


def print_members(group_id: str, members: list[dict[str, Any]]) -> None:
    """The tensors of a group, for people."""
    print_facts({"group": group_id, "tensors": len(members)})
    click.echo()
    headings = ["name", "tensor", "shape", "dtype", "shares", "scale", "found"]
    print_table(headings, list(map(_row, members)), left=len(headings))


def _row(member: Mapping[str, Any]) -> list[str]:
    scales = member["scale"]
    return [
        "/".join(member["key"]),
        member["tensor_id"],
        shown_shape(member["shape"]) if "shape" in member else "",
        member.get("dtype", ""),
        ", ".join(member.get("shares", ())),
        "" if set(scales) == {"1"} else ", ".join(scales),
        "" if member["found"] == "here" else member["found"],
    ]
