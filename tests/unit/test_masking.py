"""What is hidden of URLs, options and errors: inside, since no storage repeats all of them in an error."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem

from infinite_tensor_stores.homes import Home
from infinite_tensor_stores.remote import LoginMask, RemoteHome
from infinite_tensor_stores.targets import shown

SECRETS = ("hunter2secret", "AKIAEXAMPLE99", "abc/def+ghi==", "tokentoken")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/a/b.zarr", "s3://bucket/a/b.zarr"),
        ("memory://x", "memory://x"),
        ("a/b?c@d.zarr", "a/b?c@d.zarr"),
        ("https://host:8080/a@b/c", "https://host:8080/a@b/c"),
        ("https://user:hunter2secret@host/x.zarr", "https://***@host/x.zarr"),
        ("https://hunter2secret@host/x.zarr", "https://***@host/x.zarr"),
        ("ftp://user:p@hunter2secret@host:21/x", "ftp://***@host:21/x"),
        ("s3://AKIAEXAMPLE99:abc/def+ghi==@bucket/x", "s3://***@bucket/x"),
        ("https://host/x?AWSAccessKeyId=AKIAEXAMPLE99&Signature=abc/def+ghi==", "https://host/x?***"),
        ("https://host/x#token=hunter2secret", "https://host/x#***"),
        ("https://host/x.zarr#hunter2secret?v=2", "https://host/x.zarr#***"),
        ("https://host/x?v=2#hunter2secret", "https://host/x?***"),
        ("https://user:hunter2secret@host/x#tokentoken", "https://***@host/x#***"),
        ("a/b#c.zarr", "a/b#c.zarr"),
        ("simplecache::https://user:hunter2secret@host/x", "simplecache::https://***@host/x"),
        ("zip://in.zarr::s3://AKIAEXAMPLE99:tokentoken@b/x.zip", "zip://in.zarr::s3://***@b/x.zip"),
    ],
)
def test_a_url_is_shown_without_its_login_and_its_query(url: str, expected: str) -> None:
    assert shown(url) == expected
    assert shown(f"cannot read {url} now") == f"cannot read {expected} now"


@pytest.mark.parametrize(
    "options",
    [
        {"key": "AKIAEXAMPLE99", "secret": "abc/def+ghi==", "token": b"tokentoken"},
        {"client_kwargs": {"headers": [("Authorization", "tokentoken")], "aws_secret_access_key": "hunter2secret"}},
        {"anything at all": {"nested": ({"deep": ["hunter2secret"]},)}},
        {"endpoint_url": "https://user:hunter2secret@host?sig=tokentoken", "password": "AKIAEXAMPLE99"},
    ],
)
def test_texts_in_options_are_hidden_however_they_are_nested(options: dict[str, object]) -> None:
    mask = LoginMask("s3://bucket/x", options)
    text = mask.text(f"refused: {', '.join(SECRETS)}, abc%2Fdef%2Bghi%3D%3D, {'hunter2secret'!r}")
    held = [secret for secret in SECRETS if secret in repr(options)]
    assert held
    assert not [secret for secret in held if secret in text]
    assert not ("abc/def+ghi==" in held and "abc%2F" in text)


def test_what_says_only_where_a_storage_is_is_shown() -> None:
    mask = LoginMask(
        "s3://bucket/x", {"endpoint_url": "http://127.0.0.1:9000", "client_kwargs": {"region_name": "eu-west-1"}}
    )
    said = "Could not connect to http://127.0.0.1:9000/bucket/x in eu-west-1"
    assert mask.text(said) == said


def test_a_short_text_is_hidden_only_where_it_stands_alone() -> None:
    mask = LoginMask("s3://bucket/x", {"key": "S3", "secret": "at"})
    assert mask.text("S3 says that key S3 at: 'at' is wrong") == "*** says that key *** ***: '***' is wrong"


def test_credentials_of_the_url_are_hidden_apart_from_it() -> None:
    mask = LoginMask("https://me:hunter2secret@host/x?Signature=abc%2Fdef%2Bghi%3D%3D&t=tokentoken")
    for secret in ("hunter2secret", "abc/def+ghi==", "abc%2Fdef%2Bghi%3D%3D", "tokentoken"):
        assert mask.text(f"what about {secret}?") == "what about ***?"


def test_a_credential_in_a_cause_a_context_or_a_note_is_found() -> None:
    def caused() -> None:
        try:
            raise ValueError("hunter2secret")
        except ValueError as error:
            raise OSError("caused") from error

    def in_context() -> None:
        try:
            raise ValueError("hunter2secret")
        except ValueError:
            raise OSError("in context")  # noqa: B904  (that is the case)

    def noted() -> None:
        error = OSError("noted")
        error.add_note("hunter2secret")
        raise error

    mask = LoginMask("s3://b/x", {"secret": "hunter2secret"})
    for fail in (caused, in_context, noted):
        with pytest.raises(OSError, match=r"caused|in context|noted") as told:
            fail()
        text = "".join(traceback.format_exception(mask.error(told.value)))
        assert "OSError" in text
        assert "hunter2secret" not in text


class RefusingFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """Repeats a password in whatever it is asked."""

    cachable = False

    async def _refuse(self, *_: Any, **__: Any) -> None:
        raise PermissionError("hunter2secret is no password")

    _cat_file = _pipe_file = _rm = _rm_file = _exists = _info = _ls = _find = _cp_file = _refuse


@pytest.mark.parametrize(
    "ask",
    [
        lambda home: home.get(["a"]),
        lambda home: home.put({"a": b"x"}),
        lambda home: home.create({"a": b"x"}),
        lambda home: home.exist(["a"]),
        lambda home: home.sizes(["a"]),
        lambda home: home.delete(["a"]),
        lambda home: home.delete_folders(["a"]),
        lambda home: home.copy({"a": "b"}),
        lambda home: home.names("a"),
        lambda home: list(home.keys("a")),
        lambda home: list(home.entries("a")),
    ],
)
def test_nothing_that_a_home_is_asked_shows_a_credential(ask: Callable[[Home], Any]) -> None:
    mask = LoginMask("refusing://x", {"password": "hunter2secret"})
    home = RemoteHome(RefusingFileSystem(), "x", mask, read_only=False, at_once=2)
    with pytest.raises(PermissionError) as told:
        ask(home)
    assert str(told.value) == "PermissionError: *** is no password"
    assert "hunter2secret" not in "".join(traceback.format_exception(told.value))
