"""Deprecated methods of stores from version 0.2: `get_or_create`, `clear_direct_caches` and `evict_cache_for`."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.window import TensorWindow
from infinite_tensor.support.given import as_index, quoted
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.tilestore.store import contents_of

_DIRECT_LIMIT = 10 * 2**20

_TENSORS: WeakKeyDictionary[TileStore, WeakValueDictionary[str, InfiniteTensor]] = WeakKeyDictionary()
"""Tensors created by `get_or_create`, by store and id."""


def get_or_create(
    store: TileStore,
    tensor_id: object,
    shape: Sequence[int | None],
    f: Callable[..., Any],
    output_window: TensorWindow,
    args: Sequence[InfiniteTensor] | None = None,
    args_windows: Sequence[TensorWindow] | None = None,
    tile_size: int | Sequence[int] | None = None,
    dtype: torch.dtype | str | None = None,
    batch_size: int | None = None,
    cache_method: str = "indirect",
    cache_limit: int | EllipsisType | None = ...,
) -> InfiniteTensor:
    """Deprecated: create an `InfiniteTensor` with ``tile_store=`` and ``tensor_id=`` instead.

    Parameters
    ----------
    tensor_id : object
        The id, converted to `str`. None gives a random id.
    shape, f, output_window, args, args_windows, dtype, batch_size
        As for `InfiniteTensor`.
    tile_size : int or tuple of int, optional
        Size of this tensor's tiles in pixels; ignored with ``cache_method="direct"``.
    cache_method : str
        ``indirect`` or ``direct``.
    cache_limit : int or None
        Bytes that a memory store may keep from now on, None for no limit. Default: 10 MiB for
        ``direct``, unchanged for ``indirect``.

    Returns
    -------
    InfiniteTensor
        The same object as before if the id was requested before.

    Raises
    ------
    ValidationError
        If the id is taken by a tensor with another configuration.
    """
    _deprecated("TileStore.get_or_create", "InfiniteTensor(..., tile_store=store, tensor_id=...)")
    if cache_method not in ("indirect", "direct"):
        raise ValidationError(f"cache_method must be 'indirect' or 'direct', got {quoted(cache_method)}")
    name = str(uuid.uuid4() if tensor_id is None else tensor_id)
    if cache_limit is not ... or cache_method == "direct":
        limit = _DIRECT_LIMIT if cache_limit is ... else cache_limit
        number = as_index(limit)
        if limit is not None and (number is None or number < 0):
            raise ValidationError(f"cache_limit must be a number of bytes or None for no limit, got {quoted(limit)}")
        if isinstance(store, MemoryTileStore):
            store.cache_size_bytes = None if number is None else max(number, 1)
    is_tiled = tile_size is not None and cache_method == "indirect"
    before = _set_tile_size(store, name, tile_size) if is_tiled else None
    try:
        tensor = InfiniteTensor(
            shape,
            f,
            output_window,
            args=args,
            args_windows=args_windows,
            dtype=torch.float32 if dtype is None else dtype,
            tile_store=store,
            tensor_id=name,
            batch_size=batch_size,
        )
    except BaseException:
        if is_tiled:
            _set_tile_size(store, name, before)
        raise
    of_store = _TENSORS.setdefault(store, WeakValueDictionary())
    known = of_store.get(name)
    if known is not None and node_of(known).spec.definition.digest == node_of(tensor).spec.definition.digest:
        return known
    of_store[name] = tensor
    return tensor


def clear_direct_caches(store: TileStore) -> None:
    """Deprecated: call ``tensor.clear_cache()`` or ``store.clear_cache(tensor_id)``."""
    _deprecated("TileStore.clear_direct_caches", "store.clear_cache(tensor_id)")
    # Only tensors used through this store object.
    for record in contents_of(store).registry.known():
        store.clear_cache(record.spec.tensor_id)


def evict_cache_for(store: TileStore, tensor_id: object, cache_limit: int | None) -> None:
    """Deprecated: call ``store.clear_cache(tensor_id)``, which a limit of 0 does. Other limits are the store's."""
    _deprecated("TileStore.evict_cache_for", "store.clear_cache(tensor_id)")
    if cache_limit == 0:
        store.clear_cache(str(tensor_id))


def _set_tile_size(
    store: TileStore, tensor_id: str, tile_size: int | Sequence[int] | None
) -> int | Sequence[int] | None:
    sizes = contents_of(store).registry.tile_sizes
    before = sizes.pop(tensor_id, None)
    if tile_size is not None:
        sizes[tensor_id] = tile_size
    return before


def _deprecated(old: str, new: str) -> None:
    # The warning points at the caller of the store's method.
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=4)
