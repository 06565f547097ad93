"""Commands that compute: plan, fill and predict."""

from __future__ import annotations

from typing import Any

import click

import infinite_tensor
from infinite_tensor.cli.arguments import (
    argument_id,
    argument_store,
    exists,
    floats,
    ints,
    names,
    option_json,
    option_overwrite,
    option_region,
    option_yes,
    options_of_fill,
    padding,
    reductions,
    region_of,
    taken_reference,
)
from infinite_tensor.cli.output import (
    ask,
    jsonable,
    named,
    note,
    print_json,
    print_table,
    shown_shape,
)
from infinite_tensor.support.tables import bytes_of, count_if_any, count_of, shown_id


@click.command("plan", short_help="Tell what a fill would cost.")
@argument_store
@argument_id
@option_region
@click.option("--max-memory", metavar="SIZE", help="As for fill.")
@option_json
def plan(store: str, tensor_id: str, region: Any, max_memory: str | None, as_json: bool) -> None:
    """Tell what it would cost to fill a region. Computes nothing."""
    with infinite_tensor.open_store(store, mode="r") as opened:
        tensor = opened.open(tensor_id)
        found = tensor.plan(region_of(tensor, region), max_memory=max_memory)
    if as_json:
        totals = ("windows", "calls", "bytes_read", "bytes_written")
        print_json(jsonable(found) | {name: getattr(found, name) for name in totals})
        return
    rows = [
        [
            shown_id(each.tensor_id),
            *map(count_of, (each.needed, each.stored, each.windows, each.calls)),
            bytes_of(each.bytes_written),
        ]
        for each in found.tensors
    ]
    total = ["all", "", "", count_of(found.windows), count_of(found.calls), bytes_of(found.bytes_written)]
    print_table(["tensor", "windows", "stored", "to compute", "calls of f", "written"], [*rows, total])
    bands = f" in {count_of(found.bands)} bands" if found.bands > 1 else ""
    bound = "" if found.exact else "; counts are upper bounds"
    click.echo(f"takes about {bytes_of(found.peak_memory)} of memory{bands}{bound}")


@click.command("fill", short_help="Compute and store a region of a tensor.")
@click.option(
    "--module",
    "tensor",
    callback=taken_reference,
    metavar="FILE.py:NAME",
    required=True,
    help="An InfiniteTensor or TensorGroup that a file defines, with its store; package.module:NAME works too.",
)
@option_region
@options_of_fill
@option_json
def fill(
    tensor: Any,
    region: Any,
    workers: int | None,
    max_memory: str | None,
    shard: tuple[int, int] | None,
    where: str | None,
    where_scale: Any,
    as_json: bool,
) -> None:
    """Compute and store a region of a tensor that a Python file defines.

    What is stored already is not computed again. Ctrl-C ends it after what is finished has been stored.
    """
    if not isinstance(tensor, infinite_tensor.InfiniteTensor | infinite_tensor.TensorGroup):
        raise click.UsageError(f"--module must name an InfiniteTensor or a TensorGroup, not a {type(tensor).__name__}")
    if region is None and isinstance(tensor, infinite_tensor.TensorGroup):
        raise click.UsageError('of a group, give a region: --region "0:512,0:512"')
    wanted = None if where is None else _mask(where, where_scale)
    region = region if region is not None else region_of(tensor, None)
    report = tensor.fill(region, workers=workers, max_memory=max_memory, shard=shard, where=wanted)
    _print_report(report, as_json=as_json)


def _mask(where: str, scale: Any) -> Any:
    from infinite_tensor.cli.sources import mask_at  # noqa: PLC0415  (needs torch)

    return mask_at(where, scale)


def _print_report(report: Any, *, as_json: bool) -> None:
    if as_json:
        totals = ("windows", "tiles", "bytes", "uncovered", "skipped")
        print_json(jsonable(report) | {name: getattr(report, name) for name in totals})
        return
    rows = [_cells(shown_id(each.tensor_id), each) for each in report.tensors]
    print_table(["tensor", "windows", "tiles", "stored", "uncovered", "skipped"], [*rows, _cells("all", report)])
    click.echo(f"filled in {report.seconds:.1f} s")


def _cells(name: str, figures: Any) -> list[str]:
    counts = [count_of(figures.windows), count_of(figures.tiles), bytes_of(figures.bytes)]
    return [name, *counts, count_if_any(figures.uncovered), count_if_any(figures.skipped)]


@click.command("predict", short_help="Slide a network over an image, and store the result.")
@click.option(
    "--module",
    "net",
    callback=taken_reference,
    metavar="FILE.py:NAME",
    required=True,
    help="The network, or a function of a batch; package.module:NAME works too.",
)
@click.argument("source")
@click.argument("target")
@click.option("--window", type=ints, required=True, metavar="N[,N...]", help="Pixels of a window.")
@click.option(
    "--overlap",
    type=floats,
    default="0.25",
    show_default=True,
    metavar="SHARE",
    help="How much of a window its neighbour shares.",
)
@click.option("--blend", default="gaussian", show_default=True, metavar="NAME", help="How windows are blended.")
@click.option(
    "--reduce",
    multiple=True,
    callback=reductions,
    metavar="[OUTPUT=]NAME",
    help="What is stored of a pixel: argmax, softmax, sigmoid or FILE.py:NAME; of several outputs, once for each.",
)
@click.option("--dims", type=names, metavar="NAMES", help='Names of the dimensions of SOURCE, as in "c,y,x".')
@click.option("--dtype", metavar="NAME", help="What is stored, as in uint8.")
@click.option("--scale", type=floats, metavar="N", help="Output pixels along one of SOURCE.")
@click.option(
    "--edge",
    type=click.Choice(["clip", "drop"]),
    default="clip",
    show_default=True,
    help="What becomes of windows that reach past the end.",
)
@click.option(
    "--padding",
    type=padding,
    default="reflect",
    show_default=True,
    metavar="MODE[:NUMBER]",
    help="What stands beyond the ends of SOURCE.",
)
@click.option(
    "--preprocess", callback=taken_reference, metavar="FILE.py:NAME", help="A function of a batch, before the net."
)
@click.option(
    "--batch-size",
    type=int,
    default=4,
    show_default=True,
    metavar="N",
    help="Windows that the network is given at once.",
)
@click.option("--device", metavar="NAME", help="Where batches go, as in cuda.")
@click.option("--autocast", type=click.Choice(["float16", "bfloat16"]), help="Run the network under torch.autocast.")
@click.option("--tensor-id", default="prediction", show_default=True, metavar="ID", help="Its name in TARGET.")
@click.option("--source-tensor", metavar="ID", help="SOURCE is a store, and this a tensor in it.")
@click.option("--version", metavar="TEXT", help="Anything else that identifies what is computed.")
@option_overwrite("what TARGET has under the id")
@option_region
@options_of_fill
@option_yes
@option_json
def predict(
    net: Any,
    source: str,
    target: str,
    dims: tuple[str, ...] | None,
    autocast: str | None,
    tensor_id: str,
    source_tensor: str | None,
    where: str | None,
    where_scale: Any,
    overwrite: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Slide a network over SOURCE, and store what it makes of it in the store TARGET.

    SOURCE is an image, a raster, a .npy file, a Zarr array, or FILE.py:NAME. Interrupt it and run it again, and it
    continues.
    """
    import torch  # noqa: PLC0415  (every other command is quicker without it)

    options["autocast"] = None if autocast is None else getattr(torch, autocast)
    options["where"] = None if where is None else _mask(where, where_scale)
    if not callable(net):
        raise click.UsageError(f"--module must name a network, or a function of a batch, not a {type(net).__name__}")
    tensor = _source(source, source_tensor, dims)
    replaces = overwrite and _agreed(target, tensor_id, yes=yes)
    # By its path: nothing is created there before it is clear that everything fits.
    made = infinite_tensor.predict(net, tensor, target, dims=dims, tensor_id=tensor_id, overwrite=replaces, **options)
    found = {"": made} if isinstance(made, infinite_tensor.InfiniteTensor) else dict(made.items())
    with next(iter(found.values())).tile_store:
        lines = {each.tensor_id: {"shape": each.shape, "dtype": str(each.dtype)[6:]} for each in found.values()}
    if as_json:
        print_json({"store": target, "tensors": [{"tensor_id": name, **line} for name, line in lines.items()]})
        return
    rows = [[name, shown_shape(line["shape"]), line["dtype"]] for name, line in lines.items()]
    print_table(["tensor", "shape", "dtype"], rows, left=3)
    note(f"stored in {target}")


def _agreed(target: str, tensor_id: str, *, yes: bool) -> bool:
    """Whether there is something to replace, which somebody has agreed to."""
    from infinite_tensor.pipelines.predict import stored_prediction  # noqa: PLC0415  (needs torch)

    if not exists(target):
        return False
    with infinite_tensor.open_store(target) as opened:
        before = stored_prediction(opened, tensor_id)
    if before:
        ask(f"This deletes {named(list(before))} in {target}.", yes=yes)
    return bool(before)


def _source(source: str, source_tensor: str | None, dims: tuple[str, ...] | None) -> Any:
    if source_tensor is not None:
        return infinite_tensor.open_store(source, mode="r").open(source_tensor)
    from infinite_tensor.cli.sources import source_at  # noqa: PLC0415  (needs torch)

    return source_at(source, dims)
