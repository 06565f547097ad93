"""Credentials in a URL, which the errors of the client repeat."""

from __future__ import annotations

import socket
import traceback
from typing import Any
from urllib.parse import quote

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem

from infinite_tensor import StoreError, ZarrTileStore

LOGIN = ("user", "hunter2secret")
KEY, SIGNATURE = "AKIAEXAMPLE99", "abcd+ef=="

pytest.importorskip("aiohttp", reason="fsspec needs aiohttp for http: pip install aiohttp")


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_url_with_credentials_is_shown_without_them(closed_port: int, mode: Any) -> None:
    url = f"http://{':'.join(LOGIN)}@127.0.0.1:{closed_port}/x.zarr?AWSAccessKeyId={KEY}&Signature={quote(SIGNATURE)}"
    with pytest.raises(StoreError, match=r"http://\*\*\*@127\.0\.0\.1:\d+/x\.zarr\?\*\*\*', mode=") as told:
        ZarrTileStore(url, mode=mode)
    text = "".join(traceback.format_exception(told.value))
    assert not [secret for secret in (LOGIN[1], KEY, SIGNATURE, quote(SIGNATURE)) if secret in text]


class TelltaleFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """Says in every error how it was set up."""

    protocol = "telltale"
    cachable = False

    def __init__(self, password: str, when: str, **options: Any) -> None:
        super().__init__(**options)
        self.password = password
        self.fail(when == "set up")

    def fail(self, now: bool = True) -> None:
        if now:
            raise PermissionError(f"{self.password!r} is no password")

    async def _cat_file(self, *_: Any, **__: Any) -> bytes:
        try:
            self.fail()
        except PermissionError as error:
            raise ValueError("it is refused") from error
        return b""


@pytest.mark.parametrize("when", ["set up", "read"])
def test_an_option_that_a_file_system_repeats_in_its_error_is_hidden(when: str) -> None:
    fsspec.register_implementation("telltale", TelltaleFileSystem, clobber=True)
    with pytest.raises(
        StoreError, match=r"telltale://x.*(PermissionError: '\*\*\*' is no password|it is refused)"
    ) as told:
        ZarrTileStore("telltale://x", storage_options={"password": LOGIN[1], "when": when})
    assert LOGIN[1] not in "".join(traceback.format_exception(told.value))
