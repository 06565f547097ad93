"""Reads: plan over the whole chain of tensors, compute sources first, assemble the result."""
