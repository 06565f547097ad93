"""Windows in memory: `MemoryTileStore`."""

from infinite_tensor.tilestore.memory.contents import MemoryTileStore

__all__ = ["MemoryTileStore"]
