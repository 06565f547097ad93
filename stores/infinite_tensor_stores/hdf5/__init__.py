"""`HDF5TileStore`: tensors in one HDF5 file."""
