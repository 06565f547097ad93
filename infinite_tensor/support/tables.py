"""Tables of figures, as text and as HTML for notebooks, in which every text is escaped."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

_RANDOM_ID = re.compile(r"([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(/.*)?")
"""That of a tensor, or of an output of one ``f``, whose key stands behind it."""


class Tabular(ABC):
    """What several tensors take or have taken: prints as a table with a row for each, in a notebook as an HTML one."""

    tensors: tuple[Any, ...]

    _COLUMNS: ClassVar[Mapping[str, tuple[str, Callable[[Any], str]]]]
    """Of which attribute of each tensor a column is, and how it is shown, by its heading.

    Where this has it too, it stands below all of them. A column of empty cells is not shown.
    """

    @property
    @abstractmethod
    def _title(self) -> str:
        """What stands above the table."""

    def __str__(self) -> str:
        return _text_table(self._title, *self._table())

    def _repr_html_(self) -> str:
        headings, rows = self._table()
        return table(self._title, headings, [[escaped(cell) for cell in row] for row in rows])

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """The headings and rows to show."""
        rows = [[shown_id(each.tensor_id), *self._cells(each)] for each in self.tensors]
        rows.append(["all", *self._cells(self)])
        headings = ["tensor", *self._COLUMNS]
        shown = [number for number in range(len(headings)) if any(row[number] for row in rows)]
        return [headings[number] for number in shown], [[row[number] for number in shown] for row in rows]

    def _cells(self, figures: object) -> list[str]:
        return [show(getattr(figures, name)) if hasattr(figures, name) else "" for name, show in self._COLUMNS.values()]


def _text_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under a title; the first one to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = []
    for row in (headings, *rows):
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first.lstrip().ljust(widths[0]), *others]).rstrip())
    return "\n".join([title, *lines])


def shown_id(tensor_id: str) -> str:
    """An id for a table: of a random one, which no user has given, its beginning."""
    random = _RANDOM_ID.fullmatch(tensor_id)
    return f"unnamed {random[1]}{random[2] or ''}" if random else tensor_id


def count_if_any(number: int) -> str:
    """A count, empty for 0."""
    return count_of(number) if number else ""


def count_of(number: int) -> str:
    """A count with its thousands set apart."""
    return f"{number:,}"


def bytes_of(number: int) -> str:
    """Bytes in the largest unit that leaves a whole digit."""
    size, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" or size >= 100 else f"{size:.1f} {units[0]}"


_LONGEST = 300
"""Characters that are shown of a text,"""
_LONGEST_NOTE = 1200
"""and of a line that says what is wrong."""

# As `html.escape` does, whose module takes long to import.
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_LEFT = ' style="text-align:left"'


def escaped(text: object, longest: int = _LONGEST) -> str:
    """The text of a value, to stand between tags or in an attribute; what is very long is cut."""
    found = str(text)
    return (found if len(found) <= longest else f"{found[:longest]}...").translate(_ESCAPED)


def code(text: object) -> str:
    """A value as it stands in code."""
    return f"<code>{escaped(text)}</code>"


def note(text: str) -> str:
    """A line that says why something is not shown."""
    return f"<div>{escaped(text, _LONGEST_NOTE)}</div>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names, and what they have: HTML."""
    body = "".join(f"<tr><th{_LEFT}>{escaped(name)}</th><td{_LEFT}>{value}</td></tr>" for name, value in rows)
    return f"<table><tbody>{body}</tbody></table>"


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns of HTML under headings of text; the first `left` columns to the left, figures to the right."""
    sides = [_LEFT if d < left else "" for d in range(len(headings))]
    head = "".join(f"<th{side}>{escaped(heading)}</th>" for side, heading in zip(sides, headings, strict=True))
    cells = ("".join(f"<td{side}>{cell}</td>" for side, cell in zip(sides, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    caption = f"<caption{_LEFT}>{escaped(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def panel(kind: str, name: str, *inside: str) -> str:
    """What is shown of an object: its class, its name (HTML), and what is told of it (HTML)."""
    return f"<div><div><strong>{escaped(kind)}</strong> {name}</div>{''.join(inside)}</div>"
