"""What the repr of a store lists: some of what it holds, in a line, whatever state the store is in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infinite_tensor.support.tables import count_of, shown_id
from infinite_tensor.tilestore.contents import Contents

_MOST_LISTED = 12
_MOST_CHARACTERS = 40
"""Of an id; it may have any number."""


def listing(found: Callable[[], Contents]) -> str:
    """Up to a dozen of the tensors of a store, and how many more there may be. Raises nothing."""
    try:
        contents = found()
        if contents.closed:
            return "closed"
        ids, more = contents.some_ids(_MOST_LISTED)
    except Exception as error:  # noqa: BLE001  (a debugger may show a store that is half made, or half gone)
        return f"what it holds cannot be listed ({type(error).__name__})"
    if not ids:
        return "no tensors" if not more else f"up to {count_of(more)} tensors"
    return f"{_counted(ids, more)} {', '.join(map(_shown, ids))}{f' and up to {count_of(more)} more' if more else ''}"


def _counted(ids: Sequence[str], more: int) -> str:
    if more:
        return "tensors"
    return "1 tensor" if len(ids) == 1 else f"{len(ids)} tensors"


def _shown(tensor_id: str) -> str:
    shown = shown_id(tensor_id)
    if shown != tensor_id:
        return shown
    return repr(tensor_id if len(tensor_id) <= _MOST_CHARACTERS else f"{tensor_id[:_MOST_CHARACTERS]}...")
