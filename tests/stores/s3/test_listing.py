"""A store on S3 is listed without torch, with the credentials of the environment."""

from __future__ import annotations

import pytest
import torch

from infinite_tensor import InfiniteTensor, StoreError, TensorWindow, ZarrTileStore
from infinite_tensor_stores.listing import listing_of
from tests.support.s3_server import ADMIN, S3Server


@pytest.fixture
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ADMIN[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ADMIN[1])


@pytest.mark.usefixtures("environment")
def test_a_store_is_listed_as_the_environment_says(url: str) -> None:
    window = TensorWindow((4, 4))
    InfiniteTensor((8, 8), lambda _ctx: torch.ones(4, 4), window, tile_store=ZarrTileStore(url), tensor_id="t")[0, 0]
    found = listing_of(url)
    assert found is not None
    assert found.tensors["t"]["shape"] == [8, 8]


@pytest.mark.usefixtures("environment")
def test_wrong_credentials_are_an_error_that_names_the_url(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match=f"{url} cannot be read"):
        listing_of(url)
