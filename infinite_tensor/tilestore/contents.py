"""What a store can be asked of the tensors that it holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from infinite_tensor.boxes import Index
from infinite_tensor.errors import StoreError
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tilestore.inventory import Inventory
from infinite_tensor.tilestore.report import Damage, Garbage, TensorInfo


class StoreContents(ABC):
    """Tells what is stored, of a tensor, of a region, and of the whole store, and looks after it.

    Nothing of it runs ``f``.
    """

    _closed: bool

    @abstractmethod
    def tensor_ids(self) -> list[str]:
        """Ids of all tensors in the store, sorted."""

    @abstractmethod
    def tensor_definition(self, tensor_id: str) -> dict[str, Any]:
        """The definition of one tensor as JSON; StoreError if there is none of that id."""

    @abstractmethod
    def tensor_info(self, tensor_id: str) -> TensorInfo:
        """What is known and stored of one tensor; StoreError if there is none of that id."""

    def verify(self, tensor_id: str, *, repair: bool = False) -> list[Damage]:  # noqa: ARG002  (nothing decays in memory)
        """Read everything that is stored of a tensor, and list what is damaged.

        Other processes may go on meanwhile. A damaged tile that one of them has just replaced may be dropped all
        the same by a repair, and is then computed once more.

        Parameters
        ----------
        tensor_id : str
            Its id.
        repair : bool
            Drop what is damaged, so that it is computed again when it is needed; mend what can be mended.

        Returns
        -------
        list of Damage
            Empty where everything is as it was written.

        Raises
        ------
        StoreError
            If the store holds no tensor of that id, or cannot be read.
        """
        self.tensor_definition(tensor_id)
        return []

    @abstractmethod
    def specs_downstream(self) -> list[TensorSpec]:
        """The tensors of the store that are computed from others or beside others, as far as known, and maybe more."""

    def written(self, tensor_id: str) -> tuple[int, int]:  # noqa: ARG002  (memory is nowhere to write to)
        """How many complete tiles of a tensor this object has stored so far, and all bytes, not compressed."""
        return 0, 0

    @abstractmethod
    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """What is stored of the tiles that hold the pixels ``[start, stop)``, of which there is at least one.

        Reads no pixel of a complete tile.
        """

    def unfinished(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> list[Index]:  # noqa: ARG002
        """Tiles of a region of which parts are stored, in lexicographic order; some may be complete by now."""
        return []

    def is_complete(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> bool:  # noqa: ARG002
        """Whether all tiles that hold the pixels ``[start, stop)`` are stored; False is a maybe. Reads none of them."""
        return False

    def gc(self) -> Garbage:
        """Delete what no tensor of the store refers to: leavings of processes that were killed or cleared a tensor.

        Other processes may go on reading and filling the store; none should be creating tensors meanwhile.
        """
        self._check_open()
        return Garbage()

    @property
    def closed(self) -> bool:
        """Whether it has been closed, and not been opened again."""
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self!r} is closed; open it again with `with store:`")
