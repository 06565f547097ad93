"""Tables of numbers, as text, and as HTML for notebooks.

All text in the HTML is escaped.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

_UNIQUE_ID = re.compile(r"(?:(\w+)-)?([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(/.*)?")
"""Matches an id from `unique_id`. If the ``f`` has several outputs, the id ends in the key of the output."""


class Tabular(ABC):
    """A report on several tensors, shown as a table with one row per tensor.

    Notebooks show an HTML table.
    """

    tensors: tuple[Any, ...]

    _COLUMNS: ClassVar[Mapping[str, tuple[str, Callable[[Any], str]]]]
    """For each heading, an attribute of tensors and a function to format the attribute.

    The last row shows the same attributes of the report itself, if it has them. Columns with only empty cells are not
    shown.
    """

    @property
    @abstractmethod
    def _title(self) -> str:
        """The title above the table."""

    def __repr__(self) -> str:
        headings, rows = self._table()
        rows = [headings, *([plain(cell) for cell in row] for row in rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self._title]
        for row in rows:
            first, *others = map(str.rjust, row, widths)
            lines.append("  ".join([first.lstrip().ljust(widths[0]), *others]).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        headings, rows = self._table()
        return table(self._title, headings, [[escaped(cell) for cell in row] for row in rows])

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = [[shown_id(each.tensor_id), *self._cells(each)] for each in self.tensors]
        rows.append(["all", *self._cells(self)])
        headings = ["tensor", *self._COLUMNS]
        shown = [number for number in range(len(headings)) if any(row[number] for row in rows)]
        return [headings[number] for number in shown], [[row[number] for number in shown] for row in rows]

    def _cells(self, figures: object) -> list[str]:
        return [show(getattr(figures, name)) if hasattr(figures, name) else "" for name, show in self._COLUMNS.values()]


def plain(text: object) -> str:
    """Escape control characters in the text of a value, to protect terminals and tables from names in foreign files."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text))


def shown_id(tensor_id: str) -> str:
    """Return an id as people should see it.

    An id from `unique_id` is shortened, as in ``blur 1a2b3c4d``, and control characters are escaped.
    """
    found = _UNIQUE_ID.fullmatch(tensor_id)
    return plain(f"{found[1] or 'unnamed'} {found[2]}{found[3] or ''}" if found else tensor_id)


def count_if_any(number: int) -> str:
    """Return a count as text, empty for 0."""
    return count_of(number) if number else ""


def count_of(number: int) -> str:
    """Return a count as text with thousands separators."""
    return f"{number:,}"


def times_of(number: float) -> str:
    """Return a factor as text with three digits or more, as in ``1.05 x``."""
    return f"{number:,.0f} x" if number >= 100 else f"{number:.3g} x"


def bytes_of(number: int) -> str:
    """Return a number of bytes as text with a fitting unit, as in ``1.5 MiB``."""
    size, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" or size >= 100 else f"{size:.1f} {units[0]}"


_LONGEST = 300
_LONGEST_NOTE = 1200
"""The maximum number of characters shown of a problem report."""

# The table of `html.escape`, because importing `html` takes long.
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_LEFT = ' style="text-align:left"'


def escaped(text: object, longest: int = _LONGEST) -> str:
    """Escape the text of a value for use between HTML tags or in an attribute.

    Text of more than `longest` characters is cut off.
    """
    found = str(text)
    return (found if len(found) <= longest else f"{found[:longest]}...").translate(_ESCAPED)


def code(text: object) -> str:
    """Return the text of a value in a ``<code>`` tag."""
    return f"<code>{escaped(text)}</code>"


def note(text: str) -> str:
    """Return an HTML line with a note on missing contents."""
    return f"<div>{escaped(text, _LONGEST_NOTE)}</div>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return an HTML table of names and values.

    The values are already HTML.
    """
    body = "".join(f"<tr><th{_LEFT}>{escaped(name)}</th><td{_LEFT}>{value}</td></tr>" for name, value in rows)
    return f"<table><tbody>{body}</tbody></table>"


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return an HTML table.

    The cells are already HTML, and the headings are text. The first `left` columns are aligned to the left.
    """
    sides = [_LEFT if d < left else "" for d in range(len(headings))]
    head = "".join(f"<th{side}>{escaped(heading)}</th>" for side, heading in zip(sides, headings, strict=True))
    cells = ("".join(f"<td{side}>{cell}</td>" for side, cell in zip(sides, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    caption = f"<caption{_LEFT}>{escaped(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def panel(kind: str, name: str, *inside: str) -> str:
    """Return the HTML of an object with a class, a name and contents.

    The name and the contents are already HTML.
    """
    return f"<div><div><strong>{escaped(kind)}</strong> {name}</div>{''.join(inside)}</div>"
