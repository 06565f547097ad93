"""The S3 server by another client, that of obstore. A module that imports it is skipped where there is none."""

from __future__ import annotations

from typing import Any

from obstore.store import S3Store
from zarr.storage import ObjectStore

from tests.support.s3_server import ADMIN, S3Server


def obstore_at(server: S3Server, url: str, endpoint: str | None = None) -> ObjectStore[Any]:
    """A place on the server, reached by itself or through a proxy."""
    made = S3Store(
        "tiles",
        prefix=url.removeprefix("s3://tiles/"),
        endpoint=endpoint or server.url,
        access_key_id=ADMIN[0],
        secret_access_key=ADMIN[1],
        region="us-east-1",
        client_options={"allow_http": True},
    )
    return ObjectStore(made)
