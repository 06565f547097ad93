"""Commands for writing to stores or files: fill, predict, cp, export, verify, gc and rm.

Without --repair, verify writes nothing. No command deletes anything without consent.
"""

from __future__ import annotations

from typing import Any

import click

import infinite_tensor
from infinite_tensor.cli import arguments
from infinite_tensor.cli.output import ask, counted, jsonable, named, note, print_json, print_report, print_table
from infinite_tensor.support.tables import bytes_of

DAMAGED = 3
_MOST_SHOWN = 20


@click.command("fill", short_help="Compute and store a region of a tensor.")
@arguments.module("that a file defines, with its store", required=True)
@arguments.region
@arguments.fill_options
@arguments.as_json
def fill(computed: Any, region: Any, where: str | None, where_scale: Any, as_json: bool, **options: Any) -> None:
    """Compute and store a region of a tensor from a Python file.

    Tiles that are stored already are not computed again. On Ctrl-C, the command stores the finished
    tiles and then stops.
    """
    if region is None:
        if isinstance(computed, infinite_tensor.TensorGroup):
            raise click.UsageError('a group needs a region: --region "0:512,0:512"')
        region = arguments.region_of(computed, None)
    report = computed.fill(region, where=arguments.mask_at(where, where_scale), **options)
    print_report(report, as_json=as_json)


@click.command("predict", short_help="Slide a network over an image, and store the result.")
@click.option(
    "--module",
    "net",
    type=arguments.REFERENCE,
    metavar="FILE.py:NAME",
    required=True,
    help="The network, or a function of a batch; package.module:NAME works too.",
)
@click.argument("source")
@click.argument("store")
@click.option("--window", type=arguments.INTS, required=True, metavar="N[,N...]", help="Pixels of a window.")
@click.option(
    "--overlap",
    type=arguments.FLOATS,
    default="0.25",
    show_default=True,
    metavar="SHARE",
    help="Fraction of a window that its neighbour shares.",
)
@click.option(
    "--blend", default="gaussian", show_default=True, metavar="NAME", help="How overlapping windows are blended."
)
@click.option(
    "--reduce",
    multiple=True,
    callback=arguments.reductions,
    metavar="[OUTPUT=]NAME",
    help="How pixels are reduced: argmax, softmax, sigmoid or FILE.py:NAME. For several outputs, give it for each.",
)
@click.option("--dims", type=arguments.NAMES, metavar="NAMES", help='Names of the dimensions of SOURCE, as in "c,y,x".')
@click.option("--dtype", metavar="NAME", help="Dtype that is stored, as in uint8.")
@click.option("--scale", type=arguments.FLOATS, metavar="N", help="Pixels of the output along one pixel of SOURCE.")
@click.option(
    "--edge",
    type=click.Choice(["clip", "drop"]),
    default="clip",
    show_default=True,
    help="What happens to windows that reach past the end.",
)
@click.option(
    "--padding",
    type=arguments.PADDING,
    default="reflect",
    show_default=True,
    metavar="MODE[:NUMBER]",
    help="What the network gets beyond the ends of SOURCE.",
)
@click.option(
    "--batch-size", type=int, default=4, show_default=True, metavar="N", help="Windows per call of the network."
)
@click.option("--device", metavar="NAME", help="Device for batches, as in cuda.")
@click.option("--tensor-id", default="prediction", show_default=True, metavar="ID", help="Id of the result in STORE.")
@click.option("--source-tensor", metavar="ID", help="Id of a tensor, if SOURCE is a store.")
@click.option("--version", metavar="TEXT", help="Anything else that identifies what is computed.")
@arguments.overwrite
@arguments.region
@arguments.fill_options
@arguments.as_json
def predict(
    net: Any,
    source: str,
    store: str,
    dims: tuple[str, ...] | None,
    tensor_id: str,
    source_tensor: str | None,
    where: str | None,
    where_scale: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """Slide a network over SOURCE, and store its output in STORE.

    SOURCE is an image, a raster, a .npy file, a Zarr array, or FILE.py:NAME. To continue after an interruption, run the
    same command again.
    """
    if not callable(net):
        raise click.UsageError(f"--module must name a network, or a function of a batch, not a {type(net).__name__}")
    if source_tensor is None:
        tensor = arguments.source_at(source, dims)
    else:
        tensor = infinite_tensor.open_store(source, mode="r").open(source_tensor)
    # Pass the path, not an open store: predict checks all arguments before creating a store.
    made = infinite_tensor.predict(
        net,
        tensor,
        store,
        dims=dims,
        where=arguments.mask_at(where, where_scale),
        tensor_id=tensor_id,
        **options,
    )
    outputs = [made] if isinstance(made, infinite_tensor.InfiniteTensor) else list(made.values(True, True))
    # With several reductions of an output, all results read the same stored tensor.
    kept = [t if f"{t.tensor_id}/".startswith(f"{tensor_id}/") else t.args[0] for t in outputs]
    stored = {t.tensor_id: t for t in kept}
    with next(iter(stored.values())).tile_store:
        records = [{"tensor_id": i, "shape": t.shape, "dtype": str(t.dtype)[6:]} for i, t in stored.items()]
    if as_json:
        print_json({"store": store, "tensors": records})
    else:
        print_table(records)
        note(f"stored in {store}")


@click.command("cp", short_help="Copy a tensor into another store.")
@arguments.store
@arguments.tensor_id
@click.argument("other")
@click.option("--upstream", is_flag=True, help="Also copy the tensors that it is computed from.")
@click.option(
    "--region",
    type=arguments.REGION,
    metavar="REGION",
    help='Copy only tiles that these pixels touch, as in "0:64,-32:32".',
)
@arguments.overwrite
@arguments.as_json
def cp(store: str, tensor_id: str, other: str, as_json: bool, **options: Any) -> None:
    """Copy a tensor into the store OTHER.

    If OTHER does not exist, it is created. To continue after an interruption, run the same command again.
    """
    with infinite_tensor.open_store(store, mode="r") as source:
        report = source.copy(tensor_id, other, **options)
    print_report(report, as_json=as_json)


@click.command("export", short_help="Write a region as plain Zarr, NPY, PNG or TIFF.")
@arguments.store
@arguments.tensor_id
@click.argument("target")
@arguments.region
@click.option(
    "--compute/--no-compute",
    default=True,
    show_default=True,
    help="Compute missing pixels, if the store alone can, or fill them with a number.",
)
@click.option(
    "--fill-value",
    type=float,
    metavar="N",
    help="The number for missing pixels with --no-compute, as nodata.  [default: 0]",
)
@click.option("--pyramid", is_flag=True, help="For Zarr: write an OME-Zarr image with levels, for viewers.")
@click.option("--every", type=click.IntRange(min=1), metavar="N", help="For PNG: only every N-th row and column.")
@click.option(
    "--max-pixels", type=click.IntRange(min=1), metavar="N", help="For PNG: choose --every for at most N pixels."
)
@click.option("--palette", is_flag=True, help="For PNG: one colour for each label.")
@arguments.overwrite
@arguments.as_json
def export(store: str, tensor_id: str, target: str, region: Any, as_json: bool, **options: Any) -> None:
    """Write a region as plain Zarr, NPY, PNG, TIFF or GeoTIFF.

    The suffix of TARGET decides the format.
    """
    with infinite_tensor.open_store(store, mode="r") as opened:
        tensor = opened.open(tensor_id)
        tensor.export(arguments.region_of(tensor, region), target, **options)
    if as_json:
        print_json({"target": target, "tensor_id": tensor_id})
    else:
        note(f"wrote {target}")


@click.command("verify", short_help="Look for damage in stored data.")
@arguments.store
@click.argument("tensor_id", metavar="[ID]", required=False)
@click.option("--repair", is_flag=True, help="Delete damaged objects, so that they are computed again when needed.")
@arguments.yes
@arguments.as_json
def verify(store: str, tensor_id: str | None, repair: bool, yes: bool, as_json: bool) -> int:
    """Look for damage in everything stored of a tensor, or of all tensors.

    The exit code is 3 if unrepaired damage remains. --repair repairs everything except definitions.
    """
    with opened_to_change(store) if repair else infinite_tensor.open_store(store, mode="r") as opened:
        ids = opened.tensor_ids() if tensor_id is None else [tensor_id]
        damages = [{"tensor_id": name, **jsonable(each)} for name in ids for each in opened.verify(name)]
        dropped = [each["tensor_id"] for each in damages if repair and each["kind"] != "definition"]
        if damages and not as_json:
            print_table(damages[:_MOST_SHOWN])
        if len(damages) > _MOST_SHOWN and not as_json:
            note(f"and {len(damages) - _MOST_SHOWN:,} more, which --json lists")
        if dropped:
            ids_dropped = list(dict.fromkeys(dropped))
            told = f"This deletes {counted(len(dropped), 'damaged object')} of {named(ids_dropped)}"
            ask(f"{told}; in an HDF5 file, all of a tensor if its array is damaged.", yes=yes)
            for name in ids_dropped:
                opened.verify(name, repair=True)
    if as_json:
        print_json({"store": store, "verified": ids, "damages": damages, "repaired": bool(dropped)})
    elif not damages:
        note(f"{named(ids) or 'no tensors'}: no damage found")
    return DAMAGED if len(damages) > len(dropped) else 0


@click.command("gc", short_help="Delete objects that no tensor refers to.")
@arguments.store
@click.option("--partial", is_flag=True, help="Also delete what is stored of half-computed tiles.")
@click.option(
    "--older-than",
    metavar="SECONDS",
    type=float,
    default=3600.0,
    show_default=True,
    help="With --partial: only tiles to which nothing was added for this long.",
)
@arguments.yes
@arguments.as_json
def gc(store: str, partial: bool, older_than: float, yes: bool, as_json: bool) -> None:
    """Delete unreferenced objects from STORE.

    These objects belong to no tensor. Killed processes and deleted tensors leave such objects behind.
    """
    too = ", and what is stored of half-computed tiles" if partial else ""
    with opened_to_change(store) as opened:
        ask(
            f"This deletes objects that no tensor of {store} refers to{too}. Meanwhile, no other process should create "
            "tensors there.",
            yes=yes,
        )
        found = opened.gc(partial=partial, older_than=older_than)
    if as_json:
        print_json(found)
        return
    click.echo(f"deleted {counted(found.objects, 'object')}, {bytes_of(found.bytes)}")
    if partial:
        tiles = counted(found.partial_tiles, "half-computed tile")
        click.echo(f"  of {tiles}: {bytes_of(found.partial_bytes)}")


@click.command("rm", short_help="Delete a tensor or a group.")
@arguments.store
@arguments.tensor_id
@click.option("--dependants", is_flag=True, help="Also delete the tensors of STORE that are computed from it.")
@arguments.group
@arguments.yes
@arguments.as_json
def rm(store: str, tensor_id: str, dependants: bool, group: bool, yes: bool, as_json: bool) -> None:
    """Delete a tensor or a group.

    A tensor is deleted with its definition and all its tiles. The tensors of a deleted group stay.
    """
    tensors, groups = [], []
    with opened_to_change(store) as opened:
        if group or (tensor_id not in opened and tensor_id in opened.group_ids()):
            if dependants:
                raise click.UsageError(
                    f"{tensor_id!r} is a group, but --dependants only applies to tensors; leave out --dependants"
                )
            if tensor_id not in opened.group_ids():
                # Raises an error with the names of all groups.
                opened.open_group(tensor_id)
            ask(f"This deletes group {tensor_id!r} from {store}. Its tensors stay.", yes=yes)
            opened.clear_group(tensor_id)
            groups = [tensor_id]
        else:
            tensors = [tensor_id, *(opened.dependants(tensor_id) if dependants else ())]
            if tensor_id not in opened:
                # Raises an error with the names of all tensors.
                opened.tensor_info(tensor_id)
            ask(f"This deletes {named(tensors)} from {store}.", yes=yes)
            opened.clear_tensor(tensor_id, dependants=dependants)
    if as_json:
        print_json({"store": store, "deleted": tensors, "groups": groups})
    else:
        note(f"deleted group {tensor_id!r}; its tensors stay" if groups else f"deleted {named(tensors)}")


def opened_to_change(store: str) -> infinite_tensor.TileStore:
    """Open an existing store for changes."""
    # Mode r+ alone would turn a foreign Zarr group or HDF5 file into a store.
    infinite_tensor.open_store(store, mode="r").close()
    return infinite_tensor.open_store(store, mode="r+")


COMMANDS = (fill, predict, cp, export, verify, gc, rm)
