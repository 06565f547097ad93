"""Finished windows on their way to the store."""

from __future__ import annotations

import math
import threading
import time
from typing import Self

from infinite_tensor.arrays import Array, as_array
from infinite_tensor.engine.claims import CLAIMS, Claim
from infinite_tensor.pages import new_block

_BLOCK_BYTES = 2**21
_LATEST_SECONDS = 0.05


class Outbox:
    """Gathers what one thread computes of a claim, so that the store is handed much at a time, though never late.

    Windows lie side by side in blocks, so that neighbours can be worked on at once.
    """

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        spec = claim.level.node.spec
        self._shape, self._dtype, self._device = spec.definition.output_window.size, spec.dtype, spec.device
        self._block: Array = ()
        self._begin = self._end = 0
        self._places: list[int] = []
        self._sent = time.monotonic()

    def put(self, place: int, window: Array) -> None:
        """Copy the window at this place of the claim."""
        if self._end == len(self._block):
            self.send()
            self._allocate()
        self._block[self._end] = window
        self._end += 1
        self._places.append(place)

    def _allocate(self) -> None:
        window_bytes = max(1, math.prod(self._shape) * self._dtype.itemsize)
        length = max(1, min(len(self._claim.indices), _BLOCK_BYTES // window_bytes))
        self._block = as_array(new_block((length, *self._shape), self._dtype, self._device))
        self._begin = self._end = 0

    def send_in_time(self) -> None:
        """Store what has been gathered, if that is some time ago."""
        if time.monotonic() - self._sent > _LATEST_SECONDS:
            self.send()

    def send(self) -> None:
        """Store what has been gathered."""
        places, outputs = self._places, self._block[self._begin : self._end]
        self._places, self._begin = [], self._end
        if places:
            level = self._claim.level
            level.access.deposit(level.windows[places], outputs)
            CLAIMS.end(self._claim, [self._claim.indices[place] for place in places])
            self._claim.reader.notice(level.node, len(places))
        self._sent = time.monotonic()

    def __enter__(self) -> Self:
        self._claim.senders[threading.get_ident()] = self.send
        return self

    def __exit__(self, *_exc: object) -> None:
        self.send()
