"""Patches of tensors and groups as map-style datasets, for `torch.utils.data.DataLoader`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any, TypeAlias, TypeVar

import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.geometry.window import Shape
from infinite_tensor.groups import TensorGroup
from infinite_tensor.support.exit import flush_at_termination
from infinite_tensor.support.forks import cached_property
from infinite_tensor.support.given import array_advice, as_index, members, quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore.layout import sizes_of

Source: TypeAlias = InfiniteTensor | TensorGroup
Sources: TypeAlias = Source | list[Source] | tuple[Source, ...] | dict[Any, Source]
Transform: TypeAlias = Callable[[Any], Any]

_T = TypeVar("_T")

_EXAMPLE = "0:1000"
"""What a message shows of a region, along a dimension without ends."""


@dataclass(frozen=True)
class _Axis:
    """A dimension along which patches of `size` pixels lie `stride` apart, from pixel `low` to before `high`."""

    low: int
    high: int
    size: int
    stride: int

    @cached_property
    def positions(self) -> int:
        return max(0, (self.high - self.low - self.size) // self.stride + 1)

    def __str__(self) -> str:
        return f"{self.low}:{self.high} in patches of {self.size}, one every {self.stride}"


@dataclass(frozen=True)
class _PatchGrid:
    """A tensor or group, and how it is cut into patches.

    Attributes
    ----------
    source : InfiniteTensor or TensorGroup
        What is read.
    box : Selection
        The region that bounds the patches.
    axes : tuple of _Axis
        The dimensions along which there may be several patches.
    dims : tuple of int
        Which dimensions of the source these are.
    """

    source: Source
    box: Selection
    axes: tuple[_Axis, ...]
    dims: tuple[int, ...]

    def selection(self, corner: Index) -> Selection:
        start, stop = list(self.box.start), list(self.box.stop)
        for d, axis, first in zip(self.dims, self.axes, corner, strict=True):
            start[d], stop[d] = first, first + axis.size
        return Selection(tuple(start), tuple(stop), self.box.steps, self.box.squeezed)

    def __str__(self) -> str:
        first = self.selection(tuple(axis.low for axis in self.axes))
        patch = tuple(n for d, n in enumerate(first.shape) if d not in first.squeezed)
        return f"{patch} in {_brackets(self.box)} of {self.source!r}"

    def region(self, corner: Index) -> tuple[int | slice, ...]:
        box = self.selection(corner)
        return tuple(
            a if d in box.squeezed else slice(a, b) for d, (a, b) in enumerate(zip(box.start, box.stop, strict=True))
        )


class _Patches(Dataset[Any]):
    """Patches that are told apart by a number: their position in the lexicographic order of their corners."""

    def __init__(
        self, sources: Sources, patch_size: object, stride: object, region: object, transform: Transform | None
    ) -> None:
        if transform is not None and not callable(transform):
            raise ValidationError(f"transform must be a function of one patch, or None, got {quoted(transform)}")
        self._sources = sources
        self._transform = transform
        leaves = _leaves(sources)
        self._cuts = [_cut(leaf, patch_size, stride, region) for leaf in leaves]
        self._axes = self._cuts[0].axes
        for cut in self._cuts[1:]:
            if cut.axes != self._axes:
                raise ValidationError(
                    "all that is read must be cut alike along the dimensions that patch_size is about, got "
                    f"{_shown(self._axes)} of {self._cuts[0].source!r} and {_shown(cut.axes)} of {cut.source!r}; where "
                    "some have channels first, give a TensorGroup of them, with dims=(-2, -1)"
                )
        self._positions = self._length = math.prod(axis.positions for axis in self._axes)
        if not self._positions:
            sizes = tuple(axis.size for axis in self._axes)
            extents = tuple(axis.high - axis.low for axis in self._axes)
            raise ValidationError(
                f"no patch of {sizes} pixels fits into a region of {extents}; give a larger region, or patch_size="
                f"{tuple(map(min, sizes, extents))}, say"
            )

    def __repr__(self) -> str:
        names = (
            [f"{quoted(key)}: " for key in self._sources] if isinstance(self._sources, dict) else [""] * len(self._cuts)
        )
        lines = indent("\n".join(f"{name}{cut}" for name, cut in zip(names, self._cuts, strict=True)), " " * 4)
        return f"{type(self).__name__}({', '.join(self._told())}, each of\n{lines})"

    def _told(self) -> list[str]:
        """What the repr tells before what is read."""
        told = [f"{len(self)} patches"]
        if self._transform is not None:
            told.append(f"transform={getattr(self._transform, '__qualname__', None) or quoted(self._transform)}")
        return told

    def __len__(self) -> int:
        return self._length

    def _number(self, index: int) -> int:
        """The number of the patch that an index from 0 to before the length stands for."""
        return index

    def region(self, index: int) -> Any:
        """What an item reads.

        Parameters
        ----------
        index : int
            As for an item; negative ones count from the end.

        Returns
        -------
        tuple of (int or slice)
            The region in pixels, as ``t[...]`` takes it; where `t` holds several, a list, tuple or dict of these.

        Raises
        ------
        IndexError
            If there is no such item.
        """
        corner = self._corner(index)
        return self._arranged([cut.region(corner) for cut in self._cuts])

    def __iter__(self) -> Iterator[Any]:
        """All patches in order."""
        # Python's own way takes an IndexError of `f` or `transform` for the end.
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, index: Any) -> Any:
        """The patch at `index`: a tensor or TensorDict, or a list, tuple or dict of them; transformed.

        Of several indices, such as a `BatchSampler` in the place of a sampler gives, the patches as one batch, as a
        `DataLoader` stacks them.
        """
        several = list(index) if getattr(index, "ndim", 0) == 1 else members(index)
        if several is None:
            return self.__getitems__([index])[0]
        if not several:
            raise IndexError("a batch has one index at least, got none")
        return default_collate(self.__getitems__(several))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The patches at `indices`, read in one plan; a `DataLoader` asks for a batch this way."""
        if get_worker_info() is not None:
            flush_at_termination()
        corners = [self._corner(index) for index in indices]
        patches = [cut.source.read([cut.selection(corner) for corner in corners]) for cut in self._cuts]
        items = [self._arranged(item) for item in zip(*patches, strict=True)]
        return items if self._transform is None else list(map(self._transformed, indices, items))

    def _transformed(self, index: int, item: Any) -> Any:
        assert self._transform is not None
        try:
            return self._transform(item)
        except Exception as error:
            corner = self._corner(index)
            pixels = self._arranged([_brackets(cut.selection(corner)) for cut in self._cuts])
            error.add_note(f"while transforming item {index} of a {type(self).__name__}, which is {pixels}")
            raise

    def _corner(self, index: int) -> Index:
        at, count = as_index(index), len(self)
        if at is None:
            raise TypeError(f"an index is an int, or a list of ints, got {type(index).__name__} {index!r}")
        if not -count <= at < count:
            raise IndexError(f"index {at} is out of range for a dataset of {count} patches")
        number = self._number(at % count)
        corner = []
        for axis in reversed(self._axes):
            number, at = divmod(number, axis.positions)
            corner.append(axis.low + at * axis.stride)
        return tuple(reversed(corner))

    def _arranged(self, values: Sequence[_T]) -> _T | list[_T] | tuple[_T, ...] | dict[Any, _T]:
        """One value per source, in the structure in which the sources were given."""
        if isinstance(self._sources, dict):
            return dict(zip(self._sources, values, strict=True))
        if isinstance(self._sources, Source):
            return values[0]
        return list(values) if isinstance(self._sources, list) else tuple(values)


class GridDataset(_Patches):
    """Patches on a grid, in lexicographic order: those that lie whole in a region.

    Parameters
    ----------
    t : InfiniteTensor or TensorGroup, or a list, tuple or dict of them
        What is read. Of a group, an item is a TensorDict, and patches lie on whole pixels of all its tensors; of a
        list, tuple or dict, an item is one too, of patches at the same coordinates.
    patch_size : int or tuple of int
        Extent of a patch in pixels: an int for every unbounded dimension (every dimension, where none is unbounded),
        one int per unbounded dimension, or one int per dimension. Finite dimensions that are not named stay whole.
    stride : int or tuple of int, optional
        How far apart patches lie: an int for every dimension that `patch_size` names, or several in its manner.
        Default: `patch_size`, so that patches lie side by side.
    region : optional
        What bounds the patches, as ``t[...]`` takes it, without steps; `sl` writes it. The first patch lies in its
        first corner; a dimension with an int vanishes. Default: the whole tensor, if it is finite. For tensors with
        different numbers of dimensions, begin with ``...``.
    transform : callable, optional
        ``transform(patch)`` is the item in place of the patch, which is a tensor, of a group a TensorDict, and of a
        list, tuple or dict one of these with a patch of each. It is called for one item at a time, where that is read:
        of a `DataLoader` with workers in a worker.

    Raises
    ------
    ValidationError
        If an argument does not fit, no patch fits into the region, or what is read is not cut alike.

    Examples
    --------
    >>> t = InfiniteTensor((3, None, None), lambda ctx: torch.ones(3, 8, 8), TensorWindow((3, 8, 8)))
    >>> dataset = GridDataset(t, 64, region=sl[:, 0:256, 0:192])
    >>> len(dataset), dataset[0].shape
    (12, torch.Size([3, 64, 64]))
    >>> dataset.region(4)
    (slice(0, 3, None), slice(64, 128, None), slice(64, 128, None))
    """

    def __init__(
        self,
        t: Sources,
        patch_size: int | Sequence[int],
        stride: int | Sequence[int] | None = None,
        region: object = None,
        *,
        transform: Transform | None = None,
    ) -> None:
        super().__init__(t, patch_size, patch_size if stride is None else stride, region, transform)

    def _told(self) -> list[str]:
        return [*super()._told(), f"stride={tuple(axis.stride for axis in self._axes)}"]


class PatchDataset(_Patches):
    """Patches at random places in a region, the same ones for a seed and epoch in every process, on every machine.

    Of the ``n`` places for a patch in the region, in lexicographic order, item ``i`` has number ``n * h // 2**512``,
    where ``h`` is the BLAKE2b digest of the text ``f"{seed} {i}"`` as a big-endian number of 512 bits; after
    ``set_epoch(e)`` that of ``f"{seed} {i} {e}"``, unless ``e`` is 0.

    Parameters
    ----------
    t : InfiniteTensor or TensorGroup, or a list, tuple or dict of them
        As for `GridDataset`.
    patch_size : int or tuple of int
        As for `GridDataset`.
    region : optional
        As for `GridDataset`.
    seed : int
        Which places of all.
    length : int, optional
        How many patches there are. Default: as many as fit side by side into the region. It does not change the places.
    transform : callable, optional
        As for `GridDataset`.

    Raises
    ------
    ValidationError
        If an argument does not fit, no patch fits into the region, or what is read is not cut alike.

    Examples
    --------
    >>> t = InfiniteTensor((None, None), lambda ctx: torch.ones(8, 8), TensorWindow((8, 8)))
    >>> dataset = PatchDataset(t, 16, region=sl[0:1000, 0:1000], seed=1, length=500)
    >>> dataset[499].shape
    torch.Size([16, 16])
    """

    def __init__(
        self,
        t: Sources,
        patch_size: int | Sequence[int],
        region: object = None,
        seed: int = 0,
        length: int | None = None,
        *,
        transform: Transform | None = None,
    ) -> None:
        super().__init__(t, patch_size, None, region, transform)
        number = as_index(seed)
        if number is None:
            raise ValidationError(f"seed must be an int, got {quoted(seed)}")
        self._seed = number
        count = math.prod((axis.high - axis.low) // axis.size for axis in self._axes) if length is None else length
        self._length = as_index(count) or 0
        if self._length < 1:
            raise ValidationError(f"length must be a positive int or None, got {quoted(length)}")
        # Workers that live on see what it is set to.
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu")
        self._epoch.share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Take patches at other random places from now on, those of an epoch; 0 is the epoch of a new dataset.

        Workers of a `DataLoader` follow, `persistent_workers` too: call it in the process that made them, before each
        loop over the loader. Which worker or rank reads an item does not change its place.

        Parameters
        ----------
        epoch : int
            Its number, from 0 on.

        Raises
        ------
        ValidationError
            If it is none.
        """
        number = as_index(epoch)
        if number is None or not 0 <= number < 2**63:
            raise ValidationError(f"epoch must be an int from 0 to 2**63 - 1, got {quoted(epoch)}")
        self._epoch.fill_(number)

    def _told(self) -> list[str]:
        epoch = int(self._epoch)
        return [*super()._told(), f"seed={self._seed}", *([f"epoch={epoch}"] if epoch else [])]

    def _number(self, index: int) -> int:
        epoch = int(self._epoch)
        text = f"{self._seed} {index} {epoch}" if epoch else f"{self._seed} {index}"
        digest = hashlib.blake2b(text.encode()).digest()
        return self._positions * int.from_bytes(digest, "big") >> 512


def _leaves(sources: object) -> list[Source]:
    if isinstance(sources, dict):
        leaves = list(sources.values())
    else:
        leaves = list(sources) if isinstance(sources, list | tuple) else [sources]
    others = [leaf for leaf in leaves if not isinstance(leaf, Source)]
    if others or not leaves:
        raise ValidationError(
            f"t must be an InfiniteTensor or TensorGroup, or a list, tuple or dict of some, got {quoted(sources)}"
            f"{''.join(map(array_advice, others[:1]))}"
        )
    return leaves


def _cut(source: Source, patch_size: object, stride: object, region: object) -> _PatchGrid:
    """How a source is cut, where a stride of None means wherever a patch may lie."""
    box = _box(region, source.shape)
    dims = [d for d in range(source.ndim) if d not in box.squeezed]
    extents = tuple(None if source.shape[d] is None else box.stop[d] - box.start[d] for d in dims)
    sizes = sizes_of("patch_size", patch_size, extents)
    units = [_unit(source, d) for d in dims]
    every = units if stride is None else stride
    one = as_index(every)
    strides = sizes_of("stride", every if one is None else [one] * len(dims), extents)
    axes = {k: _Axis(box.start[dims[k]], box.stop[dims[k]], size, strides.get(k, size)) for k, size in sizes.items()}
    for k, axis in axes.items():
        if any(number % units[k] for number in (axis.low, axis.size, axis.stride)):
            raise ValidationError(
                f"dimension {dims[k]}: pixels of all tensors of the group end together at multiples of {units[k]}, so "
                f"that patches must begin and end there, got {axis.size} pixels from {axis.low} on, every {axis.stride}"
            )
    return _PatchGrid(source, box, tuple(axes.values()), tuple(dims[k] for k in axes))


def _unit(source: Source, d: int) -> int:
    """Every so many pixels along a dimension, whole pixels of all that is read end."""
    scales = [source.scale(key) for key in source.keys(True, True)] if isinstance(source, TensorGroup) else []
    return math.lcm(*(scale[d].denominator for scale in scales))


def _box(region: object, shape: Shape) -> Selection:
    if region is None:
        unbounded = [d for d, extent in enumerate(shape) if extent is None]
        if unbounded:
            example = ", ".join([":" if extent else _EXAMPLE for extent in shape])
            raise ValidationError(
                f"dimensions {', '.join(map(str, unbounded))} of shape {shape} are unbounded, so patches need a region "
                f"with a start and a stop for each of them, such as region=sl[{example}]"
            )
        region = ...
    box = parse(region, shape)
    if box.steps.count(1) < len(shape):
        raise ValidationError(f"region must hold ints and slices without a step, got {quoted(region)}")
    if len(box.squeezed) == len(shape):
        raise ValidationError(f"region must have a slice, or it leaves no dimension to cut, got {quoted(region)}")
    return box


def _brackets(box: Selection) -> str:
    """A box of pixels as ``t[...]`` takes it."""
    ends = enumerate(zip(box.start, box.stop, strict=True))
    return f"[{', '.join(str(a) if d in box.squeezed else f'{a}:{b}' for d, (a, b) in ends)}]"


def _shown(axes: Sequence[_Axis]) -> str:
    return "[" + "; ".join(map(str, axes)) + "]"
