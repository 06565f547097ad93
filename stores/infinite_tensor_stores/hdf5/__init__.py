"""`HDF5TileStore`: tensors in one HDF5 file."""

try:
    import h5py as _h5py  # noqa: F401  (here, so that all modules of this package may import it)
except ImportError as error:
    raise ImportError("HDF5TileStore needs the package h5py: pip install h5py") from error
