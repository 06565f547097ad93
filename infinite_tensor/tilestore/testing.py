"""The name under which backends have imported the conformance suite, which is in `infinite_tensor.testing`."""

from infinite_tensor.testing import PersistentStoreTests

__all__ = ["PersistentStoreTests"]
