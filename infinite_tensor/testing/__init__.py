"""The conformance suite for backends of `PersistentTileStore`; runs under pytest.

Subclass `PersistentStoreTests` in a test module, define how the store is opened, and run pytest:

    from infinite_tensor.testing import PersistentStoreTests

    class TestMyStore(PersistentStoreTests):
        def open_store(self, location, **options):
            return MyTileStore(location, **options)

The suite tests only the backend. The tests of this library cover what all stores have in common.

Each test reads what it has written through another store object on the same location, so that it sees what is stored
and not what a cache or the first object remembers.
"""

import pytest

# This must run before the imports. It makes a failing assert show the values that it compared.
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
    """The tests that every backend must pass. Override `open_store`, and `location` if the store is not at a path.

    Attributes
    ----------
    concurrent : bool
        Whether two store objects may be open on one location at the same time. If False, tests that need
        two are skipped.
    """
