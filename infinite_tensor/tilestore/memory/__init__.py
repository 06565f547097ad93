"""`MemoryTileStore`, which keeps windows in memory."""

from infinite_tensor.tilestore.memory.contents import MemoryTileStore

__all__ = ["MemoryTileStore"]
