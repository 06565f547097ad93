"""What a `TensorGroup` can do with large regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from infinite_tensor.filling import FillPlan, FillReport, Progress
from infinite_tensor.filling.invalidate import Invalidation, invalidate
from infinite_tensor.filling.together import fill_together, plan_together
from infinite_tensor.groups.keys import nested
from infinite_tensor.groups.names import NamedTensors
from infinite_tensor.indexing import Selection, parse
from infinite_tensor.nested import Key
from infinite_tensor.tensor import InfiniteTensor

if TYPE_CHECKING:
    from distributed import Client


class LargeGroupRegions(NamedTensors):
    """Asking what a region of all tensors costs, computing it ahead of reads, and asking how far that has come."""

    def plan(self, region: object, *, max_memory: int | None = None) -> FillPlan:
        """What `fill` would cost; computes nothing.

        Parameters
        ----------
        region
            As ``group[...]`` takes it; of a slice with a step, the box that it spans.
        max_memory : int, optional
            As for `fill`.

        Returns
        -------
        FillPlan
            Counts per tensor; one that is upstream of several counts once.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of the group.
        ValidationError
            If the region cannot be filled within `max_memory`.
        """
        return plan_together(self._requests(region), max_memory=max_memory)

    def fill(
        self,
        region: object,
        *,
        workers: int | None = None,
        max_memory: int | None = None,
        client: Client | None = None,
        progress: bool | str | Callable[[Progress], object] = True,
        shard: tuple[int, int] | None = None,
    ) -> FillReport:
        """Compute and store every tile of every tensor that a region touches.

        Tensors that share some upstream are filled side by side, so that what several of them need is computed once,
        whatever its store keeps. Where memory does not allow that, they are filled one after the other.

        Parameters
        ----------
        region
            As ``group[...]`` takes it; of a slice with a step, the box that it spans.
        workers, max_memory, client, progress, shard
            As for `InfiniteTensor.fill`.

        Returns
        -------
        FillReport
            What was computed and stored of each tensor.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of the group.
        ValidationError
            If an argument does not fit, a store is read-only, or `max_memory` is too little.
        StoreError
            If something cannot be stored. It stays in memory; a flush tries again.
        """
        return fill_together(
            self._requests(region),
            workers=workers,
            max_memory=max_memory,
            client=client,
            progress=progress,
            shard=shard,
        )

    def coverage(self, region: object) -> dict[str, Any]:
        """Which tiles of a region are stored: what `InfiniteTensor.coverage` returns of each, nested as the group is.

        Tensors may have tiles of different sizes, so it is no TensorDict.
        """
        return nested((key, tensor.coverage(_box(part))) for key, (tensor, part) in self._parts(region).items())

    def is_filled(self, region: object) -> bool:
        """Whether a `fill` of a region would compute nothing."""
        return all(tensor.is_filled(_box(part)) for tensor, part in self._parts(region).values())

    def invalidate(self, region: object = None, dependants: bool = True) -> Invalidation:
        """Drop what is stored of a region, of all tensors, and what was computed from it.

        Parameters
        ----------
        region, dependants
            As for `InfiniteTensor.invalidate`, in pixels of the group.

        Returns
        -------
        Invalidation
            What was dropped of which tensor.

        Raises
        ------
        RegionError
            (an IndexError) If `region` is no region of the group.
        ValidationError
            If the store of a tensor, or that of a dependant, is read-only, as a blob is. Nothing is dropped then;
            `exclude` leaves it out.
        StoreError
            If a store is closed, or something could not be stored or deleted; call it again.
        """
        if region is None:
            return invalidate([(member.tensor._node, None) for member in self._members.values()], dependants=dependants)
        return invalidate([(tensor._node, part) for tensor, part in self._requests(region)], dependants=dependants)

    def clear_cache(self) -> None:
        """Drop from memory what can be had again, of all tensors, after storing what is pending."""
        for member in self._members.values():
            member.tensor.clear_cache()

    def _parts(self, region: object) -> dict[Key, tuple[InfiniteTensor, Selection]]:
        """Each tensor with what a region is of it."""
        selection = parse(region, self.shape)._replace(steps=(1,) * self.ndim)
        return {key: (member.tensor, member.selection(selection)) for key, member in self._members.items()}

    def _requests(self, region: object) -> list[tuple[InfiniteTensor, Selection]]:
        return list(self._parts(region).values())


def _box(part: Selection) -> tuple[slice, ...]:
    return tuple(map(slice, part.start, part.stop))
