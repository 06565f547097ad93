"""Planning, filling and invalidating regions of a tensor, or of the tensors of a group: one interface for both."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from infinite_tensor.engine.chain import Node, NodeHolder, node_of
from infinite_tensor.filling.fill import Request, fill, is_filled, prepare, writable
from infinite_tensor.filling.invalidate import Invalidation, invalidate
from infinite_tensor.filling.plan import FillPlan
from infinite_tensor.filling.progress import FillReport, Watcher
from infinite_tensor.geometry.regions import Selection
from infinite_tensor.support.given import check_fill, checked_bytes, checked_count, checked_flag, checked_shard

if TYPE_CHECKING:
    from distributed import Client

    from infinite_tensor.tensor import InfiniteTensor

_INTERRUPTED = (
    "The fill was interrupted. What it has computed is kept: call fill with the same region again, and it continues "
    "from there."
)


class Fillable(ABC):
    """What a region costs, computing it ahead of reads, how far that has come, and dropping it.

    A region is what stands between the brackets of a read; of a slice with a step, the box that it spans counts. In a
    group it is in pixels of the group, and means all pixels of all tensors that lie over it.
    """

    @abstractmethod
    def _requests(self, region: object, where: object = None) -> Sequence[Request]:
        """What a region is of each tensor, with a mask; RegionError if it is none."""

    @abstractmethod
    def _tensors(self) -> Sequence[NodeHolder]:
        """The tensor, or those of the group."""

    def plan(
        self, region: object, *, max_memory: int | str | None = None, where: object = None, shards: int | None = None
    ) -> FillPlan:
        """What `fill` would cost; computes nothing, but for a mask that is an `InfiniteTensor`.

        Where nothing is stored yet, that is arithmetic, however large the region.

        Parameters
        ----------
        region
            As a read takes it.
        max_memory, where : optional
            As for `fill`.
        shards : int, optional
            Count windows as for a `client` with so many shards, four to each thread of its workers: those across the
            border of two shards of a tensor in both. Of tensors in memory upstream each shard computes what it needs,
            which is counted once.

        Returns
        -------
        FillPlan
            Counts per tensor of the chain, one that is upstream of several once; it prints as a table.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of the tensor or the group, or a window of it leaves an arg.
        ValidationError
            If the region cannot be filled within `max_memory`, or a mask does not cover it.
        """
        count = None if shards is None else checked_count("shards", shards)
        return prepare(self._requests(region, where), checked_bytes("max_memory", max_memory)).plan(count)

    def fill(
        self,
        region: object,
        *,
        workers: int | None = None,
        max_memory: int | str | None = None,
        client: Client | None = None,
        progress: bool | str | Watcher = True,
        shard: tuple[int, int] | None = None,
        where: object = None,
        pyramid: bool | str = False,
    ) -> FillReport:
        """Compute and store every tile that a region touches, or those of them that a mask takes.

        Works in steps, and holds what the next steps need of the tensors upstream, so that little is computed twice,
        whatever their stores keep. Tensors of a group that share some upstream are filled side by side where memory
        allows it, otherwise one after the other. Ctrl-C ends it after what is done has been stored; a second fill
        continues from there.

        Parameters
        ----------
        region
            As a read takes it.
        workers : int, optional
            On how many threads windows are computed, by an ``f`` that may run on several at a time. Default: what the
            store of each tensor says.
        max_memory : int or str, optional
            The most memory to hold, in bytes or as ``"400MB"``, beside what ``f`` itself takes: caches of the stores
            included. Default: 512 MiB beside the caches.
        client : distributed.Client, optional
            A Dask cluster to spread the work over: tensors that are stored are filled one after the other, each in four
            shards to a thread of the workers that are there, and `max_memory` is that of a shard. Every tensor with a
            `tensor_id` must be in a store that workers can open: Zarr, at a path or URL that all of them reach.
        progress : bool, "always" or callable
            True shows a bar where standard error is a terminal, or in a notebook, and elsewhere writes a line there
            each minute, with what is left; "always" shows the bar anywhere. It ends with how many tiles were stored,
            and how many a mask has left out. A callable is given a `Progress`, about ten times a second at most; the
            last one has the report.
        shard : tuple of int, optional
            ``(rank, world_size)``: fill one of `world_size` shards of the region; other processes fill the others.
            Nothing is stored outside of it. Windows across the border of two shards are computed by both.
        where : Mask, array, tensor, InfiniteTensor or callable, optional
            Which pixels are wanted. Anything but a `Mask` stands for ``Mask(where)``: its pixels are those of the
            tensor or the group, and begin at 0. A tile that holds a wanted pixel of the region is computed whole. The
            others are skipped, nothing is stored of them, and nothing remembers that: a later fill without a mask
            computes them, and so does a read, with the windows on the border once more. Of the tensors upstream, what
            the wanted tiles need is computed.
        pyramid : bool or str
            Whether the levels of `InfiniteTensor.pyramid` are filled too, over the same region: those windows of them
            whose pixels all lie over what is filled. Of an unbounded tensor there are as many levels as the region
            needs. A str is the method; True is for that which `InfiniteTensor.pyramid` takes.

        Returns
        -------
        FillReport
            What was computed and stored; it prints as a table.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of the tensor or the group, or a window of it leaves an arg.
        ValidationError
            If an argument does not fit, the store is read-only, `max_memory` is too little, or a mask does not cover
            the region.
        StoreError
            If something cannot be stored. It stays in memory; a flush tries again.
        KeyboardInterrupt
            After a Ctrl-C, with a note that says how to continue.
        """
        check_fill(workers, client, progress, shard, pyramid)
        workers = None if workers is None else int(workers)
        requests = self._requests(region, where)
        levels: list[list[InfiniteTensor]] = []
        if pyramid:
            # What is made of tensors stands on them.
            from infinite_tensor.pipelines.pyramid import levels_over  # noqa: PLC0415

            levels = [
                levels_over(cast("InfiniteTensor", request.tensor), request.selection.shape, pyramid)
                for request in requests
            ]
        most, part = checked_bytes("max_memory", max_memory), checked_shard(shard)
        job = writable(prepare(requests, most, part, levels, in_blocks=client is None))
        try:
            if client is not None:
                # What only a cluster needs.
                from infinite_tensor.filling.cluster import fill_on_cluster  # noqa: PLC0415

                filled = [*(request.tensor for request in requests), *itertools.chain(*levels)]
                return fill_on_cluster(filled, job, client, workers, progress)
            return fill(job, workers, progress)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(_INTERRUPTED)
            raise

    def is_filled(self, region: object, where: object = None) -> bool:
        """Whether a `fill` of a region would compute nothing.

        Parameters
        ----------
        region
            As a read takes it.
        where : optional
            As for `fill`: only what the mask takes counts.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of the tensor or the group.
        ValidationError
            If a mask does not cover the region.
        """
        return all(map(is_filled, self._requests(region, where)))

    def invalidate(self, region: object = None, dependants: bool = True) -> Invalidation:
        """Drop stored windows that are wrong, because what ``f`` reads from elsewhere has changed, say.

        All windows that touch the region are dropped, and of every tensor downstream the windows that were computed
        from these. They are computed again when they are next needed.

        In memory windows are dropped one by one. A persistent store keeps blended pixels, so there every tile that
        such a window touches is dropped as a whole: other windows over it are not wrong, but run again for it.

        Downstream are the tensors alive in this process that are computed from these, in whatever stores they
        are, and those that the stores of all these hold with the `tensor_id` of an arg; through a tensor that has no
        id, or is in another store, only as long as it is alive. Reads that are in progress in this process may still
        return old pixels, but store none. Other processes, and other store objects on the same path, keep what they
        have in memory, and may store what they compute from it: close them first.

        What is downstream is dropped first. If that ends early, because the process is killed or the storage
        fails, what is left is what was there before, and nothing stands on pixels that have been computed again;
        a second call does the rest.

        Parameters
        ----------
        region : optional
            As a read takes it. Default: everything.
        dependants : bool
            Drop what was computed from the windows as well. Without it, only their own tensors are touched.

        Returns
        -------
        Invalidation
            What was dropped of which tensor; it prints as a table.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of the tensor or the group.
        ValidationError
            If a store, or that of a dependant, is read-only. Nothing is dropped then; `exclude` leaves a
            tensor of a group out.
        StoreError
            If a store is closed, or something could not be stored or deleted; call it again.
        """
        parts: list[tuple[Node, Selection | None]] = [(node_of(tensor), None) for tensor in self._tensors()]
        if region is not None:
            parts = [(node_of(request.tensor), request.selection) for request in self._requests(region)]
        return invalidate(parts, dependants=checked_flag("dependants", dependants))
