"""Filling a region on a Dask cluster.

Tensors are filled one after the other, those that others read first: each window is part of one task, so none is
computed twice. Where windows of two tasks meet in a tile, its parts lie beside each other in storage until whoever
reads the tile next puts them together. A task that is lost with its worker is run again, and computes what had not
been stored.
"""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from infinite_tensor.engine.chain import Node, chain_of, node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.demand import demands
from infinite_tensor.filling.fill import Job
from infinite_tensor.filling.progress import Tally, Watcher
from infinite_tensor.filling.report import FillReport, TensorReport
from infinite_tensor.filling.tasks import Done, complete, compute, parts_of, spread
from infinite_tensor.geometry.points import Index

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from distributed import Client, Future

_RETRIES = 3
_ASK_SECONDS = 1.0
_WAITING = 64
"""So many tasks, and one for each thread, wait in the scheduler for workers that are free, or are still to come."""
_TILES_AT_ONCE = 64


def fill_on_cluster(
    tensors: Sequence[object], job: Job, client: Client, workers: int | None, progress: bool | str | Watcher
) -> FillReport:
    """Fill as `infinite_tensor.filling.fill.fill` does, on the workers of `client`."""
    _check_shared(job)
    # What is known here of tiles in progress will be out of date.
    _forget(job.chain)
    needs, _ = demands(job.boxes)
    # Of a tensor in memory, whoever needs a window computes it.
    stored = [demand for demand in reversed(needs) if demand.node.store.shared]
    total, in_tasks = (sum(demand.missing for demand in of) for of in (needs, stored))
    with Tally(total, progress, max(1, in_tasks)) as tally, _Tasks(client, tensors, workers, tally) as tasks:
        for demand in stored:
            tasks.carry_out(compute, demand.node, parts_of(demand, tasks.threads), len)
        for node, start, stop in job.boxes:
            parted = node.contents.unfinished(node.spec, start, stop)
            tasks.carry_out(complete, node, _batches(parted), lambda _tiles: 0)
        return FillReport(tuple(tasks.reports()), tally.seconds)


class _Tasks:
    """Carries out tasks for tensors of one chain, which the workers are sent once."""

    def __init__(self, client: Client, tensors: Sequence[Any], workers: int | None, tally: Tally) -> None:
        self._client = client
        self._chain = chain_of(map(node_of, tensors))
        self._workers = workers
        self._tally = tally
        self._written: dict[str, list[tuple[int, int]]] = {}
        # Of this fill alone: what is equal may just be released by one that was interrupted.
        self._payload = client.scatter(_pickled(tensors), broadcast=True, hash=False)
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._threads = (-math.inf, 0)

    @property
    def threads(self) -> int:
        """Of all workers that are there by now."""
        asked, threads = self._threads
        # To ask after each task would be a load on the scheduler.
        if time.monotonic() - asked > _ASK_SECONDS:
            threads = max(1, sum(self._client.nthreads().values()))
            self._threads = time.monotonic(), threads
        return threads

    def carry_out(
        self,
        work: Callable[..., Done],
        node: Node,
        parts: Iterator[Any],
        windows_of: Callable[[Any], int],
    ) -> None:
        """Run ``work`` for each part, a bounded number at a time, and return when all are done.

        ``windows_of(part)`` tells how many windows a part is expected to compute.
        """
        from distributed import as_completed  # noqa: PLC0415  (an extra)

        running = as_completed(loop=self._client.loop, raise_errors=False)
        expected: dict[object, int] = {}

        def submit() -> None:
            for part in itertools.islice(parts, max(0, 2 * self.threads + _WAITING - running.count())):
                future = self._submit(work, node, part)
                expected[future.key] = windows_of(part)
                running.add(future)

        try:
            submit()
            for future in running:
                self._note(future.result())
                self._tally.pass_steps(expected.pop(future.key))
                submit()
        except BaseException:
            self._client.cancel(list(running.futures), force=True)
            raise

    def _submit(self, work: Callable[..., Done], node: Node, part: Any) -> Future[Done]:
        # The dashboard goes by what stands before the last hyphen.
        key = f"{work.__name__} {node.spec.tensor_id}".replace("-", "_") + f"-{self._name}{next(self._numbers)}"
        place = self._chain.index(node)
        return self._client.submit(
            work, self._payload, place, part, self._workers, key=key, pure=False, retries=_RETRIES
        )

    def _note(self, done: Done) -> None:
        for node, count in zip(self._chain, done.windows, strict=True):
            self._tally.count(node, count)
        known = self._written.get(done.process, done.written)
        self._written[done.process] = [max(pair) for pair in zip(known, done.written, strict=True)]

    def reports(self) -> Iterator[TensorReport]:
        """What has been done so far, per tensor."""
        for place, node in enumerate(self._chain):
            tiles, nbytes = (sum(written[place][at] for written in self._written.values()) for at in (0, 1))
            yield TensorReport(node.spec.tensor_id, self._tally.windows[node], tiles, nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._client.cancel([self._payload])
        _forget(self._chain)


def _pickled(tensors: Sequence[object]) -> bytes:
    import cloudpickle  # noqa: PLC0415  (comes with distributed)

    pickled: bytes = cloudpickle.dumps(list(tensors))
    return pickled


def _check_shared(job: Job) -> None:
    filled = {node for node, _, _ in job.boxes}
    for node in job.chain:
        kept = node.contents.outlives_process or node in filled
        if kept and not node.store.shared:
            raise ValidationError(
                f"the workers of a cluster cannot store tensor {node.spec.tensor_id!r} in {node.store!r}; use a "
                "ZarrTileStore at a path or URL that all of them reach"
            )


def _forget(chain: Sequence[Node]) -> None:
    """Have tiles looked up again that others store."""
    for node in chain:
        node.contents.refresh(node.spec.tensor_id)


def _batches(tiles: Sequence[Index]) -> Iterator[list[Index]]:
    for number in spread(-(-len(tiles) // _TILES_AT_ONCE)):
        yield list(tiles[number * _TILES_AT_ONCE : (number + 1) * _TILES_AT_ONCE])
