"""`MemoryTileStore`, the store in memory."""

from infinite_tensor.tilestore.memory.contents import MemoryTileStore

__all__ = ["MemoryTileStore"]
