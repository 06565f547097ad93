"""The logger of the library. At level DEBUG, it says what is computed, read and written."""

from __future__ import annotations

import logging

LOG = logging.getLogger("infinite_tensor")
LOG.addHandler(logging.NullHandler())
