"""A server of tensors over HTTP, as Zarr arrays and as map tiles."""

import os

WORKERS = max(4, os.cpu_count() or 1)
"""Requests that are computed at a time."""
