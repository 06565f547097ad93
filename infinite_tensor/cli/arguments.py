"""Parses arguments and options of a command into values for the library."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import infinite_tensor
from infinite_tensor.cli.output import keep_for_json

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    ParamType = click.ParamType[Any, str]
else:
    # Before click 8.5, ParamType takes fewer type arguments, or none.
    ParamType = click.ParamType


class _Written(ParamType):
    """A parameter parsed by the function `read`.

    The error for invalid text shows `example`.
    """

    def __init__(self, name: str, read: Callable[[str], Any], example: str) -> None:
        self.name, self._read, self._example = name, read, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a text, or fail with an example of a valid text."""
        try:
            return self._read(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a valid {self.name}: write it as in {self._example}", param, ctx)


def _region(text: str) -> Any:
    return tuple(map(_entry, text.strip(" []()").split(",")))


def _entry(text: str) -> Any:
    if text.strip() == "...":
        return ...
    return slice(*map(_end, text.split(":"))) if ":" in text else int(text)


def _end(text: str) -> int | None:
    return int(text) if text.strip() else None


def _several(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        found = tuple(map(kind, text.split(",")))
        return found[0] if len(found) == 1 else found

    return read


def _shard(text: str) -> tuple[int, int]:
    rank, count = map(int, text.split("/"))
    return rank, count


def _padding(text: str) -> Any:
    mode, colon, constant = text.partition(":")
    return (mode, float(constant)) if colon else mode


REGION = _Written("region", _region, '"0:64,-32:32"')
INTS = _Written("size", _several(int), "256, or 256,128")
FLOATS = _Written("number", _several(float), "0.5, or 0.5,0.25")
SHARD = _Written("shard", _shard, "0/4")
PADDING = _Written("padding", _padding, "reflect, or constant:0")
NAMES = _Written("name", lambda text: tuple(name.strip() for name in text.split(",")), "c,y,x")

_REFERENCE = re.compile(r"(.+\.py|\w+(?:\.\w+)*):(\w+(?:\.\w+)*)")


class _Reference(ParamType):
    """A reference to an object in Python code, such as ``world.py:tensor``."""

    name = "reference"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the named object, after running the file or importing the module."""
        found = _REFERENCE.fullmatch(value)
        if found is None:
            self.fail(
                f'{value!r} is not a reference: write a file and a name in it, as in "world.py:tensor"', param, ctx
            )
        place, name = found.groups()
        module = _file_module(place) if place.endswith(".py") else _path_module(place)
        if module is None:
            self.fail(f"there is no {'file' if place.endswith('.py') else 'module'} {place!r}", param, ctx)
        try:
            return attrgetter(name)(module)
        except AttributeError:
            offered = ", ".join(each for each in vars(module) if not each.startswith("_"))
            self.fail(f"{place} has no {name!r}; it has {offered or 'nothing'}", param, ctx)


REFERENCE = _Reference()


def _path_module(place: str) -> Any:
    # Also find modules in the current folder, as `python -m` does.
    sys.path.insert(0, str(Path.cwd()))
    try:
        return import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        return None


def _file_module(place: str) -> Any:
    path = Path(place)
    if not path.is_file():
        return None
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


def _is_reference(text: str) -> bool:
    """Check whether a text names an object in a Python file, and is not a path or URL."""
    return ".py:" in text and _REFERENCE.fullmatch(text) is not None


def _reduction(text: str) -> tuple[str | None, Any]:
    output, equals, given = text.partition("=")
    name, value = (output, given) if equals and not _is_reference(output) else (None, text)
    return name, REFERENCE(value) if _is_reference(value) else value


def reductions(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Parse the texts of ``--reduce``.

    A text is a reduction, such as ``argmax``, or the name of an output and a reduction, such as ``labels=argmax``.
    Return a reduction for all outputs, or a dict from names of outputs to reductions, or None if there are no texts.
    """
    found = dict(map(_reduction, texts))
    if len(found) < len(texts) or (None in found and len(found) > 1):
        raise click.BadParameter(
            'each --reduce must name a different output, as in "--reduce labels=argmax --reduce sure=softmax"'
        )
    return found.get(None, found or None)


store = click.argument("store")
tensor_id = click.argument("tensor_id", metavar="ID")
region = click.option(
    "--region", type=REGION, metavar="REGION", help='Pixels, as in "0:64,-32:32". Default: all of a finite tensor.'
)


def module(told: str, *, required: bool = False) -> Callable[[F], F]:
    """Create the option ``--module``, for a tensor or group in a Python file.

    `told` completes the help text, which begins with "An InfiniteTensor or TensorGroup".
    """

    def checked(_context: click.Context, _option: click.Parameter, found: Any) -> Any:
        if found is not None and not isinstance(found, infinite_tensor.InfiniteTensor | infinite_tensor.TensorGroup):
            kind = type(found).__name__
            raise click.UsageError(f"--module must name an InfiniteTensor or a TensorGroup, not a {kind}")
        return found

    told = f"An InfiniteTensor or TensorGroup {told}; package.module:NAME works too."
    given: dict[str, Any] = {"type": REFERENCE, "metavar": "FILE.py:NAME", "required": required, "help": told}
    return click.option("--module", "computed", callback=checked, **given)


group = click.option("--group", is_flag=True, help="ID is a group; needed only if a tensor has the same id.")
overwrite = click.option("--overwrite", is_flag=True, help="Replace existing data.")
yes = click.option("--yes", is_flag=True, help="Delete without asking.")
# Eager, to take effect before a user's file is loaded.
as_json = click.option(
    "--json", "as_json", is_flag=True, is_eager=True, callback=keep_for_json, help="Print JSON, for programs."
)


def fill_options(command: F) -> F:
    """Add the options of both `fill` and `predict` to a command."""
    options = [
        click.option("--workers", type=int, metavar="N", help="Threads that compute windows."),
        click.option("--max-memory", metavar="SIZE", help='Limit on memory, as in "400MB".'),
        click.option("--shard", type=SHARD, metavar="RANK/COUNT", help='Compute one part of several, as in "0/4".'),
        click.option("--where", metavar="MASK", help="Only pixels in a mask: a .npy file, an image, or FILE.py:NAME."),
        click.option(
            "--where-scale", type=FLOATS, default="1", metavar="N", help="Pixels along one pixel of the mask."
        ),
        click.option("--pyramid", is_flag=True, help="Also fill overviews, each half as large as the one before."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def region_of(tensor: Any, given: Any) -> Any:
    """Return the region `given`, or ``...`` for None.

    Raise UsageError for None if the tensor is unbounded.
    """
    unbounded = [name for name, extent in zip(tensor.dims, tensor.shape, strict=True) if extent is None]
    if given is None and unbounded:
        example = ",".join("0:512" if extent is None else f"0:{extent}" for extent in tensor.shape)
        raise click.UsageError(
            f"tensor {tensor.tensor_id!r} is unbounded along {', '.join(unbounded)}: give a region, as in "
            f'--region "{example}"'
        )
    return ... if given is None else given


def source_at(place: str, dims: tuple[str, ...] | None) -> Any:
    """Open the source of `predict`.

    `place` is the path of an array, image or raster file, the path or URL of a Zarr array, or a reference to an object
    in a Python file.
    """
    if _is_reference(place):
        return REFERENCE(place)
    path = Path(place)
    if "://" in place or path.is_dir():
        return _zarr_array(place, dims)
    if not path.is_file():
        raise click.UsageError(f"there is no file {place!r}")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        import numpy as np  # noqa: PLC0415  (importing it takes as long as the rest of a command)

        try:
            return infinite_tensor.from_array(np.load(path, mmap_mode="r"), dims=dims)
        except ValueError as error:
            raise click.UsageError(f"{path} must contain an array of numbers, written by numpy.save") from error
    if suffix in (".tif", ".tiff", ".vrt", ".jp2", ".img") and find_spec("rasterio") is not None:
        return infinite_tensor.from_raster(path)
    return infinite_tensor.from_image(path)


def _zarr_array(place: str, dims: tuple[str, ...] | None) -> Any:
    import zarr  # noqa: PLC0415

    try:
        found = zarr.open_array(place, mode="r")
    except Exception as error:
        # The errors of zarr have no common base class.
        raise click.UsageError(
            f"{place!r} is not a Zarr array ({type(error).__name__}); for a tensor in a store, give its id with "
            "--source-tensor"
        ) from error
    names = getattr(found.metadata, "dimension_names", None)
    return infinite_tensor.from_array(found, dims=names if dims is None and names and all(names) else dims)


def mask_at(place: str | None, scale: object) -> Any:
    """Open a mask from a path, or from a reference to an object in a Python file.

    Return None if `place` is None.
    """
    if place is None:
        return None
    found = source_at(place, None)
    return found if isinstance(found, infinite_tensor.Mask) else infinite_tensor.Mask(found, scale=scale)
