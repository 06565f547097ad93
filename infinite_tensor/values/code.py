"""Where code comes from, what it names, and what identifies it.

No code of the user runs here.
"""

from __future__ import annotations

import bisect
import dis
import functools
import hashlib
import inspect
import io
import pathlib
import pickletools
import re
import site
import sys
import sysconfig
import types
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

from infinite_tensor.errors import ValidationError
from infinite_tensor.values.arrays import sha256_of

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


def _inside(value: Any) -> Any:  # noqa: PLR0911  (one case for each kind)
    """Return what a wrapper wraps, or the value itself if it is no wrapper."""
    kind = type(value)
    if issubclass(kind, nn.Module):
        if issubclass(kind, nn.DataParallel | nn.parallel.DistributedDataParallel):
            return value.module
        # Compared by name, because importing the class would import the compiler.
        is_compiled = name_of(kind) == "torch._dynamo.eval_frame.OptimizedModule"
        return value.get_submodule("_orig_mod") if is_compiled else value
    if issubclass(kind, staticmethod | classmethod):
        return value.__func__
    if issubclass(kind, weakref.ref):
        return weakref.ref.__call__(value)
    if issubclass(kind, types.FunctionType):
        # Any other wrapper is walked as code, and thus reaches the function inside.
        return value.__dict__.get("_torchdynamo_orig_callable", value)
    if issubclass(kind, type) or not callable(value) or not is_installed(str(kind.__module__)):
        return value
    # For example a cached function, or one compiled by numba.
    held = getattr(value, "__dict__", {})
    return next((held[name] for name in ("__wrapped__", "py_func") if callable(held.get(name))), value)


def unwrapped(value: Any) -> Any:
    """Remove the wrappers around a function or module.

    These are wrappers for compilation, caching and data parallelism, static and class methods, and weak references.
    """
    while (inner := _inside(value)) is not value:
        value = inner
    return value


def innermost(function: Any) -> Any:
    """Return the user's function inside partials, wrappers and objects of this library."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif top(type(function).__module__) in OURS and hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif (inner := _inside(function)) is not function:
            function = inner
        else:
            return function


def function_name(function: Any) -> str:
    """Return the module and qualified name of a function, or "<anonymous>" for a lambda, a partial or an object."""
    if "<lambda>" in getattr(function, "__qualname__", "<lambda>"):
        return "<anonymous>"
    module = getattr(function, "__module__", None) or getattr(function, "__objclass__", type(function)).__module__
    return f"{module}.{function.__qualname__}"


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


def kind_name(value: Any) -> str:
    """Return the name of a function or class.

    For any other object, return the name of its class.
    """
    return value.__name__ if issubclass(type(value), types.FunctionType | type) else type(value).__name__


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the names and values of a function's closure variables.

    Variables without a value are left out.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the cell is empty: the name has no value yet
            continue


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


_NAMING = {"getattr", "attrgetter", "vars", "asdict", "astuple", "eval", "__dict__"}
"""Functions and attributes for reading attributes by a string, or all attributes."""


class CodeDigest(NamedTuple):
    """What identifies the code of a function, and the names used there, nested functions included.

    Attributes
    ----------
    said : str
        A digest of instructions, constants and global names. Docstrings, assertions, line numbers, and names of local
        variables and parameters do not count.
    globals, attributes : frozenset of str
        Names read as globals, and as attributes of any object.
    imported : frozenset of str
        Imported modules: full names, or relative names beginning with dots.
    """

    said: str
    globals: frozenset[str]
    attributes: frozenset[str]
    imported: frozenset[str]


@lru_cache(maxsize=4096)
def code_of(code: types.CodeType) -> CodeDigest:
    """Inspect the code of a function."""
    return _Reading(code, {name: name for name in code.co_freevars}).code()


class _Reading:
    """Reads code.

    Parameters
    ----------
    code : CodeType
        The code.
    outer : mapping of str to str
        The texts for variables of functions around the code.
    """

    def __init__(self, code: types.CodeType, outer: Mapping[str, str]) -> None:
        self._code = code
        self._locals = dict(outer)
        self._all = list(dis.get_instructions(code))
        left_out = _assertions(self._all)
        for at, each in enumerate(self._all):
            if each.opname == "STORE_NAME" and each.argval in _OF_CLASSES:
                left_out |= {at - 1, at}
        left_out |= {at for at, each in enumerate(self._all) if each.opname in _TELLING_NOTHING}
        self._kept = [(at, part) for at, each in enumerate(self._all) if at not in left_out for part in _parts(each)]
        self._offsets = [each.offset for _, each in self._kept]
        self._found: dict[str, set[str]] = {"globals": set(), "attributes": set(), "imported": set()}

    def code(self) -> CodeDigest:
        """Return what was read."""
        code, flags = self._code, self._code.co_flags & _FLAGS
        parameters = code.co_argcount + code.co_kwonlyargcount
        for name in code.co_varnames[:parameters]:
            self._local(name)
        said = [str((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, flags))]
        said += [f"{each.opname} {self._argument(at, each)}" for at, each in self._kept]
        entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
        ranges = [(self._number(each.start), self._number(each.end), self._number(each.target)) for each in entries]
        said += [str(each) for each in dict.fromkeys(ranges) if each[0] < each[1]]
        found = self._found
        if not _NAMING.isdisjoint(found["globals"] | found["attributes"]):
            # ``getattr(config, "gain")``
            found["attributes"] |= {each for each in code.co_consts if isinstance(each, str) and each.isidentifier()}
        return CodeDigest(sha256_of(said), *map(frozenset, found.values()))

    def _argument(self, at: int, each: dis.Instruction) -> str:
        kind, value = each.opcode, each.argval
        if each.opname == "IMPORT_NAME":
            self._found["imported"].add(f"{'.' * int(self._all[at - 2].argval or 0)}{value}")
        elif each.opname in _GLOBALS:
            self._found["globals"].add(value)
        elif each.opname in _ATTRIBUTES:
            self._found["attributes"].add(value)
        if _jumps(each):
            return str(self._number(value))
        if kind in dis.haslocal or kind in dis.hasfree:
            return self._local(value)
        return self._constant(value) if kind in dis.hasconst else f"{value if kind in dis.hasname else each.arg}"

    def _local(self, name: str) -> str:
        return self._locals.setdefault(name, f"local {len(self._locals)}")

    def _number(self, offset: int) -> int:
        """Return the number of instructions that count before an offset."""
        return bisect.bisect_left(self._offsets, offset)

    def _constant(self, value: object) -> str:
        if isinstance(value, types.CodeType):
            inner = _Reading(value, {name: self._local(name) for name in value.co_freevars}).code()
            for name, more in zip(self._found, inner[1:], strict=True):
                self._found[name] |= more
            return inner.said
        if isinstance(value, tuple):
            return f"({','.join(map(self._constant, value))})"
        if isinstance(value, frozenset):
            return f"{{{','.join(sorted(map(self._constant, value)))}}}"
        return f"{type(value).__name__}={value!r}"


_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")
_TELLING_NOTHING = frozenset({"CACHE", "NOP", "EXTENDED_ARG", "RESUME", "MAKE_CELL", "COPY_FREE_VARS", "PRECALL"})
_TELLING_NOTHING |= {"COPY", "SWAP", "POP_TOP", "POP_EXCEPT", "RERAISE"}
"""Instructions that follow from others."""
_OF_CLASSES = ("__doc__", "__firstlineno__", "__qualname__", "__module__")
"""Names set in the body of a class that say where it is."""
_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
_FLAGS |= inspect.CO_ASYNC_GENERATOR


def _assertions(instructions: Sequence[dis.Instruction]) -> set[int]:
    """Return the positions of all instructions of ``assert`` statements, which ``python -O`` leaves out."""
    found: set[int] = set()
    for begin, each in enumerate(instructions):
        if each.opname == "LOAD_ASSERTION_ERROR" or each.argval is AssertionError:
            end = next(at for at in range(begin, len(instructions)) if instructions[at].opname == "RAISE_VARARGS")
            spans = [
                _span(each),
                *(_span(jump) for jump in instructions if jump.argval == each.offset and _jumps(jump)),
            ]
            low, high = min(first for first, _ in spans), max(last for _, last in spans)
            if sys.version_info < (3, 12):
                # There, each part of the condition has its own place, and the statement has none.
                low, high = (low[0], 0), (high[0] + 1, 0)
            places = enumerate(map(_span, instructions))
            found |= {at for at, (first, last) in places if low <= first and last <= high}
            found |= set(range(begin, end + 1))
    return found


def _parts(each: dis.Instruction) -> list[dis.Instruction]:
    """Split an instruction on two variables, which Python 3.13 joins only within a line of the source."""
    if each.opcode not in dis.haslocal or not isinstance(each.argval, tuple):
        return [each]
    names = re.findall("(?:LOAD|STORE)_FAST(?:_BORROW)?", each.opname)
    pairs = zip(names, each.argval, strict=True)
    return [each._replace(opname=name, opcode=dis.opmap[name], argval=value) for name, value in pairs]


def _jumps(each: dis.Instruction) -> bool:
    return each.opcode in dis.hasjrel or each.opcode in dis.hasjabs


def _span(each: dis.Instruction) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the place of an instruction in the source: line and column of both ends."""
    at = each.positions
    if at is None or at.lineno is None:
        return (0, 0), (sys.maxsize, 0)
    return (at.lineno, at.col_offset or 0), (at.end_lineno or at.lineno, at.end_col_offset or 0)


# TorchScript, and the training mode of networks.

_MANGLED = re.compile(rb"[./]?___torch_mangle_\d+")
"""Numbers added by TorchScript to equal class names, different in each process."""
_NOT_CODE = (".debug_pkl", "version", "serialization_id")
"""Files of a TorchScript archive without effect on results."""


def digest_of_script(scripted: Any) -> str:
    """Return the SHA-256 of a TorchScript module or function.

    The digest covers code, constants, parameters and attributes.
    """
    said = []
    with zipfile.ZipFile(io.BytesIO(scripted.save_to_buffer())) as archive:
        for name in archive.namelist():
            # All files are in a folder with an arbitrary name.
            inside = name.partition("/")[2]
            if not inside.endswith(_NOT_CODE) and not inside.startswith("traced_inputs"):
                said.append(_MANGLED.sub(b"", inside.encode()) + b"\0" + _unmangled(inside, archive.read(name)))
    return sha256_of(sorted(hashlib.sha256(each).hexdigest() for each in said))


def _unmangled(name: str, content: bytes) -> bytes:
    """Make the content of a TorchScript file the same in all processes."""
    if name.endswith(".pkl"):
        # A pickle stores string lengths, so disassemble the pickle before removing numbers. Nothing is run.
        content = "\n".join(f"{op.name} {arg!r}" for op, arg, _ in pickletools.genops(content)).encode()
        return _MANGLED.sub(b"", content)
    return b"\n".join(sorted(_MANGLED.sub(b"", content).split(b"\n"))) if name.endswith(".py") else content


class Modes:
    """Parts of networks with different results in training mode and eval mode.

    Parameters
    ----------
    networks : iterable of torch.nn.Module
        The networks. They are searched once, at construction, so that each check is fast.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        self._parts = [
            (network, name, part)
            for network in networks
            # Called on nn.Module, because some networks override this method.
            for name, part in nn.Module.named_modules(network)
            if mode_matters(part)
        ]

    def check(self) -> None:
        """Raise ValidationError if any part is in training mode."""
        for network, name, part in self._parts:
            if part.training:
                within = f"{name!r}, a {_class_name(part)} in " if name else ""
                raise ValidationError(
                    f"{within}the network {_class_name(network)} is in training mode: results may differ between "
                    "calls, and calls may change the network; call net.eval() first, and net.train() to resume training"
                )


def mode_matters(module: nn.Module) -> bool:
    """Whether a module's results differ between training mode and eval mode.

    Submodules are not considered.
    """
    # Frozen TorchScript has no mode. The mode of a wrapper around a module does not matter.
    if not hasattr(module, "training") or _inside(module) is not module:
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return _graph_reads_mode(module)
    # Some hooks of torch recompute weights in training mode.
    parts: list[Any] = [module, *module._forward_pre_hooks.values(), *module._forward_hooks.values()]  # noqa: SLF001
    return any(map(_names_mode, parts)) or any(map(_reads_mode, map(type, parts)))


def _graph_reads_mode(scripted: Any) -> bool:
    if not hasattr(scripted, "inlined_graph"):  # so it has no `forward`
        return False
    graph = scripted.inlined_graph
    itself = next(graph.inputs()).debugName()
    read = graph.findAllNodes("prim::GetAttr")
    return any(node.s("name") == "training" and node.input().debugName() == itself for node in read)


@lru_cache(maxsize=4096)
def _reads_mode(kind: type) -> bool:
    return any(
        _names_mode(part)
        for each in kind.__mro__
        if each is not nn.Module
        for name, value in vars(each).items()
        if name not in ("__init__", "train")
        for part in parts_of_attribute(value)
    )


def _names_mode(function: object) -> bool:
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return False
    # The function may be decorated.
    return "training" in code_of(function.__code__).attributes or _names_mode(function.__dict__.get("__wrapped__"))


def _class_name(module: nn.Module) -> str:
    return str(getattr(module, "original_name", type(module).__name__))
