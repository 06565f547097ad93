"""`predict`: a network slid over an image, volume or raster of any size, blended, reduced and stored."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import torch

from infinite_tensor.errors import ShapeMismatchError, ValidationError
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.outputs import Output
from infinite_tensor.pipelines.networks import BatchedNetwork, Index, Outputs, device_of, evaluating
from infinite_tensor.pipelines.sliding import names_of, of_dimensions, slid_dims
from infinite_tensor.pipelines.sources import from_array
from infinite_tensor.support.given import as_index, as_ratio, members, number, quoted, word
from infinite_tensor.support.sizes import checked_bytes
from infinite_tensor.support.tables import bytes_of
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.values.fingerprint import digests
from infinite_tensor.values.networks import no_digest
from infinite_tensor.values.reduction import Reduction
from infinite_tensor.values.weights import WeightedMean

if TYPE_CHECKING:
    from distributed import Client

    from infinite_tensor.groups import TensorGroup


def predict(
    net: Callable[..., Any],
    source: Any,
    target: TileStore | str | os.PathLike[str] | None = None,
    *,
    window: int | Sequence[int],
    overlap: float | Sequence[float] = 0.25,
    blend: Any = "gaussian",
    sigma_scale: float | Sequence[float] = 0.125,
    dims: Sequence[str] | None = None,
    preprocess: Callable[[torch.Tensor], torch.Tensor] | None = None,
    reduce: Any = None,
    dtype: Any = None,
    scale: Any = None,
    edge: str = "clip",
    padding: Any = "reflect",
    region: Any = None,
    where: Any = None,
    batch_size: int = 4,
    device: torch.device | str | None = None,
    autocast: torch.dtype | bool | None = None,
    tensor_id: str = "prediction",
    version: Any = None,
    overwrite: bool = False,
    max_memory: int | str | None = None,
    workers: int | None = None,
    shard: tuple[int, int] | None = None,
    client: Client | None = None,
    progress: Any = True,
) -> InfiniteTensor | TensorGroup:
    """Slide a network over a tensor of any size, and store what it makes of it.

    Reads what each window needs, calls `net` with batches, blends windows that overlap, reduces pixels, and writes them
    as they become complete. Run again after an interruption, it continues: a window that is stored is not computed
    again.

    Parameters
    ----------
    net : callable
        ``net(batch) -> output``: `batch` has shape ``(batch_size, channels, *window)``; `output` has shape
        ``(batch_size, channels, *size)`` or ``(batch_size, *size)``, or is a dict or tuple of such tensors, which gives
        a group. All networks that it holds run in eval mode, and are left in the modes that they had.
    source : InfiniteTensor or array
        What it slides over; an array stands for `from_array` of it.
    target : TileStore, str or path, optional
        Where the prediction is stored. Default: in memory.
    window : int or tuple of int
        Pixels of a window, one for each dimension over which windows slide, or one for all.
    overlap : float or tuple of float
        How much of a window its neighbour shares, from 0 up to and without 1.
    blend, sigma_scale
        How overlapping windows are blended, as for `InfiniteTensor`; `sigma_scale` is that of "gaussian".
    dims : tuple of str, optional
        Names of the dimensions of `source`; "c", "channel", "channels", "band" and "bands" are channels. Default: its
        own names. Without any, a dimension more than `window` has is channels, and comes first.
    preprocess : callable, optional
        ``preprocess(batch) -> batch``, on `device`, before `net`. Integers have become float32, and are not scaled.
        What it returns is converted to the dtype of the network's parameters.
    reduce : str, callable, Reduction or dict, optional
        What is stored of the blended output of a pixel: "argmax", "softmax", "sigmoid", or a function as for
        `Reduction`. A dict has one for each output of a group.
    dtype : torch.dtype or str, optional
        What is stored. Default: what `net` returns; of "argmax" the smallest integers that hold the labels.
    scale : number, Fraction or tuple of these, optional
        Pixels of the output along one pixel of the source. Default: what `net` returns for a window says.
    edge : "clip" or "drop"
        What happens to windows that reach past the end of the source, as for `InfiniteTensor`.
    padding : str or ("constant", number)
        What stands beyond the ends of the source, as `args_padding` of an `InfiniteTensor`.
    region : optional
        What is computed now, in pixels of the prediction: slices over the dimensions of the window, as in
        ``sl[0:512, 0:512]``, and all other pixels of the tiles that these touch. Default: all of it. The rest is
        computed when it is read.
    where : Mask, array, tensor, InfiniteTensor or callable, optional
        Which pixels are wanted, as for `InfiniteTensor.fill`.
    batch_size : int
        How many windows `net` is given at once: always so many, the last ones repeated if need be.
    device : torch.device or str, optional
        Where batches go. Default: where the parameters of `net` are.
    autocast : bool or torch.dtype, optional
        Run `net` under `torch.autocast`, in this dtype, or with True in the default one.
    tensor_id : str
        The name under which `target` keeps the prediction; each output of a group has ``tensor_id/name``.
    version : JSON value, optional
        Anything else that identifies what is computed.
    overwrite : bool
        Delete what `target` has under `tensor_id`, once the first window has been computed.
    max_memory : int or str, optional
        The most memory that the process takes beside what it holds now and what `net` takes within, in bytes or as in
        "2 GB". With less, the image is worked in narrower bands.
    workers, shard, client, progress
        As for `InfiniteTensor.fill`.

    Returns
    -------
    InfiniteTensor or TensorGroup
        The prediction, filled. Its channels come first.

    Raises
    ------
    ValidationError
        If an argument does not fit, or `target` has something else under `tensor_id`: the prediction of other weights,
        say.
    ShapeMismatchError
        If what `net` returns does not fit its input.

    Notes
    -----
    Windows begin at pixel 0; the last one reaches past the end of the source and is padded there. MONAI shifts it
    inside instead. The digests of all networks, tensors and arrays in `net`, `preprocess` and `reduce` are part of the
    definition. Another `batch_size`, or other code of these, gives a FunctionChangedWarning.

    Examples
    --------
    >>> net = torch.nn.Conv2d(3, 5, 3, padding=1)
    >>> labels = predict(net, torch.rand(3, 100, 150), window=64, reduce="argmax", dims=("c", "y", "x"))
    >>> labels.shape, labels.dtype
    ((100, 150), torch.uint8)
    """
    if not callable(net):
        raise ValidationError(f"net must be callable, got {quoted(net)}; give a network, or a function of a batch")
    count = as_index(batch_size)
    if count is None or count < 1:
        raise ValidationError(f"batch_size must be a positive int, got {quoted(batch_size)}")
    sliding = Sliding.over(_tensor_of(source, dims), dims, window, overlap)
    place = device_of(net) if device is None else torch.device(device)
    f = BatchedNetwork(net, preprocess, count, place, _dtype_of_autocast(autocast, place), sliding.channel_dim)
    _check_region(sliding, region)
    if overwrite and shard is not None:
        raise ValidationError("overwrite=True of a shard would delete what the other shards store: give one of the two")
    store = _opened(target)
    stored = _stored(store, tensor_id)
    known = {} if overwrite else _described(tensor_id, stored, sliding)
    with evaluating(f.networks):
        found = known or _first_window(f, sliding, region, padding)
        results = {
            name: each.as_given(_for(name, reduce, found), dtype, sliding.scale_of(each, scale))
            for name, each in found.items()
        }
        blended = _blend_of(blend, sigma_scale)
        outputs = {name: result.output(sliding, blended, edge) for name, result in results.items()}
        options: dict[str, Any] = {
            "args": [sliding.source],
            "args_windows": [sliding.window],
            "args_padding": padding,
            "tensor_id": tensor_id,
            "batch_size": count,
            "version": _version(f, results, version),
        }
        if overwrite:
            # What does not fit is told before anything is deleted.
            _made(f, outputs, options, resumed=False)
            for name in stored:
                store.clear_tensor(name)
        made = _made(f, outputs, options | {"tile_store": store}, resumed=bool(stored) and not overwrite)
        f.returns(
            {
                name: (made if name is None else made[name]).dtype if result.reduction is None else result.seen.computed
                for name, result in results.items()
            }
        )
        with _beside_batches(max_memory, _batch_bytes(sliding, found, count), count) as most:
            made.fill(
                _region_of(made, sliding, region),
                workers=workers,
                max_memory=most,
                client=client,
                progress=progress,
                shard=shard,
                where=where,
            )
        f.forget()
    return made


_Sizes: TypeAlias = tuple[int, ...]
_CACHE_BYTES = 2**24
"""Of a source, of which nothing is read twice, and of a store in memory, which holds all tiles a second time."""


@dataclass(frozen=True)
class Sliding:
    """How windows slide over a source.

    Attributes
    ----------
    source : InfiniteTensor
        What they slide over.
    numbers : tuple of int
        The dimensions along which they do.
    names : tuple of (str or None)
        What users call these.
    channel_dim : int or None
        The other dimension.
    size, stride : tuple of int
        Pixels of a window, and from one to the next.
    """

    source: InfiniteTensor
    numbers: _Sizes
    names: tuple[str | None, ...]
    channel_dim: int | None
    size: _Sizes
    stride: _Sizes

    @classmethod
    def over(cls, source: InfiniteTensor, dims: object, window: object, overlap: object) -> Self:
        """As the arguments of `predict` say; ValidationError for what does not fit."""
        names, entries = _names_of(source, dims), members(window)
        try:
            numbers = slid_dims(source.shape, names, None if entries is None else len(entries))
            if len(numbers) < source.ndim - 1:
                raise ValueError(f"windows slide over {len(numbers)} of them, and only one more can be channels")
        except ValueError as problem:
            raise ValidationError(
                f"the source has shape {source.shape} and dims {tuple(names)}: {problem}; give dims=('c', 'y', 'x'), "
                "say, or dims=('y', 'x', 'c') for channels last, and a window with one entry for each of the others"
            ) from None
        rest = [d for d in range(source.ndim) if d not in numbers]
        size = of_dimensions("window", window, len(numbers), _positive, "a positive int")
        shared = of_dimensions("overlap", overlap, len(size), _share, "a number from 0 up to and without 1")
        stride = tuple(max(1, int(n * (1 - share))) for n, share in zip(size, shared, strict=True))
        named = tuple(names[d] for d in numbers)
        return cls(source, tuple(numbers), named, rest[0] if rest else None, tuple(size), stride)

    @property
    def window(self) -> TensorWindow:
        """What a window reads of the source."""
        return self._window(self.size, self.stride, (0,) * len(self.size), tuple(range(len(self.size))))

    def alone(self, start: Sequence[int]) -> TensorWindow:
        """A single window, which begins at this pixel."""
        return self._window(self.size, self.size, start, (None,) * len(self.size))

    def _window(
        self, size: Sequence[int], stride: Sequence[int], offset: Sequence[int], follows: Sequence[int | None]
    ) -> TensorWindow:
        along = dict(zip(self.numbers, zip(size, stride, offset, follows, strict=True), strict=True))
        whole = [along.get(d, (extent or 1, extent or 1, 0, None)) for d, extent in enumerate(self.source.shape)]
        return TensorWindow(*zip(*whole, strict=True))

    @property
    def extents(self) -> list[int | None]:
        """Pixels of the source along which windows slide."""
        return [self.source.shape[d] for d in self.numbers]

    def first(self, begin: Sequence[int]) -> tuple[Index, list[int]]:
        """The first of the windows that hold a pixel, and the pixel at which it begins."""
        index = []
        for a, n, step, extent in zip(begin, self.size, self.stride, self.extents, strict=True):
            i = -((n - 1 - a) // step)
            index.append(i if extent is None else max(i, 0))
        return tuple(index), list(map(operator.mul, index, self.stride))

    def scale_of(self, seen: Seen, given: object) -> tuple[Fraction, ...]:
        """Pixels of the output along one of the source; ValidationError where windows do not lie on whole ones."""
        found = tuple(Fraction(n, size) for n, size in zip(seen.size, self.size, strict=True))
        shapes = f"net was given windows of {self.size} pixels and returned {seen.size}"
        if given is not None:
            scales = tuple(of_dimensions("scale", given, len(found), as_ratio, "a positive number such as 2 or 0.5"))
            if scales != found:
                raise ShapeMismatchError(
                    f"{shapes}, which is not scale={_shown(scales)}; crop or resize what net returns to "
                    f"{tuple(str(n * scale) for n, scale in zip(self.size, scales, strict=True))}"
                )
        elif any(1 not in (scale.numerator, scale.denominator) for scale in found):
            raise ShapeMismatchError(
                f"{shapes}: is it cropped? Have net return as many pixels, or give scale={_shown(found)} if that is "
                "the resolution of its output"
            )
        if any((step * scale).denominator > 1 for step, scale in zip(self.stride, found, strict=True)):
            raise ValidationError(
                f"windows are {self.stride} pixels apart, which is not whole at scale {_shown(found)}; give another "
                "overlap or window"
            )
        return found


def _shown(scales: Sequence[Fraction]) -> str:
    return "(" + ", ".join(map(str, scales)) + ")" if len({*scales}) > 1 else str(scales[0])


@dataclass(frozen=True)
class Seen:
    """What a network returns for one window: of one output of it.

    Attributes
    ----------
    channels : int or None
        Values per pixel; None where there is no dimension for them.
    size : tuple of int
        Pixels.
    computed : torch.dtype
        Its dtype, or that in which it is stored.
    """

    channels: int | None
    size: _Sizes
    computed: torch.dtype

    @property
    def nbytes(self) -> int:
        """Of one window, in bytes."""
        return (self.channels or 1) * math.prod(self.size) * self.computed.itemsize

    def as_given(self, reduce: object, dtype: Any, scale: tuple[Fraction, ...]) -> Result:
        """What becomes of it."""
        if reduce is None:
            stored = self.computed if dtype is None else dtype
            return Result(self, scale, None, stored, self.channels)
        if self.channels is None:
            raise ValidationError(
                f"reduce={quoted(reduce)} reduces the channels of each pixel, but net returned windows of {self.size} "
                "pixels without any; leave it out"
            )
        if isinstance(reduce, Reduction):
            if (reduce.in_channels, reduce.dtype) != (self.channels, self.computed):
                raise ValidationError(
                    f"net returned {self.channels} channels of {self.computed}, which {reduce!r} does not reduce"
                )
            reduction, becomes = reduce, None
        else:
            reduction, becomes = _reduction(reduce, self.channels, self.computed)
        if dtype is None:
            labels = torch.uint8 if self.channels <= 2**8 else torch.int16 if self.channels <= 2**15 else torch.int32
            dtype = labels if reduction.function == "argmax" else becomes or self.computed
        return Result(self, scale, reduction, dtype, reduction.out_channels)


def _reduction(given: Any, channels: int, dtype: torch.dtype) -> tuple[Reduction, torch.dtype | None]:
    """The reduction that `reduce` stands for, and the dtype of its results where it tells that."""
    if word(given) is not None or not callable(given):
        return Reduction(given, channels, dtype=dtype), None
    with torch.no_grad():
        tried = given(torch.zeros(channels, 64, dtype=dtype))
    if not isinstance(tried, torch.Tensor) or tried.ndim not in (1, 2) or tried.shape[-1] != 64:
        shape = tuple(tried.shape) if isinstance(tried, torch.Tensor) else quoted(tried)
        raise ValidationError(
            f"reduce was given values of shape ({channels}, 64), those of 64 pixels, and must return shape (64,) or "
            f"(count, 64), got {shape}"
        )
    return Reduction(given, channels, None if tried.ndim == 1 else len(tried), dtype), tried.dtype


@dataclass(frozen=True)
class Result:
    """What is stored of one output.

    Attributes
    ----------
    seen : Seen
        What the network returns.
    scale : tuple of Fraction
        Pixels along one of the source.
    reduction : Reduction or None
        What pixels are reduced by.
    stored : torch.dtype or str
        What is stored.
    channels : int or None
        Values per pixel that are stored.
    """

    seen: Seen
    scale: tuple[Fraction, ...]
    reduction: Reduction | None
    stored: Any
    channels: int | None

    def output(self, sliding: Sliding, blend: Any, edge: str) -> Output:
        """The tensor."""
        shape = [
            None if n is None else math.ceil(n * scale) for n, scale in zip(sliding.extents, self.scale, strict=True)
        ]
        stride = [int(n * scale) for n, scale in zip(sliding.stride, self.scale, strict=True)]
        size, follows, names = [*self.seen.size], [*range(len(stride))], [*sliding.names]
        dims = None if None in names else [str(name) for name in names]
        if self.channels is not None:
            shape, size, stride = [self.channels, *shape], [self.channels, *size], [self.channels, *stride]
            window = TensorWindow(size, stride, 0, [None, *follows])
            dims = None if dims is None else ["c", *dims]
            if isinstance(blend, WeightedMean) and isinstance(blend.sigma_scale, tuple):
                blend = WeightedMean("gaussian", (blend.sigma_scale[0], *blend.sigma_scale))
        else:
            window = TensorWindow(size, stride)
        return Output(shape, self.stored, window, blend, None, edge, dims, self.reduction)


def _made(
    f: BatchedNetwork, outputs: Mapping[str | None, Output], options: dict[str, Any], *, resumed: bool
) -> InfiniteTensor | TensorGroup:
    """The tensor, or the group of several outputs."""
    try:
        # Networks are in the version.
        with no_digest():
            output = outputs.get(None)
            if output is None:
                return InfiniteTensor.from_multi(f, {str(name): each for name, each in outputs.items()}, **options)
            return InfiniteTensor(
                output.shape,
                f,
                output.window,
                dtype=output.dtype,
                blend=output.blend,
                edge=output.edge,
                dims=output.dims,
                reduce=output.reduce,
                **options,
            )
    except ValidationError as error:
        if not resumed or "already holds a tensor" not in str(error):
            raise
        raise ValidationError(
            f"{error}\nGive predict another tensor_id, or overwrite=True, which deletes what is stored"
        ) from error


def _version(f: BatchedNetwork, results: Mapping[str | None, Result], version: object) -> dict[str, Any]:
    """What identifies the values: the weights of all that is called."""
    reductions = {
        "reduce" if name is None else f"reduce {name}": digests(result.reduction.function)
        for name, result in results.items()
        if result.reduction is not None and callable(result.reduction.function)
    }
    said: dict[str, Any] = {"net": digests(f.net), **reductions}
    if None not in results:
        said["outputs"] = sorted(str(name) for name in results)
    if f.preprocess is not None:
        said["preprocess"] = digests(f.preprocess)
    if f.autocast is not None:
        said["autocast"] = str(f.autocast).removeprefix("torch.")
    return said if version is None else said | {"version": version}


def _described(
    tensor_id: str, definitions: Mapping[str, Mapping[str, Any]], sliding: Sliding
) -> dict[str | None, Seen]:
    """What the network returned when the prediction was begun, where all of that is stored."""
    found: dict[str | None, Seen] = {}
    for name, stored in definitions.items():
        size, reduction, args = stored["output_window"]["size"], stored.get("reduce"), stored["args"]
        version = stored["version"] if isinstance(stored["version"], dict) else {}
        outputs = version.get("outputs", [])
        if len(args) != 1 or len(args[0]["window"]["size"]) != sliding.source.ndim or len(size) < len(sliding.size):
            # Something else. The comparison of definitions says what.
            return {}
        if name != tensor_id and len(outputs) != len(definitions):
            return {}
        # As for windows of this size, if they were of another.
        read = [args[0]["window"]["size"][d] for d in sliding.numbers]
        returned = zip(sliding.size, size[-len(read) :], read, strict=True)
        pixels = tuple(now * became // given for now, became, given in returned)
        if reduction is None:
            channels = size[0] if len(size) > len(pixels) else None
            seen = Seen(channels, pixels, _torch_dtype(stored["dtype"]))
        else:
            seen = Seen(reduction["in_channels"], pixels, _torch_dtype(reduction["dtype"]))
        found[None if name == tensor_id else name.removeprefix(f"{tensor_id}/")] = seen
    return found


def _torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _stored(store: TileStore, tensor_id: str) -> dict[str, dict[str, Any]]:
    """The definitions that a store has of a prediction, by their ids: of the tensor, or of the outputs of a group."""
    found = {}
    for name in store.tensor_ids():
        if name == tensor_id:
            found[name] = store.tensor_definition(name)
        elif name.startswith(f"{tensor_id}/"):
            definition = store.tensor_definition(name)
            # Another prediction may have a name that begins so.
            if definition.get("output") == [name.removeprefix(f"{tensor_id}/")]:
                found[name] = definition
    return found


def _first_window(f: BatchedNetwork, sliding: Sliding, region: object, padding: object) -> dict[str | None, Seen]:
    """What the network returns for the first window, which is kept."""
    begins = [0] * len(sliding.size)
    for d, each in enumerate(members(region) or ()):
        if d < len(begins):
            begins[d] = each.start or 0 if isinstance(each, slice) else as_index(each) or 0
    index, start = sliding.first(begins)
    returned: list[Outputs] = []

    def look(_ctx: Index, patch: torch.Tensor) -> torch.Tensor:
        returned.append(f.first(index, patch))
        return patch

    window = sliding.alone(start)
    patch = InfiniteTensor(
        (None,) * window.ndim,
        look,
        window,
        args=[sliding.source],
        args_windows=[window],
        args_padding=padding,
        dtype=sliding.source.dtype,
        device=sliding.source.device,
    )
    with no_digest():
        patch[tuple(window.offset)]
    return {name: _seen(name, output, sliding) for name, output in returned[0].items()}


def _seen(name: str | None, output: torch.Tensor, sliding: Sliding) -> Seen:
    dims = output.ndim - 1 - len(sliding.size)
    if dims not in (0, 1):
        named = "" if name is None else f" for {name!r}"
        raise ShapeMismatchError(
            f"net returned shape {tuple(output.shape)}{named} for a window of {sliding.size} pixels; it must return a "
            "result for each of a batch, with one dimension for channels, or none, and those of the window"
        )
    channels = output.shape[1] if dims else None
    return Seen(channels, tuple(output.shape[1 + dims :]), output.dtype)


def _batch_bytes(sliding: Sliding, found: Mapping[str | None, Seen], batch_size: int) -> int:
    """What a batch takes with what the network returns for it: on the device and the CPU, or in two dtypes."""
    read = math.prod(sliding.window.size) * torch.float32.itemsize
    return batch_size * (read + 2 * sum(each.nbytes for each in found.values()))


@contextmanager
def _beside_batches(max_memory: object, batches: int, batch_size: int) -> Iterator[int | None]:
    """What batches leave of the memory; errors say what they take."""
    most = checked_bytes("max_memory", max_memory)
    if most is None:
        yield None
        return
    takes = f"a batch of {batch_size} windows takes {bytes_of(batches)} with what net returns for it"
    if most <= batches:
        raise ValidationError(
            f"max_memory is {bytes_of(most)}, but {takes}: allow more, or give a smaller batch_size or window"
        )
    try:
        yield most - batches
    except ValidationError as error:
        error.add_note(f"max_memory is {bytes_of(most)}, of which {takes}")
        raise


def _check_region(sliding: Sliding, region: object) -> None:
    """ValidationError for none over a source without ends, and for one of more dimensions than windows have."""
    unbounded = [d for d, extent in zip(sliding.numbers, sliding.extents, strict=True) if extent is None]
    if region is None and unbounded:
        names = [sliding.source.dims[d] for d in unbounded]
        raise ValidationError(f"dimensions {names} of the source are unbounded: give a region, as in sl[0:512, 0:512]")
    if region is not None and len(members(region) or (region,)) > len(sliding.size):
        raise ValidationError(
            f"region must have an entry for each of the {len(sliding.size)} dimensions of the window, as in "
            f"sl[0:512, 0:512], got {quoted(region)}"
        )


def _region_of(made: InfiniteTensor | TensorGroup, sliding: Sliding, region: object) -> object:
    """The region to fill, in all dimensions of the prediction."""
    if region is None:
        return ...
    entries = members(region) or (region,)
    missing = (slice(None),) * (len(sliding.size) - len(entries) if Ellipsis not in entries else 0)
    channels = isinstance(made, InfiniteTensor) and made.ndim > len(sliding.size)
    return (*[slice(None)] * channels, *entries, *missing)


def _tensor_of(source: Any, dims: Any) -> InfiniteTensor:
    as_tensor = getattr(type(source), "as_tensor", None)
    if isinstance(source, InfiniteTensor):
        return source
    if as_tensor is not None:
        found: InfiniteTensor = as_tensor(source)
        return found
    made = from_array(source, dims=dims)
    assert isinstance(made.tile_store, MemoryTileStore)
    made.tile_store.cache_size_bytes = _CACHE_BYTES
    return made


def _names_of(source: InfiniteTensor, dims: object) -> list[str | None]:
    """The names of its dimensions, None for one without."""
    given = [word(name) for name in members(dims) or ()] if dims is not None else None
    if given is None:
        return names_of(source)
    if len(given) != source.ndim or None in given or len({*given}) < len(given):
        raise ValidationError(
            f"dims must hold a name for each of the {source.ndim} dimensions of the source, of shape {source.shape}, "
            f"got {quoted(dims)}"
        )
    return given


def _positive(value: object) -> int | None:
    found = as_index(value)
    return found if found is not None and found > 0 else None


def _share(value: object) -> float | None:
    plain = number(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not 0 <= plain < 1:
        return None
    return float(plain)


def _for(name: str | None, reduce: object, outputs: Mapping[str | None, Seen]) -> object:
    """What reduces one output."""
    if not isinstance(reduce, Mapping):
        return reduce
    names = [str(each) for each in reduce]
    if None in outputs or not {*names} <= {*outputs}:
        raise ValidationError(
            f"reduce has entries for {names}, but net returned {'one tensor' if None in outputs else list(outputs)}"
        )
    return {str(each): reduction for each, reduction in reduce.items()}.get(str(name))


def _blend_of(blend: object, sigma_scale: Any) -> object:
    return WeightedMean("gaussian", sigma_scale) if word(blend) == "gaussian" else blend


def _dtype_of_autocast(autocast: object, device: torch.device) -> torch.dtype | None:
    if autocast is None or autocast is False:
        return None
    if autocast is True:
        return torch.get_autocast_dtype(device.type)
    if not isinstance(autocast, torch.dtype):
        raise ValidationError(f"autocast must be True, a torch.dtype or None, got {quoted(autocast)}")
    return autocast


def _opened(target: Any) -> TileStore:
    # Stores need packages that a user of others may do without.
    from infinite_tensor_stores import ZarrTileStore, shared_store  # noqa: PLC0415

    if target is None:
        from zarr.storage import MemoryStore  # noqa: PLC0415

        # Tiles, as everywhere: windows of scores would take many times the memory.
        return ZarrTileStore(MemoryStore(), compressors=None, flush_interval=1e9, cache_size_bytes=_CACHE_BYTES)
    if isinstance(target, str | os.PathLike):
        return shared_store(target)
    if not isinstance(target, TileStore):
        raise ValidationError(f"target must be a TileStore, a path or a URL, got {quoted(target)}")
    return target
