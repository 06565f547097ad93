"""Ten thousand tiles on S3, fewer by default: what is asked of it, counted on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.support.s3_proxy import Proxy
from tests.support.s3_server import S3Server

TILE = 2
COLUMNS = 50
PAGE = 1000
"""As many keys as S3 lists at most in one answer."""


@pytest.fixture(params=[3, pytest.param(200, marks=pytest.mark.slow)], ids=["150", "10000"])
def rows(request: pytest.FixtureRequest) -> int:
    """Rows of tiles, `COLUMNS` in each."""
    return int(request.param)


@dataclass(frozen=True)
class Filled:
    """A store on S3, a tensor in it with so many tiles, all of them stored, and what counts the requests."""

    store: ZarrTileStore
    t: InfiniteTensor
    rows: int
    proxy: Proxy

    @property
    def tiles(self) -> int:
        return self.rows * COLUMNS


@pytest.fixture(scope="module", params=[21, pytest.param(200, marks=pytest.mark.slow)], ids=["1050", "10000"])
def filled(request: pytest.FixtureRequest, server: S3Server) -> Iterator[Filled]:
    """Shared by all tests that change nothing."""
    rows, url = int(request.param), f"s3://tiles/filled-{request.param}"
    with opened(server.url, server, url) as store:
        tensor(store)[whole(rows)]
    proxy = Proxy(server.url)
    try:
        with opened(proxy.url, server, url) as store:
            yield Filled(store, tensor(store), rows, proxy)
    finally:
        proxy.close()


def opened(endpoint: str, server: S3Server, url: str) -> ZarrTileStore:
    return ZarrTileStore(url, tile_size=TILE, storage_options={**server.options(), "endpoint_url": endpoint})


def tensor(store: ZarrTileStore, name: str = "t") -> InfiniteTensor:
    """Two windows to a tile, so that a tile may be partial."""
    window = TensorWindow((TILE, TILE // 2))
    return InfiniteTensor((None, None), pixels, window, tile_store=store, tensor_id=name)


def pixels(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.full((TILE, TILE // 2), 1000.0 * ctx[0] + ctx[1])


def whole(rows: int) -> tuple[slice, slice]:
    return slice(0, rows * TILE), slice(0, COLUMNS * TILE)


def pages(objects: int) -> int:
    return -(-objects // PAGE)


def test_a_read_of_missing_and_of_stored_tiles_lists_nothing(
    proxy: Proxy, server: S3Server, url: str, rows: int
) -> None:
    tiles = rows * COLUMNS
    with opened(proxy.url, server, url) as store, proxy.counting() as first:
        computed = tensor(store)[whole(rows)]
        store.flush()
    with opened(proxy.url, server, url) as store, proxy.counting() as second:
        assert torch.equal(tensor(store)[whole(rows)], computed)
    assert set(first) == {"GET", "PUT"}
    # The tiles, and two documents of the tensor.
    assert first["PUT"] == tiles + 2
    assert second == {"GET": tiles + 2}


def test_a_fill_lists_nothing(proxy: Proxy, server: S3Server, url: str, rows: int) -> None:
    tiles = rows * COLUMNS
    with opened(proxy.url, server, url) as store:
        t = tensor(store)
        with proxy.counting() as first:
            assert t.fill(whole(rows), progress=False).windows == 2 * tiles
        with proxy.counting() as second:
            assert t.fill(whole(rows), progress=False).windows == 0
    assert first["LIST"] == second["LIST"] == 0
    assert first["PUT"] == tiles
    # Tiles are looked for, and none is fetched.
    assert set(second) == {"HEAD"}


@pytest.mark.slow
def test_a_fill_of_a_chain_lists_nothing(proxy: Proxy, server: S3Server, url: str) -> None:
    with opened(proxy.url, server, url) as store, proxy.counting() as kinds:
        window = TensorWindow((TILE, TILE))
        doubled = InfiniteTensor(
            (None, None),
            lambda _, upstream: 2 * upstream,
            window,
            args=[tensor(store)],
            args_windows=[window],
            tile_store=store,
            tensor_id="doubled",
        )
        doubled.fill(whole(3), progress=False)
    assert set(kinds) <= {"GET", "HEAD", "PUT", "DELETE"}


@pytest.mark.slow
def test_what_is_covered_is_listed_a_thousand_tiles_at_a_time(filled: Filled) -> None:
    with filled.proxy.counting() as covered:
        assert filled.t.coverage(whole(filled.rows)).all()
    with filled.proxy.counting() as planned:
        assert filled.t.plan(whole(filled.rows)).windows == 0
    # And one for the logs.
    assert covered == planned == {"LIST": pages(filled.tiles) + 1}


@pytest.mark.slow
def test_a_tensor_is_described_by_listing_a_thousand_tiles_at_a_time(filled: Filled) -> None:
    with filled.proxy.counting() as kinds:
        assert filled.store.tensor_info("t").tiles_complete == filled.tiles
    assert kinds["LIST"] == pages(filled.tiles) + 1
    assert kinds["HEAD"] == 0


@pytest.mark.slow
def test_a_tensor_is_verified_by_listing_a_thousand_tiles_at_a_time_and_getting_each_once(filled: Filled) -> None:
    before = len(filled.proxy.requests)
    with filled.proxy.counting() as kinds:
        assert filled.store.verify("t") == []
    requests = filled.proxy.requests[before:]
    targets = Counter(target for method, target in requests if method == "GET" and "/c/" in target)
    assert kinds["LIST"] == pages(filled.tiles) + 1
    assert len(targets) == filled.tiles
    assert set(targets.values()) == {1}


def test_gc_does_not_list_the_tiles_of_a_tensor(filled: Filled) -> None:
    with filled.proxy.counting() as kinds:
        assert filled.store.gc().objects == 0
    # The tensors, and what each has.
    assert kinds["LIST"] == 2


@pytest.mark.slow
def test_gc_lists_and_deletes_a_thousand_objects_at_a_time(proxy: Proxy, server: S3Server, url: str) -> None:
    with opened(proxy.url, server, url) as store:
        tensor(store)
        garbage = {f"t-t/tiles-0123456789abcdef/c/0/{number}": b"x" for number in range(PAGE + 50)}
        store._objects.put(garbage)
        with proxy.counting() as kinds:
            assert store.gc().objects == len(garbage)
    assert kinds["POST"] == 2
    # The tensors, and what the one has; the objects, to count them and to delete them.
    assert kinds["LIST"] == 2 + 2 * 2
