"""A region of a group as a memory-mapped TensorDict, which tensordict opens by itself."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from infinite_tensor.errors import InfiniteTensorError, StoreError, ValidationError
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.groups.members import GroupMember, Members, read_members, unit_of
from infinite_tensor.groups.tensordicts import assembled
from infinite_tensor.support.disks import allocate_file, publish, remove, synchronize
from infinite_tensor.support.nested import Key, show

_BLOCK_BYTES = 2**25
"""How much is read and written at a time, of all tensors together."""


def save_tensordict(members: Members, region: Selection, path: Path, workers: int | None, *, overwrite: bool) -> None:
    """`TensorGroup.save_tensordict`; see there."""
    _check_encodable(members)
    with _explained(path):
        _check_free(path, overwrite=overwrite)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
        _check_nameable(unfinished)
    try:
        with _explained(path):
            files = _Files(unfinished, members, region)
        for block in _blocks(region, _extents(members, region)):
            (results,) = read_members(members, [block], workers)
            with _explained(path):
                for key, result in results.items():
                    files.write(key, _place(members[key], region, block, result.ndim), result.cpu())
        with _explained(path):
            synchronize(unfinished)
            publish(unfinished, path, overwrite=overwrite)
    finally:
        remove(unfinished)


class _Files:
    """The files of a memory-mapped TensorDict, created without content.

    Parameters
    ----------
    folder : Path
        Where they are created.
    members : Members
        The tensors.
    region : Selection
        What is written of them.
    """

    def __init__(self, folder: Path, members: Members, region: Selection) -> None:
        self._sample = {key: _empty(member, region) for key, member in members.items()}
        skeleton: Any = assembled(members, self._sample, region, torch.device("cpu")).memmap_like(folder)
        self._names = {key: skeleton.get(key).filename for key, tensor in self._sample.items() if tensor.numel()}
        del skeleton
        for name in self._names.values():
            allocate_file(Path(name))

    def write(self, key: Key, at: tuple[slice, ...], block: torch.Tensor) -> None:
        """Write a block of a tensor."""
        like = self._sample[key]
        # Mapped again each time, so that what has been written does not stay in memory.
        mapped = torch.from_file(self._names[key], shared=True, size=like.numel(), dtype=like.dtype)
        mapped.view(like.shape)[at] = block


def _blocks(region: Selection, extents: Sequence[int]) -> Iterator[Selection]:
    """A region in blocks of these extents, in lexicographic order."""
    cuts = [
        [(a, min(a + n, stop)) for a in range(start, stop, max(1, n))]
        for start, stop, n in zip(region.start, region.stop, extents, strict=True)
    ]
    for block in itertools.product(*cuts):
        yield region._replace(start=tuple(a for a, _ in block), stop=tuple(b for _, b in block))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Name the path in what the file system, or the library that writes, refuses."""
    try:
        yield
    except InfiniteTensorError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        message = f"cannot write {str(path)!r}: {type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            message += "; give a shorter name: those of the tensors become names of files too"
            raise ValidationError(message) from error
        raise (ValidationError if isinstance(error, ValueError) else StoreError)(message) from error


def _empty(member: GroupMember, region: Selection) -> torch.Tensor:
    """A tensor of the shape and dtype of what is read of a member, which takes no memory."""
    box = torch.zeros((), dtype=member.tensor.dtype, device="cpu").expand(member.selection(region).shape)
    squeezed = [member.dims[d] for d in region.squeezed]
    return member.arranged(box[tuple(0 if d in squeezed else slice(None) for d in range(box.ndim))], region.squeezed)


def _extents(members: Members, region: Selection) -> list[int]:
    """Extents of a block in pixels of the group: whole pixels of every tensor, rows that lie together first."""
    extents = list(region.shape)
    for d in range(len(extents)):
        if _bytes(members, extents) <= _BLOCK_BYTES:
            break
        unit = 1 if d in region.squeezed else unit_of(members, d)
        least = _bytes(members, [*extents[:d], unit, *extents[d + 1 :]])
        extents[d] = min(extents[d], unit * max(1, _BLOCK_BYTES // max(1, least)))
    return extents


def _bytes(members: Members, extents: Sequence[int]) -> int:
    total = 0
    for member in members.values():
        size = member.tensor.dtype.itemsize
        for extent, scale in zip(extents, member.scale, strict=True):
            size *= -(-extent * scale.numerator // scale.denominator)
        for d in member.rest:
            size *= member.tensor.shape[d] or 1
        total += size
    return total


def _place(member: GroupMember, region: Selection, block: Selection, ndim: int) -> tuple[slice, ...]:
    """Where a block of a member lies in the whole of it."""
    whole, part = member.selection(region), member.selection(block)
    shared = [own for d, own in enumerate(member.dims) if d not in region.squeezed]
    at = [slice(part.start[own] - whole.start[own], part.stop[own] - whole.start[own]) for own in shared]
    return (*at, *[slice(None)] * (ndim - len(at)))


def _check_encodable(members: Members) -> None:
    for key in members:
        try:
            "".join(key).encode()
        except UnicodeEncodeError as error:
            raise ValidationError(f"{show(key)} is not valid Unicode, and cannot be the name of a file") from error


def _check_free(path: Path, *, overwrite: bool) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise ValidationError(f"there is something at {str(path)!r} already; give another path, or overwrite=True")
    if not (path / "meta.json").is_file() or path.is_symlink():
        raise ValidationError(f"what is at {str(path)!r} is no memory-mapped TensorDict, so it is not overwritten")


def _check_nameable(path: Path) -> None:
    """Fail where the file system allows no such name, before anything is written."""
    with suppress(FileNotFoundError):
        os.lstat(path)
