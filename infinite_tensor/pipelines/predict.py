"""`predict`: slides a network over an image, volume or raster of any size."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Required, TypeAlias, Unpack, overload

import numpy.typing as npt
import torch
from zarr.storage import MemoryStore

from infinite_tensor.errors import RegionError, ValidationError
from infinite_tensor.filling.fillable import FillOptions, check_fill, check_fill_options
from infinite_tensor.filling.mask import Mask
from infinite_tensor.geometry.regions import parse
from infinite_tensor.geometry.window import TensorWindow, followed
from infinite_tensor.groups import TensorGroup
from infinite_tensor.outputs import Output
from infinite_tensor.pipelines.networks import BatchedNetwork, Index, Outputs, device_of
from infinite_tensor.pipelines.prediction import (
    Returned,
    check_outputs,
    first_windows,
    in_stored_order,
    overlapping,
    reduction_for,
    returned_before,
    returned_by,
    scale_of,
)
from infinite_tensor.pipelines.pyramid import clear_levels, level_ids
from infinite_tensor.pipelines.reopening import sources_in
from infinite_tensor.pipelines.sliding import Sliding, is_one_padding
from infinite_tensor.pipelines.sources import from_array, least_cache_of
from infinite_tensor.support.given import (
    MemoryTooSmallError,
    as_index,
    checked_bytes,
    checked_device,
    checked_flag,
    checked_id,
    members,
    quoted,
    whole_mebibytes,
    word,
)
from infinite_tensor.support.tables import bytes_of
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.checks import stand_in
from infinite_tensor.values.coarse import Method
from infinite_tensor.values.code import Modes
from infinite_tensor.values.definition import Blend, BlendName, default_name, label_of, resolved_blend
from infinite_tensor.values.dtypes import checked_dtype
from infinite_tensor.values.fingerprint import Snapshot
from infinite_tensor.values.reduction import Reduction, ReductionName
from infinite_tensor.values.weights import WeightedMean

_Reduce: TypeAlias = ReductionName | Callable[[torch.Tensor], torch.Tensor] | Reduction | None
_Store: TypeAlias = TileStore | str | os.PathLike[str] | None
_Several: TypeAlias = Mapping[Any, Any] | tuple[Any, ...] | list[Any]


class _Options(FillOptions, total=False):
    """Keyword arguments shared by all overloads of `predict`."""

    window: Required[int | Sequence[int]]
    overlap: float | Sequence[float]
    blend: Blend | BlendName
    sigma_scale: float | Sequence[float]
    dims: Sequence[str] | None
    dtype: torch.dtype | str | None
    scale: Any
    edge: Literal["clip", "drop"]
    padding: Any
    region: Any
    batch_size: int
    device: torch.device | str | None
    tensor_id: str
    version: Any
    overwrite: bool


@overload
def predict(
    net: Callable[..., Any],
    source: Any,
    store: _Store = None,
    *,
    reduce: Mapping[Any, Any],
    **options: Unpack[_Options],
) -> TensorGroup: ...
@overload
def predict(
    # The type of a module's result is unknown. Most modules return one tensor.
    net: torch.nn.Module,
    source: Any,
    store: _Store = None,
    *,
    reduce: _Reduce = None,
    **options: Unpack[_Options],
) -> InfiniteTensor | Any: ...
@overload
def predict(
    net: Callable[[torch.Tensor], torch.Tensor | npt.NDArray[Any]],
    source: Any,
    store: _Store = None,
    *,
    reduce: _Reduce = None,
    **options: Unpack[_Options],
) -> InfiniteTensor: ...
@overload
def predict(
    net: Callable[[torch.Tensor], _Several],
    source: Any,
    store: _Store = None,
    *,
    reduce: _Reduce = None,
    **options: Unpack[_Options],
) -> TensorGroup: ...
@overload
def predict(
    net: Callable[..., Any], source: Any, store: _Store = None, *, reduce: _Reduce = None, **options: Unpack[_Options]
) -> InfiniteTensor | Any: ...


def predict(
    net: Callable[..., Any],
    source: Any,
    store: TileStore | str | os.PathLike[str] | None = None,
    *,
    window: int | Sequence[int],
    overlap: float | Sequence[float] = 0.25,
    blend: Blend | BlendName = "gaussian",
    sigma_scale: float | Sequence[float] = 0.125,
    dims: Sequence[str] | None = None,
    reduce: ReductionName | Callable[[torch.Tensor], torch.Tensor] | Reduction | Mapping[Any, Any] | None = None,
    dtype: torch.dtype | str | None = None,
    scale: Any = None,
    edge: Literal["clip", "drop"] = "clip",
    padding: Any = "reflect",
    region: Any = None,
    batch_size: int = 4,
    device: torch.device | str | None = None,
    tensor_id: str = "prediction",
    version: Any = None,
    overwrite: bool = False,
    **options: Unpack[FillOptions],
) -> InfiniteTensor | TensorGroup:
    """Slide a network over a tensor of any size and store the output.

    Reads the input of each window, calls `net` with batches of windows, blends overlapping windows, applies `reduce` to
    each pixel, and writes pixels as soon as they are complete. To continue after an interruption, make the same call
    again: stored windows are not computed again.

    Parameters
    ----------
    net : callable
        ``net(batch) -> output``: `batch` has shape ``(batch_size, channels, *window)``; `output` has shape
        ``(batch_size, channels, *size)`` or ``(batch_size, *size)``, or ``(batch_size, classes)`` for one result per
        window, which is stored as one pixel per window. `output` may be a numpy array. A dict, dataclass or tuple of
        such outputs gives a group, without the entries that are None. A batch of integers is first converted to
        float32, and not scaled. If `net` has parameters, but none in the dtype of the batch, the batch is converted to
        the dtype of the parameters. If the parameters have several dtypes, or `net` is not a module, the batch is
        converted to float32 instead. `net` runs under `torch.no_grad`. A network in `net` or `reduce` must not be in
        training mode if its code reads `training`: call ``net.eval()`` first.
    source : InfiniteTensor or array
        The tensor over which windows slide. An array is passed to `from_array`.
    store : TileStore, str or path, optional
        Store of the prediction. Default: in memory.
    window : int or tuple of int
        Size of a window in pixels: a number for each sliding dimension, or a single number for all.
    overlap : float or tuple of float
        Fraction of a window shared with the next window, at least 0 and below 1.
    blend, sigma_scale
        How overlapping windows are blended, as for `InfiniteTensor`; `sigma_scale` is used by "gaussian" only. "max"
        also works for values below 0, and "min" for values above 0. If `blend` is another function, pixels are 0 before
        the first window is blended.
    dims : tuple of str, optional
        Names of the dimensions of `source`; "c", "channel", "channels", "band" and "bands" are channels. Default: its
        own names. Without names, if `source` has one dimension more than `window` has entries, the first is channels.
    reduce : str, callable, Reduction or dict, optional
        How the blended output of a pixel is reduced before it is stored: "argmax", "softmax", "sigmoid", or a function
        as for `Reduction`. A dict has one for each output of a group. If `net` has a single output, each entry of the
        dict is an output of its own, reduced from the same scores.
    dtype : torch.dtype or str, optional
        Dtype that is stored. Default: that of the output of `net`, or that of the result of a `reduce` function; for
        "argmax", the smallest integer dtype that holds the labels.
    scale : number, Fraction or tuple of these, optional
        Pixels of the output along one pixel of the source. Default: inferred from the size of what `net` returns for a
        window, if it is the same along all dimensions.
    edge : "clip" or "drop"
        What happens to windows that reach past the end of the prediction, as for `InfiniteTensor`.
    padding : str or ("constant", number), or tuple of these
        What `net` is given beyond the ends of the source, as `args_padding` of an `InfiniteTensor`: one for all
        dimensions of the window, or one for each. With "wrap", the two ends join: windows begin before pixel 0.
    region : optional
        The region to compute now, in pixels of the prediction, or of its finest output: slices over the dimensions of
        the window, as in ``sl[0:512, 0:512]``. Tiles touching the region are computed whole. Default: all pixels.
        All other pixels are computed on reading. Windows on the border of the region are then computed again, because
        nothing is stored outside the region.
    batch_size : int
        Number of windows in each call of `net`. A batch with fewer windows is filled up by repeating the last one. If
        it is above 1, `net` is called once more at the start, and a warning says if a window depends on its batch.
    device : torch.device or str, optional
        Device for batches. Default: that of the parameters of `net`, or the CPU.
    tensor_id : str
        Id of the prediction in `store`; each output of a group has ``tensor_id/name``.
    version : JSON value, optional
        Anything else that identifies what is computed, such as the hash of a checkpoint.
    overwrite : bool
        Delete what `store` has under `tensor_id`, after the first batch has been computed and before the others. After
        an interruption, the old prediction is gone: call again without `overwrite` to complete the new one. A
        ValidationError is raised if the prediction is computed from a tensor that would be deleted.
    **options
        Those of `InfiniteTensor.fill`: see `FillOptions`. `where` is in the same pixels as `region`. `max_memory`
        includes batches and what `net` returns for them, but not what `net` allocates inside. With a lower limit, the
        image is processed in narrower bands. ``pyramid=True`` chooses the method: "mode" for integers, which are
        taken as labels, and "mean" for floats. It is "nearest" if some outputs are integers and others floats.

    Returns
    -------
    InfiniteTensor or TensorGroup
        The filled prediction. Its channels come first. A group is indexed in pixels of its finest output.

    Raises
    ------
    RegionError
        (an IndexError) If `region` is not a region, or no pixel of the prediction lies in it.
    ValidationError
        If an argument is invalid, or `store` has something else under `tensor_id`, such as a prediction with other
        weights.
    ShapeMismatchError
        If the shape that `net` returns does not fit its input.
    KeyboardInterrupt
        After Ctrl-C. The message says how to continue.

    Notes
    -----
    The first window begins at pixel 0, or at ``stride - size`` with "wrap". The last one may reach past the end of the
    source, and is padded there; MONAI shifts it inside instead. The stored definition includes all values that `net`
    and `reduce` reach: weights, and everything that their code refers to. Another `batch_size`, or changed code of
    these functions, gives a FunctionChangedWarning.

    Examples
    --------
    >>> net = torch.nn.Conv2d(3, 5, 3, padding=1)
    >>> labels = predict(
    ...     net, torch.rand(3, 100, 150),
    ...     window=64, reduce="argmax", dims=("c", "y", "x"),
    ... )
    >>> labels.shape, labels.dtype
    ((100, 150), torch.uint8)
    """
    # Check the job. This has no side effect.
    check_fill_options(predict, options)
    tensor_id = checked_id(tensor_id)
    sliding = overlapping(_tensor_of(source, dims), dims, window, overlap, padding, edge, scale)
    f = _checked_network(net, batch_size, device, sliding, reduce)
    options["where"] = where = _mask_of(sliding, region, options.get("where"))
    if checked_flag("overwrite", overwrite) and options.get("shard") is not None:
        raise ValidationError("overwrite=True would delete the results of other shards: leave out overwrite or shard")
    blended = WeightedMean("gaussian", sigma_scale) if word(blend) == "gaussian" else resolved_blend(blend)
    slid = sliding.window(range(len(sliding.numbers)))
    how: dict[str, Any] = {
        "args": [sliding.tensor],
        "args_windows": [slid],
        "args_padding": padding if is_one_padding(padding) else [sliding.padding(padding)],
        "tensor_id": tensor_id,
        "batch_size": f.batch_size,
    }

    # Look at the stored definitions, or at the first windows.
    f.prepare(told=version is not None, stored=store is not None)
    there = None if _is_new(store) else _opened(store)
    stored = {} if there is None else stored_prediction(there, tensor_id)
    if overwrite and there is not None:
        _check_none_is_read((sliding.tensor, where, net), there, stored)
    resumed = {} if overwrite else stored
    known = {} if f.is_lazy else returned_before(tensor_id, resumed, sliding)
    if not known or not {*f.names} <= {*known}:
        known = _first_batch(f, how, sliding, region)
    found = in_stored_order(known, resumed)
    results = {
        name: each.reduced_by(reduction_for(name, reduce, found), dtype, scale_of(sliding, each.shape))
        for name, each in found.items()
    }
    check_outputs(sliding, results)
    outputs = {name: result.output(sliding, blended) for name, result in results.items()}
    f.returns({name: (result.returned.shape, result.blended) for name, result in results.items()})

    # Try it on an empty store, then delete and create.
    how["version"] = _version(results, version)
    if options.get("pyramid") is True:
        options["pyramid"] = _method_of(outputs)
    part = _region_of(outputs, sliding, region)
    memory = _Memory(options.get("max_memory"), slid, found, f.batch_size)
    tried = _made(f, outputs, how | {"tile_store": _empty_one_like(there)})
    if overwrite or there is None:
        with memory.shared_with_batches() as beside:
            check_fill(tried, part, {**options, "max_memory": beside})
    holder = there or _opened(store)
    if overwrite:
        _delete(holder, outputs, tensor_id, stored)
    made = _created(f, outputs, how | {"tile_store": holder}, resumed)

    # Fill.
    with (
        memory.shared_with_batches() as beside,
        _keeping_little(holder, sliding, beside),
        _stoppable(store, overwrite=overwrite),
    ):
        made.fill(part, **options | {"max_memory": beside})
    f.forget()
    return made


def _checked_network(net: object, batch_size: object, device: Any, sliding: Sliding, reduce: object) -> BatchedNetwork:
    """Return the ``f`` of the prediction. Raise ValidationError if an argument of `predict` is invalid."""
    if not callable(net):
        raise ValidationError(f"net must be callable, got {quoted(net)}; give a network, or a function of a batch")
    count = as_index(batch_size)
    if count is None or not 1 <= count <= _LARGEST_BATCH:
        raise ValidationError(f"batch_size must be a positive int up to {_LARGEST_BATCH}, got {quoted(batch_size)}")
    if isinstance(reduce, Mapping) and not reduce:
        raise ValidationError(
            "reduce is an empty dict; give an entry for each output, or None to store what net returns"
        )
    names = [str(name) for name in reduce] if isinstance(reduce, Mapping) else []
    place = device_of(net) if device is None else checked_device(device)
    f = BatchedNetwork(net, count, place, next(iter(sliding.kept), None), names)
    f.modes.check()
    Modes(Snapshot(reduce, "f").networks).check()
    return f


def _method_of(outputs: Mapping[str | None, Output]) -> bool | Method:
    dtypes = map(checked_dtype, (output.dtype for output in outputs.values()))
    labels = {not (dtype.is_floating_point or dtype.is_complex) for dtype in dtypes}
    if len(labels) > 1:
        return "nearest"
    return "mode" if True in labels else True


@contextmanager
def _stoppable(store: object, *, overwrite: bool) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        without = " without overwrite=True" if overwrite else ""
        stored = f"Finished work is stored; to continue, call predict again{without}"
        # Raise a new exception, because forty lines of traceback would hide the message.
        raise KeyboardInterrupt(
            f"predict was interrupted. {'Nothing is stored without a store' if store is None else stored}"
        ) from None


_ALL = Mask(lambda _pixels: True, dims=())
"""Mask with True everywhere.

With a mask, a fill does not store window pixels outside the region. Such pixels would be scores, and scores take far
more space than labels.
"""
_LARGEST_BATCH = 2**20
_LITTLE_BYTES = 2**20
_CACHE_BYTES = 2**24
"""Cache size of a source made from an array, and of a store in memory. A store in memory has all tiles anyway."""


def _made(
    f: BatchedNetwork, outputs: Mapping[str | None, Output], options: dict[str, Any]
) -> InfiniteTensor | TensorGroup:
    output = outputs.get(None)
    if output is None:
        return _together(InfiniteTensor.from_multi(f, {str(name): each for name, each in outputs.items()}, **options))
    fields = {**vars(output)}
    return InfiniteTensor(fields.pop("shape"), f, fields.pop("window"), **fields, **options)


def _created(
    f: BatchedNetwork,
    outputs: Mapping[str | None, Output],
    options: dict[str, Any],
    resumed: Collection[str],
) -> InfiniteTensor | TensorGroup:
    """Create the prediction, or continue the tensors `resumed`. A group is saved, if the backend keeps groups."""
    store, tensor_id = options["tile_store"], options["tensor_id"]
    other = next(iter({*resumed} - _ids(tensor_id, outputs)), None)
    try:
        if other is not None:
            raise ValidationError(f"{store} already contains a tensor {other!r}, which is no output of this prediction")
        made = _made(f, outputs, options)
    except ValidationError as error:
        if not resumed:
            raise
        # An empty store has taken the same tensors, so it is the stored ones that differ.
        raise ValidationError(
            f"{error}\nGive predict another tensor_id, or overwrite=True to delete the stored tensor"
        ) from error
    with suppress(NotImplementedError):
        if isinstance(made, TensorGroup) and contents_of(store).stored_group(tensor_id) is None:
            made.save(store, tensor_id)
    return made


def _ids(tensor_id: str, outputs: Iterable[str | None]) -> set[str]:
    return {tensor_id if name is None else f"{tensor_id}/{name}" for name in outputs}


def _delete(store: TileStore, outputs: Iterable[str | None], tensor_id: str, stored: Collection[str]) -> None:
    """Delete the tensors `stored`. Raise ValidationError if a foreign tensor has the id of an output."""
    for name in _ids(tensor_id, outputs):
        if name in store and name not in stored:
            raise ValidationError(
                f"overwrite=True deletes only outputs of prediction {tensor_id!r}, but {store} contains another tensor "
                f"{name!r}; give another tensor_id"
            )
    for name in stored:
        clear_levels(store, name)
        store.clear_tensor(name)
    with suppress(NotImplementedError):
        store.clear_group(tensor_id)


def _together(outputs: TensorGroup) -> TensorGroup:
    """Return the outputs as a group, indexed in pixels of the finest output.

    The group does not depend on the order of the outputs, or on the size of the image.
    """
    tensors: dict[str, Any] = {name: outputs[name] for name in outputs}
    windows = {name: tensor.output_window for name, tensor in tensors.items()}
    strides = {
        name: [n for n, k in zip(window.stride, followed(window), strict=True) if k is not None]
        for name, window in windows.items()
    }
    finest = [max(each) for each in zip(*strides.values(), strict=True)]
    scale = {name: tuple(map(Fraction, stride, finest)) for name, stride in strides.items()}
    return TensorGroup(tensors, dims=tuple(range(-len(finest), 0)), scale=scale)


def _version(names: Iterable[str | None], version: object) -> object:
    """Return the version to store, with the outputs in the order of the network."""
    outputs = list(map(str, names))
    if outputs == ["None"]:
        return version
    return {"outputs": outputs} if version is None else {"outputs": outputs, "version": version}


def stored_prediction(store: TileStore, tensor_id: str) -> dict[str, dict[str, Any]]:
    """Return the stored definitions of a prediction by tensor id.

    A group has a definition for each output.
    """
    found = {tensor_id: store.tensor_definition(tensor_id)} if tensor_id in store else {}
    for name in store.tensor_ids(f"{tensor_id}/"):
        definition = store.tensor_definition(name)
        # The id of another prediction may have the same beginning.
        if definition.get("output") == [name.removeprefix(f"{tensor_id}/")]:
            found[name] = definition
    return found


def _check_none_is_read(given: Sequence[object], store: TileStore, stored: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that the prediction does not read from a tensor in `stored`, or from one of its levels.

    Overwriting would delete these tensors. They may be hidden in views, in arrays of other libraries and in functions.
    An array over the tiles of a tensor is recognized by its path, which contains the incarnation.
    """
    levels = {level: store.tensor_definition(level) for name in stored for level in level_ids(store, name)}
    deleted = {**stored, **levels}
    marks = {each["incarnation"]: name for name, each in deleted.items() if "incarnation" in each}
    read = (
        next((name for mark, name in marks.items() if mark in each), None)
        if isinstance(each, str)
        else _stored_name(each, deleted, store)
        for each in sources_in(given)
    )
    name = next(filter(None, read), None)
    if name is not None:
        raise ValidationError(
            f"overwrite=True would delete tensor {name!r} of {store}, an input of the prediction; give another "
            "tensor_id, or another store"
        )


def _chain_of(given: Sequence[object]) -> Iterator[InfiniteTensor]:
    waiting = [each for each in given if isinstance(each, InfiniteTensor)]
    seen: set[int] = set()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen:
            seen.add(id(tensor))
            waiting += tensor.args
            yield tensor


def _stored_name(tensor: InfiniteTensor, stored: Mapping[str, Mapping[str, Any]], store: TileStore) -> str | None:
    """Return the id of a tensor in `store`, or None if it is none of `stored`.

    The tensor may use another object for the same store.
    """
    name = tensor.tensor_id
    if name not in stored or tensor.tile_store is store:
        return name if name in stored else None
    created = stored[name].get("incarnation")
    is_same = created is not None and tensor.tile_store.tensor_definition(name).get("incarnation") == created
    return name if is_same else None


class _Look:
    """Calls the network once, to learn the shapes of the outputs before the prediction is created.

    This is the ``f`` of a temporary tensor. It keeps the outputs in `returned`, and gives the tensor a single pixel for
    each window. Nobody uses the pixels.
    """

    def __init__(self, f: BatchedNetwork) -> None:
        # Errors then name the wrapped function instead of this object.
        self.__wrapped__ = f
        self.returned: Outputs = {}

    def __call__(self, ctxs: Sequence[Index], regions: Sequence[torch.Tensor]) -> torch.Tensor:
        self.returned = self.__wrapped__.first(ctxs, regions)
        return torch.zeros(len(ctxs), *[1] * len(ctxs[0]), dtype=torch.bool, device="cpu")


def _first_batch(
    f: BatchedNetwork, options: dict[str, Any], sliding: Sliding, region: object
) -> dict[str | None, Returned]:
    """Call the network with the first batch, and describe the outputs, which are kept for the fill.

    `options` are those of the prediction. Its id appears in errors.
    """
    look, ndim = _Look(f), len(sliding.size)
    windows = InfiniteTensor((None,) * ndim, look, TensorWindow((1,) * ndim), dtype=torch.bool, **options)
    windows[first_windows(sliding, region, f.batch_size)]
    return {name: returned_by(name, output, sliding) for name, output in look.returned.items()}


class _Memory:
    """The argument `max_memory`: shared by the batches and everything else.

    The output of `net` is in memory twice: on the device and the CPU, or in two dtypes.
    """

    def __init__(
        self, given: object, window: TensorWindow, found: Mapping[str | None, Returned], batch_size: int
    ) -> None:
        self.most, self.batch_size = checked_bytes("max_memory", given), batch_size
        read = math.prod(window.size) * torch.float32.itemsize
        self.batches = batch_size * (read + 2 * sum(each.nbytes for each in found.values()))

    @contextmanager
    def shared_with_batches(self) -> Iterator[int | None]:
        """Yield the bytes left beside batches. If the block needs more, raise ValidationError with the total."""
        try:
            # Give at least 1. With a limit below the batches, the block fails, and the message has the total.
            yield None if self.most is None else max(1, self.most - self.batches)
        except MemoryTooSmallError as error:
            if self.most is None:
                raise
            raise ValidationError(
                f"max_memory must be at least {whole_mebibytes(self.batches + error.least)}, got "
                f"{bytes_of(self.most)}: a batch of {self.batch_size} windows and its output take "
                f"{bytes_of(self.batches)}, and everything else {bytes_of(error.least)}; give more memory, a smaller "
                "batch_size or window, or smaller tiles"
            ) from error


@contextmanager
def _keeping_little(store: TileStore, sliding: Sliding, max_memory: int | None) -> Iterator[None]:
    """Shrink the caches of the prediction and all tensors upstream during a fill.

    Thousands of small blocks in the caches would fragment the memory, and the process would grow with the image. With
    `max_memory`, caches upstream stay unchanged, because the fill may read the same pixels twice.
    """
    under_way = threading.Lock()
    with under_way:
        if contents_of(store).outlives_process:
            contents_of(store).lend(under_way, _LITTLE_BYTES)
        chain = _chain_of([sliding.tensor]) if max_memory is None else ()
        for contents in {contents_of(tensor.tile_store) for tensor in chain} - {contents_of(store)}:
            contents.lend(under_way, 0)
        yield


def _mask_of(sliding: Sliding, region: object, where: object) -> object:
    """Check `region`, and return the ``where`` option for the fill.

    Raises
    ------
    RegionError
        If the region has only ints, no slices.
    ValidationError
        If the source is unbounded and there is no region, or the region has more dimensions than windows have.
    """
    unbounded = [d for d, extent in zip(sliding.numbers, sliding.extents, strict=True) if extent is None]
    if region is None and unbounded:
        names = [sliding.tensor.dims[d] for d in unbounded]
        raise ValidationError(f"dimensions {names} of the source are unbounded: give a region, as in sl[0:512, 0:512]")
    entries = members(region) or (region,)
    if all(as_index(entry) is not None for entry in entries):
        # The user hardly means a single pixel. Probably (0, 64) was meant as a slice.
        raise RegionError(f"region must have slices, as in sl[0:64, 0:64], got {quoted(region)}")
    if len(entries) > len(sliding.size):
        raise ValidationError(
            f"region must have at most {len(sliding.size)} entries, one for each dimension of the window, as in "
            f"sl[0:512, 0:512], got {quoted(region)}"
        )
    return _ALL if where is None and region is not None else where


def _region_of(outputs: Mapping[str | None, Output], sliding: Sliding, region: object) -> object:
    if region is None:
        return ...
    ndim = len(sliding.size)
    each = zip(*[output.shape[-ndim:] for output in outputs.values()], strict=True)
    extents = tuple([max((n for n in of_outputs if n is not None), default=None) for of_outputs in each])
    labels = [label_of(d, name or default_name(d)) for d, name in enumerate(sliding.names)]
    found = parse(tuple(members(region) or (region,)), extents, labels)
    if 0 in found.shape:
        raise RegionError(
            f"region={quoted(region)} contains no pixel of the prediction; give a region within the extents {extents} "
            "of the prediction, as in sl[0:512, 0:512]"
        )
    channels = len(outputs[None].shape) - ndim if None in outputs else 0
    return (*[slice(None)] * channels, *map(slice, found.start, found.stop))


def _tensor_of(source: Any, dims: Any) -> InfiniteTensor:
    found = stand_in(source)
    if isinstance(found, InfiniteTensor):
        return found
    made = from_array(source, dims=dims)
    assert isinstance(made.tile_store, MemoryTileStore)
    least = least_cache_of(made.output_window.size, made.dtype)
    made.tile_store.cache_size_bytes = max(_CACHE_BYTES, least)
    return made


def _empty_one_like(store: TileStore | None) -> TileStore:
    """Create an empty store in memory, with the settings of `store`.

    The fill is checked with this store before anything is deleted or created. If `store` is None, the settings are
    those of a new Zarr store.
    """
    if isinstance(store, MemoryTileStore):
        return MemoryTileStore(store.cache_size_bytes, tile_size=contents_of(store).registry.tile_size)
    # Imported here, because not every user has the packages of these stores.
    from infinite_tensor_stores import ZarrTileStore  # noqa: PLC0415

    if store is None:
        empty = ZarrTileStore(MemoryStore())
    else:
        tile_size, cached = getattr(store, "tile_size", None), contents_of(store).cache_limit
        empty = ZarrTileStore(MemoryStore(), tile_size=tile_size, cache_size_bytes=cached)
    contents_of(empty).shared = store is None or contents_of(store).shared
    return empty


def _is_new(store: object) -> bool:
    """Return whether `store` is a local path without a file or folder.

    Return False for URLs, because a look-up would take requests.
    """
    local = isinstance(store, str | Path) and "://" not in str(store)
    return local and not os.path.lexists(Path(str(store)).expanduser())


def _opened(store: Any) -> TileStore:
    # Imported here, because not every user has the packages of these stores.
    from infinite_tensor_stores import ZarrTileStore, shared_store  # noqa: PLC0415

    if store is None:
        # A store of tiles, because windows of scores would take many times the memory.
        return ZarrTileStore(MemoryStore(), compressors=None, flush_interval=1e9, cache_size_bytes=_CACHE_BYTES)
    if isinstance(store, str | os.PathLike):
        return shared_store(store)
    if not isinstance(store, TileStore):
        raise ValidationError(f"store must be a TileStore, a path or a URL, got {quoted(store)}")
    return store
