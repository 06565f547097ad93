"""`StoredOnly`: a view of the stored pixels of a tensor."""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from infinite_tensor.engine.assemble import open_views
from infinite_tensor.engine.chain import Node, node_of
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.formulas import never_lacks
from infinite_tensor.engine.locality import settle
from infinite_tensor.engine.reads import Views
from infinite_tensor.filling.readable import Readable
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Block, Selection, SelectionBlocks, parse, parts_inside
from infinite_tensor.geometry.window import Shape, WindowGrid
from infinite_tensor.support.allocation import IN_PARTS, new_block, new_result
from infinite_tensor.support.interrupts import store_call
from infinite_tensor.tilestore.access import Access
from infinite_tensor.values.definition import Number, pixel_value

if TYPE_CHECKING:
    import dask.array
    import xarray
    from matplotlib.axes import Axes

    from infinite_tensor.tensor import InfiniteTensor

_AT_ONCE_BYTES = 2**24
"""About how many bytes of tiles are looked up at once."""
_AT_ONCE = 2**12


class StoredOnly(Readable[torch.Tensor]):
    """A view of a tensor with stored pixels only.

    Reads never compute windows. Each tile is shown as a whole or not at all. If `InfiniteTensor.coverage` reports that
    a tile needs no computation, its pixels are the same as in the tensor. Otherwise all its pixels are `fill_value`,
    even if some of its windows are stored. Tiles stored later, by this or another process, appear in the view too.

    Attributes
    ----------
    tensor : InfiniteTensor
        The tensor.
    fill_value : number
        The value of pixels in missing tiles.
    nodata : number or None
        The nodata value for exported files and arrays: `fill_value` if the user gave one, otherwise None.
    """

    def __init__(self, tensor: InfiniteTensor, fill_value: Number | None) -> None:
        self.tensor = tensor
        self.nodata = fill_value
        self.fill_value: Number = 0 if fill_value is None else fill_value
        pixel_value("fill_value", self.fill_value, self.dtype)

    @property
    def _node(self) -> Node:
        return node_of(self.tensor)

    @property
    def shape(self) -> Shape:
        """The shape of the tensor; None for an unbounded dimension."""
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
        """The device of results."""
        return self._node.spec.device

    def _read(self, regions: Sequence[object], _workers: int | None) -> Sequence[torch.Tensor]:
        selections = [parse(region, self.shape, self._node.spec.labels) for region in regions]
        return [stored_pixels(self._node, selection, self.fill_value) for selection in selections]

    def to_xarray(
        self, region: object = None, coords: Mapping[str, Any] | None = None, *, lazy: bool = True
    ) -> xarray.DataArray:
        """Return an xarray DataArray of the stored pixels.

        The parameters are as for `InfiniteTensor.to_xarray`. The attribute ``_FillValue`` is `nodata`.
        """
        # Imported here because views import tensors.
        from infinite_tensor.views.arrays import xarray_of  # noqa: PLC0415

        return xarray_of(self, region, coords, lazy=lazy)

    def to_dask(self, region: object = None, chunks: Any = "tiles") -> dask.array.Array:
        """Return a Dask array of the stored pixels.

        The parameters are as for `InfiniteTensor.to_dask`. Each array gets a new name in Dask, because more pixels may
        be stored later.
        """
        # Imported here because views import tensors.
        from infinite_tensor.views.arrays import dask_of  # noqa: PLC0415

        return dask_of(self, region, chunks)

    def export(self, region: object = ..., target: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Export stored pixels to a file or Zarr group.

        The options are as for `InfiniteTensor.export`. The nodata value of the target is `nodata`.
        """
        self.tensor.export(region, target, compute=False, fill_value=self.nodata, **options)

    def show(self, region: object = None, **options: Any) -> Axes:
        """Show stored pixels as an image.

        The options are as for `InfiniteTensor.show`. All other pixels stay blank.
        """
        return self.tensor.show(region, compute=False, **options)

    def __repr__(self) -> str:
        return (
            f"StoredOnly(shape={self.shape}, dtype={self.dtype}, tensor_id={self._node.spec.tensor_id!r}, "
            f"fill_value={self.fill_value!r}, tile_store={self._node.store})"
        )


@torch.inference_mode(mode=False)
def stored_pixels(
    node: Node, selection: Selection, fill_value: Number, missing: torch.Tensor | None = None
) -> torch.Tensor:
    """Read the stored pixels of a region, with `fill_value` elsewhere.

    By default, a tile with missing windows is `fill_value` as a whole. To read the finished pixels of such tiles too,
    give `missing`, a bool tensor of the size of the selection: it is set to True for pixels that could not be read, and
    to False for all others.
    """
    contents = node.contents
    parts = parts_inside(selection, node.spec.shape) if all(selection.size) else []
    in_part: set[Index] = set()
    for part, _ in parts if missing is not None else ():
        in_part.update(contents.inventory(node.spec, part.start, part.stop).partial)
    with store_call(contents, CLAIMS):
        contents.flush_if_requested()
        while True:
            with open_views() as views:
                for part, _ in parts[:1]:
                    _settle(node, part, views)
                access = views.of(node)
                spec = node.spec
                out = new_result(selection.size, spec.dtype, spec.device, IN_PARTS)
                try:
                    if parts:
                        out.fill_(pixel_value("fill_value", fill_value, spec.dtype))
                    for part, place in parts:
                        lacks = None if missing is None else missing[place]
                        _copy(node, access, part, out[place], lacks, in_part)
                except Exception:
                    if not views.moved:
                        raise
                # If the tensor was moved to another dtype or device meanwhile, read again.
                if not views.moved:
                    return selection.pick(out)


@torch.inference_mode(mode=False)
def whole_pixels(node: Node, selections: Sequence[Selection]) -> list[torch.Tensor | None]:
    """Read regions inside complete tiles.

    Each region must lie inside one tile. Return None for a region in an incomplete tile.
    """
    contents = node.contents
    with store_call(contents, CLAIMS):
        contents.flush_if_requested()
        with open_views() as views:
            if all(selections[0].size):
                _settle(node, selections[0], views)
            access, spec, layout = views.of(node), node.spec, contents.layout(node.spec)
            tiles = [tuple(map(operator.floordiv, each.start, layout.tile_shape)) for each in selections]
            whole, found = set(access.whole(tiles)), []
            for selection, tile in zip(selections, tiles, strict=True):
                out = new_block(selection.size, spec.dtype, spec.device) if tile in whole else None
                if out is not None:
                    (block,) = blocks = SelectionBlocks.of(selection, layout.grid.window)
                    blocks.fill(block, out, access.read)
                found.append(out)
            return found


def _settle(node: Node, selection: Selection, views: Views) -> None:
    # Other formulas have missing windows, and are not read.
    if never_lacks(node):
        settle(node, ([*selection.start], [*selection.stop]), views)


def _copy(
    node: Node,
    access: Access,
    selection: Selection,
    out: torch.Tensor,
    missing: torch.Tensor | None,
    in_part: Container[Index],
) -> None:
    layout = node.contents.layout(node.spec)
    if missing is not None:
        missing.fill_(True)
    # Each block lies in one tile.
    blocks = SelectionBlocks.of(selection, layout.grid.window).cut(1)
    rest = iter(blocks)
    at_once = min(max(1, _AT_ONCE_BYTES // layout.tile_bytes), _AT_ONCE)
    while some := list(itertools.islice(rest, at_once)):
        tiles = [tuple(map(operator.floordiv, block.start, layout.tile_shape)) for block in some]
        whole = set(access.whole(tiles))
        for block, tile in zip(some, tiles, strict=True):
            if tile in whole:
                blocks.fill(block, out, access.read)
                if missing is not None:
                    missing[block.place] = False
            elif missing is not None and tile in in_part:
                lacks = _lacking(node.spec.grid, access, block)
                blocks.fill(block, missing, partial(_write, lacks))
                blocks.fill(block, out, partial(_read_around, access, lacks))
        access.keep(None)


def _lacking(grid: WindowGrid, access: Access, block: Block) -> torch.Tensor:
    starts = np.array([block.start], dtype=np.int64)
    missing = access.add(starts, starts + block.shape)
    lows, highs = grid.pixels(missing, missing + 1)
    lows, highs = np.maximum(lows - starts, 0), np.maximum(highs - starts, 0)
    lacks = torch.zeros(block.shape, dtype=torch.bool, device="cpu")
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        lacks[tuple(map(slice, low, high))] = True
    return lacks


def _write(pixels: torch.Tensor, _start: Index, box: torch.Tensor) -> None:
    box.copy_(pixels)


def _read_around(access: Access, lacks: torch.Tensor, start: Index, box: torch.Tensor) -> None:
    """Read a block into `box`, without the pixels marked in `lacks`.

    The block is read in rectangular parts without marked pixels.
    """
    sides = []
    for d, extent in enumerate(lacks.shape):
        changes = lacks.diff(dim=d).movedim(d, 0).reshape(extent - 1, lacks.numel() // extent).any(1)
        borders = [0, *(changes.nonzero().flatten() + 1).tolist(), extent]
        sides.append([slice(a, b) for a, b in itertools.pairwise(borders)])
    for part in itertools.product(*sides):
        if not lacks[tuple(along.start for along in part)]:
            access.read([first + along.start for first, along in zip(start, part, strict=True)], box[part])
