"""Exports to S3: a Zarr group that is there when its root document is, which comes last."""

from __future__ import annotations

import signal
import traceback
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from s3fs import S3FileSystem

from infinite_tensor import InfiniteTensor, StoreError, ValidationError, ZarrTileStore, sl
from tests.behaviour.views.exports.scenes import REGION, pattern, plane, truth
from tests.support.interpreters import CONTEXT, DEADLINE, enter_child
from tests.support.s3_proxy import Proxy, Request
from tests.support.s3_server import READER, S3Server
from tests.support.stores import sample

LARGE = (slice(0, 64), slice(0, 64))
CHUNKS = 64


@pytest.fixture
def url() -> str:
    """A prefix that no other test uses, and that ends as the format wants."""
    return f"s3://tiles/{next(_numbers)}.zarr"


_numbers = iter(range(10**6))


def read(url: str, options: dict[str, Any]) -> np.ndarray[Any, np.dtype[Any]]:
    with xarray.open_zarr(url, storage_options={**options, "use_listings_cache": False}) as found:
        pixels: np.ndarray[Any, np.dtype[Any]] = found["height"].to_numpy()
        return pixels


def keys(bucket: S3FileSystem, url: str) -> list[str]:
    folder = f"{url.removeprefix('s3://')}/"
    return sorted(key.removeprefix(folder) for key in bucket.find(url) if key.startswith(folder))


def stored(folder: Path) -> InfiniteTensor:
    return plane(tile_store=ZarrTileStore(folder / "tiles", tile_size=8))


def test_xarray_opens_what_was_exported(server: S3Server, url: str) -> None:
    plane().export(sl[REGION], url, storage_options=server.options())
    assert np.array_equal(read(url, server.options()), truth())


def test_the_root_document_is_written_last(proxy: Proxy, server: S3Server, url: str) -> None:
    options = {**server.options(), "endpoint_url": proxy.url}
    plane().export(sl[REGION], url, storage_options=options)
    written = [target.partition(".zarr/")[2].partition("?")[0] for method, target in proxy.requests if method == "PUT"]
    assert written[-1] == "zarr.json"
    chunks = [number for number, key in enumerate(written) if "/c/" in key]
    documents = [number for number, key in enumerate(written) if key.endswith("/zarr.json")]
    assert max(chunks) < min(documents)


def export_through(path: Path, url: str, options: dict[str, Any]) -> None:
    enter_child()
    stored(path).export(sl[LARGE], url, storage_options=options)


class KilledAt:
    """Kills a process as it begins a PUT that changes an export, which is not carried out."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: BaseProcess | None = None

    def __call__(self, request: Request) -> bool:
        if request[0] in ("PUT", "DELETE") and self.process is not None and self.process.pid is not None:
            self.number -= 1
            if self.number <= 0:
                self.process.kill()
                return True
        return False


# Before any, among the chunks, before the mark, among the copies, before the root, and before the mark is deleted.
@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    sample([1, 2, 40, CHUNKS + 1, CHUNKS + 2, CHUNKS + 30, 2 * CHUNKS + 8, 2 * CHUNKS + 9], 2 * CHUNKS + 8),
)
def test_a_kill_leaves_no_group_and_the_next_export_goes_on(
    number: int, proxy: Proxy, server: S3Server, url: str, bucket: S3FileSystem, tmp_path: Path
) -> None:
    t = stored(tmp_path)
    t.fill(sl[LARGE], progress=False)
    options = {**server.options(), "endpoint_url": proxy.url}
    killed = KilledAt(number)
    proxy.refuse = killed
    killed.process = CONTEXT.Process(target=export_through, args=(tmp_path, url, options))
    killed.process.start()
    killed.process.join(DEADLINE)
    assert killed.process.exitcode == -signal.SIGKILL
    proxy.refuse = lambda _request: False
    left = keys(bucket, url)
    if "zarr.json" in left:
        assert np.array_equal(read(url, server.options()), truth(LARGE))
    chunks = [key for key in left if key.startswith("__export-")]
    before = len(proxy.requests)
    t.export(sl[LARGE], url, storage_options=options)
    again = [target for method, target in proxy.requests[before:] if method == "PUT" and "/__export-" in target]
    assert len(again) == CHUNKS - len(chunks)
    assert np.array_equal(read(url, server.options()), truth(LARGE))
    assert all(key.split("/")[0] in ("height", "y", "x", "zarr.json") for key in keys(bucket, url))


@pytest.mark.slow
def test_a_half_done_export_of_something_else_is_replaced(
    proxy: Proxy, server: S3Server, url: str, bucket: S3FileSystem, tmp_path: Path
) -> None:
    through = {**server.options(), "endpoint_url": proxy.url, "config_kwargs": {"retries": {"max_attempts": 0}}}
    proxy.refuse = lambda request: request[0] == "PUT" and len(proxy.requests) > 100
    with pytest.raises(StoreError):
        stored(tmp_path).export(sl[0:256, 0:256], url, storage_options=through)
    assert len(keys(bucket, url)) > 50
    plane().export(sl[REGION], url, storage_options=server.options())
    assert np.array_equal(read(url, server.options()), truth())
    assert len(keys(bucket, url)) < 20


@pytest.mark.slow
def test_an_export_is_overwritten_from_its_root_on(proxy: Proxy, server: S3Server, url: str) -> None:
    options = {**server.options(), "endpoint_url": proxy.url}
    plane().export(sl[LARGE], url, storage_options=options)
    with pytest.raises(ValidationError, match=r"'s3://.*' already exists"):
        plane().export(sl[REGION], url, storage_options=options)
    before = len(changes(proxy))
    plane().export(sl[REGION], url, storage_options=options, overwrite=True)
    assert changes(proxy)[before : before + 2] == [("PUT", "export.json"), ("DELETE", "zarr.json")]
    assert np.array_equal(read(url, server.options()), truth())


def changes(proxy: Proxy) -> list[Request]:
    """The requests that change a target, without chunks that are not yet in their places."""
    return [
        (method, target.partition(".zarr/")[2].partition("?")[0])
        for method, target in proxy.requests
        if method in ("PUT", "DELETE") and "/__export-" not in target
    ]


SWITCH = ["export.json", "height/c/1/2", "height/zarr.json", "zarr.json"]


# Before, and after each step of the switch: the mark, the chunks, the documents, the root.
@pytest.mark.parametrize("last", sample(SWITCH, "export.json"))
@pytest.mark.parametrize("is_before", [True, False])
def test_of_two_exports_that_end_together_one_is_whole_and_the_other_says_that_it_is_not(
    last: str, is_before: bool, proxy: Proxy, server: S3Server, url: str
) -> None:
    begun: list[Request] = []

    def run_the_other(request: Request) -> bool:
        if not begun and ("PUT", last) in changes(proxy) and is_before == request[1].endswith(f".zarr/{last}"):
            begun.append(request)
            plane(lambda ctx: pattern(ctx) + 1).export(
                sl[REGION], url, overwrite=True, storage_options=server.options()
            )
        return False

    proxy.refuse = run_the_other
    with pytest.raises(StoreError, match="another export"):
        plane().export(sl[REGION], url, overwrite=True, storage_options={**server.options(), "endpoint_url": proxy.url})
    assert begun
    assert np.array_equal(read(url, server.options()), truth() + 1)


@pytest.mark.slow
def test_an_overwriting_that_was_stopped_is_repeated(
    proxy: Proxy, server: S3Server, url: str, bucket: S3FileSystem
) -> None:
    plane().export(sl[LARGE], url, storage_options=server.options())
    through = {**server.options(), "endpoint_url": proxy.url, "config_kwargs": {"retries": {"max_attempts": 0}}}
    proxy.refuse = lambda request: request[0] == "POST"
    with pytest.raises(StoreError):
        plane().export(sl[REGION], url, storage_options=through, overwrite=True)
    left = keys(bucket, url)
    assert "zarr.json" not in left
    assert "height/c/0/0" in left
    plane(lambda ctx: pattern(ctx) + 1).export(sl[REGION], url, storage_options=server.options(), overwrite=True)
    assert np.array_equal(read(url, server.options()), truth() + 1)


def test_what_s3_refuses_is_a_store_error_without_the_login(server: S3Server, url: str) -> None:
    with pytest.raises(StoreError, match=r"cannot write 's3://tiles/\d+.zarr': PermissionError") as caught:
        plane().export(sl[REGION], url, storage_options=server.options(READER))
    assert READER[1] not in "".join(traceback.format_exception(caught.value))
