"""`InfiniteTensor`: an immutable tensor with unbounded dimensions, computed on demand."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine import assemble, compiled
from infinite_tensor.engine.chain import Computation, Node, TensorInStore, node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.fill import Request, coverage
from infinite_tensor.filling.fillable import Fillable
from infinite_tensor.filling.mask import placed
from infinite_tensor.filling.progress import Watcher
from infinite_tensor.filling.stored_only import StoredOnly
from infinite_tensor.geometry.batching import Batching
from infinite_tensor.geometry.regions import Region, parse
from infinite_tensor.geometry.window import Shape, TensorWindow
from infinite_tensor.outputs import Output, Shared
from infinite_tensor.support.functions import Unmovable
from infinite_tensor.support.given import array_advice, checked_device, checked_id, checked_workers, members, quoted
from infinite_tensor.support.nested import show
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.tilestore.messages import mismatch, warn_of_uncovered
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.blend import check_blend
from infinite_tensor.values.checks import (
    check_args,
    check_callable,
    check_windows,
    checked_paddings,
    checked_windows,
    move_target,
    stand_in,
)
from infinite_tensor.values.definition import ArgDefinition, Blend, Json, Number, Padding, contradict, names_of
from infinite_tensor.values.fingerprint import Item
from infinite_tensor.values.meaning import Code, nodata_of
from infinite_tensor.values.reduction import Reduction, check_reduction
from infinite_tensor.values.spec import TensorSpec

if TYPE_CHECKING:
    import dask.array
    import xarray
    import zarr
    from matplotlib.axes import Axes

    from infinite_tensor.groups import TensorGroup
    from infinite_tensor.views.statistics import Stats
    from infinite_tensor.views.viewer.page import View


class SupportsAsTensor(Protocol):
    """What can stand for an InfiniteTensor among the args of another one: a `TensorBlob`, say."""

    def as_tensor(self) -> InfiniteTensor:
        """The tensor that it stands for."""


class InfiniteTensor(Fillable):
    """A read-only array whose dimensions may be unbounded; slicing it returns a `torch.Tensor`.

    A deterministic function `f` computes its windows. A read calls `f` for the windows that intersect the region and
    are not stored yet, and stores them.

    Parameters
    ----------
    shape : tuple of (int or None)
        Extent per dimension in pixels; None for an unbounded one, which has negative coordinates too.
    f : callable
        ``f(ctx, *regions) -> tensor`` computes one window. `ctx` is the window index, a tuple of ints with
        one entry per dimension; `regions` are the parts of `args` that `args_windows` select. It must
        return a tensor of shape ``output_window.size``, of `dtype`, on `device`, and always the same one
        for the same `ctx`. It runs under `torch.no_grad`. With a `batch_size` it is given lists and returns
        a list or one stacked tensor.
    output_window : TensorWindow
        Which pixels a window covers.
    args : sequence of InfiniteTensor or TensorBlob, optional
        Upstream tensors; a `TensorBlob` stands for its `as_tensor()`. They may live in other stores, dtypes and
        devices; nothing is converted.
    args_windows : sequence of TensorWindow, optional
        One per arg: the region that `f` is given of it, in coordinates of this tensor's `ctx`.
    dtype : torch.dtype or str
        Element type, or its name; any of bool, the integers, the floats and the complex types.
    device : torch.device or str
        Where `f` returns its windows and reads return their results.
    tile_store : TileStore, str or path, optional
        Where windows are kept. A path or an fsspec URL is a store as `open_store` opens it, which all tensors of this
        process share that name it. Default: a fresh `MemoryTileStore` without limits.
    tensor_id : str, optional
        The name under which the store finds the tensor again. Default: a random one.
    batch_size : int or tuple of int, optional
        Most windows in one call of `f`; a tuple lists the sizes that are allowed, and contains 1.
    blend : callable, WeightedMean or str, optional
        What a pixel is that several windows cover. Elementwise ``blend(existing, incoming) -> combined``, applied in
        lexicographic order of window index; on the CPU it is given flat blocks, of shape ``(N,)``. ``"max"`` is
        `torch.maximum`, ``"min"`` is `torch.minimum`; like any function they start from `blend_init`, so give
        ``-math.inf`` for a maximum of values below 0. ``"first"`` and ``"last"`` keep the first or the last window
        over a pixel. Or a `WeightedMean`, for which ``"mean"``, ``"linear"``, ``"hann"`` and ``"gaussian"`` stand.
        Default: the sum.
    blend_init : number, optional
        What a pixel holds before its first window, and where there is none. Default: 0.
    edge : "drop", "clip" or "all", or a sequence of them, optional
        What happens to windows that would reach past a finite dimension: they are dropped; or ``f`` computes them, and
        what lies outside of the tensor is dropped. With "clip" there are just enough windows to cover the dimension,
        with "all" all that meet it. One for all dimensions, or one per dimension. Default: "drop".
    args_padding : str or ("constant", number), or a sequence of them, optional
        What `f` is given beyond the ends of the finite dimensions of an arg, in the words of `numpy.pad`: "edge",
        "reflect", "symmetric", "wrap", or "constant", with 0 or another value. One for all args, or one per arg, which
        may be a sequence with one per dimension, None for an unbounded one. Default: "error", a window that leaves an
        arg is an error.
    version : JSON value, optional
        Anything that identifies what `f` computes: a number, a seed, the `digest` of a network, or a dict of settings.
        It is stored, and compared when the tensor is built again.
    dims : tuple of str, optional
        Names of the dimensions, such as ``("c", "y", "x")``, for messages and for other programs that open what is
        stored. They are stored when the tensor is created; later they may be left out, and other ones are an error.
    reduce : Reduction, optional
        What is stored of each pixel, where that is less than its windows hold: the label of the highest of a hundred
        scores, say. `f` then returns the windows that a `Reduction` describes.

    Raises
    ------
    ValidationError
        If an argument does not fit, or the store holds another tensor under `tensor_id`.

    Examples
    --------
    >>> t = InfiniteTensor((None, None), lambda ctx: torch.full((2, 2), float(sum(ctx))), TensorWindow((2, 2)))
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
        blend: Blend | str | None = None,
        blend_init: Number | None = None,
        version: object = None,
        edge: str | Sequence[str | None] = "drop",
        args_padding: object = None,
        dims: Sequence[str] | None = None,
        reduce: Reduction | None = None,
    ) -> None:
        batching = Batching.of(batch_size)
        shared, args = _shared(f, args, args_windows, args_padding, device, tensor_id, version)
        spec = shared.spec(Output(shape, dtype, output_window, blend, blend_init, edge, dims, reduce))
        (stored,) = _in_store([spec], tile_store, shared, args, named=tensor_id is not None)
        (node,) = Computation.registered([stored], f, batching, map(node_of, args)).nodes
        _check_dims(spec, node)
        self._bind(node, args)

    def _bind(self, node: Node, args: tuple[InfiniteTensor, ...]) -> None:
        self._args: tuple[InfiniteTensor, ...] = args
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
        """Tensors that one function computes together: each call returns a window of each.

        A window runs once for all of them: what a read of one makes `f` compute of the others is stored too.

        Parameters
        ----------
        f : callable
            ``f(ctx, *regions) -> dict`` computes a window of each output: a dict, or a `tensordict.TensorDict`, with
            the keys of `outputs` and no others. `ctx` has one entry for each window coordinate that the outputs follow.
            With a `batch_size` it is given lists, and returns a list of dicts, or one dict of lists or stacked tensors.
        outputs : dict of str to Output
            What it computes; dicts in it may nest. Every output follows all coordinates of `ctx`; its window's
            `dimension_map` says with which dimensions.
        args, args_windows, args_padding, device, tile_store, batch_size, version
            As for `InfiniteTensor`; all outputs are in one store.
        tensor_id : str, optional
            The tensors get the ids ``tensor_id/key``. Default: a random one.

        Returns
        -------
        TensorGroup
            The tensors, nested as `outputs`. They share the dimensions that follow `ctx`, in pixels of the first one;
            others may be finer or coarser, by their strides. Each is an ordinary tensor: it is stored in an array of
            its own, and may be read, filled, moved and reopened on its own, and be an arg of others.

        Raises
        ------
        ValidationError
            If an argument does not fit, or the store holds another tensor under one of the ids.

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
        shared, args = _shared(f, args, args_windows, args_padding, device, tensor_id, version)
        specs = shared.specs(outputs)
        stored = _in_store(specs.values(), tile_store, shared, args, named=tensor_id is not None)
        tensors = tensors_of(stored, f, batching, args, cls)
        for spec, tensor in zip(specs.values(), tensors, strict=True):
            _check_dims(spec, node_of(tensor))
        # Groups are made of tensors.
        from infinite_tensor.groups.group import group_of_outputs  # noqa: PLC0415

        return group_of_outputs(dict(zip(specs, tensors, strict=True)))

    def _reaches(self) -> Mapping[str, object]:
        """What another tensor's ``f`` that reads this one is looked at for: the definition, and what it computes."""
        name = f"tensor {self.tensor_id!r}" if self._node.tensor.named else "a tensor"
        args = {f"{name}.args[{at}]": arg for at, arg in enumerate(self.args)}
        return {name: Item(name, f"#{self._spec.definition.digest}", "state"), f"{name}.f": self.f, **args}

    @property
    def _spec(self) -> TensorSpec:
        return self._node.tensor.spec

    @property
    def shape(self) -> Shape:
        """Extent per dimension, None for an unbounded one."""
        return self._spec.shape

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions; one without a name is ``dim_0``, ``dim_1``, ... by its number."""
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
        """Where ``f`` returns windows and reads return results."""
        return self._spec.device

    @property
    def f(self) -> Callable[..., Any] | None:
        """The function that computes windows; None where the tensor was opened without one."""
        return self._node.computation.f

    @property
    def args(self) -> tuple[InfiniteTensor, ...]:
        """Upstream tensors."""
        return self._args

    @property
    def args_windows(self) -> tuple[TensorWindow, ...]:
        """The window through which each arg is read."""
        return tuple(arg.window for arg in self._spec.definition.args)

    @property
    def args_padding(self) -> tuple[tuple[str | tuple[str, Number], ...], ...]:
        """What stands beyond the ends of each arg, per dimension; a constant comes with its value."""
        return tuple(
            ("error",) * arg.window.ndim
            if arg.padding is None
            else tuple(mode if value is None else (mode, value) for mode, value in arg.padding)
            for arg in self._spec.definition.args
        )

    @property
    def output_window(self) -> TensorWindow:
        """Which pixels a window covers."""
        return self._spec.definition.output_window

    @property
    def edge(self) -> tuple[str, ...]:
        """What happens to windows that reach past a finite dimension: "drop", "clip" or "all", per dimension."""
        return self._spec.definition.edge or ("drop",) * self.ndim

    @property
    def batch_size(self) -> int | tuple[int, ...] | None:
        """Most windows in one call of ``f``, or the allowed numbers."""
        return self._node.computation.batching.given

    @property
    def blend(self) -> Blend | None:
        """How overlapping windows are combined: by a function, a `WeightedMean`, ``"first"``, ``"last"``; None sums.

        Other names are what they stand for: ``"max"`` is `torch.maximum`, ``"hann"`` is ``WeightedMean("hann")``.
        """
        return self._spec.blend

    @property
    def blend_init(self) -> Number | None:
        """What a pixel holds before its first window; None is 0."""
        return self._spec.blend_init

    @property
    def reduce(self) -> Reduction | None:
        """What is stored of blended pixels; None where that is all of them."""
        return self._spec.reduction

    @property
    def version(self) -> Json:
        """The version that was given, as JSON holds it."""
        version: Json = self._spec.definition.values()["version"]
        return version

    @property
    def tensor_id(self) -> str:
        """The name under which the store keeps this tensor."""
        return self._spec.tensor_id

    uuid = tensor_id

    @property
    def tile_store(self) -> TileStore:
        """Where windows are kept."""
        return self._node.store

    def to_json(self) -> dict[str, Json]:
        """The definition, as JSON: what decides the values, and the fingerprints of the functions.

        The device, which is no part of what a store compares, is told as well.
        """
        return self._spec.definition.to_json() | {"device": str(self.device)}

    @overload
    def __getitem__(self, indices: list[Any]) -> list[torch.Tensor]: ...
    @overload
    def __getitem__(self, indices: Region) -> torch.Tensor: ...
    @overload
    def __getitem__(self, indices: object) -> Any: ...

    def __getitem__(self, indices: object) -> Any:
        """Read a region, or a list of regions in one plan.

        Parameters
        ----------
        indices : int, slice, Ellipsis or tuple of them, or a list of such regions
            A negative number is a coordinate in an unbounded dimension and counts from the end in a finite
            one. A slice over an unbounded dimension needs both ends; steps may be negative. With steps, only
            windows that hold a pixel of the result are computed.

        Returns
        -------
        torch.Tensor or list of torch.Tensor
            Pixels of `dtype` on `device` that share no memory with anything else.

        Raises
        ------
        RegionError
            (an IndexError) If `indices` is no region of this tensor.
        TileAccessError
            If pixels are missing and the tensor was opened without ``f``.
        """
        return self.read(indices)

    @overload
    def read(self, indices: list[Any], *, workers: int | None = None) -> list[torch.Tensor]: ...
    @overload
    def read(self, indices: Region, *, workers: int | None = None) -> torch.Tensor: ...
    @overload
    def read(self, indices: object, *, workers: int | None = None) -> Any: ...

    def read(self, indices: object, *, workers: int | None = None) -> Any:
        """``tensor[indices]``, with a say in how it is carried out.

        Parameters
        ----------
        indices
            A region or a list of regions, as ``tensor[...]`` takes them; `sl` writes them.
        workers : int, optional
            On how many threads the windows of this read are computed, by an ``f`` that may run on several at a time.
            The pixels are the same. Default: what the store of each tensor says.

        Returns
        -------
        torch.Tensor or list of torch.Tensor
        """
        workers = checked_workers(workers)
        regions = indices if isinstance(indices, list) else [indices]
        self._node.computation.warn_of_other_code()
        spec = self._spec
        request = self._node, [parse(region, spec.definition.shape, spec.labels) for region in regions]
        read_together = compiled.read_together if torch.compiler.is_compiling() else assemble.read_together
        (found,) = read_together([request], workers)
        return found if isinstance(indices, list) else found[0]

    def iter_regions(self, regions: Iterable[object], *, workers: int | None = None) -> Iterator[list[torch.Tensor]]:
        """Read regions one after the other, in full batches, and yield them as they are ready.

        Parameters
        ----------
        regions : iterable
            Regions as `tensor[...]` takes them; `sl` writes them. Drawn only as needed, so it may be endless.
        workers : int, optional
            As for `read`.

        Yields
        ------
        list of torch.Tensor
            The next regions that are ready; concatenated they equal ``tensor[list(regions)]``. Only what
            the regions in progress need is held; of tensors upstream, what their stores keep.
        """
        workers = checked_workers(workers)
        return assemble.stream(
            self._node, (parse(region, self.shape, self._spec.labels) for region in regions), workers
        )

    def coverage(self, region: object, state: str | None = None, where: object = None) -> torch.Tensor:
        """Which tiles of a region need no computation, as a bool for each tile that it touches.

        In memory a tile is a block of about 256 KiB.

        Parameters
        ----------
        region
            As a read takes it.
        state : {"stored", "missing", "uncovered", "skipped"}, optional
            Show the tiles in one state instead. "stored": all windows over the tile are there. "missing": some are not;
            a fill computes them. "uncovered": no window covers the tile, so that nothing is ever stored of it.
            "skipped": the mask leaves the tile out, and it is not stored. Default: all but the missing ones.
        where : optional
            The mask of a `fill`, which computes what is missing and not skipped.

        Returns
        -------
        torch.Tensor
            Its shape has the number of tiles along each dimension.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of this tensor.
        ValidationError
            If `state` is none of these, or "skipped" without a mask, or the mask does not cover the region.
        """
        (request,) = self._requests(region, where)
        return coverage(request, state)

    def stored_only(self, fill_value: Number | None = None) -> StoredOnly:
        """A view of what is stored, which never computes.

        Parameters
        ----------
        fill_value : number, optional
            What stands where a tile is missing, and what files and arrays that are made of the view call nodata: choose
            one that no pixel has. Default: 0, which they do not call so.

        Returns
        -------
        StoredOnly
            It is read as the tensor is, and has `to_xarray`, `to_dask`, `export` and `show`.

        Raises
        ------
        ValidationError
            If the dtype of the tensor has no such value.
        """
        return StoredOnly(self, fill_value)

    def _requests(self, region: object, where: object = None) -> list[Request]:
        selection = parse(region, self.shape, self._spec.labels)
        return [Request(self, selection, placed(where, self.dims, selection))]

    def _tensors(self) -> list[InfiniteTensor]:
        return [self]

    def stats(
        self,
        region: object = None,
        *,
        where: object = None,
        compute: bool = False,
        exact: bool = False,
        workers: int | None = None,
    ) -> Stats:
        """Count, range, mean, deviation and quantiles of pixels, and how many there are of each label.

        Pixels are read once, part by part, in bounded memory; tensors in memory keep little of what is computed. The
        result is the same whatever they are stored in, and whatever the order in which they come.

        Parameters
        ----------
        region : optional
            As a read takes it. Default: all of a bounded tensor; of an unbounded one all that is stored, wherever it
            is.
        where : Mask, array, tensor, InfiniteTensor or callable, optional
            Which pixels count: a mask as that of `fill`, taken pixel by pixel. A callable is asked for each tile; its
            answer is for all pixels of it, unless it is an array with an entry for each pixel of the mask.
        compute : bool
            Whether what is missing is computed, and stored, as by a read. Otherwise only tiles that are stored are
            looked at: a tile counts as a whole, as in `coverage`, and `Stats.missing` says how much is left out. An
            array in memory is looked at as it is; of a file that is read through, what reads have kept.
        exact : bool
            Whether quantiles are exact, for which pixels are read again when somebody asks for them. Otherwise each is
            less than a part in ``2**11`` nearer to 0 than it should be; see `Stats.quantile`.
        workers : int, optional
            As for `read`.

        Returns
        -------
        Stats
            Of no pixels, where nothing is stored. NaN, and what the raster that the tensor is calls nodata, are counted
            apart.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of this tensor; if there is none, the tensor is unbounded, and what
            is missing is to be computed.
        ValidationError
            If the dtype is complex, or a mask does not cover the region.

        Examples
        --------
        >>> t = InfiniteTensor((None, None), lambda ctx: torch.full((4, 4), float(ctx[0])), TensorWindow((4, 4)))
        >>> found = t.stats(sl[0:12, 0:4], compute=True)
        >>> found.count, found.mean, found.max
        (48, 1.0, 2.0)
        >>> found.quantile([0.02, 0.98])
        [0.0, 2.0]
        """
        # What is seen of a tensor stands on tensors.
        from infinite_tensor.views.statistics import stats_of  # noqa: PLC0415

        return stats_of(self, self._nodata, region, where, compute, exact, workers)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move to another device or dtype, in place; takes what `torch.Tensor.to` takes.

        What the store keeps is converted with it. From now on ``f`` must return the new dtype and device.

        Raises
        ------
        TypeError
            If an argument is unknown or given twice, and for ``copy=True``.
        ValidationError
            If the store cannot convert what it keeps, or `f` is one of this library that comes in one dtype and on one
            device, as that of `noise`; nothing has changed then.
        """
        args = tuple(_as_target(arg) for arg in args)
        kwargs = {name: _as_target(arg) for name, arg in kwargs.items()}
        device, dtype = move_target(self.device, self.dtype, args, kwargs)
        if (device, dtype) != (self.device, self.dtype):
            if isinstance(self.f, Unmovable):
                raise ValidationError(
                    f"tensor {self.tensor_id!r} cannot be moved from {self.dtype} on {self.device} to {dtype} on "
                    f"{device}: {self.f.instead(dtype, device)}"
                )
            if self.reduce is None:
                check_blend(self.blend, dtype, device)
            else:
                check_reduction(self.reduce, self.shape, self.output_window, dtype, device)
            contents = contents_of(self.tile_store)
            # No read begins in between, which would ask the store for what the tensor was.
            with contents.lock:
                moved = self._spec.moved(device, dtype)
                contents.migrate(self._spec, moved)
                self._node.tensor.spec = moved
        return self

    def coarsen(
        self,
        factor: int | Sequence[int],
        method: str = "mean",
        *,
        tile_store: TileStore | str | os.PathLike[str] | None = None,
        tensor_id: str | None = None,
    ) -> InfiniteTensor:
        """A tensor of coarser pixels: pixel ``i`` stands for the pixels ``[i * factor, (i + 1) * factor)`` of this one.

        Parameters
        ----------
        factor : int or tuple of int
            How many pixels make one. An int is for the dimensions called z, y and x, without names for the last two; a
            tuple has one entry per dimension. Of 65,536 pixels at most one is made.
        method : str
            - "mean": of the pixels that are there, added in lexicographic order: in float32 for floats of 16 bits, in
              int64 for integers, which are rounded, a half to the even one. NaN and nodata are left out; where there is
              nothing else, that is the result.
            - "max", "min": the same of the largest and the smallest.
            - "mode": what there is most often, as labels need it; of several, the smallest.
            - "nearest": the first pixel.

            bool has no mean, floats have no mode, complex and uint64 have the nearest alone.
        tile_store, tensor_id : optional
            As for `InfiniteTensor`. Default: in memory, under a random name.

        Returns
        -------
        InfiniteTensor
            Of the same dtype; extents are rounded up, and pixels beyond an end count nowhere. Place, coordinates and
            nodata follow. A store that holds both opens it by its id and computes it, as it says how.

        Raises
        ------
        ValidationError
            If an argument does not fit.

        Examples
        --------
        >>> t = InfiniteTensor((5, 4), lambda ctx: torch.arange(20.0).view(5, 4), TensorWindow((5, 4)))
        >>> t.coarsen(2)[...]
        tensor([[ 2.5000,  4.5000],
                [10.5000, 12.5000],
                [16.5000, 18.5000]])
        """
        # What is made of a tensor stands on tensors.
        from infinite_tensor.pipelines.pyramid import coarsen  # noqa: PLC0415

        return coarsen(self, factor, method, self._nodata, tile_store, tensor_id)

    def pyramid(
        self,
        levels: int | None = None,
        method: str | None = None,
        store: TileStore | str | os.PathLike[str] | None = None,
    ) -> list[InfiniteTensor]:
        """Overviews: tensors each half as large as the one before, beginning with this one, made as by ``coarsen(2)``.

        They are stored as ``<tensor_id>/level-1``, ``<tensor_id>/level-2`` and so on, and computed where they are read,
        or by ``fill(region, pyramid=True)``.

        Parameters
        ----------
        levels : int, optional
            How many. Default: until no coarsened dimension is longer than 512.
        method : str, optional
            As for `coarsen`. Default: that of stored levels, if there are; else "mode" for labels of ``argmax`` and for
            bool, "nearest" for others without a mean, and "mean". A mean is that of the pixels of this tensor also
            where extents are odd; of integers it is rounded at each level. The mode is the mode of modes.
        store : TileStore, str or path, optional
            Where they are stored. Default: where this tensor is.

        Returns
        -------
        list of InfiniteTensor
            Level 1 first. Each is an ordinary tensor; ``store.open("<tensor_id>/level-2")`` finds and computes it.

        Raises
        ------
        ValidationError
            If an argument does not fit: `levels` are missing and a dimension is unbounded, this tensor stores nothing
            and there is no `store`, or that holds levels of another method.
        """
        # What is made of a tensor stands on tensors.
        from infinite_tensor.pipelines.pyramid import pyramid  # noqa: PLC0415

        return pyramid(self, levels, method, self._nodata, store)

    @property
    def _nodata(self) -> Code | None:
        return nodata_of(self._spec.definition)

    def map(
        self,
        fn: Callable[..., torch.Tensor],
        *,
        halo: object = 0,
        window: object = None,
        scale: object = 1,
        channels: object = None,
        dims: Sequence[str | int] | None = None,
        padding: object = "reflect",
        batch_size: int | tuple[int, ...] | None = None,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        store: TileStore | str | os.PathLike[str] | None = None,
        tensor_id: str | None = None,
        version: object = None,
    ) -> InfiniteTensor:
        """A tensor whose windows are `fn` of regions of this one: `infinite_tensor.map` of one input.

        Parameters
        ----------
        fn : callable
            ``fn(region) -> tensor``, or a network.
        halo, window, scale, channels, dims, padding, batch_size, dtype, device, store, tensor_id, version
            As for `infinite_tensor.map`.

        Returns
        -------
        InfiniteTensor

        Raises
        ------
        ValidationError
            If an argument does not fit, or the store holds another tensor under `tensor_id`.
        """
        # It makes tensors.
        from infinite_tensor.pipelines.map import map  # noqa: A004, PLC0415

        return map(
            fn,
            self,
            halo=halo,
            window=window,
            scale=scale,
            channels=channels,
            dims=dims,
            padding=padding,
            batch_size=batch_size,
            dtype=dtype,
            device=device,
            store=store,
            tensor_id=tensor_id,
            version=version,
        )

    def as_zarr(self, region: object = None) -> zarr.Array[Any]:
        """A read-only Zarr array of pixels, whose chunks are computed when they are read.

        Dask and whatever else reads arrays of zarr take it; xarray opens the group that it is in, ``array.store``. A
        chunk is a tile, and a read of it is a read of the tensor: what is computed is stored, and no window is computed
        twice by those who read at the same time. It may be read on any thread, in coroutines, and by ``f`` itself.
        What ``f`` raises arrives as it is, but for exceptions that would end an event loop, which arrive as the
        ``__cause__`` of a RuntimeError.

        Parameters
        ----------
        region : optional
            Which pixels: a slice for each dimension, as in ``sl[:, -512:512, 0:4096]``. Chunks begin at its first
            pixel. Default: all of a finite dimension, and of an unbounded one those from about ``-2**30`` to
            ``2**30``. ``...`` is all of a finite tensor.

        Returns
        -------
        zarr.Array
            It is called by the last part of `tensor_id`, or "values", or "values_" where a dimension is "values".
            Element ``[i, j]`` is pixel ``[i - origin[0], j - origin[1]]``, where `origin` is in
            ``array.attrs["infinite_tensor"]``. Beside it in the group lies a one-dimensional array of the coordinates
            along each dimension of up to ``2**22`` pixels, called by its name. bfloat16, which zarr lacks, becomes
            float32.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of this tensor.
        ValidationError
            If it is empty, or has a step, or an int in place of a slice.
        """
        # What is seen of a tensor stands on tensors.
        from infinite_tensor.views.face import zarr_of  # noqa: PLC0415

        return zarr_of(self, region)

    def to_xarray(
        self, region: object = None, coords: Mapping[str, Any] | None = None, *, lazy: bool = True
    ) -> xarray.DataArray:
        """An `xarray.DataArray` of a region, which computes what is used of it.

        Parameters
        ----------
        region : optional
            As of `as_zarr`, with the same default.
        coords : mapping of str to array, optional
            Coordinates along some dimensions, by their names. Default: those of the raster or DataArray that the tensor
            is or is computed from, else the numbers of the pixels.
        lazy : bool
            Whether values are read when they are used, each time again; ``array.load()`` keeps them. Otherwise they
            are read now.

        Returns
        -------
        xarray.DataArray
            It is called by the last part of `tensor_id`, if that was given, and has the dimensions `dims`. bfloat16,
            which numpy lacks, becomes float32. Coordinates take no memory. Along a dimension of more than ``2**24``
            pixels xarray aligns it only with other arrays of this kind; select a part first.

        Raises
        ------
        ImportError
            If xarray is missing.
        RegionError
            (an IndexError) If `region` is no region of this tensor.
        ValidationError
            If it is empty, or has a step, or an int in place of a slice; or if `coords` do not fit.
        """
        # What is seen of a tensor stands on tensors.
        from infinite_tensor.views.arrays import xarray_of  # noqa: PLC0415

        return xarray_of(self, region, coords, lazy=lazy)

    def to_dask(self, region: object = None, chunks: Any = "tiles") -> dask.array.Array:
        """A `dask.array` of a region, each chunk of which is a read.

        `dask.array.asarray` takes a finite tensor as it is. `dask.array.from_array` does not, since its dtype is
        torch's, but it takes ``t.as_zarr()``.

        Parameters
        ----------
        region : optional
            As of `as_zarr`, with the same default, which of an unbounded tensor has more chunks than Dask takes.
        chunks : optional
            "tiles" for a chunk per tile, cut where the region ends; or what Dask takes: "auto", an int, a tuple.

        Returns
        -------
        dask.array.Array
            bfloat16, which numpy lacks, becomes float32. After each `invalidate` of the tensor, or of what it is
            computed from, a new one has another name, so that Dask serves no block from before. Until then, a stored
            tensor has the same name in all processes.

        Raises
        ------
        ImportError
            If Dask is missing.
        RegionError
            (an IndexError) If `region` is no region of this tensor.
        ValidationError
            If it is empty, or has a step, or an int in place of a slice; or if `chunks` do not fit.
        """
        # What is seen of a tensor stands on tensors.
        from infinite_tensor.views.arrays import dask_of  # noqa: PLC0415

        return dask_of(self, region, chunks)

    def to_dask_array(self) -> dask.array.Array:
        """As `to_dask` of all of a finite tensor. `dask.array.asarray`, `stack` and `concatenate` call it.

        Returns
        -------
        dask.array.Array

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
        """Draw a region by ``imshow`` of matplotlib, at its coordinates: row 0 lies above row 1, row -1 above that.

        Parameters
        ----------
        region : optional
            As a read takes it, with positive steps: two dimensions, and a first or last one of 1 channel or of 3, which
            are colours. Ints say where the picture stands along the others. Default: all of a finite dimension, and the
            pixels from -256 to 256 of an unbounded one.
        ax : matplotlib.axes.Axes, optional
            Where to draw. Default: new axes.
        compute : bool
            Whether what is not stored is computed and stored, as by a read; otherwise it is left blank.
        every : int, optional
            Draw every so many-th pixel along each dimension of the picture, in a region with steps of those that the
            steps leave. 1 draws all. The axes are in the coordinates of the tensor in any case.
        max_pixels : int, optional
            In place of `every`, how many pixels are drawn at most: every is the smallest int that leaves no more.
            Default: ``2**20``, about a screen.
        **options
            For ``ax.imshow``, or for ``ax.plot`` where one dimension is left: ``cmap``, ``vmin``, ``interpolation``.
            Default: whole numbers from 0 to 19 are labels, each in a colour of its own.

        Returns
        -------
        matplotlib.axes.Axes
            With the names of the dimensions, and a colour bar where there are no colours. Of complex numbers their
            absolute values are drawn.

        Raises
        ------
        ImportError
            If matplotlib is missing.
        RegionError
            (an IndexError) If `region` is no region of this tensor.
        ValidationError
            If it is empty, has other dimensions, or `every` or `max_pixels` leave more than ``2**24`` pixels, are no
            positive ints, or both are given. Nothing has been computed then.
        """
        # What is seen of a tensor stands on tensors.
        from infinite_tensor.views.showing import draw  # noqa: PLC0415

        return draw(self, region, ax=ax, compute=compute, every=every, max_pixels=max_pixels, **options)

    def view(
        self, *others: InfiniteTensor, port: int = 0, budget: int = 4096, open_browser: bool | None = None
    ) -> View:
        """Open a page of Bokeh on which one walks about: drag to move, turn the wheel to zoom.

        Tiles nearest to the middle come first: those that are stored at once, and others as `f` computes them, which
        are stored as by a read. What is to come is blue, what is missing and not to be computed is grey; what `f`
        raises stands on its tile. From afar, stored levels of a `pyramid` are shown, or coarse pixels of what is
        stored.

        Parameters
        ----------
        *others : InfiniteTensor
            More of them, shown beside this one, at the same place.
        port : int
            Where the page is served, to this machine alone. Default: any port that is free.
        budget : int
            So many windows of a tensor may be computed for what is seen of it at a time, not counting those upstream.
            Where there are more, only what is stored is shown.
        open_browser : bool, optional
            Whether a browser opens. Default: outside of notebooks, which show the page below the cell.

        Returns
        -------
        View
            Its `url` opens the page elsewhere too, as in ``?y=0&x=1000&zoom=-2``; `wait()` is for the end of a script,
            which would end the page, and `close()` ends it.

        Raises
        ------
        ImportError
            If Bokeh is missing.
        ValidationError
            If an argument does not fit, or the tensor has fewer than two dimensions.
        """
        # What is seen of a tensor stands on tensors.
        from infinite_tensor.views.viewer import open_view  # noqa: PLC0415

        return open_view([self, *others], port, budget, open_browser)

    def _repr_html_(self) -> str:
        # What is seen of a tensor stands on tensors.
        from infinite_tensor.views.showing import html_of_tensor  # noqa: PLC0415

        return html_of_tensor(self)

    def export(
        self,
        region: object,
        target: str | os.PathLike[str],
        *,
        compute: bool = True,
        fill_value: Number | None = None,
        format: str | None = None,  # noqa: A002  (what it is called elsewhere)
        overwrite: bool = False,
        storage_options: dict[str, Any] | None = None,
        workers: int | None = None,
        progress: bool | str | Watcher = True,
        every: int | None = None,
        max_pixels: int | None = None,
        palette: bool = False,
        pyramid: bool | int | str = False,
    ) -> None:
        """Write a region to a file, or to a Zarr group, that other programs open.

        The format follows from the end of `target`:

        - ``.zarr``: a group with one array, named after `tensor_id`, and the coordinates of its pixels along each
          dimension, for ``xarray.open_zarr(target)``. A chunk is a tile, and begins at the first pixel of the region.
        - ``.npy``: an array for `numpy.load`.
        - ``.png``: an image of uint8 in grey, RGB or RGBA, or of uint16 in grey. All of it is in memory until the end.
        - ``.tif``, ``.tiff``: a Cloud-Optimized TIFF of any number of bands, in tiles, compressed; a BigTIFF where it
          may have 4 GiB. Its overviews are made by GDAL: means, of labels the most frequent pixels, of complex numbers
          the nearest; none with very many bands. Until the end it takes twice its disk space.
          If the tensor is a raster of `from_raster`, or computed from one, it is a GeoTIFF: pixels lie where the middle
          of their window lies in the raster, at the scale that strides have to each other.

        Files say what is known of pixels, such as coordinates and units, as far as it holds and the format has a place
        for it; what is left out is told in one `MeaningLostWarning`.

        The region is worked through in steps, whatever its size; tensors in memory keep little of it. The target is
        there when all is written, and not before. A process that is killed leaves a hidden ``.<name>.partial`` beside
        it, or several files that begin so, in which the next export writes; a store at a URL is no Zarr group until the
        end, and what is unfinished there is replaced by the next export.

        An export to Zarr of a tensor that is stored, with a `tensor_id`, continues where an equal one was stopped: what
        has been written is not written again, unless pixels were invalidated since. ``overwrite=True`` begins anew.

        Parameters
        ----------
        region
            As a read takes it, without a step. There is no default, since all of it is written. Images have 2
            dimensions, or 3 with channels: that of the name c, channel, channels, band or bands, else the first. Ints
            drop the dimensions that there are beside these.
        target : str or path
            A local path; for Zarr, any fsspec URL too.
        compute : bool
            Whether windows that are missing are computed, and stored, as a read does; otherwise `fill_value` is written
            where a tile is not stored, as `stored_only` shows it.
        fill_value : number, optional
            With ``compute=False``. If it is a real number, a TIFF says that it is nodata, and Zarr, in ``_FillValue``,
            as xarray reads it. Default: 0, which none says.
        format : {"zarr", "npy", "png", "tiff"}, optional
            The format, whatever the target is called.
        overwrite : bool
            Replace a file, or a Zarr group that an export has written. A local target is there until the end; a local
            group is missing for a moment then, and one at a URL all the time: let one process at a time export to a
            URL. What GDAL has written beside an image (``.aux.xml``, ``.ovr``, ``.msk``) is deleted with it; without
            `overwrite`, it counts as something that is there.
        storage_options : dict, optional
            Passed to fsspec.
        workers : int, optional
            As for `read`.
        progress : bool, "always" or callable
            As for `fill`; what a `Progress` counts is tiles that have been written, not windows.
        every : int, optional
            Of a PNG: write every so many-th row and column, from the first one on, by one read: windows are computed
            only where their pixels are written. Default: all.
        max_pixels : int, optional
            Of a PNG, in place of `every`: how many pixels it has at most; every is the least int for that.
        palette : bool
            Of a PNG with one channel of uint8: give each number a colour, those of matplotlib's ``tab20`` again and
            again; `show` draws labels in them too, but numbers beyond 19 along a map of colours. The numbers stay what
            they are, and a `fill_value` is transparent.
        pyramid : bool, int or str
            Of Zarr, whether the group is an OME-Zarr 0.5 image with levels, as viewers want it: arrays ``s0/<name>``,
            ``s1/<name>`` and so on, each in a group for ``xarray.open_zarr(target, group="s1")``. True writes as many
            levels as the region needs, an int so many, a str those of a method of `coarsen`. Level k has each pixel
            that stands for one of the region, wherever that begins, as those of `pyramid` have; some pixels beyond the
            border of the region are read for them. Their method is that of stored levels, if there are, or as for
            `fill`. What is stored is taken; otherwise levels are computed in memory, each from this tensor: one that is
            not stored is computed again for each. With ``compute=False``, there are the levels that the store has.
            Dimensions are those of OME-Zarr: t, then c or another one, then z, y and x, or two of these.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of this tensor.
        ValidationError
            If an argument does not fit, there is something at the target, or the format cannot hold the region.
        StoreError
            If something cannot be written or read.
        ImportError
            If rasterio, which TIFF takes, or pillow, which PNG takes, is missing.

        Notes
        -----
        bfloat16, which none of these formats has, becomes float32, and so does float16 in a TIFF.

        Examples
        --------
        >>> t = InfiniteTensor((None, None), lambda ctx: torch.ones(4, 4), TensorWindow((4, 4)))
        >>> t.export(sl[-8:8, 0:16], "ones.npy")
        >>> import numpy
        >>> numpy.load("ones.npy").shape
        (16, 16)
        """
        # What is written of a tensor stands on tensors.
        from infinite_tensor.views.exports.export import Options, export  # noqa: PLC0415

        options = Options(
            compute,
            fill_value,
            format,
            overwrite,
            storage_options,
            workers,
            progress,
            every,
            max_pixels,
            palette,
            pyramid,
        )
        export(self, region, target, options)

    def clear_cache(self) -> None:
        """Drop from memory what can be had again, after storing what is pending."""
        self.tile_store.clear_cache(self.tensor_id)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference: the store's target, the id and definition, and `f`, which must be picklable itself.

        A memory store comes without its windows.
        """
        # It takes apart and puts together what stands on this module.
        from infinite_tensor.opening import reduced  # noqa: PLC0415

        return reduced(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Flush the store. It stays open: other tensors may share it."""
        self.tile_store.flush()

    def __repr__(self) -> str:
        parts = [f"shape={self.shape}"]
        if self._spec.definition.dims is not None:
            parts.append(f"dims={self.dims}")
        parts.append(f"dtype={self.dtype}")
        if self.device.type != "cpu":
            parts.append(f"device={str(self.device)!r}")
        parts += [f"tensor_id={self.tensor_id!r}", f"output_window={self.output_window!r}"]
        if self._spec.definition.output is not None:
            parts.append(f"output={show(self._spec.definition.output)}")
        if self.args:
            parts.append(f"args={[arg.tensor_id for arg in self.args]}")
        return f"InfiniteTensor({', '.join(parts)}, tile_store={self.tile_store})"

    def __len__(self) -> int:
        extent = self.shape[0]
        if extent is None:
            raise TypeError(
                f"this InfiniteTensor has no len(): dimension {self._spec.labels[0]} is unbounded; see t.shape, or "
                "read a region"
            )
        return extent

    def __bool__(self) -> bool:
        """True, as of any object: ``t or default`` reads nothing."""
        return True

    def _check_finite(self, action: str) -> None:
        for d, extent in enumerate(self.shape):
            if extent is None:
                raise TypeError(
                    f"cannot {action} an InfiniteTensor: dimension {self._spec.labels[d]} is unbounded; read a region "
                    "of it"
                )

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
            raise ValueError("an InfiniteTensor cannot be an array without a copy")
        pixels = self[...]
        # numpy lacks it.
        array: npt.NDArray[Any] = (pixels.float() if self.dtype is torch.bfloat16 else pixels).numpy(force=True)
        return array if dtype is None else array.astype(np.dtype(dtype), copy=False)

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """All pixels, for `torch.as_tensor` and `numpy.from_dlpack`."""
        self._check_finite("make an array of")
        if copy is False:
            raise BufferError("an InfiniteTensor cannot be an array without a copy")
        # What is read is a copy.
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
    """The tensors that one ``f`` computes of these args, made known to their stores."""
    tensors = []
    for node in Computation.registered(stored, f, batching, map(node_of, args)).nodes:
        tensor = kind.__new__(kind)
        tensor._bind(node, args)  # noqa: SLF001  (its own)
        tensors.append(tensor)
    return tensors


def _as_target(arg: Any) -> Any:
    """What stands for an InfiniteTensor as an argument of `torch.Tensor.to`."""
    return torch.empty(0, dtype=arg.dtype, device=arg.device) if isinstance(arg, InfiniteTensor) else arg


def _checked_store(store: object) -> TileStore:
    if isinstance(store, str | os.PathLike):
        # Stores that are not memory stand on tensors.
        from infinite_tensor_stores import shared_store  # noqa: PLC0415

        return shared_store(store)
    if store is not None and not isinstance(store, TileStore):
        raise ValidationError(f"tile_store must be a TileStore, a path or a URL, got {quoted(store)}")
    return MemoryTileStore() if store is None else store


def _shared(
    f: Callable[..., Any],
    args: Any,
    windows: Any,
    padding: object,
    device: torch.device | str,
    tensor_id: object,
    version: object,
) -> tuple[Shared, tuple[InfiniteTensor, ...]]:
    """What a user declares of an ``f``, checked, and the args."""
    check_callable(f)
    for name, value in (("args", args), ("args_windows", windows)):
        if value is not None and members(value) is None:
            raise ValidationError(f"{name} must be a tuple or list, got {quoted(value)}")
    tensors = as_tensors(members(args) or ())
    for at, arg in enumerate(tensors):
        if not isinstance(arg, InfiniteTensor):
            raise ValidationError(
                f"args[{at}] must be an InfiniteTensor or a TensorBlob, got {quoted(arg)}{array_advice(arg)}"
            )
    definitions = arg_definitions(
        tensors, checked_windows(tensors, members(windows) or ()), checked_paddings(tensors, padding)
    )
    upstream = tuple(node_of(arg).spec.definition.functions for arg in tensors)
    # By default a name that no other tensor has.
    name = checked_id(uuid.uuid4() if tensor_id is None else tensor_id)
    return Shared(name, f, definitions, upstream, checked_device(device), version), tensors


def _in_store(
    specs: Collection[TensorSpec], given: object, shared: Shared, args: Sequence[InfiniteTensor], *, named: bool
) -> list[TensorInStore]:
    """Tensors for the store that is given, whose args have the pixels that they read, as far as that is known now."""
    for spec in specs:
        check_windows(spec.tensor_id, spec.grid, spec.labels)
        check_args(spec.tensor_id, spec.grid, args, shared.args)
        warn_of_uncovered(spec)
    # Last: a path becomes a folder.
    store = _checked_store(given)
    return [TensorInStore(spec, store, named) for spec in specs]


def _check_dims(given: TensorSpec, node: Node) -> None:
    """ValidationError if the names of dimensions that are stored are not those that a user gives."""
    wanted = given.definition.dims
    if wanted is not None and contradict(names := names_of(node.spec.definition.dims, len(given.shape)), wanted):
        raise mismatch(given.tensor_id, [f"dims: stored {list(names)}, given {list(wanted)}"], node.store)


def as_tensors(args: Sequence[Any]) -> tuple[Any, ...]:
    """`args`, where what is no InfiniteTensor but can be one stands as that; the same object as the same tensor."""
    made: dict[int, Any] = {}
    for arg in args:
        if id(arg) not in made:
            made[id(arg)] = stand_in(arg)
    return tuple(made[id(arg)] for arg in args)


def arg_definitions(
    args: Sequence[InfiniteTensor], windows: Sequence[TensorWindow], paddings: Sequence[tuple[Padding, ...] | None]
) -> tuple[ArgDefinition, ...]:
    """What a definition says of its args."""
    return tuple(
        ArgDefinition(window, node.spec.definition, node.spec.tensor_id if node.tensor.named else None, padding)
        for node, window, padding in zip(map(node_of, args), windows, paddings, strict=True)
    )
