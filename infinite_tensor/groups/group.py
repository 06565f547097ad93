"""`TensorGroup`: named tensors, read together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.fill import Request, coverage
from infinite_tensor.filling.fillable import Fillable
from infinite_tensor.filling.mask import placed
from infinite_tensor.geometry.periodic import is_endless
from infinite_tensor.geometry.regions import Region, Selection, box_inside, boxes_inside, parse
from infinite_tensor.geometry.window import Shape
from infinite_tensor.groups.members import (
    GroupMember,
    Members,
    check_extents,
    checked_tensor,
    members_of,
    names_of_shared,
    opened_tensor,
    outputs_of,
    read_members,
    save_group,
    scale_text,
    shape_of,
    stored_members,
    unit_of,
)
from infinite_tensor.groups.tensordicts import StoredOnlyGroup, assembled, import_tensordict, save_tensordict
from infinite_tensor.support.given import checked_device, checked_flag, checked_id, checked_workers, quoted
from infinite_tensor.support.nested import Key, as_key, chosen, is_key, listed, named_leaves, nested, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.inventory import TileState
from infinite_tensor.tilestore.messages import damaged_group
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.definition import Number

if TYPE_CHECKING:
    import zarr
    from tensordict import TensorDict, TensorDictBase

    from infinite_tensor.views.exports.export import ExportOptions


class TensorGroup(Fillable["TensorDict"]):
    """Named tensors, read together.

    Slicing a group returns a `tensordict.TensorDict` with a region of all tensors.

    A group is read-only and stores nothing itself: its tensors stay in their stores. It behaves like a mapping from
    names; unlike a TensorDict, its length is the number of its outermost names.

    Parameters
    ----------
    tensors : mapping or TensorGroup
        Maps names to InfiniteTensors, other groups, or mappings of these.
    dims : tuple of int, or mapping from keys to tuples, optional
        The dimensions that a tensor shares with the others, listed in the order of the dimensions of the group.
        A mapping has a tuple for each key. Default: the unbounded dimensions of the tensor.
    scale : number, tuple of numbers, or mapping from keys to either, optional
        How many pixels of the tensor lie along one pixel of the group: one number for all shared dimensions, or one for
        each. For example, ``Fraction(1, 8)`` or ``1 / 8`` for a map that is 8 times as coarse as the group, and 2 for
        one that is twice as fine. Default: 1.

    Raises
    ------
    ValidationError
        If an argument is not valid, or the tensors do not have the same extent along the shared dimensions. The last
        pixel of a tensor with a scale may reach past the end of the group.

    Examples
    --------
    >>> height = InfiniteTensor(
    ...     (None, None), lambda ctx: torch.ones(4, 4), TensorWindow((4, 4))
    ... )
    >>> window = TensorWindow((3, 4, 4))
    >>> colour = InfiniteTensor(
    ...     (3, None, None), lambda ctx: torch.zeros(3, 4, 4), window
    ... )
    >>> world = TensorGroup({"height": height, "look": {"colour": colour}})
    >>> world["look", "colour"] is colour
    True
    >>> region = world[0:10, -5:5]
    >>> region.batch_size, region["look", "colour"].shape
    (torch.Size([10, 10]), torch.Size([10, 10, 3]))
    """

    def __init__(self, tensors: Mapping[str, Any] | TensorGroup, *, dims: object = None, scale: object = None) -> None:
        if not isinstance(tensors, Mapping | TensorGroup):
            raise ValidationError(f"tensors must be a mapping from names to tensors, got {quoted(tensors)}")
        given: dict[Key, Any] = {}
        for key, value in [((), tensors)] if isinstance(tensors, TensorGroup) else named_leaves(tensors):
            if isinstance(value, TensorGroup):
                for inner in map(as_key, value.keys(True, True)):
                    given[*key, *inner] = value._leaf(inner)  # noqa: SLF001  (its own)
            else:
                given[key] = value
        members = members_of(given, dims, scale)
        check_extents(members)
        self._bind(members)

    @classmethod
    def from_tensordict(
        cls,
        td: TensorDictBase,
        *,
        version: object = None,
        store: TileStore | str | os.PathLike[str] | None = None,
        tensor_id: str | None = None,
    ) -> Self:
        """Create a group over a TensorDict, read block by block.

        Parameters
        ----------
        td : TensorDictBase
            A TensorDict, memory-mapped or not, or a PersistentTensorDict on HDF5 or Zarr. Its batch dimensions become
            the shared dimensions. It stays open; changes in it are seen after an `invalidate`.
        version : JSON value, optional
            Identifies the content, which is then not digested. Default: digests of the content, as for `from_array`.
        store : TileStore, str or path, optional
            Where blocks that were read are stored; as for `InfiniteTensor`. Default: up to 64 MiB in memory.
        tensor_id : str, optional
            The tensors get the ids ``tensor_id/key``. Default: they have no ids.

        Raises
        ------
        ValidationError
            If an entry of `td` is not a tensor, or has no pixels.
        """
        from infinite_tensor.pipelines.sources import tensors_of  # noqa: PLC0415

        tensors = tensors_of(td, version, store, tensor_id)
        shared = tuple(range(td.batch_dims))
        return cls._of_members(members_of(tensors, shared, None))

    @classmethod
    def _of_members(cls, members: Members) -> Self:
        """Create a group from checked members."""
        group = cls.__new__(cls)
        group._bind(members)  # noqa: SLF001  (its own)
        return group

    def _bind(self, members: Members) -> None:
        self._shape = shape_of(members)
        self._members = {key: replace(member, key=key) for key, member in members.items()}

    @property
    def shape(self) -> Shape:
        """Extent of each shared dimension in pixels of the group, or None if unbounded.

        The group ends with the last pixel in which every tensor has pixels. A coarser tensor may reach past this end. A
        finer tensor may cover the last pixel only in part.
        """
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of shared dimensions."""
        return len(self._shape)

    def scale(self, key: str | tuple[str, ...]) -> tuple[Fraction, ...]:
        """Return the scale of a tensor along each shared dimension.

        The scale is the number of pixels of the tensor along a pixel of the group.
        """
        return self._leaf(key).scale

    def dims(self, key: str | tuple[str, ...]) -> tuple[int, ...]:
        """Return the shared dimensions of a tensor, in the order of the group."""
        return self._leaf(key).dims

    def _entry(self, key: Key) -> InfiniteTensor | Self:
        if key in self._members:
            return self._members[key].tensor
        within = {leaf[len(key) :]: member for leaf, member in self._members.items() if leaf[: len(key)] == key}
        if not within:
            raise self._unknown(key)
        return self._of_members(within)

    def _leaf(self, key: object) -> GroupMember:
        found = self._members.get(as_key(key))
        if found is None:
            raise self._unknown(as_key(key))
        return found

    def _unknown(self, key: Key) -> KeyError:
        return KeyError(f"key {show(key)} is not in the group; the keys are {', '.join(map(show, self._members))}")

    # Type checkers cannot know whether a key names a tensor or a nested group. With Any, users need no assert.
    def get(self, key: str | tuple[str, ...], default: Any = None) -> InfiniteTensor | Any | None:
        """Return the tensor or nested group with a key, or else `default`."""
        try:
            return self._entry(as_key(key))
        except KeyError:
            return default

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[str | tuple[str, ...]]:
        """Return the names of the tensors and nested groups.

        A TensorDict lists names in the same order.

        Parameters
        ----------
        include_nested : bool
            Include the tensors and groups inside nested groups. Their names are tuples of str.
        leaves_only : bool
            Include only tensors.
        """
        found = listed(self._members, nested=include_nested, leaves_only=leaves_only)
        return [key[0] if len(key) == 1 else key for key in found]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[InfiniteTensor | Any]:
        """Return the tensors and nested groups, in the order of `keys`."""
        return [self._entry(as_key(key)) for key in self.keys(include_nested, leaves_only)]

    def items(
        self, include_nested: bool = False, leaves_only: bool = False
    ) -> list[tuple[str | tuple[str, ...], InfiniteTensor | Any]]:
        """Return pairs of a key and a tensor or nested group, in the order of `keys`."""
        return [(key, self._entry(as_key(key))) for key in self.keys(include_nested, leaves_only)]

    def __contains__(self, key: object) -> bool:
        return is_key(key) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key[0] for key in self._members))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def select(self, *keys: str | tuple[str, ...], strict: bool = True) -> Self:
        """Return a group of some of the tensors, with the same pixels.

        Parameters
        ----------
        *keys : str or tuple of str
            Tensors and nested groups to keep.
        strict : bool
            Whether to raise a KeyError for a key that is not in the group.
        """
        wanted = [as_key(key) for key in keys]
        for key in wanted:
            if strict and key not in self:
                raise self._unknown(key)
        return self._kept([leaf for leaf in self._members if _is_in(leaf, wanted)])

    def exclude(self, *keys: str | tuple[str, ...]) -> Self:
        """Return a group without some of the tensors, with the same pixels.

        Unknown keys are ignored.
        """
        unwanted = [as_key(key) for key in keys]
        return self._kept([leaf for leaf in self._members if not _is_in(leaf, unwanted)])

    def _kept(self, keys: list[Key]) -> Self:
        if not keys:
            raise ValidationError(
                f"at least one tensor of the group must remain; the keys are {', '.join(map(show, self._members))}"
            )
        return self._of_members({key: self._members[key] for key in keys})

    @property
    def device(self) -> torch.device | None:
        """The device of all tensors, or None if devices differ."""
        devices = {member.tensor.device for member in self._members.values()}
        return devices.pop() if len(devices) == 1 else None

    # Other readables have no keys.
    @overload  # type: ignore[override]
    def __getitem__(self, indices: str | tuple[str, ...]) -> InfiniteTensor | Any: ...
    @overload
    def __getitem__(self, indices: list[Any]) -> list[TensorDict]: ...
    @overload
    def __getitem__(self, indices: Region) -> TensorDict: ...
    @overload
    def __getitem__(self, indices: object) -> Any: ...

    def __getitem__(self, indices: object) -> Any:
        """Return a tensor or a nested group by its key, or read a region of all tensors.

        Parameters
        ----------
        indices
            A str or a tuple of str is a key. Everything else is a region of the shared dimensions, or a list of
            regions, as for an InfiniteTensor, in pixels of the group.

        Returns
        -------
        InfiniteTensor, TensorGroup, TensorDict or list of TensorDict
            The tensor or group with the key, or the pixels that were read; see `read`.

        Raises
        ------
        KeyError
            If the group has no such key.
        RegionError
            (an IndexError) If `indices` is not a valid region, or has a step along a dimension in which a tensor has a
            scale.
        """
        return self._entry(as_key(indices)) if is_key(indices) else self.read(indices)

    def _read(self, regions: Sequence[object], workers: int | None) -> Sequence[TensorDict]:
        selections = [parse(region, self.shape) for region in regions]
        import_tensordict()
        results = zip(selections, read_members(self._members, selections, workers), strict=True)
        return [assembled(self._members, tensors, region, self.device) for region, tensors in results]

    def save_tensordict(
        self,
        region: object,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        workers: int | None = None,
    ) -> None:
        """Write a region as a memory-mapped TensorDict, block by block, in bounded memory.

        ``TensorDict.load_memmap(path)`` opens it, without this library.

        The path appears only when all files are written. If the process is killed, a hidden folder is left next to the
        path, ``.<name>.<random>.partial``, and perhaps the replaced TensorDict, ``.<name>.<random>.former``.

        Parameters
        ----------
        region
            As ``group[...]`` takes it, without a step.
        path : str or path
            A folder on a local disk.
        overwrite : bool
            Replace an existing memory-mapped TensorDict. The path contains the old TensorDict until the new TensorDict
            is complete. Then the path is missing for a moment, before it contains the new TensorDict.
        workers : int, optional
            As for `InfiniteTensor.read`.

        Raises
        ------
        ValidationError
            If `path` exists, or a name of a tensor cannot be a file name. No partial files are left.
        StoreError
            If it cannot be written, for example because the disk is full. No partial files are left.
        """
        if not isinstance(path, str | os.PathLike):
            raise ValidationError(f"path must be a local path, got {quoted(path)}")
        workers = checked_workers(workers)
        overwrite = checked_flag("overwrite", overwrite)
        save_tensordict(self._members, self._plain(region), Path(path), workers, overwrite=overwrite)

    def save(self, store: TileStore, group_id: str) -> None:
        """Save the group to a store, for `TileStore.open_group`.

        The store gets the ids of the tensors, not their pixels. Saving an equal group again changes nothing.

        Parameters
        ----------
        store : TileStore
            The store of the group. If tensors are in other stores, pass those as `stores` when you call `open_group`.
        group_id : str
            The name of the group in the store. It is independent of the ids of tensors.

        Raises
        ------
        ValidationError
            If a tensor was created without a `tensor_id`, the store is read-only, or it contains another group of that
            id.
        StoreError
            If the group cannot be stored.
        """
        save_group(self._members, store, group_id)

    def align(self, region: object) -> tuple[slice | int, ...]:
        """Extend a region to whole pixels of every tensor, or to the end of the group.

        The result is the smallest such region. It contains every pixel that a read of `region` returns.

        Parameters
        ----------
        region
            As ``group[...]`` takes it, without a step.

        Returns
        -------
        tuple of (slice or int)
            The extended region; ints stay as they are.
        """
        selection = self._plain(region)
        found: list[slice | int] = []
        for d, (start, stop) in enumerate(zip(selection.start, selection.stop, strict=True)):
            unit = unit_of(self._members, d)
            if d in selection.squeezed:
                found.append(start)
            else:
                end, extent = -(-stop // unit) * unit, self.shape[d]
                if extent is not None and not is_endless(extent):
                    end = min(end, extent)
                found.append(slice(start // unit * unit, end))
        return tuple(found)

    def _plain(self, region: object) -> Selection:
        selection = parse(region, self.shape)
        if selection.steps.count(1) < self.ndim:
            raise ValidationError(f"region must have no step, got {quoted(region)}")
        return selection

    def to(self, device: torch.device | str | int) -> Self:
        """Move all tensors to another device, in place, as `InfiniteTensor.to` does.

        Raises
        ------
        ValidationError
            If a tensor cannot be moved. Then no tensor has been moved.
        """
        if isinstance(device, torch.dtype):
            raise ValidationError(
                f"device must be a torch.device or a str, got {device}; convert the tensors of the group one by one"
            )
        moved: list[tuple[InfiniteTensor, torch.device]] = []
        try:
            for member in self._members.values():
                before = member.tensor.device
                member.tensor.to(device=device)
                moved.append((member.tensor, before))
        except BaseException:
            for tensor, before in reversed(moved):
                tensor.to(device=before)
            raise
        return self

    def coverage(self, region: object = ..., state: TileState | None = None, where: object = None) -> dict[str, Any]:
        """Return `InfiniteTensor.coverage` of each tensor, nested as the group is.

        The result is not a TensorDict, because tensors may have tiles of different sizes.
        """
        box = box_inside(parse(region, self.shape), self.shape, "the region of coverage")
        requests = zip(self._members, self._requests(box, where), strict=True)
        return nested((key, coverage(request, state)) for key, request in requests)

    def stored_only(self, fill_value: Number | Mapping[Any, Any] = 0) -> StoredOnlyGroup:
        """Return a view of the stored pixels of all tensors.

        Reading the view never computes.

        Parameters
        ----------
        fill_value : number, or mapping from keys to them
            The value of pixels whose tile is missing. Default, also for tensors that a mapping does not name: 0.

        Returns
        -------
        StoredOnlyGroup
            It is read by regions, like the group.

        Raises
        ------
        ValidationError
            If a tensor's dtype cannot represent its fill value, or a key is not in the group.
        """
        return StoredOnlyGroup(self._members, fill_value, self.device)

    def clear_cache(self) -> None:
        """Call `InfiniteTensor.clear_cache` on every tensor of the group."""
        for member in self._members.values():
            member.tensor.clear_cache()

    def as_zarr(self, region: object = None) -> zarr.Group:
        """Return a read-only Zarr group of the tensors.

        The Zarr group is nested as this group is. Reading a chunk computes the chunk.

        Parameters
        ----------
        region : optional
            The pixels of the arrays: a slice for each shared dimension, in pixels of the group. Dimensions that are not
            shared are whole. Default: as for `InfiniteTensor.as_zarr` of each tensor.

        Returns
        -------
        zarr.Group
            An array per tensor, as from `InfiniteTensor.as_zarr`. xarray opens it as
            ``xarray.open_zarr(group.as_zarr().store)``, or, if groups nest, as
            ``xarray.open_datatree(group.as_zarr().store, engine="zarr")``. Dimensions keep
            their names. But if two dimensions of the same name differ in pixels, scale or coordinates, the second is
            renamed: the name of the tensor is put in front, as in ``coarse_y``. A dimension with the name of an array
            is also renamed in this way.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of the group.
        ValidationError
            If the region is empty, or has a step, or an int in place of a slice; or if a key cannot be a path in Zarr.
        """
        # Imported here, because views build on groups.
        from infinite_tensor.views.face import zarr_of_members  # noqa: PLC0415

        selection = None if region is None else parse(region, self.shape)
        return zarr_of_members(self._cut(selection))

    def export(
        self, region: object = ..., target: str | os.PathLike[str] | None = None, **options: Unpack[ExportOptions]
    ) -> None:
        """Write a region of all tensors to a Zarr group.

        The Zarr group has an array for each tensor, and is nested as this group is. Tensors are written one after the
        other: `fill` the region first if they share an expensive tensor upstream that is not stored.

        Parameters
        ----------
        region
            A slice for each shared dimension, in pixels of the group. Dimensions that are not shared are written whole.
            May be left out for a finite group: ``group.export("all.zarr")``.
        target : str or path
            A path or an fsspec URL that ends in ``.zarr``.
        **options
            See `ExportOptions`. Dimensions have the names that `as_zarr` gives them.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of the group.
        ValidationError
            If an argument is not valid, or the target exists.
        StoreError
            If something cannot be written or read.
        """
        # Imported here, because exports build on groups.
        from infinite_tensor.views.exports.export import export_members, region_and_target  # noqa: PLC0415

        place, path = region_and_target(region, target)
        export_members(self._cut(self._plain(place)), path, options)

    def _cut(self, region: Selection | None) -> dict[Key, tuple[InfiniteTensor, Selection | None, Sequence[Fraction]]]:
        return {
            key: (member.tensor, None if region is None else member.selection(region), member.scale_of_all)
            for key, member in self._members.items()
        }

    def _requests(self, region: object, where: object = None) -> list[Request]:
        selection = parse(region, self.shape)._replace(steps=(1,) * self.ndim)
        boxes = boxes_inside(selection, self.shape)
        if where is not None:
            boxes = [box_inside(selection, self.shape, "a region with a mask")]
        mask = placed(where, names_of_shared(self._members), boxes[0])
        return [
            Request(
                member.tensor,
                member.selection(box),
                None if mask is None else mask.on_member(member.dims, member.scale),
            )
            for member in self._members.values()
            for box in boxes
        ]

    def _tensors(self) -> list[InfiniteTensor]:
        return [member.tensor for member in self._members.values()]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference, like a tensor."""
        return self._of_members, (self._members,)

    def _repr_html_(self) -> str:
        # Imported here, because views build on groups.
        from infinite_tensor.views.showing import html_of_group  # noqa: PLC0415

        return html_of_group(self)

    def __repr__(self) -> str:
        lines = [_line(member) for member in self._members.values()]
        return f"{type(self).__name__}(shape={self.shape}, tensors:\n    " + "\n    ".join(lines) + ")"


def group_of_outputs(tensors: Mapping[Key, InfiniteTensor]) -> TensorGroup:
    """Create a group for the outputs of ``f`` in `InfiniteTensor.from_multi`."""
    return TensorGroup._of_members(outputs_of(tensors))  # noqa: SLF001  (its own)


def open_group(
    store: TileStore,
    group_id: str,
    f: Mapping[Any, Callable[..., Any]] | None,
    members: Mapping[Any, InfiniteTensor] | None,
    stores: Sequence[TileStore],
    device: torch.device | str,
) -> TensorGroup:
    """See `TileStore.open_group`."""
    group_id, device = checked_id(group_id, "group_id"), checked_device(device)
    if not isinstance(stores, list | tuple) or not all(isinstance(other, TileStore) for other in stores):
        raise ValidationError(f"stores must be a list of TileStores, got {quoted(stores)}")
    for name, mapping in (("f", f), ("members", members)):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise ValidationError(f"{name} must be a mapping from keys of the group, got {quoted(mapping)}")
    stored = stored_members(store, group_id, contents_of(store).stored_group(group_id))
    functions, given = chosen("f", f, stored, None), chosen("members", members, stored, None)
    tensors = {
        key: opened_tensor(group_id, member, [store, *stores], functions[key], device)
        if given[key] is None
        else checked_tensor(group_id, member, given[key])
        for key, member in stored.items()
    }
    dims = {key: member.dims for key, member in stored.items()}
    try:
        found = members_of(tensors, dims, {key: member.scale for key, member in stored.items()})
    except ValidationError as error:
        raise damaged_group(store, group_id, "its definition", error) from error
    return TensorGroup._of_members(found)  # noqa: SLF001  (its own)


def _is_in(leaf: Key, keys: list[Key]) -> bool:
    return any(leaf[: len(key)] == key for key in keys)


def _line(member: GroupMember) -> str:
    text = f"{member.tensor.shape} {member.tensor.dtype}, shares {list(member.dims)}{scale_text(member.scale)}"
    return f"{show(member.key)}: {text}"
