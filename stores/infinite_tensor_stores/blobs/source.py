"""A blob as an InfiniteTensor: a snapshot of its first rows, read from the blocks of the blob."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.batching import Batching
from infinite_tensor.engine.chain import Computation, Member
from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import IntArray
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.support.arrays import Array
from infinite_tensor.support.waiting import Mark
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import TensorInfo, TileStore
from infinite_tensor.tilestore.access import Access
from infinite_tensor.tilestore.contents import Contents
from infinite_tensor.tilestore.inventory import Inventory
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.tilestore.report import Dropped
from infinite_tensor.values.definition import Definition, functions_of
from infinite_tensor.values.spec import TensorSpec
from infinite_tensor_stores.blobs.rows import Rows


class OpenBlob(Protocol):
    """A `TensorBlob` that is open for reading, for what a tensor needs of it."""

    _rows: Rows

    @property
    def name(self) -> str:
        """Where it is."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row."""

    @property
    def block_size(self) -> int:
        """Rows of a block."""

    def refresh(self) -> int:
        """Look for what others have written since."""

    def close(self) -> None:
        """End its use."""


def rows_read_by(blob: OpenBlob) -> Rows:
    """What a blob is read by, of which its users have no use."""
    return blob._rows  # noqa: SLF001


def tensor_of(blob: OpenBlob, rows: int) -> InfiniteTensor:
    """The first rows of a blob that is open for reading, and is left to the tensor."""
    header = rows_read_by(blob).header
    shape = (rows, *header.shape)
    definition = Definition(
        shape=shape,
        dtype=header.dtype,
        output_window=TensorWindow((1, *header.shape)),
        args=(),
        blend=None,
        blend_init=None,
        version={"blob": header.incarnation, "edits": header.edits},
        functions=functions_of(None, None, ()),
    )
    spec = TensorSpec(f"blob-{header.incarnation}-{rows}", definition, torch.device("cpu"))
    members = [Member(spec, BlobStore(blob, header.version))]
    (node,) = Computation.registered(members, None, Batching.of(None), []).nodes
    return InfiniteTensor.of_node(node, (), named=False)


class BlobStore(TileStore):
    """Serves the rows of one blob as those of a tensor; see `BlobContents`."""

    def __init__(self, blob: OpenBlob, version: tuple[str, int]) -> None:
        super().__init__(BlobContents(blob, version))
        self._made_of = blob, version

    def __repr__(self) -> str:
        return repr(self.contents)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference."""
        return type(self), self._made_of


class BlobContents(Contents):
    """The rows of one blob, for the engine; it computes and keeps nothing.

    Parameters
    ----------
    blob : TensorBlob
        Open for reading.
    version : tuple of str and int
        Of its header, when the snapshot was taken.
    """

    def __init__(self, blob: OpenBlob, version: tuple[str, int]) -> None:
        super().__init__(read_only=True)
        self._blob = blob
        self._version = version
        self._spec: TensorSpec | None = None

    def __repr__(self) -> str:
        return f"BlobStore({self._blob.name!r})"

    def register(self, spec: TensorSpec) -> None:
        """Bind the one tensor."""
        self._spec = spec

    def access(self, spec: TensorSpec) -> Access:
        """Begin a read.

        Raises
        ------
        StoreError
            If rows of the blob have been overwritten or truncated since the snapshot was taken.
        """
        self.check_open()
        access = BlobAccess(self._blob, self._version, spec.shape[0] or 0)
        self._blob.refresh()
        access.check()
        return access

    def layout(self, spec: TensorSpec) -> TileLayout:
        """Tiles are blocks."""
        rows = min(self._blob.block_size, spec.shape[0] or 1)
        return TileLayout(spec.shape, (rows, *self._blob.shape), spec.dtype)

    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """All is there."""
        layout = self.layout(spec)
        return Inventory(layout, frozenset(itertools.product(*map(range, *layout.box(start, stop)))))

    def is_complete(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> bool:  # noqa: ARG002
        """All is there."""
        return True

    @property
    def cache_limit(self) -> int | None:
        """What the blob holds is limited by `max_cached_blocks`."""
        return 0

    def lend(self, mark: Mark, room: int) -> None:
        """It has a limit already."""

    def migrate(self, spec: TensorSpec, moved: TensorSpec) -> None:  # noqa: ARG002
        """ValidationError: a blob is as it is stored."""
        raise ValidationError(f"{self!r} cannot be moved to another dtype or device; convert what is read of it")

    def clear_cache(self, tensor_id: str) -> None:
        """Nothing is kept."""

    def check_writable(self, action: str) -> None:  # noqa: ARG002
        """ValidationError: what a blob holds cannot be computed again."""
        raise ValidationError(f"{self!r} holds what cannot be computed again; change the blob itself")

    def check_droppable(self, tensor_id: str) -> None:
        """ValidationError, likewise."""
        self.check_writable(f"drop tensor {tensor_id!r}")

    def drop(self, spec: TensorSpec, windows: BoxUnion) -> Dropped:  # noqa: ARG002
        """Never called: `check_droppable` refuses."""
        return Dropped()

    def tensor_ids(self) -> list[str]:
        """The one tensor."""
        return [] if self._spec is None else [self._spec.tensor_id]

    def definition_of(self, tensor_id: str) -> dict[str, Any]:
        """The definition of the one tensor."""
        if self._spec is None or self._spec.tensor_id != tensor_id:
            raise StoreError(f"{self!r} holds {self.tensor_ids()}, not {tensor_id!r}")
        return dict(self._spec.definition.to_json())

    def info_of(self, tensor_id: str) -> TensorInfo:
        """What is known of the one tensor."""
        definition = self.definition_of(tensor_id)
        header = rows_read_by(self._blob).header
        return TensorInfo(tensor_id, definition, header.blocks, 0, header.blocks * header.block_bytes, self._blob.name)

    def specs_downstream(self) -> list[TensorSpec]:
        """Nothing here is computed from anything."""
        return []

    def close(self, *, discard: bool) -> None:  # noqa: ARG002
        """Close the blob that it reads."""
        self.closed = True
        self._blob.close()

    def digest_of(self, tensor_id: str) -> str | None:
        """What the one tensor is."""
        return None if self._spec is None or self._spec.tensor_id != tensor_id else self._spec.definition.digest

    def delete(self, tensor_id: str) -> None:
        """ValidationError: what a blob holds cannot be computed again."""
        self.check_writable(f"delete tensor {tensor_id!r}")


class BlobAccess(Access):
    """One read's view of a blob, of which nothing is ever missing.

    Parameters
    ----------
    blob : TensorBlob
        Open for reading.
    version : tuple of str and int
        Of its header, when the snapshot was taken.
    rows : int
        How many belong to the snapshot.
    """

    outdated = False

    def __init__(self, blob: OpenBlob, version: tuple[str, int], rows: int) -> None:
        self._blob = blob
        self._rows = rows_read_by(blob)
        self._version = version
        self._count = rows

    def check(self) -> None:
        """StoreError if the rows are not those of the snapshot, as far as is known."""
        header = self._rows.header
        if header.version != self._version or header.changing or header.rows < self._count:
            raise StoreError(
                f"{self._blob!r} has been overwritten or truncated since a tensor was made of its first "
                f"{self._count} rows; make another one, and with another id what is computed from it"
            )

    def add(self, starts: IntArray, stops: IntArray) -> IntArray:  # noqa: ARG002
        """No window is missing."""
        return np.empty((0, starts.shape[1]), dtype=np.int64)

    def absent(self, windows: IntArray) -> npt.NDArray[np.bool_]:
        """No window is missing."""
        return np.zeros(len(windows), dtype=bool)

    def deposit(self, windows: IntArray, outputs: Array) -> None:  # noqa: ARG002
        """Never called: no window is missing."""
        raise AssertionError("a blob computes nothing")

    def read(self, start: Sequence[int], out: torch.Tensor) -> None:
        """Copy rows, or parts of them.

        Raises
        ------
        StoreError
            If rows of the blob have been overwritten or truncated meanwhile.
        """
        try:
            rows = self._rows.span(start[0], start[0] + len(out))
            self._rows.confirm()
        finally:
            self.check()
        out.copy_(rows[(slice(None), *(slice(a, a + n) for a, n in zip(start[1:], out.shape[1:], strict=True)))])

    def keep(self, start: Sequence[int] | None) -> None:
        """Nothing is held."""

    def detach(self) -> None:
        """Nothing is ever deposited."""

    def close(self) -> None:
        """Nothing is held."""
