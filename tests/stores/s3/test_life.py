"""A store on S3 from its creation to its end."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from s3fs import S3FileSystem

from infinite_tensor import StoreError, TileAccessError, TileStore
from infinite_tensor.errors import DependantsRemainWarning
from tests.support.chain import NAMES, STAGES, Chain, Window, expected, open_chain_store, random_parts
from tests.support.interpreters import QUIET_FORKS, Team
from tests.support.members import plain
from tests.support.reference import Box, region, same_bits
from tests.support.s3_server import READER, S3Server

BOX: Box = ((-9, -9), (12, 12))


def open_on_s3(url: str, options: dict[str, Any], **more: Any) -> TileStore:
    return open_chain_store(url, storage_options=options, **more)


def fill(url: str, options: dict[str, Any], seed: int, count: int) -> Counter[Window]:
    """Read random parts of the chain, flush, and tell how often each window ran."""
    with open_on_s3(url, options) as store:
        chain = Chain(store)
        chain.check(*random_parts(seed, count))
    return chain.calls


def test_what_is_stored_is_found_again_and_never_computed_again(server: S3Server, url: str) -> None:
    calls = fill(url, server.options(), 1, 5)
    assert set(calls.values()) == {1}
    with open_on_s3(url, server.options(), mode="r") as store:
        again = Chain(store)
        again.check(*random_parts(1, 5))
        assert [store.open(name).shape for name in NAMES] == [stage.shape for stage in STAGES]
        with pytest.raises(TileAccessError):
            store.open("ground")[1000:1001, 1000:1001]
    assert not again.calls


@pytest.mark.slow
def test_two_processes_fill_one_chain_at_once(server: S3Server, url: str) -> None:
    with Team(2) as team:
        counts = team.together(*[(fill, url, server.options(), seed, 4) for seed in (2, 3)])
    assert all(set(calls.values()) == {1} for calls in counts)
    with open_on_s3(url, server.options()) as store:
        again = Chain(store)
        again.check(*random_parts(2, 4), *random_parts(3, 4))
    assert not again.calls, "what was flushed is computed again"


def test_a_cleared_tensor_leaves_no_object_behind(server: S3Server, url: str, bucket: S3FileSystem) -> None:
    with open_on_s3(url, server.options()) as store:
        Chain(store).ground[region(BOX)]
        store.flush()
        assert any("t-ground/" in key for key in bucket.find(url))
        with pytest.warns(DependantsRemainWarning, match="are kept unchanged: .*'map', 'slope'"):
            store.clear_tensor("ground")
        assert not any("t-ground/" in key for key in bucket.find(url))
        assert store.tensor_ids() == ["coast", "haze", "map", "slope"]
        assert same_bits(Chain(store).ground[region(BOX)], expected(0, BOX))


@pytest.mark.slow
def test_a_flush_that_the_server_does_not_live_through_succeeds_when_it_is_back(server: S3Server, url: str) -> None:
    # Patient with a server that is slow, and quick to report one that is down.
    store = open_on_s3(url, server.options(config_kwargs={"read_timeout": 5.0}), timeout=5.5)
    chain = Chain(store)
    chain.slope[region(((0, 0), (8, 8)))]
    store.flush()
    chain.slope[region(BOX)]
    server.stop()
    with pytest.raises(StoreError, match=r"'s3://tiles/.*could not store tile \(.* of tensor '\w+'.*kept in memory"):
        store.flush()
    with pytest.raises(StoreError, match=r"'s3://tiles/.*could not read tile \(.* of tensor 'slope'"):
        chain.slope[800:808, 800:808]
    server.start()
    store.close()
    with open_on_s3(url, server.options()) as store:
        again = Chain(store)
        again.check((1, BOX))
    assert set(chain.calls.values()) == {1}
    assert not again.calls


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_reads_and_writes(server: S3Server, url: str) -> None:
    store = open_on_s3(url, server.options())
    chain = Chain(store)
    chain.ground[region(BOX)]
    store.flush()

    def work() -> None:
        torch.set_num_threads(1)
        chain.check((0, BOX), (1, BOX))
        store.close()

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    with open_on_s3(url, server.options()) as other:
        again = Chain(other)
        again.check((1, BOX))
    assert not again.calls
    chain.check((0, BOX), (1, BOX), (2, ((0, 0, 0), (2, 4, 4))))
    store.close()


_CARELESS = """
import gc, json, os, sys
from infinite_tensor import ZarrTileStore
url, options = json.loads(sys.argv[1])
dropped = ZarrTileStore(url, storage_options=options)
del dropped
gc.collect()
kept = ZarrTileStore(url, storage_options=options)
child = os.fork() if hasattr(os, "fork") else None
kept.tensor_ids()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    kept.tensor_ids()
"""


@pytest.mark.slow
def test_connections_that_nobody_closes_are_closed_without_a_word(server: S3Server, url: str) -> None:
    arguments = json.dumps([url, server.options()])
    command = [sys.executable, "-W", "default::ResourceWarning", *QUIET_FORKS, "-c", _CARELESS, arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_store_goes_to_another_process_by_reference(server: S3Server, url: str) -> None:
    with open_on_s3(url, server.options(), timeout=7.0) as store, Team(1) as team:
        team.members[0].call(_fill_pickled, pickle.dumps(store))
        again = Chain(store)
        again.check((1, BOX))
    assert not again.calls


def _fill_pickled(store: bytes) -> None:
    opened: Any = pickle.loads(store)  # noqa: S301  (its own)
    with opened:
        Chain(opened).check((1, BOX))


@pytest.mark.slow
def test_a_login_that_may_only_read_reads_and_is_refused_to_write(server: S3Server, url: str) -> None:
    fill(url, server.options(), 1, 4)
    with open_on_s3(url, server.options(READER), mode="r") as store:
        Chain(store).check(*random_parts(1, 4))
    with open_on_s3(url, server.options(READER)) as store:
        Chain(store).check(*random_parts(1, 4))
        with pytest.raises(StoreError, match="could not register tensor 'new': PermissionError: Access Denied"):
            plain(store, "new", 1)
    with (
        open_on_s3(f"{url}-new", server.options(READER)) as store,
        pytest.raises(StoreError, match="PermissionError: Access Denied"),
    ):
        plain(store, "new", 1)
