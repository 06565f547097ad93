"""Errors and warnings of stores, with advice for the user."""

from __future__ import annotations

import difflib
import math
import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from infinite_tensor.errors import (
    DamagedDataWarning,
    DependantsRemainWarning,
    FunctionChangedWarning,
    MeaningLostWarning,
    StoreError,
    UncoveredPixelsWarning,
    ValidationError,
)
from infinite_tensor.geometry.window import WindowGrid, followed
from infinite_tensor.support.log import LOG
from infinite_tensor.values.definition import Definition, differences, same
from infinite_tensor.values.functions import Functions, changes
from infinite_tensor.values.meaning import contradictions
from infinite_tensor.values.spec import TensorSpec

_FUNCTIONS = {
    "f": "f",
    "blend": "The blend",
    "reduce": "The function of the reduction",
    "upstream": "A function upstream",
}
_MOST_NAMED = 5
_MOST_LISTED = 12
_MOST_COMPARED = 1000
_TOLD = 5
"""The maximum number of failures shown in full by an error. Each of thousands of batches may fail."""


def combined(failures: Sequence[StoreError]) -> StoreError:
    """Combine errors into a single error.

    The result has the messages of all errors, and the cause of the first error.
    """
    if len(failures) == 1:
        return failures[0]
    lines = [f"\n  {failure}" for failure in failures[:_TOLD]]
    if len(failures) > _TOLD:
        lines.append(f"\n  and {len(failures) - _TOLD} more")
    error = StoreError(f"{len(failures)} writes have failed:{''.join(lines)}")
    error.__cause__ = failures[0].__cause__
    return error


def damaged_definition(store: object, tensor_id: str, where: str, error: ValueError) -> StoreError:
    """Create the error for an unreadable definition."""
    return StoreError(
        f"{store}: the definition of tensor {tensor_id!r}, {where}, is damaged ({error}); restore it from a "
        f"backup, or delete the whole tensor with clear_tensor({tensor_id!r})"
    )


def damaged_group(store: object, group_id: str, where: str, error: ValueError) -> StoreError:
    """Create the error for an unreadable group."""
    return StoreError(
        f"{store}: group {group_id!r}, {where}, is damaged ({error}); delete it with clear_group({group_id!r}), and "
        "save it again; its tensors are kept"
    )


def in_the_way(store: object, where: str, what: str) -> StoreError:
    """Create the error for a path with data of another program.

    The tensor or group `what` would be stored at the path `where`.
    """
    return StoreError(
        f"{store}: {where!r} belongs to another program, but is at the path of {what}; give another id, or move "
        f"{where!r} away"
    )


def cleared_elsewhere(store: object, tensor_id: str) -> StoreError:
    """Create the error for use of a tensor no longer stored."""
    return StoreError(
        f"{store}: tensor {tensor_id!r} is gone: it has been cleared, or the whole store has vanished. Drop "
        f"its pixels in memory with clear_tensor({tensor_id!r}), open the store again if it has vanished, and build "
        "the tensor again"
    )


def remade_elsewhere(store: object, tensor_id: str) -> StoreError:
    """Create the error for a tensor cleared and recreated by another process."""
    return StoreError(
        f"{store}: tensor {tensor_id!r} has been cleared and recreated elsewhere; call "
        "close(discard=True), and open the store again to use the new tensor"
    )


def changed_meanwhile(store: object, tensor_id: str) -> StoreError:
    """Create the error for a tensor cleared or invalidated during a copy."""
    return StoreError(f"{store}: tensor {tensor_id!r} was cleared or invalidated while it was copied; copy it again")


def vanished(store: object) -> StoreError:
    """Create the error for a store deleted while open."""
    return StoreError(
        f"{store}: the store has vanished since it was opened; open it again to start with an empty store"
    )


def warn_of_damage(store: object, what: str) -> None:
    """Issue a DamagedDataWarning for unreadable data, or leave it to `one_warning_of_damage`."""
    message = f"{store}: {what}; it is treated as missing, and computed again if the tensor was opened with its f"
    # Python may show a warning only once, but the log has every warning.
    LOG.debug("%s", message)
    reference = _damages.get()
    found = None if reference is None else reference()
    if found is None:
        warnings.warn(message, DamagedDataWarning, stacklevel=3)
    else:
        found.append(message)


class _Damages(list[str]):
    """Messages on the damages that one read finds."""


# Weak, so that a read that is cut off between two lines by a signal silences no later one.
_damages: ContextVar[weakref.ref[_Damages] | None] = ContextVar("infinite_tensor_damages", default=None)


@contextmanager
def one_warning_of_damage() -> Iterator[None]:
    """Issue a single warning for all damages: the first one, and the number of others."""
    found = _Damages()
    before = _damages.set(weakref.ref(found))
    try:
        yield
    finally:
        _damages.reset(before)
    if found:
        others = f" ({len(found) - 1} more are damaged; verify lists them)" if found[1:] else ""
        warnings.warn(found[0] + others, DamagedDataWarning, stacklevel=4)


def check_same(tensor_id: str, stored: Definition, given: Definition, store: object) -> None:
    """Check that two definitions give the same values.

    Otherwise, raise ValidationError with all differing fields.
    """
    if not same(stored, given):
        lines = with_reasons(differences(stored.values(), given.values()), stored, given)
        raise mismatch(tensor_id, lines, store, changed_args(stored, given))


def with_reasons(lines: list[str], stored: Definition, given: Definition) -> list[str]:
    """Replace the digests of changed args by the values of their functions that have changed, such as a seed."""
    if not any(line.startswith("args[") for line in lines):
        return lines
    before = {item.place: item.said for item in stored.functions.record.items}
    now = [item for item in given.functions.record.items if before.get(item.place, item.said) != item.said]
    reasons = [f"{item.place}: stored {before[item.place]}, given {item.said}" for item in now if item.said[0] != "#"]
    return [line for line in lines if ".digest: " not in line] + reasons if reasons else lines


def changed_args(stored: Definition, given: Definition) -> list[str]:
    """List the args with a changed definition, as text for messages.

    An entry of the list is for example ``args[0] ('terrain')``.
    """
    pairs = enumerate(zip(stored.args, given.args, strict=False))
    return [
        f"args[{at}] ({'without a tensor_id' if new.tensor_id is None else repr(new.tensor_id)})"
        for at, (old, new) in pairs
        if old.digest != new.digest
    ]


def check_functions(tensor_id: str, stored: Functions, given: Functions, store: object) -> None:
    """Compare the functions given for a tensor with the functions behind the stored pixels.

    Raise ValidationError for a change that makes stored pixels wrong, listed in `Changes.firm`. Issue a
    FunctionChangedWarning for other changes of code, values or files.
    """
    found = changes(stored.record, given.without(stored.record.state))
    if found.firm:
        listed = "".join(f"\n  {line}" for line in found.firm)
        raise ValidationError(
            f"{store} already contains a tensor {tensor_id!r}, computed from other values:{listed}\n"
            "Give another tensor_id, or delete the stored tensor and all tensors computed from it with "
            f"store.clear_tensor({tensor_id!r}, dependants=True)."
        )
    for name in found.code:
        _warn_of_change(tensor_id, f"{_FUNCTIONS[name]} has different code than when {store} was filled")
    values = found.values or [f"{place}, has been changed in place" for place in stored.altered()]
    if values:
        _warn_of_change(tensor_id, f"{store} was filled with other values: {'; '.join(values)}")
    if found.stamps:
        _warn_of_change(
            tensor_id,
            f"{'; '.join(found.stamps)} since {store} was filled, or is a copy without its original times. To identify "
            "its content yourself, give name= for a source, or version= for an f that contains it",
        )


def _warn_of_change(tensor_id: str, what: str) -> None:
    warnings.warn(
        f"tensor {tensor_id!r}: {what}. Stored pixels are used unchanged, and only missing pixels are computed "
        f"anew. To recompute all, call store.clear_tensor({tensor_id!r}, dependants=True), or give another tensor_id",
        FunctionChangedWarning,
        stacklevel=_level_of_caller(),
    )


def warn_of_opaque(spec: TensorSpec) -> None:
    """Issue a FunctionChangedWarning if a function uses objects that cannot be inspected.

    The warning tells the user that later changes of these objects will not be detected.
    """
    opaque = spec.definition.functions.record.opaque
    if opaque:
        warnings.warn(
            f"tensor {spec.tensor_id!r}: changes of {', '.join(opaque[:_MOST_NAMED])} cannot be detected, and old "
            "pixels would be used after a change. Set version= to a value for the current state, such as the hash of a "
            "checkpoint",
            FunctionChangedWarning,
            stacklevel=_level_of_caller(),
        )


def warn_of_other_code(spec: TensorSpec) -> None:
    """Issue a FunctionChangedWarning for an ``f`` with replaced code.

    The code was replaced after the tensor was built.
    """
    _warn_of_change(spec.tensor_id, "the code of its f has been replaced since the tensor was built")


def warn_of_waste(names: str, pixels: int, work: int, most: str, window: Sequence[int]) -> None:
    """Warn that a read has computed far more pixels of an upstream tensor, `most`, than it returns."""
    warnings.warn(
        f"reading {pixels:,} pixels of {names} has computed {work:,} pixels of {most}, in windows of {tuple(window)}. "
        "Give that a smaller window=, or neither window= nor store=; from afar, give coarsen(..., sources=) a coarser "
        "tensor. t.plan(region) lists the work",
        stacklevel=_level_of_caller(),
    )


def warn_of_windows(names: str, window: Sequence[int]) -> None:
    """Warn that a map must be computed in windows, because its results depend on the region."""
    warnings.warn(
        f"{names} is computed in windows of {tuple(window)}: results of fn near the border of its region depend on "
        "pixels beyond the halo, or on the size of the region. Give a larger halo=, or window= if you want windows",
        stacklevel=_level_of_caller(),
    )


def warn_of_conflicts(spec: TensorSpec, what: Sequence[str]) -> None:
    """Issue a MeaningLostWarning for inputs with conflicting metadata.

    `what` contains the names of all pixel metadata with different values in different inputs.
    """
    warnings.warn(
        f"tensor {spec.tensor_id!r}: its inputs disagree about {', '.join(what)}, so the tensor keeps none of these",
        MeaningLostWarning,
        stacklevel=_level_of_caller(),
    )


def warn_of_other_meaning(tensor_id: str, stored: Definition, given: Definition, store: object) -> None:
    """Issue a MeaningLostWarning for metadata that differs from the metadata of the stored tensor."""
    what = contradictions(stored.meaning, given.meaning)
    if what:
        warnings.warn(
            f"tensor {tensor_id!r}: {store} has stored other metadata of it, and keeps {', '.join(what)} as stored. "
            f"Only this object has the new values. To store them, call store.clear_tensor({tensor_id!r}) first, or "
            "give another tensor_id",
            MeaningLostWarning,
            stacklevel=_level_of_caller(),
        )


def warn_of_lost(target: str, what: Sequence[str]) -> None:
    """Issue a MeaningLostWarning if metadata is not written to `target`.

    `what` lists the lost metadata of the pixels or of their sources.
    """
    if what:
        warnings.warn(
            f"{target} is without {', '.join(what)}: the format cannot store this metadata, or the metadata does not "
            "apply to the computed pixels",
            MeaningLostWarning,
            stacklevel=_level_of_caller(),
        )


def warn_of_uncovered(spec: TensorSpec) -> None:
    """Issue an UncoveredPixelsWarning if some pixels have no window."""
    count, block = spec.grid.uncovered, spec.grid.block
    if not count:
        return
    warnings.warn(
        f"tensor {spec.tensor_id!r}: no window covers {count} of the {math.prod(block)} pixels of "
        f"{'each block' if None in spec.shape else 'its shape'} {block}; uncovered pixels are "
        f"{spec.definition.fill or 0}. Give {', and '.join(_remedies(spec.grid))}",
        UncoveredPixelsWarning,
        stacklevel=_level_of_caller(),
    )


def warn_of_seams(spec: TensorSpec, args: Sequence[Any]) -> None:
    """Issue a warning if windows around a dimension whose ends join do not meet themselves.

    The ends join if the edge is "all" and the padding of an arg "wrap".
    """
    edges = spec.definition.edge or ("drop",) * len(spec.shape)
    joined = {
        k: (d, extent, stride)
        for d, (k, _, stride, _, extent) in enumerate(spec.grid.dimensions)
        if k is not None and extent is not None and edges[d] == "all"
    }
    for arg, given in zip(args, spec.definition.args, strict=True):
        wrapped = [at for at, padding in enumerate(given.padding or ()) if padding.mode == "wrap"]
        for at, k in [(at, k) for at in wrapped if (k := followed(given.window)[at]) in joined]:
            d, extent, stride = joined[k]
            turns, rest = divmod(extent, stride)
            if rest or turns * given.window.stride[at] % arg.shape[at]:
                warnings.warn(
                    f"tensor {spec.tensor_id!r}: dimension {d} of {extent} pixels wraps around, but windows do not "
                    f"repeat there, so pixels near its ends depend on where it is cut. Give a stride that divides "
                    f"{extent}, or an extent that is a multiple of the stride {stride}",
                    stacklevel=_level_of_caller(),
                )


def _remedies(grid: WindowGrid) -> Iterator[str]:
    clipped = WindowGrid(grid.window, grid.shape, ("clip",) * len(grid.shape))
    if clipped.uncovered < grid.uncovered:
        yield 'edge="clip" to let windows reach past the end'
    gaps = [d for d in range(len(grid.shape)) if clipped.alone(d).uncovered]
    moved = [d for d in gaps if followed(grid.window)[d] is not None]
    if moved:
        yield "a stride of at most the size to leave no gaps"
    if len(gaps) > len(moved):
        yield "a size and an offset that span the dimensions kept in place by dimension_map"
    if clipped.uncovered and not gaps:
        yield "another dimension_map, because windows along a diagonal miss the other pixels"


def _level_of_caller() -> int:
    """Return the `stacklevel` of the user's code, the caller of this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("infinite_tensor."):
        level, frame = level + 1, frame.f_back
    return level


def unknown_tensor(tensor_id: str, known: Sequence[str], store: object) -> StoreError:
    """Create the error for an unknown tensor id."""
    more = f" and {len(known) - _MOST_LISTED:,} more" if len(known) > _MOST_LISTED else ""
    folded = {each.casefold(): each for each in known[:_MOST_COMPARED]}
    close = difflib.get_close_matches(tensor_id.casefold(), folded, n=1)
    guess = f"; did you mean {folded[close[0]]!r}?" if close else ""
    return StoreError(
        f"{store} contains no tensor {tensor_id!r}; it contains {list(known[:_MOST_LISTED])}{more}{guess}"
    )


def mismatch(tensor_id: str, lines: Sequence[str], store: object, changed_args: Sequence[str] = ()) -> ValidationError:
    """Create the error for a tensor id already used with another definition.

    `lines` describes the differences between the definitions, and `changed_args` the args with a changed definition.
    """
    listed = "".join(f"\n  {line}" for line in lines)
    stale = advice = ""
    if changed_args:
        stale = (
            f"The stored tensor is stale: the definition or version of {' and '.join(changed_args)}, or of a tensor "
            "further upstream, has changed.\n"
        )
        advice = (
            " If only some regions of an arg have changed, leave its definition unchanged, and call its "
            "invalidate(region)."
        )
    if any(line.startswith("tile_size:") for line in lines):
        advice += " To keep the stored tile_size, leave out tile_size."
    if any(line.startswith("dims:") for line in lines):
        advice += " To keep the stored names, leave out dims."
    return ValidationError(
        f"{store} already contains a tensor {tensor_id!r} with another definition:{listed}\n{stale}"
        "Give the new tensor another tensor_id, or delete the stored one with "
        f"store.clear_tensor({tensor_id!r}, dependants=True).{advice}"
    )


def warn_of_dependants(tensor_id: str, names: Sequence[str], store: object) -> None:
    """Issue a DependantsRemainWarning for the readers `names` of a cleared tensor."""
    listed = ", ".join(map(repr, names[:_MOST_NAMED])) + ", ..." * (len(names) > _MOST_NAMED)
    warnings.warn(
        f"{store}: tensor {tensor_id!r} was cleared, but tensors computed from it are kept unchanged: {listed}. If "
        f"the pixels of {tensor_id!r} will differ, clear these tensors too: "
        f"store.clear_tensor({tensor_id!r}, dependants=True)",
        DependantsRemainWarning,
        stacklevel=_level_of_caller(),
    )


def keeps_no_times(store: object) -> ValidationError:
    """Create the error for an age limit on storage without recorded times."""
    return ValidationError(
        f"{store} does not record times of writing; give older_than=0 to delete all partial tiles, but only while "
        "nobody fills a tensor of the store"
    )


def lacking(store: object, *methods: str) -> NotImplementedError:
    """Create the error for methods that the author of a backend has not written."""
    return NotImplementedError(f"the backend of {store} does not implement {', '.join(methods)}")
