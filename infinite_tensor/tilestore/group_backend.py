"""The methods by which a store keeps groups."""

from __future__ import annotations

from abc import ABC
from typing import Any


class GroupBackend(ABC):  # noqa: B024  (nothing of it has to be overridden)
    """The methods by which a store keeps groups; a backend that does not override them keeps none.

    They move definitions, which are dicts that JSON can hold, and have nothing to do with those of tensors: a group and
    a tensor may have the same id.
    """

    def _read_group(self, group_id: str) -> dict[str, Any] | None:  # noqa: ARG002  (for those that override it)
        """The definition that was written for a group, or None; StoreError if it is damaged."""
        raise self._keeps_no_groups()

    def _write_group(self, group_id: str, definition: dict[str, Any]) -> None:  # noqa: ARG002  (likewise)
        """Create a group. Where another process has just created it, leave that one's definition."""
        raise self._keeps_no_groups()

    def _delete_group(self, group_id: str) -> None:  # noqa: ARG002  (likewise)
        """Delete a group; one that does not exist is no error."""
        raise self._keeps_no_groups()

    def _list_groups(self) -> list[str]:
        """Ids of all groups."""
        raise self._keeps_no_groups()

    def _keeps_no_groups(self) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} keeps no groups: it needs the methods _read_group, _write_group, _delete_group and "
            "_list_groups, see infinite_tensor.tilestore.group_backend"
        )
