"""A region of a group as files that tensordict opens by itself."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from infinite_tensor.errors import InfiniteTensorError, StoreError, ValidationError
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.groups.members import GroupMember, Members, read_members, unit_of
from infinite_tensor.groups.tensordicts import assembled, batch_size
from infinite_tensor.support.disks import allocate_file
from infinite_tensor.support.given import quoted
from infinite_tensor.support.nested import Key, show
from infinite_tensor.support.publishing import publish, remove, synchronize

_BLOCK_BYTES = 2**25
"""How much is read and written at a time, of all tensors together."""

Slices: TypeAlias = tuple[slice, ...]
Write: TypeAlias = Callable[[Key, Slices, torch.Tensor], None]


def save_tensordict(
    members: Members, region: Selection, path: Path, form: str, workers: int | None, *, overwrite: bool
) -> None:
    """`TensorGroup.save_tensordict`; see there."""
    if form not in _FORMS:
        raise ValidationError(f"format must be one of {', '.join(_FORMS)}, got {quoted(form)}")
    sample = {key: _empty(member, region) for key, member in members.items()}
    content = _Content(members, region, _extents(members, region), sample)
    _check_storable(sample, form)
    opened, mark = _FORMS[form]
    with _explained(path):
        _check_free(path, mark, form, overwrite=overwrite)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
        _check_nameable(unfinished)
    try:
        with ExitStack() as opening:
            with _explained(path):
                write = opening.enter_context(opened(unfinished, content))
            for block in content.blocks():
                (results,) = read_members(members, [block], workers)
                with _explained(path):
                    for key, result in results.items():
                        write(key, _place(members[key], region, block, result.ndim), result.cpu())
            with _explained(path):
                opening.close()
                synchronize(unfinished)
                publish(unfinished, path, overwrite=overwrite)
    finally:
        remove(unfinished)


@dataclass(frozen=True)
class _Content:
    """What is written: a region of some members, block by block, each of these `extents` in pixels of the group.

    Attributes
    ----------
    sample : dict of Key to torch.Tensor
        Tensors of the shapes and dtypes that are written, which take no memory.
    """

    members: Members
    region: Selection
    extents: list[int]
    sample: dict[Key, torch.Tensor]

    def blocks(self) -> Iterator[Selection]:
        """The region in blocks, in lexicographic order."""
        cuts = [
            [(a, min(a + n, stop)) for a in range(start, stop, max(1, n))]
            for start, stop, n in zip(self.region.start, self.region.stop, self.extents, strict=True)
        ]
        for block in itertools.product(*cuts):
            yield self.region._replace(start=tuple(a for a, _ in block), stop=tuple(b for _, b in block))


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
            message += "; give a shorter name: those of the tensors become names of files too, but for format 'h5'"
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


def _place(member: GroupMember, region: Selection, block: Selection, ndim: int) -> Slices:
    """Where a block of a member lies in the whole of it."""
    whole, part = member.selection(region), member.selection(block)
    shared = [own for d, own in enumerate(member.dims) if d not in region.squeezed]
    at = [slice(part.start[own] - whole.start[own], part.stop[own] - whole.start[own]) for own in shared]
    return (*at, *[slice(None)] * (ndim - len(at)))


# The forms, each created whole and without content.


@contextmanager
def _memory_mapped(folder: Path, content: _Content) -> Iterator[Write]:
    sample = content.sample
    skeleton: Any = assembled(content.members, sample, content.region, torch.device("cpu")).memmap_like(folder)
    files = {key: skeleton.get(key).filename for key, tensor in sample.items() if tensor.numel()}
    del skeleton
    for file in files.values():
        allocate_file(Path(file))

    def write(key: Key, at: Slices, block: torch.Tensor) -> None:
        like = sample[key]
        # Mapped again each time, so that what has been written does not stay in memory.
        mapped = torch.from_file(files[key], shared=True, size=like.numel(), dtype=like.dtype)
        mapped.view(like.shape)[at] = block

    yield write


@contextmanager
def _hdf5(path: Path, content: _Content) -> Iterator[Write]:
    try:
        import h5py  # noqa: PLC0415  (only this form needs it)
    except ImportError as error:
        raise ImportError("format 'h5' needs the package h5py: pip install h5py") from error
    with h5py.File(path, "x") as file:
        for key, tensor in content.sample.items():
            file.create_dataset("/".join(key), tensor.shape, _numpy_dtype(tensor))

        def write(key: Key, at: Slices, block: torch.Tensor) -> None:
            file["/".join(key)][at] = block.numpy()

        yield write


@contextmanager
def _zarr(folder: Path, content: _Content) -> Iterator[Write]:
    import zarr  # noqa: PLC0415  (the same)
    from zarr.abc.store import Store  # noqa: PLC0415
    from zarr.storage import LocalStore  # noqa: PLC0415

    class Fresh(LocalStore):
        # Nobody else writes there, so it takes no hard links to create what is not there.
        set_if_not_exists = Store.set_if_not_exists

    root: Any = zarr.open_group(Fresh(folder), mode="w-")
    members, region = content.members, content.region
    levels = dict.fromkeys(key[:depth] for key in members for depth in range(len(key)))
    for level in levels:
        node = root.require_group("/".join(level)) if level else root
        within = [key for key in members if key[: len(level)] == level]
        samples = [content.sample[key] for key in within]
        # What tensordict itself writes; without it, it takes the dimensions that happen to have one extent.
        shared = batch_size([members[key] for key in within], samples, region.squeezed)
        node.attrs["__tensordict__"] = {"batch_size": shared, "version": 1}
    first = region._replace(stop=tuple(a + n for a, n in zip(region.start, content.extents, strict=True)))
    for key, tensor in content.sample.items():
        chunks = tuple(max(1, n) for n in _empty(members[key], first).shape)
        root.create_array("/".join(key), shape=tuple(tensor.shape), chunks=chunks, dtype=_numpy_dtype(tensor))

    def write(key: Key, at: Slices, block: torch.Tensor) -> None:
        root["/".join(key)][at] = block.numpy()

    yield write


_FORMS: dict[str, tuple[Any, str]] = {
    "memmap": (_memory_mapped, "meta.json"),
    "h5": (_hdf5, ""),
    "zarr": (_zarr, "zarr.json"),
}
"""How each form is begun, and the file in its folder by which it is known."""
_RESERVED = {"h5": (".", ".."), "zarr": (".", "..", "zarr.json")}
"""Names that a tensor cannot have."""


def _numpy_dtype(tensor: torch.Tensor) -> Any:
    return torch.empty(0, dtype=tensor.dtype, device="cpu").numpy().dtype


def _check_storable(sample: Mapping[Key, torch.Tensor], form: str) -> None:
    for key, tensor in sample.items():
        try:
            "".join(key).encode()
        except UnicodeEncodeError as error:
            raise ValidationError(f"{show(key)} is not valid Unicode, and cannot be the name of a file") from error
        if form == "memmap":
            continue
        if tensor.dtype is torch.bfloat16:
            raise ValidationError(f"format {form!r} has no bfloat16, which {show(key)} is; format 'memmap' has")
        if any(name in _RESERVED[form] or not {"/", "\0"}.isdisjoint(name) for name in key):
            raise ValidationError(f"format {form!r} cannot name a tensor {show(key)}; format 'memmap' can")


# From an unfinished file or folder to the one that was asked for.


def _check_free(path: Path, mark: str, form: str, *, overwrite: bool) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise ValidationError(f"there is something at {str(path)!r} already; give another path, or overwrite=True")
    if not (path / mark if mark else path).is_file() or path.is_symlink():
        raise ValidationError(f"what is at {str(path)!r} is no TensorDict of format {form!r}, so it is not overwritten")


def _check_nameable(path: Path) -> None:
    """Fail where the file system allows no such name, before anything is written."""
    with suppress(FileNotFoundError):
        os.lstat(path)
