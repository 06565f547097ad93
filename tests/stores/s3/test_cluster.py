"""A Dask cluster that fills a store on S3."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from infinite_tensor import MemoryTileStore, ZarrTileStore, sl
from tests.support.clusters import chain, cluster, computed, one_worker_killed
from tests.support.s3_server import S3Server


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_no_pixel(server: S3Server, url: str, tmp_path: Path) -> None:
    region = sl[0:200, 0:200]
    with ZarrTileStore(url, storage_options=server.options(), tile_size=64) as store, cluster() as client:
        t = chain(store, tmp_path)
        t.fill(sl[0:64, 0:64], client=client, progress=False)
        assert all(computed(tmp_path))
        with one_worker_killed(client, tmp_path, after=60):
            t.fill(region, client=client, progress=False)
        assert t.coverage(region).all()
        found = t[region]
    reference = tmp_path / "reference"
    reference.mkdir()
    assert torch.equal(found, chain(MemoryTileStore(), reference)[region])
