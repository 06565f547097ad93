"""What each operation asks of S3, counted on the wire by a proxy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fsspec
import pytest
import torch
from zarr.abc.store import Store
from zarr.storage import FsspecStore

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.support.counting import Constant, Counted
from tests.support.s3_obstore import obstore_at
from tests.support.s3_proxy import Proxy
from tests.support.s3_server import S3Server

TILE = 8
_MOST_BATCHES = 64
"""Each batch of tiles that is stored costs a GET, and there may be as many as tiles."""


def through(proxy: Proxy, server: S3Server, url: str, **options: Any) -> ZarrTileStore:
    storage_options = {**server.options(), "endpoint_url": proxy.url}
    return ZarrTileStore(url, tile_size=TILE, storage_options=storage_options, **options)


VALUE = Constant((TILE, TILE))


def whole_tiles(store: ZarrTileStore, f: Counted, tensor_id: str = "t") -> InfiniteTensor:
    """Every window is one tile."""
    return InfiniteTensor((None, None), f, TensorWindow((TILE, TILE)), tile_store=store, tensor_id=tensor_id)


def test_opening_a_store_and_its_tensors_costs_a_few_gets(proxy: Proxy, server: S3Server, url: str) -> None:
    with proxy.counting() as created:
        store = through(proxy, server, url)
    assert created == {"GET": 1, "LIST": 1}
    with proxy.counting() as registered:
        whole_tiles(store, Counted(VALUE))
    # The root, and two documents of the tensor.
    assert registered == {"GET": 4, "PUT": 3}
    store.close()
    with proxy.counting() as opened:
        store = through(proxy, server, url)
    assert opened == {"GET": 1}
    with proxy.counting() as found:
        whole_tiles(store, Counted(VALUE))
    assert found == {"GET": 2}
    store.close()


def quarters(store: ZarrTileStore) -> InfiniteTensor:
    """Four windows to a tile."""
    window = TensorWindow((TILE // 2, TILE // 2))
    return InfiniteTensor((None, None), lambda _: torch.ones(4, 4), window, tile_store=store, tensor_id="q")


def test_a_tile_of_one_window_costs_one_get_stored_or_not(proxy: Proxy, server: S3Server, url: str) -> None:
    with through(proxy, server, url) as store:
        expected = whole_tiles(store, Counted(VALUE))[0:64, 0:64]
    f = Counted(VALUE)
    with through(proxy, server, url, mode="r") as store:
        t = whole_tiles(store, f)
        with proxy.counting() as stored:
            assert torch.equal(t[0:64, 0:64], expected)
        assert (stored, f.calls) == ({"GET": 64}, [])
        with proxy.counting() as missing:
            t[64:128, 0:64]
        # Besides, one for the whole read looks whether the tensor is still there.
        assert (missing, len(f.calls)) == ({"GET": 64 + 1}, 64)


@pytest.mark.slow
def test_a_missing_tile_of_several_windows_costs_three_gets_and_two_after_others_that_were_missing(
    proxy: Proxy, server: S3Server, url: str
) -> None:
    with through(proxy, server, url) as store:
        quarters(store)
    with through(proxy, server, url) as store:
        t = quarters(store)
        with proxy.counting() as first:
            t[0:64, 0:64]
        store.flush()
        with proxy.counting() as second:
            t[64:128, 0:64]
            store.flush()
        store.clear_cache("q")
        with proxy.counting() as stored:
            t[0:128, 0:64]
        store.clear_cache("q")
        with proxy.counting() as again:
            t[0:128, 0:64]
    assert first["GET"] - 1 in range(3 * 64, 3 * 64 + _MOST_BATCHES)
    assert second["GET"] - 1 in range(2 * 64, 2 * 64 + _MOST_BATCHES)
    # What was missing before is expected to be so, once.
    assert stored == {"GET": 2 * 128 + 1}
    assert again == {"GET": 128}


@pytest.mark.parametrize("looks", [0, 64], ids=["who created the tensor", "another one"])
def test_a_complete_tile_is_written_by_one_put(proxy: Proxy, server: S3Server, url: str, looks: int) -> None:
    if looks:
        with through(proxy, server, url) as store:
            whole_tiles(store, Counted(VALUE))
    with through(proxy, server, url) as store:
        t = whole_tiles(store, Counted(VALUE))
        before = len(proxy.requests)
        t[0:64, 0:64]
        store.flush()
    chunks = Counter(request for request in proxy.requests[before:] if "/c/" in request[1])
    assert Counter(method for method, _ in chunks) == Counter({"GET": looks, "PUT": 64})
    assert {count for (method, _), count in chunks.items() if method == "PUT"} == {1}


def test_who_created_a_tensor_asks_five_times_for_any_number_of_missing_tiles(
    proxy: Proxy, server: S3Server, url: str
) -> None:
    with through(proxy, server, url) as store:
        t = quarters(store)
        with proxy.counting() as read:
            t[0:64, 0:64]
    # Twice for another writer before and once after looking for the tensor, beside which the first tiles are stored.
    assert read["GET"] in range(3, 5 + _MOST_BATCHES)


def test_an_incomplete_tile_is_written_by_one_put_and_deleted_by_one_request(
    proxy: Proxy, server: S3Server, url: str
) -> None:
    with through(proxy, server, url) as store:
        t = InfiniteTensor((None,), lambda _: torch.ones(4), TensorWindow((4,)), tile_store=store, tensor_id="t")
        for tile in range(20):
            t[TILE * tile : TILE * tile + 4]
        before = len(proxy.requests)
        store.flush()
        partial = Counter(method for method, target in proxy.requests[before:] if "/partial-" in target)
        assert partial == {"PUT": 20}
        store.clear_cache("t")
        before = len(proxy.requests)
        t[0 : 20 * TILE]
        store.flush()
    grown = proxy.requests[before:]
    # The first part, and no second one.
    assert Counter(method for method, target in grown if "/partial-" in target) == {"GET": 40, "DELETE": 20}
    # Looked for after the log alone: those before were missing too.
    assert Counter(method for method, target in grown if "/c/" in target) == {"GET": 20, "PUT": 20}


def test_a_part_that_another_process_has_added_costs_two_requests(proxy: Proxy, server: S3Server, url: str) -> None:
    def halves(store: ZarrTileStore) -> InfiniteTensor:
        return InfiniteTensor((None,), lambda _: torch.ones(4), TensorWindow((4,)), tile_store=store, tensor_id="t")

    with through(proxy, server, url) as store, through(proxy, server, url) as other:
        mine, theirs = halves(store), halves(other)
        mine[0:2], theirs[4:6]
        other.flush()
        with proxy.counting() as flushed:
            store.flush()
    # Part 0 is theirs: the PUT is refused, the GET finds that it is not ours, and part 1 is written.
    assert flushed == {"PUT": 2, "GET": 2}


def test_clearing_deletes_a_thousand_objects_at_a_time(proxy: Proxy, server: S3Server, url: str) -> None:
    with through(proxy, server, url) as store:
        whole_tiles(store, Counted(VALUE))[0:64, 0:64]
        store.flush()
        with proxy.counting() as cleared:
            store.clear_tensor("t")
    # The definition, a listing of tiles and one of logs, and the tiles at once.
    assert cleared == {"GET": 1, "DELETE": 1, "LIST": 2, "POST": 1}


def _with_s3fs(proxy: Proxy, server: S3Server, url: str) -> Store:
    options = {**server.options(), "endpoint_url": proxy.url}
    fs, path = fsspec.url_to_fs(url, asynchronous=True, **options)
    return FsspecStore(fs, path=path)


def _with_obstore(proxy: Proxy, server: S3Server, url: str) -> Store:
    return obstore_at(server, url, proxy.url)


@pytest.mark.parametrize("make", [_with_s3fs, _with_obstore])
def test_a_zarr_store_that_is_handed_in_costs_the_same(
    proxy: Proxy, server: S3Server, url: str, make: Callable[[Proxy, S3Server, str], Store]
) -> None:
    with ZarrTileStore(make(proxy, server, url), tile_size=TILE) as store:
        expected = whole_tiles(store, Counted(VALUE))[0:64, 0:64]
    with ZarrTileStore(make(proxy, server, url), tile_size=TILE, mode="r") as store:
        t = whole_tiles(store, Counted(VALUE))
        with proxy.counting() as stored:
            assert torch.equal(t[0:64, 0:64], expected)
        with proxy.counting() as missing:
            t[64:128, 0:64]
    assert stored == {"GET": 64}
    assert missing == {"GET": 64 + 1}


# Ten thousand tiles, fewer by default.


SMALL = 2
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
    with opened_at(server.url, server, url) as store:
        small(store)[whole(rows)]
    proxy = Proxy(server.url)
    try:
        with opened_at(proxy.url, server, url) as store:
            yield Filled(store, small(store), rows, proxy)
    finally:
        proxy.close()


def opened_at(endpoint: str, server: S3Server, url: str) -> ZarrTileStore:
    return ZarrTileStore(url, tile_size=SMALL, storage_options={**server.options(), "endpoint_url": endpoint})


def small(store: ZarrTileStore, name: str = "t") -> InfiniteTensor:
    """Two windows to a tile, so that a tile may be partial."""
    window = TensorWindow((SMALL, SMALL // 2))
    return InfiniteTensor((None, None), pixels, window, tile_store=store, tensor_id=name)


def pixels(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.full((SMALL, SMALL // 2), 1000.0 * ctx[0] + ctx[1])


def whole(rows: int) -> tuple[slice, slice]:
    return slice(0, rows * SMALL), slice(0, COLUMNS * SMALL)


def pages(objects: int) -> int:
    return -(-objects // PAGE)


def test_a_read_of_missing_and_of_stored_tiles_lists_nothing(
    proxy: Proxy, server: S3Server, url: str, rows: int
) -> None:
    tiles = rows * COLUMNS
    with opened_at(proxy.url, server, url) as store, proxy.counting() as first:
        computed = small(store)[whole(rows)]
        store.flush()
    with opened_at(proxy.url, server, url) as store, proxy.counting() as second:
        assert torch.equal(small(store)[whole(rows)], computed)
    assert set(first) == {"GET", "PUT"}
    # The tiles, the root, and two documents of the tensor.
    assert first["PUT"] == tiles + 3
    assert second == {"GET": tiles + 2}


def test_a_fill_lists_nothing(proxy: Proxy, server: S3Server, url: str, rows: int) -> None:
    tiles = rows * COLUMNS
    with opened_at(proxy.url, server, url) as store:
        t = small(store)
        with proxy.counting() as first:
            assert t.fill(whole(rows), progress=False).windows == 2 * tiles
        with proxy.counting() as second:
            assert t.fill(whole(rows), progress=False).windows == 0
    assert first["LIST"] == second["LIST"] == 0
    assert first["PUT"] == tiles
    # Tiles are looked for, and none is fetched.
    assert set(second) == {"HEAD"}


ASKED: dict[str, Callable[[Filled], bool]] = {
    "coverage": lambda filled: bool(filled.t.coverage(whole(filled.rows)).all()),
    "plan": lambda filled: filled.t.plan(whole(filled.rows)).windows == 0,
    "info": lambda filled: filled.store.tensor_info("t").tiles_complete == filled.tiles,
    "verify": lambda filled: filled.store.verify("t") == [],
    # Only the tensors, and what each has.
    "gc": lambda filled: filled.store.gc().objects == 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_tiles_are_listed_a_thousand_at_a_time_and_nothing_is_asked_twice(filled: Filled, name: str) -> None:
    before = len(filled.proxy.requests)
    with filled.proxy.counting() as kinds:
        assert ASKED[name](filled)
    chunks = Counter(target for method, target in filled.proxy.requests[before:] if method == "GET" and "/c/" in target)
    # And one listing for the logs.
    assert kinds["LIST"] == (2 if name == "gc" else pages(filled.tiles) + 1)
    assert kinds["HEAD"] == 0
    assert set(chunks.values()) <= {1}
    assert len(chunks) == (filled.tiles if name == "verify" else 0)


@pytest.mark.slow
def test_gc_lists_and_deletes_a_thousand_objects_at_a_time(proxy: Proxy, server: S3Server, url: str) -> None:
    with opened_at(proxy.url, server, url) as store:
        small(store)
        garbage = {f"t-t/tiles-0123456789abcdef/c/0/{number}": b"x" for number in range(PAGE + 50)}
        store._home.put(garbage)
        with proxy.counting() as kinds:
            assert store.gc().objects == len(garbage)
    assert kinds["POST"] == 2
    # The tensors, and what the one has; the objects, to count them and to delete them.
    assert kinds["LIST"] == 2 + 2 * 2
