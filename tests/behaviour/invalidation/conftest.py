from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

# A conftest is imported before `tests/conftest.py` can skip what needs a package of an extra.
pytest.importorskip("h5py")

from infinite_tensor import TileStore
from tests.behaviour.invalidation.chain import KINDS, Data
from tests.support.stores import sample


@pytest.fixture(params=sample(KINDS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TileStore]:
    with KINDS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
def data() -> Data:
    return Data()
