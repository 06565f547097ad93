"""`TensorGroup`: named tensors, read together."""

from infinite_tensor.groups.group import TensorGroup

__all__ = ["TensorGroup"]
