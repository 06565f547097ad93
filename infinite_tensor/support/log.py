"""The logger of the library, which says at level DEBUG what is computed, read and written."""

from __future__ import annotations

import logging

LOG = logging.getLogger("infinite_tensor")
LOG.addHandler(logging.NullHandler())
