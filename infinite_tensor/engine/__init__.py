"""Reads: plan the whole chain of tensors, compute windows of the sources first, and assemble the result."""
