"""The tensors in use by a store."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from infinite_tensor.errors import StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.documents import TENSOR
from infinite_tensor.tilestore.layout import Record, TileLayout, layout_of, tile_in_memory, tile_of, usual_tile
from infinite_tensor.tilestore.messages import (
    changed_args,
    check_same,
    mismatch,
    unknown_tensor,
    warn_of_other_meaning,
    with_reasons,
)
from infinite_tensor.tilestore.storage import Storage
from infinite_tensor.tilestore.stored_definition import FORMAT, StoredTensor
from infinite_tensor.values.definition import Definition, differences, same
from infinite_tensor.values.reduction import unknown_in
from infinite_tensor.values.spec import TensorSpec, amended

_TRIES = 10


class Registry:
    """Records of tensors by id.

    A tensor without a record is looked up in storage, or created there.

    Parameters
    ----------
    storage : Storage
        Where definitions are.
    tile_size : int, tuple of int or None
        The tile size of new tensors; None if it was not given.
    read_only : bool
        Whether nothing is ever stored.
    in_memory : bool
        Whether nothing is ever in storage. Then a tensor stays registered until it is forgotten, and its tiles are on
        its own device.

    Attributes
    ----------
    records : WeakValueDictionary of str to Record
        The tensors in use, and tensors with tiles in memory or waiting to be stored.
    tile_sizes : dict of str to (int or tuple of int)
        Tile sizes given for single tensors, different from the tile size of the store.
    """

    def __init__(
        self,
        storage: Storage,
        tile_size: int | Sequence[int] | None = None,
        *,
        read_only: bool = False,
        in_memory: bool = False,
    ) -> None:
        self._storage, self._documents = storage, storage.documents
        self._stores = not (read_only or in_memory)
        self._kept: dict[str, Record] | None = {} if in_memory else None
        self.tile_size = tile_size
        self.records: WeakValueDictionary[str, Record] = WeakValueDictionary()
        self.tile_sizes: dict[str, int | Sequence[int]] = {}

    def known(self) -> list[Record]:
        """Return a list of the current records.

        Other threads may add and remove records at the same time.
        """
        # Unlike iteration over the dictionary, `valuerefs` copies in a single step.
        return [record for each in self.records.valuerefs() if (record := each()) is not None]

    def is_known(self, record: Record) -> bool:
        """Return whether the tensor of `record` is still registered.

        False if the tensor was cleared, even if the id was registered again. True if the tensor was only invalidated:
        then a new record with the same layout has replaced `record`.
        """
        current = self.records.get(record.spec.tensor_id)
        return current is not None and current.layout is record.layout

    def forget(self, tensor_id: str) -> Record | None:
        """Remove and return the record of a tensor.

        The record is marked as no longer current. Return None if there is no record.
        """
        record = self.records.get(tensor_id)
        if record is not None:
            # First, so that whatever comes in between, nothing of a forgotten tensor is stored.
            record.current, record.handle.released = False, True
        self.records.pop(tensor_id, None)
        if self._kept is not None:
            self._kept.pop(tensor_id, None)
        return record

    def record_of(self, spec: TensorSpec, original: Mapping[str, Any] | None = None) -> Record:
        """Return the record of a tensor.

        If the tensor is new, create it in storage, unless the store is read-only. `original` may be the stored
        definition of another tensor. The new tensor is then encoded like that tensor. The record stays in memory as
        long as `spec`. Raise ValidationError if the store has a different tensor under the same id.
        """
        record = self.records.get(spec.tensor_id)
        if record is None or not record.current:
            record = self._find_or_create(spec, original)
            self._add(record)
        check_same(spec.tensor_id, record.spec.definition, spec.definition, self._storage)
        if self._kept is not None and record.device != spec.device:
            raise ValidationError(
                f"tensor {spec.tensor_id!r} is already kept on {record.device}, but device={spec.device} was given; "
                "move it with tensor.to(device)"
            )
        tile = record.layout.tile_shape
        given = tile if spec.tile_size == tile else self.given_tile(spec)
        if given not in (None, tile):
            raise mismatch(spec.tensor_id, [f"tile_size: stored {list(tile)}, given {list(given)}"], self._storage)
        if unknown_in(record.spec.blend) or unknown_in(record.spec.reduction):
            # Until now, the tensor could only be read. With the blend, windows can be computed.
            record.spec = _as_stored(spec, record.spec.definition)
        spec.hold(record.holder())
        return record

    def look_up(self, spec: TensorSpec) -> Record:
        """Return the record of a tensor; in memory, a tensor without a record is not registered."""
        if self._kept is None:
            return self.record_of(spec)
        record = self.records.get(spec.tensor_id)
        if record is not None and record.device == spec.device and same(record.spec.definition, spec.definition):
            return record
        return self._find_or_create(spec, None)

    def replace(self, old: Record, new: Record, spec: TensorSpec) -> None:
        """Replace a record, so that reads in progress store nothing more; `spec` keeps the new one alive."""
        old.current = False
        self._add(new)
        spec.hold(new.holder())

    def _add(self, record: Record) -> None:
        tensor_id = record.spec.tensor_id
        self.records[tensor_id] = record
        if self._kept is not None:
            self._kept[tensor_id] = record

    def amend(self, record: Record, given: Definition) -> None:
        """Store the names of dimensions and the metadata that a stored tensor lacks, and `given` has.

        Warn of metadata that differs. Stored metadata is never replaced.
        """
        tensor_id, known = record.spec.tensor_id, record.spec.definition
        if known is given:
            return
        warn_of_other_meaning(tensor_id, known, given, self._storage)
        found = amended(known, given)
        if found is not known:
            record.spec = replace(record.spec, definition=found)
            if self._stores:
                self._store_amended(tensor_id, given)

    def describe(self, record: Record, given: Definition) -> None:
        """Store the names of dimensions and the metadata of `given`, in place of those of a stored tensor."""
        record.spec = replace(record.spec, definition=_described(record.spec.definition, given))
        if self._stores:
            self._store_amended(record.spec.tensor_id, given, _described)

    def _store_amended(
        self, tensor_id: str, given: Definition, amend: Callable[[Definition, Definition], Definition] = amended
    ) -> None:
        # More than once, because another process may have replaced the definition meanwhile.
        for _ in range(_TRIES):
            stored = self._documents.tensor(tensor_id)
            if stored is None or not same(stored.definition, given):
                # The tensor was cleared meanwhile.
                return
            now = amend(stored.definition, given).to_json()
            fields: dict[str, Any] = {name: now[name] for name in ("dims", "meaning") if name in now}
            if fields == {name: stored.fields[name] for name in fields if name in stored.fields}:
                return
            self._documents.replace(stored, fields)

    def given_tile(self, spec: TensorSpec) -> Index | None:
        """Return the tile size given for the tensor or the store, or None.

        If the result is None, a stored tensor keeps its tile size.
        """
        for given in (spec.tile_size, self.tile_sizes.get(spec.tensor_id), self.tile_size):
            if given is not None:
                return tile_of(spec, given)
        return None

    def digest_of(self, tensor_id: str) -> str | None:
        """Return the digest of a tensor's definition, or None if unknown."""
        record = self.records.get(tensor_id)
        if record is not None:
            return record.spec.definition.digest
        try:
            stored = self._documents.tensor(tensor_id)
        except StoreError:
            # The definition is damaged, so only its id is known.
            return None
        return None if stored is None else stored.definition.digest

    def specs_downstream(self) -> list[TensorSpec]:
        """Return the specs for finding the dependants of a tensor.

        The result includes all registered tensors, and all stored tensors in `Documents.readers`.
        """
        found = {stored.tensor_id: stored.spec for stored in self._documents.readers()}
        return list({**found, **{record.spec.tensor_id: record.spec for record in self.known()}}.values())

    def tensor_ids(self, prefix: str = "") -> list[str]:
        """Return all stored or registered tensor ids starting with `prefix`, sorted."""
        known = {record.spec.tensor_id for record in self.known()}
        return sorted({each for each in known if each.startswith(prefix)}.union(self._documents.ids(TENSOR, prefix)))

    def stored(self, tensor_id: str) -> StoredTensor:
        """Return the stored definition of a tensor.

        If the tensor is registered but not stored, return the definition in the record. Raise StoreError if the tensor
        is unknown.
        """
        stored, record = self._documents.tensor(tensor_id), self.records.get(tensor_id)
        if stored is None and record is not None:
            spec = replace(record.spec, tile_size=record.layout.tile_shape)
            fields = {"tensor_id": tensor_id, "tile_size": list(record.layout.tile_shape)}
            stored = StoredTensor({**spec.definition.to_json(), **fields}, spec, record.layout)
        if stored is None:
            raise unknown_tensor(tensor_id, self.tensor_ids(), self._storage)
        return stored

    def open(self, tensor_id: str) -> tuple[StoredTensor, Record]:
        """Return the stored definition of a tensor, and its record, which the caller keeps until it has a spec."""
        stored, record = self.stored(tensor_id), self.records.get(tensor_id)
        if record is None:
            record = Record(stored.spec, stored.layout, stored.definition.functions, self._documents.handle(stored))
            self._add(record)
        return stored, record

    def _find_or_create(self, spec: TensorSpec, original: Mapping[str, Any] | None) -> Record:
        tensor_id, given, functions = spec.tensor_id, self.given_tile(spec), spec.definition.functions
        if self._kept is not None:
            layout = layout_of(spec.shape, given or tile_in_memory(spec), spec.dtype, spec.reduction, math.inf)
            handle = self._storage.backend.unstored(tensor_id, layout)
            return Record(replace(spec, held=None), layout, functions, handle, spec.device)
        stored = self._documents.tensor(tensor_id, "register")
        if stored is None:
            layout = layout_of(spec.shape, given or usual_tile(spec), spec.dtype, spec.reduction)
            if not self._stores:
                handle = self._storage.backend.unstored(tensor_id, layout)
                return Record(replace(spec, held=None), layout, functions, handle)
            stored = self._documents.create(tensor_id, _new_definition(spec, layout), original)
        self._check_alike(spec, given, stored)
        own = _as_stored(spec, stored.definition)
        return Record(own, stored.layout, stored.definition.functions, self._documents.handle(stored))

    def _check_alike(self, spec: TensorSpec, given: Index | None, found: StoredTensor) -> None:
        tile = found.layout.tile_shape
        before: dict[str, Any] = {**found.definition.values(), "tile_size": list(tile)}
        now: dict[str, Any] = {**spec.definition.values(), "tile_size": list(given or tile)}
        lines = with_reasons(differences(before, now), found.definition, spec.definition)
        if lines:
            raise mismatch(spec.tensor_id, lines, self._storage, changed_args(found.definition, spec.definition))


def _described(stored: Definition, given: Definition) -> Definition:
    return replace(stored, dims=given.dims, meaning=given.meaning)


def _as_stored(spec: TensorSpec, stored: Definition) -> TensorSpec:
    definition = replace(spec.definition, dims=stored.dims, meaning=stored.meaning)
    return replace(spec, definition=definition, held=None)


def _new_definition(spec: TensorSpec, layout: TileLayout) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "tensor_id": spec.tensor_id,
        **spec.definition.to_json(),
        "tile_size": list(layout.tile_shape),
    }
