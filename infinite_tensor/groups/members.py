"""Members of a group: tensors with shared dimensions and scales.

Members can be saved in a store, and opened again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import torch

from infinite_tensor.engine import assemble, compiled
from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import RegionError, StoreError, ValidationError
from infinite_tensor.geometry.periodic import is_endless, scaled_extent
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.geometry.window import Shape, WindowGrid, coordinates_of, followed
from infinite_tensor.support.given import array_advice, as_index, as_ratio, checked_id, quoted
from infinite_tensor.support.nested import Key, chosen, named_leaves, nested, show
from infinite_tensor.tensor import InfiniteTensor, as_tensors
from infinite_tensor.tilestore import TileStore
from infinite_tensor.tilestore.messages import damaged_group
from infinite_tensor.tilestore.store import contents_of
from infinite_tensor.values.definition import default_name


@dataclass(frozen=True)
class GroupMember:
    """One tensor of a group.

    Attributes
    ----------
    key : Key
        Its name.
    tensor : InfiniteTensor
        The tensor.
    dims : tuple of int
        The shared dimensions of the tensor. Entry d is the dimension that corresponds to dimension d of the group.
    scale : tuple of Fraction
        Per shared dimension, how many pixels of the tensor lie along one pixel of the group.
    """

    key: Key
    tensor: InfiniteTensor
    dims: tuple[int, ...]
    scale: tuple[Fraction, ...]

    @property
    def rest(self) -> tuple[int, ...]:
        """The dimensions not shared with the group."""
        return tuple(d for d in range(self.tensor.ndim) if d not in self.dims)

    @property
    def scale_of_all(self) -> tuple[Fraction, ...]:
        """The scale of each dimension of the tensor.

        Dimensions not shared with the group have scale 1.
        """
        shared = dict(zip(self.dims, self.scale, strict=True))
        return tuple(shared.get(d, Fraction(1)) for d in range(self.tensor.ndim))

    def selection(self, region: Selection) -> Selection:
        """Convert a region of the group to a region of the tensor.

        The result is rounded outwards to whole pixels.

        Raises
        ------
        RegionError
            If an int does not select a single pixel of the tensor, or there is a step in a dimension with a scale.
        """
        entries = [slice(0, n) for n in self.tensor.shape]
        steps, squeezed = [1] * self.tensor.ndim, []
        for d, own in enumerate(self.dims):
            entries[own] = self._pixels(d, region)
            steps[own] = region.steps[d]
            if d in region.squeezed:
                squeezed.append(own)
        box = parse(tuple(entries), self.tensor.shape, node_of(self.tensor).spec.labels)
        return box._replace(steps=tuple(steps), squeezed=tuple(sorted(squeezed)))

    def _pixels(self, d: int, region: Selection) -> slice:
        start, stop, scale = region.start[d], region.stop[d], self.scale[d]
        if scale == 1 or start == stop:
            return slice(start, stop)
        if region.steps[d] != 1:
            raise self._misfit(
                d,
                f"a step of {region.steps[d]} cannot be scaled; read the region without a step, or read each tensor "
                "by itself",
            )
        if d in region.squeezed and scale.numerator != 1:
            raise self._misfit(d, f"pixel {start} of the group is not a single pixel of this tensor; give a slice")
        pixels, per = scale.numerator, scale.denominator
        return slice(start * pixels // per, -(-stop * pixels // per))

    def _misfit(self, d: int, problem: str) -> RegionError:
        return RegionError(f"dimension {d}: {show(self.key)} has scale {self.scale[d]}, and {problem}")

    def arranged(self, result: torch.Tensor, squeezed: Sequence[int]) -> torch.Tensor:
        """Permute a result to begin with the shared dimensions, in the order of the group."""
        gone = {self.dims[d] for d in squeezed}
        kept = [d for d in range(self.tensor.ndim) if d not in gone]
        return result.permute([kept.index(d) for d in (*self.dims, *self.rest) if d not in gone])


Members: TypeAlias = Mapping[Key, GroupMember]


def members_of(
    given: Mapping[Key, InfiniteTensor | GroupMember], dims: object, scale: object
) -> dict[Key, GroupMember]:
    """Create the members of a group.

    Parameters
    ----------
    given : mapping from Key to InfiniteTensor or GroupMember
        The tensors. A member of another group keeps its dimensions, and its scale is multiplied by the new one.
    dims, scale : object
        As for `TensorGroup`.

    Raises
    ------
    ValidationError
        If an argument is not valid.
    """
    tensors: dict[Key, InfiniteTensor] = {}
    wanted, scales = chosen("dims", dims, given, None), chosen("scale", scale, given, 1)
    for key, value in given.items():
        (tensor,) = as_tensors([value.tensor if isinstance(value, GroupMember) else value])
        tensors[key] = tensor
        if not isinstance(tensor, InfiniteTensor):
            raise ValidationError(
                f"{show(key)} must be an InfiniteTensor, or a mapping of them, got {quoted(tensor)}"
                f"{array_advice(tensor)}"
            )
        if isinstance(value, GroupMember) and wanted[key] is None:
            wanted[key] = value.dims
    shared = {
        key: _unbounded(tensor) if wanted[key] is None else _checked_dims(key, tensor, wanted[key])
        for key, tensor in tensors.items()
    }
    _check_as_many(tensors, shared, wanted)
    members = {}
    for key, value in given.items():
        factors = _checked_scale(key, scales[key], len(shared[key]))
        before = value.scale if isinstance(value, GroupMember) else (Fraction(1),) * len(factors)
        both = tuple(a * b for a, b in zip(factors, before, strict=True))
        members[key] = GroupMember(key, tensors[key], shared[key], both)
    return members


def unit_of(members: Members, d: int) -> int:
    """Return the length of the smallest region with whole pixels of all tensors.

    The length is in pixels of the group, along dimension `d`. For tensors with the scales 1 and 1/8, it is 8. Regions
    that start and stop at multiples of this length cut through no pixel.
    """
    return math.lcm(*(member.scale[d].denominator for member in members.values()))


def read_members(
    members: Members, regions: Sequence[Selection], workers: int | None
) -> Iterator[dict[Key, torch.Tensor]]:
    """Read regions of all members together.

    For each region, yield a dict with the pixels of each tensor. The shared dimensions come first.
    """
    requests = [
        (node_of(member.tensor), [member.selection(region) for region in regions]) for member in members.values()
    ]
    read_together = compiled.read_together if torch.compiler.is_compiling() else assemble.read_together
    for region, *of_each in zip(regions, *read_together(requests, workers), strict=True):
        each = zip(members.items(), of_each, strict=True)
        yield {key: member.arranged(result, region.squeezed) for (key, member), result in each}


def check_extents(members: Members) -> None:
    """Check that all members end in the same pixel of the group, along each shared dimension.

    Raise ValidationError if not.
    """
    shape = shape_of(members)
    ends = [each for member in members.values() for each in zip(_extents(member), member.scale, shape, strict=True)]
    # The last pixel of a member may reach past the end of the group.
    if all((n is None is end) or (n is not None and end is not None and n - 1 / scale < end) for n, scale, end in ends):
        return
    found = ", ".join(f"{show(key)} has {_text(_extents(member))}" for key, member in members.items())
    raise ValidationError(
        "the tensors of a group must have the same extent along shared dimensions, in pixels of the group, but "
        f"{found}; give dims=... or scale=..."
    )


def shape_of(members: Members) -> Shape:
    """Return the extent of each shared dimension, in pixels of the group.

    The group ends at the end of its shortest member.
    """
    extents = [
        [scaled_extent(member.tensor.shape[own], 1 / n) for own, n in zip(member.dims, member.scale, strict=True)]
        for member in members.values()
    ]
    known = [[n for n in of_members if n is not None] for of_members in zip(*extents, strict=True)]
    # A group goes around where all of its members do.
    return tuple([min(numbers, key=lambda n: (int(n), is_endless(n))) if numbers else None for numbers in known])


def names_of_shared(members: Members) -> tuple[str, ...]:
    """Return the name of each shared dimension.

    A dimension has a default name if members give no name, or different names.
    """
    found = []
    for d, owns in enumerate(zip(*(member.dims for member in members.values()), strict=True)):
        each = zip(members.values(), owns, strict=True)
        names = {member.tensor.dims[own] for member, own in each if member.tensor.dims[own] != default_name(own)}
        found.append(names.pop() if len(names) == 1 else default_name(d))
    return tuple(found)


def outputs_of(tensors: Mapping[Key, InfiniteTensor]) -> dict[Key, GroupMember]:
    """Create a group member for each output of an ``f``.

    The outputs share a dimension for each entry of the window index. Entries are left out if a single window covers
    the whole dimension in every output, as for channels. No entries are left out if the `dimension_map` of any output
    contains None.

    The scale is the stride divided by the stride of the first output.
    """
    grids = [node_of(tensor).spec.grid for tensor in tensors.values()]
    has_map = any(None in followed(grid.window) for grid in grids)
    coordinates = range(coordinates_of(grids[0].window))
    shared = [k for k in coordinates if has_map or not all(_is_whole(grid, k) for grid in grids)]
    members: dict[Key, GroupMember] = {}
    strides: list[int] = []
    for key, tensor in tensors.items():
        window = tensor.output_window
        dims = tuple(map(followed(window).index, shared))
        strides = strides or [window.stride[d] for d in dims]
        scale = tuple(Fraction(window.stride[d], stride) for d, stride in zip(dims, strides, strict=True))
        members[key] = GroupMember(key, tensor, dims, scale)
    return members


def _is_whole(grid: WindowGrid, k: int) -> bool:
    """Return whether a single window covers a whole dimension.

    `k` is the position of the dimension in the window index.
    """
    d = followed(grid.window).index(k)
    return grid.first[k] == grid.last[k] and grid.window.size[d] == grid.shape[d]


def _extents(member: GroupMember) -> tuple[Fraction | None, ...]:
    extents = [member.tensor.shape[own] for own in member.dims]
    return tuple(None if n is None else n / scale for n, scale in zip(extents, member.scale, strict=True))


def _text(extents: Sequence[Fraction | None]) -> str:
    return f"({', '.join('None' if extent is None else str(extent) for extent in extents)})"


def scale_text(scale: Sequence[Fraction]) -> str:
    """Return a text for messages, such as ``, scale 1/8 x 1/8``.

    The text is empty for scale 1.
    """
    return f", scale {' x '.join(map(str, scale))}" if set(scale) - {1} else ""


def _unbounded(tensor: InfiniteTensor) -> tuple[int, ...]:
    return tuple(d for d, extent in enumerate(tensor.shape) if extent is None)


def _check_as_many(
    tensors: Mapping[Key, InfiniteTensor], shared: Mapping[Key, tuple[int, ...]], wanted: Mapping[Key, object]
) -> None:
    counts = {len(dims) for dims in shared.values()}
    unsaid = [key for key in tensors if wanted[key] is None]
    if len(counts) > 1 or (0 in counts and unsaid):
        found = "; ".join(f"{show(key)} of shape {tensors[key].shape} shares {list(shared[key])}" for key in tensors)
        raise ValidationError(
            f"the tensors of a group must share dimensions, and all share the same number of dimensions, but {found}. "
            "By default, unbounded dimensions are shared; give dims=... to share others"
        )
    for key in tensors:
        inner = [d for d in _unbounded(tensors[key]) if d not in shared[key]]
        if inner:
            raise ValidationError(
                f"{show(key)} of shape {tensors[key].shape} is unbounded in dimension {inner[0]}, but unbounded "
                f"dimensions must be shared; add {inner[0]} to its dims {shared[key]}"
            )


def _checked_dims(key: Key, tensor: InfiniteTensor, given: object) -> tuple[int, ...]:
    numbers = [as_index(number) for number in given] if isinstance(given, tuple | list) else [None]
    dims = [d % tensor.ndim for d in numbers if d is not None and -tensor.ndim <= d < tensor.ndim]
    if len(dims) < len(numbers) or len(set(dims)) < len(dims):
        raise ValidationError(
            f"dims of {show(key)} must be a tuple of dimensions of a tensor of shape {tensor.shape}, without "
            f"repetition, got {quoted(given)}"
        )
    return tuple(dims)


def _checked_scale(key: Key, given: Any, count: int) -> tuple[Fraction, ...]:
    entries = list(given) if isinstance(given, tuple | list) else [given] * count
    scales = [as_ratio(entry) for entry in entries]
    if len(scales) != count or None in scales:
        raise ValidationError(
            f"scale of {show(key)} must be a positive number such as Fraction(1, 8), 0.125 or 2, or a tuple of {count} "
            f"such numbers, got {quoted(given)}; give the number of pixels of this tensor per pixel of the group"
        )
    return tuple(scale for scale in scales if scale is not None)


FORMAT = 1
"""Version of the stored form of a group. Later versions are refused."""

_RATIO = re.compile(r"[1-9][0-9]{0,9}(/[1-9][0-9]{0,9})?")


@dataclass(frozen=True)
class StoredMember:
    """A tensor of a group, as saved in a store.

    Attributes
    ----------
    key : Key
        Its name in the group.
    tensor_id : str
        Its id in a store.
    digest : str
        The digest of its definition.
    dims : tuple of int
        As for `GroupMember`.
    scale : tuple of Fraction
        As for `GroupMember`.
    """

    key: Key
    tensor_id: str
    digest: str
    dims: tuple[int, ...]
    scale: tuple[Fraction, ...]

    @classmethod
    def of(cls, member: GroupMember) -> StoredMember:
        """Create the stored form of a member."""
        return cls(member.key, member.tensor.tensor_id, digest_of(member.tensor), member.dims, member.scale)

    @classmethod
    def from_json(cls, stored: object) -> StoredMember:
        """Read a member from untrusted JSON.

        Raise ValidationError if the JSON is invalid.
        """
        match stored:
            case {
                "key": list(key),
                "tensor_id": str(tensor_id),
                "digest": str(digest),
                "dims": list(dims),
                "scale": list(scale),
            }:
                names = [name for name in key if isinstance(name, str) and name]
                ratios = [ratio for ratio in scale if isinstance(ratio, str) and _RATIO.fullmatch(ratio)]
                numbers = [number for number in dims if type(number) is int]
                if names and tensor_id and (names, numbers, ratios) == (key, dims, scale):
                    return cls(tuple(names), tensor_id, digest, tuple(numbers), tuple(map(Fraction, ratios)))
        raise ValidationError(f"{stored!r:.200} is not a tensor of a group")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for a store."""
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return listed | {"scale": list(map(str, self.scale))}


def digest_of(tensor: InfiniteTensor) -> str:
    """Return the digest of a tensor's definition.

    Different tensors with the same id have different digests.
    """
    return node_of(tensor).spec.definition.digest


def save_group(members: Members, store: TileStore, group_id: str) -> None:
    """See `TensorGroup.save`."""
    if not isinstance(store, TileStore):
        raise ValidationError(f"store must be a TileStore, got {quoted(store)}")
    group_id = checked_id(group_id, "group_id")
    for member in members.values():
        if not node_of(member.tensor).tensor.named:
            raise ValidationError(
                f"{show(member.key)} of the group must have a tensor_id to be reopened; create the tensor with "
                f"tensor_id=..., or save group.exclude({show(member.key)})"
            )
    given = {key: StoredMember.of(member) for key, member in members.items()}
    listed = [member.to_json() for member in given.values()]
    stored = contents_of(store).store_group(group_id, {"format": FORMAT, "group_id": group_id, "members": listed})
    found = stored_members(store, group_id, stored)
    if found != given:
        differing = [key for key in {**found, **given} if found.get(key) != given.get(key)]
        lines = "".join(
            f"\n  {show(key)}: stored {_line(found.get(key))}, given {_line(given.get(key))}" for key in differing
        )
        raise ValidationError(
            f"{store} already contains a group {group_id!r} of other tensors:{lines}\nGive another group_id, or delete "
            f"the stored group with store.clear_group({group_id!r}); the tensors stay."
        )


def _line(member: StoredMember | None) -> str:
    if member is None:
        return "nothing"
    return f"tensor {member.tensor_id!r} ({member.digest[:8]}), dims {list(member.dims)}{scale_text(member.scale)}"


def stored_members(store: TileStore, group_id: str, stored: Mapping[str, Any] | None) -> dict[Key, StoredMember]:
    """Read the members of a stored group from untrusted JSON.

    Raise StoreError if the group is missing, damaged, or stored by a later version of the format.
    """
    if stored is None:
        if group_id in store:
            hint = f"{group_id!r} is a tensor: call store.open({group_id!r})"
        else:
            hint = f"the groups are {store.group_ids()}"
        raise StoreError(f"{store} contains no group {group_id!r}; {hint}")
    try:
        version, members = stored.get("format"), stored.get("members")
        if type(version) is not int or version < 1:
            raise ValidationError(f"the format is {version!r:.200}")
        if version > FORMAT:
            raise StoreError(
                f"{store}: group {group_id!r} has format {version}, this version reads up to {FORMAT}; open it "
                "with a later version of this library"
            )
        if not isinstance(members, list) or not members:
            raise ValidationError(f"the members are {members!r:.200}")
        parts = [StoredMember.from_json(member) for member in members]
        # Nesting orders the names and refuses duplicates.
        found = dict(named_leaves(nested([(part.key, part) for part in parts])))
    except ValidationError as error:
        raise damaged_group(store, group_id, "its definition", error) from error
    return found


def opened_tensor(
    group_id: str, stored: StoredMember, stores: Sequence[TileStore], f: Callable[..., Any] | None, device: torch.device
) -> InfiniteTensor:
    """Open a tensor of a group from the first store containing the tensor.

    Raise StoreError if no store contains the tensor.
    """
    problems = []
    for store in stores:
        try:
            tensor = store.open(stored.tensor_id, f, device=device)
        except StoreError as error:
            problems.append(str(error))
            continue
        if digest_of(tensor) == stored.digest:
            return tensor
        problems.append(f"{store} contains a tensor {stored.tensor_id!r} with another definition")
    listed = "".join(f"\n  {problem}" for problem in problems)
    raise StoreError(
        f"{show(stored.key)} of group {group_id!r}, tensor {stored.tensor_id!r}, cannot be opened:{listed}\n"
        "Give the store of this tensor in stores=[...], or the tensor in members={...}"
    )


def checked_tensor(group_id: str, stored: StoredMember, given: object) -> InfiniteTensor:
    """Return `given` after checking its definition against the stored definition.

    Raise ValidationError if `given` is no tensor, or has another definition.
    """
    if not isinstance(given, InfiniteTensor):
        raise ValidationError(f"members must contain InfiniteTensors, got {quoted(given)} for {show(stored.key)}")
    if digest_of(given) != stored.digest:
        raise ValidationError(
            f"members[{show(stored.key)}] must have the stored definition of tensor {stored.tensor_id!r} in group "
            f"{group_id!r}, got tensor {given.tensor_id!r} with another definition; give another tensor, or leave "
            f"{show(stored.key)} out of members"
        )
    return given
