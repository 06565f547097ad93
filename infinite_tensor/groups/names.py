"""The names in a group: asking for them, walking over them, choosing some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any, NoReturn, Self

from infinite_tensor.errors import ValidationError
from infinite_tensor.groups.keys import as_key, is_key, listed
from infinite_tensor.groups.members import Member, shape_of
from infinite_tensor.nested import Key, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.window import Shape


class NamedTensors:
    """Members by their keys. Like a mapping, and unlike a TensorDict, it has the length of its outermost names."""

    _members: dict[Key, Member]
    _shape: Shape

    @classmethod
    def _of(cls, members: Mapping[Key, Member]) -> Self:
        group = cls.__new__(cls)
        group._bind(members)
        return group

    def _bind(self, members: Mapping[Key, Member]) -> None:
        self._shape = shape_of(members)
        self._members = {key: replace(member, key=key) for key, member in members.items()}

    @property
    def shape(self) -> Shape:
        """Extent of the shared dimensions in pixels of the group, None for an unbounded one."""
        return self._shape

    @property
    def ndim(self) -> int:
        """Number of shared dimensions."""
        return len(self._shape)

    def scale(self, key: str | tuple[str, ...]) -> tuple[Fraction, ...]:
        """Pixels of a tensor along one pixel of the group, per shared dimension."""
        return self._leaf(key).scale

    def dims(self, key: str | tuple[str, ...]) -> tuple[int, ...]:
        """Dimensions of a tensor that are shared, in the order of the group."""
        return self._leaf(key).dims

    def _entry(self, key: Key) -> InfiniteTensor | Self:
        if key in self._members:
            return self._members[key].tensor
        within = {leaf[len(key) :]: member for leaf, member in self._members.items() if leaf[: len(key)] == key}
        if not within:
            raise self._unknown(key)
        return self._of(within)

    def _leaf(self, key: object) -> Member:
        found = self._members.get(as_key(key))
        if found is None:
            raise self._unknown(as_key(key))
        return found

    def _unknown(self, key: Key) -> KeyError:
        return KeyError(f"key {show(key)} is not in the group, which has {', '.join(map(show, self._members))}")

    def get(self, key: str | tuple[str, ...], default: Any = None) -> Any:
        """What has a key, or `default`."""
        try:
            return self._entry(as_key(key))
        except KeyError:
            return default

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> list[str | tuple[str, ...]]:
        """Names of the tensors and nested groups, in the order of a TensorDict.

        Parameters
        ----------
        include_nested : bool
            Name what is nested too, by tuples.
        leaves_only : bool
            Name only tensors.
        """
        found = listed(self._members, nested=include_nested, leaves_only=leaves_only)
        return [key[0] if len(key) == 1 else key for key in found]

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> list[InfiniteTensor | Self]:
        """What `keys` names."""
        return [self._entry(as_key(key)) for key in self.keys(include_nested, leaves_only)]

    def items(
        self, include_nested: bool = False, leaves_only: bool = False
    ) -> list[tuple[str | tuple[str, ...], InfiniteTensor | Self]]:
        """`keys`, each with what has it."""
        return [(key, self._entry(as_key(key))) for key in self.keys(include_nested, leaves_only)]

    def __contains__(self, key: object) -> bool:
        return is_key(key) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key[0] for key in self._members))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def select(self, *keys: str | tuple[str, ...], strict: bool = True) -> Self:
        """A group of some of the tensors, in the same pixels.

        Parameters
        ----------
        *keys : str or tuple of str
            What to keep; of a nested group, all that is in it.
        strict : bool
            Whether a key that is not there is a KeyError.
        """
        wanted = [as_key(key) for key in keys]
        for key in wanted:
            if strict and key not in self:
                raise self._unknown(key)
        return self._kept([leaf for leaf in self._members if _is_in(leaf, wanted)])

    def exclude(self, *keys: str | tuple[str, ...]) -> Self:
        """A group without some of the tensors, in the same pixels. A key that is not there is no error."""
        unwanted = [as_key(key) for key in keys]
        return self._kept([leaf for leaf in self._members if not _is_in(leaf, unwanted)])

    def _kept(self, keys: list[Key]) -> Self:
        if not keys:
            raise ValidationError(f"nothing is left of the group, which has {', '.join(map(show, self._members))}")
        return self._of({key: self._members[key] for key in keys})

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise _read_only()

    def __delitem__(self, key: object) -> NoReturn:
        raise _read_only()

    def __getattr__(self, name: str) -> Any:
        if name in _WRITING:
            raise AttributeError(f"TensorGroup has no method {name!r}: {_READ_ONLY}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference, as tensors are."""
        return _rebuilt, (type(self), self._members)

    def __repr__(self) -> str:
        lines = [_line(member) for member in self._members.values()]
        return f"{type(self).__name__}(shape={self.shape}, tensors:\n    " + "\n    ".join(lines) + ")"


_READ_ONLY = (
    "a TensorGroup is read-only. A dictionary that is stored and written in place is tensordict's own: "
    "TensorDict.memmap(path), or PersistentTensorDict on HDF5 or Zarr, which TensorGroup.from_tensordict reads"
)
_WRITING = frozenset(
    ("set", "set_", "set_at_", "update", "update_", "update_at_", "del_", "pop", "rename_key_", "setdefault", "clear")
)
"""Methods of a TensorDict that write."""


def _read_only() -> TypeError:
    return TypeError(_READ_ONLY)


def _rebuilt(kind: type[NamedTensors], members: dict[Key, Member]) -> NamedTensors:
    return kind._of(members)


def _is_in(leaf: Key, keys: list[Key]) -> bool:
    return any(leaf[: len(key)] == key for key in keys)


def _line(member: Member) -> str:
    scale = f", scale {' x '.join(map(str, member.scale))}" if set(member.scale) - {1} else ""
    return f"{show(member.key)}: {member.tensor.shape} {member.tensor.dtype}, shares {list(member.dims)}{scale}"
