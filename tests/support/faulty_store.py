"""Storage that fails now and then, as a disk or a network does: a zarr Store around another one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.storage import WrapperStore

T = TypeVar("T")

READS = ("raise", "raise after", "delay", "truncate", "hide")
"""What may happen to a read: an error at once or late, a delay, a prefix of the object, no object."""
SILENT = ("delay", "truncate", "hide")
"""What may happen without an error."""
OTHERS = ("raise", "raise after", "delay")
"""What may happen to a write, a deletion or a listing: an error before or after it is carried out, a delay."""

_INCARNATION = re.compile(r"(?<=-)[0-9a-f]{16}(?=/|$)")
_DELAY = 0.001


class ClientError(Exception):
    """Clients of object storage raise what derives from no builtin error but Exception."""


def no_space(text: str) -> OSError:
    """What a full disk raises."""
    return OSError(errno.ENOSPC, text)


ERRORS: tuple[Callable[[str], BaseException], ...] = (
    no_space,
    PermissionError,
    ConnectionResetError,
    TimeoutError,
    RuntimeError,
    ClientError,
    asyncio.CancelledError,
)


@dataclass(frozen=True)
class Fault:
    """What happens to one operation.

    Attributes
    ----------
    kind : str
        One of `READS` or `OTHERS`.
    error : BaseException
        Raised by the kinds that raise.
    share : float
        How much is left of an object that is truncated, from 0 to less than 1.
    """

    kind: str
    error: BaseException
    share: float


class Faults:
    """Which operations of a `FaultyStore` fail, and how: drawn from a seed, whatever the order of threads.

    Parameters
    ----------
    seed : int
        What is drawn for the n-th operation of a kind on a key depends on nothing else.
    rate : float
        Share of operations to which something happens.
    kinds : sequence of str
        What may happen, where the operation allows it.

    Attributes
    ----------
    injected : Counter
        How often each kind of fault has happened.
    stopped : bool
        Whether everything works.
    """

    def __init__(self, seed: int, rate: float, kinds: Sequence[str] = READS) -> None:
        self.injected: Counter[str] = Counter()
        self.stopped = False
        self._seed = seed
        self._rate = rate
        self._kinds = kinds
        self._lock = threading.Lock()
        self._operations: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"Faults(seed={self._seed}, rate={self._rate}, kinds={self._kinds})"

    def stop(self) -> None:
        """From now on nothing fails."""
        self.stopped = True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing fails inside the block."""
        before, self.stopped = self.stopped, True
        try:
            yield
        finally:
            self.stopped = before

    def draw(self, operation: str, key: str, kinds: Sequence[str]) -> Fault | None:
        """What happens to an operation, None for nothing."""
        # The incarnation in a key is random; without it one seed does the same again.
        name = f"{operation} {_INCARNATION.sub('', key)}"
        with self._lock:
            self._operations[name] += 1
            draws = random.Random(f"{self._seed} {name} {self._operations[name]}")  # noqa: S311  (no secret)
            possible = [kind for kind in kinds if kind in self._kinds]
            if self.stopped or not possible or draws.random() >= self._rate:
                return None
            error = draws.choice(ERRORS)(f"injected into {operation} of {key}")
            fault = Fault(draws.choice(possible), error, draws.random())
            self.injected[fault.kind] += 1
            return fault


class Outage(Faults):
    """The same fault wherever ``hits(operation, key)`` says so; at first nowhere.

    Parameters
    ----------
    kind : str
        One of `READS` or `OTHERS`.
    error : callable
        Makes what is raised from a message.
    """

    def __init__(self, kind: str = "raise", error: Callable[[str], BaseException] = no_space) -> None:
        super().__init__(0, 0.0)
        self.hits: Callable[[str, str], bool] = lambda _operation, _key: False
        self._kind = kind
        self._error = error

    def draw(self, operation: str, key: str, kinds: Sequence[str]) -> Fault | None:
        """See `Faults.draw`."""
        if self.stopped or self._kind not in kinds or not self.hits(operation, key):
            return None
        return Fault(self._kind, self._error(f"injected into {operation} of {key}"), 0.5)


def writes(operation: str, _key: str) -> bool:
    """Everything that changes what is stored; for `Outage.hits`."""
    return operation in ("set", "set_if_not_exists", "delete", "delete_dir", "clear")


class FaultyStore(WrapperStore[Store]):
    """Does what `store` does, except where `faults` interfere."""

    def __init__(self, store: Store, faults: Faults) -> None:
        super().__init__(store)
        self.faults = faults

    def _with_store(self, store: Store) -> FaultyStore:
        return FaultyStore(store, self.faults)

    def __str__(self) -> str:
        return f"faulty {self._store}"

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        fault = self.faults.draw("get", key, READS)
        found = await _carried_out(fault, lambda: self._store.get(key, prototype, byte_range))
        if fault is None or found is None:
            return found
        if fault.kind == "truncate":
            return prototype.buffer.from_bytes(found.to_bytes()[: int(fault.share * len(found))])
        return None if fault.kind == "hide" else found

    async def exists(self, key: str) -> bool:
        return await self._run("exists", key, lambda: self._store.exists(key))

    async def is_empty(self, prefix: str) -> bool:
        return await self._run("is_empty", prefix, lambda: self._store.is_empty(prefix))

    async def getsize(self, key: str) -> int:
        return await self._run("getsize", key, lambda: self._store.getsize(key))

    async def set(self, key: str, value: Buffer) -> None:
        await self._run("set", key, lambda: self._store.set(key, value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await self._run("set_if_not_exists", key, lambda: self._store.set_if_not_exists(key, value))

    async def delete(self, key: str) -> None:
        await self._run("delete", key, lambda: self._store.delete(key))

    async def delete_dir(self, prefix: str) -> None:
        await self._run("delete_dir", prefix, lambda: self._store.delete_dir(prefix))

    async def clear(self) -> None:
        await self._run("clear", "", self._store.clear)

    def list(self) -> AsyncIterator[str]:
        return self._listed("", self._store.list())

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        return self._listed(prefix, self._store.list_prefix(prefix))

    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        return self._listed(prefix, self._store.list_dir(prefix))

    async def _run(self, operation: str, key: str, action: Callable[[], Awaitable[T]]) -> T:
        return await _carried_out(self.faults.draw(operation, key, OTHERS), action)

    async def _listed(self, prefix: str, names: AsyncIterator[str]) -> AsyncIterator[str]:
        fault = self.faults.draw("list", prefix, OTHERS)
        if fault is not None and fault.kind == "raise":
            raise fault.error
        async for name in names:
            yield name
        if fault is not None and fault.kind == "raise after":
            raise fault.error


async def _carried_out(fault: Fault | None, action: Callable[[], Awaitable[T]]) -> T:
    if fault is not None and fault.kind == "raise":
        raise fault.error
    result = await action()
    if fault is not None and fault.kind in ("raise after", "delay"):
        # A lost connection is noticed late, as an answer is.
        await asyncio.sleep(_DELAY)
        if fault.kind == "raise after":
            raise fault.error
    return result
