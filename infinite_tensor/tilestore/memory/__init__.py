"""Windows in memory: `MemoryTileStore`."""

from infinite_tensor.tilestore.memory.store import MemoryTileStore

__all__ = ["MemoryTileStore"]
