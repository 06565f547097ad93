"""What code does with names, as its bytecode tells: which it reads, which it assigns, which containers it fills."""

from __future__ import annotations

import dis
import inspect
import sys
import types
from dataclasses import dataclass
from functools import lru_cache

from infinite_tensor.values.objects import sha256_of

_FILLING = {"add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "move_to_end", "pop"}
_FILLING |= {"popitem", "popleft", "remove", "setdefault", "update", "__setitem__", "__delitem__"}
"""Methods of containers that change what is in them."""

_NAMING = {"getattr", "attrgetter", "vars", "asdict", "astuple", "eval", "__dict__"}
"""What reads attributes by names that stand in strings, or all of them."""

_VARIABLES = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
_NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_ATTR", "LOAD_METHOD", *_VARIABLES)

Instructions = list[dis.Instruction]
Locals = dict[str, str | None]
"""Local variables that code sets: to what a global or an attribute is called, ``cache = self.cache``, or to else."""


@dataclass(frozen=True)
class Uses:
    """The names that some code uses, that of functions within it included.

    Attributes
    ----------
    globals, attributes : frozenset of str
        Read as globals, and as attributes of whatever object.
    imported : frozenset of str
        Modules that it imports, by their full names, or by dots and the rest of one.
    assigned : frozenset of str
        Attributes that it assigns, and buffers that it registers.
    rebound : frozenset of str
        Globals, and variables of functions around it, that it assigns.
    filled : frozenset of str
        What the containers are called whose items it changes.
    """

    globals: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    imported: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    rebound: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()

    @property
    def names_any(self) -> bool:
        """Whether it may read attributes by names that it works out."""
        return not _NAMING.isdisjoint(self.globals | self.attributes)

    def __or__(self, other: Uses) -> Uses:
        return Uses(
            self.globals | other.globals,
            self.attributes | other.attributes,
            self.imported | other.imported,
            self.assigned | other.assigned,
            self.rebound | other.rebound,
            self.filled | other.filled,
        )


@lru_cache(maxsize=4096)
def uses_of(code: types.CodeType) -> Uses:
    """What the code of a function uses."""
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
    "LOAD_GLOBAL": "globals",
    "LOAD_NAME": "globals",
    "LOAD_FROM_DICT_OR_GLOBALS": "globals",
    "LOAD_ATTR": "attributes",
    "LOAD_METHOD": "attributes",
    "LOAD_SUPER_ATTR": "attributes",
    "IMPORT_FROM": "attributes",
    "STORE_GLOBAL": "rebound",
    "STORE_DEREF": "rebound",
    "STORE_ATTR": "assigned",
}


def _filled(instructions: Instructions) -> set[str]:
    """The names of the containers whose items are set, deleted, or changed by a method."""
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
            # Below the container lie its key, or both ends of a slice, or, swapped, the value that was computed of it.
            swapped = instructions[at - 1].opname == "SWAP"
            name = _name_pushed(instructions, at, 2 if swapped or each.opname == "STORE_SLICE" else 1, locals_)
        if name is not None:
            found.add(name)
    return found


def _name_before(instructions: Instructions, at: int, locals_: Locals) -> str | None:
    """The name that the instruction before this one pushes."""
    return _name_of(instructions[at - 1], locals_) if at else None


def _name_pushed(instructions: Instructions, at: int, below: int, locals_: Locals) -> str | None:
    """The name of the value that lies so far below the top of the stack."""
    depth = 0
    for before in reversed(range(at)):
        each = instructions[before]
        if depth == -below:
            # An item of a container is one of what that is called: ``self.counts[a][b]``.
            is_item = each.opname == "BINARY_SUBSCR" or each.argrepr == "[]"  # as Python 3.14 has it
            return _name_pushed(instructions, before, 1, locals_) if is_item else _name_of(each, locals_)
        depth -= dis.stack_effect(each.opcode, each.arg if each.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
    return None


def _name_of(instruction: dis.Instruction, locals_: Locals) -> str | None:
    name = instruction.argval
    if instruction.opname.endswith("_FAST_LOAD_FAST"):
        # Two variables at once.
        name = name[-1]
    elif instruction.opname not in _NAMES:
        return None
    return locals_.get(name, name) if "_FAST" in instruction.opname else str(name)


MAKING = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "__init_subclass__"})
"""Methods that make an object: what they assign is what there is to be seen."""
NOT_CHANGING = MAKING | {"to", "cpu", "cuda", "half", "float", "double", "bfloat16", "type", "eval", "train"}
"""The same, and methods by whose names tensors are moved, rather than what holds them."""


@lru_cache(maxsize=4096)
def assigned_by(kind: type) -> frozenset[str]:
    """The attributes that instances of a class assign themselves, or fill, when they are called.

    Counters, caches, tables that the first call makes; not what the constructor sets.
    """
    methods: dict[str, types.FunctionType] = {}
    for each in reversed(kind.__mro__):
        methods |= {name: method for name, method in vars(each).items() if isinstance(method, types.FunctionType)}
    waiting = ["__call__", "forward"]
    seen: set[str] = set()
    found: frozenset[str] = frozenset()
    while waiting:
        name = waiting.pop()
        # What torch does around every call is no part of a module.
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
    """A digest of code and its constants."""
    said = [code.co_code.hex(), *map(str, (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))]
    constants = code.co_consts[1:] if _has_docstring(code) else code.co_consts
    return sha256_of([*said, *map(_constant_said, constants)])


def _has_docstring(code: types.CodeType) -> bool:
    """Whether the first constant tells people what the code does."""
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & inspect.CO_HAS_DOCSTRING)
    # Of functions without one it is None.
    return bool(code.co_consts) and isinstance(code.co_consts[0], str) and not code.co_name.startswith("<")


def _constant_said(constant: object) -> str:
    if isinstance(constant, types.CodeType):
        return code_said(constant)
    if isinstance(constant, tuple):
        return f"({','.join(map(_constant_said, constant))})"
    if isinstance(constant, frozenset):
        return f"{{{','.join(sorted(map(_constant_said, constant)))}}}"
    return f"{type(constant).__name__}={constant!r}"
