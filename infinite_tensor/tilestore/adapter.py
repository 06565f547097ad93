"""Backends of other authors: the methods of a subclass of `PersistentTileStore`, as a `Backend`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

from infinite_tensor.tilestore.backend import Backend, TensorHandle
from infinite_tensor.tilestore.inventory import Damage, TensorInfo
from infinite_tensor.tilestore.messages import lacking
from infinite_tensor.tilestore.stored_definition import StoredTensor

_NEEDED = (
    *("_read_documents", "_create_document", "_delete_document", "_list_documents"),
    *("_read_tiles", "_write_tiles", "_read_partials", "_write_partials"),
)
_OF_BACKEND = {
    **{name[1:]: name for name in _NEEDED[:4]},
    **{name: f"_{name}" for name in ("replace_document", "document_path", "is_ours", "collect_garbage")},
    "drop_partials": "_drop_partials",
    "flush": "_flush_backend",
    "close": "_close_backend",
    "resume": "_resume",
}
_OF_TENSOR = {
    **{name[1:]: name for name in _NEEDED[4:]},
    **{name: f"_{name}" for name in ("delete_tiles", "generation", "read_encoded", "write_encoded")},
    "find": "_has_tiles",
    "find_in": "_find_tiles",
}
_OTHERS = ("_describe_tensor", "_check_definition", "_write_copy", "_verify_tensor", "_bind_tensor", "_encoding")
_OPTIONAL = {*_OF_BACKEND.values(), *_OF_TENSOR.values(), *_OTHERS}


class StoreRef:
    """A weak reference to a store, so that the parts of the store do not keep it from being freed.

    The thread of the writer holds the store itself until everything is stored.
    """

    def __init__(self, store: object) -> None:
        self.bind(store)

    def bind(self, store: object) -> None:
        """Refer to `store`, also after the garbage collector has cleared weak references to it."""
        self._ref = weakref.ref(store)

    def __call__(self) -> Any:
        """Return the store, or None if it was freed."""
        return self._ref()

    def call(self, method: str, *given: object, **options: object) -> Any:
        """Call a method of the store."""
        return getattr(self._ref(), method)(*given, **options)


class StoreBackend(Backend):
    """The methods of a store for definitions. Raise TypeError if one of the eight methods is missing."""

    def __init__(self, store: StoreRef) -> None:
        self._store, kind = store, type(store())
        self.lacks = frozenset(name for name in _OPTIONAL if getattr(kind, name, None) is None)
        if missing := [name for name in _NEEDED if name in self.lacks]:
            raise TypeError(f"{kind.__name__} cannot store tensors; implement {', '.join(missing)}")
        for name, own in _OF_BACKEND.items():
            if own not in self.lacks:
                setattr(self, name, partial(store.call, own))

    def __str__(self) -> str:
        return str(self._store())

    @property
    def is_near(self) -> bool:
        """See `Backend`."""
        return bool(getattr(self._store(), "_is_near", True))

    def create(self, definition: dict[str, Any], original: Mapping[str, Any] | None) -> None:
        """See `Backend`."""
        if original is None or "_write_copy" in self.lacks:
            super().create(definition, original)
        else:
            self._store.call("_write_copy", definition["tensor_id"], definition, original)

    def check(self, stored: StoredTensor) -> None:
        """See `Backend`."""
        if "_check_definition" not in self.lacks:
            self._store.call("_check_definition", stored.fields)

    def tensor(self, stored: StoredTensor) -> TensorHandle:
        """See `Backend`."""
        handle, tensor_id = StoreTensor(stored.tensor_id, stored.layout, self), stored.tensor_id
        if "_bind_tensor" not in self.lacks:
            handle.bound = self._store.call("_bind_tensor", tensor_id, stored.fields)
        if "_encoding" not in self.lacks:
            handle.encoding = self._store.call("_encoding", tensor_id)
        for name, own in _OF_TENSOR.items():
            if own not in self.lacks:
                setattr(handle, name, partial(self._store.call, own, tensor_id))
        return handle

    def describe(self, stored: StoredTensor) -> TensorInfo:
        """See `Backend`."""
        if "_describe_tensor" in self.lacks:
            raise lacking(self, "_describe_tensor")
        info: TensorInfo = self._store.call("_describe_tensor", stored.tensor_id, stored.fields)
        return info

    def verify(self, stored: StoredTensor, *, repair: bool) -> list[Damage]:
        """See `Backend`."""
        if "_verify_tensor" in self.lacks:
            raise lacking(self, "_verify_tensor")
        return list(self._store.call("_verify_tensor", stored.tensor_id, repair=repair))


class StoreTensor(TensorHandle):
    """The methods of a store for the tiles of a tensor, and what its `_bind_tensor` has returned."""

    bound: object = None
