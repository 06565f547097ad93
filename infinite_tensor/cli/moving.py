"""Commands that take a tensor elsewhere: cp and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import infinite_tensor
from infinite_tensor.cli.arguments import (
    argument_id,
    argument_store,
    exists,
    option_json,
    option_overwrite,
    option_region,
    option_yes,
    region_of,
)
from infinite_tensor.cli.arguments import region as region_in
from infinite_tensor.cli.keeping import size_of
from infinite_tensor.cli.output import (
    ask,
    note,
    plural,
    print_json,
)
from infinite_tensor.support.tables import bytes_of, count_of


@click.command("cp", short_help="Copy a tensor into another store.")
@argument_store
@argument_id
@click.argument("other")
@click.option("--upstream", is_flag=True, help="Copy the tensors that it is computed from too.")
@click.option(
    "--region",
    type=region_in,
    metavar="REGION",
    help='Copy only tiles that these pixels touch, as in "0:64,-32:32".',
)
@option_overwrite("other tensors that have the ids in OTHER")
@option_yes
@option_json
def cp(
    store: str,
    tensor_id: str,
    other: str,
    upstream: bool,
    region: Any,
    overwrite: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Copy a tensor into the store OTHER, which is created if need be.

    Run it again after an interruption, and it continues.
    """
    from infinite_tensor_stores import shared_store  # noqa: PLC0415  (needs torch)

    if _are_one(Path(store), Path(other)):
        # An HDF5 file would be open twice.
        raise click.ClickException(f"{tensor_id!r} cannot be copied into itself: {store} and {other} are one store")
    with infinite_tensor.open_store(store, mode="r") as source:
        replaces = overwrite and _agreed(source, tensor_id, other, upstream=upstream, yes=yes)
        source.copy(tensor_id, other, upstream=upstream, region=region, overwrite=replaces)
        with shared_store(other) as target:
            info = target.tensor_info(tensor_id)
    if as_json:
        print_json({"store": other, "tensor_id": tensor_id, "tiles": info.tiles_complete, "bytes": info.bytes_stored})
    else:
        tiles = info.tiles_complete
        size = f"{count_of(tiles)} {plural('tile', tiles)}, {bytes_of(info.bytes_stored)}"
        note(f"{other} holds {tensor_id!r}: {size}")


def _are_one(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)


def _agreed(source: infinite_tensor.TileStore, tensor_id: str, other: str, *, upstream: bool, yes: bool) -> bool:
    """Whether there is something to replace, which somebody has agreed to."""
    from infinite_tensor.views.copying import tensors_in_the_way  # noqa: PLC0415  (needs torch)

    if not exists(other):
        return False
    with infinite_tensor.open_store(other) as target:
        in_the_way = tensors_in_the_way(source, tensor_id, target, upstream=upstream)
        if in_the_way:
            lines = [f"This deletes from {other}:"]
            for name, differences in in_the_way.items():
                lines += [f"  {name}: {size_of(target, name)}", *(f"    {line}" for line in differences)]
            ask("\n".join(lines), yes=yes)
    return bool(in_the_way)


@click.command("export", short_help="Write a region as plain Zarr, NPY, PNG or TIFF.")
@argument_store
@argument_id
@click.argument("target")
@option_region
@click.option(
    "--compute/--no-compute",
    default=True,
    show_default=True,
    help="Compute pixels that are not stored, where the store alone says how, or fill them with a number.",
)
@click.option("--fill-value", type=float, metavar="N", help="What --no-compute writes, as nodata.  [default: 0]")
@option_overwrite("what is at TARGET")
@option_yes
@option_json
def export(
    store: str,
    tensor_id: str,
    target: str,
    region: Any,
    compute: bool,
    fill_value: float | None,
    overwrite: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Write a region to TARGET as plain Zarr, NPY, PNG, TIFF or GeoTIFF, as its name ends."""
    with infinite_tensor.open_store(store, mode="r") as opened:
        tensor = opened.open(tensor_id)
        region = region_of(tensor, region)
        if overwrite and exists(target):
            ask(f"This replaces what is at {target}.", yes=yes)
        tensor.export(region, target, compute=compute, fill_value=fill_value, overwrite=overwrite)
    if as_json:
        print_json({"target": target, "tensor_id": tensor_id})
    else:
        note(f"wrote {target}")
