"""Attributes for a `torch.nn.Module`: tensors that are computed, and InfiniteTensors."""

from infinite_tensor.modules.buffer import InfiniteBuffer
from infinite_tensor.modules.virtual_tensor import VirtualTensor

__all__ = ["InfiniteBuffer", "VirtualTensor"]
