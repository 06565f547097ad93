"""Commands that look at what is stored: ls, info, read and coverage."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import infinite_tensor
from infinite_tensor.cli.arguments import (
    argument_id,
    argument_store,
    option_group,
    option_json,
    option_overwrite,
    option_region,
    option_yes,
    region_of,
)
from infinite_tensor.cli.output import (
    ask,
    in_lines,
    note,
    plain,
    print_facts,
    print_json,
    print_table,
    shown_number,
    shown_shape,
    tell,
    width,
)
from infinite_tensor.cli.saved_groups import means_group, members_of, print_members
from infinite_tensor.errors import StoreError, TileAccessError
from infinite_tensor.support.tables import bytes_of, count_if_any, count_of


@click.command("ls", short_help="List tensors and groups.")
@argument_store
@click.option("-l", "--long", is_flag=True, help="Count tiles and bytes too, which takes a listing of each tensor.")
@option_json
def ls(store: str, long: bool, as_json: bool) -> int:
    """List the tensors and groups of STORE."""
    with infinite_tensor.open_store(store, mode="r") as opened:
        ids, groups = opened.tensor_ids(), opened.group_ids()
        found, errors = _definitions(opened, ids)
        counts = {name: opened.tensor_info(name) for name in found} if long else {}
    tensors = {name: _line_of(definition) for name, definition in found.items()}
    for name, info in counts.items():
        tensors[name] |= {"tiles": info.tiles_complete, "partial": info.tiles_partial, "bytes": info.bytes_stored}
    if as_json:
        damaged = [{"tensor_id": name, "error": str(error)} for name, error in errors.items()]
        listed = [{"tensor_id": name, **line} for name, line in tensors.items()]
        print_json({"store": store, "tensors": [*listed, *damaged], "groups": groups})
    else:
        _print_listing(store, tensors, groups)
        for error in errors.values():
            tell("error", str(error))
    return 1 if errors else 0


def _definitions(store: Any, ids: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, StoreError]]:
    found, errors = {}, {}
    for name in ids:
        try:
            found[name] = store.tensor_definition(name)
        except StoreError as error:
            errors[name] = error
    return found, errors


def _line_of(definition: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "shape": definition["shape"],
        "dtype": definition["dtype"],
        "dims": definition.get("dims"),
        "tile_size": definition["tile_size"],
    }


def _print_listing(store: str, tensors: Mapping[str, Mapping[str, Any]], groups: Sequence[str]) -> None:
    if not tensors and not groups:
        note(f"{store} holds no tensors")
    if tensors:
        headings = ["tensor", "shape", "dims", "dtype", "tiles", "partial", "stored"]
        rows = [
            [
                name,
                shown_shape(line["shape"]),
                ", ".join(line["dims"] or ()),
                line["dtype"],
                count_of(line["tiles"]) if "tiles" in line else "",
                count_if_any(line.get("partial", 0)),
                bytes_of(line["bytes"]) if "bytes" in line else "",
            ]
            for name, line in tensors.items()
        ]
        print_table(headings, rows, left=4)
    if groups:
        click.echo(f"{chr(10) if tensors else ''}groups: {', '.join(map(plain, groups))}")


@click.command("info", short_help="Tell what is stored of one tensor or group.")
@argument_store
@argument_id
@option_group
@option_json
def info(store: str, tensor_id: str, group: bool, as_json: bool) -> None:
    """Tell what is known and stored of one tensor, or which tensors a group is made of."""
    with infinite_tensor.open_store(store, mode="r") as opened:
        if means_group(opened, tensor_id, group=group):
            members = members_of(opened, tensor_id)
            if as_json:
                print_json({"group_id": tensor_id, "members": members})
            else:
                print_members(tensor_id, members)
            return
        found = opened.tensor_info(tensor_id)
    if as_json:
        print_json(found)
        return
    definition = found.definition
    print_facts(
        {
            "tensor": found.tensor_id,
            "shape": shown_shape(definition["shape"]),
            "dims": ", ".join(definition.get("dims") or ()),
            "dtype": definition["dtype"],
            "window": _shown_window(definition["output_window"]),
            "blend": _shown_blend(definition["blend"]),
            "reduce": _shown_reduction(definition.get("reduce")),
            "reads": ", ".join(_shown_arg(arg) for arg in definition["args"]),
            "version": "" if definition["version"] is None else definition["version"],
            "tile": shown_shape(definition["tile_size"]),
            "tiles": f"{count_of(found.tiles_complete)} complete, {count_of(found.tiles_partial)} partial",
            "stored": bytes_of(found.bytes_stored),
            "location": found.location,
        }
    )


def _shown_window(window: Mapping[str, Any]) -> str:
    size, stride, offset = (list(window.get(name) or ()) for name in ("size", "stride", "offset"))
    parts = [shown_shape(size)]
    if stride and stride != size:
        parts.append(f"every {shown_shape(stride)}")
    if any(offset):
        parts.append(f"from {shown_shape(offset)}")
    return " ".join(parts)


def _shown_blend(blend: Any) -> str:
    if blend is None:
        return "sum"
    return str(blend["weights"] if isinstance(blend, Mapping) else blend)


def _shown_reduction(reduction: Any) -> str:
    return "" if reduction is None else str(reduction["function"])


def _shown_arg(arg: Mapping[str, Any]) -> str:
    return "a tensor without an id" if arg["tensor_id"] is None else str(arg["tensor_id"])


@click.command("read", short_help="Read what is stored of a region.")
@argument_store
@argument_id
@option_region
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a .npy file, or a .png to look at: labels in colours, other numbers from the smallest in black to the "
    "largest in white, bytes of 3 or 4 channels as they are.",
)
@click.option("--fill-value", type=float, metavar="N", help="What stands for pixels that are not stored.")
@option_overwrite("FILE")
@option_yes
@option_json
def read(
    store: str,
    tensor_id: str,
    region: Any,
    output: Path | None,
    fill_value: float | None,
    overwrite: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Read what is stored of a region.

    Computes nothing. Without --fill-value, pixels that are not stored are an error.
    """
    from infinite_tensor.cli.pictures import as_array, figures_of, save  # noqa: PLC0415  (needs torch)

    taken = output is not None and _is_taken(output, overwrite=overwrite)
    with infinite_tensor.open_store(store, mode="r") as opened:
        tensor = opened.open(tensor_id)
        reduction = opened.tensor_definition(tensor_id).get("reduce")
        region = region_of(tensor, region)
        source = tensor if fill_value is None else tensor.stored_only(_as_dtype(fill_value))
        if taken:
            ask(f"This replaces what is at {output}.", yes=yes)
        try:
            values = as_array(source[region])
        except TileAccessError as error:
            error.add_note("Or fill the region first, or give --fill-value.")
            raise
    if output is not None:
        save(values, output, labels=_shown_reduction(reduction) == "argmax")
    facts = {"shape": list(values.shape), "dtype": str(tensor.dtype).removeprefix("torch."), **figures_of(values)}
    if as_json:
        print_json(facts | ({"values": values.tolist()} if output is None else {"output": str(output)}))
        return
    if output is None:
        click.echo(values)
    shown = {name: shown_number(value) for name, value in facts.items() if name not in ("shape", "dtype")}
    print_facts({"shape": shown_shape(values.shape), "dtype": facts["dtype"], **shown})
    if output is not None:
        note(f"wrote {output}")


def _is_taken(output: Path, *, overwrite: bool) -> bool:
    """Whether something lies where a file is to be written, which is to be replaced."""
    from infinite_tensor.cli.pictures import SUFFIXES  # noqa: PLC0415  (needs torch)

    if output.suffix.lower() not in SUFFIXES:
        raise click.UsageError(f"{str(output)!r}: a file is one of {', '.join(SUFFIXES)}; export writes others")
    # A path has made one slash of two.
    if re.match(r"\w\w+:/", str(output)):
        raise click.UsageError(f"{str(output)!r}: a file is a path on this machine; export writes to URLs")
    taken = os.path.lexists(output)
    if taken and not overwrite:
        raise click.ClickException(f"there is something at {str(output)!r} already; give another path, or --overwrite")
    return taken


def _as_dtype(value: float) -> float:
    return int(value) if value.is_integer() else value


@click.command("coverage", short_help="Draw which tiles are stored.")
@argument_store
@argument_id
@option_region
@option_json
def coverage(store: str, tensor_id: str, region: Any, as_json: bool) -> None:
    """Draw which tiles of a region are stored: by default, of an unbounded tensor, around all that is."""
    with infinite_tensor.open_store(store, mode="r") as opened:
        tensor = opened.open(tensor_id)
        if region is None and None in tensor.shape:
            region = opened.extent(tensor_id)
        region = region_of(tensor, region)
        stored = tensor.coverage(region, "stored").numpy()
        uncovered = tensor.coverage(region, "uncovered").numpy()
        tile = opened.tensor_definition(tensor_id)["tile_size"]
    counts = {"tiles": stored.size, "stored": int(stored.sum()), "uncovered": int(uncovered.sum())}
    if as_json:
        states = stored.astype(int) + 2 * uncovered.astype(int)
        print_json({"shape": stored.shape, "tile_size": tile, **counts, "states": states.tolist()})
        return
    if not stored.size:
        note("the region holds no pixel")
        return
    _print_map(tensor, region, tile, stored, uncovered)
    whole = counts["tiles"] - counts["uncovered"]
    share = f" ({counts['stored'] / whole:.0%})" if whole else ""
    click.echo(f"{count_of(counts['stored'])} of {count_of(whole)} tiles stored{share}")


_ROWS = 40
"""Of a map that is not drawn on a terminal."""
_OTHER_ROWS = 6
"""What stands around a map on a terminal."""


def _print_map(tensor: Any, region: Any, tile: Sequence[int], stored: Any, uncovered: Any) -> None:
    from infinite_tensor.cli.coverage_map import BLOCKS, draw  # noqa: PLC0415  (needs numpy)
    from infinite_tensor.geometry.regions import parse  # noqa: PLC0415  (needs torch)

    try:
        "".join(BLOCKS).encode(sys.stdout.encoding or "utf-8")
        blocks = True
    except UnicodeEncodeError:
        blocks = False
    rows = max(_ROWS // 4, shutil.get_terminal_size().lines - _OTHER_ROWS) if sys.stdout.isatty() else _ROWS
    drawing = draw(stored, uncovered, min(width(), 4 * rows), rows, blocks=blocks)
    click.echo("\n".join(drawing.lines))
    click.echo("\n".join(in_lines(drawing.legend)))
    selection, labels = parse(region, tensor.shape), tensor.dims
    for d, way in zip(drawing.dims, ("down", "right")[-len(drawing.dims) :], strict=True):
        start = selection.start[d] // tile[d] * tile[d]
        stop = start + stored.shape[d] * tile[d]
        if tensor.shape[d] is not None:
            stop = min(stop, tensor.shape[d])
        click.echo(f"{way:5}  {labels[d]} from {start:,} to {stop:,}, {tile[d] * drawing.scale:,} pixels a cell")
    others = [labels[d] for d in range(len(labels)) if d not in drawing.dims]
    if others:
        click.echo(f"over all of {', '.join(others)}")
