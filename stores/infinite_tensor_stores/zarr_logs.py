"""The logs of partial tiles: a folder each, of parts that are numbered from 0 and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from zarr.abc.store import Store
from zarr.storage import LocalStore

from infinite_tensor_stores.zarr_objects import concurrently, create, delete_folder, get_many


def part_of(log: str, number: int = 0) -> str:
    """The key of one part."""
    return f"{log}/{number}"


class Logs:
    """Reads, lengthens and deletes logs without a listing: knows how long those are that it has met.

    A log is named by its prefix in the store.

    Parameters
    ----------
    concurrency : int
        Requests of one call at a time.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._lengths: dict[str, int] = {}

    def read(self, store: Store, first: Mapping[str, bytes | None], most: int) -> dict[str, list[bytes]]:
        """All parts, of `most` bytes, of logs whose first parts are at hand, up to the first part that is missing."""
        logs: dict[str, list[bytes]] = {log: [] for log in first}
        grown = {log: part for log, part in first.items() if part is not None}
        while grown:
            for log, part in grown.items():
                logs[log].append(part)
            keys = [part_of(log, len(logs[log])) for log in grown]
            found = get_many(store, keys, self._concurrency, most=most)
            grown = {log: part for log, part in zip(grown, found, strict=True) if part is not None}
        self._lengths.update((log, len(parts)) for log, parts in logs.items() if parts)
        return logs

    def write(self, store: Store, parts: Mapping[str, bytes | None]) -> None:
        """Add a part to each log, or delete it where that is None."""

        async def write(item: tuple[str, bytes | None]) -> None:
            log, data = item
            if data is None:
                await self._delete(store, log)
                return
            number = self._lengths.get(log, 0)
            # Another process may have added parts: take the next number that is free.
            while not await create(store, part_of(log, number), data):
                number += 1
            self._lengths[log] = number + 1

        concurrently(write, parts.items(), self._concurrency)

    def delete(self, store: Store, logs: Sequence[str]) -> None:
        """Delete logs with all parts that there are, also those that others have added."""
        concurrently(lambda log: delete_folder(store, log), logs, self._concurrency)

    def forget(self, logs: Iterable[str]) -> None:
        """Know nothing more of logs that somebody deletes."""
        for log in logs:
            self._lengths.pop(log, None)

    async def _delete(self, store: Store, log: str) -> None:
        # The last part first: a kill in between leaves a log without gaps.
        for number in reversed(range(self._lengths.get(log, 0))):
            await store.delete(part_of(log, number))
        if isinstance(store, LocalStore):
            await delete_folder(store, log)
        self._lengths.pop(log, None)
