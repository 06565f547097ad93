"""A blob as an InfiniteTensor: a snapshot of its first rows, read from the blocks of the blob."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from infinite_tensor.engine.chain import TensorInStore
from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.batching import Batching
from infinite_tensor.geometry.points import Index, IntArray
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.geometry.window_sets import BoxUnion
from infinite_tensor.support.allocation import Array
from infinite_tensor.support.interrupts import Mark
from infinite_tensor.tensor import InfiniteTensor, tensors_of
from infinite_tensor.tilestore import TensorInfo, TileStore
from infinite_tensor.tilestore.contents import Access, Contents
from infinite_tensor.tilestore.inventory import Dropped, Inventory, StoredSize
from infinite_tensor.tilestore.layout import TileLayout
from infinite_tensor.values.definition import Definition, functions_of
from infinite_tensor.values.spec import TensorSpec
from infinite_tensor_stores.blobs.location import Location
from infinite_tensor_stores.blobs.opening import opened
from infinite_tensor_stores.blobs.rows import Rows


def tensor_of(rows: Rows, count: int) -> InfiniteTensor:
    """The first rows of a blob that is open for reading, and is left to the tensor."""
    header = rows.header
    definition = Definition(
        shape=(count, *header.shape),
        dtype=header.dtype,
        output_window=TensorWindow((1, *header.shape)),
        args=(),
        blend=None,
        blend_init=None,
        version=header.version,
        functions=functions_of(None, None, ()),
    )
    spec = TensorSpec(f"blob-{header.incarnation}-{count}", definition, torch.device("cpu"))
    stored = TensorInStore(spec, BlobStore(BlobContents(rows, spec)), named=False)
    (tensor,) = tensors_of([stored], None, Batching.of(None), ())
    return tensor


class BlobStore(TileStore):
    """Serves the rows of one blob as those of a tensor; see `BlobContents`."""

    contents: BlobContents

    def __str__(self) -> str:
        return str(self.contents)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference."""
        rows = self.contents.rows
        return _reopened, (rows.location, rows.most_blocks, self.contents.spec)


def _reopened(location: Location, most_blocks: int, spec: TensorSpec) -> BlobStore:
    return BlobStore(BlobContents(opened(location, most_blocks), spec))


class BlobContents(Contents):
    """The rows of one blob, for the engine; it computes and keeps nothing.

    Parameters
    ----------
    rows : Rows
        Of a blob that is open for reading.
    spec : TensorSpec
        The one tensor. The version in its definition is that of the blob when the snapshot was taken.
    """

    cache_limit = 0
    """What the blob holds is limited by `max_cached_blocks`."""

    def __init__(self, rows: Rows, spec: TensorSpec) -> None:
        super().__init__(read_only=True)
        self.rows = rows
        self.spec = spec

    def __repr__(self) -> str:
        return f"BlobStore({self.rows.location!r})"

    def register(self, spec: TensorSpec) -> TensorSpec:
        """It knows the one tensor."""
        return spec

    def access(self, spec: TensorSpec) -> Access:
        """Begin a read.

        Raises
        ------
        StoreError
            If rows of the blob have been overwritten or truncated since the snapshot was taken.
        """
        self.check_open()
        self.rows.refresh()
        access = BlobAccess(self.rows, spec)
        access.check()
        return access

    def layout(self, spec: TensorSpec) -> TileLayout:
        """Tiles are blocks."""
        header = self.rows.header
        return TileLayout(spec.shape, (min(header.block_size, spec.shape[0] or 1), *header.shape), spec.dtype)

    def stored_size(self, tensor_id: str, definition: dict[str, Any], most: int) -> StoredSize:  # noqa: ARG002  (known)
        """How many blocks there are."""
        self.check_open()
        info = self.info_of(tensor_id)
        return StoredSize(info.tiles_complete, info.bytes_stored)

    def inventory(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> Inventory:
        """All is there."""
        layout = self.layout(spec)
        return Inventory(layout, frozenset(itertools.product(*map(range, *layout.box(start, stop)))))

    def is_complete(self, spec: TensorSpec, start: Sequence[int], stop: Sequence[int]) -> bool:  # noqa: ARG002
        """All is there."""
        return True

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

    def delete(self, tensor_id: str) -> None:
        """ValidationError, likewise."""
        self.check_writable(f"delete tensor {tensor_id!r}")

    def tensor_ids(self, prefix: str = "") -> list[str]:
        """The one tensor."""
        return [self.spec.tensor_id] if self.spec.tensor_id.startswith(prefix) else []

    def holds(self, tensor_id: str) -> bool:
        """Whether it is the one tensor."""
        return tensor_id == self.spec.tensor_id

    def definition_of(self, tensor_id: str) -> dict[str, Any]:
        """The definition of the one tensor."""
        if tensor_id != self.spec.tensor_id:
            raise StoreError(f"{self!r} holds {self.tensor_ids()}, not {tensor_id!r}")
        return dict(self.spec.definition.to_json())

    def info_of(self, tensor_id: str) -> TensorInfo:
        """What is known of the one tensor."""
        definition, header = self.definition_of(tensor_id), self.rows.header
        size = header.blocks * header.block_bytes
        return TensorInfo(tensor_id, definition, header.blocks, 0, size, repr(self.rows.location))

    def digest_of(self, tensor_id: str) -> str | None:
        """What the one tensor is."""
        return self.spec.definition.digest if tensor_id == self.spec.tensor_id else None

    def specs_downstream(self) -> list[TensorSpec]:
        """Nothing here is computed from anything."""
        return []

    def close(self, *, discard: bool) -> None:  # noqa: ARG002
        """Close the blob."""
        self.closed = True
        self.rows.close()


class BlobAccess(Access):
    """One read's view of a blob, of which nothing is ever missing; the arguments are those of `BlobContents`."""

    outdated = False

    def __init__(self, rows: Rows, spec: TensorSpec) -> None:
        self._rows = rows
        self._definition = spec.definition

    def check(self) -> None:
        """StoreError if the rows are not those of the snapshot, as far as is known."""
        header, count = self._rows.header, self._definition.shape[0] or 0
        if header.version != self._definition.version or header.changing or header.rows < count:
            raise StoreError(
                f"{self._rows.location!r} has been overwritten or truncated since a tensor was made of its first "
                f"{count} rows; make another one, and with another id what is computed from it"
            )

    def add(self, starts: IntArray, stops: IntArray) -> IntArray:  # noqa: ARG002
        """No window is missing."""
        return starts[:0]

    def whole(self, tiles: Sequence[Index]) -> list[Index]:
        """All of them are."""
        return list(tiles)

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
            rows = self._rows.read(range(start[0], start[0] + len(out)))
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
