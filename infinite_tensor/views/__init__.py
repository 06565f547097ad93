"""Views of tensors: Zarr, xarray, Dask, exports, notebooks, a server and a viewer."""
