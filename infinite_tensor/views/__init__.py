"""Tensors as other people's tools see them."""
