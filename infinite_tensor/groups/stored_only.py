"""What is stored of the tensors of a group, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.filling.stored_only import stored_pixels
from infinite_tensor.geometry.regions import Selection, parse
from infinite_tensor.geometry.window import Shape
from infinite_tensor.groups.members import Members, shape_of
from infinite_tensor.groups.tensordicts import assembled, import_tensordict
from infinite_tensor.support.nested import Key, chosen, show
from infinite_tensor.values.definition import Number, pixel_value


class StoredOnlyGroup:
    """What is stored of the tensors of a group: a view that is read as the group is, and never computes.

    Each tensor shows what its own `InfiniteTensor.stored_only` shows. Of one of them alone, take
    ``group[key].stored_only()``.
    """

    def __init__(self, members: Members, fill_value: Number | Mapping[Any, Any], device: torch.device | None) -> None:
        self._members = members
        self._device = device
        self._fill_values: dict[Key, Number] = chosen("fill_value", fill_value, members, 0)
        for key, value in self._fill_values.items():
            pixel_value(f"fill_value of {show(key)}", value, members[key].tensor.dtype)

    @property
    def shape(self) -> Shape:
        """Extent of the shared dimensions in pixels of the group, None for an unbounded one."""
        return shape_of(self._members)

    @property
    def ndim(self) -> int:
        """Number of shared dimensions."""
        return len(self.shape)

    def __getitem__(self, indices: object) -> Any:
        """What is stored of a region of all tensors, or of each of a list of regions.

        Parameters
        ----------
        indices
            As `TensorGroup.read` takes them, in pixels of the group.

        Returns
        -------
        TensorDict or list of TensorDict
            As `TensorGroup.read` returns them.

        Raises
        ------
        RegionError
            (an IndexError) If `indices` is no region, or has a step along a dimension in which a tensor has a scale.
        """
        regions = [parse(region, self.shape) for region in (indices if isinstance(indices, list) else [indices])]
        import_tensordict()
        found = [self._read(region) for region in regions]
        return found if isinstance(indices, list) else found[0]

    def _read(self, region: Selection) -> Any:
        results = {}
        for key, member in self._members.items():
            pixels = stored_pixels(node_of(member.tensor), member.selection(region), self._fill_values[key])
            results[key] = member.arranged(pixels, region.squeezed)
        return assembled(self._members, results, region, self._device)

    def __repr__(self) -> str:
        shown = ", ".join(f"{show(key)}: {value!r}" for key, value in self._fill_values.items())
        return f"StoredOnlyGroup(shape={self.shape}, fill values: {shown})"
