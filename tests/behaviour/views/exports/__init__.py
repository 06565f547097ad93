"""Exports, as other programs open them."""
