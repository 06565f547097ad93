"""From a tensor into what is written of it: step by step, in bounded memory, whatever the region is."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch

from infinite_tensor.engine.chain import chain_of, node_of, resolved
from infinite_tensor.engine.claims import CLAIMS
from infinite_tensor.engine.lifetimes import NumberedRegions
from infinite_tensor.engine.loop import run_steps
from infinite_tensor.engine.reads import Views
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.cutting import cut_into_bands
from infinite_tensor.filling.mask import Target
from infinite_tensor.filling.progress import Tally
from infinite_tensor.filling.stored_only import StoredOnly
from infinite_tensor.support.allocation import new_block
from infinite_tensor.support.interrupts import Mark, store_call
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.views.exports.cutout import Cutout, Sink, explained

_HELD_BYTES = 2**26
"""About as much is held of the tensors that are read, and as much may each of their stores keep."""


class Source(ABC):
    """Where the pixels of a tensor come from."""

    @abstractmethod
    def each(
        self, tensor: InfiniteTensor, boxes: NumberedRegions, use: Callable[[Sequence[int], torch.Tensor], None]
    ) -> None:
        """Call ``use(start, pixels)`` for each of some boxes."""


class Computed(Source):
    """Pixels as a read gives them: what is missing is computed, and stored.

    Parameters
    ----------
    workers : int or None
        As for `InfiniteTensor.read`.
    """

    def __init__(self, workers: int | None) -> None:
        self._workers = workers

    def each(
        self, tensor: InfiniteTensor, boxes: NumberedRegions, use: Callable[[Sequence[int], torch.Tensor], None]
    ) -> None:
        """See `Source`."""
        (node,) = resolved([node_of(tensor)])
        call = store_call()
        with call.running:
            call.begin(node.contents, reads=True)
            node.contents.flush_if_requested()
            with Views(CLAIMS.reader(self._workers)) as views:
                spec = node.spec

                def ready(number: int) -> None:
                    start, stop = boxes.starts[number].tolist(), boxes.stops[number].tolist()
                    pixels = new_block([b - a for a, b in zip(start, stop, strict=True)], spec.dtype, spec.device)
                    views.of(node).read(start, pixels)
                    if views.moved:
                        raise ValidationError(
                            f"tensor {spec.tensor_id!r} was moved to another dtype or device while it was exported; "
                            "export it again"
                        )
                    use(start, pixels)

                run_steps({node: boxes}, [range(n, n + 1) for n in range(len(boxes.numbers))], views, ready)


class Stored(Source):
    """Pixels of tiles that are stored, and a fill value elsewhere.

    Parameters
    ----------
    view : StoredOnly
        Shows them.
    """

    def __init__(self, view: StoredOnly) -> None:
        self.view = view

    def each(
        self, tensor: InfiniteTensor, boxes: NumberedRegions, use: Callable[[Sequence[int], torch.Tensor], None]
    ) -> None:
        """See `Source`."""
        del tensor
        for start, stop in zip(boxes.starts.tolist(), boxes.stops.tolist(), strict=True):
            use(start, self.view[tuple(itertools.starmap(slice, zip(start, stop, strict=True)))])


def units_in(cutout: Cutout, unit: Sequence[int]) -> int:
    """How many units a cutout is written in."""
    return _count(cutout.frame.shape, unit)


@torch.inference_mode(mode=False)
def stream(cutout: Cutout, sink: Sink, source: Source, tally: Tally, target: str) -> None:
    """Write all pixels of a cutout that its sink does not have, and count its units.

    Raises
    ------
    StoreError
        If they cannot be written; it names `target`.
    """
    node, origin = node_of(cutout.tensor), cutout.frame.origin
    end = tuple([a + n for a, n in zip(origin, cutout.frame.shape, strict=True)])
    bands = cut_into_bands(Target(node, origin, end), _HELD_BYTES, unit=sink.unit)

    def use(start: Sequence[int], pixels: torch.Tensor) -> None:
        stop = [a + n for a, n in zip(start, pixels.shape, strict=True)]
        with explained(target):
            sink.put(cutout.place(start, stop), cutout.pixels(pixels))
        tally.count(node, _count(pixels.shape, sink.unit))

    lent = Mark()
    with lent.running:
        for store in {id(each.store): each.store for each in chain_of([node])}.values():
            store.contents.lend(lent, _HELD_BYTES)
        for band in bands:
            written = [
                sink.has(cutout.place(start, stop))
                for start, stop in zip(band.starts.tolist(), band.stops.tolist(), strict=True)
            ]
            if any(written):
                before = band.stops[written] - band.starts[written]
                tally.count(node, sum(_count(extents, sink.unit) for extents in before.tolist()))
            if not all(written):
                left = np.logical_not(written)
                source.each(cutout.tensor, NumberedRegions.alone(band.starts[left], band.stops[left]), use)


def _count(extents: Sequence[int], unit: Sequence[int]) -> int:
    """How many units some pixels are."""
    return math.prod(-(-extent // n) for extent, n in zip(extents, unit, strict=True))
