"""What an `InfiniteTensor` can do with large regions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from infinite_tensor.boxes import is_empty
from infinite_tensor.engine.node import Node
from infinite_tensor.filling.fill import is_filled
from infinite_tensor.filling.forecast import FillPlan
from infinite_tensor.filling.invalidate import Invalidation, invalidate
from infinite_tensor.filling.progress import Watcher
from infinite_tensor.filling.report import FillReport
from infinite_tensor.filling.together import fill_together, plan_together
from infinite_tensor.indexing import Selection, parse

if TYPE_CHECKING:
    from distributed import Client


class LargeRegions:
    """Asking what a region costs, computing it ahead of reads, and asking how far that has come."""

    _node: Node

    def plan(self, region: object, *, max_memory: int | None = None) -> FillPlan:
        """What `fill` would cost; computes nothing.

        Where nothing is stored yet, that is arithmetic, however large the region.

        Parameters
        ----------
        region
            As ``tensor[...]`` takes it; of a slice with a step, the box that it spans.
        max_memory : int, optional
            As for `fill`.

        Returns
        -------
        FillPlan
            Counts per tensor of the chain; it prints as a table.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of this tensor.
        ValidationError
            If the region cannot be filled within `max_memory`.
        """
        return plan_together([(self, self._selection(region))], max_memory=max_memory)

    def fill(
        self,
        region: object,
        *,
        workers: int | None = None,
        max_memory: int | None = None,
        client: Client | None = None,
        progress: bool | str | Watcher = True,
        shard: tuple[int, int] | None = None,
    ) -> FillReport:
        """Compute and store every tile that a region touches.

        Works in steps, and holds what the next steps need of the tensors upstream, so that little is computed twice,
        whatever their stores keep. Ctrl-C ends it after what is done has been stored; a second fill continues from
        there.

        Parameters
        ----------
        region
            As ``tensor[...]`` takes it; of a slice with a step, the box that it spans.
        workers : int, optional
            On how many threads windows are computed, by an ``f`` that may run on several at a time. Default: what the
            store of each tensor says.
        max_memory : int, optional
            The most memory to hold, in bytes, beside what ``f`` itself takes: caches of the stores included. Default:
            512 MiB beside the caches.
        client : distributed.Client, optional
            A Dask cluster to spread the work over. Every tensor with a `tensor_id` must be in a store that its workers
            can open: Zarr, at a path or URL that all of them reach.
        progress : bool, "always" or callable
            True shows a bar where standard error is a terminal, or in a notebook; "always" shows it anywhere. A
            callable is given a `Progress`, about ten times a second at most.
        shard : tuple of int, optional
            ``(rank, world_size)``: fill one of `world_size` shares of the region; other processes fill the others.

        Returns
        -------
        FillReport
            What was computed and stored; it prints as a table.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of this tensor.
        ValidationError
            If an argument does not fit, the store is read-only, or `max_memory` is too little.
        StoreError
            If something cannot be stored. It stays in memory; a flush tries again.
        KeyboardInterrupt
            After a Ctrl-C, with a note that says how to continue.
        """
        return fill_together(
            [(self, self._selection(region))],
            workers=workers,
            max_memory=max_memory,
            client=client,
            progress=progress,
            shard=shard,
        )

    def coverage(self, region: object) -> torch.Tensor:
        """Which tiles of a region are stored: a bool tensor with an entry for each tile that the region touches.

        A tile that no window covers counts as stored. In memory a tile is a block of about 256 KiB.
        """
        selection = self._selection(region)
        node = self._node
        if is_empty(selection.start, selection.stop):
            return torch.ones([0] * len(selection.start), dtype=torch.bool, device="cpu")
        inventory = node.store.inventory(node.spec, selection.start, selection.stop)
        low, high = inventory.layout.box(selection.start, selection.stop)
        return torch.from_numpy(inventory.filled(node.spec.grid, low, high))

    def is_filled(self, region: object) -> bool:
        """Whether a `fill` of a region would compute nothing."""
        return is_filled(self._node, self._selection(region))

    def invalidate(self, region: object = None, dependants: bool = True) -> Invalidation:
        """Drop stored windows that are wrong, because what ``f`` reads from elsewhere has changed, say.

        All windows that touch the region are dropped, and of every tensor downstream the windows that were computed
        from these. They are computed again when they are next needed.

        In memory windows are dropped one by one. A persistent store keeps blended pixels, so there every tile that
        such a window touches is dropped as a whole: other windows over it are not wrong, but run again for it.

        Downstream are the tensors alive in this process that are computed from this one, in whatever stores they
        are, and those that the stores of all these hold with the `tensor_id` of an arg; through a tensor that has no
        id, or is in another store, only as long as it is alive. Reads that are in progress in this process may still
        return old pixels, but store none. Other processes, and other store objects on the same path, keep what they
        have in memory, and may store what they compute from it: close them first.

        What is downstream is dropped first. If that ends early, because the process is killed or the storage
        fails, what is left is what was there before, and nothing stands on pixels that have been computed anew;
        a second call does the rest.

        Parameters
        ----------
        region : optional
            As ``tensor[...]`` takes it; of a slice with a step, the box that it spans. Default: everything.
        dependants : bool
            Drop what was computed from the windows as well. Without it, only their own tensor is touched.

        Returns
        -------
        Invalidation
            What was dropped of which tensor; it prints as a table.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of this tensor.
        ValidationError
            If this tensor's store, or that of a dependant, is read-only. Nothing is dropped then.
        StoreError
            If a store is closed, or something could not be stored or deleted; call it again.
        """
        selection = None if region is None else self._selection(region)
        return invalidate([(self._node, selection)], dependants=dependants)

    def _selection(self, region: object) -> Selection:
        return parse(region, self._node.spec.shape)
