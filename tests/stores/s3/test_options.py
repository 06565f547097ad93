"""Storage options mean what they mean to s3fs: the same client comes of them, and the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import pytest
from aiobotocore.session import AioSession
from botocore.config import Config
from botocore.loaders import JSONFileLoader
from fsspec.asyn import sync as sync_on
from s3fs import S3FileSystem

# Inside: requests one by one, beside those of s3fs.
from infinite_tensor_stores.homes import Home
from infinite_tensor_stores.s3 import S3Home
from infinite_tensor_stores.targets import home_of

KEYS = {"key": "OPTIONKEY0123", "secret": "option/secret+4567"}
PLACE = {**KEYS, "endpoint_url": "https://storage.example.org:9000"}

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "login": KEYS,
    "login with a token": {**KEYS, "token": "sessiontoken89"},
    "user name and password": {"username": "USERNAME0123", "password": "password4567"},
    "login for botocore": {
        "client_kwargs": {"aws_access_key_id": "CLIENTKEY0123", "aws_secret_access_key": "clientsecret4567"}
    },
    "profile": {"profile": "other"},
    "session": {"session": AioSession(profile="other")},
    "nobody": {"anon": True},
    "endpoint": PLACE,
    "endpoint for botocore": {**KEYS, "client_kwargs": {"endpoint_url": "https://other.example.org"}},
    "both endpoints": {**PLACE, "client_kwargs": {"endpoint_url": PLACE["endpoint_url"], "region_name": "eu-north-1"}},
    "region": {**KEYS, "client_kwargs": {"region_name": "eu-central-1"}},
    "region in the configuration": {**KEYS, "config_kwargs": {"region_name": "ap-south-1"}},
    "no encryption on the way": {**KEYS, "use_ssl": False},
    "certificates of one's own": {**PLACE, "client_kwargs": {"verify": False}},
    "addressing by path": {**KEYS, "config_kwargs": {"s3": {"addressing_style": "path"}}},
    "addressing by host": {**PLACE, "config_kwargs": {"s3": {"addressing_style": "virtual"}}},
    "both internets": {**KEYS, "config_kwargs": {"s3": {"use_dualstack_endpoint": True}}},
    "acceleration": {**KEYS, "config_kwargs": {"s3": {"use_accelerate_endpoint": True}}},
    "signature": {**PLACE, "config_kwargs": {"signature_version": "s3"}},
    "time-outs": {**PLACE, "config_kwargs": {"connect_timeout": 7, "read_timeout": 70}},
    "no time-out": {**PLACE, "config_kwargs": {"read_timeout": None}},
    "retries and connections": {
        **PLACE,
        "config_kwargs": {"retries": {"max_attempts": 4, "mode": "adaptive"}, "max_pool_connections": 3},
    },
    "checksums": {
        **PLACE,
        "config_kwargs": {
            "request_checksum_calculation": "when_supported",
            "response_checksum_validation": "when_supported",
        },
    },
    "proxy": {**PLACE, "config_kwargs": {"proxies": {"https": "http://proxy.example.org:3128"}}},
    "name of the program": {**PLACE, "config_kwargs": {"user_agent_extra": "terrain/2"}},
    "another pays": {**PLACE, "requester_pays": True},
    "encryption by the storage": {
        **PLACE,
        "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/tiles"},
    },
    "encryption by a key of one's own": {
        **PLACE,
        "s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0123456789abcdef" * 2},
    },
    "class and rights": {**PLACE, "s3_additional_kwargs": {"StorageClass": "STANDARD_IA", "ACL": "bucket-owner-read"}},
    "bucket of a known owner": {**PLACE, "s3_additional_kwargs": {"ExpectedBucketOwner": "123456789012"}},
    "nobody else pays": {**PLACE, "s3_additional_kwargs": {"RequestPayer": None}},
    "a parameter that no request has": {**PLACE, "s3_additional_kwargs": {"Colour": "blue"}},
    "regions looked up": {**PLACE, "cache_regions": True},
    "old versions": {**PLACE, "version_aware": True},
}

OURS = {
    "connect_timeout": 3.0,
    "read_timeout": 3.0,
    "max_pool_connections": 256,
    "retries": {"total_max_attempts": 1, "mode": "standard"},
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
"""What a store with a time-out of 9 s sets where the options do not."""

NOT_COMPARED = {"amz-sdk-invocation-id", "expect", "user-agent"}
"""Headers that are another with each request, or that no server stores anything by."""


class Stopped(Exception):  # noqa: N818  (it is no error)
    """Ends a request that need not be sent."""


@cache
def _load(path: str, load: Any = JSONFileLoader.load_file) -> Any:
    return load(JSONFileLoader(), path)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = (
        "[profile other]\naws_access_key_id=PROFILEKEY0123\naws_secret_access_key=profilesecret\nregion=us-west-2\n"
    )
    (tmp_path / "config").write_text(profile)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVIRONMENTKEY0123")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "environmentsecret4567")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    # Botocore reads the same megabytes for each client.
    monkeypatch.setattr("botocore.loaders.JSONFileLoader.load_file", lambda _, path: _load(path))
    # Signed at the same moment, requests that are equal have equal signatures.
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_: datetime(2026, 1, 2, tzinfo=UTC))
    monkeypatch.setattr("botocore.auth.formatdate", lambda **_: "Fri, 02 Jan 2026 00:00:00 GMT")


@contextmanager
def opened(options: dict[str, Any]) -> Iterator[tuple[S3Home, S3FileSystem]]:
    """A store with these options; and s3fs with them, and with what the store sets besides."""
    home = home_of("s3://bucket/x", options, False, 9.0)
    assert isinstance(home, S3Home)
    more = {**OURS, **fsspec.config.conf.get("s3", {}).get("config_kwargs", {}), **options.get("config_kwargs", {})}
    files = S3FileSystem(**{**options, "config_kwargs": more}, skip_instance_cache=True)
    try:
        yield home, files
    finally:
        sync_on(home.files.loop, home.files.s3.close)
        sync_on(files.loop, files.s3.close)


def sent(client: Any, ask: Callable[[], object]) -> tuple[str, str, dict[str, str]]:
    """The request that `ask` would send by `client`: method, URL and headers."""
    seen: list[Any] = []

    def stop(request: Any, **_: Any) -> None:
        seen.append(request)
        raise Stopped

    client.meta.events.register("before-send.s3", stop)
    try:
        with pytest.raises((Stopped, OSError)):
            ask()
    finally:
        client.meta.events.unregister("before-send.s3", stop)
    (request,) = seen
    headers = {name.lower(): str(value) for name, value in request.headers.items()}
    return request.method, request.url, {name: headers[name] for name in headers.keys() - NOT_COMPARED}


def configured(client: Any) -> dict[str, Any]:
    """What a client says of itself."""
    return {
        "endpoint": client.meta.endpoint_url,
        "region": client.meta.region_name,
        # This also tells which features the session has used until now.
        **{name: getattr(client.meta.config, name) for name in Config.OPTION_DEFAULTS.keys() - {"user_agent"}},
    }


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_give_the_client_and_the_requests_that_s3fs_gives(options: dict[str, Any]) -> None:
    requests: list[tuple[Callable[[Home], object], str, dict[str, Any]]] = [
        (lambda home: home.get(["a"]), "get_object", {"Key": "x/a"}),
        (lambda home: home.exist(["a"]), "head_object", {"Key": "x/a"}),
        (lambda home: home.put({"a": b"data"}), "put_object", {"Key": "x/a", "Body": b"data"}),
        (lambda home: home.create({"a": b""}), "put_object", {"Key": "x/a", "Body": b"", "IfNoneMatch": "*"}),
        (lambda home: home.delete(["a"]), "delete_object", {"Key": "x/a"}),
        (lambda home: list(home.entries("a")), "list_objects_v2", {"Prefix": "x/a/"}),
    ]
    with opened(options) as (home, files):
        ours, theirs = home.files.s3, files.s3
        assert ours is not theirs
        assert configured(ours) == configured(theirs)
        for ask, operation, parameters in requests:
            by_s3fs = sent(theirs, lambda: files.call_s3(operation, Bucket="bucket", **parameters))  # noqa: B023
            # Credentials have their share in the signature.
            assert sent(ours, lambda: ask(home)) == by_s3fs  # noqa: B023


def test_the_configuration_of_fsspec_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {**PLACE, "config_kwargs": {"max_pool_connections": 5}})
    with opened({}) as (home, files):
        ours = home.files.s3
        assert configured(ours) == configured(files.s3)
        assert (ours.meta.endpoint_url, ours.meta.config.max_pool_connections) == (PLACE["endpoint_url"], 5)
