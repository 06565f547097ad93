"""Prefixes of a bucket that are deleted under an open store. For whole buckets see test_refusals."""

from __future__ import annotations

import pytest
from s3fs import S3FileSystem

from infinite_tensor import ZarrTileStore
from tests.stores.test_vanished import *  # noqa: F403  (its tests, on another place)
from tests.stores.test_vanished import Place
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.slow


@pytest.fixture  # type: ignore[no-redef]
def place(server: S3Server, url: str, bucket: S3FileSystem) -> Place:
    # Where there is no object, the folder that was left behind is listed.
    folder = f"{url.removeprefix('s3://')}/"
    return Place(
        lambda **options: ZarrTileStore(url, storage_options=server.options(), **options),
        lambda: bucket.rm(bucket.find(url)),
        lambda: sorted(key for key in bucket.find(url) if key.startswith(folder)),
    )
