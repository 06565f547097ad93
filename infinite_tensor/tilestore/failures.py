"""Telling what storage could not do: errors that name store, tensor and tile."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from infinite_tensor.errors import DamagedDataWarning, StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.interrupts import interrupts_shown

_TOLD = 5
"""Failures that one error tells in full; there may be one for each of thousands of batches."""


def combined(failures: Sequence[StoreError]) -> StoreError:
    """One error that tells of all of them, with the cause of the first."""
    if len(failures) == 1:
        return failures[0]
    lines = [f"\n  {failure}" for failure in failures[:_TOLD]]
    if len(failures) > _TOLD:
        lines.append(f"\n  and {len(failures) - _TOLD} more")
    error = StoreError(f"{len(failures)} writes have failed:{''.join(lines)}")
    error.__cause__ = failures[0].__cause__
    return error


class stored_errors(interrupts_shown):  # noqa: N801  (reads as a statement: ``with stored_errors(...)``)
    """Turns what storage raises into a StoreError that names store, tensor and tile; a ValidationError stays one."""

    def __init__(
        self,
        storage: object,
        action: str,
        tensor_id: str | None,
        tiles: Sequence[Index] = (),
        *,
        group_id: str | None = None,
    ) -> None:
        self._storage = storage
        self._action = action
        self._tensor_id = tensor_id
        self._tiles = tiles
        self._group_id = group_id

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, Exception) and not isinstance(error, StoreError | ValidationError):
            what = "its backend" if self._tensor_id is None else f"tensor {self._tensor_id!r}"
            if self._group_id is not None:
                what = f"group {self._group_id!r}"
            if self._tiles:
                more = f" and {len(self._tiles) - 1} more" if len(self._tiles) > 1 else ""
                what = f"tile {self._tiles[0]}{more} of {what}"
            kept = ""
            if self._action in ("store", "flush"):
                kept = ". Nothing stored is harmed; what was to be stored is kept in memory, flush to try again"
            raise StoreError(
                f"{self._storage!r} could not {self._action} {what}: {type(error).__name__}: {error}{kept}"
            ) from error


def damaged_definition(store: object, tensor_id: str, where: str, error: ValueError) -> StoreError:
    """The error for a definition that cannot be read, which names what can be done."""
    return StoreError(
        f"{store!r}: the definition of tensor {tensor_id!r}, {where}, is damaged ({error}); put an intact one back "
        f"from a backup, or delete all of the tensor by clear_tensor({tensor_id!r})"
    )


def damaged_group(store: object, group_id: str, where: str, error: ValueError) -> StoreError:
    """The error for a group that cannot be read, which names what can be done."""
    return StoreError(
        f"{store!r}: group {group_id!r}, {where}, is damaged ({error}); clear_group({group_id!r}) deletes it, its "
        "tensors stay, and it can be saved again"
    )


def in_the_way(store: object, where: str, what: str) -> StoreError:
    """The error for something of somebody else's where `what`, a tensor or a group, would lie."""
    return StoreError(
        f"{store!r}: {where!r} is not of this library, and lies where {what} is kept; choose another id, or move it "
        "away"
    )


def cleared_elsewhere(store: object, tensor_id: str) -> StoreError:
    """The error for a tensor that is not stored any more, of which something is to be stored or looked up."""
    return StoreError(
        f"{store!r}: tensor {tensor_id!r} is gone: it has been cleared, or the whole store has vanished. "
        f"clear_tensor({tensor_id!r}) drops what is left of it in memory; then build it again, in the store "
        "opened again if that has vanished"
    )


def remade_elsewhere(store: object, tensor_id: str) -> StoreError:
    """The error for a tensor in whose place there is another by now."""
    return StoreError(
        f"{store!r}: tensor {tensor_id!r} has been cleared and created again by somebody else; "
        "close(discard=True) this store, and open it again to go on with the new one"
    )


def vanished(store: object) -> StoreError:
    """The error for a store of which nothing is left."""
    return StoreError(
        f"{store!r}: the store has vanished since it was opened; open it again to begin with an empty one"
    )


def warn_of_damage(store: object, what: str) -> None:
    """DamagedDataWarning for something that cannot be read."""
    warnings.warn(f"{store!r}: {what}; it is treated as missing", DamagedDataWarning, stacklevel=3)
