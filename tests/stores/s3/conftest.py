"""The S3 server that the tests of this folder share, and a place in it for each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from fsspec.asyn import sync

from tests.support.s3_server import S3Server, running

if TYPE_CHECKING:
    from s3fs import S3FileSystem

    from tests.support.s3_proxy import Proxy

_numbers = itertools.count()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Each test of this folder, the only ones that this is called for."""
    item.add_marker(pytest.mark.s3)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture
def url() -> str:
    """A prefix that no other test uses: the server keeps empty folders of what was deleted."""
    return f"s3://tiles/store-{next(_numbers)}"


@pytest.fixture
def proxy(server: S3Server) -> Iterator[Proxy]:
    """Before the server; what goes through it is counted."""
    # aiohttp comes with an extra, and a file of fixtures cannot be skipped.
    from tests.support.s3_proxy import Proxy  # noqa: PLC0415

    made = Proxy(server.url)
    yield made
    made.close()


@pytest.fixture
def bucket(server: S3Server) -> Iterator[S3FileSystem]:
    """The server as another client sees it, so that a store does not vouch for itself."""
    from s3fs import S3FileSystem  # noqa: PLC0415  (the same)

    files = S3FileSystem(**server.options(), skip_instance_cache=True, use_listings_cache=False)
    files.connect()
    yield files
    sync(files.loop, files.s3.close)
