"""`InfiniteTensor`, an immutable tensor with unbounded dimensions, computed on demand."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack, cast

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.construction import Located, check_dims, checked_shared, in_store
from infinite_tensor.engine import assemble, compiled
from infinite_tensor.engine.chain import Computation, Node, TensorInStore, node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.fill import Request, coverage
from infinite_tensor.filling.fillable import Fillable
from infinite_tensor.filling.mask import placed
from infinite_tensor.filling.stored_only import StoredOnly
from infinite_tensor.geometry.batching import Batching
from infinite_tensor.geometry.regions import box_inside, boxes_inside, parse
from infinite_tensor.geometry.window import EdgeName, Shape, TensorWindow
from infinite_tensor.operators import Operators, is_comparison
from infinite_tensor.outputs import Output
from infinite_tensor.refusals import check_finite, example_of, refuse_torch
from infinite_tensor.support.functions import Formula, RegionWriter
from infinite_tensor.support.given import (
    array_advice,
    checked_flag,
    checked_workers,
    members,
    quoted,
)
from infinite_tensor.support.nested import show
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.tilestore.inventory import TileState
from infinite_tensor.tilestore.map_cache import forget_after, map_cache
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.checks import (
    check_callable,
    check_on_device,
    move_target,
    stand_in,
)
from infinite_tensor.values.coarse import Method
from infinite_tensor.values.definition import (
    Blend,
    BlendName,
    Json,
    Number,
    names_of,
)
from infinite_tensor.values.dtypes import checked_dtype
from infinite_tensor.values.fingerprint import Item
from infinite_tensor.values.meaning import PixelCode, nodata_of
from infinite_tensor.values.reduction import Reduction
from infinite_tensor.values.spec import TensorSpec

if TYPE_CHECKING:
    import dask.array
    import xarray
    import zarr
    from matplotlib.axes import Axes

    from infinite_tensor.groups import TensorGroup
    from infinite_tensor.pipelines.checking import HaloCheck
    from infinite_tensor.views.exports.export import ExportOptions
    from infinite_tensor.views.statistics import Stats
    from infinite_tensor.views.viewer.page import View


class SupportsAsTensor(Protocol):
    """An object accepted as an arg of an InfiniteTensor, such as a `TensorBlob`."""

    def as_tensor(self) -> InfiniteTensor:
        """Return the tensor to read in place of this object."""


@refuse_torch
class InfiniteTensor(Operators, Fillable[torch.Tensor]):
    """Read-only array with unbounded or finite dimensions.

    Slicing returns a `torch.Tensor`. A deterministic function `f` computes the tensor window by window. A read calls
    `f` for the windows that intersect the region and are not stored yet, and stores these windows.

    Parameters
    ----------
    shape : tuple of (int or None)
        Extent per dimension in pixels; None for an unbounded dimension, which also has negative coordinates, and a
        `Periodic` for one that goes around.
    f : callable
        ``f(ctx, *regions) -> tensor`` computes one window. `ctx` is the window index, a tuple of ints with one entry
        per dimension; `regions` are the parts of `args` that `args_windows` select. `f` must return a tensor of shape
        ``output_window.size``, of `dtype`, on `device`, with the same values each time it is called with the same
        `ctx`. It runs under `torch.no_grad`. With a `batch_size`, it gets lists and returns a list or one stacked
        tensor.
    output_window : TensorWindow
        Which pixels a window covers.
    args : sequence of InfiniteTensor or TensorBlob, optional
        Upstream tensors. A `TensorBlob` is read through its `as_tensor()`. Stores, dtypes and devices of upstream
        tensors may differ from those of this tensor. Nothing is converted.
    args_windows : sequence of TensorWindow, optional
        One per arg. ``f(ctx, ...)`` gets the region of the arg covered by window `ctx` of this `TensorWindow`.
    dtype : torch.dtype or str
        Element type, or its name: bool, or any integer, floating or complex type.
    device : torch.device or str
        The device for windows from `f` and for results of reads.
    tile_store : TileStore, str or path, optional
        The store for windows. A path or an fsspec URL is opened as by `open_store`. In one process, all tensors with
        the same path or URL share one store object. Default: a new `MemoryTileStore` without limits.
    tensor_id : str, optional
        The name under which the store finds the tensor again. Default: a random one.
    batch_size : int or tuple of int, optional
        The largest number of windows in one call of `f`, or a tuple of the allowed numbers, which must contain 1.
    blend : callable, WeightedMean or str, optional
        How overlapping windows are combined. A function is elementwise, ``blend(existing, incoming) -> combined``, and
        applied in lexicographic order of window index; on the CPU it gets flat blocks, of shape ``(N,)``. ``"max"`` is
        `torch.maximum`, ``"min"`` is `torch.minimum`. Like any function, these start from `blend_init`: for a maximum
        of values below 0, set it to ``-math.inf``. ``"first"`` and ``"last"`` keep the first or the last window over a
        pixel. ``"mean"``, ``"linear"``, ``"hann"`` and ``"gaussian"`` stand for a `WeightedMean`; such an object is
        accepted too. Default: the sum.
    blend_init : number, optional
        The value of a pixel before its first window, and of a pixel that no window covers. Default: 0.
    edge : "drop", "clip" or "all", or a sequence of them, optional
        What happens to windows that would reach past a finite dimension. "drop": there are no such windows. "clip" and
        "all": ``f`` computes them, and the part outside of the tensor is discarded; "clip" has just enough windows to
        cover the dimension, "all" has every window that overlaps it. Give one for all dimensions, or a sequence with
        one per dimension. Default: "drop".
    args_padding : str or ("constant", number), or a sequence of them, optional
        The values that `f` gets beyond the ends of an arg's finite dimensions, named as in `numpy.pad`: "edge",
        "reflect", "symmetric", "wrap", or "constant", with 0 or another value. Give one for all args, or a sequence
        with one per arg. The entry of an arg may itself be a sequence with one per dimension, and None for an unbounded
        or periodic dimension. Default: "error": a window that reaches past the end of an arg is an error.
    version : JSON value, optional
        Anything that identifies what `f` computes: a number, a seed, the `digest` of a network, or a dict of settings.
        It is stored, and compared when the tensor is built again.
    dims : tuple of str, optional
        Names of the dimensions, such as ``("c", "y", "x")``, for messages and for other programs that open the store.
        They are stored when the tensor is created. When it is built again, they may be omitted, but different names are
        an error.
    reduce : Reduction, optional
        How blended pixels are reduced before they are stored: for example, a hundred scores to the label of the highest
        score. `f` then returns windows in the shape described at `Reduction`.
    coordinates : bool
        Whether `f` gets one more argument: ``f(ctx, *regions, start)``. `start` is a tuple with the coordinates of the
        first pixel of the region of the first arg, or of the window if there are no args. With a `batch_size`, it is a
        list of tuples.

    Raises
    ------
    ValidationError
        If an argument is not valid, or the store contains another tensor under `tensor_id`.

    Examples
    --------
    >>> def f(ctx):
    ...     return torch.full((2, 2), float(sum(ctx)))
    >>> t = InfiniteTensor((None, None), f, TensorWindow((2, 2)))
    >>> t[-1:3, 0]
    tensor([-1.,  0.,  0.,  1.])
    """

    def __init__(
        self,
        shape: Sequence[int | None],
        f: Callable[..., Any],
        output_window: TensorWindow,
        args: Sequence[InfiniteTensor | SupportsAsTensor] | None = None,
        args_windows: Sequence[TensorWindow] | None = None,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        tile_store: TileStore | str | os.PathLike[str] | None = None,
        tensor_id: str | uuid.UUID | None = None,
        batch_size: int | tuple[int, ...] | None = None,
        blend: Blend | BlendName | None = None,
        blend_init: Number | None = None,
        version: object = None,
        edge: EdgeName | Sequence[EdgeName | None] = "drop",
        args_padding: object = None,
        dims: Sequence[str] | None = None,
        reduce: Reduction | None = None,
        coordinates: bool = False,
    ) -> None:
        batching = Batching.of(batch_size)
        args = _checked_args(args)
        if checked_flag("coordinates", coordinates):
            check_callable(f)
            f = Located(f, next(iter(members(args_windows) or ()), output_window))
        shared = checked_shared(f, args, args_windows, args_padding, device, tensor_id, version)
        spec = shared.spec(Output(shape, dtype, output_window, blend, blend_init, edge, dims, reduce))
        is_cached = isinstance(f, Formula) and tile_store is None and tensor_id is None
        if isinstance(f, Formula) and tile_store is None:
            # Other tensors may have the same id, and cannot share a cache with this one.
            tile_store = map_cache() if is_cached else MemoryTileStore(map_cache().cache_size_bytes)
        (stored,) = in_store([spec], tile_store, shared, args, named=tensor_id is not None)
        (node,) = Computation.registered([stored], f, batching, map(node_of, args)).nodes
        check_dims(spec, node)
        self._bind(node, args)
        if is_cached:
            forget_after(self, self.tensor_id)

    def _bind(self, node: Node, args: tuple[InfiniteTensor, ...]) -> None:
        self._args: tuple[InfiniteTensor, ...] = args
        self._sources: Mapping[tuple[int, ...], InfiniteTensor] = {}  # of `pyramid`
        self._node = node
        node.token = compiled.token_of(node)

    @classmethod
    def from_multi(
        cls,
        f: Callable[..., Any],
        outputs: Mapping[str, Any],
        args: Sequence[InfiniteTensor | SupportsAsTensor] | None = None,
        args_windows: Sequence[TensorWindow] | None = None,
        device: torch.device | str = "cpu",
        tile_store: TileStore | str | os.PathLike[str] | None = None,
        tensor_id: str | uuid.UUID | None = None,
        batch_size: int | tuple[int, ...] | None = None,
        version: object = None,
        args_padding: object = None,
    ) -> TensorGroup:
        """Create several tensors from a function with several outputs.

        Each call of `f` returns a window of every output. When a read of one output calls `f`, the windows of the other
        outputs are stored too, so each window is computed once.

        Parameters
        ----------
        f : callable
            ``f(ctx, *regions) -> dict`` computes a window of each output: a dict, or a `tensordict.TensorDict`, with
            the keys of `outputs` and no others. `ctx` is the window index, which is the same for all outputs. With a
            `batch_size` it gets lists, and returns a list of dicts, or one dict of lists or stacked tensors.
        outputs : dict of str to Output
            The outputs of `f`; dicts may nest. Each entry of `ctx` is the window index along one dimension of an
            output. The `dimension_map` of the output's window says which dimension this is.
        args, args_windows, args_padding, device, tile_store, batch_size, version
            As for `InfiniteTensor`; all outputs are in one store.
        tensor_id : str, optional
            The tensors get the ids ``tensor_id/key``. Default: a random id.

        Returns
        -------
        TensorGroup
            The tensors, nested like `outputs`. They share the dimensions along which `ctx` moves windows. Regions of
            the group are given in pixels of the first output. Other outputs may be finer or coarser, by a factor that
            follows from the strides of their windows. Each output is an ordinary tensor with a separate array in the
            store: it can be read, filled, moved and reopened by itself, and it can be an arg of other tensors.

        Raises
        ------
        ValidationError
            If an argument is not valid, or the store contains another tensor under one of the ids.

        Examples
        --------
        >>> def f(ctx):
        ...     height = torch.full((2, 2), float(sum(ctx)))
        ...     return {"height": height, "sea": height < 1}
        >>> window = TensorWindow((2, 2))
        >>> height = Output((None, None), torch.float32, window)
        >>> sea = Output((None, None), torch.bool, window)
        >>> world = InfiniteTensor.from_multi(f, {"height": height, "sea": sea})
        >>> world["sea"][0:3, 0]
        tensor([ True,  True, False])
        """
        batching = Batching.of(batch_size)
        args = _checked_args(args)
        shared = checked_shared(f, args, args_windows, args_padding, device, tensor_id, version)
        specs = shared.specs(outputs)
        stored = in_store(specs.values(), tile_store, shared, args, named=tensor_id is not None)
        tensors = tensors_of(stored, f, batching, args, cls)
        for spec, tensor in zip(specs.values(), tensors, strict=True):
            check_dims(spec, node_of(tensor))
        # Imported here, because groups build on tensors.
        from infinite_tensor.groups.group import group_of_outputs  # noqa: PLC0415

        return group_of_outputs(dict(zip(specs, tensors, strict=True)))

    def _reaches(self) -> Mapping[str, object]:
        """Return the parts of this tensor that enter the fingerprint of a function referring to the tensor.

        This is the definition and, of a tensor without an id, ``f`` and the args. The functions of a tensor with an id
        are compared when it is built, and an object with methods for several tensors holds all of them only later.
        """
        named = self._node.tensor.named
        name = f"tensor {self.tensor_id!r}" if named else "a tensor"
        found: dict[str, object] = {name: Item(name, f"#{self._spec.definition.digest}", "state")}
        args = {f"{name}.args[{at}]": arg for at, arg in enumerate(self.args)}
        return found if named else {**found, f"{name}.f": self.f, **args}

    @property
    def _spec(self) -> TensorSpec:
        return self._node.tensor.spec

    @property
    def shape(self) -> Shape:
        """Extent per dimension, None for an unbounded dimension."""
        return self._spec.shape

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions.

        Dimensions without a name are called ``dim_0``, ``dim_1``, ... by their number.
        """
        return names_of(self._spec.definition.dims, self.ndim)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self._spec.dtype

    @property
    def device(self) -> torch.device:
        """Device of the windows from ``f`` and of the results of reads."""
        return self._spec.device

    @property
    def f(self) -> Callable[..., Any] | None:
        """Function to compute windows, or None for a tensor opened without ``f``."""
        return self._node.computation.f

    @property
    def args(self) -> tuple[InfiniteTensor, ...]:
        """Upstream tensors."""
        return self._args

    @property
    def args_windows(self) -> tuple[TensorWindow, ...]:
        """Windows on the args, one per arg."""
        return tuple(arg.window for arg in self._spec.definition.args)

    @property
    def args_padding(self) -> tuple[tuple[str | tuple[str, Number], ...], ...]:
        """Padding beyond the ends of each arg, per dimension.

        A constant comes with its value.
        """
        return tuple(
            ("error",) * arg.window.ndim
            if arg.padding is None
            else tuple(mode if value is None else (mode, value) for mode, value in arg.padding)
            for arg in self._spec.definition.args
        )

    @property
    def output_window(self) -> TensorWindow:
        """Output window: the pixels covered by each window."""
        return self._spec.definition.output_window

    @property
    def edge(self) -> tuple[EdgeName, ...]:
        """Treatment of windows reaching past a finite dimension: "drop", "clip" or "all", per dimension.

        It is "wrap" for a `Periodic` dimension.
        """
        return cast("tuple[EdgeName, ...]", self._spec.definition.edge or ("drop",) * self.ndim)

    @property
    def batch_size(self) -> int | tuple[int, ...] | None:
        """Largest number of windows in a call of ``f``, or a tuple of allowed numbers."""
        return self._node.computation.batching.given

    @property
    def blend(self) -> Blend | None:
        """Blend of overlapping windows: a function, a `WeightedMean`, ``"first"`` or ``"last"``.

        None is the sum. Other names are resolved: ``"max"`` becomes `torch.maximum`, ``"hann"`` becomes
        ``WeightedMean("hann")``.
        """
        return self._spec.blend

    @property
    def blend_init(self) -> Number | None:
        """Value of a pixel before the first window; None is 0."""
        return self._spec.blend_init

    @property
    def reduce(self) -> Reduction | None:
        """Reduction of blended pixels before storing, or None."""
        return self._spec.reduction

    @property
    def version(self) -> Json:
        """Version given by the user, as a JSON value."""
        version: Json = self._spec.definition.values()["version"]
        return version

    @property
    def tensor_id(self) -> str:
        """Name of this tensor in the store."""
        return self._spec.tensor_id

    uuid = tensor_id

    @property
    def tile_store(self) -> TileStore:
        """Store of the windows."""
        return self._node.store

    def to_json(self) -> dict[str, Json]:
        """Return the definition as JSON.

        The definition is everything that determines the pixels; functions are represented by their fingerprints, as
        they were before the first calls. The entry ``"device"`` is for information only: the tensor may be built again
        on another device.
        """
        definition = self._spec.definition
        return definition.to_json() | {"functions": definition.functions.identity.to_json(), "device": str(self.device)}

    def _read(self, regions: Sequence[object], workers: int | None) -> Sequence[torch.Tensor]:
        self._node.computation.warn_of_other_code()
        spec = self._node.tensor.spec
        request = self._node, [parse(region, spec.definition.shape, spec.labels) for region in regions]
        read_together = compiled.read_together if torch.compiler.is_compiling() else assemble.read_together
        (found,) = read_together([request], workers)
        return found

    def iter_regions(self, regions: Iterable[object], *, workers: int | None = None) -> Iterator[list[torch.Tensor]]:
        """Read a sequence of regions in full batches, and yield finished regions.

        Parameters
        ----------
        regions : iterable
            Regions as for ``tensor[...]``; `sl` creates them. The iterable is consumed only as needed, and may be
            endless.
        workers : int, optional
            As for `read`.

        Yields
        ------
        list of torch.Tensor
            The next finished regions. The lists together are equal to ``tensor[list(regions)]``. Memory is used only
            for the regions in progress, and for the caches of upstream tensors' stores.
        """
        workers = checked_workers(workers)
        return assemble.stream(
            self._node, (parse(region, self.shape, self._spec.labels) for region in regions), workers
        )

    def coverage(self, region: object = ..., state: TileState | None = None, where: object = None) -> torch.Tensor:
        """Return a mask of the tiles readable without computing.

        The mask has an entry for each tile that touches the region. The entry is True if no window of the tile is
        missing. Formulas and sources of arrays and images, of which nothing can be missing, count as stored; formulas
        over windows do not.

        Parameters
        ----------
        region : optional
            As for a read. Default: all of it, if no dimension is unbounded.
        state : {"stored", "missing", "uncovered", "skipped"}, optional
            Return instead whether each tile is in this state. "stored": all windows over the tile are stored.
            "missing": some are not, and a fill computes them. "uncovered": no window covers the tile, so nothing is
            ever stored for it. "skipped": the mask leaves the tile out, and it is not stored. Default: return False for
            tiles that are "missing", and True for all others.
        where : optional
            The mask of a `fill`; a fill with the same mask computes the tiles that are "missing", and none that are
            "skipped".

        Returns
        -------
        torch.Tensor
            A bool for each tile; the shape is the number of tiles along each dimension.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of this tensor.
        ValidationError
            If `state` is none of the above, or "skipped" without a mask, or the mask does not cover the region.
        """
        box = box_inside(parse(region, self.shape, self._spec.labels), self.shape, "the region of coverage")
        return coverage(Request(self, box, placed(where, self.dims, box)), state)

    def stored_only(self, fill_value: Number | None = None) -> StoredOnly:
        """Return a view of the stored pixels.

        The view never computes windows.

        Parameters
        ----------
        fill_value : number, optional
            The value of pixels whose tile is missing. Files and arrays made from the view declare it as nodata, so
            choose a value that no pixel has. Default: 0, which is not declared as nodata.

        Returns
        -------
        StoredOnly
            The view is read like the tensor, and has `to_xarray`, `to_dask`, `export` and `show`.

        Raises
        ------
        ValidationError
            If the tensor's dtype cannot represent `fill_value`.
        """
        return StoredOnly(self, fill_value)

    def _requests(self, region: object, where: object = None) -> list[Request]:
        selection = parse(region, self.shape, self._spec.labels)
        if where is None:
            return [Request(self, box) for box in boxes_inside(selection, self.shape)]
        box = box_inside(selection, self.shape, "a region with a mask")
        return [Request(self, box, placed(where, self.dims, box))]

    def _tensors(self) -> list[InfiniteTensor]:
        return [self]

    def stats(
        self,
        region: object = None,
        *,
        where: object = None,
        compute: bool = False,
        workers: int | None = None,
    ) -> Stats:
        """Compute statistics of pixels.

        These are count, range, mean, standard deviation and quantiles, and the number of pixels per label. Pixels are
        read once, part by part, in bounded memory. Memory stores keep few of the computed windows. The result depends
        neither on the store nor on the order of reads.

        Parameters
        ----------
        region : optional
            As for a read. Default: all of a bounded tensor; all stored pixels of an unbounded tensor.
        where : Mask, array, tensor, InfiniteTensor or callable, optional
            A mask of the pixels to count, as for `fill`, but applied pixel by pixel. A callable is called for each
            tile. It returns one bool for the whole tile, or an array with one entry per pixel of the mask.
        compute : bool
            Whether missing windows are computed and stored, as by a read. Otherwise only tiles that need no computation
            are used (see `coverage`), and `Stats.missing` says how many pixels are left out. Of sources, such as
            `from_raster`, all pixels are read.
        workers : int, optional
            As for `read`.

        Returns
        -------
        Stats
            Its `count` is 0 if nothing is stored. NaN pixels and nodata pixels of a raster are counted separately.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of this tensor, or if it is omitted although the tensor is
            unbounded and ``compute=True``.
        ValidationError
            If the dtype is complex, or a mask does not cover the region.

        Examples
        --------
        >>> def f(ctx):
        ...     return torch.full((4, 4), float(ctx[0]))
        >>> t = InfiniteTensor((None, None), f, TensorWindow((4, 4)))
        >>> found = t.stats(sl[0:12, 0:4], compute=True)
        >>> found.count, found.mean, found.max
        (48, 1.0, 2.0)
        >>> found.quantile([0.02, 0.98])
        [0.0, 2.0]
        """
        # Imported here, because views build on tensors.
        from infinite_tensor.views.statistics import stats_of  # noqa: PLC0415

        return stats_of(self, self._nodata, region, where, compute, workers)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move to another device or dtype, in place.

        Takes the arguments of `torch.Tensor.to`. Stored tiles move too. With another dtype, only tiles whose pixels are
        each the value of one window are converted, and the others are computed again. Afterwards, ``f`` must return
        windows of the new dtype on the new device.

        Raises
        ------
        TypeError
            If an argument is unknown or given twice, and for ``copy=True``.
        ValidationError
            If the store cannot convert what it keeps, or `f` is a function of this library with a fixed dtype and
            device, such as that of `noise`. In this case nothing has been changed.
        """
        args = tuple(_as_target(arg) for arg in args)
        kwargs = {name: _as_target(arg) for name, arg in kwargs.items()}
        device, dtype = move_target(self.device, self.dtype, args, kwargs)
        if (device, dtype) != (self.device, self.dtype):
            if isinstance(self.f, RegionWriter):
                raise ValidationError(
                    f"tensor {self.tensor_id!r} cannot be moved from {self.dtype} on {self.device} to {dtype} on "
                    f"{device}: {self.f.instead(dtype, device)}"
                )
            check_on_device(self._spec.moved(device, dtype))
            contents = contents_of(self.tile_store)
            # The lock prevents reads in between, with the former dtype or device.
            with contents.lock:
                moved = self._spec.moved(device, dtype)
                contents.migrate(self._spec, moved)
                self._node.tensor.spec = moved
        return self

    def coarsen(
        self,
        factor: int | Sequence[int],
        method: Method = "mean",
        *,
        sources: Mapping[int | tuple[int, ...], InfiniteTensor] | None = None,
        store: TileStore | str | os.PathLike[str] | None = None,
        tensor_id: str | None = None,
    ) -> InfiniteTensor:
        """Return a coarser tensor, computed from blocks of pixels.

        Pixel ``i`` of the result summarizes pixels ``[i * factor, (i + 1) * factor)`` of this tensor.

        Parameters
        ----------
        factor : int or tuple of int
            How many pixels become one. An int applies to the dimensions named z, y and x, or, if no dimension has a
            name, to the last two; a tuple has one entry per dimension. At most 65,536 pixels become one.
        method : str
            - "mean": the mean. Pixels are added in lexicographic order, 16-bit floats in float32 and integers in int64.
              Means of integers are rounded, half to even. NaN and nodata are left out; a block with nothing else
              becomes NaN or nodata.
            - "max", "min": the largest or smallest pixel; NaN and nodata are left out likewise.
            - "mode": the most frequent value, for labels; the smallest one if several are equally frequent.
            - "nearest": the first pixel.

            bool has no mean, floats have no mode, complex dtypes and uint64 have only "nearest".
        sources : dict of (int or tuple of int) to InfiniteTensor, optional
            Coarser tensors that stand for this one, by how many of its pixels become one of theirs. The result is
            computed from the coarsest of them of which `factor` is a multiple; if there is none, from this tensor. A
            map of mountains as large as continents needs no pebbles. The pixels are those of the source, so they are as
            near to the means of this tensor as you have made them.
        store, tensor_id : optional
            As for `InfiniteTensor`. Without a `store`, the result is a formula, computed where it is read and not kept.

        Returns
        -------
        InfiniteTensor
            The coarser tensor, of the same dtype. Extents are rounded up. Pixels beyond an end of this tensor do not
            count. Position, coordinates and nodata are derived from those of this tensor. A store that contains both
            tensors can reopen the result by its id, and compute it, without an ``f``.

        Raises
        ------
        ValidationError
            If an argument is not valid.

        Examples
        --------
        >>> t = InfiniteTensor(
        ...     (5, 4), lambda ctx: torch.arange(20.0).view(5, 4), TensorWindow((5, 4))
        ... )
        >>> t.coarsen(2)[...]
        tensor([[ 2.5000,  4.5000],
                [10.5000, 12.5000],
                [16.5000, 18.5000]])
        """
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.pyramid import coarsen  # noqa: PLC0415

        return coarsen(self, factor, method, self._nodata, store, tensor_id, sources)

    def pyramid(
        self,
        levels: int | None = None,
        method: Method | None = None,
        store: TileStore | str | os.PathLike[str] | None = None,
        *,
        sources: Mapping[int | tuple[int, ...], InfiniteTensor] | None = None,
    ) -> list[InfiniteTensor]:
        """Return overviews of this tensor, each with half the resolution of the previous level.

        Each level is made as by ``coarsen(2)``. Levels are stored as ``<tensor_id>/level-1``, ``<tensor_id>/level-2``
        and so on. A read of a level computes missing windows. ``fill(region, pyramid=True)`` computes the levels ahead.

        Parameters
        ----------
        levels : int, optional
            The number of levels. Default: as many as it takes until no coarsened dimension is longer than 512.
        method : str, optional
            As for `coarsen`. Default: the method of stored levels, if there are any; otherwise "mode" for bool and for
            labels of ``argmax``, "nearest" for other dtypes without a mean, and "mean" for the rest. A pixel of
            "mean" is the mean of all pixels of this tensor that it covers, but integers are rounded at each level, and
            near NaN and nodata it is the mean of the valid pixels of the level before. A
            pixel of "mode" is the most frequent of the pixels that it covers in the level before.
        store : TileStore, str or path, optional
            The store for the levels. Default: the store of this tensor.
        sources : dict of (int or tuple of int) to InfiniteTensor, optional
            Coarser tensors that stand for this one, as for `coarsen`: with ``{16: far}``, level 4 is `far`, and levels
            from 5 on are computed from it. This object remembers them for further pyramids, such as those of `fill`,
            `view` and `serve`.

        Returns
        -------
        list of InfiniteTensor
            The levels, level 1 first. Each level is an ordinary tensor. ``store.open("<tensor_id>/level-2")`` reopens a
            level, which can compute its windows.

        Raises
        ------
        ValidationError
            If an argument is not valid, in particular if `levels` is omitted and a dimension is unbounded, if this
            tensor is a source and `store` is omitted, or if the store contains levels of another method.
        """
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.pyramid import pyramid  # noqa: PLC0415

        return pyramid(self, levels, method, self._nodata, store, sources)

    @property
    def _nodata(self) -> PixelCode | None:
        return nodata_of(self._spec.definition)

    def map(
        self,
        fn: Callable[..., torch.Tensor],
        *,
        halo: object = 0,
        window: object = None,
        overlap: object = 0,
        blend: Blend | BlendName = "gaussian",
        scale: object = 1,
        channels: object = None,
        dims: Sequence[str | int] | None = None,
        padding: object = "reflect",
        batch_size: int | tuple[int, ...] | None = None,
        coordinates: bool = False,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        store: TileStore | str | os.PathLike[str] | None = None,
        tensor_id: str | None = None,
        version: object = None,
    ) -> InfiniteTensor:
        """Apply a function or network to regions of this tensor.

        Equal to `map_windows` with this tensor as the only input.

        Parameters
        ----------
        fn : callable
            ``fn(region) -> tensor``, or a network. With ``coordinates=True``, ``fn(region, start)``.
        halo, window, overlap, blend, scale, channels, dims, padding, batch_size, coordinates, dtype, device, store, \
tensor_id, version
            As for `infinite_tensor.map_windows`.

        Returns
        -------
        InfiniteTensor
            The results of `fn`, computed on demand.

        Raises
        ------
        ValidationError
            If an argument is not valid, or the store contains another tensor under `tensor_id`.
        """
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.map import map_windows  # noqa: PLC0415

        return map_windows(
            fn,
            self,
            halo=halo,
            window=window,
            overlap=overlap,
            blend=blend,
            scale=scale,
            channels=channels,
            dims=dims,
            padding=padding,
            batch_size=batch_size,
            coordinates=coordinates,
            dtype=dtype,
            device=device,
            store=store,
            tensor_id=tensor_id,
            version=version,
        )

    def astype(self, dtype: torch.dtype) -> InfiniteTensor:
        """Return a lazy tensor with the pixels in another dtype, converted as by `torch.Tensor.to`.

        The tensor itself stays as it is, unlike after `to`.
        """
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.arithmetic import computed  # noqa: PLC0415

        return computed(torch.Tensor.to, [self, checked_dtype(dtype)])

    def crop(self, region: object) -> InfiniteTensor:
        """Return a lazy tensor of a region, whose first pixel is pixel 0.

        Parameters
        ----------
        region
            As for a read, without steps. An int drops the dimension.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of this tensor.
        ValidationError
            If the region has steps.

        Examples
        --------
        >>> t = InfiniteTensor(
        ...     (None,), lambda ctx: torch.arange(4.0) + 4 * ctx[0], TensorWindow((4,))
        ... )
        >>> t.crop(slice(-2, 8)).shape
        (10,)
        """
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.arithmetic import crop  # noqa: PLC0415

        return crop(self, region)

    def periodic(self, *dims: str | int) -> InfiniteTensor:
        """Return the tensor with dimensions whose ends join, by name or number, as for the raster of a planet.

        The result is lazy, and has a `Periodic` extent along each of `dims`.

        Raises
        ------
        ValidationError
            If an entry is not a finite dimension of this tensor.

        Examples
        --------
        >>> row = InfiniteTensor(
        ...     (4,), lambda ctx: torch.arange(4.0), TensorWindow((4,)), dims=("x",)
        ... )
        >>> row.periodic("x")[-2:5]
        tensor([2., 3., 0., 1., 2., 3., 0.])
        """
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.arithmetic import periodic  # noqa: PLC0415

        return periodic(self, dims)

    def describe(
        self,
        *,
        dims: Sequence[str] | None = None,
        crs: object = None,
        transform: Sequence[float] | None = None,
        nodata: Number | None = None,
        colours: Mapping[int, str] | None = None,
        units: str | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> InfiniteTensor:
        """Say what the pixels of this tensor mean.

        This is stored beside the definition, also of a tensor that has been stored without, and is no part of the
        definition: ids and stored pixels stay as they are. What is given replaces what was said before. Pictures,
        files, `to_xarray`, the server and later runs show it. Tensors that are already computed from this one keep
        what they know.

        Parameters
        ----------
        dims : sequence of str, optional
            The names of the dimensions.
        crs : optional
            The coordinate reference system, as rasterio takes it: ``"EPSG:32632"``, a number, WKT or a CRS.
        transform : affine.Affine or 6 numbers, optional
            Where pixels lie: ``(a, b, c, d, e, f)`` of x = a * column + b * row + c, y = d * column + e * row + f, for
            the outer corner of a pixel.
        nodata : number, optional
            The value of missing pixels.
        colours : dict of int to str, optional
            The names and colours of labels, as in ``{0: "sea #24a", 1: "forest #22aa77"}``.
        units : str, optional
            The units of pixels.
        attributes : dict, optional
            Any other attributes, with JSON values.

        Returns
        -------
        InfiniteTensor
            The tensor with all this, in the same store and with the same id.

        Raises
        ------
        ImportError
            If rasterio is missing and a `crs` is given.
        ValidationError
            If an argument is not valid, or the store is read-only.

        Examples
        --------
        >>> labels = noise((None, None), seed=1).map(lambda x: (x > 0.5).byte())
        >>> colours = {0: "sea #24a", 1: "land #2a7"}
        >>> labels.describe(dims=("y", "x"), colours=colours).dims
        ('y', 'x')
        """
        # Imported here, because it builds on tensors.
        from infinite_tensor.describing import describe  # noqa: PLC0415

        return describe(self, dims, crs, transform, nodata, colours, units, attributes)

    def or_else(self, other: InfiniteTensor | SupportsAsTensor) -> InfiniteTensor:
        """Return a lazy tensor with the stored pixels of this one, and the pixels of another elsewhere.

        This tensor is never computed, and may have been opened without ``f``: what is stored of an old world is blended
        into a new one. A pixel counts as stored once all windows over it are. It is looked up at each read, so give the
        result a `store` by ``map`` only if no more pixels will be stored.

        Parameters
        ----------
        other : InfiniteTensor or TensorBlob
            A tensor of the same shape and dtype. Only the box around missing pixels of a region is computed.

        Raises
        ------
        ValidationError
            If shapes or dtypes differ.
        """
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.arithmetic import or_else  # noqa: PLC0415

        return or_else(self, other)

    def check(self, region: object) -> HaloCheck:
        """Check that pixels of a map do not depend on where its windows lie.

        Computes the region once more with twice the halo, and once in windows that begin elsewhere. A filter that
        looks farther than its `halo`, or a network that sees the ends of its window, gives other pixels then. Nothing
        is stored but the region itself, as by a read.

        Parameters
        ----------
        region
            As for a read. It should have several windows along each dimension.

        Returns
        -------
        HaloCheck
            The pixels that change by more than rounding. ``print`` says it in a sentence.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of this tensor.
        ValidationError
            If the tensor is not from `map` or `map_windows`, or its windows overlap.

        Examples
        --------
        >>> ramp = InfiniteTensor(
        ...     (None,), lambda ctx: torch.rand(4), TensorWindow((4,))
        ... )
        >>> def mean_of_five(x):
        ...     return torch.nn.functional.avg_pool1d(x[None], 5, 1, 2)[0]
        >>> print(ramp.map(mean_of_five, halo=2, window=8).check(slice(0, 64)))
        none of 64 pixels changes with a larger halo or in shifted windows
        >>> ramp.map(mean_of_five, halo=1, window=8).check(slice(0, 64)).share > 0
        True
        """
        # Imported here, because pipelines build on tensors.
        from infinite_tensor.pipelines.checking import check  # noqa: PLC0415

        return check(self, region)

    def as_zarr(self, region: object = None) -> zarr.Array[Any]:
        """Return a read-only Zarr array of pixels, computed on demand.

        Dask and other libraries for Zarr arrays accept the array. For xarray, use ``array.store``, the group that
        contains the array. A chunk is a tile. Reading a chunk reads the tensor: computed windows are stored, and
        simultaneous reads do not compute a window twice. The array may be read on any thread, in coroutines, and by
        ``f`` itself. Exceptions of ``f`` are raised unchanged. An exception that would end an event loop becomes the
        ``__cause__`` of a RuntimeError instead.

        Parameters
        ----------
        region : optional
            The pixels of the array: a slice for each dimension, as in ``sl[:, -512:512, 0:4096]``. Chunks begin at its
            first pixel. Default: all of a finite dimension, and about ``-2**30`` to ``2**30`` of an unbounded one.
            ``...`` is all of a finite tensor.

        Returns
        -------
        zarr.Array
            Its name is the last part of `tensor_id`, if that was given; otherwise "values", or "values_" if a dimension
            is called "values". Element ``[i, j]`` is pixel ``[i - origin[0], j - origin[1]]``, where `origin` is in
            ``array.attrs["infinite_tensor"]``. For each dimension of up to ``2**27`` pixels, the group also contains a
            one-dimensional array of coordinates, named after the dimension. A longer dimension ``y`` is named
            ``y_index``, because xarray counts from the first pixel of the array where it finds no coordinates.
            bfloat16, which zarr lacks, becomes float32.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of this tensor.
        ValidationError
            If the region is empty, or has a step, or an int in place of a slice.
        """
        # Imported here, because views build on tensors.
        from infinite_tensor.views.face import zarr_of  # noqa: PLC0415

        return zarr_of(self, region)

    def to_xarray(
        self, region: object = None, coords: Mapping[str, Any] | None = None, *, lazy: bool = True
    ) -> xarray.DataArray:
        """Return an `xarray.DataArray` of a region, computed on demand.

        Parameters
        ----------
        region : optional
            As for `as_zarr`, with the same default.
        coords : mapping of str to array, optional
            Coordinates by name of dimension, for some or all dimensions. Default: those of the raster or DataArray
            that the tensor reads or is computed from, otherwise pixel numbers.
        lazy : bool
            Whether values are read each time they are used; ``array.load()`` keeps them. Otherwise they are read now.

        Returns
        -------
        xarray.DataArray
            Its name is the last part of `tensor_id`, if that was given, and its dimensions are `dims`. bfloat16, which
            numpy lacks, becomes float32. Coordinates take no memory. xarray cannot align a dimension of more than
            ``2**24`` pixels with an ordinary array; select a part of it first.

        Raises
        ------
        ImportError
            If xarray is missing.
        RegionError
            (an IndexError) If `region` is not a valid region of this tensor.
        ValidationError
            If the region is empty, or has a step, or an int in place of a slice; or if `coords` do not match it.
        """
        # Imported here, because views build on tensors.
        from infinite_tensor.views.arrays import xarray_of  # noqa: PLC0415

        return xarray_of(self, region, coords, lazy=lazy)

    def to_dask(self, region: object = None, chunks: Any = "tiles") -> dask.array.Array:
        """Return a `dask.array` of a region.

        Computing a chunk reads the pixels from the tensor. `dask.array.asarray` accepts a finite tensor directly.
        `dask.array.from_array` does not, because the dtype is a torch dtype. Give it ``t.as_zarr()`` instead.

        Parameters
        ----------
        region : optional
            As for `as_zarr`, with the same default. For an unbounded tensor, give a region: the default has more chunks
            than Dask accepts.
        chunks : optional
            "tiles" for a chunk per tile, cut at the ends of the region, or any `chunks` of Dask: "auto", an int, a
            tuple.

        Returns
        -------
        dask.array.Array
            The array. bfloat16, which numpy lacks, becomes float32. Arrays created after an `invalidate` of the tensor,
            or of a tensor upstream, get a new name, so that Dask does not reuse outdated chunks. Until then, arrays of
            a stored tensor have the same name in all processes.

        Raises
        ------
        ImportError
            If Dask is missing.
        RegionError
            (an IndexError) If `region` is not a valid region of this tensor.
        ValidationError
            If the region is empty, or has a step, or an int in place of a slice; or if `chunks` do not match it.
        """
        # Imported here, because views build on tensors.
        from infinite_tensor.views.arrays import dask_of  # noqa: PLC0415

        return dask_of(self, region, chunks)

    def to_dask_array(self) -> dask.array.Array:
        """Return a `dask.array` of a finite tensor.

        `dask.array.asarray`, `stack` and `concatenate` call this method.

        Returns
        -------
        dask.array.Array
            All pixels, as from `to_dask`.

        Raises
        ------
        RegionError
            (an IndexError) If a dimension is unbounded.
        """
        return self.to_dask(...)

    def show(
        self,
        region: object = None,
        *,
        ax: Axes | None = None,
        compute: bool = True,
        every: int | None = None,
        max_pixels: int | None = None,
        **options: Any,
    ) -> Axes:
        """Draw a region with ``imshow`` of matplotlib.

        The axes show the coordinates of the region. Rows run downwards: row -1 is above row 0.

        Parameters
        ----------
        region : optional
            As for a read, with positive steps. Two dimensions are drawn as an image, one as a line. There may also
            be a dimension of 1 or 3 channels, first or last; 3 channels are colours. Use ints to choose a position
            along other dimensions. Default: all of a finite dimension, and the pixels from -256 to 256 of an unbounded
            one.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. Default: new axes.
        compute : bool
            Whether missing pixels are computed and stored, as by a read. Otherwise, they are left blank.
        every : int, optional
            Draw only every n-th of the pixels selected by the region, along each dimension of the picture. 1 draws all.
            The axes always show the coordinates of the tensor.
        max_pixels : int, optional
            Instead of `every`: the largest number of pixels to draw. `every` is then the smallest int that suffices.
            Default: ``2**20``, about a screen.
        **options
            Passed to ``ax.imshow``, or to ``ax.plot`` for one dimension: ``cmap``, ``vmin``, ``interpolation``. By
            default, whole numbers from 0 to 19 are drawn as labels, each in a different colour.

        Returns
        -------
        matplotlib.axes.Axes
            Labelled with the names of the dimensions, with a colour bar unless the pixels are colours. Complex numbers
            are drawn as their absolute values.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        RegionError
            (an IndexError) If `region` is not a valid region of this tensor.
        ValidationError
            If the region is empty, or has dimensions that cannot be drawn; if `every` or `max_pixels` is not a positive
            int, or leaves more than ``2**24`` pixels; or if both are given. No pixel is computed before the error.
        """
        # Imported here, because views build on tensors.
        from infinite_tensor.views.showing import draw  # noqa: PLC0415

        return draw(self, region, ax=ax, compute=compute, every=every, max_pixels=max_pixels, **options)

    def view(
        self, *others: InfiniteTensor, port: int = 0, budget: int = 4096, open_browser: bool | None = None
    ) -> View:
        """Open an interactive Bokeh page of the tensor.

        Drag to move, and turn the wheel to zoom. Tiles nearest to the middle appear first. Stored tiles appear at once,
        and missing tiles after `f` has computed them. Computed windows are stored, as by a read. Blue tiles are still
        to come, and grey tiles are missing and will not be computed. An exception of `f` is shown on its tile. Zoomed
        out, the page shows stored levels of a `pyramid`, or a coarser version of the stored tiles.

        Parameters
        ----------
        *others : InfiniteTensor
            Other tensors, shown next to this one, at the same coordinates.
        port : int
            The port of the page. Only this machine can reach it. Default: any free port.
        budget : int
            The largest number of windows that may be computed for the visible part of a tensor; windows of upstream
            tensors do not count. If more are missing, only stored pixels are shown; 0 computes nothing.
        open_browser : bool, optional
            Whether to open a browser. Default: True, except in notebooks, which show the page below the cell.

        Returns
        -------
        View
            The open page. Its `url` opens the page in another browser too. Append ``?y=0&x=1000&zoom=-2`` to the URL to
            open the page at a position. Call `wait()` at the end of a script, because the page ends with the script.
            `close()` ends the page.

        Raises
        ------
        ImportError
            If Bokeh is missing.
        ValidationError
            If an argument is not valid, or the tensor has fewer than two dimensions.
        """
        # Imported here, because views build on tensors.
        from infinite_tensor.views.viewer import open_view  # noqa: PLC0415

        return open_view([self, *others], port, budget, open_browser)

    def _repr_html_(self) -> str:
        # Imported here, because views build on tensors.
        from infinite_tensor.views.showing import html_of_tensor  # noqa: PLC0415

        return html_of_tensor(self)

    def export(
        self, region: object = ..., target: str | os.PathLike[str] | None = None, **options: Unpack[ExportOptions]
    ) -> None:
        """Write a region to a file or Zarr group for other programs.

        The suffix of `target` decides the format:

        - ``.zarr``: a group with one array, named after `tensor_id`, and the coordinates of its pixels along each
          dimension, for ``xarray.open_zarr(target)``. A chunk is as large as a tile; chunks begin at the first pixel of
          the region.
        - ``.npy``: an array for `numpy.load`.
        - ``.png``: an image of uint8 in grey, RGB or RGBA, or of uint16 in grey. The whole image is in memory until the
          end.
        - ``.tif``, ``.tiff``: a compressed Cloud-Optimized TIFF of any number of bands, in tiles; a BigTIFF if it could
          reach 4 GiB. Writing needs twice the final disk space. GDAL adds overviews, unless there are very many bands.
          Their pixels are means; for labels, the most frequent pixels; for complex numbers, the nearest pixels.
          If the tensor is a raster of `from_raster`, or computed from one, the file is a GeoTIFF: the centre of a
          window is placed at the centre of the region it reads, and the strides give the scale.

        Files also contain metadata of the pixels, such as coordinates and units. If some metadata cannot be written,
        one `MeaningLostWarning` lists it.

        A region of any size is written in steps. Memory stores keep few of the computed windows. The target appears
        only when it is complete. A killed process leaves a hidden ``.<name>.partial`` next to the target, or several
        files whose names begin with that. The next export reuses them. At a URL, chunks are first written to a folder
        ``__export-...`` in the target. At the end, the storage copies them to their places, and the target becomes a
        Zarr group.

        An export to Zarr of a stored tensor with a `tensor_id` resumes an equal export that was stopped. Finished parts
        are not written again, unless pixels were invalidated since. ``overwrite=True`` starts over.

        Parameters
        ----------
        region
            As for a read, without a step. May be left out for a finite tensor: ``t.export("image.png")`` writes all
            pixels. Images have 2 dimensions, or 3 with channels. The dimension of channels is the one named c, channel,
            channels, band or bands, otherwise the first. Use ints to drop other dimensions.
        target : str or path
            A local path; for Zarr, any fsspec URL too.
        **options
            See `ExportOptions`: missing pixels, format, overwriting, progress, and options of PNG and Zarr.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of this tensor.
        ValidationError
            If an argument is not valid, the target exists, or the format cannot represent the region.
        StoreError
            If something cannot be written or read.
        ImportError
            If rasterio (for TIFF) or pillow (for PNG) is missing.

        Notes
        -----
        bfloat16, which none of these formats has, becomes float32, and so does float16 in a TIFF.

        Examples
        --------
        >>> t = InfiniteTensor(
        ...     (None, None), lambda ctx: torch.ones(4, 4), TensorWindow((4, 4))
        ... )
        >>> t.export(sl[-8:8, 0:16], "ones.npy")
        >>> import numpy
        >>> numpy.load("ones.npy").shape
        (16, 16)
        """
        # Imported here, because exports build on tensors.
        from infinite_tensor.views.exports.export import export  # noqa: PLC0415

        export(self, region, target, options)

    def clear_cache(self) -> None:
        """Free the memory of cached pixels.

        Pending results are stored first. Later reads load or compute the pixels again.
        """
        self.tile_store.clear_cache(self.tensor_id)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tensor by reference.

        The pickle has the target of the store, the id, the definition and `f`, which must be picklable. A memory store
        is pickled without its windows.
        """
        # Imported here, because `opening` builds on tensors.
        from infinite_tensor.opening import reduced  # noqa: PLC0415

        return reduced(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Flush the store, without closing: other tensors may share the store."""
        self.tile_store.flush()

    def __repr__(self) -> str:
        parts = [f"shape={self.shape}"]
        if self._spec.definition.dims is not None:
            parts.append(f"dims={self.dims}")
        parts.append(f"dtype={self.dtype}")
        if self.device.type != "cpu":
            parts.append(f"device={str(self.device)!r}")
        is_formula = self._node.computation.formula is not None
        parts += [f"tensor_id={self.tensor_id!r}", *([] if is_formula else [f"output_window={self.output_window!r}"])]
        if self._spec.definition.output is not None:
            parts.append(f"output={show(self._spec.definition.output)}")
        if self.args:
            parts.append(f"args={[arg.tensor_id for arg in self.args]}")
        return f"InfiniteTensor({', '.join(parts)}, {'formula' if is_formula else f'tile_store={self.tile_store}'})"

    def __len__(self) -> int:
        extent = self.shape[0]
        if extent is None:
            raise TypeError(
                f"this InfiniteTensor has no len(): dimension {self._spec.labels[0]} is unbounded; see t.shape, or "
                "read a region"
            )
        return extent

    def __bool__(self) -> bool:
        """Return True, without a read, so that ``t or default`` works; a comparison has no single truth value."""
        if is_comparison(self.f):
            raise TypeError(
                "a comparison of InfiniteTensors has no single truth value; read a region of it, as in "
                f"bool({example_of(self)}.all()), or compare objects with `is`"
            )
        return True

    def _check_finite(self, action: str) -> None:
        check_finite(self, self._spec.labels, action)

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._check_finite("iterate over")
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: object) -> bool:
        self._check_finite("search")
        pixels: Any = self[...]
        return bool((pixels == value).any())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        self._check_finite("make an array of")
        if copy is False:
            raise ValueError("an InfiniteTensor cannot be converted to an array without a copy")
        pixels = self[...]
        # numpy has no bfloat16.
        array: npt.NDArray[Any] = (pixels.float() if self.dtype is torch.bfloat16 else pixels).numpy(force=True)
        return array if dtype is None else array.astype(np.dtype(dtype), copy=False)

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """Export all pixels, for `torch.as_tensor` and `numpy.from_dlpack`."""
        self._check_finite("make an array of")
        if copy is False:
            raise BufferError("an InfiniteTensor cannot be converted to an array without a copy")
        # A read returns a copy.
        return self[...].__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, dtype=self.dtype, device=self.device).__dlpack_device__()


def tensors_of(
    stored: Sequence[TensorInStore],
    f: Callable[..., Any] | None,
    batching: Batching,
    args: tuple[InfiniteTensor, ...],
    kind: type[InfiniteTensor] = InfiniteTensor,
) -> list[InfiniteTensor]:
    """Create and register all tensors computed by an ``f``."""
    tensors = []
    for node in Computation.registered(stored, f, batching, map(node_of, args)).nodes:
        tensor = kind.__new__(kind)
        tensor._bind(node, args)  # noqa: SLF001  (its own)
        tensors.append(tensor)
    return tensors


def _as_target(arg: Any) -> Any:
    """Replace an InfiniteTensor by an empty tensor, because `torch.Tensor.to` takes only torch tensors."""
    return torch.empty(0, dtype=arg.dtype, device=arg.device) if isinstance(arg, InfiniteTensor) else arg


def _checked_args(args: Any) -> tuple[InfiniteTensor, ...]:
    if args is not None and members(args) is None:
        raise ValidationError(f"args must be a tuple or list, got {quoted(args)}")
    tensors = as_tensors(members(args) or ())
    for at, arg in enumerate(tensors):
        if not isinstance(arg, InfiniteTensor):
            raise ValidationError(
                f"args[{at}] must be an InfiniteTensor or a TensorBlob, got {quoted(arg)}{array_advice(arg)}"
            )
    return tensors


def as_tensors(args: Sequence[Any]) -> tuple[Any, ...]:
    """Replace objects such as a `TensorBlob` by tensors.

    An object given twice becomes a single tensor.
    """
    given = {id(arg): arg for arg in args}
    tensors = {key: stand_in(arg) for key, arg in given.items()}
    return tuple(tensors[id(arg)] for arg in args)
