from infinite_tensor.tilestore.persistent import PersistentTileStore


class HDF5TileStore(PersistentTileStore):
    pass
