"""Former import path of the conformance suite for backends, now in `infinite_tensor.testing`."""

from infinite_tensor.testing import PersistentStoreTests

__all__ = ["PersistentStoreTests"]
