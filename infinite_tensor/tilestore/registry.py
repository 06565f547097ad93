"""The tensors that a persistent store knows, each compared with what is stored under its id."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from infinite_tensor.boxes import Index
from infinite_tensor.definition import UnknownBlend, differences
from infinite_tensor.errors import DamagedDataWarning, StoreError
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tilestore.conflicts import changed_args, check_same, mismatch, unknown_tensor
from infinite_tensor.tilestore.failures import stored_errors
from infinite_tensor.tilestore.layout import Record, TileLayout, tile_shape_of
from infinite_tensor.tilestore.stored import FORMAT, StoredTensor

if TYPE_CHECKING:
    from infinite_tensor.tilestore.persistent import PersistentTileStore


_TILE_SIZE = 512
"""Of a new tensor, where none is given."""


class Registry:
    """Records of tensors by their ids, made from storage or with it.

    The storage is passed to each call that may use it, so that the registry does not keep a store alive.

    Attributes
    ----------
    records : dict of str to Record
        The tensors that the store object has been asked for.
    tile_sizes : dict of str to (int or tuple of int)
        Of tensors that are to have another tile size than the store's.
    """

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.tile_sizes: dict[str, int | Sequence[int]] = {}

    def record_of(self, storage: PersistentTileStore, spec: TensorSpec) -> Record:
        """The record of a tensor; ValidationError where what is stored under its id is another one."""
        record = self.records.get(spec.tensor_id)
        if record is None:
            record = self.records[spec.tensor_id] = self._find_or_create(storage, spec)
        check_same(spec.tensor_id, record.spec.definition, spec.definition, storage)
        tile, given = record.layout.tile_shape, self.given_tile(storage, spec)
        if given not in (None, tile):
            raise mismatch(spec.tensor_id, [f"tile_size: stored {list(tile)}, given {list(given)}"], storage)
        if isinstance(record.spec.blend, UnknownBlend):
            # Opened for reading before; now there is the blend to go on with.
            record.spec = spec
        return record

    def given_tile(self, storage: PersistentTileStore, spec: TensorSpec) -> Index | None:
        """The tile that a tensor is to have; None where nobody has said, so that it keeps the one it has."""
        for given in (spec.tile_size, self.tile_sizes.get(spec.tensor_id), storage.tile_size):
            if given is not None:
                return tile_shape_of(spec.shape, given)
        return None

    def digest_of(self, storage: PersistentTileStore, tensor_id: str) -> str | None:
        """What a tensor is, None where that cannot be told."""
        if tensor_id in self.records:
            return self.records[tensor_id].spec.definition.digest
        try:
            with stored_errors(storage, "read", tensor_id):
                stored = storage._read_definition(tensor_id)
            return None if stored is None else StoredTensor.of(storage, tensor_id, stored).definition.digest
        except StoreError:
            # Damaged: who names its id is all that can be told.
            return None

    def specs_downstream(self, storage: PersistentTileStore) -> list[TensorSpec]:
        """The tensors that are stored and have args, and all that are registered here."""
        with stored_errors(storage, "list", None):
            stored = storage._read_definitions()
        found = {tensor_id: record.spec for tensor_id, record in self.records.items()}
        for tensor_id in stored.keys() - found.keys():
            try:
                found[tensor_id] = StoredTensor.of(storage, tensor_id, stored[tensor_id]).spec(tensor_id)
            except StoreError as error:
                warnings.warn(f"{error}; what it is computed from is not known", DamagedDataWarning, stacklevel=3)
        return list(found.values())

    def tensor_ids(self, storage: PersistentTileStore) -> list[str]:
        """Ids of all tensors that are stored or known, sorted."""
        with stored_errors(storage, "list", None):
            found = storage._list_tensors()
        for name in found:
            if not isinstance(name, str):
                raise StoreError(f"{storage!r} holds {name!r:.200} as a tensor_id, which is no str; it may be damaged")
        return sorted({*found, *self.records})

    def definition_of(self, storage: PersistentTileStore, tensor_id: str) -> dict[str, Any]:
        """The definition of a tensor as it is stored; StoreError if there is none of that id."""
        with stored_errors(storage, "read", tensor_id):
            stored = storage._read_definition(tensor_id)
        if stored is None and tensor_id in self.records:
            record = self.records[tensor_id]
            stored = {**record.spec.definition.to_json(), "tile_size": list(record.layout.tile_shape)}
        if stored is None:
            raise unknown_tensor(tensor_id, self.tensor_ids(storage), storage)
        StoredTensor.of(storage, tensor_id, stored)
        return stored

    def _find_or_create(self, storage: PersistentTileStore, spec: TensorSpec) -> Record:
        """Compare the tensor with what is stored under its id, or create it there."""
        tensor_id, given = spec.tensor_id, self.given_tile(storage, spec)
        with stored_errors(storage, "register", tensor_id):
            stored = storage._read_definition(tensor_id)
        if stored is None:
            layout = TileLayout(spec.shape, given or tile_shape_of(spec.shape, _TILE_SIZE), spec.dtype)
            if storage.read_only:
                return Record(spec, layout, spec.definition.functions)
            stored = _created(storage, spec, layout)
        found = StoredTensor.of(storage, tensor_id, stored)
        layout = TileLayout(spec.shape, _checked_tile(storage, spec, given, found), spec.dtype)
        with stored_errors(storage, "open", tensor_id):
            storage._bind_tensor(tensor_id, stored)
        return Record(spec, layout, found.definition.functions)


def _created(storage: PersistentTileStore, spec: TensorSpec, layout: TileLayout) -> dict[str, Any]:
    """What is stored of a tensor once it has been created: by another process, where that has been first."""
    new: dict[str, Any] = {
        "format": FORMAT,
        "tensor_id": spec.tensor_id,
        **spec.definition.to_json(),
        "tile_size": list(layout.tile_shape),
    }
    with stored_errors(storage, "register", spec.tensor_id):
        storage._write_definition(spec.tensor_id, new)
        stored = storage._read_definition(spec.tensor_id)
        if stored is None:
            raise StoreError(f"{storage!r}: tensor {spec.tensor_id!r} was created and is gone again; try once more")
        return stored


def _checked_tile(storage: PersistentTileStore, spec: TensorSpec, given: Index | None, found: StoredTensor) -> Index:
    """The tile of a tensor that is stored; ValidationError where it is not what is given, or has another definition."""
    if found.tile_size is None:
        raise StoreError(
            f"{storage!r}: what is stored as the definition of tensor {spec.tensor_id!r} is none: its tile_size is "
            f"missing. It may be damaged; clear_tensor({spec.tensor_id!r}) deletes it"
        )
    before: dict[str, Any] = {**found.definition.values(), "tile_size": list(found.tile_size)}
    now: dict[str, Any] = {**spec.definition.values(), "tile_size": list(given or found.tile_size)}
    lines = differences(before, now)
    if lines:
        raise mismatch(spec.tensor_id, lines, storage, changed_args(found.definition, spec.definition))
    return found.tile_size
