"""Tensors under names, read together: `TensorGroup`."""

from infinite_tensor.groups.group import TensorGroup

__all__ = ["TensorGroup"]
