"""What belongs in a `torch.nn.Module`: attributes that are computed, and infinite tensors as attributes."""

from infinite_tensor.modules.buffer import InfiniteBuffer
from infinite_tensor.modules.virtual_tensor import VirtualTensor

__all__ = ["InfiniteBuffer", "VirtualTensor"]
