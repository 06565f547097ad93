from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have a sampled class of the conformance suite run one case of each test; its other cases are slow."""
    seen: set[tuple[object, str]] = set()
    for item in items:
        if isinstance(item, pytest.Function) and getattr(item.cls, "sampled", False):
            test = (item.cls, item.originalname)
            if test in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(test)
