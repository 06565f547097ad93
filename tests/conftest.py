"""Hypothesis profiles, chosen by the environment variable INFINITE_TENSOR_HYPOTHESIS.

``quick`` (default)
    40 cases per store, always the same ones.
``thorough``
    2000 random cases per store; takes many minutes:
    ``INFINITE_TENSOR_HYPOTHESIS=thorough pytest tests/test_properties.py``.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SHARED = settings(
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("quick", _SHARED, max_examples=25, derandomize=True)
settings.register_profile("thorough", _SHARED, max_examples=2000)
settings.load_profile(os.environ.get("INFINITE_TENSOR_HYPOTHESIS", "quick"))
