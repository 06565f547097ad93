"""What a persistent store is built on: the methods that move definitions, tiles and partial tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infinite_tensor.boxes import Index
from infinite_tensor.tilestore.partial import PartialTile
from infinite_tensor.tilestore.report import Damage, Garbage, TensorInfo


class Backend(ABC):
    """Bytes in and out; what they mean, and when they move, is `PersistentTileStore`'s.

    Authors implement the abstract methods, and override of the others what their storage can do. They are called
    from several threads, though tiles and partial tiles are written by one thread at a time, and raise OSError
    where storage fails. The suite in `infinite_tensor.tilestore.testing` tells whether they hold.
    """

    @abstractmethod
    def _read_definition(self, tensor_id: str) -> dict[str, Any] | None:
        """The definition that was written for a tensor, or None."""

    @abstractmethod
    def _write_definition(self, tensor_id: str, definition: dict[str, Any]) -> None:
        """Create a tensor. Where another process has just created it, leave that one's definition."""

    @abstractmethod
    def _delete_tensor(self, tensor_id: str) -> None:
        """Delete everything of a tensor, the definition first. One that does not exist is no error."""

    @abstractmethod
    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        """The complete tiles, in the order asked for; None where there is none.

        A tile that is stored but damaged is None too, with a `DamagedDataWarning`.
        """

    @abstractmethod
    def _write_tiles(self, tensor_id: str, tiles: Mapping[Index, torch.Tensor]) -> None:
        """Store complete tiles, each atomically; one that is there already is replaced by an equal one."""

    @abstractmethod
    def _read_partials(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[PartialTile | None]:
        """All that was written of the partial tiles, merged (`PartialTile.merged`); None where nothing was."""

    @abstractmethod
    def _write_partials(self, tensor_id: str, partials: Mapping[Index, PartialTile | None]) -> None:
        """Add to what is stored of partial tiles; None deletes all of it. Never loses what another wrote."""

    # What a backend may override.

    def _bind_tensor(self, tensor_id: str, definition: Mapping[str, Any]) -> None:  # noqa: B027  (most need nothing)
        """Called when a tensor is registered, with its definition as `_read_definition` returned it."""

    def _list_tensors(self) -> list[str]:
        """Ids of all tensors that are stored."""
        raise NotImplementedError(f"{type(self).__name__} does not list its tensors")

    def _describe_tensor(self, tensor_id: str, definition: dict[str, Any]) -> TensorInfo:
        """What is stored of a tensor."""
        raise NotImplementedError(f"{type(self).__name__} does not describe its tensors")

    def _verify_tensor(self, tensor_id: str, *, repair: bool) -> list[Damage]:
        """What is damaged of all that is stored of a tensor; dropped, where it is to be repaired."""
        raise NotImplementedError(f"{type(self).__name__} does not verify its tensors")

    def _collect_garbage(self) -> Garbage:
        """Delete what no definition refers to, and the logs of complete tiles."""
        raise NotImplementedError(f"{type(self).__name__} does not collect garbage")

    def _flush_backend(self) -> None:  # noqa: B027  (most need nothing)
        """Bring what was written to where a crash of the process cannot harm it."""

    def _close_backend(self) -> None:  # noqa: B027  (most need nothing)
        """Let go of files and connections."""
