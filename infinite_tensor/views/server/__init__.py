"""A server of tensors over HTTP, as Zarr arrays and as map tiles."""
