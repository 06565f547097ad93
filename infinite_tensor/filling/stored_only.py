"""What is stored of a tensor, and nothing else."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from infinite_tensor.engine.chain import Node, NodeHolder, node_of
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.reads import Views
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.geometry.window import Shape
from infinite_tensor.support.allocation import IN_PARTS, new_result
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.tilestore.contents import Access
from infinite_tensor.values.definition import Number, pixel_value

_AT_ONCE_BYTES = 2**24
"""Tiles of about so many bytes are looked up at once,"""
_AT_ONCE = 2**12
"""and no more than so many."""


class StoredOnly:
    """What is stored of a tensor: a view that is read as the tensor is, and never computes.

    A tile counts as a whole. Where `InfiniteTensor.coverage` tells that a tile needs no computation, its pixels are
    what a read of the tensor returns; elsewhere they are `fill_value`, windows that are stored of such a tile or not.
    What the tensor computes later, here or in another process, the view shows later.

    Attributes
    ----------
    tensor : InfiniteTensor
        What it shows.
    fill_value : number
        What stands where a tile is missing.
    """

    def __init__(self, tensor: NodeHolder, fill_value: Number) -> None:
        self.tensor = tensor
        self.fill_value = fill_value
        pixel_value("fill_value", fill_value, self.dtype)

    @property
    def _node(self) -> Node:
        return node_of(self.tensor)

    @property
    def shape(self) -> Shape:
        """Extent per dimension, None for an unbounded one."""
        return self._node.spec.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self._node.spec.dtype

    @property
    def device(self) -> torch.device:
        """Where results are."""
        return self._node.spec.device

    def __getitem__(self, indices: object) -> Any:
        """What is stored of a region, or of each of a list of regions.

        Parameters
        ----------
        indices
            As `InfiniteTensor` takes them.

        Returns
        -------
        torch.Tensor or list of torch.Tensor

        Raises
        ------
        RegionError
            (an IndexError) If `indices` is no region of the tensor.
        """
        regions = indices if isinstance(indices, list) else [indices]
        selections = [parse(region, self.shape, self._node.spec.labels) for region in regions]
        found = [stored_pixels(self._node, selection, self.fill_value) for selection in selections]
        return found if isinstance(indices, list) else found[0]

    def __repr__(self) -> str:
        return (
            f"StoredOnly(shape={self.shape}, dtype={self.dtype}, tensor_id={self._node.spec.tensor_id!r}, "
            f"fill_value={self.fill_value!r}, tile_store={self._node.store})"
        )


@torch.inference_mode(mode=False)
def stored_pixels(node: Node, selection: Selection, fill_value: Number) -> torch.Tensor:
    """What is stored of a region of a tensor, and `fill_value` where a tile is missing."""
    call, contents = store_call(), node.contents
    with call.running:
        call.begin(contents, reads=True)
        contents.flush_if_requested()
        while True:
            with Views(CLAIMS.reader(None)) as views:
                access = views.of(node)
                spec = node.spec
                box = new_result(selection.shape, spec.dtype, spec.device, IN_PARTS)
                try:
                    if box.numel():
                        box.fill_(pixel_value("fill_value", fill_value, spec.dtype))
                        _copy(node, access, selection.start, box)
                except Exception:
                    if not views.moved:
                        raise
                # To another dtype or device, meanwhile.
                if not views.moved:
                    return selection.pick(box)


def _copy(node: Node, access: Access, start: Sequence[int], out: torch.Tensor) -> None:
    """Write the pixels from `start` on that lie in whole tiles into `out`."""
    layout = node.contents.layout(node.spec)
    stop = list(map(operator.add, start, out.shape))
    tiles = itertools.product(*map(range, *layout.box(start, stop)))
    at_once = min(max(1, _AT_ONCE_BYTES // layout.tile_bytes), _AT_ONCE)
    while some := list(itertools.islice(tiles, at_once)):
        for tile in access.whole(some):
            begin, to = layout.part(tile, start, stop)
            access.read(begin, out[to])
        access.keep(None)
