"""Planning and filling regions of several tensors at once, which may share tensors upstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from infinite_tensor.engine.node import Node
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.fill import Job, fill, prepare, writable
from infinite_tensor.filling.forecast import FillPlan
from infinite_tensor.filling.progress import Watcher, checked_progress
from infinite_tensor.filling.report import FillReport
from infinite_tensor.indexing import Selection
from infinite_tensor.validate import checked_workers
from infinite_tensor.window import as_index

if TYPE_CHECKING:
    from distributed import Client


class Filled(Protocol):
    """A tensor, for what a fill needs to know of it."""

    _node: Node


_INTERRUPTED = (
    "The fill was interrupted. What it has computed is kept: call fill with the same region again, and it continues "
    "from there."
)

Requests: TypeAlias = "Sequence[tuple[Filled, Selection]]"


def plan_together(requests: Requests, *, max_memory: int | None = None) -> FillPlan:
    """What `fill_together` would cost; computes nothing. A tensor upstream of several of them counts once.

    Raises
    ------
    ValidationError
        If the regions cannot be filled within `max_memory`.
    """
    return _job(requests, max_memory, None).plan()


def fill_together(
    requests: Requests,
    *,
    workers: int | None = None,
    max_memory: int | None = None,
    client: Client | None = None,
    progress: bool | str | Watcher = True,
    shard: tuple[int, int] | None = None,
) -> FillReport:
    """Compute and store every tile that some regions touch; parameters and errors as for `InfiniteTensor.fill`.

    Tensors that share some upstream are filled side by side where memory allows it, so that what several of them need
    is computed once, whatever its store keeps; otherwise one after the other, those that others read first.

    Raises
    ------
    KeyboardInterrupt
        After a Ctrl-C, with a note that says how to continue.
    """
    workers = None if workers is None else checked_workers(workers)
    job = writable(_job(requests, max_memory, shard))
    progress = checked_progress(progress)
    if not job.passes:
        return FillReport((), 0.0)
    try:
        if client is not None:
            # What only a cluster needs.
            from infinite_tensor.filling.cluster import fill_on_cluster  # noqa: PLC0415

            return fill_on_cluster([tensor for tensor, _ in requests], job, client, workers, progress)
        return fill(job, workers, progress)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(_INTERRUPTED)
        raise


def _job(requests: Requests, max_memory: object, shard: object) -> Job:
    most = None if max_memory is None else as_index(max_memory)
    if max_memory is not None and (most is None or most < 1):
        raise ValidationError(f"max_memory must be a positive number of bytes or None, got {max_memory!r}")
    return prepare([(tensor._node, selection) for tensor, selection in requests], most, _checked_shard(shard))


def _checked_shard(shard: object) -> tuple[int, int] | None:
    if shard is None:
        return None
    numbers = [as_index(number) for number in shard] if isinstance(shard, tuple | list) else []
    if len(numbers) == 2 and None not in numbers:
        rank, count = numbers
        if rank is not None and count is not None and 0 <= rank < count:
            return rank, count
    raise ValidationError(f"shard must be (rank, world_size) with 0 <= rank < world_size, got {shard!r}")
