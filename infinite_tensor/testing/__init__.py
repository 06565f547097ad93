"""Conformance tests for backends of `PersistentTileStore`, to run with pytest.

Subclass `PersistentStoreTests` in a test module, define how the store is opened, and run pytest:

    from infinite_tensor.testing import PersistentStoreTests

    class TestMyStore(PersistentStoreTests):
        def open_store(self, location, **options):
            return MyTileStore(location, **options)

The suite tests only the backend. The tests of this library cover what all stores have in common.

Each test writes through one store object and reads through another on the same location. So it sees the stored data,
not the data in a cache.
"""

import pytest

# Must come before the imports. A failing assert then shows the compared values.
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
    """Required tests for every backend.

    Override `open_store`. Override `location` too if the store is not at a path.

    Attributes
    ----------
    concurrent : bool
        Whether two store objects may be open on one location at the same time. If False, tests that need
        two are skipped.
    """
