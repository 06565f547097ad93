"""The spelling of version 0.2, deprecated: `get_or_create` and friends."""

from __future__ import annotations


class OldSpelling:
    """Placeholder."""
