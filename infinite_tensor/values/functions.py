"""Records of the functions behind a tensor, and changes between records.

The functions of all upstream tensors are included.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.forks import Lock
from infinite_tensor.support.functions import FunctionCaller
from infinite_tensor.values.fingerprint import LATE, STAMP, VALUE, Item, Snapshot

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Minor version of Python. Bytecode differs between minor versions, so code is compared only within a version."""

_SCHEME = 6
"""Version of the rules for making records. Records of different versions are not compared."""
_MOST_ITEMS = 300
_FIRM = "firm"
"""Kind of a value not allowed to change."""


@dataclass(frozen=True)
class FunctionRecord:
    """Record of functions, stored with a definition.

    Attributes
    ----------
    python : str
        The version of Python, such as "3.12". Other versions have other bytecode, so their `code` is not compared.
    code : mapping of str to str
        Digests of code, by key: "f", "blend", "reduce", and "upstream" for the functions of all upstream tensors.
    items : tuple of Item
        The values that the functions reach.
    opaque : tuple of str
        The places of objects that could not be inspected.
    state : tuple of str
        The places of values that calls had changed when the record was made. They are not among the items.
    """

    python: str = PYTHON
    code: Mapping[str, str] = field(default_factory=dict)
    items: tuple[Item, ...] = ()
    opaque: tuple[str, ...] = ()
    state: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON.

        `from_json` reads it back.
        """
        return {
            "scheme": _SCHEME,
            "python": self.python,
            "code": dict(self.code),
            "values": [list(item) for item in self.items],
            "opaque": list(self.opaque),
            "state": list(self.state),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Create a record from the JSON of `to_json`.

        The record is empty if `stored` was made by other rules, for example by another version of this library. Raise
        ValidationError if `stored` is invalid.
        """
        if stored.get("scheme") != _SCHEME:
            return cls()
        python, code, values, *lists = (
            stored.get(name, ()) for name in ("python", "code", "values", "opaque", "state")
        )
        try:
            items = tuple([Item(place, said, kind) for place, said, kind in values])
            texts = [python, *code.values(), *(text for each in (*items, *lists) for text in each)]
        except (AttributeError, TypeError, ValueError):
            texts = [None]
        if not all(isinstance(text, str) for text in texts):
            raise ValidationError("functions must contain digests of code, and values as lists of three str")
        return cls(python, code, items, *map(tuple, lists))


class Changes(NamedTuple):
    """The differences between two records of functions.

    Attributes
    ----------
    code : list of str
        The names of the functions whose code has changed.
    values : list of str
        Descriptions of changed values.
    firm : list of str
        Descriptions of changed values that make stored pixels wrong.
    stamps : list of str
        Descriptions of changed files.
    """

    code: list[str]
    values: list[str]
    firm: list[str]
    stamps: list[str]

    def lines(self) -> list[str]:
        """Return a description of each change, as text for people."""
        return [*(f"the code of {name}" for name in self.code), *self.firm, *self.values, *self.stamps]


class Functions:
    """Functions of a tensor and of all upstream tensors.

    Their code and values are inspected by `look`, or when a record is needed.

    Parameters
    ----------
    own : mapping of str to callable
        The functions of this tensor: "f", "blend", "reduce".
    upstream : iterable of Functions
        The functions of its args.
    told : bool
        Whether the user has set a version for this tensor. If so, the record leaves out objects in `own` that
        cannot be inspected.
    """

    def __init__(
        self,
        own: Mapping[str, Callable[..., Any]] | None = None,
        upstream: Iterable[Functions] = (),
        *,
        told: bool = False,
    ) -> None:
        self._own = own or {}
        self._upstream = tuple(upstream)
        self._told = told
        self._looks: dict[str, Snapshot] | None = None
        self._marks: list[tuple[str, object]] = []
        self._records: dict[bool, FunctionRecord] = {}
        self.is_called = False

    @classmethod
    def of_record(cls, record: FunctionRecord) -> Self:
        """Create an object from a record, without the functions themselves."""
        functions = cls()
        functions._records = {True: record, False: record}
        return functions

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the record, without the functions.

        The functions are pickled only if the record was not computed yet, and the tensor has no args.
        """
        if not self._records and not self._upstream:
            return partial(type(self), told=self._told), (self._own,)
        # Functions upstream are not pickled, because chains may be long.
        return type(self).of_record, (self.record,)

    def look(self) -> None:
        """Find the code and values used by the functions, before a record is needed.

        Weights and arrays are not hashed yet. `altered` reports weights and tensors changed in place after this call.
        """
        if self._looks is None and not self._records:
            self._marks = self._marks_now()

    def _first_looks(self) -> dict[str, Snapshot]:
        if self._looks is None:
            self._looks = {
                name: (isinstance(each, FunctionCaller) and each.snapshot) or first_look(each, name)
                for name, each in self._own.items()
            }
        return self._looks

    def _marks_now(self) -> list[tuple[str, object]]:
        return [each for look in self._first_looks().values() for each in look.marks()]

    def altered(self) -> list[str]:
        """Return the locations of weights and tensors changed in place since `look`."""
        pairs = zip(self._marks, self._marks_now() if self._marks else (), strict=True)
        return list(dict.fromkeys(before[0] for before, now in pairs if before != now))

    def is_compared(self) -> bool:
        """Whether somebody has asked for the values, so that it matters which of them are state."""
        calling = [each for each in self._own.values() if isinstance(each, FunctionCaller)]
        return self._looks is not None or any("snapshot" in vars(each) for each in calling)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look for state in this context: values that the functions change."""
        with LOOKING:
            before = {name: Snapshot(each, name) for name, each in self._own.items()}
            known = {_given(each, name): self._first_looks()[name] for name, each in self._own.items()}
            for key, look in known.items():
                _watched[key].append(look)
        try:
            yield
        finally:
            for name, first in self._first_looks().items():
                Snapshot(self._own[name], name).keep_states(before[name], first)
            with LOOKING:
                for key, look in known.items():
                    _watched[key].remove(look)
                    if not _watched[key]:
                        del _watched[key]

    @property
    def record(self) -> FunctionRecord:
        """The record to store, including all upstream functions. Known state is left out, and listed."""
        return self._made(whole=False)

    @property
    def identity(self) -> FunctionRecord:
        """The record as it was before the first calls, state included."""
        return self._made(whole=True)

    def _made(self, *, whole: bool) -> FunctionRecord:
        # A loop instead of recursion: chains may be long.
        waiting = [self]
        while waiting:
            last = waiting[-1]
            unknown = [each for each in last._upstream if whole not in each._records]  # noqa: SLF001
            if unknown and whole not in last._records:  # noqa: SLF001
                waiting += unknown
            elif whole not in waiting.pop()._records:  # noqa: SLF001
                last._records[whole] = last._recorded(whole=whole)  # noqa: SLF001
        return self._records[whole]

    def without(self, state: Iterable[str]) -> FunctionRecord:
        """Return the record without the values at the places in `state`."""
        whole, left_out = self.identity, list(state)
        return self._recorded(whole=True, left_out=left_out) if left_out and self._looks is not None else whole

    def _recorded(self, *, whole: bool, left_out: Iterable[str] = ()) -> FunctionRecord:
        looks = self._first_looks()
        state = [*left_out] if whole else [place for look in looks.values() for place in look.states]
        code = {name: look.code() for name, look in looks.items()}
        found = [look.items(state) for look in looks.values()]
        records = [each._records[whole] for each in dict.fromkeys(self._upstream)]  # noqa: SLF001
        if any(record.code for record in records):
            said = json.dumps([record.code for record in records], sort_keys=True)
            code["upstream"] = hashlib.sha256(said.encode()).hexdigest()
        firm = any(isinstance(function, FunctionCaller) for function in self._own.values())
        items = _merged(
            item._replace(kind=_FIRM) if firm and item.kind == VALUE else item
            for item in (
                *(item for values, _ in found for item in values),
                *(item for record in records for item in record.items),
            )
        )
        opaque = [name for _, unseen in found for name in unseen if not self._told]
        opaque += [name for record in records for name in record.opaque]
        state = state + [name for record in records for name in record.state]
        return FunctionRecord(PYTHON, code, items, tuple(dict.fromkeys(opaque)), tuple(dict.fromkeys(state)))


LOOKING = Lock()
"""Held by looks at functions, so that no other thread begins to call them."""
_watched: defaultdict[tuple[int, type, str], list[Snapshot]] = defaultdict(list)
"""For each function that is being called and watched, the looks before its first call: one for each watcher."""


def first_look(function: object, name: str) -> Snapshot:
    """Look at a function before its first call for a tensor, or as it was before calls that run now."""
    with LOOKING:
        watched = _watched.get(_given(function, name))
        return watched[0] if watched else Snapshot(function, name, is_first=True)


def _given(function: Any, name: str) -> tuple[int, type, str]:
    return (
        id(getattr(function, "__wrapped__", None) if isinstance(function, FunctionCaller) else function),
        type(function),
        name,
    )


def _merged(items: Iterable[Item]) -> tuple[Item, ...]:
    """Make the locations of items unique, and limit the number of items.

    If several values have the location ``x``, they get the locations ``x``, ``x (2)`` and so on. If there are more than
    `_MOST_ITEMS` items, the last ones are replaced by a single item with a digest of all of them.
    """
    found: dict[tuple[str, bool], Item] = {}
    for item in items:
        # A value known only by samples also has a stamp at the same place.
        place, is_stamp, number = item.place, item.kind == STAMP, 1
        while (place, is_stamp) in found:
            number += 1
            place = f"{item.place} ({number})"
        found[place, is_stamp] = item._replace(place=place)
    kept = list(found.values())
    if len(kept) > _MOST_ITEMS:
        rest = kept[_MOST_ITEMS - 1 :]
        said = hashlib.sha256(json.dumps([item[:2] for item in rest]).encode()).hexdigest()
        kind = _FIRM if any(item.kind == _FIRM for item in rest) else rest[0].kind
        kept = [*kept[: _MOST_ITEMS - 1], Item(f"one of {len(rest)} further values", f"#{said}", kind)]
    return tuple(kept)


def _first(place: str) -> str:
    """Return the location before `_merged` made it unique. The state of a function may be reached by several args."""
    return re.sub(r" \(\d+\)$", "", place)


def changes(stored: FunctionRecord, given: FunctionRecord) -> Changes:
    """Describe the differences between two records of functions.

    Both records should be of the same functions.
    """
    # Values that calls change do not count. They may be parts of other values, too.
    ignored = {*stored.state, *given.state}
    late = [{item.place for item in record.items if item.kind == LATE} for record in (stored, given)]
    # Values of a module not yet imported would seem to be missing.
    is_comparable = stored.python == given.python and late[0] == late[1]
    code = [name for name, digest in given.code.items() if is_comparable and stored.code.get(name, digest) != digest]
    is_same_code = not code and stored.code.keys() == given.code.keys()
    found = Changes(code, [], [], [])
    before, now = (
        {
            item.place: item
            for item in record.items
            if item.kind not in (STAMP, LATE) and _first(item.place) not in ignored
        }
        for record in (stored, given)
    )
    known = {item.said for item in given.items}
    # A value that is there under another name, such as a renamed parameter, has not changed.
    renamed = {before[place].said for place in before.keys() - now} & {now[place].said for place in now.keys() - before}
    for place in dict.fromkeys((*before, *now)):
        old, new = before.get(place), now.get(place)
        if (old is None or new is None) and (old or now[place]).said in renamed:
            continue
        kind, line = (new or before[place]).kind, ""
        # An object may get more attributes after a tensor was built with its methods.
        is_lost = new is None and is_same_code
        if old is not None and new is not None:
            line = _line(old, new) if old.said != new.said else ""
        elif is_comparable and stored.code and given.code and (kind == _FIRM or (is_lost and kind == VALUE)):
            line = f"{_subject(place)} {'is not there any more' if new is None else 'was not there'}"
            # Changed code may reach other values, or the same values by new names. Report only lost data, such as
            # weights.
            if code and (old is None or old.said[0] != "#" or old.said in known):
                line = ""
        if line:
            (found.firm if kind == _FIRM else found.values).append(line)
    # A file may have been moved meanwhile, so files are compared by their stamps.
    stamps = {item.said for item in stored.items if item.kind == STAMP}
    for item in given.items:
        if item.kind == STAMP and stamps and item.said not in stamps:
            found.stamps.append(f"{item.place} has changed")
    return found


def _line(old: Item, new: Item) -> str:
    if "#" in (old.said[0], new.said[0]):
        return f"{_subject(new.place)} {'have' if new.place.startswith('the weights') else 'has'} changed"
    return f"{_subject(new.place)} was {old.said} and is {new.said}"


def _subject(place: str) -> str:
    return f"{place}," if "`, " in place else place
