"""Inspection of functions: their code, and every value that they reach.

A `Snapshot` lists the code and the values at one moment. Values that differ between a snapshot before a call and one
after it are *state* of the function, such as counters and caches. Later snapshots list a state as it was at first.

Of a user's project, only ``__getstate__`` runs. Objects of installed packages are asked for what they pickle.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import importlib.util
import marshal
import random
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import quoted
from infinite_tensor.values.arrays import (
    Hash,
    hash_of,
    is_large,
    said_of_array,
    sha256_of,
)
from infinite_tensor.values.code import (
    OURS,
    class_attribute,
    closure_of,
    code_of,
    digest_of_script,
    innermost,
    is_installed,
    kind_name,
    mode_matters,
    name_of,
    parts_of_attribute,
    top,
    unwrapped,
)

_MOST_LOOKS = 50_000
"""Maximum number of values to inspect in a look. Further values are opaque."""
_DEEPEST = 50
_MOST_VISITS = 8
"""Maximum number of locations to list the members of an object at."""
_AT_ONCE = 2**20
"""Maximum bytes of a tensor to hash at the first look."""
_LONG = 100
"""Longer containers of numbers and texts get one digest."""
_MOST_MEMBERS = 10_000
"""Maximum number of members to inspect in a container. Members of larger containers are sampled evenly."""

_TELLING_NOTHING = frozenset({"tqdm", "rich", "loguru", "logging"})
"""Packages for showing progress to people, without other effects."""
_HOLDING = frozenset({"collections", "configparser", "ctypes", "functools", "operator", "statistics", "string"})
"""Packages of the standard library with objects for data."""
_RANDOM = (torch.Generator, np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
_SILENT = (*_RANDOM, torch.Stream, torch.Event, torch.ScriptObject)

_OF_MODULES = frozenset({*vars(nn.Module()), "_compiled_call_impl", "_is_torch_compile"})
"""Attributes set by torch on every module, or by compiling it."""
_OF_FILES = frozenset({*vars(types.ModuleType("")), "__file__", "__cached__", "__builtins__", "__path__"})
"""Globals set by Python in every module. They name the file, so they change when code moves."""

VALUE, STATE, STAMP, LATE = "value", "state", "stamp", "late"

Text: TypeAlias = "str | Hash"
"""Text identifying a value: the repr, or ``#`` and a digest. "" stands for a value that cannot be inspected."""


class Item(NamedTuple):
    """A value reached by a function.

    Attributes
    ----------
    place : str
        The location of the value, for messages: "`MEAN`, a global of `norm`".
    said : str
        The value as text, or "#" and a digest of the value.
    kind : str
        "value" for most values. "state" for values such as lists and settings, because results may stay the same when
        they change. "stamp" for a digest of the size and modification time of a large file, for example. "late" for
        a module not imported yet.
    """

    place: str
    said: str
    kind: str = VALUE


class _ValuePath(NamedTuple):
    """Location of a value.

    Attributes
    ----------
    path, of : str
        Name and members, as in ``config.gain``, and the scope of the name: "a global of `f`".
    item : str
        The item with the value. Empty if the value is an item of its own. `base` is the length of its path, and
        `item_kind` its kind, if that differs from `kind`.
    anchor : object
        The innermost object around the value with a weak reference. `since` is the length of its path.
    owner : _ValuePath or None
        Where `anchor` itself was found.
    within : tuple of int
        The ids of all objects around the value, so that a walk ends if an object contains itself.
    """

    path: str
    of: str = ""
    kind: str = VALUE
    item: str = ""
    base: int = 0
    item_kind: str = ""
    anchor: object = None
    since: int = 0
    owner: Any = None
    within: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"`{self.path}`, {self.of}" if self.of else f"`{self.path}`"

    def at(self, step: str) -> _ValuePath:
        """Return the location of a member, reached by a step such as ``[0]`` or ``.name``."""
        # Ten times as fast as `_replace`.
        return _ValuePath(self.path + step, *self[1:])

    def whole(self) -> _ValuePath:
        """Return the location of what an object is apart from its members."""
        return (self if self.item else self.part_of(str(self))).at("#")

    def part_of(self, item: str, kind: str = "") -> _ValuePath:
        """Return the location as that of an item with members."""
        return self._replace(item=item, base=len(self.path), item_kind=kind)

    def alone(self) -> _ValuePath:
        """Return the location as that of an item of its own."""
        return _ValuePath(*self[:3], "", self.base, "", *self[6:])  # type: ignore[arg-type]

    def inside(self, value: object) -> _ValuePath:
        """Return the location for members of `value`, an object at this location."""
        within = (*self.within, id(value))
        if type(value).__weakrefoffset__:
            return _ValuePath(*self[:6], value, len(self.path), self, within)
        return _ValuePath(*self[:9], within)

    def is_around(self, other: _ValuePath) -> bool:
        """Whether this is the location of an object with a member at `other`."""
        rest = other.path[len(self.path) :]
        return self.of == other.of and other.path.startswith(self.path) and rest[:1] in ("", ".", "[", "{", "#", "(")

    def rel(self) -> tuple[str, str]:
        """Return the path from the anchor. Of a network, the weights and the settings each have a place "#"."""
        return self.path[self.since :], self.item.partition("`")[0] if self.path.endswith("#") else ""

    def state(self) -> list[_Slot] | None:
        """Return what was at first at a location of a known state, or None at any other location."""
        known = _states.get(id(self.anchor))
        if known is None or known[0]() is not self.anchor or (state := known[1].get(self.rel())) is None:
            return None
        return [slot.moved(state[0], self) for slot in state[1]]


class _Slot(NamedTuple):
    """One text about a value at a location. `steps` are the members of a container, in order."""

    place: _ValuePath
    said: Text
    kind: str
    steps: tuple[str, ...] = ()

    @property
    def item(self) -> str:
        return self.place.item or str(self.place)

    @property
    def key(self) -> tuple[str, str, str, bool]:
        return self.place.path, self.place.of, self.place.rel()[1], self.kind == STAMP

    def text(self, *, known: bool = False) -> str:
        return self.said if isinstance(self.said, str) else self.said.text(known=known)

    def moved(self, origin: _ValuePath, place: _ValuePath) -> _Slot:
        """Return the slot for the same object, found at `place` and not at `origin`."""
        path, item, base = self.place.path, self.place.item, self.place.base
        if item and base < len(origin.path):
            item, base = place.item, place.base
        elif item:
            item = item.replace(f"`{origin.path}", f"`{place.path}", 1).removesuffix(f", {origin.of}")
            item, base = f"{item}, {place.of}" if place.of else item, base + len(place.path) - len(origin.path)
        path = place.path + path[len(origin.path) :]
        return self._replace(place=self.place._replace(path=path, of=place.of, item=item, base=base))


_states: dict[int, tuple[weakref.ref[Any], dict[tuple[str, str], tuple[_ValuePath, list[_Slot]]]]] = {}
"""The states known in this process: for the id of each anchor, by path, where each was found and what was there."""


def _item_of(slots: list[_Slot]) -> Item:
    first = slots[0]
    if len(slots) == 1 and not first.steps:
        return Item(first.item, first.text(), first.kind)
    # Containers tell the order of their members. Members of sets, and known states, come in any order.
    said = sorted(sha256_of((slot.place.path[slot.place.base :], slot.text())) for slot in slots)
    return Item(first.item, _digest_of(*said), first.kind)


class Snapshot:
    """Code and values used by a function, directly or through other functions, as they are now.

    Parameters
    ----------
    function : callable or object
        The function to inspect. Nothing in it is called.
    name : str
        The name of the function in messages.
    with_code : bool
        Whether the code of the project counts, and what it names. Without, this is a look at an object alone.
    is_first : bool
        Whether calls may change values before the digests are needed. If so, small tensors are hashed at once.

    Attributes
    ----------
    networks : list of torch.nn.Module
        The networks used by the function. Networks inside other networks are left out.
    states : list of str
        The locations of known states.
    """

    def __init__(self, function: object, name: str, *, with_code: bool = True, is_first: bool = False) -> None:
        self.states: list[str] = []
        # The code of this package is walked even if the package is installed.
        self._package = _package_of(function)
        self._with_code = with_code
        self._is_first = is_first
        self._code: list[str] = []
        self._slots: list[_Slot] = []
        self._networks: dict[int, nn.Module] = {}
        self._opaque: list[str] = []
        self._anchors: dict[str, object] = {}
        self._queue: deque[tuple[object, _ValuePath]] = deque()
        self._expanded: dict[object, object] = {}
        self._own: dict[type, list[type]] = {}
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._names: set[str] = set()
        self._offered: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        self._visits: Counter[int] = Counter()
        self._looks = 0
        self._put(function, _ValuePath(name))
        self._walk()
        self.networks = [*self._networks.values()]

    def code(self) -> str:
        """Return the SHA-256 of the code.

        Bytecode differs between minor versions of Python.
        """
        return sha256_of(sorted(set(self._code)))

    def items(self, without: Iterable[str] = ()) -> tuple[list[Item], list[str]]:
        """Return the values found, and the locations of objects that could not be inspected.

        Values at the locations in `without` are left out, with their members.
        """
        split = [text[1:].partition("`") for text in without]
        left_out = [_ValuePath(path, of.removeprefix(", ")) for path, _, of in split]
        parts: dict[tuple[str, bool], list[_Slot]] = {}
        for slot in self._slots:
            if not any(each.is_around(slot.place) for each in left_out):
                parts.setdefault((slot.item, slot.kind == STAMP), []).append(slot)
        # A state is found earlier or later than what is there now.
        found = sorted(map(_item_of, parts.values()))
        unseen = [item.place for item in found if not item.said]
        return [item for item in found if item.said], list(dict.fromkeys([*self._opaque, *unseen]))

    def digest(self) -> str:
        """Return a SHA-256 of all values and their locations."""
        return sha256_of(sorted(sha256_of((slot.place.path, slot.text())) for slot in self._slots))

    def marks(self) -> list[tuple[str, object]]:
        """Return the location of each weight and tensor, and a mark of its values.

        The mark differs after a change in place.
        """
        return [(slot.item, slot.said.mark()) for slot in self._slots if isinstance(slot.said, Hash)]

    def keep_states(self, before: Snapshot, first: Snapshot) -> None:
        """Mark every value that differs from `before` as state of the function.

        Values in `first`, the first look of all, remain their values.
        """
        was, now = ({slot.key: slot for slot in look._slots} for look in (before, self))
        found: list[_ValuePath] = []
        scopes = {"", *(of for _, of, _, _ in was)}
        for key in dict.fromkeys((*was, *now)):
            old, new = was.get(key), now.get(key)
            slot = old or now[key]
            is_same = old is not None and new is not None and old.said == new.said
            # A function may be reached for the first time. Parameters are changed by training, and not by calls.
            if is_same or slot.place.of not in scopes or (isinstance(slot.said, Hash) and slot.said.is_parameter):
                continue
            place: _ValuePath | None = slot.place
            # An object that is replaced at each call is a state as a whole.
            while place is not None and place.owner is not None:
                where = str(place.owner)
                if self._anchors.get(where) is before._anchors.get(where) is not None:
                    break
                place = place.owner
            if place is None or place.anchor is None or any(each.is_around(place) for each in found):
                continue
            found.append(place)
            if slot.kind != LATE:
                first._keep_state(place)

    def _keep_state(self, place: _ValuePath) -> None:
        self.states.append(str(place))
        key, rel = id(place.anchor), place.rel()
        if key not in _states:
            _states[key] = weakref.ref(place.anchor, lambda _: _states.pop(key, None)), {}
        kept = [
            # Without references to the objects, so that they can be freed.
            _Slot(slot.place._replace(anchor=None, owner=None), slot.text(known=True), slot.kind, slot.steps)
            for slot in self._slots
            if place.is_around(slot.place) and (slot.place.base >= len(place.path) or slot.place.rel()[1] == rel[1])
        ]
        _states[key][1].setdefault(rel, (place._replace(anchor=None, owner=None), kept))

    # The walk.

    def _walk(self) -> None:
        """Walk everything in the queue and everything reachable from there, nearer values first."""
        while self._queue:
            value, place = self._queue.popleft()
            self._looks += 1
            if self._looks == _MOST_LOOKS:
                self._opaque.append(f"{place} and everything beyond, which is too much")
                return
            if self._is_state(place):
                continue
            try:
                self._look(value, place)
            except RuntimeError:
                # Another thread changes a container meanwhile, so the container is a state.
                if not self._with_code:
                    raise
                self._say(place, "changing")

    def _is_state(self, place: _ValuePath) -> bool:
        """Whether there is a known state at a location. If so, add what was there at first."""
        first = place.state()
        if first is None:
            return False
        self._slots += first
        self.states.append(str(place))
        return True

    def _put(self, value: object, place: _ValuePath) -> None:
        self._queue.append((value, place))

    def _named(self, path: str, of: str, around: _ValuePath, anchor: object) -> _ValuePath:
        """Return the location of a name in a scope, with a number if there are several."""
        self._numbers[path, of] += 1
        number = self._numbers[path, of]
        of = f"{of} ({number})" if number > 1 else of
        return _ValuePath(path, of, around.kind, anchor=anchor, within=around.within)

    def _say(self, place: _ValuePath, said: Text, kind: str | None = None, steps: tuple[str, ...] = ()) -> None:
        if not self._is_state(place):
            self._slots.append(_Slot(place, said, kind or place.item_kind or place.kind, steps))

    # Values.

    def _look(self, value: Any, place: _ValuePath) -> None:
        value = unwrapped(value)
        said = self._simply(value, place)
        if said is not None:
            self._say(place, said)
        elif id(value) in place.within:
            return
        elif _is_container(value):
            kind = place.kind if isinstance(value, tuple | frozenset) else STATE
            self._container(value, place if place.item else place.part_of(str(place), kind))
        else:
            self._visits[id(value)] += 1
            if self._visits[id(value)] > _MOST_VISITS:
                self._say(place, "again")
                return
            # By type(), because an object may compute its `__class__`.
            look = next((look for kinds, look in self._LOOKS.items() if issubclass(type(value), kinds)), None)
            if look is None:
                self._object(value, place)
            else:
                look(self, value, place.alone())

    def _simply(self, value: Any, place: _ValuePath) -> str | None:
        """Return the text of a simple value, and walk the methods that its class may have in a project."""
        said = plain(value) or _said_at_once(value)
        if said is not None or _is_container(value):
            self._code_of(type(value), place)
        if issubclass(type(value), enum.Enum) and plain(value._value_) is None:
            self._put(value._value_, place.at(".value"))
        return said

    def _bound(self, method: types.MethodType, place: _ValuePath) -> None:
        self._put(method.__func__, place)
        self._put(method.__self__, self._named(kind_name(method.__self__), "", place, None))

    def _script(self, function: object, place: _ValuePath) -> None:
        self._say(place, Hash(lambda: f"#{digest_of_script(function)}"))

    def _partial(self, partial: functools.partial[Any], place: _ValuePath) -> None:
        self._put(partial.func, place)
        whose = f"of a partial of `{kind_name(innermost(partial))}`"
        inner = place.inside(partial)
        for at, value in enumerate(partial.args):
            self._put(value, self._named(f"args[{at}]", whose, inner, partial))
        if len(partial.keywords) > 1:
            self._say(self._named("keywords", whose, inner, partial), " ".join(partial.keywords), STATE)
        for name, value in partial.keywords.items():
            self._put(value, self._named(name, whose, inner, partial))

    def _builtin(self, value: Any, place: _ValuePath) -> None:
        owner = getattr(value, "__self__", None)
        if owner is not None and not issubclass(type(owner), types.ModuleType | type):
            self._put(owner, place.inside(value))
        name = getattr(value, "__qualname__", None) or value.__name__
        self._say(place, _digest_of(str(getattr(value, "__module__", "")), name))

    # Code.

    def _function(self, function: types.FunctionType, place: _ValuePath) -> None:
        # Not `__module__`, which decorators copy from what they wrap.
        module = str(function.__globals__.get("__name__"))
        own = self._is_project(module, function.__code__.co_filename)
        if not (own and self._with_code):
            self._say(place, _digest_of("" if own else module, function.__qualname__))
            self._members(dict(closure_of(function)), place.inside(function))
            return
        code = code_of(function.__code__)
        self._code.append(f"{place.path} {code.said}")
        if self._is_known(id(function), function):
            return
        name = function.__qualname__.rpartition(".")[2]
        loaded = sys.modules.get(module)
        home = loaded if getattr(loaded, "__dict__", None) is function.__globals__ else function
        for scope, variable, value in _variables_of(function, code.globals):
            anchor = home if scope == "a global of" else function
            self._put(value, self._named(variable, f"{scope} `{name}`", _ValuePath(""), anchor))
        self._members(function.__dict__, place.inside(function))
        for imported in sorted(_resolved(each, function) for each in code.imported):
            place = self._named(imported, f"imported by `{name}`", _ValuePath(""), function)
            if imported in sys.modules:
                self._put(sys.modules[imported], place)
            elif (found := PathFinder.find_spec(top(imported))) and self._is_project(imported, found.origin):
                self._say(place, "not imported yet", LATE)
        for each in sorted(code.attributes - self._names):
            self._names.add(each)
            for inspect in self._offered.pop(each, ()):
                inspect()

    def _is_known(self, key: object, value: object) -> bool:
        """Whether something was inspected before. The value is kept, so that no other one gets its id."""
        is_known = key in self._expanded
        self._expanded[key] = value
        return is_known

    def _offer(self, name: str, inspect: Callable[[], None]) -> None:
        """Inspect something as soon as code uses its name."""
        if name in self._names:
            inspect()
        else:
            self._offered[name].append(inspect)

    def _class(self, kind: type, place: _ValuePath) -> None:
        if not self._code_of(kind, place, made=True):
            self._say(place, _digest_of(name_of(kind)))
        if issubclass(kind, enum.Enum):
            members = {name: member._value_ for name, member in kind.__members__.items()}
            self._container(members, place.inside(kind).part_of(str(place)))

    def _code_of(self, kind: type, place: _ValuePath, *, made: bool = False) -> bool:
        """Walk the code of a project's class.

        `made` is True if the function may create objects of the class, and so call constructors. Return False for a
        class outside the project.
        """
        own = self._classes_of_project(kind)
        if not (self._with_code and own):
            return False
        self._code.append(f"{place.path} {name_of(kind)}")
        if not self._is_known((id(kind), made), kind):
            for each in own:
                for name, value in sorted(vars(each).items()):
                    for part in parts_of_attribute(value):
                        self._attribute_of(each, name, part, made=made)
        return True

    def _classes_of_project(self, kind: type) -> list[type]:
        """Return a class and its bases, as far as they belong to the project.

        A library may derive a class from one of a project, as for parametrizations.
        """
        if kind not in self._own:
            self._own[kind] = [each for each in kind.__mro__ if self._is_class_of_project(each)]
        return self._own[kind]

    def _is_class_of_project(self, kind: type) -> bool:
        module = str(kind.__module__)
        if top(module) in sys.modules:
            return self._is_project(module, None)
        # A class in C may name any module. One in Python has methods.
        files = [each.__code__.co_filename for each in vars(kind).values() if isinstance(each, types.FunctionType)]
        return bool(files) and self._is_project(module, files[0])

    def _attribute_of(self, kind: type, name: str, part: object, *, made: bool) -> None:
        if not isinstance(part, types.FunctionType):
            if not self._is_known((id(kind), name, id(part)), part):
                of = f"an attribute of class `{kind.__qualname__}`"
                self._offer(name, lambda: self._put(part, self._named(name, of, _ValuePath(""), kind)))
        elif name in _MAKING or name == "forward" or (name[:2] == name[-2:] == "__" and name not in _NOT_CALLED):
            # A call runs these methods without a name, but makes no object that is there already.
            if made or name not in _MAKING:
                self._function(part, _ValuePath(part.__qualname__))
        else:
            self._offer(name, functools.partial(self._function, part, _ValuePath(part.__qualname__)))

    def _python_module(self, module: types.ModuleType, place: _ValuePath) -> None:
        is_own = self._is_project(module.__name__, getattr(module, "__file__", None))
        if is_own and not self._is_known(id(module), module):
            inner = place.inside(module)
            for name, value in list(vars(module).items()):
                if name not in _OF_FILES:
                    self._offer(name, functools.partial(self._put, value, inner.at(f".{name}")))

    def _is_project(self, module: str, file: str | None) -> bool:
        """Whether code belongs to the user's project.

        Code belongs to the project if it is not installed, or is in the package of the function.
        """
        package = top(module)
        if package in OURS:
            return not _is_ours(module)
        return package == self._package or not is_installed(module, file)

    # Containers.

    def _container(self, value: object, place: _ValuePath, depth: int = 0) -> None:
        """Walk a container.

        Numbers, strings and other plain values in the container belong to its item. All other members, such as
        functions and arrays, are items of their own.
        """
        inner, members = place.inside(value), _members_of(value)
        told = [type(value).__name__, str(len(members))]
        if len(members) > _MOST_MEMBERS:
            self._opaque.append(f"{place}, of which {_MOST_MEMBERS} of {len(members)} members are inspected")
            members = [members[at * (len(members) - 1) // (_MOST_MEMBERS - 1)] for at in range(_MOST_MEMBERS)]
        steps, there = tuple([step for step, _, _ in members]), {step: member for step, _, member in members}
        told += [key for _, key, _ in members]
        is_set = issubclass(type(value), set | frozenset)
        if is_set:
            told += sorted(plain(member) or "" for _, _, member in members)
        whole = inner.whole()
        first = whole.state()
        self._say(whole, _digest_of(*told), steps=steps or ("",))
        if is_set:
            for _, _, member in members:
                if plain(member) is None:
                    self._put(member, inner.at("{}").alone())
            return
        # Members that calls have added do not count.
        for step in first[0].steps if first else steps:
            if not self._is_state(inner.at(step)) and step in there:
                self._member(there[step], inner.at(step), depth)

    def _member(self, member: Any, place: _ValuePath, depth: int) -> None:
        member = unwrapped(member)
        self._looks += 1
        said = self._simply(member, place.alone())
        if said is not None:
            self._say(place, f"{type(member).__name__}={said}")
        elif not _is_container(member):
            self._put(member, place.alone())
        elif depth > _DEEPEST or id(member) in place.within or self._looks > _MOST_LOOKS:
            self._say(place, "deeper")
        else:
            self._container(member, place, depth + 1)

    # Networks.

    def _network(self, network: nn.Module, place: _ValuePath) -> None:
        """Walk a network: its weights are an item, and all settings of installed layers another one."""
        self._networks.setdefault(id(network), network)
        weights, settings = (place.part_of(f"the {what} of {place}") for what in ("weights", "settings"))
        seen: dict[int, str] = {}
        waiting = [(network, "")]
        while waiting:
            module, path = waiting.pop()
            module = unwrapped(module)
            inner = [each.at(path).inside(module) for each in (weights, settings)]
            self._anchors[str(place.at(path))] = module
            if id(module) in seen:
                self._say(inner[0].whole(), f"as `{seen[id(module)]}`")
                continue
            seen[id(module)] = path
            try:
                children = self._module(module, *inner)
            except Exception:
                # Attributes and state of a module may be computed by a user's code.
                if not self._with_code:
                    raise
                children = []
                self._say(inner[0].at("!"), name_of(type(module)))
            waiting += [(child, f"{path}.{name}") for name, child in reversed(children)]

    def _module(self, module: nn.Module, weights: _ValuePath, settings: _ValuePath) -> list[tuple[str, nn.Module]]:
        """Walk one module of a network, and return its submodules."""
        kind: Any = type(module)
        if isinstance(module, torch.jit.ScriptModule):
            self._script(module, weights.whole())
            return []
        self._say(weights.whole(), " ".join((name_of(kind), *module._modules)), steps=("",))
        if mode_matters(module):
            self._say(weights.at(".training"), str(module.training))
        if hasattr(kind, "_digested"):
            self._say(weights.at(".tensor"), kind._digested(module))  # a module of this library
            return []
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            self._weight(tensor, weights.at(f".{name}"))
        self._code_of(kind, settings)
        self._settings(module, weights, settings)
        return [(name, child) for name, child in module._modules.items() if child is not None]

    def _settings(self, module: nn.Module, weights: _ValuePath, settings: _ValuePath) -> None:
        is_own, alone = bool(self._classes_of_project(type(module))), settings.alone()
        before = module._forward_pre_hooks.values()
        for at, hook in enumerate([*before, *module._forward_hooks.values()]):
            self._put(hook, alone.at(f".hooks[{at}]"))
        # Some hooks compute a tensor from parameters before each call, as in weight_norm.
        computed = {each for hook in before for each in _held_by(hook).values() if isinstance(each, str)}
        plainly = []
        for name, value in _settings_of(module):
            said = None if is_own else plain(value) or _said_at_once(value, 0)
            if said is not None:
                plainly.append(f"{name}={said}")
            elif not isinstance(value, torch.Tensor):
                self._put(value, alone.at(f".{name}"))
            elif name not in computed:
                self._weight(value, weights.at(f".{name}"))
        if plainly:
            self._say(settings.whole(), _digest_of(*sorted(plainly)), steps=("",))

    def _weight(self, tensor: torch.Tensor | None, place: _ValuePath) -> None:
        if tensor is not None and is_lazy(tensor) and self._with_code:
            self._opaque.append(f"`{place.path}`, of a lazy module that was not called yet")
            self._say(place, "lazy", LATE)
        else:
            self._say(place, "None" if tensor is None else self._hash_of(tensor, place))

    # Tensors, arrays and objects.

    def _hash_of(self, value: Any, place: _ValuePath) -> Hash:
        found = hash_of(value, place.path, strict=not self._with_code)
        if self._is_first and type(value) is not nn.Parameter and value.nbytes <= _AT_ONCE:
            found.text()
        return found

    def _tensor(self, tensor: torch.Tensor, place: _ValuePath) -> None:
        self._say(place, self._hash_of(tensor, place))
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            self._members(_held_by(tensor), place.inside(tensor))

    def _array(self, array: np.ndarray[Any, Any], place: _ValuePath) -> None:
        self._say(place, self._hash_of(array, place))
        if isinstance(array, np.ma.MaskedArray):
            self._array(np.ma.getmaskarray(array), place.at(".mask"))
        elif not isinstance(array, np.memmap):
            self._members(_held_by(array), place.inside(array))
        elif is_large(array.shape, array.itemsize):
            self._say(place, Hash(lambda: said_of_array(array, in_file=True)), STAMP)

    def _members(self, held: Mapping[str, object], place: _ValuePath) -> None:
        for name, value in held.items():
            self._put(value, place.at(f".{name}"))

    def _object(self, value: Any, place: _ValuePath) -> None:
        kind: Any = type(value)
        module = str(kind.__module__)
        if _is_ours(module):
            self._ours(value, place)
        elif top(module) in _TELLING_NOTHING or issubclass(kind, _SILENT):
            return
        elif issubclass(kind, torch.autocast):
            # Entering the context assigns the remaining attributes. Devices are not compared.
            self._say(place, f"autocast to {value.fast_dtype}" if value._enabled else "no autocast")
        else:
            if not place.of and place.anchor is None:
                # The first object of a walk is named by its class.
                place = place._replace(path=kind_name(value))
            self._anchors[str(place)] = value
            self._foreign(value, kind, place)

    def _foreign(self, value: Any, kind: Any, place: _ValuePath) -> None:
        """Walk an object of a project, of another library, or of the standard library."""
        if self._code_of(kind, place) or kind.__module__ in ("types", "argparse"):
            inner = place.alone().inside(value)
            cached = functools.cached_property  # noqa: TID251  (what users have)
            held = {
                name: each
                for name, each in _held_by(value).items()
                if not isinstance(class_attribute(kind, name), cached)
            }
            if class_attribute(kind, "__dataclass_fields__") is not None:
                self._say(inner.whole(), " ".join(held))
            self._members(held, inner)
        elif _is_array(kind):
            # Cover the values, as for sources. The same values may come from another library later.
            large = is_large((getattr(value, "nbytes", 0),), 1)
            self._say(place, Hash(lambda: said_of_array(value, in_file=large)), STAMP if large else STATE)
        elif top(kind.__module__) not in sys.stdlib_module_names or top(kind.__module__) in _HOLDING:
            inner = place.inside(value)._replace(kind=STATE)
            # What the object holds directly is one item.
            self._installed(value, inner if inner.item else inner.part_of(str(place)))

    def _installed(self, value: Any, place: _ValuePath) -> None:
        """Walk what an object of an installed package pickles."""
        kind: Any = type(value)
        self._say(place.whole(), _digest_of(name_of(kind)))
        reduce: Any = copyreg.dispatch_table.get(kind) or (lambda value: kind.__reduce_ex__(value, 4))
        try:
            made = None if top(kind.__module__) == "ctypes" else reduce(value)
        except Exception:  # noqa: BLE001  (libraries raise different errors)
            made = None
        if made is None:
            self._opaque.append(f"{place} ({name_of(kind)})")
        elif isinstance(made, tuple):
            create, args, state, items, entries = (*made, None, None, None)[:5]
            if not hasattr(create, "__qualname__"):
                self._put(create, place.at("()"))
            elif create not in _CREATING:
                self._say(place.at("()"), _digest_of(str(create.__module__), create.__qualname__))
            for at, each in enumerate(args):
                if each is not kind:
                    self._put(each, place.at(f"({at})"))
            for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
                self._members(part if isinstance(part, dict) else {"state": part} if part is not None else {}, place)
            more = {"items": items, "entries": entries}
            self._members({name: list(each) for name, each in more.items() if each is not None}, place)

    def _ours(self, value: Any, place: _ValuePath) -> None:
        if self._is_known(id(value), value):
            return
        for name, each in getattr(type(value), "_reaches", lambda _: {})(value).items():
            if isinstance(each, Item):
                self._slots.append(_Slot(_ValuePath(each.place, item=each.place), each.said, each.kind))
            elif each is not None:
                self._put(each, self._named(name, "", place.inside(value), None))

    _LOOKS: ClassVar[Mapping[Any, Callable[[Any, Any, _ValuePath], None]]] = {
        types.FunctionType: _function,
        types.MethodType: _bound,
        functools.partial: _partial,
        torch.jit.ScriptFunction: _script,
        nn.Module: _network,
        torch.Tensor: _tensor,
        np.ndarray: _array,
        type: _class,
        types.ModuleType: _python_module,
        (
            types.BuiltinFunctionType,
            types.MethodDescriptorType,
            types.WrapperDescriptorType,
            types.MethodWrapperType,
            np.ufunc,
        ): _builtin,
    }
    """How to walk a value, by its type. Other values are objects."""


_CREATING = (copyreg.__newobj__, copyreg._reconstructor, object.__new__)  # type: ignore[attr-defined]
_MAKING = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "__init_subclass__"})
"""Methods for creating an object."""
_NOT_CALLED = frozenset({"__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__", "__del__", "__eq__"})
_NOT_CALLED |= {"__hash__", "__setattr__", "__delattr__", "__setitem__", "__delitem__", "__copy__", "__deepcopy__"}
"""Special methods not run by a call."""


def _variables_of(function: types.FunctionType, named: Iterable[str]) -> Iterator[tuple[str, str, object]]:
    """Yield what a function uses: the scope, the name and the value of each default, closure variable and global."""
    code, defaults, scope = function.__code__, function.__defaults__ or (), function.__globals__
    parameters = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    for name, value in (*zip(parameters, defaults, strict=True), *(function.__kwdefaults__ or {}).items()):
        yield "a default of", name, value
    for name, value in closure_of(function):
        yield "a variable around", name, value
    for name in sorted((scope.keys() & named) - _OF_FILES):
        yield "a global of", name, scope[name]


def _settings_of(module: nn.Module) -> Iterator[tuple[str, object]]:
    kind: Any = type(module)
    yield from ((name, value) for name, value in _held_by(module).items() if name not in _OF_MODULES)
    own = (kind._save_to_state_dict, kind.get_extra_state)  # what modules override
    if own != (nn.Module._save_to_state_dict, nn.Module.get_extra_state):
        saved: dict[str, object] = {}
        module._save_to_state_dict(saved, "", True)
        known = {*module._parameters, *module._buffers}
        yield from ((f"state_dict.{name}", value) for name, value in saved.items() if name not in known)


def _held_by(value: object) -> dict[str, object]:
    """Return the attributes of an object, including slots.

    If its class has ``__getstate__``, what this method leaves out does not count. Properties are not called.
    """
    kind: Any = type(value)
    getter = getattr(kind, "__getstate__", None)
    if isinstance(getter, types.FunctionType):
        try:
            state = getter(value)
        except Exception:  # noqa: BLE001  (a user's method)
            state = None
        if isinstance(state, dict):
            return {str(name): each for name, each in state.items()}
    try:
        held = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError, ValueError):
        held = {}
    for name, slot in _slots_of(kind):
        try:
            held[name] = slot.__get__(value)
        except AttributeError:  # the slot is empty
            continue
    return held


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type) -> list[tuple[str, types.MemberDescriptorType]]:
    members = [member for each in kind.__mro__ for member in vars(each).items()]
    return [
        (name, each) for name, each in members if isinstance(each, types.MemberDescriptorType) and name != "__dict__"
    ]


def plain(value: Any) -> str | None:  # noqa: PLR0911  (one case for each kind)
    """Return a text identifying a simple value, such as a number, a string or a dtype.

    Strings may be secret, so their text is a digest. Return None for all other values, such as lists and tensors.
    """
    kind = type(value)
    if kind in (bool, float, complex) or issubclass(kind, _TOLD_BY_REPR):
        return repr(value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__qualname__}.{value._name_} = {plain(value._value_)}"
    if issubclass(kind, int):
        return int.__repr__(value) if int.bit_length(value) < 1000 else _digest_of(hex(value))
    if issubclass(kind, np.generic) and not value.dtype.hasobject:
        is_number = value.dtype.kind in "biufc"
        return f"{value.dtype} {value.item()!r}" if is_number else _digest_of(str(value.dtype), value.tobytes().hex())
    if issubclass(kind, float):
        return float.__repr__(value)
    if issubclass(kind, str | bytes | bytearray):
        raw = value.encode("utf-8", "surrogatepass") if issubclass(kind, str) else bytes(value)
        return _digest_of(kind.__name__, raw.hex())
    if kind is torch.device:
        # All devices count as equal, because results hardly depend on the device.
        return "a device"
    if issubclass(kind, slice):
        ends = [plain(each) for each in (value.start, value.stop, value.step)]
        return None if None in ends else f"slice({', '.join(map(str, ends))})"
    return _digest_of(kind.__name__, repr(value)) if top(kind.__module__) in _HASHED_BY_REPR else None


def _digest_of(*said: str) -> str:
    return f"#{sha256_of(said)}"


_TOLD_BY_REPR = (torch.dtype, torch.layout, torch.memory_format, torch.Size, np.dtype, range, type(...), type(None))
_HASHED_BY_REPR = frozenset({"pathlib", "decimal", "fractions", "datetime", "uuid", "array", "re"})
"""Packages of the standard library with objects for single values."""
_BASES = (OrderedDict, dict, types.MappingProxyType, list, tuple, deque, set, frozenset)


def _is_container(value: Any) -> bool:
    kind = type(value)
    return issubclass(kind, _BASES) or (issubclass(kind, np.ndarray) and value.dtype.hasobject)


def _members_of(value: Any) -> list[tuple[str, str, object]]:
    """Return a tuple for each member of a container.

    The tuple has the step to the member, such as ``[0]``, the key as a text, and the member itself. The key is ""
    unless the container is a dict.
    """
    kind = type(value)
    # Use the methods of the base, to run no user code. Copy, because other threads may add items.
    base: Any = next((each for each in _BASES if issubclass(kind, each)), None)
    if base in _BASES[:3]:
        members = [
            (f"[{_key(at, key)}]", f"{type(key).__name__}={_key_said(key)}", member)
            for at, (key, member) in enumerate(list(base.items(value)))
        ]
        return [(".default_factory", "", value.default_factory), *members] if issubclass(kind, defaultdict) else members
    is_set = base in (set, frozenset)
    listed = value.ravel().tolist() if base is None else [*base.__iter__(value)]
    return [("{}" if is_set else f"[{at}]", "", member) for at, member in enumerate(listed)]


_SIMPLE = frozenset({bool, int, float, complex, str, bytes, type(None)})
_LISTS = (list, tuple, deque, set, frozenset)


def _said_at_once(value: Any, shortest: int = _LONG) -> str | None:
    """Return a digest of a container of numbers and texts with more than `shortest` members.

    Return None for anything else.
    """
    kind = type(value)
    if kind not in (dict, *_LISTS) or len(value) <= shortest or not _is_simple(value):
        return None
    if kind in (set, frozenset):
        said = sorted(marshal.dumps(each, 2) for each in list(value))
    else:
        said = [marshal.dumps(list(value.items() if kind is dict else value), 2)]
    return f"#{kind.__name__}{hashlib.sha256(b''.join(said)).hexdigest()}"


def _is_simple(value: Any) -> bool:
    """Whether a value is a number or a text, or a container of such values."""
    kind = type(value)
    if kind is dict:
        return _is_simple([*value]) and _is_simple([*value.values()])
    if kind not in _LISTS:
        return kind in _SIMPLE
    kinds = set(map(type, list(value)))
    return kinds <= _SIMPLE or (kinds <= _SIMPLE | {tuple, list} and all(map(_is_simple, list(value))))


def _key_said(key: object) -> str:
    if isinstance(key, tuple):
        return f"({', '.join(map(_key_said, key))})"
    return plain(key) or (name_of(key) if isinstance(key, type) else str(getattr(key, "__qualname__", "")))


def _key(at: int, key: object) -> str:
    is_short = type(key) in (str, int, bool, float) and len(repr(key)) < 80
    return repr(key) if is_short else f"{type(key).__name__} {at}"


def _resolved(module: str, function: types.FunctionType) -> str:
    package = function.__globals__.get("__package__")
    try:
        return importlib.util.resolve_name(module, package)
    except ImportError:  # the import fails in the call, too
        return module


def _is_array(kind: type) -> bool:
    is_typed = class_attribute(kind, "__array__") is not None and class_attribute(kind, "dtype") is not None
    return is_typed or class_attribute(kind, "__array_interface__") is not None


def _is_ours(module: str) -> bool:
    """Whether a module belongs to this library.

    The conformance suite counts as code of a user.
    """
    return top(module) in OURS and not module.startswith("infinite_tensor.testing.")


def _package_of(function: object) -> str | None:
    """Return the top-level package of a user's function.

    Return None for networks, and for functions of the standard library, torch, numpy and this library.
    """
    function = innermost(function)
    module = getattr(function if isinstance(function, types.FunctionType) else type(function), "__module__", "") or ""
    package = top(module)
    known = (
        package in sys.stdlib_module_names or package in ("torch", "numpy", *OURS) or isinstance(function, nn.Module)
    )
    return None if known else package


def digest(module: nn.Module) -> str:
    """Return the SHA-256 of a network's structure, settings and weights.

    Networks with different weights have different digests.

    For each submodule, the digest covers its class name, all its attributes, and `training` if its code reads that. It
    covers the name, dtype, shape and bytes of each parameter, of each buffer (even if it is not in the ``state_dict``),
    and of each tensor among the attributes. It also covers other entries of the ``state_dict``, such as the packed
    weights of a quantized layer, and modules and tensors in lists and dicts. For TorchScript, it covers everything in a
    saved file. Tensors that a hook of torch computes from parameters before each call are not covered, as in
    `torch.nn.utils.weight_norm`, and neither is what the ``__getstate__`` of a class leaves out.

    The digest does not depend on the device, on strides, on `requires_grad`, or on the process. It stays the same if
    ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel`` wraps a module or a submodule.

    Parameters
    ----------
    module : torch.nn.Module
        The network.

    Returns
    -------
    str
        64 hexadecimal digits, the same in every process and on all machines with the same byte order.

    Raises
    ------
    ValidationError
        If `module` is not a module, or if the parts of a submodule cannot be read. Also if a parameter or buffer has no
        readable values, because it is on the device ``meta`` or belongs to a lazy module that was not called yet.

    Notes
    -----
    Tensors are cut into leaves of 4 MiB, which ``torch.get_num_threads()`` threads hash in parallel. The digest is
    computed from the digests of all leaves, in order. A process hashes a tensor again only if its storage, its version,
    or, on the CPU, a CRC-32C of its bytes has changed.

    Of functions among the attributes, only names and closures are covered. Attributes changed by calls for a tensor
    count as they were before the calls. An `InfiniteBuffer` is covered by the definition of its tensor.

    Examples
    --------
    With this `version`, changed weights are an error, instead of a `FunctionChangedWarning`:

    >>> net = torch.nn.Conv2d(1, 1, 3, padding=1).eval()
    >>> def f(ctx):
    ...     return net(torch.full((1, 4, 4), float(ctx[1])))
    >>> window = TensorWindow((1, 4, 4))
    >>> t = InfiniteTensor((1, 4, None), f, window, version=digest(net))
    >>> t.version == digest(torch.nn.DataParallel(net))
    True
    """
    if not isinstance(module, nn.Module):
        raise ValidationError(f"digest takes a torch.nn.Module, got {quoted(module)}; give the network itself")
    try:
        return Snapshot(module, "", with_code=False).digest()
    except ValidationError:
        raise
    except Exception as error:
        raise ValidationError(
            f"digest: {name_of(type(module))} cannot be inspected: {type(error).__name__}: {error}; set "
            "version= to a text for the weights, such as the name of a checkpoint"
        ) from error
