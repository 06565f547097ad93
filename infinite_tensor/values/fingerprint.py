"""Inspection of functions: their code, and every value that they reach.

A `Look` lists the code and the values at one moment. Values that differ between a look before a call and a look after
it are *state* of the function, such as counters, caches and work buffers. Later looks list a state as it was at first.

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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import quoted
from infinite_tensor.values.arrays import (
    Hash,
    digest_of_array,
    hash_of_array,
    hash_of_tensor,
    is_large,
    memory_map_of,
    sha256_of,
    stamps_of_array,
)
from infinite_tensor.values.code import (
    OURS,
    bare,
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


class _Place(NamedTuple):
    """Location of a value.

    Attributes
    ----------
    path, of : str
        Name and members, as in ``config.gain``, and the scope of the name: "a global of `f`".
    item : str
        The item with the value. Empty if the value is an item of its own. `base` is the length of its path, and
        `item_kind` its kind, if that differs from `kind`.
    anchor : object
        The innermost object around the value with a weak reference, and `rel`, the path from there.
    owner : _Place or None
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
    rel: str = ""
    owner: Any = None
    within: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"`{self.path}`, {self.of}" if self.of else f"`{self.path}`"

    def at(self, step: str, kind: str | None = None) -> _Place:
        """Return the location of a member, reached by a step such as ``[0]`` or ``.name``."""
        # Ten times as fast as `_replace`.
        path, of, own, item, base, item_kind, anchor, rel, owner, within = self
        return _Place(path + step, of, kind or own, item, base, item_kind, anchor, rel + step, owner, within)

    def whole(self) -> _Place:
        """Return the location of what an object is apart from its members."""
        return (self if self.item else self.part_of(str(self))).at("#")

    def part_of(self, item: str, kind: str = "") -> _Place:
        """Return the location as that of an item with members."""
        return self._replace(item=item, base=len(self.path), item_kind=kind)

    def alone(self) -> _Place:
        """Return the location as that of an item of its own."""
        return self._replace(item="", item_kind="")

    def inside(self, value: object) -> _Place:
        """Return the location for members of `value`, an object at this location."""
        path, of, kind, item, base, item_kind, anchor, rel, owner, within = self
        within = (*within, id(value))
        if type(value).__weakrefoffset__:
            anchor, rel, owner = value, "", self
        return _Place(path, of, kind, item, base, item_kind, anchor, rel, owner, within)

    def is_around(self, other: _Place) -> bool:
        """Whether this is the location of an object with a member at `other`."""
        rest = other.path[len(self.path) :]
        return self.of == other.of and other.path.startswith(self.path) and rest[:1] in ("", ".", "[", "{", "#", "(")


class _Slot(NamedTuple):
    """One text about a value at a location. `steps` are the members of a container, in order."""

    place: _Place
    item: str
    said: Text
    kind: str
    steps: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, bool]:
        return self.place.path, self.place.of, self.kind == STAMP


_States: TypeAlias = dict[str, tuple[_Place, list[_Slot]]]
_states: dict[int, tuple[weakref.ref[Any], _States]] = {}
"""The states known in this process: for the id of each anchor, by path, where each was found and what was there."""


def _state_at(place: _Place) -> list[_Slot] | None:
    """Return what was at first at a location of a state, or None at any other location."""
    known = _states.get(id(place.anchor))
    if known is None or known[0]() is not place.anchor or place.rel not in known[1]:
        return None
    origin, slots = known[1][place.rel]
    return slots if str(origin) == str(place) else [_moved(slot, origin, place) for slot in slots]


def _moved(slot: _Slot, origin: _Place, place: _Place) -> _Slot:
    """Return a slot for the same object, reached in another way."""
    item, base = place.item, place.base
    if not slot.place.item or slot.place.base >= len(origin.path):
        scope = f", {place.of}" if place.of else ""
        item = slot.item.replace(f"`{origin.path}", f"`{place.path}", 1).removesuffix(f", {origin.of}") + scope
        base = slot.place.base + len(place.path) - len(origin.path)
    path = place.path + slot.place.path[len(origin.path) :]
    return slot._replace(place=slot.place._replace(path=path, of=place.of, base=base), item=item)


def _keep_state(place: _Place, first: list[_Slot]) -> None:
    key, anchor = id(place.anchor), place.anchor
    known = _states.get(key)
    if known is None or known[0]() is not anchor:
        known = _states[key] = weakref.ref(anchor, lambda _, states=_states: states.pop(key, None)), {}  # type: ignore[misc]
    # Without references to the objects, so that they can be freed.
    kept = [slot._replace(place=slot.place._replace(anchor=None, owner=None)) for slot in first]
    known[1].setdefault(place.rel, (place._replace(anchor=None, owner=None), kept))


class Look:
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
        self._walk = walk = _Walk(_package_of(function), with_code=with_code, is_first=is_first)
        walk.run(function, name)
        self._slots = walk.slots
        self._anchors = walk.anchors
        self.networks = list(walk.networks.values())
        self.states = walk.states

    def code(self) -> str:
        """Return the SHA-256 of the code.

        Bytecode differs between minor versions of Python.
        """
        return sha256_of(sorted(set(self._walk.code)))

    def items(self, without: Iterable[str] = ()) -> tuple[list[Item], list[str]]:
        """Return the values found, and the locations of objects that could not be inspected.

        Values at the locations in `without` are left out, with their members.
        """
        split = [text[1:].partition("`") for text in without]
        left_out = [_Place(path, of.removeprefix(", ")) for path, _, of in split]
        parts: dict[tuple[str, bool], list[_Slot]] = {}
        for slot in self._slots:
            if not any(each.is_around(slot.place) for each in left_out):
                parts.setdefault((slot.item, slot.kind == STAMP), []).append(slot)
        # A state is found earlier or later than what is there now.
        found = sorted(map(_item_of, parts.values()))
        unseen = [item.place for item in found if not item.said]
        return [item for item in found if item.said], list(dict.fromkeys([*self._walk.opaque, *unseen]))

    def digest(self) -> str:
        """Return a SHA-256 of all values and their locations."""
        return sha256_of(sorted(sha256_of((slot.place.path, _text_of(slot.said))) for slot in self._slots))

    def hash(self) -> None:
        """Compute all digests now."""
        for slot in self._slots:
            _text_of(slot.said)

    def marks(self) -> list[tuple[str, object]]:
        """Return the location of each weight and tensor, and a mark of its values.

        The mark differs after a change in place.
        """
        return [(slot.item, slot.said.checked()) for slot in self._slots if isinstance(slot.said, Hash)]

    def keep_states(self, before: Look, first: Look) -> None:
        """Mark every value that differs from `before` as state of the function.

        Values in `first`, the first look of all, remain their values.
        """
        was, now = ({slot.key: slot for slot in look._slots} for look in (before, self))  # noqa: SLF001
        found: list[_Place] = []
        scopes = {"", *(of for _, of, _ in was)}
        for key in dict.fromkeys((*was, *now)):
            old, new = was.get(key), now.get(key)
            slot = old or now[key]
            is_same = old is not None and new is not None and old.said == new.said
            # A function may be reached for the first time. Parameters are changed by training, and not by calls.
            if is_same or slot.place.of not in scopes or (isinstance(slot.said, Hash) and slot.said.is_parameter):
                continue
            place: _Place | None = slot.place
            # An object that is replaced at each call is a state as a whole.
            while place is not None and place.owner is not None and not self._holds(before, place):
                place = place.owner
            if place is None or place.anchor is None or any(each.is_around(place) for each in found):
                continue
            found.append(place)
            if slot.kind != LATE:
                first.states.append(str(place))
                around = [each for each in first._slots if place.is_around(each.place)]
                _keep_state(place, [each._replace(said=_text_of(each.said, known=True)) for each in around])

    def _holds(self, before: Look, place: _Place) -> bool:
        """Whether the anchor of a location is the same object as in the look `before`."""
        where = str(place.owner)
        return self._anchors.get(where) is before._anchors.get(where) is not None


def _text_of(said: Text, *, known: bool = False) -> str:
    return said if isinstance(said, str) else said.text(known=known)


def _item_of(slots: list[_Slot]) -> Item:
    first = slots[0]
    if len(slots) == 1 and not first.steps:
        return Item(first.item, _text_of(first.said), first.kind)
    said = [sha256_of((slot.place.path[slot.place.base :], _text_of(slot.said))) for slot in slots]
    # Containers tell the order of their members. Members of sets, and known states, come in any order.
    return Item(first.item, f"#{sha256_of(sorted(said))}", first.kind)


def networks_in(functions: Iterable[object]) -> list[nn.Module]:
    """Return the networks used by functions, without duplicates."""
    found = [network for function in functions for network in Look(function, "f").networks]
    return list({id(network): network for network in found}.values())


class _Walk:
    """A walk through everything reachable from a function.

    Parameters
    ----------
    package : str or None
        The package of the function. Its code is walked even if the package is installed.
    with_code, is_first : bool
        As for `Look`.
    """

    def __init__(self, package: str | None, *, with_code: bool, is_first: bool) -> None:
        self.code: list[str] = []
        self.slots: list[_Slot] = []
        self.networks: dict[int, nn.Module] = {}
        self.opaque: list[str] = []
        self.anchors: dict[str, object] = {}
        self.states: list[str] = []
        self._package = package
        self._with_code = with_code
        self._is_first = is_first
        self._queue: deque[tuple[object, _Place]] = deque()
        self._expanded: dict[object, object] = {}
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._names: set[str] = set()
        self._own: dict[type, list[type]] = {}
        self._offered: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        self._visits: Counter[int] = Counter()
        self._looks = 0

    def run(self, value: object, name: str) -> None:
        """Walk a value and everything reachable from it, nearer values first."""
        self._put(value, _Place(name))
        while self._queue:
            value, place = self._queue.popleft()
            self._looks += 1
            if self._looks == _MOST_LOOKS:
                self.opaque.append(f"{place} and everything beyond, which is too much")
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

    # Places.

    def _is_state(self, place: _Place) -> bool:
        """Whether there is a known state at a location. If so, add what was there at first."""
        first = _state_at(place)
        if first is None:
            return False
        self.slots += first
        self.states.append(str(place))
        return True

    def _put(self, value: object, place: _Place) -> None:
        self._queue.append((value, place))

    def _named(self, path: str, of: str, around: _Place, anchor: object) -> _Place:
        """Return the location of a name in a scope, with a number if there are several."""
        self._numbers[path, of] += 1
        number = self._numbers[path, of]
        of = f"{of} ({number})" if number > 1 else of
        return _Place(path, of, around.kind, anchor=anchor, rel=path, within=around.within)

    def _say(self, place: _Place, said: Text, kind: str | None = None, steps: tuple[str, ...] = ()) -> None:
        if not self._is_state(place):
            kind = kind or place.item_kind or place.kind
            self.slots.append(_Slot(place, place.item or str(place), said, kind, steps))

    # Values.

    def _look(self, value: Any, place: _Place) -> None:
        value = unwrapped(value)
        kind = type(value)
        said = plain(value) or _said_at_once(value)
        if said is not None or _is_container(value):
            # A project's subclass of a number, a text or a container may have methods.
            self._code_of(kind, place)
        if issubclass(kind, enum.Enum) and plain(value._value_) is None:
            self._put(value._value_, place.at(".value"))
        if said is not None:
            self._say(place, said)
        elif id(value) in place.within:
            return
        elif _is_container(value):
            self._container(value, place if place.item else place.part_of(str(place), _kind_of_container(value, place)))
        else:
            self._visits[id(value)] += 1
            if self._visits[id(value)] > _MOST_VISITS:
                self._say(place, "again")
                return
            # By type(), because an object may compute its `__class__`.
            for kinds, look in self._looks_by_type().items():
                if issubclass(kind, kinds):
                    look(value, place.alone())
                    return
            self._object(value, place)

    def _looks_by_type(self) -> dict[Any, Callable[[Any, _Place], None]]:
        return {
            types.FunctionType: self._function,
            types.MethodType: self._bound,
            functools.partial: self._partial,
            torch.jit.ScriptFunction: self._script,
            nn.Module: self._network,
            torch.Tensor: self._tensor,
            np.ndarray: self._array,
            type: self._class,
            types.ModuleType: self._python_module,
            _CALLABLES: self._builtin,
        }

    def _bound(self, method: types.MethodType, place: _Place) -> None:
        self._put(method.__func__, place)
        self._put(method.__self__, self._named(kind_name(method.__self__), "", place, None))

    def _script(self, function: object, place: _Place) -> None:
        self._say(place, Hash(lambda: f"#{digest_of_script(function)}"))

    def _partial(self, partial: functools.partial[Any], place: _Place) -> None:
        self._put(partial.func, place)
        whose = f"of a partial of `{kind_name(innermost(partial))}`"
        inner = place.inside(partial)
        for at, value in enumerate(partial.args):
            self._put(value, self._named(f"args[{at}]", whose, inner, partial))
        if len(partial.keywords) > 1:
            self._say(self._named("keywords", whose, inner, partial), " ".join(partial.keywords), STATE)
        for name, value in partial.keywords.items():
            self._put(value, self._named(name, whose, inner, partial))

    def _builtin(self, value: Any, place: _Place) -> None:
        owner = getattr(value, "__self__", None)
        if owner is not None and not issubclass(type(owner), types.ModuleType | type):
            self._put(owner, place.inside(value))
        name = getattr(value, "__qualname__", None) or value.__name__
        self._say(place, f"#{sha256_of([str(getattr(value, '__module__', '')), name])}")

    # Code.

    def _function(self, function: types.FunctionType, place: _Place) -> None:
        # Not `__module__`, which decorators copy from what they wrap.
        module = str(function.__globals__.get("__name__"))
        own = self._is_project(module, function.__code__.co_filename)
        if not (own and self._with_code):
            self._say(place, f"#{sha256_of(['' if own else module, function.__qualname__])}")
            for name, value in closure_of(function):
                self._put(value, place.inside(function).at(f".{name}"))
            return
        code = code_of(function.__code__)
        self.code.append(f"{place.path} {code.said}")
        if id(function) in self._expanded:
            return
        self._expanded[id(function)] = function
        name = function.__qualname__.rpartition(".")[2]
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = function.__defaults__ or ()
        known = {
            variable: function.__globals__[variable] for variable in sorted(code.globals & function.__globals__.keys())
        }
        for scope, values in (
            ("a default of", zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)),
            ("a default of", (function.__kwdefaults__ or {}).items()),
            ("a variable around", closure_of(function)),
            ("a global of", ((each, value) for each, value in known.items() if each not in _OF_FILES)),
        ):
            for variable, value in values:
                anchor = function if scope != "a global of" else _module_of(function)
                self._put(value, self._named(variable, f"{scope} `{name}`", _Place(""), anchor))
        self._members(function.__dict__, place.inside(function))
        for imported in sorted(_resolved(each, function) for each in code.imported):
            place = self._named(imported, f"imported by `{name}`", _Place(""), function)
            if imported in sys.modules:
                self._put(sys.modules[imported], place)
            elif self._may_be_imported(imported):
                self._say(place, "not imported yet", LATE)
        self._name(code.attributes)

    def _name(self, names: Iterable[str]) -> None:
        """Inspect what was offered under names that code now uses."""
        for name in sorted(set(names) - self._names):
            self._names.add(name)
            for inspect in self._offered.pop(name, ()):
                inspect()

    def _offer(self, name: str, inspect: Callable[[], None], *, used: bool = False) -> None:
        """Inspect something as soon as code uses its name."""
        if used or name in self._names:
            inspect()
        else:
            self._offered[name].append(inspect)

    def _class(self, kind: type, place: _Place) -> None:
        if not self._code_of(kind, place, made=True):
            self._say(place, f"#{sha256_of([name_of(kind)])}")
        if issubclass(kind, enum.Enum):
            members = {name: member._value_ for name, member in kind.__members__.items()}
            self._container(members, place.inside(kind).part_of(str(place)))

    def _code_of(self, kind: type, place: _Place, *, made: bool = False) -> bool:
        """Walk the code of a project's class.

        `made` is True if the function may create objects of the class, and so call constructors. Return False for a
        class outside the project.
        """
        own = self._classes_of_project(kind)
        if not (self._with_code and own):
            return False
        self.code.append(f"{place.path} {name_of(kind)}")
        if (id(kind), made) in self._expanded:
            return True
        self._expanded[id(kind), made] = kind
        for each in own:
            for name, value in sorted(vars(each).items()):
                self._offer_attribute(each, name, value, made=made)
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

    def _offer_attribute(self, kind: type, name: str, value: object, *, made: bool) -> None:
        for part in parts_of_attribute(value):
            if isinstance(part, types.FunctionType):
                if name in _MAKING and not made:
                    continue
                is_run = (
                    (name in _MAKING)
                    or name == "forward"
                    or (name[:2] == name[-2:] == "__" and name not in _NOT_CALLED)
                )
                self._offer(name, functools.partial(self._function, part, _Place(part.__qualname__)), used=is_run)
            elif (id(kind), name, id(part)) not in self._expanded:
                self._expanded[id(kind), name, id(part)] = part
                self._offer(name, functools.partial(self._class_attribute, kind, name, part))

    def _class_attribute(self, kind: type, name: str, value: object) -> None:
        self._put(value, self._named(name, f"an attribute of class `{kind.__qualname__}`", _Place(""), kind))

    def _python_module(self, module: types.ModuleType, place: _Place) -> None:
        if id(module) in self._expanded or not self._is_project(module.__name__, getattr(module, "__file__", None)):
            return
        self._expanded[id(module)] = module
        inner = place.inside(module)
        for name, value in list(vars(module).items()):
            if name not in _OF_FILES:
                self._offer(name, functools.partial(self._put, value, inner.at(f".{name}")))

    # Containers.

    def _container(self, value: object, place: _Place, depth: int = 0) -> None:
        """Walk a container.

        Numbers, strings and other plain values in the container belong to its item. All other members, such as
        functions and arrays, are items of their own.
        """
        inner, members = place.inside(value), _members_of(value)
        told = [type(value).__name__, str(len(members))]
        if len(members) > _MOST_MEMBERS:
            self.opaque.append(f"{place}, of which {_MOST_MEMBERS} of {len(members)} members are inspected")
            members = [members[at * (len(members) - 1) // (_MOST_MEMBERS - 1)] for at in range(_MOST_MEMBERS)]
        steps, there = tuple([step for step, _, _ in members]), {step: member for step, _, member in members}
        told += [key for _, key, _ in members]
        is_set = issubclass(type(value), set | frozenset)
        if is_set:
            told += sorted(plain(member) or "" for _, _, member in members)
        whole = inner.whole()
        first = _state_at(whole)
        self._say(whole, f"#{sha256_of(told)}", steps=steps or ("",))
        if is_set:
            for _, _, member in members:
                if plain(member) is None:
                    self._put(member, inner.at("{}").alone())
        else:
            # Members that calls have added do not count.
            for step in first[0].steps if first else steps:
                self._member(there.get(step, _NOTHING), inner.at(step), depth)

    def _member(self, member: Any, place: _Place, depth: int) -> None:
        if self._is_state(place) or member is _NOTHING:
            return
        member = unwrapped(member)
        self._looks += 1
        said = plain(member) or _said_at_once(member)
        if said is not None or _is_container(member):
            self._code_of(type(member), place)
        if issubclass(type(member), enum.Enum) and plain(member._value_) is None:
            self._put(member._value_, place.at(".value").alone())
        if said is not None:
            self._say(place, f"{type(member).__name__}={said}")
        elif not _is_container(member):
            self._put(member, place.alone())
        elif depth > _DEEPEST or id(member) in place.within or self._looks > _MOST_LOOKS:
            self._say(place, "deeper")
        else:
            self._container(member, place, depth + 1)

    # Networks.

    def _network(self, network: nn.Module, place: _Place) -> None:
        """Walk a network: its weights are an item, and all settings of installed layers another one."""
        self.networks.setdefault(id(network), network)
        weights, settings = (place.part_of(f"the {what} of {place}") for what in ("weights", "settings"))
        seen: dict[int, str] = {}
        waiting = [(network, "")]
        while waiting:
            module, path = waiting.pop()
            module = bare(module)
            inner = [each.at(path).inside(module) for each in (weights, settings)]
            self.anchors[str(place.at(path))] = module
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

    def _module(self, module: nn.Module, weights: _Place, settings: _Place) -> list[tuple[str, nn.Module]]:
        """Walk one module of a network, and return its submodules."""
        kind: Any = type(module)
        if isinstance(module, torch.jit.ScriptModule):
            self._say(weights.whole(), Hash(lambda: f"#{digest_of_script(module)}"))
            return []
        self._say(weights.whole(), " ".join((name_of(kind), *module._modules)), steps=("",))  # noqa: SLF001
        if mode_matters(module):
            self._say(weights.at(".training"), str(module.training))
        if hasattr(kind, "_digested"):
            self._say(weights.at(".tensor"), kind._digested(module))  # noqa: SLF001  (a module of this library)
            return []
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):  # noqa: SLF001
            self._weight(tensor, weights.at(f".{name}"))
        self._code_of(kind, settings)
        self._attributes(module, weights, settings, is_own=bool(self._classes_of_project(kind)))
        return [(name, child) for name, child in module._modules.items() if child is not None]  # noqa: SLF001

    def _attributes(self, module: nn.Module, weights: _Place, settings: _Place, *, is_own: bool) -> None:
        before = module._forward_pre_hooks.values()  # noqa: SLF001
        for at, hook in enumerate([*before, *module._forward_hooks.values()]):  # noqa: SLF001
            self._put(hook, settings.alone().at(f".hooks[{at}]"))
        # Some hooks compute a tensor from parameters before each call, as in weight_norm.
        computed = {each for hook in before for each in _held_by(hook).values() if isinstance(each, str)}
        plainly = []
        for name, value in self._settings(module):
            said = None if is_own else plain(value) or _said_at_once(value, 0)
            if said is not None:
                plainly.append(f"{name}={said}")
            elif not isinstance(value, torch.Tensor):
                self._put(value, settings.alone().at(f".{name}"))
            elif name not in computed:
                self._weight(value, weights.at(f".{name}"))
        if plainly:
            self._say(settings.whole(), f"#{sha256_of(sorted(plainly))}", steps=("",))

    def _settings(self, module: nn.Module) -> Iterator[tuple[str, object]]:
        kind: Any = type(module)
        for name, value in _held_by(module).items():
            if name not in _OF_MODULES:
                yield name, value
        own = (kind._save_to_state_dict, kind.get_extra_state)  # noqa: SLF001  (what modules override)
        if own != (nn.Module._save_to_state_dict, nn.Module.get_extra_state):  # noqa: SLF001
            saved: dict[str, object] = {}
            module._save_to_state_dict(saved, "", True)  # noqa: SLF001
            known = {*module._parameters, *module._buffers}  # noqa: SLF001
            yield from ((f"state_dict.{name}", value) for name, value in saved.items() if name not in known)

    def _weight(self, tensor: torch.Tensor | None, place: _Place) -> None:
        if tensor is not None and is_lazy(tensor) and self._with_code:
            self.opaque.append(f"`{place.path}`, of a lazy module that was not called yet")
            self._say(place, "lazy", LATE)
        else:
            self._say(place, "None" if tensor is None else self._hash_of(tensor, place))

    # Tensors, arrays and objects.

    def _hash_of(self, tensor: torch.Tensor, place: _Place) -> Hash:
        found = hash_of_tensor(tensor, place.path, strict=not self._with_code)
        if self._is_first and type(tensor) is not nn.Parameter and tensor.nbytes <= _AT_ONCE:
            found.text()
        return found

    def _tensor(self, tensor: torch.Tensor, place: _Place) -> None:
        self._say(place, self._hash_of(tensor, place))
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            self._members(_held_by(tensor), place.inside(tensor))

    def _array(self, array: np.ndarray[Any, Any], place: _Place) -> None:
        found = hash_of_array(array)
        if self._is_first and array.nbytes <= _AT_ONCE:
            found.text()
        self._say(place, found)
        if isinstance(array, np.ma.MaskedArray):
            self._array(np.ma.getmaskarray(array), place.at(".mask"))
        elif isinstance(array, np.memmap):
            if is_large(array.shape, array.itemsize):
                self._say(place, Hash(lambda: _stamp_of(array)), STAMP)
        else:
            self._members(_held_by(array), place.inside(array))

    def _members(self, held: Mapping[str, object], place: _Place) -> None:
        for name, value in held.items():
            self._put(value, place.at(f".{name}"))

    def _object(self, value: object, place: _Place) -> None:
        kind = type(value)
        module = str(kind.__module__)
        if _is_ours(module):
            self._ours(value, place)
            return
        if top(module) in _TELLING_NOTHING or issubclass(kind, _SILENT):
            return
        if issubclass(kind, torch.autocast):
            # Entering the context assigns the remaining attributes. Devices are not compared.
            enabled = value._enabled  # type: ignore[attr-defined]  # noqa: SLF001  (it has no public name)
            self._say(place, f"autocast to {value.fast_dtype}" if enabled else "no autocast")  # type: ignore[attr-defined]
            return
        if not place.of:
            # The first object of a walk is named by its class.
            place = place._replace(path=kind_name(value)) if place.anchor is None else place
        self.anchors[str(place)] = value
        if self._code_of(kind, place) or kind.__module__ in ("types", "argparse"):
            inner = place.alone().inside(value)
            held = {name: each for name, each in _held_by(value).items() if not _is_cached(kind, name)}
            if class_attribute(kind, "__dataclass_fields__") is not None:
                self._say(inner.whole(), " ".join(held))
            self._members(held, inner)
        elif _is_array(kind):
            # Cover the values, as for sources. The same values may come from another library later.
            large = is_large((getattr(value, "nbytes", 0),), 1)
            self._say(place, Hash(lambda: _array_said(value, large=large)), STAMP if large else STATE)
        elif top(module) not in sys.stdlib_module_names or top(module) in _HOLDING:
            inner = place.inside(value)._replace(kind=STATE)
            # What the object holds directly is one item.
            self._installed(value, inner if inner.item else inner.part_of(str(place)))

    def _installed(self, value: Any, place: _Place) -> None:
        """Walk what an object of an installed package pickles."""
        kind: Any = type(value)
        self._say(place.whole(), f"#{sha256_of([name_of(kind)])}")
        by_registry: Any = copyreg.dispatch_table.get(kind)
        try:
            made = kind.__reduce_ex__(value, 4) if by_registry is None else by_registry(value)
        except Exception:  # noqa: BLE001  (libraries raise different errors)
            made = None
        if made is None or top(kind.__module__) == "ctypes":
            self.opaque.append(f"{place} ({name_of(kind)})")
        elif isinstance(made, tuple):
            create, args, state, items, entries = (*made, None, None, None)[:5]
            if create not in _CREATING:
                self._say(place.at("()"), f"#{sha256_of([str(create.__module__), create.__qualname__])}")
            for at, each in enumerate(args):
                if each is not kind:
                    self._put(each, place.at(f"({at})"))
            parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
            for part in parts:
                self._members(part if isinstance(part, dict) else {"state": part} if part is not None else {}, place)
            for name, more in (("items", items), ("entries", entries)):
                if more is not None:
                    self._put(list(more), place.at(f".{name}"))

    def _ours(self, value: Any, place: _Place) -> None:
        if id(value) in self._expanded:
            return
        self._expanded[id(value)] = value
        for name, each in getattr(type(value), "_reaches", lambda _: {})(value).items():
            if isinstance(each, Item):
                self.slots.append(_Slot(_Place(each.place), each.place, each.said, each.kind))
            elif each is not None:
                self._put(each, self._named(name, "", place.inside(value), None))

    # Projects.

    def _may_be_imported(self, module: str) -> bool:
        """Whether an importable module belongs to the project.

        The module is looked up, but not imported.
        """
        found = PathFinder.find_spec(top(module))
        return found is not None and self._is_project(module, found.origin)

    def _is_project(self, module: object, file: str | None) -> bool:
        """Whether code belongs to the user's project.

        Code belongs to the project if it is not installed, or is in the package of the function.
        """
        package = top(str(module))
        if package in OURS:
            return not _is_ours(str(module))
        return package == self._package or not is_installed(str(module), file)


_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    np.ufunc,
)
_CREATING = (copyreg.__newobj__, copyreg._reconstructor, object.__new__)  # type: ignore[attr-defined]  # noqa: SLF001
_MAKING = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "__init_subclass__"})
"""Methods for creating an object."""
_NOT_CALLED = frozenset({"__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__", "__del__", "__eq__"})
_NOT_CALLED |= {"__hash__", "__setattr__", "__delattr__", "__setitem__", "__delitem__", "__copy__", "__deepcopy__"}
"""Special methods not run by a call."""
_NOTHING = object()


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
    if value is None or kind in (bool, float, complex):
        return repr(value)
    if issubclass(kind, enum.Enum):
        return f"{kind.__qualname__}.{value._name_} = {plain(value._value_)}"
    if issubclass(kind, int):
        return int.__repr__(value) if int.bit_length(value) < 1000 else f"#{sha256_of([hex(value)])}"
    if issubclass(kind, np.generic) and not value.dtype.hasobject:
        numeric = value.dtype.kind in "biufc"
        return (
            f"{value.dtype} {value.item()!r}" if numeric else f"#{sha256_of([str(value.dtype), value.tobytes().hex()])}"
        )
    if issubclass(kind, float):
        return float.__repr__(value)
    if issubclass(kind, str | bytes | bytearray):
        raw = value.encode("utf-8", "surrogatepass").hex() if issubclass(kind, str) else bytes(value).hex()
        return f"#{sha256_of([kind.__name__, raw])}"
    if issubclass(kind, _TOLD_BY_REPR):
        return repr(value)
    if kind is torch.device:
        # All devices count as equal, because results hardly depend on the device.
        return "a device"
    if issubclass(kind, slice):
        ends = [plain(each) for each in (value.start, value.stop, value.step)]
        return None if None in ends else f"slice({', '.join(map(str, ends))})"
    return f"#{sha256_of([kind.__name__, repr(value)])}" if top(kind.__module__) in _HASHED_BY_REPR else None


_TOLD_BY_REPR = (torch.dtype, torch.layout, torch.memory_format, torch.Size, np.dtype, range, type(...))
_HASHED_BY_REPR = frozenset({"pathlib", "decimal", "fractions", "datetime", "uuid", "array", "re"})
"""Packages of the standard library with objects for single values."""
_CONTAINERS = (dict, types.MappingProxyType, list, tuple, deque, set, frozenset)


def _is_container(value: Any) -> bool:
    kind = type(value)
    return issubclass(kind, _CONTAINERS) or (issubclass(kind, np.ndarray) and value.dtype.hasobject)


def _kind_of_container(value: object, place: _Place) -> str:
    return place.kind if isinstance(value, tuple | frozenset) else STATE


def _members_of(value: Any) -> list[tuple[str, str, object]]:
    """Return a tuple for each member of a container.

    The tuple has the step to the member, such as ``[0]``, the key as a text, and the member itself. The key is ""
    unless the container is a dict.
    """
    kind = type(value)
    if issubclass(kind, dict | types.MappingProxyType):
        # Use dict's own method, to run no user code. Copy, because other threads may add items.
        base: Any = next(each for each in (OrderedDict, dict, types.MappingProxyType) if issubclass(kind, each))
        named = [(_key(at, key), key, member) for at, (key, member) in enumerate(list(base.items(value)))]
        made = [(".default_factory", "", value.default_factory)] if issubclass(kind, defaultdict) else []
        return [
            *made,
            *((f"[{name}]", f"{type(key).__name__}={_key_said(key)}", member) for name, key, member in named),
        ]
    base = next((each for each in (list, tuple, deque, set, frozenset) if issubclass(kind, each)), None)
    members = value.ravel().tolist() if base is None else [*base.__iter__(value)]
    unordered = base in (set, frozenset)
    return [("{}" if unordered else f"[{at}]", "", member) for at, member in enumerate(members)]


def _said_at_once(value: Any, shortest: int = _LONG) -> str | None:
    """Return a digest of a container of numbers and texts with more than `shortest` members.

    Return None for anything else.
    """
    kind = type(value)
    if kind not in (list, tuple, deque, dict, set, frozenset) or len(value) <= shortest:
        return None
    if not _is_simple(value):
        return None
    if kind in (set, frozenset):
        said = sorted(marshal.dumps(each, 2) for each in list(value))
    else:
        said = [marshal.dumps(list(value.items() if kind is dict else value), 2)]
    return f"#{kind.__name__}{hashlib.sha256(b''.join(said)).hexdigest()}"


_SIMPLE = frozenset({bool, int, float, complex, str, bytes, type(None)})


def _is_simple(value: Any) -> bool:
    """Whether a value is a number or a text, or a container of such values."""
    kind = type(value)
    if kind is dict:
        return _is_simple([*value]) and _is_simple([*value.values()])
    if kind in (list, tuple, deque, set, frozenset):
        kinds = set(map(type, list(value)))
        return kinds <= _SIMPLE or (kinds <= _SIMPLE | {tuple, list} and all(map(_is_simple, list(value))))
    return kind in _SIMPLE


def _key_said(key: object) -> str:
    if isinstance(key, tuple):
        return f"({', '.join(map(_key_said, key))})"
    return plain(key) or (name_of(key) if isinstance(key, type) else str(getattr(key, "__qualname__", "")))


def _key(at: int, key: object) -> str:
    is_short = type(key) in (str, int, bool, float) and len(repr(key)) < 80
    return repr(key) if is_short else f"{type(key).__name__} {at}"


def _module_of(function: types.FunctionType) -> object:
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    return module if getattr(module, "__dict__", None) is function.__globals__ else function


def _resolved(module: str, function: types.FunctionType) -> str:
    package = function.__globals__.get("__package__")
    try:
        return importlib.util.resolve_name(module, package)
    except ImportError:  # the import fails in the call, too
        return module


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(class_attribute(kind, name), functools.cached_property)  # noqa: TID251  (what users have)


def _is_array(kind: type) -> bool:
    is_typed = class_attribute(kind, "__array__") is not None and class_attribute(kind, "dtype") is not None
    return is_typed or class_attribute(kind, "__array_interface__") is not None


def _array_said(array: Any, *, large: bool) -> str:
    try:
        if large:
            return _stamp_of(array)
        if getattr(array, "__dask_graph__", lambda: None)() is None:
            values = np.asarray(array)
            return "" if values.dtype.hasobject else f"#{digest_of_array(values)}"
    except Exception:  # noqa: BLE001  (libraries raise different errors)
        return ""
    return ""


def _stamp_of(array: Any) -> str:
    file = memory_map_of(array)
    found = stamps_of_array(array, None if file is None else str(file.filename))
    return f"#{sha256_of(found.values())}" if found else ""


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
        return Look(module, "", with_code=False).digest()
    except ValidationError:
        raise
    except Exception as error:
        raise ValidationError(
            f"digest: {name_of(type(module))} cannot be inspected: {type(error).__name__}: {error}; set "
            "version= to a text for the weights, such as the name of a checkpoint"
        ) from error
