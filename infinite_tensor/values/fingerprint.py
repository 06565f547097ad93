"""Fingerprints of functions: everything reached by a function, found without running code.

The result has three parts, which are compared separately. *Code* is bytecode and names. *Values* are data that the code
names: constants of modules, closures, defaults, attributes, weights, arrays. *Opaque* are objects that cannot be
inspected. What the code itself assigns, such as counters and caches, belongs to none of these parts.
"""

from __future__ import annotations

import enum
import functools
import importlib.util
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.forks import cached_property
from infinite_tensor.values.arrays import digest_of_array, is_large, memory_map_of, stamps_of_array
from infinite_tensor.values.digest import OF_MODULES, digest_of_module, digest_of_script, digest_of_tensor, state_of
from infinite_tensor.values.objects import (
    MAKING,
    MOST_MEMBERS,
    NOT_CHANGING,
    NOTHING,
    OURS,
    Uses,
    assigned_by,
    class_attribute,
    closure_of,
    code_said,
    held_by,
    is_container,
    is_installed,
    members_of,
    name_of,
    parts_of_attribute,
    plain,
    said_at_once,
    sha256_of,
    top,
    unwrapped,
    uses_of,
)

_MOST_LOOKS = 50_000
"""Maximum number of values to inspect in a walk. Further values are opaque."""
_DEEPEST = 50

_TELLING_NOTHING = frozenset({"tqdm", "rich", "loguru", "logging"})
"""Packages for showing progress to people, without other effects."""
_HOLDING = frozenset({"collections", "configparser", "ctypes", "functools", "statistics", "string"})
"""Packages of the standard library with objects for data."""
_RANDOM = (torch.Generator, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_STREAMS = (torch.Stream, torch.Event)

VALUE, _STATE, STAMP, LATE = "value", "state", "stamp", "late"

Said: TypeAlias = "str | Callable[[], str]"
"""Text identifying a value: the repr, or ``#`` and a digest.

A function computes the text later, because a digest may take a while. "" stands for a value that cannot be inspected.
"""


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


class Setting(NamedTuple):
    """Marks a value as a setting of a function in this library, such as a batch size.

    A changed setting causes a warning, not an error.
    """

    value: object


class Reach:
    """Code and values used by a function, directly or through other functions.

    Parameters
    ----------
    function : callable or object
        The function to walk. Nothing in it is called.
    name : str
        The name of the function in messages.

    Attributes
    ----------
    networks : list of torch.nn.Module
        The networks used by the function. Networks inside other networks are left out.
    """

    def __init__(self, function: object, name: str) -> None:
        known = Uses()
        while True:
            walk = _Walk(known, _package_of(function))
            walk.run(function, name)
            if known | walk.uses == known:
                break
            # New code reads or assigns names unknown so far. Such names change the result, so walk again.
            known |= walk.uses
        self._walk = walk
        self.networks = list(walk.networks.values())

    def code(self) -> str:
        """Return the SHA-256 of the bytecode.

        Bytecode differs between minor versions of Python.
        """
        return sha256_of(sorted(set(self._walk.code)))

    @cached_property
    def values(self) -> tuple[list[Item], list[str]]:
        """Two lists: the values found, and the locations of objects that could not be inspected."""
        said = [Item(place, said if isinstance(said, str) else said(), kind) for place, said, kind in self._walk.items]
        # The order of members of sets is arbitrary.
        of_sets = iter(sorted(item for item in said if "{}" in item.place))
        said = [next(of_sets) if "{}" in item.place else item for item in said]
        unseen = [item.place for item in said if not item.said]
        return [item for item in said if item.said], list(dict.fromkeys([*self._walk.opaque, *unseen]))

    def states(self) -> list[tuple[str, object]]:
        """Return the location and state of each weight and tensor.

        The state comes from `state_of`, and differs after a change in place.
        """
        held = [
            (place, tensor)
            for place, each in self._walk.tensors
            for tensor in ([each] if isinstance(each, torch.Tensor) else each.parameters())
        ]
        return [(place, state_of(tensor)) for place, tensor in held]


def networks_in(functions: Iterable[object]) -> list[nn.Module]:
    """Return the networks used by functions, without duplicates."""
    found = [network for function in functions for network in Reach(function, "f").networks]
    return list({id(network): network for network in found}.values())


def is_anonymous(function: object) -> bool:
    """Whether a function is a lambda, a partial, or a callable object."""
    return "<lambda>" in getattr(function, "__qualname__", "") or not hasattr(function, "__qualname__")


def function_name(function: Any) -> str:
    """Return the module and qualified name of a function, or "<anonymous>"."""
    if is_anonymous(function):
        return "<anonymous>"
    module = getattr(function, "__module__", None) or getattr(function, "__objclass__", type(function)).__module__
    return f"{module}.{function.__qualname__}"


def innermost(function: Any) -> Any:
    """Return the user's function inside partials and objects of this library."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif top(type(function).__module__) in OURS and hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function


_NAMED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)
_LONGEST_NAME = 40


def short_name(function: Any) -> str:
    """Return a short name for a function, in lower case.

    A callable object is named by its class. The name of a lambda is empty.
    """
    own = innermost(function)
    # A user's object may have any attribute, or raise any error for an attribute.
    named = own if isinstance(own, _NAMED) else type(own)
    name = named.__name__.strip("_").lower()[:_LONGEST_NAME]
    return name if name.isidentifier() else ""


class _Place(NamedTuple):
    """Location of a value: name, scope and enclosing objects."""

    path: str
    of: str = ""
    within: tuple[int, ...] = ()
    kind: str = VALUE

    def __str__(self) -> str:
        return f"`{self.path}`, {self.of}" if self.of else f"`{self.path}`"

    def at(self, step: str, value: object = None, kind: str | None = None) -> _Place:
        """Return the location of a member, reached by a step such as ``[0]`` or ``.name``.

        `value` is the object with the member. Its id is added to `within`, so that a walk ends if an object contains
        itself.
        """
        within = self.within if value is None else (*self.within, id(value))
        return _Place(f"{self.path}{step}", self.of, within, kind or self.kind)


class _Walk:
    """A walk through everything reachable from a function.

    Parameters
    ----------
    known : Uses
        The names that an earlier walk has found in the code.
    package : str or None
        The package of the function. Its code is walked even if the package is installed.
    """

    def __init__(self, known: Uses, package: str | None) -> None:
        self.known = known
        self.uses = Uses()
        self.code: list[str] = []
        self.items: list[tuple[str, Said, str]] = []
        self.networks: dict[int, nn.Module] = {}
        self.opaque: list[str] = []
        self.tensors: list[tuple[str, torch.Tensor | nn.Module]] = []
        self._package = package
        self._queue: deque[tuple[object, _Place]] = deque()
        self._expanded: dict[object, object] = {}
        self._looks = 0

    def run(self, value: object, name: str) -> None:
        """Walk a value and everything reachable from it, nearer values first."""
        self._queue.append((value, _Place(name)))
        while self._queue:
            value, place = self._queue.popleft()
            if self._is_too_much(place):
                return
            self._look(value, place)

    def _is_too_much(self, place: _Place) -> bool:
        self._looks += 1
        if self._looks == _MOST_LOOKS:
            self.opaque.append(f"{place} and everything beyond, which is too much")
        return self._looks >= _MOST_LOOKS

    def _put(self, value: object, place: _Place) -> None:
        self._queue.append((value, place))

    def _say(self, place: _Place, said: Said) -> None:
        self.items.append((str(place), said, place.kind))

    def _look(self, value: Any, place: _Place) -> None:
        value = unwrapped(value)
        kind = type(value)
        said = plain(value) or said_at_once(value)
        if said is not None or is_container(value):
            # A project's subclass of a number, a text or a container may have methods.
            self._code_of(kind, place)
        if issubclass(kind, enum.Enum) and plain(value._value_) is None:
            self._put(value._value_, place.at(".value"))
        if said is not None:
            self._say(place, said)
        elif id(value) in place.within:
            return
        elif is_container(value):
            self._container(value, place)
        else:
            # By type(), because an object may compute its `__class__`.
            looks: dict[Any, Callable[[Any, _Place], None]] = {
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
            next((look for kinds, look in looks.items() if issubclass(kind, kinds)), self._object)(value, place)

    def _bound(self, method: types.MethodType, place: _Place) -> None:
        self._put(method.__func__, place)
        self._put(method.__self__, _Place(kind_name(method.__self__), "", place.within))

    def _script(self, function: object, place: _Place) -> None:
        self._say(place, lambda: f"#{digest_of_script(function)}")

    def _function(self, function: types.FunctionType, place: _Place) -> None:
        if not self._is_project(function.__module__, function.__code__.co_filename):
            self._say(place, f"#{sha256_of([str(function.__module__), function.__qualname__])}")
            for name, value in closure_of(function):
                self._put(value, place.at(f".{name}", function))
            return
        self.code.append(f"{place.path} {code_said(function.__code__)}")
        if id(function) in self._expanded:
            return
        self._expanded[id(function)] = function
        uses = uses_of(function.__code__)
        self.uses |= uses
        name = function.__qualname__.rpartition(".")[2]
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        defaults = function.__defaults__ or ()
        for parameter, value in (
            *zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True),
            *(function.__kwdefaults__ or {}).items(),
        ):
            self._named(parameter, value, _Place(parameter, f"a default of `{name}`"), frozenset())
        for variable, value in closure_of(function):
            self._named(variable, value, _Place(variable, f"a variable around `{name}`"), self.known.rebound)
        for variable in sorted(uses.globals):
            value = function.__globals__.get(variable, NOTHING)
            self._named(variable, value, _Place(variable, f"a global of `{name}`"), self.known.rebound)
        self._attributes(function, function.__dict__, place)
        for imported in sorted(_resolved(each, function) for each in uses.imported):
            place = _Place(imported, f"imported by `{name}`")
            if imported in sys.modules:
                self._put(sys.modules[imported], place)
            elif self._may_be_imported(imported):
                self._say(place._replace(kind=LATE), "not imported yet")

    def _named(self, name: str, value: object, place: _Place, assigned: frozenset[str]) -> None:
        if value is NOTHING or name in assigned or (name in self.known.filled and is_container(value)):
            return
        self._put(value, place)

    def _partial(self, partial: functools.partial[Any], place: _Place) -> None:
        self._put(partial.func, place)
        whose = f"of a partial of `{kind_name(innermost(partial))}`"
        for at, value in enumerate(partial.args):
            self._put(value, _Place(f"args[{at}]", whose, (*place.within, id(partial))))
        for name, value in sorted(partial.keywords.items()):
            self._put(value, _Place(name, whose, (*place.within, id(partial))))

    def _network(self, network: nn.Module, place: _Place) -> None:
        self.networks.setdefault(id(network), network)
        modules = [] if isinstance(network, torch.jit.ScriptModule) else list(nn.Module.named_modules(network))
        weights = f"the weights of {place}"
        settings: list[str] = []
        if any(is_lazy(each) for _, module in modules for each in module._parameters.values()):  # noqa: SLF001
            self.opaque.append(f"`{place.path}`, a lazy module that was not called yet")
        else:
            self.items.append((weights, lambda: self._weights(network), VALUE))
            self.tensors.append((weights, network))
        for name, module in modules:
            inner = place.at(f".{name}" if name else "", None if module is network else network)
            hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]  # noqa: SLF001
            for at, hook in enumerate(hooks):
                self._put(hook, inner.at(f".hooks[{at}]", module))
            if self._code_of(type(module), inner):
                # Parameters and modules are weights.
                held = {name: each for name, each in vars(module).items() if not isinstance(each, torch.Tensor)}
                self._attributes(module, held, inner)
            elif type(module).extra_repr is nn.Module.extra_repr:
                settings += self._settings(name, module, inner)
        if settings:
            self.items.append((f"the settings of {place}", f"#{sha256_of(settings)}", _STATE))

    def _settings(self, name: str, module: nn.Module, place: _Place) -> Iterator[str]:
        kind: Any = type(module)
        made = assigned_by(kind)
        for attribute, value in sorted(vars(module).items()):
            if isinstance(value, types.FunctionType):
                self._put(value, place.at(f".{attribute}", module))
            elif attribute not in OF_MODULES and attribute not in made:
                said = plain(value) or (sha256_of(self._flat(value, place, 0)) if is_container(value) else None)
                if said is not None:
                    yield f"{name}.{attribute}={said}"

    def _weights(self, network: nn.Module) -> str:
        return _digest_or(
            lambda: digest_of_module(network, self.known.filled), [name_of(type(network)), "has no values to be read"]
        )

    def _tensor(self, tensor: torch.Tensor, place: _Place) -> None:
        self.tensors.append((str(place), tensor))
        form = [name_of(type(tensor)), str(tensor.dtype), str(tuple(tensor.shape))]
        self._say(place, lambda: _digest_or(lambda: sha256_of([digest_of_tensor(tensor)]), form))

    def _array(self, array: np.ndarray[Any, Any], place: _Place) -> None:
        self._say(place, lambda: f"#{digest_of_array(array)}")
        # Masked arrays of astropy are a separate class.
        mask = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else getattr(array, "mask", None)
        if isinstance(mask, np.ndarray):
            self._array(mask, place.at(".mask"))
        file = memory_map_of(array)
        if file is not None and is_large(array.shape, array.itemsize):
            self._say(place._replace(kind=STAMP), lambda: _stamp_of(array, str(file.filename)))

    def _class(self, kind: type, place: _Place) -> None:
        if not self._code_of(kind, place, made=True):
            self._say(place, f"#{sha256_of([name_of(kind)])}")

    def _code_of(self, kind: type, place: _Place, *, made: bool = False) -> bool:
        """Walk the code of a project's class.

        Return False for a class outside the project.
        """
        if not self._is_project(kind.__module__, None):
            return False
        self.code.append(f"{place.path} {name_of(kind)}")
        self._expand_class(kind, made=made)
        return True

    def _expand_class(self, kind: type, *, made: bool) -> None:
        """Walk the methods and attributes of a class, as far as the function may use them.

        `made` is True if the function may create objects of the class, and so call constructors.
        """
        if (id(kind), made) in self._expanded:
            return
        self._expanded[id(kind), made] = kind
        for each in kind.__mro__:
            if not self._is_project(each.__module__, None):
                continue
            for name, value in sorted(vars(each).items()):
                place = _Place(name, f"an attribute of class `{each.__qualname__}`")
                for part in parts_of_attribute(value):
                    if isinstance(part, types.FunctionType):
                        if self._is_called(name, made=made):
                            self._method(part)
                    elif name in self.known.attributes:
                        self._named(name, part, place, self.known.assigned)

    def _is_called(self, method: str, *, made: bool) -> bool:
        if method in MAKING:
            return made
        operator = method.startswith("__") and method.endswith("__") and method not in _NOT_CALLED
        return operator or method == "forward" or method in self.known.attributes

    def _method(self, function: types.FunctionType) -> None:
        # If the methods of two classes have the same qualified name, both methods share a place.
        before = self.uses
        self._function(function, _Place(function.__qualname__))
        if function.__name__ in NOT_CHANGING:
            # Attributes assigned by a constructor are values, not caches. `to`, `cpu` and similar names may be methods
            # of tensors.
            self.uses = before | Uses(self.uses.globals, self.uses.attributes, self.uses.imported)

    def _attributes(self, owner: object, held: Mapping[str, object], place: _Place) -> None:
        assigned, kind = self.known.assigned, type(owner)
        if issubclass(kind, types.ModuleType):
            assigned |= self.known.rebound
        elif (self.known.names_any and _is_record(kind)) or _inherits(kind):  # type: ignore[arg-type]
            # Perhaps no code reads these attributes, so a change is not an error.
            for name in sorted(held.keys() - self.known.attributes - OF_MODULES):
                self._named(name, held[name], place.at(f".{name}", owner, _STATE), assigned)
        for name in sorted(self.known.attributes & held.keys()):
            if not isinstance(class_attribute(kind, name), functools.cached_property):  # noqa: TID251  (what users have)
                self._named(name, held[name], place.at(f".{name}", owner), assigned)

    def _python_module(self, module: types.ModuleType, place: _Place) -> None:
        if id(module) in self._expanded or not self._is_project(module.__name__, getattr(module, "__file__", None)):
            return
        self._expanded[id(module)] = module
        self._attributes(module, vars(module), place)

    def _container(self, value: object, place: _Place) -> None:
        """Walk a container.

        Numbers, strings and other plain values in the container get one common digest. All other members, such as
        functions and arrays, are walked one by one.
        """
        mutable = not isinstance(value, tuple | frozenset)
        kind = _STATE if mutable else place.kind
        self._say(place._replace(kind=kind), f"#{sha256_of(self._flat(value, place, 0))}")

    def _flat(self, value: object, place: _Place, depth: int) -> Iterator[str]:
        value = unwrapped(value)
        said = plain(value) or said_at_once(value)
        if said is not None:
            yield f"{type(value).__name__}={said}"
            return
        if not is_container(value):
            self._put(value, place)
            return
        if depth > _DEEPEST or id(value) in place.within:
            yield "deeper"
            return
        items = members_of(value)
        yield f"{type(value).__name__}[{len(items)}]"
        if len(items) > MOST_MEMBERS:
            self.opaque.append(f"{place}, of which {MOST_MEMBERS} of {len(items)} members are inspected")
            items = [items[at * (len(items) - 1) // (MOST_MEMBERS - 1)] for at in range(MOST_MEMBERS)]
        told = []
        for step, key, member in items:
            if self._is_too_much(place):
                break
            told.append((key, sha256_of(self._flat(member, place.at(step, value), depth + 1))))
        # The order of members of sets and entries of dictionaries is arbitrary.
        for key, member in sorted(told) if isinstance(value, Mapping | set | frozenset) else told:
            yield f"{key}:{member}"

    def _builtin(self, value: Any, place: _Place) -> None:
        owner = getattr(value, "__self__", None)
        if owner is not None and not issubclass(type(owner), types.ModuleType | type):
            self._put(owner, place.at("", value))
        self._say(place, f"#{sha256_of([str(getattr(value, '__module__', '')), _name(value)])}")

    def _object(self, value: object, place: _Place) -> None:
        kind = type(value)
        module = str(kind.__module__)
        package = top(module)
        if _is_ours(module):
            return self._ours(value, place)
        if package in _TELLING_NOTHING or issubclass(kind, (*_RANDOM, *_STREAMS)):
            return None
        if issubclass(kind, torch.autocast):
            # Entering the context assigns the remaining attributes. Devices are not compared.
            enabled = value._enabled  # type: ignore[attr-defined]  # noqa: SLF001  (it has no public name)
            self._say(place, f"autocast to {value.fast_dtype}" if enabled else "no autocast")  # type: ignore[attr-defined]
            return None
        held = held_by(value)
        if self._code_of(kind, place) or _is_namespace(kind):
            # The first object of a walk is named by its class.
            self._attributes(value, held, place if place.of else place._replace(path=kind_name(value)))
            return None
        if _is_array(kind):
            # Cover the values, as for sources. The same values may come from another library later.
            large = _is_large_array(value)
            self._say(place._replace(kind=STAMP if large else _STATE), lambda: _array_said(value, large=large))
        elif package not in sys.stdlib_module_names or package in _HOLDING:
            if not held or package == "ctypes":
                self.opaque.append(f"{place} ({name_of(kind)})")
            self._say(place._replace(kind=_STATE), f"#{sha256_of([name_of(kind)])}")
            for name, member in sorted(held.items()):
                self._put(member, place.at(f".{name}", value, _STATE))
        return None

    def _ours(self, value: Any, place: _Place) -> None:
        if id(value) in self._expanded:
            return
        self._expanded[id(value)] = value
        for name, each in getattr(type(value), "_reaches", lambda _: {})(value).items():
            if isinstance(each, Setting):
                self._say(_Place(name, kind=_STATE), str(each.value))
            elif isinstance(each, Item):
                self.items.append(each)
            elif each is not None:
                self._put(each, _Place(name, "", (*place.within, id(value))))

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

_NOT_CALLED = {"__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__", "__del__", "__eq__", "__hash__"}
_NOT_CALLED |= {"__setattr__", "__delattr__", "__setitem__", "__delitem__", "__copy__", "__deepcopy__"}
"""Special methods not run by a call."""


def _digest_or(digest: Callable[[], str], form: Iterable[str]) -> str:
    try:
        return f"#{digest()}"
    except ValidationError:
        return f"#{sha256_of(form)}"


def kind_name(value: Any) -> str:
    """Return the name of a function or class.

    For any other object, return the name of its class.
    """
    return value.__name__ if issubclass(type(value), types.FunctionType | type) else type(value).__name__


def _name(value: object) -> str:
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__name__))


def _resolved(module: str, function: types.FunctionType) -> str:
    package = function.__globals__.get("__package__")
    try:
        return importlib.util.resolve_name(module, package)
    except ImportError:  # the import fails in the call, too
        return module


def _is_namespace(kind: type) -> bool:
    return issubclass(kind, types.SimpleNamespace) or kind.__module__ == "argparse"


def _is_record(kind: type) -> bool:
    return _is_namespace(kind) or class_attribute(kind, "__dataclass_fields__") is not None


@functools.lru_cache(maxsize=4096)
def _inherits(kind: type) -> bool:
    # The code of an installed base class may read any attribute.
    own, *modules = [each.__module__ for each in kind.__mro__]
    return not is_installed(own) and any(is_installed(each) and each not in _TELLING_BASES for each in modules)


_TELLING_BASES = frozenset({"builtins", "abc", "typing", "enum", "torch.nn.modules.module", "torch.utils.data.dataset"})
"""Modules with base classes of known behaviour."""


def _is_array(kind: type) -> bool:
    is_typed = class_attribute(kind, "__array__") is not None and class_attribute(kind, "dtype") is not None
    return is_typed or class_attribute(kind, "__array_interface__") is not None


def _is_large_array(array: Any) -> bool:
    try:
        return is_large(array.shape, array.dtype.itemsize)
    except (AttributeError, TypeError):
        # Pillow images have no shape and dtype. They are in memory.
        return False


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


def _stamp_of(array: Any, file: str | None = None) -> str:
    found = stamps_of_array(array, file)
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
