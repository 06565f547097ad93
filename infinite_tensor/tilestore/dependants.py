"""Which tensors of a store are computed from which, by what their definitions say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from infinite_tensor.values.spec import TensorSpec

K = TypeVar("K", bound=Hashable)


def readers_in(specs: Iterable[TensorSpec], tensor_id: str, digest: str | None) -> list[str]:
    """Ids of the tensors that name another one as an arg, sorted; a digest of None stands for any."""
    return sorted(
        spec.tensor_id
        for spec in specs
        if any(arg.tensor_id == tensor_id and digest in (None, arg.digest) for arg in spec.definition.args)
    )


def dependants_in(specs: Iterable[TensorSpec], tensor_id: str, digest: str | None) -> list[str]:
    """Ids of the tensors that are computed from another one, each before those that it is computed from."""
    known = list(specs)
    by_arg: defaultdict[tuple[str, str], list[TensorSpec]] = defaultdict(list)
    for spec in known:
        for arg in spec.definition.args:
            if arg.tensor_id is not None:
                by_arg[arg.tensor_id, arg.digest].append(spec)
    first = set(readers_in(known, tensor_id, digest))

    def readers(name: str) -> list[str]:
        if name == tensor_id:
            return sorted(first)
        return [spec.tensor_id for spec in by_arg[name, digests[name]]]

    digests = {spec.tensor_id: spec.definition.digest for spec in known}
    return list(reversed(sources_first([tensor_id], readers)))[:-1]


def sources_first(roots: Iterable[K], readers: Callable[[K], Iterable[K]]) -> list[K]:
    """`roots` and everything downstream of them, each before what reads it. Without recursion."""
    finished: dict[K, None] = {}
    entered: set[K] = set()
    for root in roots:
        if root not in entered:
            entered.add(root)
            _finish(root, readers, entered, finished)
    return list(reversed(finished))


def _finish(root: K, readers: Callable[[K], Iterable[K]], entered: set[K], finished: dict[K, None]) -> None:
    stack: list[tuple[K, Iterator[K]]] = [(root, iter(readers(root)))]
    while stack:
        key, rest = stack[-1]
        for reader in rest:
            if reader not in entered:
                entered.add(reader)
                stack.append((reader, iter(readers(reader))))
                break
        else:
            finished[key] = None
            stack.pop()
