"""`TensorGroup`: tensors under names, which are read together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.fill import Request, coverage
from infinite_tensor.filling.fillable import Fillable
from infinite_tensor.filling.mask import placed
from infinite_tensor.filling.progress import Watcher
from infinite_tensor.geometry.regions import Selection, parse
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
    shape_of,
    shown_scale,
    stored_members,
    unit_of,
)
from infinite_tensor.groups.tensordicts import StoredOnlyGroup, assembled, import_tensordict, save_tensordict
from infinite_tensor.support.given import checked_device, checked_flag, checked_id, checked_workers, quoted
from infinite_tensor.support.nested import Key, as_key, chosen, is_key, listed, named_leaves, nested, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.messages import damaged_group
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.definition import Number

if TYPE_CHECKING:
    import zarr
    from tensordict import TensorDictBase


class TensorGroup(Fillable):
    """Tensors under names, which are read together and come as a `tensordict.TensorDict`.

    A group is read-only, and keeps nothing itself: its tensors stay where they are. It is like a mapping from names;
    unlike a TensorDict, its length is the number of its outermost names.

    Parameters
    ----------
    tensors : mapping or TensorGroup
        From names to InfiniteTensors, other groups, or mappings of such.
    dims : tuple of int, or mapping from keys to them, optional
        Which dimensions of a tensor are shared with the others, in the order in which the group has them. Default:
        the unbounded ones.
    scale : number or tuple of them, or mapping from keys to them, optional
        For tensors of other resolutions: how many pixels they have along one pixel of the group, for all shared
        dimensions or for each of them. ``Fraction(1, 8)`` or ``1 / 8`` is a coarse map, 2 is one twice as fine.
        Default: 1.

    Raises
    ------
    ValidationError
        If an argument does not fit, or the tensors do not have the same extent along the shared dimensions: that of a
        tensor with a scale may be rounded up.

    Examples
    --------
    >>> height = InfiniteTensor((None, None), lambda ctx: torch.ones(4, 4), TensorWindow((4, 4)))
    >>> colour = InfiniteTensor((3, None, None), lambda ctx: torch.zeros(3, 4, 4), TensorWindow((3, 4, 4)))
    >>> world = TensorGroup({"height": height, "look": {"colour": colour}})
    >>> world["look", "colour"] is colour
    True
    >>> region = world[0:10, -5:5]
    >>> region.batch_size, region["look", "colour"].shape
    (torch.Size([10, 10]), torch.Size([10, 10, 3]))
    """

    def __init__(self, tensors: Mapping[str, Any] | TensorGroup, *, dims: object = None, scale: object = None) -> None:
        if not isinstance(tensors, Mapping | TensorGroup):
            raise ValidationError(f"a group is made of a mapping from names to tensors, got {quoted(tensors)}")
        given: dict[Key, Any] = {}
        for key, value in [((), tensors)] if isinstance(tensors, TensorGroup) else named_leaves(tensors):
            if isinstance(value, TensorGroup):
                for inner in map(as_key, value.keys(True, True)):
                    given[*key, *inner] = GroupMember(inner, value[inner], value.dims(inner), value.scale(inner))
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
        tile_store: TileStore | str | os.PathLike[str] | None = None,
        tensor_id: str | None = None,
    ) -> Self:
        """A group that reads from a TensorDict, in memory or in one of its stored forms, block by block.

        Parameters
        ----------
        td : TensorDictBase
            A TensorDict, memory-mapped or not, or a PersistentTensorDict on HDF5 or Zarr. Its batch dimensions are
            what the tensors share. It stays open, and what changes in it is seen after an `invalidate`.
        version : JSON value, optional
            Identifies its content, which is not looked at then. Default: digests of the content, as for `from_array`.
        tile_store : TileStore, str or path, optional
            Where blocks that were read are kept; as for `InfiniteTensor`. Default: up to 64 MiB of them, in memory.
        tensor_id : str, optional
            The tensors get the ids ``tensor_id/key``. Default: they have none.

        Raises
        ------
        ValidationError
            If something in it is no tensor, or has no pixels.
        """
        from infinite_tensor.pipelines.sources import tensors_of  # noqa: PLC0415

        tensors = tensors_of(td, version, tile_store, tensor_id)
        shared = tuple(range(td.batch_dims))
        return cls._of_members(members_of(tensors, shared, None))

    @classmethod
    def _of_members(cls, members: Members) -> Self:
        """A group of members that fit together."""
        group = cls.__new__(cls)
        group._bind(members)  # noqa: SLF001  (its own)
        return group

    def _bind(self, members: Members) -> None:
        self._shape = shape_of(members)
        self._members = {key: replace(member, key=key) for key, member in members.items()}

    @property
    def shape(self) -> Shape:
        """Extent of the shared dimensions in pixels of the group, None for an unbounded one.

        These are the pixels of which all tensors have some. A coarser tensor may reach past the last of them.
        """
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of shared dimensions."""
        return len(self._shape)

    def scale(self, key: str | tuple[str, ...]) -> tuple[Fraction, ...]:
        """Pixels of a tensor along one pixel of the group, per shared dimension."""
        return self._leaf(key).scale

    def dims(self, key: str | tuple[str, ...]) -> tuple[int, ...]:
        """Dimensions of a tensor that are shared, in the order of the group."""
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
        return KeyError(f"key {show(key)} is not in the group, which has {', '.join(map(show, self._members))}")

    def get(self, key: str | tuple[str, ...], default: Any = None) -> Any:
        """What has a key, or `default`."""
        try:
            return self._entry(as_key(key))
        except KeyError:
            return default

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[str | tuple[str, ...]]:
        """Names of the tensors and nested groups, in the order of a TensorDict.

        Parameters
        ----------
        include_nested : bool
            Name what is nested too, by tuples.
        leaves_only : bool
            Name only tensors.
        """
        found = listed(self._members, nested=include_nested, leaves_only=leaves_only)
        return [key[0] if len(key) == 1 else key for key in found]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[InfiniteTensor | Self]:
        """What `keys` names."""
        return [self._entry(as_key(key)) for key in self.keys(include_nested, leaves_only)]

    def items(
        self, include_nested: bool = False, leaves_only: bool = False
    ) -> list[tuple[str | tuple[str, ...], InfiniteTensor | Self]]:
        """`keys`, each with what has it."""
        return [(key, self._entry(as_key(key))) for key in self.keys(include_nested, leaves_only)]

    def __contains__(self, key: object) -> bool:
        return is_key(key) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key[0] for key in self._members))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def select(self, *keys: str | tuple[str, ...], strict: bool = True) -> Self:
        """A group of some of the tensors, in the same pixels.

        Parameters
        ----------
        *keys : str or tuple of str
            What to keep; of a nested group, all that is in it.
        strict : bool
            Whether a key that is not there is a KeyError.
        """
        wanted = [as_key(key) for key in keys]
        for key in wanted:
            if strict and key not in self:
                raise self._unknown(key)
        return self._kept([leaf for leaf in self._members if _is_in(leaf, wanted)])

    def exclude(self, *keys: str | tuple[str, ...]) -> Self:
        """A group without some of the tensors, in the same pixels. A key that is not there is no error."""
        unwanted = [as_key(key) for key in keys]
        return self._kept([leaf for leaf in self._members if not _is_in(leaf, unwanted)])

    def _kept(self, keys: list[Key]) -> Self:
        if not keys:
            raise ValidationError(f"nothing is left of the group, which has {', '.join(map(show, self._members))}")
        return self._of_members({key: self._members[key] for key in keys})

    @property
    def device(self) -> torch.device | None:
        """Where all tensors return their results; None where they differ."""
        devices = {member.tensor.device for member in self._members.values()}
        return devices.pop() if len(devices) == 1 else None

    def __getitem__(self, indices: object) -> Any:
        """A tensor or a nested group by its key, or a region of all tensors.

        Parameters
        ----------
        indices
            A str or a tuple of str is a key. Everything else is a region of the shared dimensions, or a list of
            regions, as an InfiniteTensor takes them, in pixels of the group.

        Returns
        -------
        InfiniteTensor, TensorGroup, TensorDict or list of TensorDict
            What has the key; or what was read, see `read`.

        Raises
        ------
        KeyError
            If the group has no such key.
        RegionError
            (an IndexError) If `indices` is no region, or has a step along a dimension in which a tensor has a scale.
        """
        return self._entry(as_key(indices)) if is_key(indices) else self.read(indices)

    def read(self, indices: object, *, workers: int | None = None) -> Any:
        """Read a region of all tensors, or a list of regions, in one plan: what several need is computed once.

        Parameters
        ----------
        indices
            A region of the shared dimensions, or a list of regions. Of a coarser tensor, all pixels that lie over it
            are read: an int picks the one that holds it. The other dimensions of a tensor are read whole.
        workers : int, optional
            As for `InfiniteTensor.read`.

        Returns
        -------
        TensorDict or list of TensorDict
            Nested as the group is. The shared dimensions come first in every tensor, the others after them. The
            batch size is the extent of the region along the shared dimensions, up to the first one in which tensors
            have different scales; that of a nested TensorDict counts only the tensors in it.
        """
        workers = checked_workers(workers)
        regions = [parse(region, self.shape) for region in (indices if isinstance(indices, list) else [indices])]
        import_tensordict()
        results = zip(regions, read_members(self._members, regions, workers), strict=True)
        found = [assembled(self._members, tensors, region, self.device) for region, tensors in results]
        return found if isinstance(indices, list) else found[0]

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

        The path is there when all of it is written, and not before. A process that is killed leaves a hidden
        folder beside it, ``.<name>.<random>.partial``, and ``.former`` of what it was about to replace.

        Parameters
        ----------
        region
            As ``group[...]`` takes it, without a step.
        path : str or path
            A folder on a local disk.
        overwrite : bool
            Replace a memory-mapped TensorDict that is there. The path is missing for a moment, and holds either the
            old one or the new one whole.
        workers : int, optional
            As for `InfiniteTensor.read`.

        Raises
        ------
        ValidationError
            If there is something at `path`, or a name cannot be that of a file. Nothing is left there.
        StoreError
            If it cannot be written, because the disk is full, say. Nothing is left there.
        """
        if not isinstance(path, str | os.PathLike):
            raise ValidationError(f"path must be a local path, got {quoted(path)}")
        workers = checked_workers(workers)
        overwrite = checked_flag("overwrite", overwrite)
        save_tensordict(self._members, self._plain(region), Path(path), workers, overwrite=overwrite)

    def save(self, store: TileStore, group_id: str) -> None:
        """Keep in a store which tensors the group is made of, for `TileStore.open_group`.

        What is stored names the tensors by their ids; their pixels stay where they are. Saving an equal group again
        changes nothing.

        Parameters
        ----------
        store : TileStore
            Where. Tensors may be in other stores, which `open_group` is then told of.
        group_id : str
            The name under which it is found again. It has nothing to do with the ids of tensors.

        Raises
        ------
        ValidationError
            If a tensor was made without a `tensor_id`, the store is read-only, or it holds another group of that id.
        StoreError
            If it cannot be stored.
        """
        save_group(self._members, store, group_id)

    def align(self, region: object) -> tuple[slice | int, ...]:
        """The smallest region around one that begins and ends with whole pixels of every tensor, or with the group.

        What is read of one of them lies there.

        Parameters
        ----------
        region
            As ``group[...]`` takes it, without a step.

        Returns
        -------
        tuple of (slice or int)
            Ints stay as they are.
        """
        selection = self._plain(region)
        found: list[slice | int] = []
        for d, (start, stop) in enumerate(zip(selection.start, selection.stop, strict=True)):
            unit = unit_of(self._members, d)
            if d in selection.squeezed:
                found.append(start)
            else:
                end, extent = -(-stop // unit) * unit, self.shape[d]
                found.append(slice(start // unit * unit, end if extent is None else min(end, extent)))
        return tuple(found)

    def _plain(self, region: object) -> Selection:
        selection = parse(region, self.shape)
        if selection.steps.count(1) < self.ndim:
            raise ValidationError(f"a step is not possible here, got {quoted(region)}")
        return selection

    def to(self, device: torch.device | str | int) -> Self:
        """Move all tensors to another device, in place; see `InfiniteTensor.to`.

        Raises
        ------
        ValidationError
            If one of them cannot be moved; none has moved then.
        """
        if isinstance(device, torch.dtype):
            raise ValidationError(f"a group moves to another device only, got {device}; move its tensors one by one")
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

    def coverage(self, region: object, state: str | None = None, where: object = None) -> dict[str, Any]:
        """What `InfiniteTensor.coverage` returns of each tensor, nested as the group is.

        Tensors may have tiles of different sizes, so it is no TensorDict.
        """
        requests = zip(self._members, self._requests(region, where), strict=True)
        return nested((key, coverage(request, state)) for key, request in requests)

    def stored_only(self, fill_value: Number | Mapping[Any, Any] = 0) -> StoredOnlyGroup:
        """A view of what is stored of all tensors, which never computes.

        Parameters
        ----------
        fill_value : number, or mapping from keys to them
            What stands where a tile of a tensor is missing. Default, also for tensors that a mapping does not name: 0.

        Returns
        -------
        StoredOnlyGroup
            It is read as the group is, by regions.

        Raises
        ------
        ValidationError
            If the dtype of a tensor has no such value, or a key is not in the group.
        """
        return StoredOnlyGroup(self._members, fill_value, self.device)

    def clear_cache(self) -> None:
        """Drop from memory what can be had again, of all tensors, after storing what is pending."""
        for member in self._members.values():
            member.tensor.clear_cache()

    def as_zarr(self, region: object = None) -> zarr.Group:
        """A read-only Zarr group of the tensors, nested as this group is, whose chunks are computed when they are read.

        Parameters
        ----------
        region : optional
            Which pixels: a slice for each shared dimension, in pixels of the group; of the other dimensions of a
            tensor, all. Default: all of each tensor, as of `InfiniteTensor.as_zarr`.

        Returns
        -------
        zarr.Group
            An array per tensor, as of `InfiniteTensor.as_zarr`. xarray opens it as
            ``xarray.open_zarr(group.as_zarr().store)``, or, if groups nest, as
            ``xarray.open_datatree(group.as_zarr().store, engine="zarr")``. Arrays share a dimension that has the same
            name, pixels and scale in both; otherwise its name in the later array begins with the key of that tensor,
            as in ``coarse_y``.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of the group.
        ValidationError
            If it is empty, or has a step, or an int in place of a slice; or if a key cannot be a path in Zarr.
        """
        # What is seen of a group stands on groups.
        from infinite_tensor.views.face import zarr_of_members  # noqa: PLC0415

        selection = None if region is None else parse(region, self.shape)
        return zarr_of_members(self._cut(selection))

    def export(
        self,
        region: object,
        target: str | os.PathLike[str],
        *,
        compute: bool = True,
        fill_value: Number | None = None,
        overwrite: bool = False,
        storage_options: dict[str, Any] | None = None,
        workers: int | None = None,
        progress: bool | str | Watcher = True,
    ) -> None:
        """Write a region of all tensors to a Zarr group, an array of each, nested as this group is.

        They are written one after the other: `fill` a region first if they share what takes long to compute and is not
        stored.

        Parameters
        ----------
        region
            A slice for each shared dimension, in pixels of the group; of the other dimensions of a tensor, all.
        target : str or path
            A path or an fsspec URL that ends in ``.zarr``.
        compute, fill_value, overwrite, storage_options, workers, progress
            As for `InfiniteTensor.export`. Dimensions have the names that `as_zarr` gives them.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of the group.
        ValidationError
            If an argument does not fit, or there is something at the target.
        StoreError
            If something cannot be written or read.
        """
        # What is written of a group stands on groups.
        from infinite_tensor.views.exports.export import Options, export_members  # noqa: PLC0415

        members = self._cut(self._plain(region))
        options = Options(compute, fill_value, None, overwrite, storage_options, workers, progress)
        export_members(members, target, options)

    def _cut(self, region: Selection | None) -> dict[Key, tuple[InfiniteTensor, Selection | None, Sequence[Fraction]]]:
        """Its tensors, each with what it has of a region and its scale per dimension."""
        return {
            key: (member.tensor, None if region is None else member.selection(region), member.scale_of_all)
            for key, member in self._members.items()
        }

    def _requests(self, region: object, where: object = None) -> list[Request]:
        selection = parse(region, self.shape)._replace(steps=(1,) * self.ndim)
        mask = placed(where, names_of_shared(self._members), selection)
        return [
            Request(
                member.tensor,
                member.selection(selection),
                None if mask is None else mask.on_member(member.dims, member.scale),
            )
            for member in self._members.values()
        ]

    def _tensors(self) -> list[InfiniteTensor]:
        return [member.tensor for member in self._members.values()]

    if TYPE_CHECKING:
        # `predict` returns a tensor or a group, and who asks for what a tensor has knows which it is.
        def __getattr__(self, name: str) -> Any: ...

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference, as tensors are."""
        return self._of_members, (self._members,)

    def _repr_html_(self) -> str:
        # What is seen of a group stands on groups.
        from infinite_tensor.views.showing import html_of_group  # noqa: PLC0415

        return html_of_group(self)

    def __repr__(self) -> str:
        lines = [_line(member) for member in self._members.values()]
        return f"{type(self).__name__}(shape={self.shape}, tensors:\n    " + "\n    ".join(lines) + ")"


def group_of_outputs(tensors: Mapping[Key, InfiniteTensor]) -> TensorGroup:
    """The outputs of one ``f``, by their keys; see `InfiniteTensor.from_multi`."""
    return TensorGroup._of_members(outputs_of(tensors))  # noqa: SLF001  (its own)


def open_group(
    store: TileStore,
    group_id: str,
    f: Mapping[Any, Callable[..., Any]] | None,
    members: Mapping[Any, InfiniteTensor] | None,
    stores: Sequence[TileStore],
    device: torch.device | str,
) -> TensorGroup:
    """`TileStore.open_group`; see there."""
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
    said = f"{member.tensor.shape} {member.tensor.dtype}, shares {list(member.dims)}{shown_scale(member.scale)}"
    return f"{show(member.key)}: {said}"
