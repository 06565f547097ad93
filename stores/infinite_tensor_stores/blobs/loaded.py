"""Blocks that were read, as many as are worth keeping."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch

from infinite_tensor_stores.blobs.blocks import Blocks


class LoadedBlocks:
    """The blocks that were used last, in memory or mapped.

    Parameters
    ----------
    blocks : Blocks
        Where they are stored.
    most : int
        How many are held.
    """

    def __init__(self, blocks: Blocks, most: int) -> None:
        self._blocks = blocks
        self._most = most
        self._held: OrderedDict[int, torch.Tensor] = OrderedDict()

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, number: int) -> torch.Tensor | None:
        """A block that is held, None for another one."""
        found = self._held.get(number)
        if found is not None:
            try:
                self._held.move_to_end(number)
            except KeyError:
                # A signal handler has read other blocks, in whose place it was forgotten.
                return found
        return found

    def load(self, numbers: Sequence[int]) -> list[torch.Tensor]:
        """Blocks that are not held; errors as of `Blocks.load`."""
        found = self._blocks.load(numbers)
        self._held.update(zip(numbers, found, strict=True))
        for number in list(self._held)[: max(0, len(self._held) - self._most)]:
            self.forget(number)
        return found

    def forget(self, number: int) -> None:
        """Let go of a block."""
        self._held.pop(number, None)

    def clear(self) -> None:
        """Let go of all blocks."""
        self._held.clear()
