"""The former import path of the conformance suite for backends, which is now in `infinite_tensor.testing`."""

from infinite_tensor.testing import PersistentStoreTests

__all__ = ["PersistentStoreTests"]
