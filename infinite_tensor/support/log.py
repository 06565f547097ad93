"""The logger of the library.

Messages of level DEBUG report everything computed, read and written.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger("infinite_tensor")
LOG.addHandler(logging.NullHandler())
