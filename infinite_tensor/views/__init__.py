"""Views of tensors for other tools: Zarr, xarray, Dask, exports, notebooks, a server and a viewer."""
