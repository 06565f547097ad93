"""Windows of any number of tensors in memory, within limits if there are any."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from infinite_tensor.arrays import copied
from infinite_tensor.boxes import Index
from infinite_tensor.tilestore.rows import Row


class WindowCache:
    """Finds windows by tensor and index; with limits, the least recently used ones are forgotten first.

    Parameters
    ----------
    max_bytes, max_items : int or None
        Limits; None is no limit.

    Not safe for threads: the owner holds a lock.
    """

    def __init__(self, max_bytes: int | None, max_items: int | None) -> None:
        self.max_bytes = max_bytes
        self.max_items = max_items
        self.total_bytes = 0
        self._lent: list[int] = []
        self._rows: dict[str, dict[Index, Row]] = {}
        # Kept where there are limits only.
        self._order: OrderedDict[tuple[str, Index], int] = OrderedDict()

    @property
    def limited(self) -> bool:
        """Whether windows may be forgotten."""
        return self.max_bytes is not None or self.max_items is not None or len(self._lent) > 0

    @property
    def room(self) -> int:
        """Bytes that the limit leaves; 0 where there is a limit in windows only."""
        limit = self._limit()
        return 0 if limit is None else limit - self.total_bytes

    def limit_bytes(self, max_bytes: int | None) -> None:
        """Set another limit, and make it hold."""
        was_limited, self.max_bytes = self.limited, max_bytes
        self._hold(was_limited)

    def lend(self, limit: int) -> None:
        """Let windows without a limit have one, until it is taken back; the smallest one counts."""
        was_limited = self.limited
        self._lent.append(limit)
        self._hold(was_limited)

    def take_back(self, limit: int) -> None:
        """End what `lend` began."""
        self._lent.remove(limit)

    def _limit(self) -> int | None:
        if self.max_bytes is not None or self.max_items is not None:
            return self.max_bytes
        return min(self._lent, default=None)

    def _hold(self, was_limited: bool) -> None:
        """Make the limits hold; windows that had none are put in order first."""
        if not was_limited and self.limited:
            kept, self._rows = self._rows, {}
            for tensor_id, rows in kept.items():
                self.put(tensor_id, rows)
        self._evict()

    def of(self, tensor_id: str) -> Mapping[Index, Row]:
        """All windows of one tensor. To look at, not to use."""
        return self._rows.get(tensor_id, {})

    def get(self, tensor_id: str, index: Index) -> Row | None:
        """A row that holds one window, or None."""
        row = self._rows[tensor_id].get(index) if tensor_id in self._rows else None
        if row is not None and self.limited:
            self._order.move_to_end((tensor_id, index))
        return row

    def take(self, tensor_id: str, indices: Sequence[Index]) -> dict[Index, Row]:
        """Those of the windows that are here."""
        rows = self._rows.get(tensor_id)
        if not rows:
            return {}
        found = {index: rows[index] for index in indices if index in rows}
        if self.limited:
            for index in found:
                self._order.move_to_end((tensor_id, index))
        return found

    def put(self, tensor_id: str, rows: Mapping[Index, Row]) -> None:
        """Keep windows, each with a row that holds it."""
        kept = self._rows.setdefault(tensor_id, {})
        if not self.limited:
            kept.update(rows)
            return
        for index, row in rows.items():
            # A row would stay as long as any of its windows.
            kept[index] = Row(index, copied(row.window(index)[None]))
            self.total_bytes += row.window_bytes - self._order.pop((tensor_id, index), 0)
            self._order[tensor_id, index] = row.window_bytes
        self._evict()

    def forget(self, tensor_id: str) -> None:
        """Forget all windows of a tensor."""
        for index in self._rows.pop(tensor_id, {}):
            self.total_bytes -= self._order.pop((tensor_id, index), 0)

    def drop(self, tensor_id: str, indices: Sequence[Index]) -> None:
        """Forget some windows of a tensor, all of which are here."""
        rows = self._rows.get(tensor_id, {})
        broken = {id(rows[index]) for index in indices}
        for index in indices:
            del rows[index]
            self.total_bytes -= self._order.pop((tensor_id, index), 0)
        for index, row in rows.items():
            if id(row) in broken:
                # Whoever finds a row takes the windows that follow in it for stored as well.
                rows[index] = Row(index, copied(row.window(index)[None]))

    def recount(self) -> None:
        """Begin anew with the windows that are here, after a fork in the middle of a change."""
        self.total_bytes, self._order = 0, OrderedDict()
        kept, self._rows = self._rows, {}
        for tensor_id, rows in kept.items():
            self.put(tensor_id, rows)

    def _evict(self) -> None:
        while self._order and self._over():
            (tensor_id, index), size = self._order.popitem(last=False)
            self.total_bytes -= size
            del self._rows[tensor_id][index]

    def _over(self) -> bool:
        limit = self._limit()
        return (limit is not None and self.total_bytes > limit) or (
            self.max_items is not None and len(self._order) > self.max_items
        )
