"""What a notebook shows of tensors, groups, stores and what stores tell: HTML that is made without computing anything.

Whatever is wrong with a store, its tensors are shown, with a line that says so. What is asked of a store is asked on a
thread of its own, which is waited for only so long.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

from infinite_tensor.engine.chain import Node, node_of
from infinite_tensor.geometry.window import Shape
from infinite_tensor.groups.group import TensorGroup
from infinite_tensor.groups.members import shown_scale
from infinite_tensor.support.given import quoted
from infinite_tensor.support.html import code, element, escaped, facts, note, panel, table
from infinite_tensor.support.nested import show
from infinite_tensor.support.tables import bytes_of, count_of, shown_id
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.glance import StoredSize
from infinite_tensor.tilestore.stored_definition import StoredTensor
from infinite_tensor.values.dims import names_of
from infinite_tensor.views.chain_graph import chain_graph, name_of_f
from infinite_tensor.views.thumbnail import thumbnail

LONGEST_SECONDS = 3.0
"""A store that has not answered by then is told of as one that has not."""
MOST_COUNTED = 1000
"""Of more tiles it is told that there are more: a listing of S3 names so many."""
_MOST_ROWS = 12
_MOST_PICTURES = 3

P = ParamSpec("P")


def _whatever_happens(build: Callable[P, str]) -> Callable[P, str]:
    """Have an error become a line: a cell whose result cannot be shown would show a traceback of ours instead."""

    @functools.wraps(build)
    def built(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return build(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with what is shown)
            return panel(type(args[0]).__name__, "", note(_told(error)))

    return built


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  (an error of somebody else's)
        return type(error).__name__


def _looked_up(*looks: Callable[[], str]) -> list[str]:
    """The HTML that each look into a store gives, or a line that says why there is none; the same line once."""
    found: list[str] = []
    ended = threading.Event()

    def work() -> None:
        for look in looks:
            try:
                told = look()
            except BaseException as error:  # noqa: BLE001  (whatever it is, it is told)
                told = note(_told(error))
            found.append("" if told in found else told)
        ended.set()

    threading.Thread(target=work, name="infinite_tensor-look", daemon=True).start()
    ended.wait(LONGEST_SECONDS)
    told = [*found, note(f"The store has not answered within {LONGEST_SECONDS:g} s.")]
    return [*told, *[""] * len(looks)][: len(looks)]


@_whatever_happens
def html_of_tensor(tensor: InfiniteTensor) -> str:
    """What a notebook shows of a tensor."""
    node = node_of(tensor)
    name = code(tensor.tensor_id) if node.tensor.named else code(shown_id(tensor.tensor_id))
    size, picture = _looked_up(lambda: _size_of(node), lambda: thumbnail(tensor))
    rows = [*_facts_of(tensor), ("store", code(_store_told(tensor.tile_store))), ("stored", size)]
    told = element("div", facts(rows), style="flex:1 1 200px;")
    side = "display:flex;flex-wrap:wrap;align-items:flex-start;"
    return panel("InfiniteTensor", name, element("div", told, picture, style=side), chain_graph([node]))


def _facts_of(tensor: InfiniteTensor) -> Iterator[tuple[str, str]]:
    yield "shape", code(_shape_told(tensor.shape, tensor.dims))
    yield "dtype", code(str(tensor.dtype).removeprefix("torch."))
    window = tensor.output_window
    stride = "" if window.stride == window.size else f", stride {window.stride}"
    yield "window", code(f"{window.size}{stride}")
    if tensor.blend is not None:
        yield "blend", code(_blend_told(tensor.blend))
    if tensor.reduce is not None:
        yield "reduce", code(quoted(tensor.reduce))
    if {*tensor.edge} != {"drop"}:
        yield "edge", code(tensor.edge)
    if tensor.device.type != "cpu":
        yield "device", code(tensor.device)
    yield "f", code("none: what is stored is readable" if tensor.f is None else name_of_f(tensor.f))


def _shape_told(shape: Shape, dims: Sequence[str]) -> str:
    """The extents, with the names of dimensions that have some, in one line."""
    extents = ["∞" if extent is None else str(extent) for extent in shape]
    if tuple(dims) == names_of(None, len(shape)):
        told = f"({', '.join(extents)}{',' * (len(extents) == 1)})"
    else:
        told = ", ".join(f"{name}: {extent}" for name, extent in zip(dims, extents, strict=True))
    return told.replace(" ", "\u00a0")


def _blend_told(blend: object) -> str:
    return name_of_f(blend) if callable(blend) and hasattr(blend, "__qualname__") else quoted(blend)


def _store_told(store: TileStore) -> str:
    try:
        told = str(store)
    except Exception as error:  # noqa: BLE001  (a class of a user)
        told = f"{type(store).__name__}, whose str is a {type(error).__name__}"
    return told


def _size_of(node: Node) -> str:
    return "all of it lies in memory" if node.computation.copied else _size_told(node.store, node.spec.tensor_id)


def _size_told(store: TileStore, tensor_id: str, definition: dict[str, Any] | None = None) -> str:
    """How much is stored of a tensor, as HTML."""
    store.contents.check_open()
    definition = store.contents.definition_of(tensor_id) if definition is None else definition
    size = store.contents.stored_size(tensor_id, definition, MOST_COUNTED)
    return escaped("not counted: it would take a long look" if size is None else _counted(size, store))


def _counted(size: StoredSize, store: TileStore) -> str:
    what = "complete tile" if store.contents.outlives_process else "window"
    more = "" if size.counted else "at least "
    told = [f"{more}{count_of(size.tiles)} {what}{'' if size.tiles == 1 else 's'}"]
    if size.bytes is not None and size.tiles:
        told.append(f"{more}{bytes_of(size.bytes)}")
    if size.pending:
        told.append(f"{count_of(size.pending)} more in memory")
    return ", ".join(told)


@_whatever_happens
def html_of_group(group: TensorGroup) -> str:
    """What a notebook shows of a group."""
    keys: list[Any] = group.keys(include_nested=True, leaves_only=True)
    tensors = [group[key] for key in keys]
    nodes = [node_of(tensor) for tensor in tensors]
    together = len({id(node.store) for node in nodes}) == 1
    headings = ["tensor", "shape", "dtype", "shares", "id", *([] if together else ["store"])]
    rows = [
        [
            code(_key_told(key)),
            code(_shape_told(tensor.shape, tensor.dims)),
            code(str(tensor.dtype).removeprefix("torch.")),
            code(f"{group.dims(key)}{shown_scale(group.scale(key))}"),
            code(shown_id(tensor.tensor_id)),
            *([] if together else [code(_store_told(tensor.tile_store))]),
        ]
        for key, tensor in zip(keys[:_MOST_ROWS], tensors, strict=False)
    ]
    more = len(keys) - len(rows)
    pictures = _looked_up(*(functools.partial(_titled, key, group[key]) for key in keys[:_MOST_PICTURES]))
    return panel(
        "TensorGroup",
        code(_shape_told(group.shape, names_of(None, group.ndim))),
        facts([("store", code(_store_told(nodes[0].store)))]) if together else "",
        table("", headings, rows, left=len(headings)),
        note(f"and {count_of(more)} more") if more else "",
        element("div", *pictures, style="display:flex;flex-wrap:wrap;align-items:flex-start;"),
        chain_graph(nodes),
    )


def _titled(key: Any, tensor: InfiniteTensor) -> str:
    """The picture of one tensor of a group."""
    title = element("div", code(_key_told(key)), style="padding:0 10px;")
    return element("div", title, thumbnail(tensor))


def _key_told(key: Any) -> str:
    return show((key,) if isinstance(key, str) else key)


@_whatever_happens
def html_of_store(store: TileStore) -> str:
    """What a notebook shows of a store: the first of its tensors, as far as they can be looked up in time."""
    name = code(_store_told(store).removeprefix(type(store).__name__))
    if store.closed:
        return panel(type(store).__name__, name, note("The store is closed; `with store:` opens it again."))
    rows: list[list[str]] = []
    told: list[str] = []
    (problem,) = _looked_up(lambda: _list(store, rows, told))
    listed = table("", ["tensor", "shape", "dtype", "stored"], list(rows), left=4) if rows else ""
    if told and not rows and not problem:
        problem = note("It holds no tensors.")
    return panel(type(store).__name__, name, listed, *told[1:], problem)


def _list(store: TileStore, rows: list[list[str]], told: list[str]) -> str:
    """Add a row for each of the first tensors, as it is looked up."""
    ids, more = store.contents.some_ids(_MOST_ROWS)
    told.append("")
    if more:
        told.append(note(f"and {count_of(more)} more: store.tensor_ids() lists them"))
    for tensor_id in ids:
        try:
            definition = store.contents.definition_of(tensor_id)
            stored = StoredTensor.of(store, tensor_id, definition).definition
            shape = _shape_told(stored.shape, names_of(stored.dims, len(stored.shape)))
            dtype = str(stored.dtype).removeprefix("torch.")
            row = [code(shape), code(dtype), _size_told(store, tensor_id, definition)]
        except Exception as error:  # noqa: BLE001  (one that is damaged leaves the others)
            row = ["", "", escaped(_told(error))]
        rows.append([code(shown_id(tensor_id)), *row])
    return ""
