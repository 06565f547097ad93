"""Commands that keep a store in order: verify, gc and rm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

import infinite_tensor
from infinite_tensor.cli.arguments import (
    argument_id,
    argument_store,
    option_group,
    option_json,
    option_yes,
)
from infinite_tensor.cli.output import (
    ask,
    jsonable,
    named,
    note,
    plural,
    print_json,
    print_table,
    shown_shape,
    tell,
    width,
)
from infinite_tensor.cli.saved_groups import means_group, members_of
from infinite_tensor.errors import StoreError
from infinite_tensor.support.tables import bytes_of, count_of

DAMAGED = 3


@click.command("verify", short_help="Look for damage in what is stored.")
@argument_store
@click.argument("tensor_id", metavar="[ID]", required=False)
@click.option("--repair", is_flag=True, help="Drop what is damaged, so that it is computed again when it is needed.")
@option_yes
@option_json
def verify(store: str, tensor_id: str | None, repair: bool, yes: bool, as_json: bool) -> int:
    """Read all that is stored of a tensor, or of all tensors, and list what is damaged.

    Exits with 3 where something is. With --repair, that is what could not be repaired: a damaged definition stays.
    """
    with _opened(store) if repair else infinite_tensor.open_store(store, mode="r") as opened:
        ids = opened.tensor_ids() if tensor_id is None else [tensor_id]
        found = {name: opened.verify(name) for name in ids}
        dropped = {name: [each for each in damages if each.kind != "definition"] for name, damages in found.items()}
        repaired = repair and any(dropped.values())
        if repaired:
            if not as_json:
                _print_damages(found)
            ask(_dropping(opened, dropped), yes=yes)
            for name in _with(dropped):
                opened.verify(name, repair=True)
    remaining = sum(map(len, found.values())) - (sum(map(len, dropped.values())) if repaired else 0)
    if as_json:
        damages = [{"tensor_id": name, **jsonable(each)} for name in found for each in found[name]]
        print_json({"store": store, "verified": ids, "damages": damages, "repaired": repaired})
    elif repaired:
        note("dropped; it is computed again when it is needed")
        if remaining:
            tell("error", "a damaged definition is left: put an intact one back, or delete the tensor")
    else:
        _print_damages(found)
    return DAMAGED if remaining else 0


def _dropping(store: Any, dropped: Mapping[str, Sequence[Any]]) -> str:
    """What a repair is about to do."""
    count = sum(map(len, dropped.values()))
    told = f"This drops {count_of(count)} damaged {plural('object', count)} of {named(_with(dropped))}."
    lost = [name for name, found in dropped.items() if any(each.kind == "array" for each in found)]
    if lost and isinstance(store, infinite_tensor.HDF5TileStore):
        # Without its datasets nothing of a tensor can be read there.
        told += f"\nThat deletes all of {named(lost)}."
    return told


def _with(damages: Mapping[str, Sequence[Any]]) -> list[str]:
    return [name for name, found in damages.items() if found]


_MOST_SHOWN = 20
_WIDE = 130
"""Columns from which on there is room for the places of what is damaged."""


def _print_damages(found: Mapping[str, Sequence[Any]]) -> None:
    rows = [
        [
            name,
            each.kind,
            "" if each.tile is None else shown_shape(each.tile),
            each.reason,
            each.location if each.tile is None or width() >= _WIDE else "",
        ]
        for name, damages in found.items()
        for each in damages
    ]
    if rows:
        print_table(["tensor", "what", "tile", "why", "where"], rows[:_MOST_SHOWN], left=5)
    if len(rows) > _MOST_SHOWN:
        note(f"and {count_of(len(rows) - _MOST_SHOWN)} more, which --json lists")
    if not rows:
        note(f"{named(list(found)) if found else 'nothing'}: all is as it was written")


@click.command("gc", short_help="Delete what no tensor refers to.")
@argument_store
@click.option("--partial", is_flag=True, help="Delete what is stored of half-computed tiles too.")
@click.option(
    "--older-than",
    metavar="SECONDS",
    type=float,
    default=3600.0,
    show_default=True,
    help="With --partial: where nothing has been added for so long.",
)
@option_yes
@option_json
def gc(store: str, partial: bool, older_than: float, yes: bool, as_json: bool) -> None:
    """Delete what no tensor of STORE refers to: leavings of killed processes and of cleared tensors."""
    with _opened(store) as opened:
        too = ", and what is stored of half-computed tiles" if partial else ""
        ask(
            f"This deletes what no tensor of {store} refers to{too}. No process should be creating tensors there "
            "meanwhile.",
            yes=yes,
        )
        found = opened.gc(partial=partial, older_than=older_than)
    if as_json:
        print_json(found)
    else:
        click.echo(f"deleted {count_of(found.objects)} {plural('object', found.objects)}, {bytes_of(found.bytes)}")
        if partial:
            tiles = f"{count_of(found.partial_tiles)} half-computed {plural('tile', found.partial_tiles)}"
            click.echo(f"  of {tiles}: {bytes_of(found.partial_bytes)}")


@click.command("rm", short_help="Delete a tensor or a group.")
@argument_store
@argument_id
@click.option("--dependants", is_flag=True, help="Delete the tensors of STORE that are computed from it too.")
@option_group
@option_yes
@option_json
def rm(store: str, tensor_id: str, dependants: bool, group: bool, yes: bool, as_json: bool) -> None:
    """Delete a tensor, with its definition and all its tiles; or a group, whose tensors stay."""
    tensors, groups = [], []
    with _opened(store) as opened:
        if means_group(opened, tensor_id, group=group):
            if dependants:
                raise click.UsageError(f"{tensor_id!r} is a group, and --dependants is for tensors")
            if tensor_id not in opened.group_ids():
                # It tells which there are.
                members_of(opened, tensor_id)
            ask(f"This deletes group {tensor_id!r} from {store}. Its tensors stay.", yes=yes)
            opened.clear_group(tensor_id)
            groups = [tensor_id]
        else:
            tensors = [tensor_id, *(opened.dependants(tensor_id) if dependants else ())]
            lines = [f"  {name}: {size_of(opened, name)}" for name in tensors]
            ask("\n".join([f"This deletes from {store}:", *lines]), yes=yes)
            opened.clear_tensor(tensor_id, dependants=dependants)
    if as_json:
        print_json({"store": store, "deleted": tensors, "groups": groups})
    else:
        note(f"deleted group {tensor_id!r}; its tensors stay" if groups else f"deleted {named(tensors)}")


def _opened(store: str) -> infinite_tensor.TileStore:
    """A store that is there, to change something in it."""
    # Mode r+ makes a store of a Zarr group or HDF5 file of somebody else.
    infinite_tensor.open_store(store, mode="r").close()
    return infinite_tensor.open_store(store, mode="r+")


def size_of(store: Any, tensor_id: str) -> str:
    """What is stored of a tensor, in words; StoreError if there is none of that id."""
    try:
        found = store.tensor_info(tensor_id)
    except StoreError:
        if tensor_id not in store:
            raise
        return "its definition cannot be read"
    tiles = found.tiles_complete + found.tiles_partial
    return f"{count_of(tiles)} {plural('tile', tiles)}, {bytes_of(found.bytes_stored)}"
