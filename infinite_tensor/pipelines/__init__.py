"""Functions for whole tasks, such as `predict`, built on the public API."""
