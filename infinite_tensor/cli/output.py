"""Prints tables, lines and JSON, and asks before something is deleted."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infinite_tensor.support.tables import bytes_of, plain

_WIDEST = 1000
"""Width of a table outside a terminal, large enough to wrap no row."""


def tell(kind: str, message: str) -> None:
    """Print an error or a warning on standard error."""
    lines = "\n".join(map(plain, message.splitlines()))
    style = "bold red" if kind == "Error" else "bold yellow"
    Console(stderr=True).print(Text.assemble((f"{kind}:", style), " ", lines), soft_wrap=True)


def note(message: str) -> None:
    """Print a remark on standard error, apart from the result."""
    click.echo("\n".join(map(plain, message.splitlines())), err=True)


def print_table(records: Sequence[Mapping[str, Any]]) -> None:
    """Print records as a table with a header.

    Numbers are aligned to the right. Empty columns are left out.
    """
    names = dict.fromkeys(name for record in records for name in record)
    cells = {name: [cell(name, record.get(name)) for record in records] for name in names}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    shown = [name for name in names if any(cells[name])]
    for name in shown:
        is_figure = all(isinstance(record.get(name), int | float | None) for record in records)
        table.add_column(name, justify="right" if is_figure else "left", overflow="fold")
    for row in zip(*(cells[name] for name in shown), strict=True):
        table.add_row(*map(Text, row))
    _print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print each name with its value on a line.

    Empty values are left out.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if text := cell(name, value):
            table.add_row(name, Text(text))
    _print(table)


def cell(name: str, value: Any) -> str:
    """Format a value as a line of text.

    The text is empty for None and for empty values.
    """
    if value is None:
        return ""
    if name == "bytes":
        return bytes_of(value)
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, list | tuple):
        texts = list(map(str, value))
        is_names = all(isinstance(each, str) for each in value)
        value = ", ".join(texts) if is_names else f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    return plain(value)


def _print(table: Table) -> None:
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDEST)
    with console.capture() as printed:
        console.print(table)
    # Print by click, because rich pads lines and ends the process if a pipe is closed.
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()), color=True)


def print_json(value: object) -> None:
    """Print a value as JSON.

    Numbers that are not finite become the strings NaN, Infinity and -Infinity.
    """
    click.echo(json.dumps(jsonable(value), indent=2, allow_nan=False), file=click.get_current_context().obj)


def print_report(report: object, *, as_json: bool) -> None:
    """Print a report of the library, as JSON or as a table."""
    if as_json:
        print_json(report)
    else:
        click.echo("\n".join(map(plain, str(report).splitlines())))


def keep_for_json(context: click.Context, _option: click.Parameter, wanted: bool) -> bool:
    """Keep standard output for JSON, if `wanted`.

    The prints of user code go to standard error.
    """
    if wanted:
        context.obj = sys.stdout
        context.with_resource(redirect_stdout(sys.stderr))
    return wanted


def jsonable(value: Any) -> Any:
    """Convert a value of the library to JSON values.

    A dataclass becomes a dict of its fields and public properties.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = [name for name, each in vars(type(value)).items() if isinstance(each, property) and name[0] != "_"]
        names = [*(field.name for field in dataclasses.fields(value)), *told]
        return {name: jsonable(getattr(value, name)) for name in names}
    if isinstance(value, Mapping) or hasattr(value, "_asdict"):
        fields = value if isinstance(value, Mapping) else value._asdict()
        return {str(key): jsonable(each) for key, each in fields.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    if isinstance(value, complex):
        return [jsonable(value.real), jsonable(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if value is None or isinstance(value, int | float | str) else str(value)


def counted(count: int, word: str) -> str:
    """Return a number with its noun, such as "3 tiles"."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def named(names: Sequence[str]) -> str:
    """Return the names, quoted and joined by commas."""
    return ", ".join(map(repr, names))


class UnconfirmedError(click.ClickException):
    """Raised if nobody can confirm a deletion."""

    exit_code = click.UsageError.exit_code


def ask(what: str, *, yes: bool) -> None:
    """Ask the user to confirm a deletion, unless `yes` is True.

    Raises
    ------
    click.Abort
        If the user says no.
    UnconfirmedError
        If there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UnconfirmedError(f"{what}\nThere is no terminal to confirm this on: give --yes to go ahead.")
    note(what)
    click.confirm("Go ahead?", abort=True, err=True)
