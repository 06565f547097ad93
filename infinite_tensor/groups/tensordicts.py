"""What is read of a group, as a TensorDict; the package tensordict is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from infinite_tensor.geometry.regions import Selection
from infinite_tensor.groups.members import GroupMember, Members
from infinite_tensor.support.nested import Key

if TYPE_CHECKING:
    from tensordict import TensorDict


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


def batch_size(members: Sequence[GroupMember], results: Sequence[torch.Tensor], squeezed: Sequence[int]) -> list[int]:
    """Extents of what was read along the first dimensions in which all members have one resolution and one extent.

    Dimensions that an int has squeezed do not count.
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
        size = batch_size([members[key] for key in keys], [results[key] for key in keys], region.squeezed)
        return kind(entries, batch_size=size, device=device)

    return level(0, list(members))  # type: ignore[no-any-return]
