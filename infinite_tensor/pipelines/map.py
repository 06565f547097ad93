"""`map_windows`: applies a function to regions of tensors of any size."""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn

from infinite_tensor.errors import FunctionChangedWarning, ShapeMismatchError, ValidationError
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.pipelines.networks import CallingNetworks, Company
from infinite_tensor.pipelines.sliding import Along, output_of, paddings_of, sources_of, windows_of
from infinite_tensor.support.functions import Formula
from infinite_tensor.support.given import as_index, quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.values.checks import stand_in
from infinite_tensor.values.code import innermost
from infinite_tensor.values.fingerprint import STAMP

_Sizes: TypeAlias = tuple[int, ...]


def map_windows(
    fn: Callable[..., torch.Tensor],
    *inputs: Any,
    halo: object = 0,
    window: object = None,
    scale: object = 1,
    channels: object = None,
    dims: Sequence[str | int] | None = None,
    padding: object = "reflect",
    batch_size: int | tuple[int, ...] | None = None,
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

    With several inputs, windows slide over the same number of dimensions of each, and `halo`, `scale` and `padding` may
    be a tuple with one entry per input. `window` and these arguments may also be a tuple with one entry per dimension
    over which windows slide. With several inputs, `halo`, `scale` and `padding` are then a tuple of such tuples:
    ``padding=(("wrap", "reflect"),) * 2``.

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
        One or more. The output has the channels, dtype, device and dimension names of the first. A dimension of the
        output is finite if it is finite in any input.
    halo : int
        Width of the border around the window that `fn` also gets, on each side, in pixels of the input.
    window : int, optional
        Pixels of the first input that one call computes, without the halo. Default, if there are windows: the size of
        the tiles of the store, if it has a single one; otherwise in two dimensions 256, and 64 without a `store`. It is
        longer in one dimension or for a large halo, and shorter in more dimensions; `output_window` shows it. The
        window is part of the definition of the tensor, and of its default id.
    scale : int, Fraction or float
        Pixels of the output along one pixel of the input: 4 for a network that enlarges by 4, ``Fraction(1, 2)`` for
        one that halves. The extent of the output is rounded up.
    channels : int or (), optional
        Extent of the channel dimension of the output. This dimension takes the position of the channels of the first
        input. If there are none, it comes first, with the name "c" if other dimensions have names. ``()`` for an output
        without channels. Default: as in the first input.
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
    dtype : torch.dtype or str, optional
        Dtype that `fn` returns. Default: that of the first input.
    device : torch.device or str, optional
        Device on which `fn` returns its results. Default: that of the first input.
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
    output = output_of(sources, window, channels, as_index(getattr(store, "tile_size", None)), stored=stored)
    named = any(along.name for along in output)
    f = _Mapped(fn, output, as_index(batch_size))
    f.modes.check()
    f.is_formula = store is None and window is None and batch_size is None and not f.snapshot.networks
    make = functools.partial(
        InfiniteTensor,
        [along.extent for along in output],
        f,
        TensorWindow([along.size for along in output]),
        args=tensors,
        args_windows=windows_of(sources, output),
        dtype=tensors[0].dtype if dtype is None else dtype,
        device=tensors[0].device if device is None else device,
        batch_size=batch_size,
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


class _Mapped(CallingNetworks, Formula):
    """The ``f`` of a mapped tensor: calls the user function, and crops the result."""

    def __init__(self, fn: Callable[..., torch.Tensor], output: Sequence[Along], batch_size: int | None) -> None:
        self.__wrapped__ = fn
        self._output = output
        self._batch_size = batch_size
        self._company = Company()

    def _reaches(self) -> Mapping[str, object]:
        return {"fn": self.__wrapped__}

    def __call__(self, ctx: object, *regions: Any) -> torch.Tensor:
        self.modes.check()
        if isinstance(ctx, list):
            # Most functions round differently for another number of regions.
            extra = max(0, (self._batch_size or 0) - len(ctx))
            batches = [[*each, *[each[-1]] * extra] for each in regions]
            (found,) = self._company.results(
                batches[0],
                lambda numbers: [
                    self._called(
                        [torch.stack([each[n] for n in numbers]) for each in batches], (len(numbers),), self._output
                    )
                ],
            )
            return found[: len(ctx)]
        if isinstance(self.__wrapped__, nn.Module):
            return self._called([region.unsqueeze(0) for region in regions], (1,), self._output)[0]
        return self._called(regions, (), self._output)

    def over(self, start: Sequence[int], size: Sequence[int], *regions: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Compute a region of any size; see `Formula.over`."""
        self.modes.check()
        output = [replace(along, size=n) for along, n in zip(self._output, size, strict=True)]
        return self._called(regions, (), output)

    def _called(self, regions: Sequence[torch.Tensor], batch: _Sizes, along: Sequence[Along]) -> torch.Tensor:
        output = self.__wrapped__(*regions)
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


def _misfit(output: Sequence[Along], given: _Sizes, found: _Sizes, batch: _Sizes) -> str:
    size = (*batch, *[along.size for along in output])
    padded = (*batch, *[along.padded or along.size for along in output])
    larger = f", or {padded} including the halo" if padded != size else ""
    return (
        f"for shape {given}, fn must return shape {size}{larger}, got {found}; give map the halo=, scale=, channels= "
        f"and batch_size= of fn"
    )
