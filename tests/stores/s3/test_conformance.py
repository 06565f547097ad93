"""The conformance suite on S3: by this library's client, and by obstore's behind zarr's `ObjectStore`."""

from __future__ import annotations

from typing import Any

import pytest
from zarr.storage import ObjectStore

from infinite_tensor import ZarrTileStore
from infinite_tensor.testing import PersistentStoreTests
from tests.support.reference import Index
from tests.support.s3_obstore import obstore_at
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.slow


class _OnS3(PersistentStoreTests):
    def damage_tile(self, location: Any, tensor_id: str, tile: Index) -> None:
        with self.open_store(location) as store:
            definition = store.tensor_definition(tensor_id)
            at = zip(tile, definition["origin"], definition["tile_size"], strict=True)
            chunk = "/".join(str(i + origin // size) for i, origin, size in at)
            key = f"{store.tensor_info(tensor_id).location}/c/{chunk}"
            (found,) = store._home.get([key])
            assert found is not None
            data = bytearray(found)
            data[len(data) // 2] ^= 0x10
            store._home.put({key: bytes(data)})

    def open_store(self, location: Any, **options: Any) -> ZarrTileStore:
        raise NotImplementedError


class TestS3(_OnS3):
    @pytest.fixture
    def location(self, server: S3Server, url: str) -> tuple[str, dict[str, Any]]:
        return url, server.options()

    def open_store(self, location: Any, **options: Any) -> ZarrTileStore:
        target, storage_options = location
        return ZarrTileStore(target, storage_options=storage_options, **options)


class TestObstore(_OnS3):
    @pytest.fixture
    def location(self, server: S3Server, url: str) -> ObjectStore[Any]:
        return obstore_at(server, url)

    def open_store(self, location: Any, **options: Any) -> ZarrTileStore:
        return ZarrTileStore(location, **options)
