"""The versions of what is stored. What a later version of this library has stored is refused."""

from __future__ import annotations

FORMAT = 1
"""Of a store, and of a tensor that has none of what follows."""

FORMAT_OF_MEANS = 2
"""Of a tensor that is blended by a weighted mean, whose partial tiles hold sums that are not divided yet."""

FORMAT_OF_REDUCTIONS = 3
"""Of a tensor with a reduction, whose partial tiles hold what its windows held before it."""

LATEST_FORMAT = FORMAT_OF_REDUCTIONS
"""A tensor of a later one is of a later version of this library."""
