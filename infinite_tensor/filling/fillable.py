"""`Fillable`: planning, filling and invalidating regions of tensors and groups."""

from __future__ import annotations

import difflib
import inspect
import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, overload

from infinite_tensor.engine.chain import Node, NodeHolder, node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.fill import FillJob, Request, check_shared, fill, is_filled, prepare, writable
from infinite_tensor.filling.invalidate import Invalidation, invalidate
from infinite_tensor.filling.plan import FillPlan
from infinite_tensor.filling.progress import FillReport, Reporting
from infinite_tensor.filling.readable import Pixels_co, Readable
from infinite_tensor.geometry.regions import Region, Selection
from infinite_tensor.support.given import (
    check_client,
    checked_bytes,
    checked_count,
    checked_flag,
    checked_progress,
    checked_shard,
    checked_workers,
    quoted,
)
from infinite_tensor.values.coarse import Method, check_name

if TYPE_CHECKING:
    from distributed import Client

    from infinite_tensor.tensor import InfiniteTensor

_SIMILAR = 0.75
"""How similar an option and an unknown word must be for a hint. 'preprocess' is not taken for 'progress'."""
_OF_OTHERS = {
    "inputs": "source",
    "mode": "blend",
    "padding_mode": "padding",
    "patch_size": "window",
    "predictor": "net",
    "roi_size": "window",
    "tile_size": "window",
}
"""The words of MONAI and other libraries of sliding windows, and ours."""


class FillOptions(TypedDict, total=False):
    """Options of `fill` and `predict`, all optional.

    Use `FillOptions` to annotate your own function with the same options:
    ``def refresh(t: InfiniteTensor, **options: Unpack[FillOptions])``.

    Attributes
    ----------
    workers : int, optional
        The number of threads that compute windows. With more than one, several threads call ``f`` at the same time.
        Default: the `workers` of each tensor's store.
    max_memory : int or str, optional
        The limit on memory, in bytes or as ``"400MB"``. It includes the caches of the stores, but not the memory of
        ``f`` itself. Default: 512 MiB in addition to the caches.
    client : distributed.Client, optional
        A Dask cluster that does the work. Stored tensors are filled one after the other. Each is cut into shards, four
        for each thread of the current workers; `max_memory` then applies to each shard. Every tensor with a `tensor_id`
        must be in a Zarr store at a path or URL that all workers can reach.
    progress : bool, "always" or callable
        True shows a bar on a terminal or in a notebook. Elsewhere, and inside a live display of rich, it writes to
        standard error each minute how much is left. "always" shows the bar everywhere. At the end, the bar shows how
        many tiles were stored, and how many were skipped because of a mask. A callable is called with a `Progress`, at
        most about ten times a second. The last `Progress` has the report. Default: True.
    shard : tuple of int, optional
        ``(rank, world_size)``: fill only shard `rank` of the `world_size` shards of the region, and store nothing
        outside of it. Other processes fill the other shards. Windows across the border of two shards are computed for
        both.
    where : Mask, array, tensor, InfiniteTensor or callable, optional
        The wanted pixels. Anything but a `Mask` means ``Mask(where)``: a mask with one pixel for each pixel of the
        tensor or the group, beginning at 0. A tile with a wanted pixel of the region is computed as a whole. All other
        tiles are skipped, and nothing is stored for them. A later read, or a fill without a mask, computes skipped
        tiles, and repeats the windows on their border. Upstream tensors are computed where the wanted tiles need them.
    pyramid : bool or str
        Whether to also fill the levels of `InfiniteTensor.pyramid` over the same region. A tile of a level is
        computed if all its pixels lie over filled pixels. An unbounded tensor gets as many levels as the region needs.
        A str is the method; True uses the default method of `InfiniteTensor.pyramid`. Default: False.
    """

    workers: int | None
    max_memory: int | str | None
    client: Client | None
    progress: Reporting
    shard: tuple[int, int] | None
    where: Any
    pyramid: bool | Method


def check_fill_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check the names and values of options.

    Raise TypeError for an unknown option, and ValidationError for an invalid value. Messages name `function`, the
    public function called with the options.
    """
    unknown = next((name for name in options if name not in FillOptions.__annotations__), None)
    if unknown is not None:
        own = [name for name in inspect.signature(function).parameters if name not in ("self", "options")]
        known = [*own, *FillOptions.__annotations__]
        other = [word for word in (_OF_OTHERS.get(unknown),) if word in known]
        close = other or difflib.get_close_matches(unknown, known, n=1, cutoff=_SIMILAR)
        advice = f"did you mean {close[0]!r}?" if close else f"its arguments are {', '.join(known)}"
        raise TypeError(f"{function.__name__}() got an unexpected keyword argument {unknown!r}; {advice}")
    checked_workers(options.get("workers"))
    if options.get("client") is not None:
        check_client(options["client"])
    checked_progress(options.get("progress", True))
    shard, pyramid = checked_shard(options.get("shard")), options.get("pyramid", False)
    if not isinstance(pyramid, bool | str):
        raise ValidationError(
            f"pyramid must be True, False or a method such as 'mode', got {quoted(pyramid)}; "
            "for a number of levels, call t.pyramid(levels=3)"
        )
    if isinstance(pyramid, str):
        check_name(pyramid)
    if shard is not None and pyramid:
        raise ValidationError(
            "a shard cannot fill levels, because levels extend over several shards; when all shards are filled, call "
            "fill once more with pyramid=True and without shard"
        )


_INTERRUPTED = "The fill was interrupted. Finished work is kept: to continue, call fill again with the same region."


class Fillable(Readable[Pixels_co]):
    """Methods for reading, planning, filling, checking and invalidating regions.

    Give a region as in the brackets of a read. A slice with a step counts as the whole box spanned by the slice. The
    region of a group is in pixels of the group, and includes all pixels of every tensor over this region.
    """

    @abstractmethod
    def _requests(self, region: object, where: object = None) -> Sequence[Request]:
        """Return the region of each tensor, with the mask.

        Raise RegionError if the region is invalid.
        """

    @abstractmethod
    def _tensors(self) -> Sequence[NodeHolder]:
        """Return the tensor, or the tensors of the group."""

    @overload
    def read(self, indices: list[Any], *, workers: int | None = None) -> list[Pixels_co]: ...
    @overload
    def read(self, indices: Region, *, workers: int | None = None) -> Pixels_co: ...
    @overload
    def read(self, indices: object, *, workers: int | None = None) -> Any: ...

    def read(self, indices: object, *, workers: int | None = None) -> Any:
        """Read a region, or a list of regions together, as the brackets do, with options.

        Windows needed by several regions or tensors are computed once.

        Parameters
        ----------
        indices
            A region or a list of regions, as between brackets. In a group, regions are in pixels of the group. Of a
            coarser tensor, all pixels that overlap the region are read; an int selects the pixel that contains it.
            Dimensions that are not shared are read whole.
        workers : int, optional
            The number of threads that compute windows. More than one requires an ``f`` that several threads may call at
            the same time. The pixels do not depend on this number. Default: the `workers` of each tensor's store.

        Returns
        -------
        torch.Tensor or TensorDict, or a list of them
            A group gives a TensorDict, nested as the group is. The shared dimensions come first in every tensor, the
            others after them. The batch size lists the extents of the result along the shared dimensions, up to the
            first dimension in which tensors have different scales. A nested TensorDict has its own batch size, from the
            tensors in it.
        """
        regions, workers = indices if isinstance(indices, list) else [indices], checked_workers(workers)
        found = self._read(regions, workers)
        return list(found) if isinstance(indices, list) else found[0]

    def plan(
        self,
        region: object = ...,
        *,
        max_memory: int | str | None = None,
        where: object = None,
        shards: int | None = None,
    ) -> FillPlan:
        """Return the cost of a `fill`.

        No window is computed, unless `where` is an `InfiniteTensor`. If nothing is stored yet, the counts come from
        arithmetic alone, even for a huge region.

        Parameters
        ----------
        region : optional
            As for a read. Default: all of it, if no dimension is unbounded.
        max_memory, where : optional
            As for `fill`.
        shards : int, optional
            Count windows as if a fill with a `client` used this number of shards. A client uses four shards for each
            thread of its workers. Windows across the border of two shards of a tensor count for both. Windows of
            upstream tensors in memory count once, although each shard computes them for itself.

        Returns
        -------
        FillPlan
            Counts for each tensor of the chain, shown as a table by `print`. A tensor read by several others counts
            once.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of the tensor or the group, or a window reaches past the
            end of an arg.
        ValidationError
            If the region cannot be filled within `max_memory`, or a mask does not cover it.
        """
        count = None if shards is None else checked_count("shards", shards)
        return prepare(self._requests(region, where), checked_bytes("max_memory", max_memory)).plan(count)

    def fill(self, region: object = ..., **options: Unpack[FillOptions]) -> FillReport:
        """Compute and store all tiles touching a region.

        With a mask, only the selected tiles are filled.

        A fill works in steps, and keeps upstream windows for the next steps. So few windows are computed twice, even
        with small caches. Tensors of a group with a common upstream tensor are filled side by side if memory allows it,
        otherwise one after the other. Ctrl-C ends a fill after its finished results are stored. Another fill continues
        from there.

        Parameters
        ----------
        region : optional
            As for a read. Default: all of it, if no dimension is unbounded.
        **options
            See `FillOptions`: threads, a limit on memory, a cluster, the progress bar, a shard, a mask, and overviews.

        Returns
        -------
        FillReport
            The computed windows and stored tiles of each tensor, shown as a table by `print`.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of the tensor or the group, or a window reaches past the
            end of an arg.
        ValidationError
            If an argument is not valid, the store is read-only, `max_memory` is too small, or a mask does not cover
            the region.
        StoreError
            If results cannot be stored. They stay in memory, and a flush tries again.
        KeyboardInterrupt
            After a Ctrl-C, with a note on how to resume.
        """
        check_fill_options(self.fill, options)
        workers, client, progress = options.get("workers"), options.get("client"), options.get("progress", True)
        workers = None if workers is None else int(workers)
        job, filled = self._prepared(region, options)
        try:
            if client is not None:
                # Imported here, because only a cluster needs it.
                from infinite_tensor.filling.cluster import fill_on_cluster  # noqa: PLC0415

                return fill_on_cluster(filled, job, client, workers, progress)
            return fill(job, workers, progress)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(_INTERRUPTED)
            raise

    def _prepared(self, region: object, options: FillOptions) -> tuple[FillJob, list[NodeHolder]]:
        """Return the job of a fill, and the tensors and levels to fill.

        Raise every error that can be found without computing pixels.
        """
        pyramid, on_cluster = options.get("pyramid", False), options.get("client") is not None
        requests = self._requests(region, options.get("where"))
        levels: list[list[InfiniteTensor]] = []
        if pyramid:
            # Imported here, because pipelines build on tensors.
            from infinite_tensor.pipelines.pyramid import levels_over  # noqa: PLC0415

            levels = [
                levels_over(cast("InfiniteTensor", request.tensor), request.selection.shape, pyramid)
                for request in requests
            ]
        most, part = checked_bytes("max_memory", options.get("max_memory")), checked_shard(options.get("shard"))
        job = writable(prepare(requests, most, part, levels, in_blocks=not on_cluster))
        if on_cluster:
            check_shared(job)
        return job, [*(request.tensor for request in requests), *itertools.chain(*levels)]

    def is_filled(self, region: object = ..., where: object = None) -> bool:
        """Return True if a `fill` of a region would compute nothing.

        Parameters
        ----------
        region : optional
            As for a read. Default: all of it, if no dimension is unbounded.
        where : optional
            As for `fill`: only tiles that the mask selects count.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of the tensor or the group.
        ValidationError
            If a mask does not cover the region.
        """
        return all(map(is_filled, self._requests(region, where)))

    def invalidate(self, region: object = None, dependants: bool = True) -> Invalidation:
        """Drop stored windows, for example after a change of data read by ``f``.

        All windows touching the region are dropped, and also all windows of downstream tensors computed from them. They
        are computed again when they are next needed.

        A store contains blended pixels, so it drops all tiles touching a dropped window. All other windows over these
        tiles are computed again as well.

        Downstream tensors alive in this process are found in any store. All others are found by their stored
        definitions, but only in the stores of tensors that lose windows. A definition names the args by `tensor_id`.
        For example, let a stored tensor ``c`` be computed from ``b``, and ``b`` from this tensor. If ``b`` has no id,
        or is in another store, ``c`` is found only while ``b`` is alive.

        Reads in progress in this process may still return old pixels, but no longer store them. Close other processes
        and other store objects on the same path first: they keep old windows in memory, and may store results computed
        from old windows.

        Downstream windows are dropped first. So if the process is killed or the storage fails, no results of dropped
        windows remain. Call `invalidate` again to drop the rest.

        Parameters
        ----------
        region : optional
            As for a read. Default: everything.
        dependants : bool
            Whether to also drop windows of downstream tensors computed from the dropped windows.

        Returns
        -------
        Invalidation
            The dropped windows and tiles of each tensor, shown as a table by `print`.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is not a valid region of the tensor or the group.
        ValidationError
            If the store of a tensor, or of a downstream tensor, is read-only. Then nothing is dropped. Use
            `TensorGroup.exclude` to leave a tensor of a group out.
        StoreError
            If a store is closed, or tiles could not be stored or deleted. Then call `invalidate` again.
        """
        parts: list[tuple[Node, Selection | None]] = [(node_of(tensor), None) for tensor in self._tensors()]
        if region is not None:
            parts = [(node_of(request.tensor), request.selection) for request in self._requests(region)]
        return invalidate(parts, dependants=checked_flag("dependants", dependants))


def check_fill(filled: Fillable[Any], region: object, options: FillOptions) -> None:
    """Check that a fill can begin.

    Raise the same errors as a fill before its first window.
    """
    job, _ = filled._prepared(region, options)  # noqa: SLF001  (the method above)
    job.plan()
