"""Regions of tensors as files that other programs open."""
