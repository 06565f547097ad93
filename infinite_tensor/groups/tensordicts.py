"""A TensorDict as a group, and what is read of a group as one; the package tensordict is imported when it is needed.

Of a TensorDict, each tensor is an InfiniteTensor that reads blocks of it as they are needed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.groups.members import GroupMember, Members
from infinite_tensor.support.nested import Key, as_key, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore, TileStore

if TYPE_CHECKING:
    from tensordict import TensorDict, TensorDictBase


def import_tensordict() -> Any:
    """The package tensordict.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    try:
        import tensordict  # noqa: PLC0415  (only groups that are read need it)
    except ImportError as error:
        raise ImportError(
            "a region of a TensorGroup is a TensorDict, which needs the package tensordict: pip install tensordict"
        ) from error
    return tensordict


def batch_size(members: Sequence[GroupMember], region: Selection) -> list[int]:
    """Extents of a region along the first dimensions in which all members have one resolution.

    Dimensions that an int has squeezed do not count.
    """
    selected = members[0].selection(region)
    extents = []
    for d, own in enumerate(members[0].dims):
        if d in region.squeezed:
            continue
        if any(member.scale[d] != members[0].scale[d] for member in members):
            break
        extents.append(len(range(selected.start[own], selected.stop[own], abs(selected.steps[own]))))
    return extents


def assembled(
    members: Members,
    results: Mapping[Key, torch.Tensor],
    region: Selection,
    device: torch.device | None,
) -> TensorDict:
    """The tensors that were read, each below its names, with the largest batch size at every level."""
    kind = import_tensordict().TensorDict

    def level(depth: int, keys: Sequence[Key]) -> Any:
        entries: dict[str, Any] = {}
        for name in dict.fromkeys(key[depth] for key in keys):
            within = [key for key in keys if key[depth] == name]
            ends = len(within[0]) == depth + 1
            entries[name] = results[within[0]] if ends else level(depth + 1, within)
        return kind(entries, batch_size=batch_size([members[key] for key in keys], region), device=device)

    return level(0, list(members))  # type: ignore[no-any-return]


_BLOCK_BYTES = 2**20
"""How much one window reads. It decides the windows, which are part of what a tensor is: it stays as it is."""
_BLOCKS_AT_ONCE = 16
_CACHE_BYTES = 2**26


def tensors_of(
    td: TensorDictBase,
    version: object,
    tile_store: TileStore | str | os.PathLike[str] | None,
    tensor_id: str | None,
) -> dict[Key, InfiniteTensor]:
    """The tensors of a TensorDict by their keys; `TensorGroup.from_tensordict` says what the arguments are."""
    package = import_tensordict()
    if not isinstance(td, package.TensorDictBase):
        raise ValidationError(f"from_tensordict takes a TensorDict, got {type(td).__name__} {td!r:.200}")
    keys = [as_key(key) for key in td.keys(True, True)]
    above = {key[:depth] for key in keys for depth in range(1, len(key) + 1)}
    others = [key for key in map(as_key, td.keys(True)) if key not in above]
    if others:
        raise ValidationError(
            f"{', '.join(map(show, others))} of the TensorDict hold no tensor; leave them out: "
            f"td.exclude({', '.join(map(show, others))})"
        )
    if not keys:
        raise ValidationError("the TensorDict holds no tensor")
    store = MemoryTileStore(cache_size_bytes=_CACHE_BYTES) if tile_store is None else tile_store
    return {key: _tensor(td, key, version, store, tensor_id) for key in keys}


def _tensor(
    td: TensorDictBase,
    key: Key,
    version: object,
    store: TileStore | str | os.PathLike[str],
    tensor_id: str | None,
) -> InfiniteTensor:
    shape = tuple(td.get_item_shape(key))
    if not shape or not all(extent > 0 for extent in shape):
        raise ValidationError(
            f"{show(key)} of the TensorDict has shape {shape}: a tensor needs dimensions, and pixels along each; "
            f"leave it out: td.exclude({show(key)})"
        )
    sample = td.get_at(key, (slice(0, 0),))
    window = _window(shape, sample.dtype.itemsize)
    overlaps = window.stride != window.size
    try:
        return InfiniteTensor(
            shape,
            partial(_read, td, key, window, _file_state(td, key)),
            window,
            dtype=sample.dtype,
            device=sample.device,
            tile_store=store,
            tensor_id=None if tensor_id is None else "/".join((tensor_id, *key)),
            batch_size=_BLOCKS_AT_ONCE,
            blend=_either if overlaps else None,
            version={"tensordict": list(key), "version": version},
        )
    except ValidationError as error:
        raise ValidationError(f"{show(key)} of the TensorDict: {error}") from error


def _either(_existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
    """Where two blocks overlap they hold the same."""
    return incoming


def _window(shape: Sequence[int], itemsize: int) -> TensorWindow:
    """Blocks of the bytes that lie together, which cover the shape exactly."""
    size, stride, room = [], [], max(1, _BLOCK_BYTES // itemsize)
    for extent in reversed(shape):
        block, step = _cover(extent, room)
        size.append(block)
        stride.append(step)
        room = max(1, room // block)
    return TensorWindow(size[::-1], stride=stride[::-1])


def _cover(extent: int, most: int) -> tuple[int, int]:
    """Size and stride of about the fewest equal blocks that cover an extent to its last pixel, with little overlap."""
    fewest = -(-extent // most)
    # What is left over by equal steps lies in two blocks each time; of twice as many numbers, one leaves next to none.
    count = min(range(fewest, min(2 * fewest, extent) + 1), key=lambda number: extent % number)
    return extent // count + extent % count, extent // count


def _read(
    td: TensorDictBase, key: Key, window: TensorWindow, _state: tuple[int, ...], contexts: Sequence[Index]
) -> list[torch.Tensor]:
    """Some blocks, by one read where they lie together: a file may be stored in chunks larger than a block."""
    starts = [[i * step for i, step in zip(ctx, window.stride, strict=True)] for ctx in contexts]
    low = [min(column) for column in zip(*starts, strict=True)]
    high = [max(column) + n for column, n in zip(zip(*starts, strict=True), window.size, strict=True)]
    if math.prod(b - a for a, b in zip(low, high, strict=True)) > 2 * len(starts) * math.prod(window.size):
        return [td.get_at(key, _box(start, window.size)).clone() for start in starts]
    hull = td.get_at(key, tuple(map(slice, low, high))).clone()
    return [hull[_box([at - a for at, a in zip(start, low, strict=True)], window.size)] for start in starts]


def _box(start: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + n) for at, n in zip(start, size, strict=True))


def _file_state(td: Any, key: Key) -> tuple[int, ...]:
    """Size and time of the file that holds a tensor, where there is one: a hint that its content has changed.

    It stands in the fingerprint of ``f``, so that another file is a warning where something was computed from it.
    """
    # To get a tensor of a PersistentTensorDict is to read all of it.
    is_one_file = isinstance(td, import_tensordict().PersistentTensorDict)
    path = getattr(td if is_one_file else td.get(key), "filename", None)
    if not isinstance(path, str | os.PathLike) or not Path(path).is_file():
        return ()
    status = Path(path).stat()
    return status.st_size, status.st_mtime_ns
