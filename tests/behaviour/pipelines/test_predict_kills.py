"""A prediction that is killed goes on from what was stored: only what had not been flushed is computed again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from infinite_tensor import InfiniteTensor, predict

SCRIPT = textwrap.dedent(
    """
    import sys, time
    import torch
    from infinite_tensor import ZarrTileStore, predict
    from tests.behaviour.pipelines.test_predict_kills import image, net

    path, log = sys.argv[1:]
    with ZarrTileStore(path, flush_interval=0.5) as store, open(log, "a", buffering=1) as calls:
        def counted(batch):
            time.sleep(0.02)
            scores = net()(batch)
            calls.write(f"{time.time()}\\n")
            return scores

        predict(counted, image(), store, window=(32, 32), overlap=0.5, reduce="argmax", batch_size=2, progress=False)
    """
)
FLUSHED_WITHIN = 2.5
"""Seconds after which what arrives is in storage: the interval, and time for the writer of a busy machine."""


def image() -> torch.Tensor:
    return torch.rand(3, 400, 300, generator=torch.Generator().manual_seed(0))


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Conv2d(3, 6, 3, padding=1).eval()


def calls_in(log: Path) -> list[float]:
    return [float(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_three_kills_cost_no_more_than_what_was_not_flushed(tmp_path: Path) -> None:
    log, batches = tmp_path / "calls", 1 + -(-(24 * 18) // 2)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "s.zarr"), str(log)]
    unflushed = 0
    for run in range(1, 4):
        process = subprocess.Popen(command, cwd=Path(__file__).parents[3])
        while len(calls_in(log)) < run * batches // 4 and process.poll() is None:
            time.sleep(0.05)
        killed = time.time()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # The last batch may have been computed and not told of.
        unflushed += 1 + sum(moment > killed - FLUSHED_WITHIN for moment in calls_in(log))
    subprocess.run(command, cwd=Path(__file__).parents[3], check=True)
    calls = len(calls_in(log))
    # A first window is computed by itself until something is stored, and the last batch of a run may be half full.
    assert calls <= batches + unflushed + 8
    # Otherwise nothing would be shown.
    assert unflushed < batches
    found = predict(
        net(), image(), tmp_path / "s.zarr", window=(32, 32), overlap=0.5, reduce="argmax", batch_size=2,
        progress=False, overwrite=False, tensor_id="again",
    )  # fmt: skip
    with_kills = found.tile_store.open("prediction") if isinstance(found, InfiniteTensor) else None
    assert with_kills is not None
    assert torch.equal(with_kills[...], found[...])
