"""Patches of tensors and groups as map-style datasets, for `torch.utils.data.DataLoader`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawValue
from textwrap import indent
from typing import Any, TypeAlias, TypeVar, overload

from torch.utils.data import Dataset, default_collate, get_worker_info

from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.fillable import Fillable
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.geometry.window import Shape
from infinite_tensor.groups import TensorGroup
from infinite_tensor.support.exit import flush_at_termination
from infinite_tensor.support.forks import cached_property, renew_in_children
from infinite_tensor.support.given import array_advice, as_index, members, quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore.layout import sizes_of
from infinite_tensor.values.definition import channels_of

Several: TypeAlias = Sequence[Fillable[Any]] | Mapping[Any, Fillable[Any]]
Transform: TypeAlias = Callable[[Any], Any]
Size: TypeAlias = int | Sequence[int]

_T = TypeVar("_T")
_Patch = TypeVar("_Patch")
_Item_co = TypeVar("_Item_co", covariant=True)


_EXAMPLE = "0:1000"
"""Slice suggested in messages for an unbounded dimension."""


@dataclass(frozen=True)
class _Axis:
    """A dimension with patches within ``[low, high)``.

    A patch of `size` pixels begins every `stride` pixels.
    """

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
    """A tensor or group, cut into patches.

    Attributes
    ----------
    source : InfiniteTensor or TensorGroup
        The tensor or group that is read.
    box : Selection
        The region that bounds the patches.
    axes : tuple of _Axis
        The dimensions along which there may be several patches.
    dims : tuple of int
        The numbers of these dimensions in the source.
    """

    source: InfiniteTensor | TensorGroup
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


class _Patches(Dataset[_Item_co]):
    """A dataset of patches.

    The positions of patches are numbered in lexicographic order.
    """

    def __init__(
        self,
        sources: Fillable[Any] | Several,
        patch_size: object,
        stride: object,
        region: object,
        transform: Transform | None,
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
                    f"all tensors must have the same grid of patches: {self._cuts[0].source!r} has "
                    f"[{'; '.join(map(str, self._axes))}], but {cut.source!r} has [{'; '.join(map(str, cut.axes))}]; "
                    "begin the region with an ellipsis (...), and name the dimensions of finite tensors with "
                    "channels, as in dims=('c', 'y', 'x')"
                )
        self._positions = self._length = math.prod(axis.positions for axis in self._axes)
        if not self._positions:
            sizes = tuple(axis.size for axis in self._axes)
            extents = tuple(axis.high - axis.low for axis in self._axes)
            raise ValidationError(
                f"no patch of {sizes} pixels fits into a region of {extents}; give a larger region, or a smaller "
                f"patch_size={tuple(map(min, sizes, extents))}"
            )

    def __repr__(self) -> str:
        names = (
            [f"{quoted(key)}: " for key in self._sources] if isinstance(self._sources, dict) else [""] * len(self._cuts)
        )
        lines = indent("\n".join(f"{name}{cut}" for name, cut in zip(names, self._cuts, strict=True)), " " * 4)
        return f"{type(self).__name__}({', '.join(self._settings())}, each of\n{lines})"

    def _settings(self) -> list[str]:
        count, transform = f"{len(self)} patches", self._transform
        if transform is None:
            return [count]
        return [count, f"transform={getattr(transform, '__qualname__', None) or quoted(transform)}"]

    def __len__(self) -> int:
        return self._length

    def _number(self, index: int) -> int:
        """Choose the patch position for an item: in order here, at random in a `PatchDataset`."""
        return index

    def region(self, index: int) -> Any:
        """Return the region of an item.

        Parameters
        ----------
        index : int
            The index of the item; negative ones count from the end.

        Returns
        -------
        tuple of (int or slice)
            The region in pixels, as ``t[...]`` takes it. For a list, tuple or dict of tensors, a list, tuple or
            dict of regions.

        Raises
        ------
        IndexError
            If there is no such item.
        """
        corner = self._corner(index)
        return self._arranged([cut.region(corner) for cut in self._cuts])

    def __iter__(self) -> Iterator[_Item_co]:
        """Iterate over all patches in order."""
        # Python's default iteration would stop at an IndexError of `f` or `transform`.
        for index in range(len(self)):
            yield self[index]

    @overload
    def __getitem__(self, index: int) -> _Item_co: ...
    @overload
    def __getitem__(self, index: object) -> Any: ...

    def __getitem__(self, index: Any) -> Any:
        """Return the transformed patch at `index`.

        Without a transform, a patch is a tensor or TensorDict, or a list, tuple or dict of them.

        For a list of indices, return one batch of patches, stacked as a `DataLoader` stacks them. A `DataLoader` passes
        lists if its `sampler` is a `BatchSampler`.
        """
        several = list(index) if getattr(index, "ndim", 0) == 1 else members(index)
        if several is None:
            return self.__getitems__([index])[0]
        if not several:
            raise IndexError("a batch needs at least one index, got none")
        return default_collate(self.__getitems__(several))

    def __getitems__(self, indices: Sequence[int]) -> list[_Item_co]:
        """Return the patches at `indices`, read together.

        A `DataLoader` calls this method for a batch.
        """
        if get_worker_info() is not None:
            flush_at_termination()
        corners = [self._corner(index) for index in indices]
        patches = [cut.source.read([cut.selection(corner) for corner in corners]) for cut in self._cuts]
        items: list[Any] = [self._arranged(item) for item in zip(*patches, strict=True)]
        if self._transform is None:
            return items
        for at, index in enumerate(indices):
            try:
                items[at] = self._transform(items[at])
            except Exception as error:
                pixels = self._arranged([_brackets(cut.selection(corners[at])) for cut in self._cuts])
                error.add_note(f"while transforming item {index} of a {type(self).__name__}, which is {pixels}")
                raise
        return items

    def _corner(self, index: int) -> Index:
        at, count = as_index(index), len(self)
        if at is None:
            raise TypeError(f"an index must be an int, or a list of ints, got {type(index).__name__} {index!r}")
        if not -count <= at < count:
            raise IndexError(f"index {at} is out of range for a dataset of {count} patches")
        number = self._number(at % count)
        corner = []
        for axis in reversed(self._axes):
            number, at = divmod(number, axis.positions)
            corner.append(axis.low + at * axis.stride)
        return tuple(reversed(corner))

    def _arranged(self, values: Sequence[_T]) -> _T | list[_T] | tuple[_T, ...] | dict[Any, _T]:
        if isinstance(self._sources, dict):
            return dict(zip(self._sources, values, strict=True))
        if isinstance(self._sources, Fillable):
            return values[0]
        return list(values) if isinstance(self._sources, list) else tuple(values)


class GridDataset(_Patches[_Item_co]):
    """Patches on a regular grid in a region.

    The positions are in lexicographic order. Patches reaching past the end of the region are left out.

    Parameters
    ----------
    t : InfiniteTensor or TensorGroup, or a list, tuple or dict of them
        What the patches are read from. For a group, an item is a TensorDict, and patches begin and end with whole
        pixels of all its tensors. For a list, tuple or dict, an item is a list, tuple or dict of patches at the same
        coordinates.
    patch_size : int or tuple of int
        Size of a patch in pixels: one int for all cut dimensions, or one for each. The unbounded dimensions are cut. If
        there are none, all dimensions are cut except those named c, channel, channels, band or bands. A patch contains
        the whole of the other dimensions. To cut all dimensions, give one int for each dimension of the tensor.
    stride : int or tuple of int, optional
        Distance from one patch to the next, in pixels: an int, or one int for each dimension, as for `patch_size`.
        Default: `patch_size`, so that patches lie side by side.
    region : optional
        The region that contains all patches, as ``t[...]`` takes it, without steps. Write it with `sl`, as below. The
        first patch begins at the first pixel of the region. If the region has an int for a dimension, patches lack
        this dimension. Default: the whole tensor, if it is finite. For tensors with different numbers of dimensions,
        begin the region with ``...``.
    transform : callable, optional
        The item becomes ``transform(patch)``, where ``patch`` is the item without a transform. `transform` is called
        for one item at a time, in the process that reads the item: a worker, if the `DataLoader` has workers.

    Raises
    ------
    ValidationError
        If an argument is not valid, no patch fits into the region, or the tensors give different grids of patches.

    Examples
    --------
    >>> window = TensorWindow((3, 8, 8))
    >>> t = InfiniteTensor((3, None, None), lambda ctx: torch.ones(3, 8, 8), window)
    >>> dataset = GridDataset(t, 64, region=sl[:, 0:256, 0:192])
    >>> len(dataset), dataset[0].shape
    (12, torch.Size([3, 64, 64]))
    >>> dataset.region(4)
    (slice(0, 3, None), slice(64, 128, None), slice(64, 128, None))
    """

    @overload
    def __init__(
        self: GridDataset[_Patch],
        t: Fillable[_Patch],
        patch_size: Size,
        stride: Size | None = None,
        region: object = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        t: Fillable[_Patch],
        patch_size: Size,
        stride: Size | None = None,
        region: object = None,
        *,
        transform: Callable[[_Patch], _Item_co],
    ) -> None: ...
    @overload
    def __init__(
        self: GridDataset[Any],
        t: Several,
        patch_size: Size,
        stride: Size | None = None,
        region: object = None,
        *,
        transform: Transform | None = None,
    ) -> None: ...

    def __init__(
        self,
        t: Any,
        patch_size: Size,
        stride: Size | None = None,
        region: object = None,
        *,
        transform: Transform | None = None,
    ) -> None:
        super().__init__(t, patch_size, patch_size if stride is None else stride, region, transform)

    def _settings(self) -> list[str]:
        return [*super()._settings(), f"stride={tuple(axis.stride for axis in self._axes)}"]


class PatchDataset(_Patches[_Item_co]):
    """Patches at random positions in a region.

    Seed and epoch determine the positions, on every machine alike.

    The positions for a patch in the region are numbered in lexicographic order. Of ``n`` positions, item ``i`` has
    number ``n * h // 2**512``, where ``h`` is the BLAKE2b digest of the text ``f"{seed} {i}"`` as a big-endian number
    of 512 bits. After ``set_epoch(e)``, unless ``e`` is 0, the text is ``f"{seed} {i} {e}"``.

    Parameters
    ----------
    t : InfiniteTensor or TensorGroup, or a list, tuple or dict of them
        As for `GridDataset`.
    patch_size : int or tuple of int
        As for `GridDataset`.
    region : optional
        As for `GridDataset`.
    seed : int
        Seed of the random positions.
    length : int, optional
        The number of patches. Default: as many as fit side by side into the region. It does not change the positions.
    transform : callable, optional
        As for `GridDataset`.

    Raises
    ------
    ValidationError
        If an argument is not valid, no patch fits into the region, or the tensors give different grids of patches.

    Examples
    --------
    >>> t = InfiniteTensor(
    ...     (None, None), lambda ctx: torch.ones(8, 8), TensorWindow((8, 8))
    ... )
    >>> dataset = PatchDataset(t, 16, region=sl[0:1000, 0:1000], seed=1, length=500)
    >>> dataset[499].shape
    torch.Size([16, 16])
    """

    @overload
    def __init__(
        self: PatchDataset[_Patch],
        t: Fillable[_Patch],
        patch_size: Size,
        region: object = None,
        seed: int = 0,
        length: int | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        t: Fillable[_Patch],
        patch_size: Size,
        region: object = None,
        seed: int = 0,
        length: int | None = None,
        *,
        transform: Callable[[_Patch], _Item_co],
    ) -> None: ...
    @overload
    def __init__(
        self: PatchDataset[Any],
        t: Several,
        patch_size: Size,
        region: object = None,
        seed: int = 0,
        length: int | None = None,
        *,
        transform: Transform | None = None,
    ) -> None: ...

    def __init__(
        self,
        t: Any,
        patch_size: Size,
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
        self._begin(0)

    def _begin(self, epoch: int, followed: Any = None) -> None:
        # Each process has its own epoch, but workers of a DataLoader follow that of the process that started them.
        self._own, self._followed = RawValue(c_int64, epoch), followed
        renew_in_children(self)

    @property
    def _epoch(self) -> int:
        number: int = (self._own if self._followed is None or get_worker_info() is None else self._followed).value
        return number

    def _renew_after_fork(self) -> None:
        # Without shared memory, the child stays with the epoch of its parent.
        with suppress(OSError):
            self._own, self._followed = RawValue(c_int64, self._epoch), self._own

    def __getstate__(self) -> dict[str, Any]:
        is_spawned = get_spawning_popen() is not None
        state = {name: value for name, value in self.__dict__.items() if name not in ("_own", "_followed")}
        return state | {"_started": (self._epoch, self._own if is_spawned else None)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        started = state.pop("_started")
        self.__dict__.update(state)
        self._begin(*started)

    def set_epoch(self, epoch: int) -> None:
        """Move all patches to the random positions of another epoch.

        A new dataset has epoch 0. Call this method in the process that created the `DataLoader`, before each loop over
        the loader: its workers follow, even with `persistent_workers`. Copies of the dataset, and other processes that
        train with it, have their own epoch. The position of an item does not depend on the worker or rank that reads
        it.

        Parameters
        ----------
        epoch : int
            The number of the epoch, from 0 on.

        Raises
        ------
        ValidationError
            If `epoch` is not an int from 0 to ``2**63 - 1``.
        """
        number = as_index(epoch)
        if number is None or not 0 <= number < 2**63:
            raise ValidationError(f"epoch must be an int from 0 to 2**63 - 1, got {quoted(epoch)}")
        self._followed = None
        self._own.value = number

    def _settings(self) -> list[str]:
        epoch = self._epoch
        return [*super()._settings(), f"seed={self._seed}", *([f"epoch={epoch}"] if epoch else [])]

    def _number(self, index: int) -> int:
        epoch = self._epoch
        text = f"{self._seed} {index} {epoch}" if epoch else f"{self._seed} {index}"
        digest = hashlib.blake2b(text.encode()).digest()
        return self._positions * int.from_bytes(digest, "big") >> 512


def _leaves(sources: object) -> list[InfiniteTensor | TensorGroup]:
    if isinstance(sources, dict):
        leaves = list(sources.values())
    else:
        leaves = list(sources) if isinstance(sources, list | tuple) else [sources]
    others = [leaf for leaf in leaves if not isinstance(leaf, InfiniteTensor | TensorGroup)]
    if others or not leaves:
        raise ValidationError(
            f"t must be an InfiniteTensor or TensorGroup, or a list, tuple or dict of them, got {quoted(sources)}"
            f"{''.join(map(array_advice, others[:1]))}"
        )
    return leaves


def _cut(source: InfiniteTensor | TensorGroup, patch_size: object, stride: object, region: object) -> _PatchGrid:
    """Cut a tensor or group into patches.

    With a stride of None, patches may begin at every pixel.
    """
    box = _box(region, source.shape)
    dims = [d for d in range(source.ndim) if d not in box.squeezed]
    extents = tuple(None if source.shape[d] is None else box.stop[d] - box.start[d] for d in dims)
    channels = {*dims} & {*(channels_of(source.dims) if isinstance(source, InfiniteTensor) else ())}
    if channels and None not in extents:
        # An int as patch_size does not apply to channels, so treat channels as unbounded.
        extents = tuple(extent if d in channels else None for d, extent in zip(dims, extents, strict=True))
    sizes = sizes_of("patch_size", patch_size, extents)
    # The smallest patch with whole pixels of all tensors: for a group with the scales 1 and 1/8, 8 pixels.
    scales = [source.scale(key) for key in source.keys(True, True)] if isinstance(source, TensorGroup) else []
    units = [math.lcm(*(scale[d].denominator for scale in scales)) for d in dims]
    every = units if stride is None else stride
    one = as_index(every)
    strides = sizes_of("stride", every if one is None else [one] * len(dims), extents)
    axes = {k: _Axis(box.start[dims[k]], box.stop[dims[k]], size, strides.get(k, size)) for k, size in sizes.items()}
    for k, axis in axes.items():
        if any(number % units[k] for number in (axis.low, axis.size, axis.stride)):
            raise ValidationError(
                f"dimension {dims[k]}: the start of the region, patch_size and stride must be multiples of {units[k]} "
                f"for whole pixels in all tensors of the group, got start {axis.low}, patch_size {axis.size} and "
                f"stride {axis.stride}"
            )
    return _PatchGrid(source, box, tuple(axes.values()), tuple(dims[k] for k in axes))


def _box(region: object, shape: Shape) -> Selection:
    if region is None:
        unbounded = [d for d, extent in enumerate(shape) if extent is None]
        if unbounded:
            example = ", ".join([":" if extent else _EXAMPLE for extent in shape])
            raise ValidationError(
                f"region must have a start and a stop in each unbounded dimension ({', '.join(map(str, unbounded))}) "
                f"of shape {shape}, as in region=sl[{example}]"
            )
        region = ...
    box = parse(region, shape)
    if box.steps.count(1) < len(shape):
        raise ValidationError(f"region must consist of ints and slices without a step, got {quoted(region)}")
    if len(box.squeezed) == len(shape):
        raise ValidationError(f"region must have a slice: ints leave no dimension for patches, got {quoted(region)}")
    return box


def _brackets(box: Selection) -> str:
    ends = enumerate(zip(box.start, box.stop, strict=True))
    return f"[{', '.join(str(a) if d in box.squeezed else f'{a}:{b}' for d, (a, b) in ends)}]"
