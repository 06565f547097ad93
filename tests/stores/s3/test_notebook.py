"""What a notebook asks of S3 to show a tensor or a store, counted on the wire."""

from __future__ import annotations

import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from infinite_tensor.views import showing
from tests.support.counting import Constant, Counted
from tests.support.html import Page
from tests.support.s3_proxy import Proxy
from tests.support.s3_server import S3Server

TILE = 4


def through(proxy: Proxy, server: S3Server, url: str) -> ZarrTileStore:
    return ZarrTileStore(url, tile_size=TILE, storage_options={**server.options(), "endpoint_url": proxy.url})


def tensor_in(store: ZarrTileStore, f: Counted, tensor_id: str = "t") -> InfiniteTensor:
    return InfiniteTensor((None, None), f, TensorWindow((TILE, TILE)), tile_store=store, tensor_id=tensor_id)


@pytest.mark.slow
def test_a_tensor_costs_three_requests(proxy: Proxy, server: S3Server, url: str) -> None:
    f = Counted(Constant((TILE, TILE)))
    with through(proxy, server, url) as store:
        tensor_in(store, f)[-4:160, -4:120]
    calls = list(f.calls)
    with through(proxy, server, url) as store:
        t = tensor_in(store, f)
        with proxy.counting() as shown:
            page = Page(t._repr_html_())
    assert f.calls == calls
    assert "at least 1,000 complete tiles" in page.text
    # The definition, with the root of the store; the first thousand chunks.
    assert shown == {"GET": 2, "LIST": 1}


@pytest.mark.slow
def test_a_store_costs_three_requests_a_row(proxy: Proxy, server: S3Server, url: str) -> None:
    with through(proxy, server, url) as store:
        for number in range(3):
            tensor_in(store, Counted(lambda _: torch.ones(TILE, TILE)), f"t{number}")
        with proxy.counting() as shown:
            page = Page(store._repr_html_())
    assert "t2" in page.text
    assert shown["LIST"] == 1 + 3
    assert sum(shown.values()) <= 1 + 1 + 3 + 3 * 3


def test_a_server_that_is_down_is_told_of_in_time(server: S3Server, url: str) -> None:
    proxy = Proxy(server.url)
    options = {**server.options(), "endpoint_url": proxy.url}
    store = ZarrTileStore(url, tile_size=TILE, storage_options=options, timeout=0.5)
    t = tensor_in(store, Counted(Constant((TILE, TILE))))
    proxy.close()
    text = Page(t._repr_html_()).text
    assert "could not" in text or f"not answered within {showing.LONGEST_SECONDS:g} s" in text
    store.close(discard=True)
