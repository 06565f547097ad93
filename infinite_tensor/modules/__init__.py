"""Virtual tensors and InfiniteTensors as attributes of a `torch.nn.Module`."""

from infinite_tensor.modules.buffer import InfiniteBuffer
from infinite_tensor.modules.virtual_tensor import VirtualTensor

__all__ = ["InfiniteBuffer", "VirtualTensor"]
