"""`map_windows`: applies a function to regions of tensors of any size."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeAlias

import torch
from torch import nn

from infinite_tensor.errors import FunctionChangedWarning, ShapeMismatchError, ValidationError
from infinite_tensor.geometry.window import TensorWindow, followed
from infinite_tensor.pipelines.networks import CallingNetworks, Company
from infinite_tensor.pipelines.sliding import Along, leading_of, output_of, paddings_of, sources_of, windows_of
from infinite_tensor.support.functions import Formula
from infinite_tensor.support.given import as_index, checked_flag, quoted
from infinite_tensor.support.interrupts import running_f
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.values.checks import stand_in
from infinite_tensor.values.code import innermost
from infinite_tensor.values.definition import Blend, BlendName
from infinite_tensor.values.fingerprint import STAMP

_Sizes: TypeAlias = tuple[int, ...]
_FEW = 8
"""So many pixels of the output, along each dimension, tell the dtype."""


def map_windows(
    fn: Callable[..., torch.Tensor],
    *inputs: Any,
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
    store: TileStore | str | Any | None = None,
    tensor_id: str | None = None,
    version: object = None,
) -> InfiniteTensor:
    """Apply a function lazily to tensors.

    A region of the result is computed on reading, by calling `fn` with a region of each input. A map without `store` or
    `window` is a formula: it is computed where it is read, and nothing is kept. With either, it is computed window by
    window, once, and kept. A network, a function that holds one, and a `batch_size` mean windows too.

    Windows slide over all dimensions except channels, finite or unbounded. Dimensions named c, channel, channels, band
    or bands are channels. Without names, a finite first dimension is channels if all other dimensions are unbounded. A
    `window` with n entries slides over the last n dimensions. In all other cases, give `dims`. Dimensions without
    sliding windows are passed to `fn` whole.

    With several inputs, the output is shaped like the leading one: the first with most dimensions over which windows
    slide. Others may have fewer, such as a height under a volume: these are found by their names, and without names
    they are the last ones, as in broadcasting. `halo`, `scale` and `padding` may be a tuple with one entry per input.
    `window` and these arguments may also be a tuple with one entry per dimension over which windows slide. With several
    inputs, `halo`, `scale` and `padding` are then a tuple of such tuples: ``padding=(("wrap", "reflect"),) * 2``.

    Parameters
    ----------
    fn : callable
        ``fn(*regions) -> tensor`` gets a region of each input, with the halo around it. The result must have the size
        of the region in the output. A result larger by the halo is cropped. `fn` must be deterministic, and
        runs under `torch.no_grad`. With a `batch_size`, `fn` gets stacked regions of shape ``(N, ...)``, and returns
        ``(N, ...)``. A `torch.nn.Module` always gets a batch; without a `batch_size`, the batch has one region. A
        network in `fn` must not be in training mode if its code reads `training`: call
        ``net.eval()`` first.
    *inputs : InfiniteTensor
        One or more. The output has the channels, device and dimension names of the leading one. A dimension of the
        output is finite if it is finite in any input.
    halo : int
        Width of the border around the window that `fn` also gets, on each side, in pixels of the input.
    window : int, optional
        Pixels of the leading input that one call computes, without the halo. Default, if there are windows: the size of
        the tiles of the store, if it has a single one; otherwise in two dimensions 256, and 64 without a `store`. It is
        longer in one dimension or for a large halo, and shorter in more dimensions; `output_window` shows it. The
        window is part of the definition of the tensor, and of its default id.
    overlap : float
        The part of a window that it shares with the next one: at least 0 and below 1. The distance between windows is
        rounded down. Overlapping windows are computed whole, with their halo, and blended.
    blend : callable, WeightedMean or str
        How overlapping windows are blended, as for `InfiniteTensor`.
    scale : int, Fraction or float
        Pixels of the output along one pixel of the input: 4 for a network that enlarges by 4, ``Fraction(1, 2)`` for
        one that halves. The extent of the output is rounded up.
    channels : int or (), optional
        Extent of the channel dimension of the output. This dimension takes the position of the channels of the leading
        input. If there are none, it comes first, with the name "c" if other dimensions have names. ``()`` for an output
        without channels. Default: as in the leading input.
    dims : tuple of str or int, optional
        The dimensions over which windows slide, by name or number, the same for all inputs.
    padding : str or ("constant", number), or tuple of these
        What `fn` gets beyond the ends of finite dimensions, as `args_padding` of an `InfiniteTensor`. A tuple has one
        entry for each dimension over which windows slide. With several inputs, a tuple has one entry for each input,
        which may itself be a tuple with one entry per dimension.
    batch_size : int or tuple of int, optional
        Number of windows in one call of `fn`. If there are fewer, the last one is repeated, so that the bits of a
        window do not depend on the others that a read needs. A tuple lists the allowed sizes, which must include 1.
        Before the first batch, `fn` is called once more, and a warning says if a window depends on its batch.
    coordinates : bool
        Whether `fn` also gets, as its last argument, where the region of the first input begins:
        ``fn(*regions, start)``, with a tuple of the coordinates of its first pixel, halo included, in pixels of this
        input. In a batch, `start` is a list of tuples.
    dtype : torch.dtype or str, optional
        Dtype that `fn` returns. Default: found by a call of `fn` with a few ones, if the inputs have several dtypes or
        `fn` names nothing but modules, so that the call changes nothing. Otherwise, for networks, and if the call
        fails: the dtype of the leading input.
    device : torch.device or str, optional
        Device on which `fn` returns its results. Default: that of the leading input.
    store : TileStore, str or path, optional
        Store of the results, as `tile_store` of an `InfiniteTensor`. Default: windows are kept in the `map_cache`.
    tensor_id : str, optional
        The id of the tensor in the store. Default: the name of `fn` and a digest of the definition,
        which includes the code and values of all functions of the chain. The default is a random id if the store is in
        memory. It is also random if `fn` holds an object that cannot be inspected, which a warning names, and there is
        no `version`.
    version : JSON value, optional
        Anything else that identifies what `fn` computes, such as a file that it reads.

    Returns
    -------
    InfiniteTensor
        The lazy result. If `tensor_id` is stored already, changed values of `fn` (weights, globals, closures,
        attributes) raise a ValidationError, and changed code gives a FunctionChangedWarning.

    Raises
    ------
    ValidationError
        If an argument is invalid, or the store holds another tensor under `tensor_id`.
    ShapeMismatchError
        (when read) If `fn` returns another size.
    DtypeMismatchError
        (when read) If `fn` returns another dtype.

    Examples
    --------
    >>> ramp = InfiniteTensor(
    ...     (None,), lambda ctx: torch.arange(8.0) + 8 * ctx[0], TensorWindow((8,))
    ... )
    >>> def mean_of_three(x):
    ...     return (x[:-2] + x[1:-1] + x[2:]) / 3
    >>> ramp.map(mean_of_three, halo=1)[-2:2]
    tensor([-2., -1.,  0.,  1.])
    """
    if not callable(fn):
        raise ValidationError(f"fn must be callable, got {quoted(fn)}; give a function fn(*regions), or a network")
    tensors = _tensors(inputs)
    sources = sources_of(tensors, dims, window, halo, scale)
    stored = not (store is None or isinstance(store, MemoryTileStore))
    tile = as_index(getattr(store, "tile_size", None))
    output = output_of(sources, window, overlap, channels, tile, stored=stored)
    windows = windows_of(sources, output)
    leading = leading_of(sources).tensor
    named = any(along.name for along in output)
    overlaps = any(along.stride < along.size for along in output)
    f = Mapped(fn, output, as_index(batch_size), windows[0] if checked_flag("coordinates", coordinates) else None)
    f.modes.check()
    plain = store is None and window is None and batch_size is None and not overlaps
    f.is_formula = plain and not f.snapshot.networks
    if dtype is None:
        is_tried = len({each.dtype for each in tensors}) > 1 or _is_unnoticed(fn)
        count = None if batch_size is None else as_index(batch_size) or 1
        found = f.returned_dtype(tensors, windows, count) if is_tried and not f.snapshot.networks else None
        dtype = found or leading.dtype
    make = functools.partial(
        InfiniteTensor,
        [along.extent for along in output],
        f,
        TensorWindow([along.size for along in output], [along.stride for along in output]),
        args=tensors,
        args_windows=windows,
        dtype=dtype,
        device=leading.device if device is None else device,
        batch_size=batch_size,
        blend=blend if overlaps else None,
        version=version,
        edge="clip",
        args_padding=paddings_of(sources, padding),
        dims=[along.name or f"dim_{d}" for d, along in enumerate(output)] if named else None,
    )
    if tensor_id is None and stored:
        tensor_id = _derived_id(fn, make())
    return make(tile_store=store, tensor_id=tensor_id)


def _tensors(inputs: Sequence[Any]) -> list[InfiniteTensor]:
    if not inputs:
        raise ValidationError("map_windows needs at least one tensor after fn, as in map_windows(fn, a, b)")
    found: list[InfiniteTensor] = []
    for at, each in enumerate(inputs):
        tensor = stand_in(each)
        if not isinstance(tensor, InfiniteTensor):
            raise ValidationError(
                f"input {at} must be an InfiniteTensor or a TensorBlob, got {quoted(each)}; give from_array(a)"
            )
        found.append(tensor)
    return found


def _derived_id(fn: Callable[..., Any], made: InfiniteTensor) -> str | None:
    beside = ("device", "meaning")
    definition: dict[str, Any] = {name: value for name, value in made.to_json().items() if name not in beside}
    functions = definition["functions"]
    if functions["opaque"]:
        warnings.warn(
            f"{', '.join(functions['opaque'][:5])} cannot be inspected, so the tensor gets a random id, and is not "
            "found again. Give a tensor_id, or set version= to a value for the state, such as the hash of a checkpoint",
            FunctionChangedWarning,
            stacklevel=4,
        )
        return None
    # Names of files are left out: a file may have been moved.
    values = [["" if kind == STAMP else place, said, kind] for place, said, kind in functions["values"]]
    functions["values"] = sorted(values)
    said = json.dumps(definition, sort_keys=True)
    own = innermost(fn)
    name = getattr(own, "__name__", type(own).__name__)
    return f"{name if name.isidentifier() else 'map'}-{hashlib.sha256(said.encode()).hexdigest()[:20]}"


class Mapped(CallingNetworks, Formula):
    """The ``f`` of a mapped tensor: calls the user function, and crops the result.

    If `located` is given, the window over the first input, the function is also told where its region begins.
    """

    def __init__(
        self,
        fn: Callable[..., torch.Tensor],
        output: Sequence[Along],
        batch_size: int | None,
        located: TensorWindow | None,
    ) -> None:
        self.__wrapped__ = fn
        self._output = output
        self._batch_size = batch_size
        self._located = located
        self._company = Company()

    def _reaches(self) -> Mapping[str, object]:
        return {"fn": self.__wrapped__}

    def __call__(self, ctx: Any, *regions: Any) -> torch.Tensor:
        """Compute a window, or a batch of them."""
        self.modes.check()
        if isinstance(ctx, list):
            # Most functions round differently for another number of regions.
            extra = max(0, (self._batch_size or 0) - len(ctx))
            batches = [[*each, *[each[-1]] * extra] for each in (*regions, ctx)]
            *windows, indices = batches
            (found,) = self._company.results(
                windows[0],
                lambda numbers: [
                    self._called(
                        [torch.stack([each[n] for n in numbers]) for each in windows],
                        (len(numbers),),
                        self._output,
                        [indices[n] for n in numbers],
                    )
                ],
            )
            return found[: len(ctx)]
        if isinstance(self.__wrapped__, nn.Module):
            return self._called([region.unsqueeze(0) for region in regions], (1,), self._output, [ctx])[0]
        return self._called(regions, (), self._output, [ctx])

    def over(self, start: Sequence[int], size: Sequence[int], *regions: torch.Tensor) -> torch.Tensor:
        """Compute a region of any size; see `Formula.over`."""
        self.modes.check()
        output = [replace(along, size=n) for along, n in zip(self._output, size, strict=True)]
        # A region may begin in the middle of a window.
        at = [Fraction(n, along.stride) for n, along in zip(start, self._output, strict=True)]
        return self._called(regions, (), output, [at])

    def returned_dtype(
        self, args: Sequence[InfiniteTensor], windows: Sequence[TensorWindow], count: int | None
    ) -> torch.dtype | None:
        """Return the dtype of what the function returns for small regions of ones, or None if it does not take them.

        With a `count`, it gets a batch of so many regions.
        """
        batch = () if count is None else (count,)
        try:
            regions = [
                torch.ones((*batch, *_small(window, self._output)), dtype=arg.dtype, device=arg.device)
                for arg, window in zip(args, windows, strict=True)
            ]
            with running_f(), torch.no_grad():
                found = self._returned(regions, batch, [(0,) * len(self._output)] * (count or 1))
        except Exception:  # noqa: BLE001  (the function may take windows of one size only)
            return None
        return found.dtype if isinstance(found, torch.Tensor) else None

    def halo(self, k: int) -> int | None:
        """Return the halo along a dimension of the output, in pixels of the output, or None if no windows slide."""
        halos = self._output[k].halos
        return max(math.ceil(n * scale) for n, scale in halos) if halos else None

    def widened(self, more: Sequence[int], located: TensorWindow) -> Mapped:
        """Return the same for windows with `more` pixels on each side. `located` is the window over the first input."""
        output = [replace(along, size=along.size + 2 * n) for along, n in zip(self._output, more, strict=True)]
        return Mapped(self.__wrapped__, output, self._batch_size, None if self._located is None else located)

    def _returned(self, regions: Sequence[torch.Tensor], batch: _Sizes, at: Sequence[Sequence[Any]]) -> Any:
        if self._located is None:
            return self.__wrapped__(*regions)
        starts = [_start(self._located, index) for index in at]
        return self.__wrapped__(*regions, starts if batch else starts[0])

    def _called(
        self, regions: Sequence[torch.Tensor], batch: _Sizes, along: Sequence[Along], at: Sequence[Sequence[Any]]
    ) -> torch.Tensor:
        output = self._returned(regions, batch, at)
        if not isinstance(output, torch.Tensor) or output.is_nested:
            raise ValidationError(
                f"fn must return one dense tensor, got {type(output).__name__}: {output!r:.80}; for several "
                "outputs, call map for each, or use InfiniteTensor.from_multi"
            )
        found = tuple(output.shape)
        if found == (*batch, *tuple([each.size for each in along])):
            return output
        crops = [each.crop(n) for each, n in zip(along, found[len(batch) :], strict=False)]
        if len(found) != len(batch) + len(crops) or found[: len(batch)] != batch or None in crops:
            raise ShapeMismatchError(_misfit(along, tuple(regions[0].shape), found, batch))
        return output[(..., *crops)]


def _start(window: TensorWindow, index: Sequence[Any]) -> tuple[int, ...]:
    """Return the first pixel of the arg window at an index, which may lie between two windows."""
    return tuple(
        [
            offset + (0 if k is None else int(index[k] * stride))
            for k, stride, offset in zip(followed(window), window.stride, window.offset, strict=True)
        ]
    )


def _is_unnoticed(fn: Any) -> bool:
    """Return whether nobody can notice a call of a function, because it names nothing but modules."""
    if isinstance(fn, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
        return True
    if not isinstance(fn, types.FunctionType) or fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__:
        return False
    named = [fn.__globals__.get(name) for name in fn.__code__.co_names]
    inner = [each for each in fn.__code__.co_consts if isinstance(each, types.CodeType)]
    return not inner and all(each is None or isinstance(each, types.ModuleType) for each in named)


def _small(window: TensorWindow, output: Sequence[Along]) -> list[int]:
    """Return the extents of the region of an arg for a few pixels of the output."""
    sides = []
    for k, n, stride in zip(followed(window), window.size, window.stride, strict=True):
        if k is not None:
            # So many pixels of the output lie over a whole number of pixels of the arg.
            unit = output[k].stride // math.gcd(output[k].stride, stride)
            pixels = min(output[k].stride, max(1, _FEW // unit) * unit)
            n += pixels * stride // output[k].stride - stride  # noqa: PLW2901
        sides.append(n)
    return sides


def _misfit(output: Sequence[Along], given: _Sizes, found: _Sizes, batch: _Sizes) -> str:
    size = (*batch, *[along.size for along in output])
    padded = (*batch, *[along.padded or along.size for along in output])
    larger = f", or {padded} including the halo" if padded != size else ""
    return (
        f"for shape {given}, fn must return shape {size}{larger}, got {found}; give map the halo=, scale=, channels= "
        f"and batch_size= of fn"
    )
