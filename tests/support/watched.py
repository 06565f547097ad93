"""A zarr Store around another one that sees what is asked of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from zarr.abc.buffer import Buffer
from zarr.abc.store import Store
from zarr.storage import WrapperStore


class Watched(WrapperStore[Store]):
    """Does what the other store does, each request within `under_way`, which a subclass may make longer.

    Attributes
    ----------
    requests : Counter
        How often each kind of request came: ``get``, ``set``, ``create``, ``exists``, ``delete`` and ``list``.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.requests: Counter[str] = Counter()

    @asynccontextmanager
    async def under_way(self, request: str, key: str) -> AsyncIterator[None]:  # noqa: ARG002  (for subclasses)
        self.requests[request] += 1
        yield

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Buffer | None:
        async with self.under_way("get", key):
            return await super().get(key, *args, **kwargs)

    async def set(self, key: str, value: Buffer) -> None:
        async with self.under_way("set", key):
            await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        async with self.under_way("create", key):
            await super().set_if_not_exists(key, value)

    async def exists(self, key: str) -> bool:
        async with self.under_way("exists", key):
            return await super().exists(key)

    async def delete(self, key: str) -> None:
        async with self.under_way("delete", key):
            await super().delete(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        async with self.under_way("list", prefix):
            async for name in super().list_dir(prefix):
                yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        async with self.under_way("list", prefix):
            async for key in super().list_prefix(prefix):
                yield key
