"""Finished windows on their way to the stores."""

from __future__ import annotations

import math
import threading
import time
import weakref
from typing import Self

from infinite_tensor.engine.claims import CLAIMS, Claim
from infinite_tensor.support.allocation import new_block
from infinite_tensor.support.arrays import Array, as_array
from infinite_tensor.tilestore.contents import Contents

_BLOCK_BYTES = 2**21
_LATEST_SECONDS = 0.05


class Deposits:
    """Gathers what this thread computes of a claim, so that stores are handed much at a time, though never late.

    Windows of a tensor lie side by side in blocks, so that neighbours can be worked on at once.

    Attributes
    ----------
    begun : list of int
        Places of the windows that the thread has begun, and not stored.
    """

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._thread = threading.get_ident()
        self._stores = claim.reader.stores
        self._requests = -1
        self.begun = CLAIMS.begun_by(claim, self._thread)
        self._specs = [result.node.spec for result in claim.workload.results]
        self._first: Array = ()
        self._others: list[Array] = []
        self._begin = self._end = self._length = 0
        self._places: list[int] = []
        self._sent = time.monotonic()

    def put(self, place: int, window: Array, *others: Array) -> None:
        """Copy the windows at this place of the claim, one for each tensor."""
        end = self._end
        if end == self._length:
            self.send()
            self._allocate()
            end = 0
        # In most cases there is one: this runs for each window.
        self._first[end] = window
        if others:
            for block, other in zip(self._others, others, strict=True):
                block[end] = other
        self._end = end + 1
        self._places.append(place)

    def _allocate(self) -> None:
        largest = max([math.prod(spec.grid.window.size) * spec.dtype.itemsize for spec in self._specs])
        self._length = max(1, min(len(self._claim.indices), _BLOCK_BYTES // max(1, largest)))
        self._first, *self._others = [
            as_array(new_block((self._length, *spec.grid.window.size), spec.dtype, spec.device, "give smaller windows"))
            for spec in self._specs
        ]
        self._begin = self._end = 0

    def tend(self) -> None:
        """Store what has been gathered, if that is some time ago or a store has been asked to flush."""
        if time.monotonic() - self._sent > _LATEST_SECONDS:
            self.send()
        if Contents.flush_requests != self._requests:
            self._requests = Contents.flush_requests
            for store in self._stores.values():
                if store.flush_requested:
                    self.send()
                    store.flush_if_requested()

    def send(self) -> None:
        """Store what has been gathered."""
        places, begin, notice = self._places, self._begin, self._claim.reader.notice
        self._places, self._begin = [], self._end
        if places:
            try:
                for result, block in zip(self._claim.workload.results, (self._first, *self._others), strict=True):
                    count = result.deposit(places, block[begin : self._end])
                    if notice is not None:
                        notice(result.node, count)
            finally:
                # Stored or not, nobody is at them any more.
                CLAIMS.end(self._claim, self.begun, len(places))
        self._sent = time.monotonic()

    def __enter__(self) -> Self:
        self._claim.senders[self._thread] = weakref.WeakMethod(self.send)
        return self

    def __exit__(self, *_exc: object) -> None:
        try:
            self.send()
        finally:
            del self._claim.senders[self._thread]
            CLAIMS.leave(self.begun)
