"""What a command prints: tables and lines for people, JSON for programs, and what it asks before it deletes."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from fractions import Fraction
from typing import Any

import click

_WIDEST = 1000
"""Columns of what is not printed on a terminal: a line of a table stays a line."""
_NARROWEST = 24
"""Columns in which text is still read with ease."""
_STYLES = {"error": "red", "warning": "yellow", "interrupted": "yellow"}


def width() -> int:
    """Columns to print on."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDEST


def plain(text: object) -> str:
    """A text as a terminal may print it: what is stored may hold anything, and a terminal obeys control characters."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text))


def tell(kind: str, message: str) -> None:
    """A message on standard error, in lines that fit the terminal."""
    lines = f"{kind}: {message}".splitlines()
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns
        lines = [part for line in lines for part in _wrapped(line, columns)]
    first, *others = map(plain, lines)
    # As no-color.org has it, and rich.
    label = f"{kind}:" if os.environ.get("NO_COLOR") else click.style(f"{kind}:", _STYLES[kind], bold=True)
    click.echo("\n".join([label + first.removeprefix(f"{kind}:"), *others]), err=True)


def note(message: str) -> None:
    """A line about what is printed, on standard error: beside the result, not in it."""
    click.echo("\n".join(map(plain, message.splitlines())), err=True)


def _wrapped(line: str, columns: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [
        ""
    ]


def in_lines(parts: Sequence[str]) -> list[str]:
    """Lines of parts that are not broken, as wide as there is room."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}   {part}".lstrip()
        lines = [*lines[:-1], longer] if len(longer) <= width() or not lines[-1] else [*lines, part]
    return lines


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> None:
    """Rows under headings; the first `left` columns to the left, figures to the right. Empty columns are left out.

    What has no room for that is printed as facts, row by row.
    """
    from rich.table import Table  # noqa: PLC0415  (it takes longer to import than a list to read)

    kept = [number for number in range(len(headings)) if any(str(row[number]) for row in rows)]
    folded = _folded(headings, rows, kept, left)
    if folded is None:
        for number, row in enumerate(rows):
            if number:
                click.echo()
            print_facts({headings[each]: row[each] for each in kept})
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number in kept:
        table.add_column(
            headings[number],
            style="cyan" if number == 0 else "",
            justify="left" if number < left else "right",
            overflow="fold",
            no_wrap=number != folded,
        )
    for row in rows:
        table.add_row(*[plain(row[number]) for number in kept])
    _print(table)


def _folded(headings: Sequence[str], rows: Sequence[Sequence[object]], kept: Sequence[int], left: int) -> int | None:
    """The column of text that has several lines where a table is too wide; None where that leaves too little of it."""
    from rich.cells import cell_len  # noqa: PLC0415

    widths = {each: max(cell_len(plain(line[each])) for line in (headings, *rows)) for each in kept}
    folded = max((each for each in kept if each < left), key=widths.__getitem__)
    beyond = sum(widths.values()) + 2 * (len(kept) - 1) - width()
    return folded if beyond <= 0 or widths[folded] - beyond >= _NARROWEST else None


def print_facts(facts: Mapping[str, object]) -> None:
    """A line for each fact, with its name before it; those that are empty are left out."""
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        if str(fact):
            table.add_row(name, plain(fact))
    _print(table)


def _print(table: Any) -> None:
    from rich.console import Console  # noqa: PLC0415

    console = Console(width=width(), highlight=False, markup=False, emoji=False)
    with console.capture() as printed:
        console.print(table)
    # Rich fills lines up to the width of the table.
    lines = [line.rstrip() for line in printed.get().splitlines()]
    click.echo("\n".join(lines), color=console.color_system is not None)


def print_json(value: object) -> None:
    """A value as JSON, where what is not finite is one of the strings NaN, Infinity and -Infinity."""
    click.echo(json.dumps(jsonable(value), indent=2, allow_nan=False), file=click.get_current_context().obj)


def keep_for_json(context: click.Context, _option: click.Parameter, wanted: bool) -> bool:
    """With ``--json``, what code of the user prints goes to standard error: the output is the JSON alone."""
    if wanted:
        context.obj = sys.stdout
        context.with_resource(redirect_stdout(sys.stderr))
    return wanted


def jsonable(value: Any) -> Any:
    """A value of the library as JSON holds it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
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


def shown_shape(shape: Sequence[object]) -> str:
    """A shape in brackets, as Python shows it."""
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def shown_number(value: float | Fraction) -> str:
    """A number with as many digits as one looks at."""
    return f"{value:,}" if isinstance(value, int) else f"{float(value):.6g}"


class UnconfirmedError(click.ClickException):
    """There is something to delete, and nobody to ask."""

    exit_code = click.UsageError.exit_code


def ask(what: str, *, yes: bool) -> None:
    """Have somebody confirm that something is deleted; `yes` stands for them.

    Raises
    ------
    click.Abort
        If they do not want it.
    UnconfirmedError
        If nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UnconfirmedError(f"{what}\nThere is no terminal to confirm this on: give --yes to go ahead.")
    note(what)
    try:
        agreed = click.confirm("Go ahead?", err=True)
    except click.Abort as abort:
        # The cursor stands behind the question.
        note("")
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise
        agreed = False
    if not agreed:
        note("Nothing was changed.")
        raise click.Abort


def plural(word: str, count: int) -> str:
    """A word for so many."""
    return word if count == 1 else f"{word}s"


def named(names: Sequence[str]) -> str:
    """Ids in a sentence."""
    return ", ".join(map(repr, names))
