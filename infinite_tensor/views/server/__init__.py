"""Tensors over HTTP, as Zarr arrays and as map tiles."""
