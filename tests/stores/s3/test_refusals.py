"""What S3 refuses, and what may be told of it: never a credential."""

from __future__ import annotations

import logging
import traceback
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from s3fs import S3FileSystem

from infinite_tensor import StoreError, ZarrTileStore
from tests.support.building import halves, line
from tests.support.s3_server import ADMIN, S3Server

WRONG = ("WRONGKEY987654", "wrong/secret+654321")


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize(
    ("login", "word"),
    [((ADMIN[0], WRONG[1]), "signature"), (WRONG, "does not exist")],
)
def test_a_wrong_login_is_a_store_error(
    server: S3Server, url: str, mode: Any, login: tuple[str, str], word: str
) -> None:
    with pytest.raises(StoreError, match=word) as told:
        ZarrTileStore(url, mode=mode, storage_options=server.options(login))
    assert_hidden(login, "".join(traceback.format_exception(told.value)))


@pytest.mark.parametrize("mode", ["r", "r+", "a", "w", "w-"])
def test_a_missing_bucket_and_an_empty_place_are_store_errors(server: S3Server, url: str, mode: Any) -> None:
    with pytest.raises(StoreError, match="bucket 'nowhere'"):
        ZarrTileStore("s3://nowhere/x", mode=mode, storage_options=server.options())
    if mode in ("r", "r+"):
        with pytest.raises(StoreError, match="there is no store"):
            ZarrTileStore(url, mode=mode, storage_options=server.options())


def test_a_bucket_that_is_deleted_under_a_store_is_a_store_error(server: S3Server, bucket: S3FileSystem) -> None:
    bucket.mkdir("soon-gone")
    store = ZarrTileStore("s3://soon-gone/x", tile_size=8, storage_options=server.options())
    t = line(store)
    t[0:8]
    store.flush()
    t[16:20]
    bucket.rm("soon-gone", recursive=True)
    for attempt in (lambda: t[100:108], store.flush, store.tensor_ids, lambda: store.tensor_info("t"), store.gc):
        with pytest.raises(StoreError, match="there is no bucket 'soon-gone'"):
            attempt()
    bucket.mkdir("soon-gone")
    with pytest.raises(StoreError, match="vanished"):
        t[100:108]
    assert bucket.find("soon-gone") == []
    store.clear_tensor("t")
    store.close()


def test_no_credential_is_ever_shown_or_stored(
    server: S3Server,
    url: str,
    bucket: S3FileSystem,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    told = []
    caplog.set_level(logging.DEBUG, "infinite_tensor")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with ZarrTileStore(
            url, tile_size=8, timeout=4.5, storage_options=server.options(client_kwargs={"region_name": "x1"})
        ) as store:
            t = line(store)
            t[0:20]
            told += [repr(store), str(store), repr(t), repr(store._home), repr(store.tensor_info("t"))]
            chunk = next(key for key in bucket.find(url) if "/c/" in key)
            bucket.pipe_file(chunk, b"damaged")
            store.clear_cache("t")
            assert t[0:20].tolist() == [1] * 20
            told += [repr(store.verify("t"))]
            server.pause()
            try:
                with pytest.raises(StoreError) as error:
                    store.clear_tensor("t")
            finally:
                server.resume()
        told += ["".join(traceback.format_exception(error.value)), *map(str, warned)]
    stored = [key.encode() + bucket.cat_file(key) for key in bucket.find(url)]
    assert len(stored) > 3
    assert any("damaged" in text for text in told)
    assert_hidden(ADMIN, *told, caplog.text, *capfd.readouterr(), *(data.decode("latin-1") for data in stored))


def assert_hidden(login: tuple[str, str], *texts: str) -> None:
    hidden: set[Any] = {*login, *map(quote, login), *(quote(text, safe="") for text in login)}
    for text in texts:
        assert not [secret for secret in hidden if secret in text], text


# A URL in place of a store: the environment says how the storage is reached.


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
