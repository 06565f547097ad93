"""kill -9 in the middle of a rename: the tensor is whole under one of its ids, or under both."""

from __future__ import annotations

import itertools
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.support.counting import Counted
from tests.support.interpreters import CONTEXT, DEADLINE, enter_child
from tests.support.moments import Kill, Moment
from tests.support.reference import same_bits

WINDOW = TensorWindow((6,), stride=4)


def value(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.full((6,), float(ctx[0]))


def made(store: ZarrTileStore, name: str, f: Counted) -> InfiniteTensor:
    return InfiniteTensor((None,), f, WINDOW, tile_store=store, tensor_id=name)


def renaming(sending: Connection, path: Path, kill: Kill) -> None:
    enter_child()
    kill.arm(path)
    with ZarrTileStore(path) as store:
        store.rename("old", "new")
    sending.send("done")


def run(path: Path, kill: Kill) -> int | None:
    receiving, sending = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=renaming, args=(sending, path, kill), daemon=True)
    process.start()
    sending.close()
    process.join(DEADLINE)
    process.kill()
    receiving.close()
    return process.exitcode


def test_a_tensor_is_whole_under_one_of_its_ids_or_both_after_a_kill_at_every_change(tmp_path: Path) -> None:
    seen = set()
    for number in itertools.count(1):
        path, f = tmp_path / str(number), Counted(value)
        with ZarrTileStore(path, tile_size=8) as store:
            expected = made(store, "old", f)[0:45]
        calls = len(f.calls)
        code = run(path, Kill(Moment("", "", number)))
        with ZarrTileStore(path) as store:
            ids = store.tensor_ids()
            for name in ids:
                assert same_bits(made(store, name, f)[0:45], expected)
                assert store.verify(name) == []
            assert len(f.calls) == calls
            if len(ids) == 2:
                store.clear_tensor("old")
            elif ids == ["old"]:
                store.rename("old", "new")
            store.gc()
            assert store.tensor_ids() == ["new"]
            assert same_bits(made(store, "new", f)[0:45], expected)
            assert store.verify("new") == []
        assert len(f.calls) == calls
        seen.add(tuple(ids))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert seen == {("old",), ("new", "old"), ("new",)}
