"""TensorBlob on S3."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch
from s3fs import S3FileSystem

from infinite_tensor import StoreError, TensorBlob

# Inside: how long a right to write lasts.
from infinite_tensor_stores.blobs.writers import FOLDER, SECONDS
from tests.stores.blobs.killed import WIDTH, kill_at_random, rows
from tests.support.interpreters import Team
from tests.support.s3_proxy import Proxy
from tests.support.s3_server import ADMIN, S3Server
from tests.support.stores import sample


def create(url: str, server: S3Server, **more: Any) -> TensorBlob:
    return TensorBlob.open(
        url, "w+", dtype="int64", shape=WIDTH, storage_options=server.options(), **{"block_size": 4, **more}
    )


def age_leases(bucket: S3FileSystem, url: str) -> int:
    """Make leases look as old as those of a process that has ended; how many there are."""
    paths = bucket.find(f"{url}/{FOLDER}")
    for path in paths:
        found = json.loads(bucket.cat_file(path))
        bucket.pipe_file(path, json.dumps({**found, "renewed": time.time() - SECONDS - 1}).encode())
    return len(paths)


@pytest.mark.parametrize("compressors", sample(["auto", None], "auto"))
def test_a_blob_on_s3_is_written_reopened_and_read(server: S3Server, url: str, compressors: Any) -> None:
    with create(url, server, compressors=compressors) as blob:
        blob.write(rows(0, 30))
        blob[7] = rows(99, 1)
        blob.truncate(27)
    options: dict[str, Any] = {"storage_options": server.options()}
    with TensorBlob.open(url, "a+", **options) as blob:
        blob.write(rows(27, 3))
        expected = rows(0, 30).clone()
        expected[7] = 99
        assert torch.equal(blob[:], expected)
    reader = TensorBlob.open(url, **options)
    assert torch.equal(reader.read(), expected)
    assert torch.equal(reader[[29, 7, 0]], expected[[29, 7, 0]])
    assert torch.equal(reader.as_tensor()[5:9], expected[5:9])
    assert TensorBlob.unlink(url, **options)
    with pytest.raises(FileNotFoundError):
        TensorBlob.open(url, **options)


def test_a_reader_on_s3_sees_what_another_process_flushes(server: S3Server, url: str) -> None:
    create(url, server).close()
    reader = TensorBlob.open(url, storage_options=server.options())
    with Team(1) as team:
        team.members[0].call(append, url, server.options())
    assert reader.refresh() == 6
    assert torch.equal(reader.read(), rows(0, 6))


def append(url: str, options: dict[str, Any]) -> None:
    """Add six rows."""
    with TensorBlob.open(url, "a", storage_options=options) as blob:
        blob.write(rows(0, 6))


def test_a_second_writer_on_s3_is_refused(server: S3Server, url: str) -> None:
    with create(url, server):
        with pytest.raises(StoreError, match=r"process \d+ on .* has it open for writing"):
            TensorBlob.open(url, "a", storage_options=server.options())
        with Team(1) as team, pytest.raises(StoreError, match="its lease expires 60 s after the last renewal"):
            team.members[0].call(append, url, server.options())
    TensorBlob.open(url, "a", storage_options=server.options()).close()


@pytest.mark.slow
def test_of_writers_on_s3_that_begin_at_once_at_most_one_goes_on(server: S3Server, url: str) -> None:
    create(url, server).close()
    with Team(3) as team:
        outcomes = team.together(*[(try_to_hold, url, server.options())] * 3)
        assert outcomes.count(True) <= 1


_held: list[TensorBlob] = []


def try_to_hold(url: str, options: dict[str, Any]) -> bool:
    """Whether this process may write."""
    try:
        _held.append(TensorBlob.open(url, "a", storage_options=options))
    except StoreError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_a_killed_writer_on_s3_leaves_whole_rows_and_no_lease_for_good(
    server: S3Server, url: str, bucket: S3FileSystem, seed: int
) -> None:
    create(url, server).close()
    least, most = kill_at_random(url, seed, 25, storage_options=server.options())
    options: dict[str, Any] = {"storage_options": server.options()}
    found = TensorBlob.open(url, **options).read()
    assert least <= len(found) <= most
    assert torch.equal(found, rows(0, len(found)))
    with pytest.raises(StoreError, match="its lease expires"):
        TensorBlob.open(url, "a", **options)
    assert age_leases(bucket, url) == 1
    with TensorBlob.open(url, "a+", **options) as blob:
        blob.write(rows(len(blob), 5))
        assert torch.equal(blob[:], rows(0, len(blob)))


@pytest.mark.parametrize("damage", sample(["missing", "short", "flipped"], "flipped"))
def test_a_damaged_block_on_s3_is_named(server: S3Server, url: str, bucket: S3FileSystem, damage: str) -> None:
    with create(url, server) as blob:
        blob.write(rows(0, 12))
    path = f"{url}/c.1.0"
    data = bytearray(bucket.cat_file(path))
    if damage == "missing":
        bucket.rm_file(path)
    elif damage == "short":
        bucket.pipe_file(path, bytes(data[:-5]))
    else:
        data[9] ^= 4
        bucket.pipe_file(path, bytes(data))
    reader = TensorBlob.open(url, storage_options=server.options())
    assert torch.equal(reader[:4], rows(0, 4))
    with pytest.raises(StoreError, match=r"block c\.1\.0 \(rows 4 to 7\) is damaged"):
        _ = reader[5]


def test_a_read_fetches_each_block_once_and_a_flush_is_two_requests(proxy: Proxy, server: S3Server, url: str) -> None:
    options = {**server.options(), "endpoint_url": proxy.url}
    with create(url, server) as blob:
        blob.write(rows(0, 40))
    reader = TensorBlob.open(url, storage_options=options)
    proxy.requests.clear()
    assert torch.equal(reader[:], rows(0, 40))
    assert sorted(reader[[3, 2, 39]][:, 0].tolist()) == [2, 3, 39]
    assert len(proxy.requests) == 10
    with TensorBlob.open(url, "a", storage_options=options) as blob:
        blob.write(rows(40, 1))
        blob.flush()
        proxy.requests.clear()
        blob.write(rows(41, 1))
        blob.flush()
        assert [method for method, *_ in proxy.requests] == ["PUT", "PUT"]


def test_a_storage_that_is_down_is_an_error_without_credentials_and_nothing_is_lost(server: S3Server, url: str) -> None:
    blob = create(url, server, timeout=2.0)
    blob.write(rows(0, 3))
    server.pause()
    try:
        with pytest.raises(StoreError, match="cannot be flushed") as raised:
            blob.flush()
    finally:
        server.resume()
    assert not [secret for secret in ADMIN if secret in str(raised.value)]
    blob.close()
    assert torch.equal(TensorBlob.open(url, storage_options=server.options()).read(), rows(0, 3))
