"""TensorDicts with a region of a group: in memory, from stored tiles, or as files.

The package tensordict is imported only when needed.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import InfiniteTensorError, StoreError, ValidationError
from infinite_tensor.filling.readable import Readable
from infinite_tensor.filling.stored_only import stored_pixels
from infinite_tensor.geometry.points import with_entry
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.groups.members import GroupMember, Members, read_members, shape_of, unit_of
from infinite_tensor.support.disks import allocate_file, beside, check_free, publish, remove, synchronize
from infinite_tensor.support.nested import Key, chosen, show
from infinite_tensor.values.definition import Number, pixel_value

if TYPE_CHECKING:
    from tensordict import TensorDict

_BLOCK_BYTES = 2**25
"""Bytes to read and write at a time, for all tensors together."""


def import_tensordict() -> Any:
    """Import the package tensordict.

    Raises
    ------
    ImportError
        If the package is not installed.
    """
    try:
        import tensordict  # noqa: PLC0415  (only groups that are read need it)
    except ImportError as error:
        raise ImportError(
            "reading a region of a TensorGroup needs the package tensordict: pip install tensordict"
        ) from error
    return tensordict


def batch_size(members: Sequence[GroupMember], results: Sequence[torch.Tensor], squeezed: Sequence[int]) -> list[int]:
    """Return the extents of the leading dimensions, for the batch size of a TensorDict.

    All results have the same resolution and extent in these dimensions. Dimensions squeezed by an int are left out.
    """
    first = members[0]
    extents: list[int] = []
    for d in range(len(first.dims)):
        if d in squeezed:
            continue
        extent = results[0].shape[len(extents)]
        same = [result.shape[len(extents)] == extent for result in results]
        if not all(same) or any(member.scale[d] != first.scale[d] for member in members):
            break
        extents.append(extent)
    return extents


def assembled(
    members: Members, results: Mapping[Key, torch.Tensor], region: Selection, device: torch.device | None
) -> TensorDict:
    """Nest the results of a read in a TensorDict.

    Every level has the largest possible batch size.
    """
    kind = import_tensordict().TensorDict

    def level(depth: int, keys: Sequence[Key]) -> Any:
        entries: dict[str, Any] = {}
        for name in dict.fromkeys(key[depth] for key in keys):
            within = [key for key in keys if key[depth] == name]
            ends = len(within[0]) == depth + 1
            entries[name] = results[within[0]] if ends else level(depth + 1, within)
        size = batch_size([members[key] for key in keys], [results[key] for key in keys], region.squeezed)
        return kind(entries, batch_size=size, device=device)

    return level(0, list(members))  # type: ignore[no-any-return]


class StoredOnlyGroup(Readable["TensorDict"]):
    """A view of the stored pixels of a group.

    The view is read like the group, and never computes. Each tensor shows the same pixels as its
    `InfiniteTensor.stored_only`. For a single tensor, use ``group[key].stored_only()``.
    """

    def __init__(self, members: Members, fill_value: Number | Mapping[Any, Any], device: torch.device | None) -> None:
        self._members = members
        self._device = device
        self._fill_values: dict[Key, Number] = chosen("fill_value", fill_value, members, 0)
        for key, value in self._fill_values.items():
            pixel_value(f"fill_value of {show(key)}", value, members[key].tensor.dtype)

    def _read(self, regions: Sequence[object], _workers: int | None) -> Sequence[TensorDict]:
        import_tensordict()
        shape = shape_of(self._members)
        return [self._pixels(parse(region, shape)) for region in regions]

    def _pixels(self, region: Selection) -> TensorDict:
        results = {}
        for key, member in self._members.items():
            pixels = stored_pixels(node_of(member.tensor), member.selection(region), self._fill_values[key])
            results[key] = member.arranged(pixels, region.squeezed)
        return assembled(self._members, results, region, self._device)

    def __repr__(self) -> str:
        values = ", ".join(f"{show(key)}: {value!r}" for key, value in self._fill_values.items())
        return f"StoredOnlyGroup(shape={shape_of(self._members)}, fill values: {values})"


# Files.


def save_tensordict(members: Members, region: Selection, path: Path, workers: int | None, *, overwrite: bool) -> None:
    """See `TensorGroup.save_tensordict`."""
    with _explained(path):
        check_free(
            path, lambda path: (path / "meta.json").is_file(), "is not a memory-mapped TensorDict", overwrite=overwrite
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = beside(path)
        # Before writing, refuse names with invalid Unicode and names not allowed by the file system.
        "".join(itertools.chain.from_iterable(members)).encode()
        with suppress(FileNotFoundError):
            os.lstat(unfinished)
    try:
        with _explained(path):
            sample = {key: _empty(member, region) for key, member in members.items()}
            files = _created(unfinished, members, sample, region)
        for block in _blocks(members, region):
            (results,) = read_members(members, [block], workers)
            with _explained(path):
                for key, name in files.items():
                    # Map again for each block, because written pages would stay in memory.
                    like, found = sample[key], results[key]
                    mapped = torch.from_file(name, shared=True, size=like.numel(), dtype=like.dtype)
                    mapped.view(like.shape)[_place(members[key], region, block, found.ndim)] = found.cpu()
        with _explained(path):
            synchronize(unfinished)
            publish(unfinished, path, overwrite=overwrite)
    finally:
        remove(unfinished)


def _created(folder: Path, members: Members, sample: Mapping[Key, torch.Tensor], region: Selection) -> dict[Key, str]:
    """Create the files of a memory-mapped TensorDict in full size, still without pixels.

    Return the name of each file. Tensors without pixels have no file.
    """
    skeleton: Any = assembled(members, sample, region, torch.device("cpu")).memmap_like(folder)
    names = {key: skeleton.get(key).filename for key, tensor in sample.items() if tensor.numel()}
    found = type(skeleton).load_memmap(folder)
    lost = [show(key) for key in members if key not in found.keys(True)]
    if lost:
        raise ValidationError(
            f"tensordict keeps its own facts beside tensors called {' and '.join(lost)}, and would lose these tensors; "
            f"rename them, as in TensorGroup({{'another': group[{lost[0]}]}})"
        )
    del skeleton, found
    for name in names.values():
        allocate_file(Path(name))
    return names


def _blocks(members: Members, region: Selection) -> Iterator[Selection]:
    """Split a region into small blocks. No split cuts through a pixel of any tensor."""
    nbytes = sum(math.prod(each.selection(region).shape) * each.tensor.dtype.itemsize for each in members.values())
    for d, (start, stop) in enumerate(zip(region.start, region.stop, strict=True)):
        unit = unit_of(members, d)
        middle = (start + stop) // (2 * unit) * unit
        if nbytes > _BLOCK_BYTES and start < middle < stop:
            yield from _blocks(members, region._replace(stop=with_entry(region.stop, d, middle)))
            yield from _blocks(members, region._replace(start=with_entry(region.start, d, middle)))
            return
    yield region


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Replace errors from writing by errors with the path in the message."""
    try:
        yield
    except InfiniteTensorError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        message = f"cannot write {str(path)!r}: {type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            message += "; give a shorter path, or give the tensors shorter names: files are named after tensors"
            raise ValidationError(message) from error
        raise (ValidationError if isinstance(error, ValueError) else StoreError)(message) from error


def _empty(member: GroupMember, region: Selection) -> torch.Tensor:
    """Return a tensor with the shape and dtype of a result, without using memory."""
    box = torch.zeros((), dtype=member.tensor.dtype, device="cpu").expand(member.selection(region).shape)
    squeezed = [member.dims[d] for d in region.squeezed]
    return member.arranged(box[tuple(0 if d in squeezed else slice(None) for d in range(box.ndim))], region.squeezed)


def _place(member: GroupMember, region: Selection, block: Selection, ndim: int) -> tuple[slice, ...]:
    whole, part = member.selection(region), member.selection(block)
    shared = [own for d, own in enumerate(member.dims) if d not in region.squeezed]
    at = [slice(part.start[own] - whole.start[own], part.stop[own] - whole.start[own]) for own in shared]
    return (*at, *[slice(None)] * (ndim - len(at)))
