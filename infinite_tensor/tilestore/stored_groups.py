"""What a store keeps of groups: small definitions that name tensors, apart from the tensors themselves."""

from __future__ import annotations

import threading
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.tilestore.contents import StoreContents
from infinite_tensor.tilestore.failures import stored_errors
from infinite_tensor.visits import looking, visited

if TYPE_CHECKING:
    from infinite_tensor.groups import TensorGroup
    from infinite_tensor.tensor import InfiniteTensor


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
            "_list_groups, see infinite_tensor.tilestore.stored_groups"
        )


class StoredGroups(StoreContents, GroupBackend):
    """Opening, listing and deleting the groups of a store."""

    group_opener: ClassVar[Callable[..., TensorGroup]]
    """Set by `infinite_tensor.reopen`, which stands above the stores and builds on them."""

    read_only: bool
    _lock: threading.RLock

    def open_group(
        self,
        group_id: str,
        f: Mapping[Any, Callable[..., Any]] | None = None,
        *,
        members: Mapping[Any, InfiniteTensor] | None = None,
        stores: Sequence[Any] = (),
        device: torch.device | str = "cpu",
    ) -> TensorGroup:
        """Reopen a group from its id, with its tensors, from theirs.

        Parameters
        ----------
        group_id : str
            Its id, one of `group_ids`.
        f : mapping, optional
            From keys to the functions that compute what is missing. A tensor without one is readable as far as it is
            stored.
        members : mapping, optional
            From keys to tensors that take the place of those that would be opened. They must be the same ones.
        stores : sequence of TileStore, optional
            Where else tensors of the group are looked for. A group names no stores but its own.
        device : torch.device or str
            As for `open`.

        Raises
        ------
        StoreError
            If the store holds no group of that id, or a tensor cannot be opened, or is another one by now.
        ValidationError
            If an argument does not fit.
        """
        return type(self).group_opener(self, group_id, f, members, stores, device)

    @looking
    def group_ids(self) -> list[str]:
        """Ids of all groups in the store, sorted."""
        self._check_open()
        with stored_errors(self, "list", None):
            return sorted(self._list_groups())

    @visited
    def clear_group(self, group_id: str) -> None:
        """Delete a group; its tensors stay. An id that is not known is no error."""
        self._check_open()
        if self.read_only:
            raise ValidationError(f"{self!r} is read-only: it cannot clear group {group_id!r}; open it with mode='r+'")
        with self._lock, stored_errors(self, "delete", None, group_id=group_id):
            self._delete_group(group_id)
            self._flush_groups()

    @looking
    def stored_group(self, group_id: str) -> dict[str, Any] | None:
        """The definition of a group as it is stored, not checked; None where there is none."""
        self._check_open()
        with self._lock, stored_errors(self, "read", None, group_id=group_id):
            return self._read_group(group_id)

    @visited
    def store_group(self, group_id: str, definition: dict[str, Any]) -> dict[str, Any]:
        """Create a group, unless there is one; the definition that the store holds from then on."""
        self._check_open()
        if self.read_only:
            raise ValidationError(f"{self!r} is read-only: it cannot save group {group_id!r}; open it with mode='r+'")
        with self._lock, stored_errors(self, "save", None, group_id=group_id):
            found = self._read_group(group_id)
            if found is None:
                self._write_group(group_id, definition)
                self._flush_groups()
                # Another process may have been first; its definition holds.
                found = self._read_group(group_id)
        if found is None:
            raise StoreError(f"{self!r}: group {group_id!r} was created and is gone again; try once more")
        return found

    def _flush_groups(self) -> None:
        """Bring what was written of groups to where a crash of the process cannot harm it."""
