"""Tensors made of others pixel by pixel: operators, choices, stacks, crops, and tensors put somewhere else.

They are formulas: computed where they are read, on exactly the region of the read, and kept nowhere.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.stored_only import stored_pixels
from infinite_tensor.geometry.periodic import Periodic, is_endless, joint_extent, side_of
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.pipelines.sliding import UNSTORED, names_of
from infinite_tensor.pipelines.sources import from_array
from infinite_tensor.support.functions import Formula
from infinite_tensor.support.given import array_advice, as_index, members, quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.values.checks import stand_in
from infinite_tensor.values.definition import Number, channels_of
from infinite_tensor.values.meaning import checked_nodata

_Read: TypeAlias = Callable[[Sequence[int], Sequence[int]], torch.Tensor]
_Places: TypeAlias = tuple[int | None, ...]
"""For each dimension of a tensor, the dimension of an arg, or None if the arg has no such dimension."""


class _Placed(Formula):
    """The ``f`` of a tensor whose pixels are computed from pixels at the same place."""

    is_formula = True
    is_local = True

    def __call__(self, *_: object) -> torch.Tensor:
        """Never called, because windows are never computed."""
        raise AssertionError


class _Pixelwise(_Placed):
    """The ``f`` of ``fn(*operands, **options)``, where None stands for the next region."""

    def __init__(
        self,
        fn: Callable[..., torch.Tensor],
        operands: Sequence[object],
        options: Mapping[str, object],
        places: Sequence[_Places],
    ) -> None:
        self.__wrapped__ = fn
        self._operands = tuple(operands)
        self._options = {**options}
        self._places = tuple(places)

    def _reaches(self) -> Mapping[str, object]:
        return {"fn": self.__wrapped__, "operands": self._operands, "options": self._options}

    def of(self, *regions: torch.Tensor) -> torch.Tensor:
        """Compute pixels from those of the args."""
        aligned = iter([_aligned(*each) for each in zip(regions, self._places, strict=True)])
        return self.__wrapped__(*[next(aligned) if each is None else each for each in self._operands], **self._options)

    def over(self, start: Sequence[int], size: Sequence[int], *regions: Any) -> torch.Tensor:  # noqa: ARG002
        """Compute a region; see `Formula.over`."""
        return self.of(*regions).expand(*size)


class _Chosen(_Placed):
    """The ``f`` of `where`: of two tensors, it reads only what is chosen."""

    asks = True

    def __init__(self, dtype: torch.dtype, places: Sequence[_Places]) -> None:
        self._dtype = dtype
        self._places = tuple(places)

    def _reaches(self) -> Mapping[str, object]:
        return {}

    def over(self, start: Sequence[int], size: Sequence[int], *reads: _Read) -> torch.Tensor:
        """Compute a region; see `Formula.over`."""
        mask = self._pixels(0, reads, start, size)
        found = torch.empty(*size, dtype=self._dtype, device=mask.device)
        for at, chosen in enumerate((mask, ~mask), 1):
            if chosen.any():
                box, begin, extent = _box_around(chosen, start)
                pixels = self._pixels(at, reads, begin, extent).to(self._dtype)
                found[box] = torch.where(chosen[box], pixels, found[box])
        return found

    def _pixels(self, at: int, reads: Sequence[_Read], start: Sequence[int], size: Sequence[int]) -> torch.Tensor:
        return _aligned(reads[at](start, size), self._places[at]).expand(*size)


class _OrElse(_Placed):
    """The ``f`` of a tensor with the stored pixels of one tensor, and those of another elsewhere."""

    asks = True

    def __init__(self, stored: InfiniteTensor) -> None:
        self._stored = stored

    def _reaches(self) -> Mapping[str, object]:
        return {}

    def over(self, start: Sequence[int], size: Sequence[int], *reads: _Read) -> torch.Tensor:
        """Compute a region; see `Formula.over`."""
        stop = tuple(map(operator.add, start, size))
        missing = torch.zeros(*size, dtype=torch.bool, device="cpu")
        found = stored_pixels(node_of(self._stored), Selection(tuple(start), stop, (1,) * len(stop), ()), 0, missing)
        if missing.any():
            box, begin, extent = _box_around(missing, start)
            found[box] = torch.where(missing[box].to(found.device), reads[1](begin, extent), found[box])
        return found


class _Concatenated(_Placed):
    """The ``f`` of tensors side by side along a dimension, each with padding where it does not lie."""

    def __init__(self, dim: int, ends: Sequence[int]) -> None:
        self._dim = dim
        self._ends = tuple(ends)

    def _reaches(self) -> Mapping[str, object]:
        return {}

    def over(self, start: Sequence[int], size: Sequence[int], *regions: Any) -> torch.Tensor:
        """Compute a region; see `Formula.over`."""
        d, first, count = self._dim, start[self._dim], size[self._dim]
        cuts = [min(max(end - first, 0), count) for end in (0, *self._ends)]
        return torch.cat(
            [region.narrow(d, a, b - a) for region, (a, b) in zip(regions, itertools.pairwise(cuts), strict=True)], d
        )


def _aligned(region: torch.Tensor, places: _Places) -> torch.Tensor:
    """Add the dimensions that an arg lacks."""
    return region[tuple([None if place is None else slice(None) for place in places])]


def _box_around(mask: torch.Tensor, start: Sequence[int]) -> tuple[tuple[slice, ...], list[int], list[int]]:
    """Return the box around the True pixels of a mask that begins at pixel `start`: its place, its start, its size."""
    low, high = [], []
    # By dimension, because the places of all pixels would take 8 * ndim times the memory of the mask.
    while mask.ndim:
        line = mask
        while line.ndim > 1:
            line = line.any(-1)
        first, last = line.nonzero()[[0, -1], 0].tolist()
        low.append(first)
        high.append(last + 1)
        mask = mask.any(0)
    box = tuple(itertools.starmap(slice, zip(low, high, strict=True)))
    return box, [*map(operator.add, start, low)], [*map(operator.sub, high, low)]


def _itself(region: torch.Tensor) -> torch.Tensor:
    return region


def computed(
    fn: Callable[..., Any], operands: Sequence[object], options: Mapping[str, object] | None = None
) -> InfiniteTensor:
    """Return the tensor ``fn(*operands, **options)``, where operands are tensors, arrays and numbers.

    Dimensions correspond by name if all tensors have names, and otherwise as in broadcasting. A dimension is finite if
    it is finite in any tensor.

    Raises
    ------
    TypeError
        If `fn` does not take these operands.
    ValidationError
        If extents differ, or names do not correspond.
    """
    given = [_operand(each) for each in operands]
    tensors = [each for each in given if isinstance(each, InfiniteTensor)]
    shape, names, places = _broadcast(tensors)
    f = _Pixelwise(fn, [None if isinstance(each, InfiniteTensor) else each for each in given], options or {}, places)
    ones = [torch.ones((1,) * each.ndim, dtype=each.dtype, device=each.device) for each in tensors]
    dtype = _tried(lambda: f.of(*ones), fn, given)
    return _made(f, shape, names, dtype, tensors, _followed(tensors, places, shape))


def where(condition: object, one: object, other: object) -> InfiniteTensor:
    """Return a tensor with the pixels of `one` where the condition is True, and of `other` elsewhere.

    Of a region, only what is chosen is computed: of both tensors, the box around it. Raises errors as `computed`.
    """
    given = [_operand(each) for each in (condition, one, other)]
    mask, *ones = [torch.ones(1, dtype=each.dtype) if isinstance(each, InfiniteTensor) else each for each in given]
    dtype = _tried(lambda: torch.where(mask, ones[0], ones[1]), torch.where, given)
    tensors = [
        each if isinstance(each, InfiniteTensor) else from_array(torch.as_tensor(each, dtype=dtype).reshape(1))
        for each in given
    ]
    shape, names, places = _broadcast(tensors)
    return _made(_Chosen(dtype, places), shape, names, dtype, tensors, _followed(tensors, places, shape))


def concatenate(tensors: Sequence[object], dim: int = 0) -> InfiniteTensor:
    """Return tensors side by side along a finite dimension, as one tensor. All other extents must be equal."""
    given, d = _several(tensors, dim, 0)
    extents = [each.shape[d] for each in given]
    ends = [*itertools.accumulate(n for n in extents if n is not None and not is_endless(n))]
    if len({each.shape[:d] + each.shape[d + 1 :] for each in given}) > 1 or len(ends) < len(given):
        raise ValidationError(
            f"tensors must have ends along dimension {d}, and otherwise equal extents, got "
            f"{[each.shape for each in given]}; crop them by t.crop(region)"
        )
    shape = [joint_extent(each) for each in zip(*[tensor.shape for tensor in given], strict=True)]
    shape[d] = ends[-1]
    dtype = torch.cat([torch.ones(1, dtype=each.dtype) for each in given]).dtype
    offsets = [[-begin if at == d else 0 for at in range(len(shape))] for begin in (0, *ends[:-1])]
    # What lies elsewhere is not read.
    paddings = [
        [("constant", 0) if at == d else None if is_endless(n) else "edge" for at, n in enumerate(each.shape)]
        for each in given
    ]
    follows = [tuple(range(len(shape)))] * len(given)
    f = _Concatenated(d, ends)
    return _made(f, shape, names_of(given[0]), dtype, given, follows, offsets, paddings)


def stack(tensors: Sequence[object], dim: int = 0) -> InfiniteTensor:
    """Return tensors of one shape as one tensor, along a new dimension."""
    given, d = _several(tensors, dim, 1)
    layers = []
    for each in given:
        places = (*range(d), None, *range(d, each.ndim))
        shape = [1 if place is None else each.shape[place] for place in places]
        names = [None if place is None else names_of(each)[place] for place in places]
        f = _Pixelwise(_itself, [None], {}, [places])
        layers.append(_made(f, shape, names, each.dtype, [each], _followed([each], [places], shape)))
    return concatenate(layers, d)


def crop(tensor: InfiniteTensor, region: object) -> InfiniteTensor:
    """See `InfiniteTensor.crop`."""
    selection = parse(region, tensor.shape, tensor.dims)
    kept = [d for d in range(tensor.ndim) if d not in selection.squeezed]
    if {*selection.steps} - {1} or 0 in selection.size or not kept:
        raise ValidationError(
            f"the region of a crop must have pixels, no steps, and at least one slice, got {quoted(region)}; read a "
            "single pixel by t[...]"
        )
    names, shape = names_of(tensor), selection.shape
    fn, options = (torch.squeeze, {"dim": selection.squeezed}) if selection.squeezed else (_itself, {})
    f = _Pixelwise(fn, [None], options, [tuple(range(tensor.ndim))])
    follow = tuple([kept.index(d) if d in kept else None for d in range(tensor.ndim)])
    whole = [(start, n) == (0, extent) for start, n, extent in zip(selection.start, shape, tensor.shape, strict=True)]
    new = [tensor.shape[d] if whole[d] else shape[d] for d in kept]
    return _made(f, new, [names[d] for d in kept], tensor.dtype, [tensor], [follow], [selection.start])


def going_around(tensor: InfiniteTensor, shape: Sequence[int | None]) -> InfiniteTensor:
    """Return the pixels of a finite tensor in a shape with `Periodic` extents, as a formula."""
    itself = tuple(range(tensor.ndim))
    f = _Pixelwise(_itself, [None], {}, [itself])
    return _made(f, shape, names_of(tensor), tensor.dtype, [tensor], [itself])


def periodic(tensor: InfiniteTensor, dims: Sequence[str | int]) -> InfiniteTensor:
    """See `InfiniteTensor.periodic`."""
    shape = [*tensor.shape]
    for each in dims:
        d = tensor.dims.index(each) if each in tensor.dims else as_index(each)
        if d is None or not -tensor.ndim <= d < tensor.ndim or (extent := shape[d]) is None:
            raise ValidationError(
                f"dims of periodic must be finite dimensions of a tensor of shape {tensor.shape} and dims "
                f"{tensor.dims}, by name or number, got {quoted(each)}"
            )
        shape[d] = Periodic(extent)
    return going_around(tensor, shape)


def placed(source: object, origin: Sequence[int], fill: Number = 0) -> InfiniteTensor:
    """Put a finite tensor somewhere in an unbounded one.

    Parameters
    ----------
    source : InfiniteTensor, TensorBlob or array
        A finite tensor, such as a drawn map or a raster.
    origin : tuple of int
        The coordinates of the first pixel of the source, for each dimension that becomes unbounded: as many of the last
        ones as there are entries, apart from dimensions called c, channel, channels, band or bands, which stay finite.
    fill : number
        The value of all pixels around the source.

    Returns
    -------
    InfiniteTensor
        A formula, unbounded in the dimensions of `origin`. What lies around the source is never read.

    Raises
    ------
    ValidationError
        If an argument is not valid, or the source is unbounded.

    Examples
    --------
    >>> placed(torch.ones(2, 3), (5000, -300))[4999:5001, -301:-298]
    tensor([[0., 0., 0.],
            [0., 1., 1.]])
    """
    tensor = _checked("source", source)
    entries = [as_index(each) for each in members(origin) or ()]
    channels = channels_of(names_of(tensor))
    numbers = [d for d in range(tensor.ndim) if d not in channels][-len(entries) :]
    found = [each for each in entries if each is not None]
    if not found or len(found) != len(entries) or len(numbers) != len(found):
        raise ValidationError(
            "origin must be a tuple of ints, one for each of the last dimensions that becomes unbounded, got "
            f"{quoted(origin)} for a source of shape {tensor.shape} and dims {tensor.dims}"
        )
    at = dict(zip(numbers, found, strict=True))
    if None in tensor.shape or any(is_endless(tensor.shape[d]) for d in at):
        raise ValidationError(
            f"source must have ends, got shape {tensor.shape}; crop it first, as in source.crop(sl[0:512, 0:512])"
        )
    shape = [None if d in at else n for d, n in enumerate(tensor.shape)]
    padding = [("constant", fill) if d in at else None if is_endless(n) else "edge" for d, n in enumerate(tensor.shape)]
    itself = tuple(range(tensor.ndim))
    offset = [-at.get(d, 0) for d in itself]
    f = _Pixelwise(_itself, [None], {}, [itself])
    return _made(f, shape, names_of(tensor), tensor.dtype, [tensor], [itself], [offset], [padding])


def overlay(edits: object, base: object, nodata: Number | None = None) -> InfiniteTensor:
    """Return `edits` where they say something, and `base` elsewhere, as for what players change in a world.

    Parameters
    ----------
    edits : InfiniteTensor, TensorBlob or array
        The pixels that win, unless they are missing.
    base : InfiniteTensor, TensorBlob, array or number
        The pixels below. They are computed only where edits are missing.
    nodata : number, optional
        The value of missing pixels of `edits`. NaN is always missing. Default: the nodata value of the tensor, if it
        has one, as from `from_raster`.

    Returns
    -------
    InfiniteTensor
        A formula. Dimensions correspond as in ``edits + base``.

    Raises
    ------
    ValidationError
        If `edits` are integers without a nodata value, or do not fit `base`.
    """
    tensor = _checked("edits", edits)
    code = tensor._nodata  # noqa: SLF001  (its own)
    if nodata is None and code is not None and code.along is None:
        nodata = code.value
    if nodata is None and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise ValidationError(f"edits of {tensor.dtype} have no nodata value; give nodata=, a value that means missing")
    if nodata is not None:
        checked_nodata(nodata, tensor.dtype)
    is_number = nodata is not None and nodata == nodata  # noqa: PLR0124  (NaN is no number)
    missing = tensor == nodata if is_number and nodata is not None else computed(torch.isnan, [tensor])
    if is_number and tensor.dtype.is_floating_point:
        missing = missing | computed(torch.isnan, [tensor])
    return where(missing, base, tensor)


def or_else(stored: InfiniteTensor, other: object) -> InfiniteTensor:
    """See `InfiniteTensor.or_else`."""
    new = _checked("other", other)
    if (new.shape, new.dtype) != (stored.shape, stored.dtype):
        raise ValidationError(
            f"other must have shape {stored.shape} and dtype {stored.dtype}, got {new.shape} and {new.dtype}; use "
            "other.crop(region) and other.astype(dtype)"
        )
    itself = tuple(range(stored.ndim))
    return _made(_OrElse(stored), stored.shape, names_of(stored), stored.dtype, [stored, new], [itself] * 2)


def _checked(name: str, value: object) -> InfiniteTensor:
    tensor = _operand(value)
    if not isinstance(tensor, InfiniteTensor):
        raise ValidationError(
            f"{name} must be an InfiniteTensor, a TensorBlob or an array, got {quoted(value)}{array_advice(value)}"
        )
    return tensor


def _operand(value: object) -> Any:
    is_array = isinstance(value, torch.Tensor | np.ndarray) and value.ndim > 0
    return from_array(value) if is_array else stand_in(value)


def _several(tensors: Sequence[object], dim: object, more: int) -> tuple[list[InfiniteTensor], int]:
    """Check the arguments of `stack` and `concatenate`. The result has `more` dimensions than each tensor."""
    given = [_checked(f"tensors[{at}]", each) for at, each in enumerate(members(tensors) or ())]
    ndim = given[0].ndim + more if given else 0
    d = as_index(dim)
    if d is None or not -ndim <= d < ndim or {each.ndim + more for each in given} != {ndim}:
        raise ValidationError(
            f"tensors must be one or more with equal numbers of dimensions, and dim one of these, got "
            f"{[each.shape for each in given]} and dim={quoted(dim)}"
        )
    return given, d % ndim


def _tried(call: Callable[[], torch.Tensor], fn: Callable[..., Any], operands: Sequence[object]) -> torch.dtype:
    """Return the dtype of what torch makes of a pixel of ones."""
    try:
        return call().dtype
    except (TypeError, RuntimeError, ValueError) as error:
        told = [str(each.dtype) if isinstance(each, InfiniteTensor) else quoted(each) for each in operands]
        raise TypeError(f"{getattr(fn, '__name__', fn)} of {', '.join(told)}: {error}") from error


def _broadcast(tensors: Sequence[InfiniteTensor]) -> tuple[list[int | None], list[str | None], list[_Places]]:
    """Return the shape and the names of what several tensors make, and the places of their dimensions in it."""
    names = [names_of(each) for each in tensors]
    leading = max(range(len(tensors)), key=lambda at: tensors[at].ndim)
    known, ndim = names[leading], tensors[leading].ndim
    by_name = None not in itertools.chain(*names)
    places: list[_Places] = []
    for own in names:
        if by_name and [name for name in known if name in own] != own:
            raise ValidationError(
                f"dimensions must correspond by name, in the same order, got {known} and {own}; use map_windows with "
                "dims="
            )
        numbers = [own.index(name) if name in own else None for name in known]
        places.append(tuple(numbers) if by_name else (*(None,) * (ndim - len(own)), *range(len(own))))
    shape: list[int | None] = []
    for d in range(ndim):
        found = [tensor.shape[at] for tensor, own in zip(tensors, places, strict=True) if (at := own[d]) is not None]
        extents = {*found}
        ends = extents - {None, 1}
        if len(ends) > 1:
            raise ValidationError(
                f"extents must be equal, or 1, got shapes {[each.shape for each in tensors]}; cut them to equal "
                "extents by t.crop(region)"
            )
        shape.append(joint_extent(found) if ends else None if None in extents else 1)
    return shape, known, places


def _followed(
    tensors: Sequence[InfiniteTensor], places: Sequence[_Places], shape: Sequence[int | None]
) -> list[tuple[int | None, ...]]:
    """Return the dimension with which each dimension of each arg moves, or None for one pixel that is broadcast."""
    return [
        tuple([None if tensor.shape[at] == 1 != shape[d] else d for d, at in enumerate(own) if at is not None])
        for tensor, own in zip(tensors, places, strict=True)
    ]


def _made(
    f: _Placed,
    shape: Sequence[int | None],
    names: Sequence[str | None],
    dtype: torch.dtype,
    tensors: Sequence[InfiniteTensor],
    follows: Sequence[tuple[int | None, ...]],
    offsets: Sequence[Sequence[int]] | None = None,
    padding: object = "edge",
) -> InfiniteTensor:
    """Create a formula, with windows that lie over the same pixels of all args, apart from `offsets`."""
    # Nothing is computed in windows, but they are chunks.
    longest = UNSTORED[min(len(shape), len(UNSTORED)) - 1]
    sides = [side_of(extent, longest) for extent in shape]
    windows = []
    for at, follow in enumerate(follows):
        size = [1 if k is None else sides[k] for k in follow]
        windows.append(TensorWindow(size, size, offsets[at] if offsets else None, follow))
    dims = [name or f"dim_{d}" for d, name in enumerate(names)] if any(names) else None
    return InfiniteTensor(
        shape,
        f,
        TensorWindow(sides),
        tensors,
        windows,
        dtype,
        tensors[0].device,
        None,
        edge="clip",
        args_padding=padding,
        dims=dims,
    )
