"""The plan of a read: all windows to compute in the chain, each once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from infinite_tensor.engine.chain import Computation, Input, Node, consumers_first
from infinite_tensor.engine.claims import Task
from infinite_tensor.engine.formulas import reads_of, united
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.engine.locality import settle
from infinite_tensor.engine.reads import Views
from infinite_tensor.errors import RegionError, TileAccessError, ValidationError
from infinite_tensor.geometry.points import COORDINATE_LIMIT, IntArray, as_tuples, joined
from infinite_tensor.geometry.window import followed, starts_of
from infinite_tensor.support.allocation import Array
from infinite_tensor.tilestore.access import Access
from infinite_tensor.values.checks import outside_arg

Mask: TypeAlias = npt.NDArray[np.bool_]

_REACH = 2 * COORDINATE_LIMIT
"""The limit of coordinates in halos. Pixels beyond `COORDINATE_LIMIT` are computed but not stored."""


@dataclass(frozen=True)
class Product:
    """Windows of one tensor, as computed by a task.

    Attributes
    ----------
    node : Node
        The tensor.
    access : Access
        The access of this read to the tensor's store.
    windows : int64 array of shape (N, ndim)
        The index of each window, in this tensor's coordinates.
    exists : bool array of shape (N,) or None
        Which of the windows exist in this tensor; None if all do.
    missing : bool array of shape (N,)
        Which of the windows are needed and not stored. The other windows are computed only for another output of the
        same ``f``.
    """

    node: Node
    access: Access
    windows: IntArray
    exists: Mask | None
    missing: Mask

    def absent(self, which: list[int]) -> Mask:
        """Check which windows are needed, but not stored yet.

        `which` contains the positions of the windows to check. Return an array with a bool for each of them.
        """
        absent = self.missing[which]
        if absent.any():
            absent[absent] = self.access.absent(self.windows[which][absent])
        return absent

    def deposit(self, positions: Sequence[int], outputs: Array) -> None:
        """Store windows, except windows outside of the tensor.

        `positions` are the positions of the windows, and `outputs` has the pixels.
        """
        windows = self.windows[positions]
        if self.exists is not None:
            kept = self.exists[positions]
            # Without a copy, a store can process neighbouring windows together.
            windows, outputs = windows[kept], outputs if kept.all() else outputs[kept]
        if len(windows):
            self.access.deposit(windows, outputs)


def build(wanted: Mapping[Node, IntArray], views: Views) -> list[Task]:
    """Plan a read: return the tasks for the `wanted` windows.

    `wanted` contains the missing windows returned by ``views.of(node).add()``. Each task comes before the tasks of
    its args.

    Raises
    ------
    TileAccessError
        If a tensor without ``f`` lacks windows.
    RegionError
        If an arg window reaches outside a finite dimension of its arg.
    """
    tasks: list[Task] = []
    reads: dict[Node, list[NumberedRegions]] = {}
    count = 0
    for computation, nodes in consumers_first(wanted):
        if computation.formula is not None:
            for node in reads.keys() & nodes:
                views.of(node)
                for upstream, boxes in reads_of(node, united(reads[node])):
                    reads.setdefault(upstream.node, []).append(boxes)
            continue
        needs = {node: _missing(node, wanted.get(node), reads.get(node, ()) if reads else (), views) for node in nodes}
        windows = reduce(joined, [missing[:, : computation.coordinates] for missing in needs.values()])
        if not len(windows):
            continue
        products = []
        for node in nodes if len(nodes) == len(computation.tensors) else computation.nodes:
            if computation.f is None:
                raise _unavailable(node, needs[node])
            _check_args(node)
            own = node.indices(windows)
            exists = None if len(computation.tensors) == 1 else node.spec.grid.exist(own)
            products.append(Product(node, views.of(node), own, exists, _among(own, needs.get(node))))
        sources = []
        for at, upstream in enumerate(computation.inputs):
            begin = arg_starts(computation, at, upstream, windows)
            starts, stops = upstream.reads.regions(begin)
            if len(starts):
                settle(upstream.node, (starts[0].tolist(), stops[0].tolist()), views)
            sources.append((views.of(upstream.node), begin))
            # Each region is read alone, also if it is one of a formula.
            numbers = np.arange(count, count + len(starts))
            reads.setdefault(upstream.node, []).append(NumberedRegions(numbers, starts, stops))
            count += len(starts)
        tasks.append(Task(views, computation, windows, tuple(products), tuple(sources)))
        node = products[0].node
        views.work[node] += len(windows) * math.prod(node.tensor.spec.grid.window.size)
    return tasks


def _missing(node: Node, asked: IntArray | None, read: Sequence[NumberedRegions], views: Views) -> IntArray:
    """Return the missing windows of a tensor.

    The windows in `asked` come first, followed by the windows over the boxes in `read`.
    """
    if asked is None:
        asked = np.empty((0, node.spec.grid.ndim), dtype=np.int64)
    if not [True for boxes in read if len(boxes.starts)]:
        return asked
    starts, stops = (np.concatenate(sides) for sides in zip(*((each.starts, each.stops) for each in read), strict=True))
    return joined(asked, views.of(node).add(starts, stops))


def _among(windows: IntArray, some: IntArray | None) -> Mask:
    among = np.zeros(len(windows), dtype=bool)
    if some is not None and len(some) == len(windows):
        among.fill(True)
    elif some is not None and len(some):
        known = set(as_tuples(some))
        among[:] = [index in known for index in as_tuples(windows)]
    return among


def _check_args(node: Node) -> None:
    if not node.contents.outlives_process:
        return
    # The definition and the stored data belong to the args before a move.
    for at, (upstream, arg) in enumerate(zip(node.computation.inputs, node.spec.definition.args, strict=True)):
        if upstream.node.spec.definition.digest != arg.digest:
            raise ValidationError(
                f"args[{at}] of tensor {node.spec.tensor_id!r} has been moved to {upstream.node.spec.dtype}, but "
                f"{node.store!s} may contain windows computed earlier; move args[{at}] back, or build a new tensor "
                "with the moved arg"
            )


def arg_starts(computation: Computation, at: int, upstream: Input, windows: IntArray) -> IntArray:
    """Return the first pixel of an arg for each window.

    There must be at least one window.

    Raises
    ------
    RegionError
        If a window reaches beyond the arg in a finite dimension without padding, or beyond 2**52 pixels in any
        dimension.
    """
    outside = reach_error(computation, at, upstream, windows.min(axis=0).tolist(), windows.max(axis=0).tolist())
    if outside is not None:
        raise outside
    return starts_of(upstream.window, windows)


def reach_error(
    computation: Computation, at: int, upstream: Input, first: Sequence[int], last: Sequence[int]
) -> RegionError | None:
    """Return the error for windows reaching too far beyond an arg, or None.

    In a finite dimension without padding, windows must stay inside the arg. In all other dimensions, windows may reach
    `_REACH` pixels. `first` and `last` are the smallest and largest coordinates of the windows.
    """
    window, spec = upstream.window, upstream.node.spec
    for d, (k, extent) in enumerate(zip(followed(window), spec.shape, strict=True)):
        low, high = ((0 if k is None else side[k]) * window.stride[d] + window.offset[d] for side in (first, last))
        high += window.size[d]
        if extent is not None and (low < 0 or high > extent) and d not in upstream.reads.padded:
            return outside_arg(computation.names, at, spec.tensor_id, spec.labels[d], low, high, extent)
        if max(-low, high) > _REACH:
            return RegionError(
                f"args_windows[{at}] of {computation.names} must stay between -2**52 and 2**52, got pixels "
                f"{low} .. {high - 1} in dimension {d} of {spec.tensor_id!r}; read coordinates closer to 0, or give "
                "args_windows a smaller stride or offset"
            )
    return None


def _unavailable(node: Node, windows: IntArray) -> TileAccessError:
    spec = node.spec
    starts, stops = spec.grid.bounds(windows)
    low, high = starts.min(axis=0), stops.max(axis=0)
    region = ", ".join(f"{a}:{b}" for a, b in zip(low.tolist(), high.tolist(), strict=True))
    count = f"{len(windows)} windows within [{region}] are" if len(windows) > 1 else f"1 window within [{region}] is"
    several = spec.definition.output is not None
    again = "create all outputs again with InfiniteTensor.from_multi or predict"
    return TileAccessError(
        f"tensor {spec.tensor_id!r} was opened without f, and {count} not stored; "
        f"{again if several else f'open it with store.open({spec.tensor_id!r}, f=...)'} to compute them"
    )
