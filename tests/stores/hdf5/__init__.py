"""HDF5 files, of this library and of others."""
