"""A fingerprint of a function: equal for equal code, stable across processes of one Python version.

It tells a person that ``f`` has changed since results were stored. It is a hint, not a proof: what a
function reads from the world, a file say, is not part of it, nor is all of a large table. The weights of networks are,
as they are when the fingerprint is taken.
"""

from __future__ import annotations

import functools
import json
import sys
import types
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import nn

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import quoted
from infinite_tensor.values.digest import bare, name_of, sha256_of
from infinite_tensor.values.networks import Networks

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Bytecode differs between minor versions, so fingerprints compare only within one."""

_MOST_VALUES = 10_000
_MOST_MEMBERS = 1000
"""Of one container, in a fingerprint of the second scheme."""

_SECOND = "2:"
_THIRD = "3:"


def fingerprint(function: Callable[..., Any]) -> str:
    """SHA-256 over the code of `function` and of the functions it names, as hexadecimal digits.

    Covered are bytecode, names, constants, defaults, plain values in closures, and functions that are
    reached as globals, closures or attributes of a partial or a bound method. Locks, modules of Python and the
    storage of tensors are not.

    Where these are 10,000 values or more, or one is an int that is too large to be written in decimal, only the
    nearest 10,000 count, at most 1,000 of each list, and the fingerprint is of a second scheme: ``2:`` stands before
    the digits. So it is where one fails when it is looked into, by the code of its class; that counts by its class.

    Networks count by their digest: those among the values above, among globals that are named, and in the attributes
    of objects among all these. A function with one has a fingerprint of a third scheme: ``3:``, the digits, and behind
    another colon the fingerprint that it has without the weights. Networks without a digest count by their class.

    What this library has put around a function does not count: its code changes with the version.
    """
    function, networks = unwrapped(function), Networks()
    scheme, digits = _looked_through(function, networks)
    if not networks.found:
        return scheme + digits
    return f"{_THIRD}{digits}:{''.join(_looked_through(function, Networks(told=False)))}"


def is_anonymous(function: object) -> bool:
    """Whether the name of a function says nothing: it is a lambda, a partial, or an object that can be called."""
    return "<lambda>" in getattr(function, "__qualname__", "") or not hasattr(function, "__qualname__")


def function_name(function: Any) -> str:
    """Module and qualified name of a function; of an anonymous one just that."""
    if is_anonymous(function):
        return "<anonymous>"
    module = getattr(function, "__module__", None) or getattr(function, "__objclass__", type(function)).__module__
    return f"{module}.{function.__qualname__}"


def digests(function: Callable[..., Any]) -> list[str]:
    """Digests of the networks, tensors and arrays that a function holds: other weights give other ones.

    They are looked for where a fingerprint looks for networks: `function` itself, its closure, defaults, the arguments
    of a `functools.partial`, globals that it names, the attributes of the object of a method, and the lists, tuples,
    dicts and objects among these. A `numpy.memmap` and arrays of objects do not count.

    Parameters
    ----------
    function : callable
        A function, a network, or an object that can be called.

    Returns
    -------
    list of str
        64 hexadecimal digits for each, the same in every process; no entry in a `no_digest` block.

    Raises
    ------
    ValidationError
        If `function` is not callable, or one of these has no values that can be read, as for `digest`.

    Examples
    --------
    >>> kernel = torch.ones(1, 1, 3, 3)
    >>> def f(ctx):
    ...     return torch.nn.functional.conv2d(torch.full((1, 4, 4), float(ctx[1])), kernel, padding=1)
    >>> t = InfiniteTensor((1, 4, None), f, TensorWindow((1, 4, 4)), version=digests(f))
    >>> len(digests(f))
    1
    """
    if not callable(function):
        raise ValidationError(f"digests takes a function, got {quoted(function)}; give one that can be called")
    networks = Networks()
    _looked_through(unwrapped(function), networks)
    return networks.digests()


def networks_in(functions: Iterable[object]) -> list[nn.Module]:
    """The networks that functions hold, wherever `digests` looks for them, without a digest of any."""
    networks = Networks(hashed=False)
    for function in functions:
        if callable(function):
            _looked_through(unwrapped(function), networks)
    return networks.met()


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a user that an object of this library calls, and has as ``__wrapped__``; another one itself."""
    while name_of(type(function)).startswith("infinite_tensor.") and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def combined(fingerprints: Sequence[Mapping[str, str]]) -> str:
    """One fingerprint for the functions of several tensors, of the highest scheme among theirs."""
    highest, lowest = (
        [{name: "".join(_schemes(value)[at]) for name, value in functions.items()} for functions in fingerprints]
        for at in (0, -1)
    )
    digits = sha256(json.dumps(highest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    if highest != lowest:
        return f"{_THIRD}{digits}:{combined(lowest)}"
    second = any(value.startswith(_SECOND) for functions in fingerprints for value in functions.values())
    return _SECOND * second + digits


def differ(one: str, other: str) -> bool:
    """Whether two fingerprints tell of different functions, by the highest scheme that both have; False without one."""
    if one == other:
        return False
    others = dict(_schemes(other))
    return next((digits != others[scheme] for scheme, digits in _schemes(one) if scheme in others), False)


def _schemes(fingerprint: str) -> list[tuple[str, str]]:
    """By which rules it was made, highest first, with the digits; "" stands for the first rules."""
    found: list[tuple[str, str]] = []
    while True:
        number, colon, rest = fingerprint.partition(":")
        if not colon:
            return [*found, ("", fingerprint)]
        digits, colon, fingerprint = rest.partition(":")
        found.append((f"{number}:", digits))
        if not colon:
            return found


def _looked_through(function: object, networks: Networks) -> tuple[str, str]:
    """The scheme and the digits of a fingerprint."""
    try:
        return "", sha256_of(_in_depth(function, _MOST_VALUES, networks)[0])
    except Exception:  # noqa: BLE001  (too many values, or one that fails)
        return _SECOND, sha256_of(_in_breadth(function, networks))


class _Said(str):
    """Something to say of a value, told apart from the strings that are values."""

    __slots__ = ()


class _Apart(NamedTuple):
    """A value that is to be looked into by itself, whatever was met before."""

    value: object


_Steps: TypeAlias = Generator[object, str | None, None]
"""A look into a value: things said, and the values in it; what is said of one apart is sent back."""

_END = object()


class _TooManyValuesError(Exception):
    """There are more values than may be looked at."""


class _Look:
    """A way through a value and all that is in it, where what was met before stands as a reference to itself."""

    def __init__(self, value: object, networks: Networks) -> None:
        self.said: list[str] = []
        self._networks = networks
        self._inside: list[_Steps] = []
        self._seen: dict[int, tuple[int, object]] = {}
        self.meet(value)

    def meet(self, value: object) -> None:
        """Say what a value is, or begin to look into it."""
        plain = _plain(value)
        if plain is not None:
            self.said.append(plain)
        elif id(value) in self._seen:
            self.said.append(f"seen={self._seen[id(value)][0]}")
        else:
            # Keeping the value keeps its id from being given to another one.
            self._seen[id(value)] = (len(self._seen), value)
            self._inside.append(_steps(value, self._networks))

    def step(self, answer: str | None) -> object:
        """The next value, or `_END`; `answer` is what there is to say of the last one, if that was apart."""
        while self._inside:
            try:
                step = self._inside[-1].send(answer)
            except StopIteration:
                self._inside.pop()
            else:
                if type(step) is not _Said:
                    return step
                self.said.append(step)
            answer = None
        return _END


def _in_depth(value: object, most: int, networks: Networks) -> tuple[list[str], int]:
    """What there is to say of all values, each before the next one beside it, and their number.

    A loop instead of recursion: values may lie deep in each other, or in themselves. _TooManyValuesError where there
    are `most` values or more.
    """
    looks, answer, count = [_Look(value, networks)], None, 1
    while True:
        step = looks[-1].step(answer)
        answer = None
        if step is _END:
            said = looks.pop().said
            if not looks:
                return said, count
            answer = "".join(said)
            continue
        count += 1
        if count >= most:
            raise _TooManyValuesError
        if type(step) is not _Apart:
            looks[-1].meet(step)
            continue
        answer = _plain(step.value)
        if answer is None:
            looks.append(_Look(step.value, networks))


def _in_breadth(function: object, networks: Networks) -> list[str]:
    """What there is to say of the values that are nearest to a function."""
    said: list[str] = []
    queue, places, count = [function], {id(function): 0}, 1
    for value in queue:
        steps, answer = _steps(value, networks, _MOST_MEMBERS), None
        # Members of a set come in any order, but nothing is said of them before all are counted.
        while count < _MOST_VALUES:
            try:
                step = steps.send(answer)
            except Exception:  # noqa: BLE001  (its end, or it fails)
                break
            answer = None
            # By type: a reference to an object that is gone fails when it is asked for its class.
            if type(step) is _Said:
                said.append(step)
            elif type(step) is _Apart:
                answer, number = _apart(step.value, networks)
                count += number
            else:
                count += 1
                try:
                    plain = _plain(step)
                except Exception:  # noqa: BLE001  (too long, or it fails)
                    plain = hex(cast("int", step)) if issubclass(type(step), int) else name_of(type(step))
                if plain is None and id(step) not in places:
                    places[id(step)] = len(queue)
                    queue.append(step)
                said.append(f"at={places[id(step)]}" if plain is None else plain)
    return said


def _apart(value: object, networks: Networks) -> tuple[str, int]:
    """What there is to say of a value by itself, where it is not too much, and at how many values that takes a look."""
    try:
        said, count = _in_depth(value, _MOST_MEMBERS, networks)
    except Exception:  # noqa: BLE001  (too many values, or one that fails)
        return name_of(type(value)), _MOST_MEMBERS
    return "".join(said), count


def _plain(value: object) -> str | None:
    """What there is to say of a value with no others in it; None for all others. ValueError for very large ints."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return f"{type(value).__name__}={value!r}"
    return repr(value) if isinstance(value, torch.dtype | torch.device | range | slice) else None


def _steps(value: object, networks: Networks, most: int = sys.maxsize) -> _Steps:
    """A look into a value, at so many members of a container at most."""
    if isinstance(value, types.CodeType):
        yield from _code(value)
    elif isinstance(value, types.FunctionType):
        yield from _function(value, networks)
    elif isinstance(value, functools.partial):
        yield _Said("partial")
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield _Said("method")
        yield from (value.__func__, type(value.__self__).__qualname__)
        yield from _networks_in(value.__self__, "", networks)
    elif isinstance(value, tuple | list):
        yield _Said(f"{type(value).__name__}[{len(value)}]")
        yield from value if len(value) <= most else _spread(value, most)
    elif isinstance(value, set | frozenset):
        yield _Said(f"set[{len(value)}]")
        if len(value) <= most:
            yield from _set(value)
    elif isinstance(value, dict):
        yield _Said(f"dict[{len(value)}]")
        for item in islice(value.items(), most):
            yield from item
    else:
        yield from _named(value, networks)


def _spread(values: Sequence[object], count: int) -> Iterator[object]:
    """So many of the values, evenly spread, the first and the last one among them."""
    return (values[i * (len(values) - 1) // (count - 1)] for i in range(count))


def _set(values: Collection[object]) -> _Steps:
    said = []
    for value in values:
        answer = yield _Apart(value)
        assert answer is not None
        said.append(answer)
    yield from map(_Said, sorted(said))


def _code(code: types.CodeType) -> Iterator[object]:
    yield _Said(code.co_code.hex())
    yield from (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield from code.co_consts


def _function(function: types.FunctionType, networks: Networks) -> Iterator[object]:
    yield from _code(function.__code__)
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield _Said("empty cell")
    for name in _names_of(function.__code__):
        named = function.__globals__.get(name)
        if isinstance(named, types.FunctionType | functools.partial):
            yield _Said(name)
            yield named
        elif named is not None:
            yield from _networks_in(named, name, networks)


def _networks_in(value: object, name: str, networks: Networks) -> Iterator[object]:
    for where, network in networks.among(name, value):
        yield _Said(where)
        yield network


def _named(value: object, networks: Networks) -> Iterator[object]:
    """Everything else counts by its type, the code that a call of it would run, and the networks in it."""
    if isinstance(value, nn.Module) and (digest := networks.digest_of(value)) is not None:
        yield _Said(digest)
        value = bare(value)
    else:
        yield from _networks_in(value, "", networks)
    kind = value if isinstance(value, type) else type(value)
    yield _Said(name_of(kind))
    if isinstance(value, types.BuiltinFunctionType):
        yield _Said(value.__qualname__)
    if hasattr(value, "__wrapped__"):
        yield value.__wrapped__
    for method in ("__call__", "forward"):
        code = getattr(kind, method, None)
        # What torch itself does when a module is called is no part of the user's function.
        if isinstance(code, types.FunctionType) and not (code.__module__ or "").startswith("torch."):
            yield code


def _names_of(code: types.CodeType) -> list[str]:
    """Global names that `code` or a function nested in it may look up, in order."""
    names: list[str] = []
    rest = [code]
    while rest:
        code = rest.pop()
        names += code.co_names
        rest += [constant for constant in reversed(code.co_consts) if isinstance(constant, types.CodeType)]
    return names
