"""Prefixes of a bucket that are deleted under an open store. For whole buckets see test_refusals."""

from __future__ import annotations

from typing import Any

import pytest
from s3fs import S3FileSystem

from infinite_tensor import ZarrTileStore
from tests.support.s3_server import S3Server
from tests.support.vanishing import VanishingPlaceTests


@pytest.mark.slow
class TestPrefix(VanishingPlaceTests):
    @pytest.fixture(autouse=True)
    def _place(self, server: S3Server, url: str, bucket: S3FileSystem) -> None:
        self.url, self.bucket, self.options = url, bucket, server.options()

    def open(self, **options: Any) -> ZarrTileStore:
        return ZarrTileStore(self.url, storage_options=self.options, **options)

    def delete(self) -> None:
        self.bucket.rm(self.bucket.find(self.url))

    def keys(self) -> list[str]:
        # Where there is no object, the folder that was left behind is listed.
        folder = f"{self.url.removeprefix('s3://')}/"
        return sorted(key for key in self.bucket.find(self.url) if key.startswith(folder))
