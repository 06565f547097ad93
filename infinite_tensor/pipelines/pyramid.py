"""Overviews: coarser tensors, and pyramids of coarser tensors."""

from __future__ import annotations

import itertools
import math
import operator
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import cast

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.periodic import is_endless, scaled_extent, side_of
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.window import Shape, TensorWindow
from infinite_tensor.pipelines.sliding import names_of
from infinite_tensor.support.functions import RegionWriter
from infinite_tensor.support.given import as_index, checked_count, members, quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.coarse import KEY, Coarsening, Method, check_method, fits
from infinite_tensor.values.meaning import PixelCode

_SPACE = frozenset("zyx")
_SIDES = (65_536, 256, 32, 8)
"""Longest side of a window in 1, 2, 3, or more dimensions."""
_MOST_PIXELS = 2**22
"""Maximum number of pixels read by a window. Larger windows get shorter sides."""
_MOST_IN_ONE = 2**16
"""Maximum number of pixels per coarser pixel. Longer sums in float32 would lose small terms."""
_MOST_BESIDE = 16
"""Uncoarsened dimensions stay whole in a window up to this product of extents."""
_SMALL = 512
"""Maximum length of coarsened dimensions in the coarsest level."""


def coarsen(
    tensor: InfiniteTensor,
    factor: int | Sequence[int],
    method: Method,
    nodata: PixelCode | None,
    store: TileStore | str | os.PathLike[str] | None,
    tensor_id: str | None,
    sources: object = None,
) -> InfiniteTensor:
    """See `InfiniteTensor.coarsen`."""
    finest = tensor, (1,) * tensor.ndim
    known = _sources(tensor, sources)
    return _coarser(_whole(tensor), _factors(tensor, factor), method, finest, known, nodata, store, tensor_id)


def pyramid(
    tensor: InfiniteTensor,
    levels: int | None,
    method: Method | None,
    nodata: PixelCode | None,
    store: TileStore | str | os.PathLike[str] | None,
    sources: object = None,
) -> list[InfiniteTensor]:
    """See `InfiniteTensor.pyramid`."""
    factors = _factors(tensor, 2)
    method = method or _stored_method(tensor) or method_for(tensor)
    if levels is None:
        extents = [1 if factor == 1 else extent for extent, factor in zip(tensor.shape, factors, strict=True)]
        known = [extent for extent in extents if extent is not None]
        if len(known) < len(extents):
            raise ValidationError(
                f"levels must be given for an unbounded tensor of shape {tensor.shape}, as in levels=6"
            )
        number = _number_of(known, factors)
    else:
        number = checked_count("levels", levels)
    if store is None:
        if isinstance(tensor.f, RegionWriter) and not contents_of(tensor.tile_store).outlives_process:
            raise ValidationError(
                f"tensor {tensor.tensor_id!r} has no store for levels; give store=..., a TileStore, a path or a URL. "
                'To use the levels in a later run, call t.coarsen(2, store=..., tensor_id="half").pyramid()'
            )
        store = tensor.tile_store
    coarser = _sources_of_levels(tensor, factors, sources, store)
    found, scale, whole = [tensor], (1,) * tensor.ndim, _whole(tensor)
    for k in range(1, number + 1):
        name = f"{tensor.tensor_id}/level-{k}"
        try:
            below = found[-1], scale
            scale = tuple(map(operator.mul, scale, factors))
            found.append(_coarser(whole, scale, method, below, coarser, nodata, store, name))
        except ValidationError:
            if store is tensor.tile_store:
                _check_stored_method(tensor, method)
            raise
    tensor._sources = coarser  # noqa: SLF001
    return found[1:]


def _check_stored_method(tensor: InfiniteTensor, method: str) -> None:
    kept = _stored_method(tensor)
    if kept not in (None, method):
        raise ValidationError(
            f"method must be {kept!r}, as for the stored levels of tensor {tensor.tensor_id!r}, got {method!r}; give "
            f"method={kept!r} or another store=..., or delete the stored levels: "
            f"store.clear_tensor('{tensor.tensor_id}/level-1', dependants=True)"
        )


def levels_over(tensor: InfiniteTensor, extents: Sequence[int], method: bool | Method) -> list[InfiniteTensor]:
    """Return the pyramid levels to compute in the fill of a region.

    Each level halves the coarsened dimensions, until they have at most 512 pixels: 3 levels for 4096 x 4096 pixels,
    none for 512 x 512. An unbounded dimension counts with its extent in the region, as given in `extents`.
    """
    ends = [own if given is None else given for given, own in zip(tensor.shape, extents, strict=True)]
    number = _number_of(ends, _factors(tensor, 2))
    return tensor.pyramid(number, None if method is True else cast("Method", str(method))) if number else []


def method_for(tensor: InfiniteTensor, *, labels: bool = False) -> Method:
    """Return the default method for new levels.

    It is "mean" for numbers, and "mode" for bool and for labels, such as the results of ``argmax``. Dtypes without
    these get "nearest": uint64, complex dtypes, and labels in a float dtype.
    """
    labels = labels or _are_labels(tensor)
    methods: tuple[Method, ...] = ("mean", "mode", "nearest")
    return next(name for name in methods[labels:] if fits(name, tensor.dtype))


def holds_labels(tensor: InfiniteTensor) -> bool:
    """Return whether pixels are known to be labels, whatever their values.

    Known are results of ``argmax``, tensors with colours of labels or stored levels of the method "mode", and such
    levels.
    """
    method = tensor.f.method if isinstance(tensor.f, Coarsening) else None
    return _are_labels(tensor) or "mode" in (method, method or _stored_method(tensor))


def _are_labels(tensor: InfiniteTensor) -> bool:
    meaning = node_of(tensor).spec.definition.meaning
    has_colours = meaning is not None and any(code.called == "colour map" for code in meaning.of(PixelCode))
    return has_colours or (tensor.reduce is not None and tensor.reduce.function == "argmax")


def _stored_method(tensor: InfiniteTensor) -> Method | None:
    level = _stored_level([tensor])
    return None if level is None else cast("Coarsening", level.f).method


def levels_of_region(
    tensor: InfiniteTensor,
    start: Index,
    shape: Index,
    wanted: bool | int | Method,
    nodata: PixelCode | None,
) -> list[InfiniteTensor]:
    """Return the levels of a box of pixels, as if the box were a tensor of its own.

    Pixel 0 of each level begins at the first pixel of the box.

    Parameters
    ----------
    tensor : InfiniteTensor
        The tensor.
    start, shape : tuple of int
        The box.
    wanted : bool, int or str
        True for as many levels as the box needs, an int for a number of levels, a str for a method.
    nodata : PixelCode or None
        The value that marks missing pixels, if it is known.

    Raises
    ------
    ValidationError
        If an argument is invalid.
    """
    factors = _factors(tensor, 2)
    if wanted is True or isinstance(wanted, str):
        number = _number_of(shape, factors)
    else:
        # A single pixel cannot be halved.
        number = min(checked_count("pyramid", wanted), _number_of(shape, factors, 1))
    method = wanted if isinstance(wanted, str) else _stored_method(tensor) or method_for(tensor)
    check_method(method, tensor.dtype)
    if nodata is not None and (along := nodata.along) is not None:
        nodata = replace(nodata, value=nodata.value[start[along] : start[along] + shape[along]])
    found, scale = [tensor], (1,) * tensor.ndim
    for k in range(1, number + 1):
        below = found[-1], scale
        scale = tuple(map(operator.mul, scale, factors))
        name = f"{tensor.tensor_id}/region-level-{k}"
        found.append(_coarser((start, shape), scale, method, below, {}, nodata, None, name))
    return found[1:]


def box_above(start: Sequence[int], shape: Sequence[int], factors: Sequence[int]) -> tuple[slice, ...]:
    """Return the box of coarser pixels covering a box of pixels."""
    return tuple([slice(a // k, -(-(a + n) // k)) for a, n, k in zip(start, shape, factors, strict=True)])


def _number_of(extents: Sequence[int], factors: Sequence[int], most: int = _SMALL) -> int:
    """Return the number of levels: 3 for a longest extent of 4096 pixels and the limit `most` of 512."""
    longest = max(extent for extent, factor in zip(extents, factors, strict=True) if factor > 1)
    return next(k for k in count() if longest <= most << k)


def without_levels(ids: Sequence[str]) -> list[str]:
    """Leave out the ids of pyramid levels, such as ``a/level-1``.

    This id stays if ``a`` is not in `ids`, because it may be an ordinary tensor.
    """
    known = {*ids}
    return [each for each in ids if each.rpartition("/level-")[0] not in known]


def level_ids(store: TileStore, tensor_id: str) -> list[str]:
    """Return the ids of the stored levels of a tensor, the coarsest first."""
    found = sorted(store.tensor_ids(f"{tensor_id}/level-"), key=lambda name: (len(name), name), reverse=True)
    versions = [store.tensor_definition(name)["version"] for name in found]
    return [name for name, version in zip(found, versions, strict=True) if isinstance(version, dict) and KEY in version]


def clear_levels(store: TileStore, tensor_id: str) -> None:
    """Delete the stored levels of a tensor, the coarsest first."""
    for name in level_ids(store, tensor_id):
        store.clear_tensor(name)


def stored_levels(tensor: InfiniteTensor) -> list[InfiniteTensor]:
    """Return the stored levels of a tensor, the finest first.

    The list ends at the first missing level, because each level is computed from the level before.
    """
    found = [tensor]
    while (level := _stored_level(found)) is not None:
        found.append(level)
    return found[1:]


def _stored_level(below: Sequence[InfiniteTensor]) -> InfiniteTensor | None:
    """Return the next coarser level, or None if not stored.

    `below` lists the tensor and the finer levels.
    """
    tensor, arg = below[0], below[-1]
    if sources := tensor._sources:  # noqa: SLF001  (remembered by `pyramid`)
        arg = sources.get(tuple([n ** len(below) for n in _factors(tensor, 2)]), arg)
    # Another process knows a source only if the store has it.
    for args in ([arg], None):
        with suppress(StoreError, ValidationError):
            level = tensor.tile_store.open(f"{tensor.tensor_id}/level-{len(below)}", args=args)
            if isinstance(level.f, Coarsening):
                return level
    return None


def _whole(tensor: InfiniteTensor) -> tuple[Index, Shape]:
    return (0,) * tensor.ndim, tensor.shape


def _coarser(
    finest: tuple[Index, Shape],
    scale: tuple[int, ...],
    method: Method,
    below: tuple[InfiniteTensor, tuple[int, ...]],
    sources: Mapping[tuple[int, ...], InfiniteTensor],
    nodata: PixelCode | None,
    store: TileStore | str | os.PathLike[str] | None,
    tensor_id: str | None,
) -> InfiniteTensor:
    """Return a tensor with pixels of `scale`, computed from `below` or from the coarsest of `sources` that fits.

    `finest` is the box of pixels of the finest tensor. `below` is a tensor and the scale of its pixels.
    """
    fitting = [(given, each) for given, each in sources.items() if _divides(given, scale)]
    weight, tensor = max([(below[1], below[0]), *fitting], key=lambda each: math.prod(each[0]))
    factors = tuple(map(operator.floordiv, scale, weight))
    if math.prod(factors) > _MOST_IN_ONE:
        raise ValidationError(
            f"factor must combine at most {_MOST_IN_ONE:,} pixels into one, got {math.prod(factors):,} pixels; coarsen "
            "in several steps, such as t.coarsen(64).coarsen(64) instead of t.coarsen(4096)"
        )
    check_method(method, tensor.dtype)
    coarsened = [d for d, n in enumerate(scale) if n > 1] or [tensor.ndim - 1]
    # Only a level that is computed from the finest pixels sees where their box begins.
    start, extents = finest if math.prod(weight) == 1 else _whole(tensor)
    size, along, value = _window(tensor, factors, coarsened), None, None
    if nodata is not None:
        along, value = nodata.along, nodata.value
    if along is not None and factors[along] > 1:
        raise ValidationError(
            f"factor must be 1 for dimension {along} ({tensor.dims[along]!r}), because each entry has a separate "
            f"nodata value, got {factors[along]}"
        )
    f = Coarsening(extents, factors, method, weight, finest[1], value, along, is_formula=store is None)
    return InfiniteTensor(
        [scaled_extent(extent, Fraction(1, k)) for extent, k in zip(extents, factors, strict=True)],
        f,
        TensorWindow(size),
        args=[tensor],
        args_windows=[TensorWindow([n * k for n, k in zip(size, factors, strict=True)], offset=start)],
        args_padding=[[None if is_endless(extent) else ("constant", 0) for extent in tensor.shape]],
        dtype=tensor.dtype,
        device=tensor.device,
        version=f.version,
        edge="clip",
        dims=tensor.dims if any(names_of(tensor)) else None,
        tile_store=store,
        tensor_id=tensor_id,
    )


def _sources(tensor: InfiniteTensor, given: object) -> dict[tuple[int, ...], InfiniteTensor]:
    """Return the coarser tensors that stand for `tensor`, by the scale of their pixels."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValidationError(f"sources must be a dict of a factor and a coarser tensor, got {quoted(given)}")
    found = {}
    for factor, source in given.items():
        scale = _factors(tensor, factor)
        if not isinstance(source, InfiniteTensor):
            raise ValidationError(f"sources[{factor!r}] must be an InfiniteTensor, got {quoted(source)}")
        wanted = tuple([None if n is None else -(-n // k) for n, k in zip(tensor.shape, scale, strict=True)])
        if (source.shape, source.dtype, source.device) != (wanted, tensor.dtype, tensor.device):
            raise ValidationError(
                f"sources[{factor!r}] must have shape {wanted}, {tensor.dtype} and be on {tensor.device}, as a tensor "
                f"that is coarser by {scale}; it has shape {source.shape}, {source.dtype} and is on {source.device}"
            )
        found[scale] = source
    return found


def _sources_of_levels(
    tensor: InfiniteTensor, factors: Sequence[int], given: object, store: object
) -> Mapping[tuple[int, ...], InfiniteTensor]:
    """Return the sources `given` for a pyramid, or those known from an earlier one."""
    if given is None:
        return tensor._sources or (_stored_sources(tensor) if store is tensor.tile_store else {})  # noqa: SLF001
    fitting = {tuple([factor**k for factor in factors]) for k in range(1, 64)}
    found = _sources(tensor, given)
    if others := [scale for scale in found if scale not in fitting]:
        raise ValidationError(
            f"sources of a pyramid must be coarser by 2, 4, 8 and so on in each dimension that levels halve, got "
            f"{others[0]}"
        )
    return found


def _stored_sources(tensor: InfiniteTensor) -> dict[tuple[int, ...], InfiniteTensor]:
    """Return the coarser tensors from which the stored levels of `tensor` are computed."""
    levels = [tensor, *stored_levels(tensor)]
    return {
        cast("Coarsening", level.f).scale: level.args[0]
        for below, level in itertools.pairwise(levels)
        if level.args[0].tensor_id != below.tensor_id
    }


def _divides(given: Sequence[int], scale: Sequence[int]) -> bool:
    return not any(map(operator.mod, scale, given))


def _factors(tensor: InfiniteTensor, given: object) -> tuple[int, ...]:
    """Return the factor for each dimension.

    An int applies to z, y and x. Without dimension names, an int applies to the last two dimensions.
    """
    entries, one, names = members(given), as_index(given), names_of(tensor)
    if entries is None and one is not None:
        named = [d for d, name in enumerate(names) if str(name).lower() in _SPACE]
        coarsened = named if any(names) else range(tensor.ndim)[-2:]
        if not coarsened:
            raise ValidationError(
                f"none of the dimensions {tensor.dims} is called z, y or x. For coarsen, give a tuple with one factor "
                f"per dimension, such as {(1,) * (tensor.ndim - 1) + (one,)}. For a pyramid, rename dimensions to z, y "
                'or x, as in from_array(t.to_xarray(region).rename(lat="y", lon="x"))'
            )
        entries = tuple([one if d in coarsened else 1 for d in range(tensor.ndim)])
    factors = [as_index(entry) for entry in entries or ()]
    known = tuple([each for each in factors if each is not None and 1 <= each < 2**31])
    if len(known) != tensor.ndim or len(factors) != tensor.ndim:
        raise ValidationError(
            f"factor must be a positive int, or a tuple of {tensor.ndim} ints, one for each dimension, got "
            f"{quoted(given)}"
        )
    return known


def _window(tensor: InfiniteTensor, factors: Sequence[int], coarsened: Sequence[int]) -> list[int]:
    """Return the size of a window of the coarser tensor.

    Two coarsened dimensions get up to 256 pixels each. Windows contain the other dimensions whole, such as channels. If
    these have more than 16 entries together, windows contain a single entry.
    """
    sides = [1 if extent is None else extent for extent in tensor.shape]
    others = math.prod(side for d, side in enumerate(sides) if d not in coarsened)
    if others > _MOST_BESIDE:
        sides, others = [1] * tensor.ndim, 1
    most = _MOST_PIXELS // others // math.prod(factors[d] for d in coarsened)
    longest = min(_SIDES[min(len(coarsened), len(_SIDES)) - 1], math.floor(most ** (1 / len(coarsened)) + 1e-9))
    side = 2 ** (longest.bit_length() - 1)
    for d in coarsened:
        sides[d] = side_of(scaled_extent(tensor.shape[d], Fraction(1, factors[d])), side)
    return sides
