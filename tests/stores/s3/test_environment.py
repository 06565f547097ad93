"""A URL in place of a store, where there are no options: the environment says how the storage is reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from infinite_tensor import StoreError, ZarrTileStore
from tests.support.s3_server import ADMIN, S3Server
from tests.support.tensors import halves


@pytest.fixture
def environment(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """That of a machine without a login, to which the server is S3."""
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "none"))
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    return monkeypatch


def test_the_login_and_the_endpoint_are_those_of_the_environment(
    environment: pytest.MonkeyPatch, server: S3Server, url: str
) -> None:
    environment.setenv("AWS_ACCESS_KEY_ID", ADMIN[0])
    environment.setenv("AWS_SECRET_ACCESS_KEY", ADMIN[1])
    t = halves(url)
    t.fill(slice(0, 16), progress=False)
    t.tile_store.close()
    with ZarrTileStore(url, mode="r", storage_options=server.options()) as store:
        assert store.open("t")[2:6].tolist() == [0, 0, 1, 1]


@pytest.mark.usefixtures("environment")
def test_where_there_is_no_login_the_message_says_how_to_give_one(url: str) -> None:
    with pytest.raises(StoreError, match=r"set AWS_ACCESS_KEY_ID and .* give ZarrTileStore\(storage_options=\.\.\.\)"):
        halves(url)
