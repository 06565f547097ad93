"""Inspection of Python objects: origin, members and identifying texts.

No code of the user runs here.
"""

from __future__ import annotations

import array
import datetime as dt
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import inspect
import marshal
import operator
import pathlib
import re
import site
import sys
import sysconfig
import types
import uuid
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from infinite_tensor.values.arrays import digest_of_array

OURS = frozenset({"infinite_tensor", "infinite_tensor_stores"})

_PACKAGES = frozenset({"site-packages", "dist-packages"})
_INSTALLED = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)


def top(module: str) -> str:
    """Return the top-level package of a module."""
    return module.partition(".")[0]


@lru_cache(maxsize=4096)
def is_installed(module: str, file: str | None = None) -> bool:
    """Whether a module is installed, and not part of a user's project.

    `file` is the file of the module's code, if known.
    """
    package = top(module)
    if package == "__main__":
        return False
    loaded = sys.modules.get(module)
    home = getattr(loaded or sys.modules.get(package), "__file__", None)
    # Code compiled from a string, as in dataclasses, belongs to the module.
    path = file if file is not None and not file.startswith("<") else home
    if path is None:
        return package in sys.stdlib_module_names
    if path.startswith(_INSTALLED) or not _PACKAGES.isdisjoint(pathlib.PurePath(path).parts):
        return True
    own = getattr(loaded, "__file__", None)
    if own is None:
        return False
    above, depth = pathlib.PurePath(own).parents, module.count(".") + (pathlib.PurePath(own).stem == "__init__")
    return depth < len(above) and package in _installed_into(str(above[depth]))


@lru_cache(maxsize=256)
def _installed_into(folder: str) -> frozenset[str]:
    """Return the packages installed into a folder, for example by ``pip install --target``.

    Other packages in the folder are left out.
    """
    found = set()
    for record in pathlib.Path(folder).glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        found |= {re.split(r"[/.,]", line, maxsplit=1)[0] for line in lines}
    return frozenset(found)


def name_of(kind: type) -> str:
    """Return the full name of a class.

    The module is left out for a class of a user's project.
    """
    module = str(kind.__module__)
    is_known = top(module) in OURS or is_installed(module)
    return f"{module}.{kind.__qualname__}" if is_known else kind.__qualname__


NOTHING = object()
"""Stands for the missing value of a name."""


def bare(module: nn.Module) -> nn.Module:
    """Unwrap a compiled or data-parallel module."""
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif name_of(type(module)) == "torch._dynamo.eval_frame.OptimizedModule":
            # Compared by name, because importing the class would import the compiler.
            module = module.get_submodule("_orig_mod")
        else:
            return module


def unwrapped(value: Any) -> Any:
    """Remove the wrappers around a function or module.

    These are wrappers for compilation, caching and data parallelism, static and class methods, and weak references.
    """
    while True:
        kind = type(value)
        if issubclass(kind, nn.Module):
            return bare(value)
        if issubclass(kind, staticmethod | classmethod):
            value = value.__func__
        elif issubclass(kind, weakref.ref):
            value = weakref.ref.__call__(value)
        elif issubclass(kind, types.FunctionType | functools._lru_cache_wrapper):  # noqa: SLF001  (it has no public name)
            # Any other wrapper is walked as code, and thus reaches the function inside.
            attribute = "_torchdynamo_orig_callable" if issubclass(kind, types.FunctionType) else "__wrapped__"
            if attribute not in value.__dict__:
                return value
            value = value.__dict__[attribute]
        else:
            return value


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the names and values of a function's closure variables.

    The value is `NOTHING` for a variable without a value.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the cell is empty: the name has no value yet
            yield name, NOTHING


def held_by(value: object) -> dict[str, object]:
    """Return the instance attributes of an object, including slots.

    Properties are not called.
    """
    try:
        held = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError, ValueError):
        held = {}
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    held[name] = slot.__get__(value)
                except AttributeError:  # the slot is empty
                    continue
    return held


def class_attribute(kind: type, name: str) -> object:
    """Return an own or inherited attribute of a class.

    Return None if there is no such attribute.
    """
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)


def parts_of_attribute(value: object) -> list[object]:
    """Return the functions in a class attribute, such as the getter of a property.

    Slots have no functions. For any other attribute, return the attribute itself.
    """
    if isinstance(value, property):
        # A setter is used to prepare an object, not in a call.
        return [] if value.fget is None else [value.fget]
    if isinstance(value, functools.cached_property):  # noqa: TID251  (what users have)
        return [value.func]
    if isinstance(value, functools.partialmethod):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, functools.singledispatchmethod):
        return [value.func, *value.dispatcher.registry.values()]
    if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
        return []
    return [unwrapped(value)]


MOST_MEMBERS = 10_000
"""Maximum number of members to inspect in a container.

`said_at_once` covers larger containers of numbers and texts. Other larger containers are sampled evenly, and opaque.
"""

Members: TypeAlias = list[tuple[str, str, object]]


def sha256_of(said: Iterable[str]) -> str:
    """Return the SHA-256 of several texts.

    The digest also depends on the boundaries between the texts.
    """
    digest = hashlib.sha256()
    for part in said:
        digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


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
        return f"{value.dtype} {value.item()!r}" if value.dtype.kind in "biufc" else f"#{digest_of_array(value)}"
    if issubclass(kind, float):
        return float.__repr__(value)
    if issubclass(kind, str | bytes | bytearray):
        raw = value.encode("utf-8", "surrogatepass") if issubclass(kind, str) else bytes(value)
        return f"#{hashlib.sha256(kind.__name__.encode() + raw).hexdigest()}"
    if issubclass(kind, _TOLD_BY_REPR):
        return repr(value)
    if kind is torch.device:
        # All devices count as equal, because results hardly depend on the device.
        return "a device"
    if issubclass(kind, slice):
        ends = [plain(each) for each in (value.start, value.stop, value.step)]
        return None if None in ends else f"slice({', '.join(map(str, ends))})"
    return f"#{sha256_of([kind.__name__, repr(value)])}" if issubclass(kind, _HASHED_BY_REPR) else None


_TOLD_BY_REPR = (
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.Size,
    np.dtype,
    range,
    type(...),
    type(NotImplemented),
)
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
_CONTAINERS = (dict, types.MappingProxyType, list, tuple, deque, set, frozenset, *_GETTERS)
_HASHED_BY_REPR = (
    pathlib.PurePath,
    decimal.Decimal,
    fractions.Fraction,
    dt.date,
    dt.time,
    dt.timedelta,
    uuid.UUID,
    array.array,
    re.Pattern,
)


def is_container(value: Any) -> bool:
    """Whether `members_of` can list the members of a value.

    This is the case for containers such as lists and dicts, for numpy arrays of objects, and for objects made by
    ``operator.itemgetter`` and the like.
    """
    kind = type(value)
    return issubclass(kind, _CONTAINERS) or (issubclass(kind, np.ndarray) and value.dtype.hasobject)


def members_of(value: Any) -> Members:
    """Return a tuple for each member of a container.

    The tuple has the step to the member, such as ``[0]``, the key as a text, and the member itself. The key is ""
    unless the container is a dict.
    """
    kind = type(value)
    if issubclass(kind, dict | types.MappingProxyType):
        # Copy, because other threads may add items. Use dict's own method, to run no user code.
        items = list(dict.items(value)) if issubclass(kind, dict) else list(value.items())
        made = [(".default_factory", "", value.default_factory)] if issubclass(kind, defaultdict) else []
        return [*made, *((f"[{_key(key)}]", f"{type(key).__name__}={plain(key)}", member) for key, member in items)]
    if issubclass(kind, _GETTERS):
        # Get the arguments of a getter without running user code.
        return [(f"[{at}]", "", member) for at, member in enumerate(kind.__reduce__(value)[1])]
    for base in (list, tuple, deque):
        if issubclass(kind, base):
            return [(f"[{at}]", "", member) for at, member in enumerate([*base.__iter__(value)])]
    for unordered in (set, frozenset):
        if issubclass(kind, unordered):
            return [("{}", "", member) for member in [*unordered.__iter__(value)]]
    return [(f"[{at}]", "", member) for at, member in enumerate(value.ravel().tolist())]


def said_at_once(value: Any) -> str | None:
    """Return a digest of a very large container of numbers and texts.

    Return None for anything else.
    """
    kind = type(value)
    if kind not in (list, tuple, deque, dict, set, frozenset) or len(value) <= MOST_MEMBERS:
        return None
    try:
        if kind in (list, tuple, deque):
            said = [marshal.dumps(list(value), 2)]
        else:
            said = sorted(marshal.dumps(each, 2) for each in list(value.items() if kind is dict else value))
    except ValueError:
        return None
    return f"#{kind.__name__}{hashlib.sha256(b''.join(said)).hexdigest()}"


def _key(key: object) -> str:
    return repr(key) if type(key) in (str, int, bool, float) and len(repr(key)) < 80 else type(key).__name__


_FILLING = {"add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "move_to_end", "pop"}
_FILLING |= {"popitem", "popleft", "remove", "setdefault", "update", "__setitem__", "__delitem__"}
"""Methods for changing a container."""

_NAMING = {"getattr", "attrgetter", "vars", "asdict", "astuple", "eval", "__dict__"}
"""Functions and attributes for reading attributes by a string, or all attributes."""

_VARIABLES = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
_NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_ATTR", "LOAD_METHOD", *_VARIABLES)

Instructions = list[dis.Instruction]
Locals = dict[str, str | None]
"""Assigned local variables, each with a global or attribute of the same value (``cache = self.cache``) or None."""


@dataclass(frozen=True)
class Uses:
    """The names used by code, including nested functions.

    Attributes
    ----------
    globals, attributes : frozenset of str
        Names read as globals, and as attributes of any object.
    imported : frozenset of str
        Imported modules: full names, or relative names beginning with dots.
    assigned : frozenset of str
        Assigned attributes, and registered buffers.
    rebound : frozenset of str
        Assigned globals, and assigned variables of enclosing functions.
    filled : frozenset of str
        Names of containers with changed items.
    """

    globals: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    imported: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    rebound: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()

    @property
    def names_any(self) -> bool:
        """Whether the code may read attributes by computed names, as in ``getattr(x, name)``."""
        return not _NAMING.isdisjoint(self.globals | self.attributes)

    def __or__(self, other: Uses) -> Uses:
        return Uses(*map(operator.or_, vars(self).values(), vars(other).values()))


@lru_cache(maxsize=4096)
def uses_of(code: types.CodeType) -> Uses:
    """Return the names used by a function's code."""
    instructions = list(dis.get_instructions(code))
    found: dict[str, set[str]] = {}
    for at, each in enumerate(instructions):
        kind = _KINDS.get(each.opname)
        if each.opname == "IMPORT_NAME":
            dots = "." * int(instructions[at - 2].argval or 0)
            found.setdefault("imported", set()).add(f"{dots}{each.argval}")
        elif kind is not None and (each.opname != "STORE_DEREF" or each.argval in code.co_freevars):
            found.setdefault(kind, set()).add(each.argval)
        elif each.opname == "MATCH_CLASS":
            found.setdefault("attributes", set()).update(instructions[at - 1].argval)
        elif each.opname == "LOAD_CONST" and _name_before(instructions, at, {}) == "register_buffer":
            found.setdefault("assigned", set()).add(str(each.argval))
    uses = Uses(filled=frozenset(_filled(instructions)), **{kind: frozenset(names) for kind, names in found.items()})
    if uses.names_any:
        # ``getattr(config, "gain")``
        names = frozenset(each for each in code.co_consts if isinstance(each, str) and each.isidentifier())
        uses |= Uses(attributes=names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            uses |= uses_of(constant)
    return uses


_KINDS = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"), "globals"),
    **dict.fromkeys(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"), "attributes"),
    **dict.fromkeys(("STORE_GLOBAL", "STORE_DEREF"), "rebound"),
    "STORE_ATTR": "assigned",
}


def _filled(instructions: Instructions) -> set[str]:
    """Return the names of containers with items changed by the code."""
    locals_: Locals = {}
    for at, each in enumerate(instructions):
        if each.opname == "STORE_FAST":
            locals_[each.argval] = _name_before(instructions, at, locals_) or locals_.get(each.argval)
    found = set()
    for at, each in enumerate(instructions):
        name = None
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and each.argval in _FILLING:
            name = _name_before(instructions, at, locals_)
        elif each.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
            # On the stack, the container is below a key, both ends of a slice, or a computed value after a SWAP.
            swapped = instructions[at - 1].opname == "SWAP"
            name = _name_pushed(instructions, at, 2 if swapped or each.opname == "STORE_SLICE" else 1, locals_)
        if name is not None:
            found.add(name)
    return found


def _name_before(instructions: Instructions, at: int, locals_: Locals) -> str | None:
    return _name_of(instructions[at - 1], locals_) if at else None


def _name_pushed(instructions: Instructions, at: int, below: int, locals_: Locals) -> str | None:
    """Return the name of a value on the stack before instruction `at`.

    `below` is the distance from the top of the stack. Return None if the value has no name.
    """
    depth = 0
    for before in reversed(range(at)):
        each = instructions[before]
        if depth == -below:
            # An item counts under the name of its container, as in ``self.counts[a][b]``.
            is_item = each.opname == "BINARY_SUBSCR" or each.argrepr == "[]"  # as Python 3.14 has it
            return _name_pushed(instructions, before, 1, locals_) if is_item else _name_of(each, locals_)
        depth -= dis.stack_effect(each.opcode, each.arg if each.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
    return None


def _name_of(instruction: dis.Instruction, locals_: Locals) -> str | None:
    name = instruction.argval
    if instruction.opname.endswith("_FAST_LOAD_FAST"):
        # The instruction pushes two variables.
        name = name[-1]
    elif instruction.opname not in _NAMES:
        return None
    return locals_.get(name, name) if "_FAST" in instruction.opname else str(name)


MAKING = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "__init_subclass__"})
"""Methods for creating an object. Attributes assigned there are values, not caches."""
NOT_CHANGING = MAKING | {"to", "cpu", "cuda", "half", "float", "double", "bfloat16", "type", "eval", "train"}
"""`MAKING`, and names of methods usually called on tensors."""


@lru_cache(maxsize=4096)
def assigned_by(kind: type) -> frozenset[str]:
    """Return the names of attributes changed when an instance of a class is called.

    Examples are counters and caches. The names are found in the code of ``__call__``, ``forward`` and the methods used
    there. Attributes changed only by ``__init__`` are left out.
    """
    methods: dict[str, types.FunctionType] = {}
    for each in reversed(kind.__mro__):
        methods |= {name: method for name, method in vars(each).items() if isinstance(method, types.FunctionType)}
    waiting = ["__call__", "forward"]
    seen: set[str] = set()
    found: frozenset[str] = frozenset()
    while waiting:
        name = waiting.pop()
        # Code run by torch around every call is not part of a module.
        if name in seen or name in NOT_CHANGING or (method := methods.get(name)) is None or _is_of_all_modules(method):
            continue
        seen.add(name)
        uses = uses_of(method.__code__)
        found |= uses.assigned | uses.filled
        waiting += uses.attributes
    return found


def _is_of_all_modules(method: types.FunctionType) -> bool:
    return method.__module__ == "torch.nn.modules.module"


@lru_cache(maxsize=4096)
def code_said(code: types.CodeType) -> str:
    """Return a digest of code and constants, without the docstring."""
    said = [code.co_code.hex(), *map(str, (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))]
    constants = code.co_consts[1:] if _has_docstring(code) else code.co_consts
    return sha256_of([*said, *map(_constant_said, constants)])


def _has_docstring(code: types.CodeType) -> bool:
    if sys.version_info >= (3, 14):
        return bool(code.co_flags & inspect.CO_HAS_DOCSTRING)
    # Functions without a docstring have None there.
    return bool(code.co_consts) and isinstance(code.co_consts[0], str) and not code.co_name.startswith("<")


def _constant_said(constant: object) -> str:
    if isinstance(constant, types.CodeType):
        return code_said(constant)
    if isinstance(constant, tuple):
        return f"({','.join(map(_constant_said, constant))})"
    if isinstance(constant, frozenset):
        return f"{{{','.join(sorted(map(_constant_said, constant)))}}}"
    return f"{type(constant).__name__}={constant!r}"
