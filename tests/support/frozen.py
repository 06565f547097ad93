"""Imported last by the server of forks: what it has imported is no garbage.

Looking for garbage, every child would write to all of it, and so copy it.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
