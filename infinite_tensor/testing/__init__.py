"""The conformance suite for backends of `PersistentTileStore`; runs under pytest.

Subclass `PersistentStoreTests` in a test module, say how the store is opened, and run pytest:

    from infinite_tensor.testing import PersistentStoreTests

    class TestMyStore(PersistentStoreTests):
        def open_store(self, location, **options):
            return MyTileStore(location, **options)

It tests what a backend does; what all stores do above their backends is tested where the library is developed.

What a test has written it looks at through another store object on the same location, so that neither a cache
nor the store object itself can vouch for what is stored.
"""

import pytest

# Before they are imported: then a failing assert says what it has compared.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in ("tensors", "tiles")))

from infinite_tensor.testing.tensors import DefinitionTests, GroupTests, LifeTests, UpkeepTests  # noqa: E402
from infinite_tensor.testing.tiles import CopyTests, PartialTileTests, TileTests  # noqa: E402

__all__ = ["PersistentStoreTests"]


class PersistentStoreTests(
    DefinitionTests,
    TileTests,
    PartialTileTests,
    CopyTests,
    UpkeepTests,
    GroupTests,
    LifeTests,
):
    """What every backend must do. Override `open_store`, and `location` where a path will not do.

    Attributes
    ----------
    concurrent : bool
        Whether two store objects may be open on one location at a time. Where they may not, what needs
        two is skipped.
    """
