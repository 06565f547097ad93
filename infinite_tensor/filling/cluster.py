"""Fills a region on a Dask cluster.

Tensors are filled one after the other, upstream tensors first. Each is cut into shards. A shard stores
only its own tiles, so two neighbouring shards both compute the windows across their border. If a shard is lost with its
worker, it runs again, and computes what was not stored yet.
"""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from infinite_tensor.engine.chain import Node, NodeHolder, chain_of, node_of
from infinite_tensor.filling.fill import FillJob, carry_out, job_for
from infinite_tensor.filling.mask import Target, WantedPixels
from infinite_tensor.filling.plan import Share, demands, shares_of
from infinite_tensor.filling.progress import FillReport, Reporting, Tally, TensorReport
from infinite_tensor.support.forks import Lock

if TYPE_CHECKING:
    from distributed import Client, Future

_SHARDS_PER_THREAD = 4
"""Several shards per thread, because shards take different times and workers may join later."""


def fill_on_cluster(
    tensors: Sequence[NodeHolder], job: FillJob, client: Client, workers: int | None, progress: Reporting
) -> FillReport:
    """Run `fill` on the workers of a Dask cluster."""
    import cloudpickle  # noqa: PLC0415  (comes with distributed)

    chain = chain_of(map(node_of, tensors))
    # Workers will change the tiles, and cached information in this process will be outdated.
    _forget(chain)
    needs, _ = demands(job.targets, named=not all(target.is_whole for target in job.targets))
    count = _SHARDS_PER_THREAD * max(1, sum(client.nthreads().values()))
    # Tensors in memory have no shards: each shard computes the windows it needs.
    shards = {
        demand.node: list(shares_of(demand, count))
        for demand in reversed(needs)
        if (contents := demand.node.contents).outlives_process and contents.shared and not contents.read_only
    }
    total = sum(share.missing for demand in needs if demand.runs for share in shards.get(demand.node, ()))
    reports: list[ShardReport] = []
    with Tally(total, progress, sum(map(len, shards.values()))) as tally:
        # With a hash, an interrupted fill could share the payload and release it.
        payload = client.scatter(cloudpickle.dumps(list(tensors)), broadcast=True, hash=False)
        try:
            for node, shares in shards.items():
                # The dashboard groups tasks by the part of the key before the last hyphen.
                name = f"fill {node.spec.tensor_id}".replace("-", "_") + f"-{secrets.token_hex(4)}"
                futures = [
                    client.submit(
                        fill_share,
                        payload,
                        chain.index(node),
                        share,
                        workers,
                        job.max_memory,
                        key=f"{name}{number}",
                        pure=False,
                    )
                    for number, share in enumerate(shares)
                ]
                reports += _gathered(client, futures, chain, tally)
        finally:
            client.cancel([payload])
            _forget(chain)
        report = FillReport(tuple(_reports(job, chain, reports)), tally.seconds)
        tally.finish(report)
    return report


def _gathered(
    client: Client, futures: list[Future[ShardReport]], chain: Sequence[Node], tally: Tally
) -> list[ShardReport]:
    from distributed import as_completed  # noqa: PLC0415  (an extra)

    found = []
    try:
        for future in as_completed(futures, raise_errors=False):
            found.append(future.result())
            for node, count in zip(chain, found[-1].windows, strict=True):
                tally.count(node, count)
            tally.pass_parts(1)
    except BaseException:
        client.cancel(futures, force=True)
        raise
    return found


def _reports(job: FillJob, chain: Sequence[Node], done: Sequence[ShardReport]) -> list[TensorReport]:
    written: dict[str, list[ShardReport]] = {}
    for each in done:
        written.setdefault(each.process, []).append(each)
    skipped, reports = job.skipped, []
    for at, node in enumerate(chain):
        # A process may run several shards at the same time.
        tiles, nbytes = (
            sum(
                max(each.after[at][n] for each in of) - min(each.before[at][n] for each in of)
                for of in written.values()
            )
            for n in (0, 1)
        )
        windows = sum(each.windows[at] for each in done)
        reports.append(TensorReport(node.spec.tensor_id, windows, tiles, nbytes, skipped[node]))
    return reports


def _forget(chain: Sequence[Node]) -> None:
    """Forget the known states of tiles, because other processes store tiles too."""
    for node in chain:
        node.contents.refresh(node.spec.tensor_id)


# On the workers.


@dataclass(frozen=True)
class ShardReport:
    """What the fill of a shard has done.

    Each list has one entry per tensor of the chain, sources first.

    Attributes
    ----------
    process : str
        The name of the process in which the shard ran.
    windows : list of int
        The number of windows computed for the shard.
    before, after : list of (int, int)
        The tiles and bytes that the process had stored when the shard began and when it ended.
    """

    process: str
    windows: list[int]
    before: list[tuple[int, int]]
    after: list[tuple[int, int]]


_PROCESS = f"{os.getpid()}-{secrets.token_hex(8)}"
_unpickling = Lock()


def fill_share(payload: bytes, position: int, share: Share, workers: int | None, max_memory: int | None) -> ShardReport:
    """Compute and store the missing windows of a shard."""
    with _unpickling:
        chain = _chain(payload)
    node = chain[position]
    start, stop = share.starts.min(axis=0).tolist(), share.stops.max(axis=0).tolist()
    wanted = WantedPixels(node.contents.layout(node.spec), (share.starts, share.stops))
    before, tally = _written(chain), Tally(0, progress=False)
    try:
        carry_out(job_for([Target(node, tuple(start), tuple(stop), wanted)], max_memory), workers, tally)
    finally:
        _forget(chain)
        for each in chain:
            if not each.contents.outlives_process:
                each.store.clear_cache(each.spec.tensor_id)
    return ShardReport(_PROCESS, [tally.windows[each] for each in chain], before, _written(chain))


def _written(chain: Sequence[Node]) -> list[tuple[int, int]]:
    return [each.contents.written(each.spec.tensor_id) for each in chain]


@lru_cache(maxsize=4)
def _chain(payload: bytes) -> list[Node]:
    """Unpickle the chain, for all shards of a process.

    So each store is opened only once per process.
    """
    return chain_of(map(node_of, pickle.loads(payload)))  # noqa: S301  (the client's)
