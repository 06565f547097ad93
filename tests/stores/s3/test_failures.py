"""Servers that are down, hang, are overloaded, or lose an answer."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from s3fs import S3FileSystem
from zarr.storage import FsspecStore

from infinite_tensor import InfiniteTensor, StoreError, ValidationError, ZarrTileStore

# Inside: requests of a size of their own, and what a client was set to.
from infinite_tensor_stores.targets import home_of
from tests.support.building import halves
from tests.support.s3_proxy import Proxy, Request
from tests.support.s3_server import S3Server

LOGIN = {"key": "SOMEKEY", "secret": "somesecret"}


def open_at(endpoint: str, **options: Any) -> ZarrTileStore:
    return ZarrTileStore("s3://tiles/x", storage_options={**LOGIN, "endpoint_url": endpoint}, **options)


def opened(server: S3Server, url: str, timeout: float) -> tuple[ZarrTileStore, InfiniteTensor]:
    store = ZarrTileStore(url, tile_size=8, storage_options=server.options(), timeout=timeout)
    return store, halves(store)


@contextmanager
def down() -> Iterator[str]:
    """An endpoint where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def hung() -> Iterator[str]:
    """An endpoint that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(200)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def takes_at_most(seconds: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@pytest.mark.parametrize("fault", [down, hung])
def test_a_server_that_does_not_answer_is_reported_in_the_time_that_was_set(
    fault: Callable[[], AbstractContextManager[str]],
) -> None:
    with fault() as endpoint, takes_at_most(6.0), pytest.raises(StoreError, match=r"'s3://tiles/x'.* cannot be opened"):
        open_at(endpoint, timeout=1.5)


def test_a_server_that_hangs_is_reported_by_a_read_of_many_tiles(server: S3Server, url: str) -> None:
    store, t = opened(server, url, 4.5)
    t[0:4]
    store.flush()
    server.pause()
    try:
        with (
            takes_at_most(6.0),
            pytest.raises(StoreError, match=r"could not read tile \(125,\) and 124 more of tensor 't'"),
        ):
            t[1000:2000]
    finally:
        server.resume()
    assert t[1000:2000:4].tolist() == list(range(250, 500))
    store.close()


@pytest.mark.parametrize(("size", "count"), [(100, 20), pytest.param(2**24, 1, marks=pytest.mark.slow)])
def test_a_server_that_hangs_is_reported_by_a_write_of_any_size(
    size: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The wait for an answer and, where more is to be sent than the kernel takes, the wait for room.
    monkeypatch.setattr("infinite_tensor_stores.s3._SLOWEST", 2**24)
    with hung() as endpoint:
        store = home_of("s3://tiles/x", {**LOGIN, "endpoint_url": endpoint}, False, 1.5)
        # What it takes to make a client, on a busy machine, is not the server's time.
        with pytest.raises(TimeoutError):
            store.put({"first": b""})
        with takes_at_most(4.0), pytest.raises(TimeoutError, match=r"no answer for 0\.5 s"):
            store.put({str(number): bytes(size) for number in range(count)})


def test_what_storage_options_say_of_time_outs_wins_and_stores_with_others_share_no_client() -> None:
    def settings_of(timeout: float, **options: Any) -> dict[str, Any]:
        home: Any = home_of("s3://tiles/x", {**LOGIN, **options}, False, timeout)
        return dict(home.files.config_kwargs)

    given = {"read_timeout": 60, "retries": {"total_max_attempts": 4}}
    assert settings_of(9.0, config_kwargs=given).items() >= {**given, "connect_timeout": 3.0}.items()
    assert [settings_of(timeout)["read_timeout"] for timeout in (9.0, 6.0)] == [3.0, 2.0]


def test_a_file_system_that_is_handed_in_keeps_its_own_time_outs_and_the_store_has_those_that_were_set() -> None:
    with hung() as endpoint:
        fs = S3FileSystem(**LOGIN, endpoint_url=endpoint, asynchronous=True, skip_instance_cache=True)
        with takes_at_most(6.0), pytest.raises(StoreError, match="cannot be opened"):
            ZarrTileStore(FsspecStore(fs, path="tiles/x"), timeout=1.5)
        assert fs.config_kwargs == {}


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan"), True, "15", None])
def test_a_timeout_is_a_positive_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(ValidationError, match="timeout"):
        ZarrTileStore("memory://timeout", timeout=timeout)


def test_a_server_that_is_overloaded_is_asked_again(proxy: Proxy, server: S3Server, url: str) -> None:
    asked: Counter[Request] = Counter()

    def first_time(request: Request) -> bool:
        asked[request] += 1
        return asked[request] == 1

    proxy.refuse = first_time
    with at_proxy(proxy, server, url) as store:
        t = halves(store)
        t[0:6]
        store.flush()
        store.clear_cache("t")
        assert t[0:16].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert min(asked.values()) >= 2


def test_an_answer_that_is_cut_off_is_asked_for_again(proxy: Proxy, server: S3Server, url: str) -> None:
    lost: list[Request] = []

    def first_chunk(request: Request) -> bool:
        if lost or request[0] != "GET" or "/c/" not in request[1]:
            return False
        lost.append(request)
        return True

    with at_proxy(proxy, server, url) as store:
        t = halves(store)
        t[0:8]
        store.clear_cache("t")
        proxy.lose = first_chunk
        assert t[0:8].tolist() == [0] * 4 + [1] * 4
    assert len(lost) == 1


def test_a_creation_whose_answer_is_lost_is_recognised_as_ones_own(proxy: Proxy, server: S3Server, url: str) -> None:
    lost: list[Request] = []

    def every_first_put(request: Request) -> bool:
        if request[0] != "PUT" or request in lost:
            return False
        lost.append(request)
        return True

    proxy.lose = every_first_put
    with at_proxy(proxy, server, url) as store:
        halves(store)[0:4]
        store.flush()
        info = store.tensor_info("t")
    created = [target for _, target in lost]
    assert sum("/partial-" in target for target in created) == 1
    assert sum(target.endswith("/t-t/zarr.json") for target in created) == 1
    assert (info.tiles_partial, info.tiles_complete) == (1, 0)
    with ZarrTileStore(url, mode="r", storage_options=server.options()) as again:
        assert again.open("t")[0:4].tolist() == [0] * 4


def at_proxy(proxy: Proxy, server: S3Server, url: str) -> ZarrTileStore:
    return ZarrTileStore(url, tile_size=8, storage_options={**server.options(), "endpoint_url": proxy.url})
