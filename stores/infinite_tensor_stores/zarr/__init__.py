"""`ZarrTileStore`: tensors in a Zarr store, on local disk or object storage."""
