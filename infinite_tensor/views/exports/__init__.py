"""Exports: regions of tensors as files that other programs open."""
