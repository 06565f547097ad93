"""A tensor is bound to its place in storage before anything of it is read or written."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch

from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.persistent import PersistentTileStore

Bound = TypeVar("Bound")


class BindingStore(PersistentTileStore, Generic[Bound]):
    """Of a tensor that is not bound, nothing is stored: one that a read-only store knows, or that has been cleared.

    Subclasses set `_bound` before they call the constructor.
    """

    _bound: dict[str, Bound]
    """What tensors are bound to, by their ids."""

    @abstractmethod
    def _binding(self, tensor_id: str, definition: Mapping[str, Any]) -> Bound:
        """What a tensor is bound to; `definition` is as it was read."""

    @abstractmethod
    def _read_bound_tiles(
        self, tensor_id: str, bound: Bound, tile_indices: Sequence[Index]
    ) -> list[torch.Tensor | None]:
        """`_read_tiles` of a tensor that is bound."""

    @abstractmethod
    def _read_bound_partials(
        self, tensor_id: str, bound: Bound, tile_indices: Sequence[Index]
    ) -> list[PartialTile | None]:
        """`_read_partials` of a tensor that is bound."""

    @abstractmethod
    def _has_bound_tiles(self, bound: Bound, tile_indices: Sequence[Index]) -> list[bool]:
        """`_has_tiles` of a tensor that is bound."""

    @abstractmethod
    def _find_bound_tiles(self, bound: Bound, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        """`_find_tiles` of a tensor that is bound."""

    def _find_bound_partials(self, bound: Bound, low: Sequence[int], high: Sequence[int]) -> set[Index]:
        """`_find_partials` of a tensor that is bound."""
        return self._find_bound_tiles(bound, low, high)[1]

    def _bound_to(self, tensor_id: str) -> Bound | None:
        return self._bound.get(tensor_id)

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> None:
        self._bound[tensor_id] = self._binding(tensor_id, definition)

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        bound = self._bound_to(tensor_id)
        return [None] * len(tile_indices) if bound is None else self._read_bound_tiles(tensor_id, bound, tile_indices)

    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        bound = self._bound_to(tensor_id)
        if bound is None:
            return [None] * len(tile_indices)
        return self._read_bound_partials(tensor_id, bound, tile_indices)

    def _has_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[bool]:
        bound = self._bound_to(tensor_id)
        return [False] * len(tile_indices) if bound is None else self._has_bound_tiles(bound, tile_indices)

    def _find_tiles(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> tuple[set[Index], set[Index]]:
        bound = self._bound_to(tensor_id)
        return (set(), set()) if bound is None else self._find_bound_tiles(bound, low, high)

    def _find_partials(self, tensor_id: str, low: Sequence[int], high: Sequence[int]) -> set[Index]:
        bound = self._bound_to(tensor_id)
        return set() if bound is None else self._find_bound_partials(bound, low, high)
