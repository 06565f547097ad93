"""Errors and warnings of stores. Each says what is wrong, and what to do."""

from __future__ import annotations

import difflib
import math
import sys
import warnings
from collections.abc import Iterator, Sequence

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
"""The most failures that one error shows in full. There may be thousands, one for each batch."""


def combined(failures: Sequence[StoreError]) -> StoreError:
    """Combine errors into one that has their messages, and the cause of the first error."""
    if len(failures) == 1:
        return failures[0]
    lines = [f"\n  {failure}" for failure in failures[:_TOLD]]
    if len(failures) > _TOLD:
        lines.append(f"\n  and {len(failures) - _TOLD} more")
    error = StoreError(f"{len(failures)} writes have failed:{''.join(lines)}")
    error.__cause__ = failures[0].__cause__
    return error


def damaged_definition(store: object, tensor_id: str, where: str, error: ValueError) -> StoreError:
    """The error for a definition that cannot be read."""
    return StoreError(
        f"{store}: the definition of tensor {tensor_id!r}, {where}, is damaged ({error}); restore an intact one "
        f"from a backup, or delete the whole tensor with clear_tensor({tensor_id!r})"
    )


def damaged_group(store: object, group_id: str, where: str, error: ValueError) -> StoreError:
    """The error for a group that cannot be read."""
    return StoreError(
        f"{store}: group {group_id!r}, {where}, is damaged ({error}); delete it with clear_group({group_id!r}), which "
        "keeps its tensors, and save it again"
    )


def in_the_way(store: object, where: str, what: str) -> StoreError:
    """The error that the tensor or group `what` cannot be kept at `where`, because another program has data there."""
    return StoreError(
        f"{store}: {where!r} is not of this library, but is where {what} is kept; choose another id, or move it away"
    )


def cleared_elsewhere(store: object, tensor_id: str) -> StoreError:
    """The error for writing to or reading from a tensor that is no longer stored."""
    return StoreError(
        f"{store}: tensor {tensor_id!r} is gone: it has been cleared, or the whole store has vanished. "
        f"clear_tensor({tensor_id!r}) drops what is left of it in memory; if the store has vanished, open it again; "
        "then build the tensor again"
    )


def remade_elsewhere(store: object, tensor_id: str) -> StoreError:
    """The error for a tensor that was cleared and recreated elsewhere."""
    return StoreError(
        f"{store}: tensor {tensor_id!r} has been cleared and recreated elsewhere; "
        "close(discard=True) this store, and open it again to use the new tensor"
    )


def changed_meanwhile(store: object, tensor_id: str) -> StoreError:
    """The error for a tensor that was cleared or invalidated while it was copied."""
    return StoreError(f"{store}: tensor {tensor_id!r} was cleared or invalidated while it was copied; copy it again")


def vanished(store: object) -> StoreError:
    """The error for a store that was deleted while it was open."""
    return StoreError(f"{store}: the store has vanished since it was opened; open it again to start with an empty one")


def warn_of_damage(store: object, what: str) -> None:
    """Issue a DamagedDataWarning for something that cannot be read."""
    message = f"{store}: {what}; it is treated as missing, and computed again if the tensor has its f"
    # Python may show a warning only once; the log has all of them.
    LOG.debug("%s", message)
    warnings.warn(message, DamagedDataWarning, stacklevel=3)


def check_same(tensor_id: str, stored: Definition, given: Definition, store: object) -> None:
    """Raise ValidationError with all differing fields, unless both definitions give the same values."""
    if not same(stored, given):
        lines = differences(stored.values(), given.values())
        raise mismatch(tensor_id, lines, store, changed_args(stored, given))


def changed_args(stored: Definition, given: Definition) -> list[str]:
    """Describe, for messages, each given arg whose definition differs from the stored one."""
    pairs = enumerate(zip(stored.args, given.args, strict=False))
    return [
        f"args[{at}] ({'without a tensor_id' if new.tensor_id is None else repr(new.tensor_id)})"
        for at, (old, new) in pairs
        if old.digest != new.digest
    ]


def check_functions(tensor_id: str, stored: Functions, given: Functions, store: object) -> None:
    """Compare the given functions of a tensor with the functions that computed its stored pixels.

    Raises ValidationError if a changed value makes the stored pixels wrong. Every other change issues a
    FunctionChangedWarning.
    """
    found = changes(stored.record, given.record)
    if found.firm:
        listed = "".join(f"\n  {line}" for line in found.firm)
        raise ValidationError(
            f"{store} already holds a tensor {tensor_id!r}, which was computed from other values:{listed}\n"
            "Give another tensor_id, or delete what is stored, and what was computed from it, with "
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
            "it yourself, give a source name=, or set version= if f contains it",
        )


def _warn_of_change(tensor_id: str, what: str) -> None:
    warnings.warn(
        f"tensor {tensor_id!r}: {what}. Stored pixels are used unchanged, and missing ones are computed anew beside "
        f"them. To recompute all, call store.clear_tensor({tensor_id!r}, dependants=True), or give another tensor_id",
        FunctionChangedWarning,
        stacklevel=_level_of_caller(),
    )


def warn_of_opaque(spec: TensorSpec) -> None:
    """Issue a FunctionChangedWarning if a stored tensor is computed from objects whose changes cannot be detected."""
    opaque = spec.definition.functions.record.opaque
    if opaque:
        warnings.warn(
            f"tensor {spec.tensor_id!r}: changes of {', '.join(opaque[:_MOST_NAMED])} cannot be detected, because it "
            "cannot be inspected: after a change, old pixels would be used. Set version= to anything that identifies "
            "it, such as the hash of a checkpoint",
            FunctionChangedWarning,
            stacklevel=_level_of_caller(),
        )


def warn_of_other_code(spec: TensorSpec) -> None:
    """Issue a FunctionChangedWarning for a tensor whose ``f`` no longer has the code that it had when it was built."""
    _warn_of_change(spec.tensor_id, "the code of its f has been replaced since the tensor was built")


def warn_of_conflicts(spec: TensorSpec, what: Sequence[str]) -> None:
    """Issue a MeaningLostWarning if inputs disagree about the meaning of pixels."""
    warnings.warn(
        f"tensor {spec.tensor_id!r}: its inputs disagree about {', '.join(what)}, so the tensor keeps none of these",
        MeaningLostWarning,
        stacklevel=_level_of_caller(),
    )


def warn_of_lost(target: str, what: Sequence[str]) -> None:
    """Issue a MeaningLostWarning if metadata of the pixels, or of their sources, is not written."""
    if what:
        warnings.warn(
            f"{target} is without {', '.join(what)}: the format has no place for this metadata, or it does not "
            "apply to the computed pixels",
            MeaningLostWarning,
            stacklevel=_level_of_caller(),
        )


def warn_of_uncovered(spec: TensorSpec) -> None:
    """Issue an UncoveredPixelsWarning if no window covers some pixels of a tensor's finite dimensions."""
    count = spec.grid.uncovered
    if not count:
        return
    finite = [extent for extent in spec.shape if extent is not None]
    where = "" if len(finite) == len(spec.shape) else " for each position along the unbounded ones"
    warnings.warn(
        f"tensor {spec.tensor_id!r}: no window covers {count} of the {math.prod(finite)} pixels of its finite "
        f"dimensions {tuple(finite)}{where}; uncovered pixels are {spec.definition.fill or 0}. Give "
        f"{', and '.join(_remedies(spec.grid))}",
        UncoveredPixelsWarning,
        stacklevel=_level_of_caller(),
    )


def _remedies(grid: WindowGrid) -> Iterator[str]:
    """Suggest arguments with which windows cover more pixels."""
    clipped = WindowGrid(grid.window, grid.shape, ("clip",) * len(grid.shape))
    if clipped.uncovered < grid.uncovered:
        yield 'edge="clip", which lets windows reach past the end'
    gaps = [d for d, extent in enumerate(grid.shape) if extent is not None and clipped.alone(d).uncovered]
    moved = [d for d in gaps if followed(grid.window)[d] is not None]
    if moved:
        yield "a stride of at most the size, which leaves no gaps"
    if len(gaps) > len(moved):
        yield "a size and an offset that span the dimensions which dimension_map keeps in place"
    if clipped.uncovered and not gaps:
        yield "another dimension_map, because windows that move along a diagonal miss the other pixels"


def _level_of_caller() -> int:
    """Return the `stacklevel` with which a warning shows the line of the user's code that called this package."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001  (other ways are slower)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("infinite_tensor."):
        level, frame = level + 1, frame.f_back
    return level


def unknown_tensor(tensor_id: str, known: Sequence[str], store: object) -> StoreError:
    """The error for an unknown tensor id."""
    more = f" and {len(known) - _MOST_LISTED:,} more" if len(known) > _MOST_LISTED else ""
    folded = {each.casefold(): each for each in known[:_MOST_COMPARED]}
    close = difflib.get_close_matches(tensor_id.casefold(), folded, n=1)
    guess = f"; did you mean {folded[close[0]]!r}?" if close else ""
    return StoreError(f"{store} holds no tensor {tensor_id!r}; it holds {list(known[:_MOST_LISTED])}{more}{guess}")


def mismatch(tensor_id: str, lines: Sequence[str], store: object, changed_args: Sequence[str] = ()) -> ValidationError:
    """The error for an id that is taken by a tensor with another definition."""
    listed = "".join(f"\n  {line}" for line in lines)
    stale = advice = ""
    if changed_args:
        stale = (
            f"The stored tensor is stale: {' and '.join(changed_args)} has changed since it was computed, in its "
            "version, in the rest of its definition, or further upstream.\n"
        )
        advice = (
            " If only some regions of an arg have changed, leave its definition unchanged, and call its "
            "invalidate(region)."
        )
    if any(line.startswith("tile_size:") for line in lines):
        advice += " Without a tile_size, a stored tensor keeps the one it has."
    if any(line.startswith("dims:") for line in lines):
        advice += " Without dims, a stored tensor keeps the names it has."
    return ValidationError(
        f"{store} already holds a tensor {tensor_id!r} with another definition:{listed}\n{stale}"
        "Give the new tensor another tensor_id, or delete the stored one with "
        f"store.clear_tensor({tensor_id!r}, dependants=True).{advice}"
    )


def warn_of_dependants(tensor_id: str, names: Sequence[str], store: object) -> None:
    """Issue a DependantsRemainWarning for tensors that read a tensor which has just been cleared."""
    listed = ", ".join(map(repr, names[:_MOST_NAMED])) + ", ..." * (len(names) > _MOST_NAMED)
    warnings.warn(
        f"{store}: tensor {tensor_id!r} is cleared, but {listed} {'is' if len(names) == 1 else 'are'} computed from "
        f"it and kept unchanged. If the pixels of {tensor_id!r} will differ, clear those tensors too: "
        f"store.clear_tensor({tensor_id!r}, dependants=True)",
        DependantsRemainWarning,
        stacklevel=_level_of_caller(),
    )


def keeps_no_times(store: object) -> ValidationError:
    """The error for deleting old partial tiles on storage that records no times."""
    return ValidationError(
        f"{store} does not record when something was stored: give older_than=0 to delete all partial tiles, "
        "at a time when nobody fills a tensor there"
    )
