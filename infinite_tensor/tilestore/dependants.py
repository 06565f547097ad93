"""Which tensors of a store are computed from which, by what their definitions say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from infinite_tensor.errors import ValidationError
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.values.spec import TensorSpec

K = TypeVar("K", bound=Hashable)

_MOST_NAMED = 5


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


def check_renamable(contents: Contents, tensor_id: str, new_id: str) -> None:
    """Raise what keeps a tensor from having another id; see `TileStore.rename`."""
    definition = contents.definition_of(tensor_id)
    if contents.holds(new_id):
        both = "" if tensor_id == new_id else _if_both_are_one(contents, tensor_id, new_id)
        raise ValidationError(f"{contents} already holds a tensor {new_id!r}; give another new_id{both}")
    if "output" in definition:
        raise ValidationError(
            f"tensor {tensor_id!r} is one of several outputs of one f, which find each other by their ids; leave "
            "them as they are"
        )
    readers = readers_in(contents.specs_downstream(), tensor_id, contents.digest_of(tensor_id))
    groups = [name for name in _groups_of(contents) if _names(contents.read_group(name), tensor_id)]
    if readers or groups:
        named = [f"tensor {name!r}" for name in readers] + [f"group {name!r}" for name in groups]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        raise ValidationError(
            f"{contents}: tensor {tensor_id!r} cannot be renamed: {', '.join(named[:_MOST_NAMED])}{more} would no "
            "longer find it by its id. Clear these first, or leave its id as it is"
        )


def _if_both_are_one(contents: Contents, tensor_id: str, new_id: str) -> str:
    if contents.digest_of(tensor_id) != contents.digest_of(new_id):
        return ""
    return (
        f". It has the same definition: if a process was killed while it renamed the tensor, "
        f"clear_tensor({tensor_id!r}) ends that"
    )


def _groups_of(contents: Contents) -> list[str]:
    try:
        return sorted(contents.group_ids())
    except NotImplementedError:
        return []


def _names(group: Mapping[str, Any] | None, tensor_id: str) -> bool:
    """Whether what is stored as a group, which is not trusted, names a tensor."""
    members = None if group is None else group.get("members")
    return isinstance(members, list) and any(
        isinstance(member, dict) and member.get("tensor_id") == tensor_id for member in members
    )


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
