"""Commands for looking into a store without changes: ls, info, read, stats, coverage, plan and view."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import infinite_tensor
from infinite_tensor.cli import arguments
from infinite_tensor.cli.output import counted, note, print_facts, print_json, print_report, print_table, tell
from infinite_tensor.errors import StoreError, TileAccessError
from infinite_tensor.support.disks import check_free, publish, unfinished_file
from infinite_tensor.support.tables import plain, shown_id


@click.command("ls", short_help="List tensors and groups.")
@arguments.store
@click.option("-l", "--long", is_flag=True, help="Also count tiles and bytes, which takes a listing of each tensor.")
@arguments.as_json
def ls(store: str, long: bool, as_json: bool) -> int:
    """List the tensors and groups of STORE."""
    tensors, errors = [], {}
    with infinite_tensor.open_store(store, mode="r") as opened:
        groups = opened.group_ids()
        for name in opened.tensor_ids():
            try:
                tensors.append(_record(opened.tensor_definition(name)))
            except StoreError as error:
                errors[name] = error
                continue
            if long:
                info = opened.tensor_info(name)
                counts = {"tiles": info.tiles_complete, "partial": info.tiles_partial, "bytes": info.bytes_stored}
                tensors[-1].update(counts)
    if as_json:
        damaged = [{"tensor_id": name, "error": str(problem)} for name, problem in errors.items()]
        print_json({"store": store, "tensors": tensors + damaged, "groups": groups})
        return 1 if errors else 0
    if tensors:
        print_table(tensors)
    if groups:
        click.echo(f"groups: {', '.join(map(plain, groups))}")
    if not tensors and not groups:
        note(f"{store} contains no tensors")
    for problem in errors.values():
        tell("Error", str(problem))
    return 1 if errors else 0


def _record(definition: Mapping[str, Any]) -> dict[str, Any]:
    return {name: definition.get(name) for name in ("tensor_id", "shape", "dims", "dtype", "tile_size")}


@click.command("info", short_help="Show what is stored of one tensor or group.")
@arguments.store
@arguments.tensor_id
@arguments.group
@arguments.as_json
def info(store: str, tensor_id: str, group: bool, as_json: bool) -> None:
    """Show the definition of a tensor, and how many tiles and bytes of it are stored.

    For a group, show its tensors.
    """
    with infinite_tensor.open_store(store, mode="r") as opened:
        if group or (tensor_id not in opened and tensor_id in opened.group_ids()):
            members = _members(opened.open_group(tensor_id))
            if as_json:
                print_json({"group_id": tensor_id, "members": members})
            else:
                print_table(members)
            return
        found = opened.tensor_info(tensor_id)
    if as_json:
        print_json(found)
        return
    definition, window = found.definition, found.definition["output_window"]
    print_facts(
        {
            **_record(definition),
            "window": window["size"],
            "stride": window.get("stride"),
            "offset": window.get("offset"),
            "blend": definition["blend"] or "sum",
            "reduce": definition.get("reduce"),
            "reads": [arg["tensor_id"] or "unnamed" for arg in definition["args"]],
            "version": definition["version"],
            "tiles": found.tiles_complete,
            "partial": found.tiles_partial,
            "bytes": found.bytes_stored,
            "location": found.location,
        }
    )


def _members(group: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": name if isinstance(name, str) else "/".join(name),
            "tensor_id": tensor.tensor_id,
            "shape": tensor.shape,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shares": [tensor.dims[d] for d in group.dims(name)],
            "scale": list(map(str, group.scale(name))),
        }
        for name, tensor in group.items(True, True)
    ]


@click.command("read", short_help="Read what is stored of a region.")
@arguments.store
@arguments.tensor_id
@arguments.region
@click.option(
    "-o", "--output", metavar="FILE", help="Write a .npy file, or a .png to look at, with axes and a colour bar."
)
@click.option("--fill-value", type=float, metavar="N", help="Value for pixels that are not stored.")
@arguments.overwrite
@arguments.as_json
def read(
    store: str,
    tensor_id: str,
    region: Any,
    output: str | None,
    fill_value: float | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Read what is stored of a region.

    Overviews and other coarser tensors are computed from stored pixels. Nothing else is computed. Missing pixels are an
    error, unless --fill-value is given.
    """
    with infinite_tensor.open_store(store, mode="r") as opened:
        tensor = opened.open(tensor_id)
        region = arguments.region_of(tensor, region)
        source = tensor if fill_value is None else tensor.stored_only(fill_value)
        try:
            values = source[region]
        except TileAccessError as error:
            error.add_note("Or fill the region first, or give --fill-value.")
            raise
        if output is not None:
            _write(source, region, output, overwrite=overwrite)
    facts = {"shape": tuple(values.shape), "dtype": str(values.dtype).removeprefix("torch."), **_figures(values)}
    if as_json:
        print_json(facts | ({"values": values.tolist()} if output is None else {"output": output}))
        return
    if output is None:
        click.echo((values.float() if facts["dtype"] == "bfloat16" else values).numpy())
    print_facts(facts)
    if output is not None:
        note(f"wrote {output}")


def _write(source: Any, region: Any, output: str, *, overwrite: bool) -> None:
    if output.endswith(".npy"):
        source.export(region, output, overwrite=overwrite)
        return
    if not output.endswith(".png"):
        raise click.UsageError(
            f"the path must end with .npy or .png, got {output!r}; for other formats, use the command export"
        )
    from infinite_tensor.views.exports.cutout import explained  # noqa: PLC0415  (imports torch)

    path = Path(output)
    check_free(path, Path.is_file, "is not a file", overwrite=overwrite)
    figure = source.show(region).figure
    with explained(output), unfinished_file(path) as unfinished:
        figure.savefig(unfinished, format="png")
        publish(unfinished, path, overwrite=overwrite)


def _figures(values: Any) -> dict[str, Any]:
    if values.is_complex():
        return {}
    finite = values[values.isfinite()]
    count = values.numel() - finite.numel()
    found = {"not finite": count} if count else {}
    if not finite.numel():
        return found
    return {"min": finite.min().item(), "max": finite.max().item(), "mean": finite.double().mean().item(), **found}


@click.command("stats", short_help="Show range, mean and quantiles of stored pixels.")
@arguments.store
@arguments.tensor_id
@click.option("--region", type=arguments.REGION, metavar="REGION", help="Pixels. Default: all that are stored.")
@arguments.as_json
def stats(store: str, tensor_id: str, region: Any, as_json: bool) -> None:
    """Show statistics of the stored pixels.

    These are range, mean, standard deviation and quantiles, and for labels the number of pixels per label. Computes
    nothing. Incomplete tiles are left out.
    """
    with infinite_tensor.open_store(store, mode="r") as opened:
        found = opened.open(tensor_id).stats(region)
    if not as_json:
        print_report(found, as_json=False)
        return
    quantiles = dict(zip(_QUANTILES, found.quantile(_QUANTILES), strict=True)) if found.count else {}
    names = ("count", "nan", "nodata", "missing", "min", "max", "mean", "std", "labels")
    print_json({**{name: getattr(found, name) for name in names}, "quantiles": quantiles})


_QUANTILES = (0.02, 0.25, 0.5, 0.75, 0.98)


@click.command("coverage", short_help="Draw which tiles are stored.")
@arguments.store
@arguments.tensor_id
@arguments.region
@arguments.as_json
def coverage(store: str, tensor_id: str, region: Any, as_json: bool) -> None:
    """Draw a map of the stored tiles of a region.

    By default, the region is the whole tensor. For an unbounded tensor, it is the box around all stored tiles.
    """
    with infinite_tensor.open_store(store, mode="r") as opened:
        tensor = opened.open(tensor_id)
        if region is None and None in tensor.shape:
            region = opened.extent(tensor_id)
        region = arguments.region_of(tensor, region)
        stored = tensor.coverage(region, "stored").numpy()
        uncovered = tensor.coverage(region, "uncovered").numpy()
        tile = opened.tensor_definition(tensor_id)["tile_size"]
    counts = {"tiles": stored.size, "stored": int(stored.sum()), "uncovered": int(uncovered.sum())}
    if as_json:
        states = stored.astype(int) + 2 * uncovered.astype(int)
        print_json({"shape": stored.shape, "tile_size": tile, **counts, "states": states.tolist()})
        return
    if not stored.size:
        note("the region is empty")
        return
    _print_map(tensor, region, tile, stored, uncovered)
    whole = counts["tiles"] - counts["uncovered"]
    share = f" ({counts['stored'] / whole:.0%})" if whole else ""
    click.echo(f"{counts['stored']:,} of {counted(whole, 'tile')} stored{share}")


_OTHER_ROWS = 6
"""Terminal rows for the lines around a map."""


def _print_map(tensor: Any, region: Any, tile: Sequence[int], stored: Any, uncovered: Any) -> None:
    """Print a map of tiles.

    The rows and columns of the map are the last two dimensions with more than one tile.
    """
    from infinite_tensor.geometry.regions import parse  # noqa: PLC0415  (needs torch)

    columns, rows = shutil.get_terminal_size((100, 46))
    # Prefer dimensions with several tiles.
    several = sorted(range(stored.ndim), key=lambda d: (stored.shape[d] > 1, d))
    dims = sorted(several[-2:])
    room = max(1, rows - _OTHER_ROWS), columns // 2
    scale = max(-(-stored.shape[d] // most) for d, most in zip(dims, room[-len(dims) :], strict=True))
    click.echo("\n".join(_cells(stored, uncovered, dims, scale)))
    click.echo("##  stored   ++  partly stored   ..  missing   ~~  no window")
    selection = parse(region, tensor.shape)
    for d, way in zip(dims, ("down", "right")[-len(dims) :], strict=True):
        start = selection.start[d] // tile[d] * tile[d]
        stop = start + stored.shape[d] * tile[d]
        stop = stop if tensor.shape[d] is None else min(stop, tensor.shape[d])
        click.echo(f"{way:5}  {tensor.dims[d]} from {start:,} to {stop:,}, {counted(tile[d] * scale, 'pixel')} a cell")
    others = [tensor.dims[d] for d in range(tensor.ndim) if d not in dims]
    if others:
        click.echo(f"each cell covers all of {', '.join(others)}")


def _cells(stored: Any, uncovered: Any, dims: Sequence[int], scale: int) -> list[str]:
    """Draw a map in cells of two characters.

    A cell covers `scale` tiles along each of `dims`.
    """
    import numpy as np  # noqa: PLC0415  (importing it takes as long as the rest of a command)

    def summed(tiles: Any) -> Any:
        counts = tiles.sum(axis=tuple(d for d in range(tiles.ndim) if d not in dims))
        for axis, count in enumerate(counts.shape):
            counts = np.add.reduceat(counts, np.arange(0, count, scale), axis=axis)
        return np.atleast_2d(counts)

    have, none, whole = map(summed, (stored, uncovered, np.ones(stored.shape, int)))
    signs = np.select([none == whole, have == whole - none, have > 0], ["~~", "##", "++"], "..")
    return ["".join(row) for row in signs.tolist()]


@click.command("plan", short_help="Show what a fill would cost.")
@arguments.store
@arguments.tensor_id
@arguments.region
@click.option("--max-memory", metavar="SIZE", help="As for fill.")
@arguments.as_json
def plan(store: str, tensor_id: str, region: Any, max_memory: str | None, as_json: bool) -> None:
    """Show the cost of filling a region.

    Computes nothing.
    """
    with infinite_tensor.open_store(store, mode="r") as opened:
        tensor = opened.open(tensor_id)
        found = tensor.plan(arguments.region_of(tensor, region), max_memory=max_memory)
    print_report(found, as_json=as_json)


@click.command("view", short_help="Open a page to look at tensors.")
@arguments.store
@click.argument("tensor_ids", metavar="[ID ...]", nargs=-1)
@arguments.module("that computes missing pixels, shown before the others")
@click.option("--port", type=int, default=0, metavar="N", help="Port of the page.  [default: any free port]")
@click.option("--browser/--no-browser", default=True, show_default=True, help="Open a browser.")
@arguments.as_json
def view(store: str, tensor_ids: tuple[str, ...], computed: Any, port: int, browser: bool, as_json: bool) -> None:
    """Serve a Bokeh page of tensors in STORE until Ctrl-C.

    Several tensors are shown side by side. Without an ID, the page shows the tensors of --module, or the
    only tensor of STORE. Missing pixels of the tensors of --module, and of coarser tensors in STORE, are
    computed, but not stored.
    """
    from infinite_tensor.opening import for_reading  # noqa: PLC0415  (importing these takes as long as the rest)
    from infinite_tensor.pipelines.pyramid import without_levels  # noqa: PLC0415

    with infinite_tensor.open_store(store, mode="r") as opened:
        is_group = isinstance(computed, infinite_tensor.TensorGroup)
        members: list[Any] = computed.values(True, True) if is_group else [computed]
        given = [for_reading(each, {}) for each in members if each is not None]
        ids = tensor_ids or (() if given else tuple(without_levels(opened.tensor_ids())))
        if not given and not tensor_ids and len(ids) != 1:
            raise click.UsageError(
                f"{store} contains {len(ids)} tensors; give the ID of one or more: {', '.join(ids)}"
                if ids
                else f"{store} contains no tensors"
            )
        # Both stores are read-only, so the same store has the same text.
        shown_already = [each.tensor_id for each in given if str(each.tile_store) == str(opened)]
        stored = [opened.open(each) for each in dict.fromkeys(ids) if each not in shown_already]
        first, *others = [*given, *stored]
        with first.view(*others, port=port, open_browser=browser) as shown:
            if as_json:
                print_json({"url": shown.url})
            names = ", ".join(shown_id(each.tensor_id) for each in (first, *others))
            note(f"{shown.url} shows {names}; Ctrl-C ends it")
            shown.wait()
            # The process ends after the current call of f, or at once after a second Ctrl-C or SIGTERM.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)


COMMANDS = (ls, info, read, stats, coverage, plan, view)
