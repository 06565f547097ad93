"""Commands that take a tensor elsewhere: cp and export."""

from __future__ import annotations

from typing import Any

import click

import infinite_tensor
from infinite_tensor.cli.arguments import (
    argument_id,
    argument_store,
    option_json,
    option_region,
    option_yes,
    region_of,
)
from infinite_tensor.cli.keeping import size_of
from infinite_tensor.cli.output import (
    ask,
    note,
    print_json,
)
from infinite_tensor.support.tables import bytes_of, count_of


@click.command("cp", short_help="Copy a tensor into another store.")
@argument_store
@argument_id
@click.argument("other")
@click.option("--upstream", is_flag=True, help="Copy the tensors that it is computed from too.")
@option_yes
@option_json
def cp(store: str, tensor_id: str, other: str, upstream: bool, yes: bool, as_json: bool) -> None:
    """Copy a tensor into the store OTHER, which is created if need be.

    Run it again after an interruption, and it continues.
    """
    with infinite_tensor.open_store(store, mode="r") as source:
        # Where there is no such tensor, no store is created for it.
        source.tensor_definition(tensor_id)
        with infinite_tensor.open_store(other) as target:
            _copy(source, tensor_id, target, upstream=upstream, yes=yes)
            info = target.tensor_info(tensor_id)
    if as_json:
        print_json({"store": other, "tensor_id": tensor_id, "tiles": info.tiles_complete, "bytes": info.bytes_stored})
    else:
        note(f"{other} holds {tensor_id!r}: {count_of(info.tiles_complete)} tiles, {bytes_of(info.bytes_stored)}")


def _copy(
    source: infinite_tensor.TileStore, tensor_id: str, target: infinite_tensor.TileStore, *, upstream: bool, yes: bool
) -> None:
    from infinite_tensor.views.copying import tensors_in_the_way  # noqa: PLC0415  (needs torch)

    in_the_way = tensors_in_the_way(source, tensor_id, target, upstream=upstream)
    if in_the_way:
        lines = [f"This deletes from {target.address}:"]
        for name, differences in in_the_way.items():
            lines += [f"  {name}: {size_of(target, name)}", *(f"    {line}" for line in differences)]
        ask("\n".join(lines), yes=yes)
    source.copy(tensor_id, target, upstream=upstream, overwrite=bool(in_the_way))


@click.command("export", short_help="Write a region as plain Zarr, NPY, PNG or TIFF.")
@argument_store
@argument_id
@click.argument("target")
@option_region
@click.option(
    "--missing",
    type=click.Choice(["compute", "fill"]),
    default="compute",
    show_default=True,
    help="What to do with pixels that are not stored: compute them, which works only where the store alone says how, "
    "or write --fill-value.",
)
@click.option("--fill-value", type=float, metavar="N", help="What --missing fill writes.  [default: 0]")
@click.option("--overwrite", is_flag=True, help="Replace what is at TARGET.")
@option_yes
@option_json
def export(
    store: str,
    tensor_id: str,
    target: str,
    region: Any,
    missing: str,
    fill_value: float | None,
    overwrite: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Write a region to TARGET as plain Zarr, NPY, PNG, TIFF or GeoTIFF, as its name ends."""
    with infinite_tensor.open_store(store, mode="r") as opened:
        tensor = opened.open(tensor_id)
        region = region_of(tensor, region)
        if overwrite and _exists(target):
            ask(f"This replaces what is at {target}.", yes=yes)
        tensor.export(region, target, missing=missing, fill_value=fill_value, overwrite=overwrite)
    if as_json:
        print_json({"target": target, "tensor_id": tensor_id})
    else:
        note(f"wrote {target}")


def _exists(target: str) -> bool:
    from fsspec.core import url_to_fs  # noqa: PLC0415  (no other command needs it itself)

    files, path = url_to_fs(target)
    return bool(files.exists(path))
