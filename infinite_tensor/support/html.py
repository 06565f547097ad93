"""HTML for notebooks: escaped, with inline styles alone, in colours that suit light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LINE = "rgba(128,128,128,.35)"
"""The colour of lines."""
SHADE = "rgba(128,128,128,.12)"
"""The colour of areas."""
_LONGEST = 300
"""Characters that are shown of a text,"""
_LONGEST_NOTE = 1200
"""and of a line that says what is wrong."""

# As `html.escape` does, whose module takes long to import.
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})

# Pages of notebooks have styles of their own for tables.
_CELL = "padding:2px 10px;border:0;background:none;vertical-align:top;white-space:nowrap;"
_TABLE = "border-collapse:collapse;border:0;margin:4px 0;font-size:12px;"


def escaped(text: object, longest: int = _LONGEST) -> str:
    """The text of a value, to stand between tags or in an attribute; what is very long is cut."""
    found = str(text)
    return (found if len(found) <= longest else f"{found[:longest]}...").translate(_ESCAPED)


def element(tag: str, *inside: str, style: str = "", **attributes: object) -> str:
    """An element around HTML. Its attributes are escaped, ``class_`` and the like without their last underscore."""
    given = {"style": style} if style else {}
    names = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"' for name, value in (given | attributes).items()
    )
    return f"<{tag}{names}>{''.join(inside)}</{tag}>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names, and what they have: HTML."""
    body = "".join(
        element(
            "tr",
            element("th", escaped(name), scope="row", style=f"{_CELL}text-align:left;font-weight:normal;opacity:.65;"),
            element("td", value, style=f"{_CELL}text-align:left;white-space:normal;"),
            style="background:none;",
        )
        for name, value in rows
    )
    return element("table", element("tbody", body), style=_TABLE)


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Columns of HTML under headings of text; the first `left` columns to the left, figures to the right."""
    sides = ["left" if d < left else "right" for d in range(len(headings))]
    head = "".join(
        element("th", escaped(heading), scope="col", style=f"{_CELL}text-align:{side};font-weight:600;")
        for heading, side in zip(headings, sides, strict=True)
    )
    body = "".join(
        element(
            "tr",
            *(
                element("td", cell, style=f"{_CELL}text-align:{side};{'white-space:normal;' * (0 < d < left)}")
                for d, (cell, side) in enumerate(zip(row, sides, strict=True))
            ),
            style=f"background:none;border-top:1px solid {LINE};",
        )
        for row in rows
    )
    caption = "padding:0 10px 4px;text-align:left;caption-side:top;color:inherit;white-space:normal;"
    return element(
        "div",
        element(
            "table",
            element("caption", escaped(title), style=caption) if title else "",
            element("thead", element("tr", head, style="background:none;")),
            element("tbody", body),
            style=_TABLE,
        ),
        style="overflow-x:auto;",
    )


def panel(kind: str, name: str, *inside: str) -> str:
    """What is shown of an object: its class, its name (HTML), and what is told of it (HTML)."""
    head = element("div", element("strong", escaped(kind)), " ", name, style=f"padding:4px 10px;background:{SHADE};")
    body = element("div", *inside, style="padding:4px 0 8px;")
    frame = f"display:inline-block;max-width:100%;border:1px solid {LINE};border-radius:4px;overflow:hidden;"
    return element("div", head, body, style=f"{frame}font-family:system-ui,sans-serif;font-size:13px;line-height:1.4;")


def code(text: object) -> str:
    """A value as it stands in code."""
    look = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;"
    # Pages of notebooks have other colours for code, and break its lines.
    return element("code", escaped(text), style=f"{look}background:none;color:inherit;padding:0;white-space:inherit;")


def note(text: str) -> str:
    """A line that says why something is not shown."""
    style = f"padding:2px 10px;margin:4px 0;border-left:3px solid {LINE};"
    return element("div", escaped(text, _LONGEST_NOTE), style=style)
