"""What users write on a command line, as the library takes it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import click

from infinite_tensor.cli.output import keep_for_json

F = TypeVar("F", bound=Callable[..., Any])

_INT = re.compile(r"[+-]?\d[\d_]*", re.ASCII)


def _int(text: str) -> int:
    """An int with nothing else; ValueError otherwise."""
    if not _INT.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text)


def region(text: str) -> Any:
    """What stands between the brackets of a read: ints, slices and one Ellipsis, as in ``0:64,-32:32``."""
    inner = text.strip()
    if inner[:1] + inner[-1:] in ("[]", "()"):
        inner = inner[1:-1]
    try:
        return tuple(map(_entry, inner.split(",")))
    except ValueError as error:
        raise click.BadParameter(
            f'{text!r} is no region: write ints, slices and ... for each dimension, as in "0:64,-32:32"'
        ) from error


def _entry(text: str) -> Any:
    if text.strip() == "...":
        return ...
    parts = [None if not part.strip() else _int(part) for part in text.split(":")]
    if len(parts) == 1 and parts[0] is not None:
        return parts[0]
    if not 2 <= len(parts) <= 3:
        raise ValueError(text)
    return slice(*parts)


def ints(text: str) -> Any:
    """An int for all dimensions, or a tuple with one for each."""
    return _numbers(_int, text)


def floats(text: str) -> Any:
    """A number for all dimensions, or a tuple with one for each."""
    return _numbers(float, text)


def _numbers(kind: Callable[[str], Any], text: str) -> Any:
    try:
        found = tuple(map(kind, text.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither a number nor numbers with commas between them") from error
    return found[0] if len(found) == 1 else found


def shard(text: str) -> tuple[int, int]:
    """Which part of a region a process fills: its rank, and how many there are."""
    try:
        rank, count = map(_int, text.split("/"))
    except ValueError as error:
        raise click.BadParameter(
            f'{text!r} is no shard: write its number and how many there are, as in "0/4"'
        ) from error
    return rank, count


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name.strip() for name in text.split(","))


def padding(text: str) -> Any:
    """What stands beyond the ends of a source: a mode, or a constant one with its value."""
    mode, colon, constant = text.partition(":")
    if not colon:
        return text
    try:
        return mode, int(constant) if _INT.fullmatch(constant) else float(constant)
    except ValueError as error:
        raise click.BadParameter(
            f'{constant!r} is no number: write a mode, or a constant one with its value, as in "constant:0"'
        ) from error


def reference(text: str) -> Any:
    """What a file of the user, or a module on Python's path, has under a name: ``world.py:tensor``."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not all(part.isidentifier() for part in name.split(".")):
        raise click.BadParameter(f'{text!r} names nothing: write a file and a name in it, as in "world.py:tensor"')
    found = _module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.BadParameter(f"{place} has no {name!r}{_offered(found)}")
        found = getattr(found, part)
    return found


def taken_reference(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
    """`reference` of an option. Of a type that is a function click would take a ValueError in the file for its own."""
    return None if text is None else reference(text)


def reductions(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> Any:
    """What reduces all outputs, or as in ``labels=argmax`` those that are named: each a name, or a `reference`."""
    found: dict[str | None, Any] = {}
    for text in texts:
        output, equals, given = text.partition("=")
        name, value = (output, given) if equals and not is_reference(output) else (None, text)
        if name in found:
            raise click.BadParameter(f"{text!r} is a second one for the same output")
        found[name] = reference(value) if is_reference(value) else value
    if None in found and len(found) > 1:
        raise click.BadParameter('name the output of each, as in "labels=argmax"')
    return found.get(None, found or None)


def is_reference(value: str) -> bool:
    """Whether a text names something in a file, and is no path or URL itself."""
    place, colon, _ = value.rpartition(":")
    return bool(colon) and place.endswith(".py")


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        if not all(part.isidentifier() for part in place.split(".")):
            raise _no_module(place)
        # As for a script: what lies in the current folder is found.
        sys.path.insert(0, str(Path.cwd()))
        try:
            return import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise _no_module(place) from error
    path = Path(place)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {place!r}")
    path = path.resolve()
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    sys.path.insert(0, str(path.parent))
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _no_module(place: str) -> click.BadParameter:
    return click.BadParameter(f"there is no module {place!r}; a file is written with its ending, as in world.py:name")


_MOST_OFFERED = 8


def _offered(module: Any) -> str:
    """What a module defines itself, for a message."""
    found = vars(module).items() if isinstance(module, ModuleType) else ()
    names = [
        name
        for name, value in found
        if not name.startswith("_")
        and not isinstance(value, ModuleType | type)
        and not (isinstance(value, FunctionType) and value.__module__ != module.__name__)
    ]
    return f"; it has {', '.join(names[:_MOST_OFFERED])}{', ...' * (len(names) > _MOST_OFFERED)}" if names else ""


def option_json(command: F) -> F:
    """``--json``, of every command."""
    # Before a file of the user is loaded.
    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=keep_for_json, help="Print JSON, for programs."
    )(command)


def option_yes(command: F) -> F:
    """``--yes``, of every command that deletes something."""
    return click.option("--yes", is_flag=True, help="Do not ask before something is deleted.")(command)


def option_overwrite(what: str) -> Callable[[F], F]:
    """``--overwrite``, of every command that writes where something may be already."""

    def decorate(command: F) -> F:
        return click.option("--overwrite", is_flag=True, help=f"Replace {what}, after a question.")(command)

    return decorate


def option_group(command: F) -> F:
    """``--group``, of commands for tensors and groups."""
    text = "ID is that of a group; needed only where a tensor has it too."
    return click.option("--group", is_flag=True, help=text)(command)


def option_region(command: F) -> F:
    """``--region``, of every command for a part of a tensor."""
    text = 'Pixels, as in "0:64,-32:32"; by default all of a finite tensor.'
    return click.option("--region", type=region, metavar="REGION", help=text)(command)


def options_of_fill(command: F) -> F:
    """What `fill` and `predict` take alike."""
    options = [
        click.option("--workers", type=int, metavar="N", help="Threads that compute windows."),
        click.option("--max-memory", metavar="SIZE", help='The most memory to hold, as in "400MB".'),
        click.option("--shard", type=shard, metavar="RANK/COUNT", help='Do one part of several, as in "0/4".'),
        click.option("--where", metavar="MASK", help="Only what a mask takes: a .npy file, an image, or FILE.py:NAME."),
        click.option(
            "--where-scale",
            type=floats,
            default="1",
            metavar="N",
            help="Pixels of the tensor along one of the mask.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def argument_store(command: F) -> F:
    """The store, of most commands."""
    return click.argument("store")(command)


def argument_id(command: F) -> F:
    """A tensor in it; or a group, of commands with ``--group``."""
    return click.argument("tensor_id", metavar="ID")(command)


def region_of(tensor: Any, given: Any) -> Any:
    """The region that was given, or all of a finite tensor; UsageError where an unbounded one is given none."""
    unbounded = [name for name, extent in zip(tensor.dims, tensor.shape, strict=True) if extent is None]
    if given is None and unbounded:
        example = ",".join("0:512" if extent is None else ":" for extent in tensor.shape)
        raise click.UsageError(
            f"tensor {tensor.tensor_id!r} is unbounded along {', '.join(unbounded)}: give a region, as in "
            f'--region "{example}"'
        )
    return ... if given is None else given


def exists(target: str) -> bool:
    """Whether something lies at a path or URL."""
    from fsspec.core import url_to_fs  # noqa: PLC0415  (most commands do without it)

    try:
        files, path = url_to_fs(target)
    except (ImportError, ValueError):
        # Which the library tells.
        return False
    return bool(files.exists(path))
