"""The chain of a tensor as a small drawing: what it is computed from stands to its left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from infinite_tensor.engine.chain import Node
from infinite_tensor.support.html import element, escaped

_MOST_BOXES = 16
_MOST_ROWS = 8
_WIDTH, _HEIGHT, _GAP, _MARGIN = 148, 36, 40, 4
_MOST_WRAPPED = 8
_CHARACTERS = 19
"""As many letters go into a box."""


@dataclass
class _Chain:
    """The tensors that are drawn, consumers first, each with how far it lies upstream; and what they read.

    Attributes
    ----------
    depths : dict of Node to int
        The length of the longest way down from each.
    arrows : list of (Node, Node)
        From a tensor to one that reads it.
    cut : dict of Node to int
        Of the tensors that read some which are not drawn, how many.
    """

    depths: dict[Node, int] = field(default_factory=dict)
    arrows: list[tuple[Node, Node]] = field(default_factory=list)
    cut: dict[Node, int] = field(default_factory=dict)


_Places: TypeAlias = dict[Node | tuple[Node, int], tuple[int, int]]
"""The upper left corner of each tensor, and of the room that arrows from one take in a column that they pass by."""


def chain_graph(roots: Sequence[Node]) -> str:
    """An ``<svg>`` of the tensors that some are computed from, with these on the right; "" where they read none."""
    chain = _found(roots)
    if not chain.arrows and not chain.cut:
        return ""
    places = _places(chain)
    width = max(x for x, _ in places.values()) + _WIDTH + _MARGIN
    nodes = [node for node in places if isinstance(node, Node)]
    height = max(y + _HEIGHT // (1 if isinstance(place, Node) else 2) for place, (_, y) in places.items()) + _MARGIN
    drawn = element(
        "svg",
        *(_arrow(_way(chain, places, *arrow)) for arrow in chain.arrows),
        *(_more(count, *places[node]) for node, count in chain.cut.items()),
        *(_box(node, *places[node], root=node in roots) for node in nodes),
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label="what the tensor is computed from",
        style="display:block;max-width:none;color:inherit;",
    )
    return element("div", drawn, style="overflow:auto;max-height:330px;padding:4px 6px;")


def _places(chain: _Chain) -> _Places:
    """Where each tensor stands, and where arrows from it pass by the columns that they leave out."""
    columns: dict[int, list[Node | tuple[Node, int]]] = {}
    for node, depth in chain.depths.items():
        columns.setdefault(depth, []).append(node)
    for read, reader in chain.arrows:
        for depth in range(chain.depths[reader] + 1, chain.depths[read]):
            if (read, depth) not in columns[depth]:
                columns[depth].append((read, depth))
    deepest = max(columns)
    # Of what is left out of the chain there is a word on the left.
    deepest += any(chain.depths[node] == deepest for node in chain.cut)
    return {
        place: ((deepest - depth) * (_WIDTH + _GAP) + _MARGIN, row * (_HEIGHT + 12) + _MARGIN)
        for depth, places in columns.items()
        for row, place in enumerate(places)
    }


def _way(chain: _Chain, places: _Places, read: Node, reader: Node) -> list[tuple[int, int]]:
    """Where an arrow begins and ends, and between these where it passes by each column, from its left to its right."""
    between = [places[read, depth] for depth in range(chain.depths[read] - 1, chain.depths[reader], -1)]
    (x, y), (to_x, to_y), half = places[read], places[reader], _HEIGHT // 2
    passed = [(left + side, top + half) for left, top in between for side in (0, _WIDTH)]
    return [(x + _WIDTH, y + half), *passed, (to_x, to_y + half)]


def _found(roots: Sequence[Node]) -> _Chain:
    """The tensors nearest to the roots, as many as are drawn."""
    chain = _Chain()
    queue = deque(roots[:_MOST_ROWS])
    chain.depths.update(dict.fromkeys(queue, 0))
    counts: dict[int, int] = {}
    while queue:
        reader = queue.popleft()
        depth = chain.depths[reader] + 1
        for read in dict.fromkeys(upstream.node for upstream in reader.computation.inputs):
            if read not in chain.depths:
                if len(chain.depths) >= _MOST_BOXES or counts.get(depth, 0) >= _MOST_ROWS:
                    chain.cut[reader] = chain.cut.get(reader, 0) + 1
                    continue
                chain.depths[read] = depth
                counts[depth] = counts.get(depth, 0) + 1
                queue.append(read)
            chain.arrows.append((read, reader))
    # A tensor stands to the left of all that read it. There are few, and no circles.
    for _ in chain.depths:
        for read, reader in chain.arrows:
            chain.depths[read] = max(chain.depths[read], chain.depths[reader] + 1)
    return chain


def name_of_f(f: Any) -> str:
    """What an ``f`` is called, or the function that it wraps."""
    for _ in range(_MOST_WRAPPED):
        f = f.func if isinstance(f, partial) else getattr(f, "__wrapped__", f)
    if f is None:
        return "none"
    found = getattr(f, "__qualname__", None)
    return found.rpartition("<locals>.")[2] if isinstance(found, str) else type(f).__name__.lstrip("_")


def _lines(node: Node) -> Iterator[str]:
    """The id, or of a tensor without one its function; and what it holds."""
    name = name_of_f(node.computation.f)
    yield node.spec.tensor_id if node.tensor.named else name
    dtype = str(node.spec.dtype).removeprefix("torch.")
    yield f"{name}, {dtype}" if node.tensor.named else dtype


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"


def _box(node: Node, x: int, y: int, *, root: bool) -> str:
    first, second = _lines(node)
    frame = {"fill": "currentColor", "fill_opacity": ".08", "stroke": "currentColor"}
    style = "font-family:system-ui,sans-serif;font-size:11px;"
    return element(
        "g",
        element("title", escaped(f"{node.spec.tensor_id}: {node.spec.shape}")),
        element("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=4, stroke_opacity=".9" if root else ".4", **frame),
        element("text", escaped(_cut(first)), x=x + 8, y=y + 15, fill="currentColor", style=f"{style}font-weight:600;"),
        element("text", escaped(_cut(second)), x=x + 8, y=y + 29, fill="currentColor", fill_opacity=".7", style=style),
    )


def _arrow(way: Sequence[tuple[int, int]]) -> str:
    (x, y), *rest = way
    line = f"M{x} {y}"
    for to_x, to_y in rest:
        bend = (to_x - x) // 2
        line += f"C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
        x, y = to_x, to_y
    tip = f"M{x - 6} {y - 4}L{x} {y}L{x - 6} {y + 4}"
    return element("path", d=line + tip, fill="none", stroke="currentColor", stroke_opacity=".5", stroke_width="1.2")


def _more(count: int, x: int, y: int) -> str:
    style = "font-family:system-ui,sans-serif;font-size:11px;"
    at = {"x": x - 6, "y": y + _HEIGHT // 2 + 14, "text_anchor": "end", "fill": "currentColor"}
    return element("text", escaped(f"+{count} more"), fill_opacity=".7", style=style, **at)
