"""The spelling of version 0.2, deprecated: `get_or_create` and friends."""

from __future__ import annotations

import functools
import uuid
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.window import TensorWindow, as_index

if TYPE_CHECKING:
    from infinite_tensor.tensor import InfiniteTensor

P = ParamSpec("P")
S = TypeVar("S")

_DIRECT_LIMIT = 10 * 2**20


class OldSpelling:
    """What stores could do in version 0.2, in terms of what they do now."""

    tensor_type: ClassVar[type[InfiniteTensor]]
    """Set by `infinite_tensor.reopen`, which stands above the stores."""

    def __init__(self) -> None:
        self._made: weakref.WeakValueDictionary[str, InfiniteTensor] = weakref.WeakValueDictionary()

    def get_or_create(
        self,
        tensor_id: object,
        shape: Sequence[int | None],
        f: Callable[..., Any],
        output_window: TensorWindow,
        args: Sequence[InfiniteTensor] | None = None,
        args_windows: Sequence[TensorWindow] | None = None,
        tile_size: int | Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        batch_size: int | None = None,
        cache_method: str = "indirect",
        cache_limit: int | EllipsisType | None = ...,
    ) -> InfiniteTensor:
        """Deprecated: make an `InfiniteTensor` with ``tile_store=`` and ``tensor_id=``.

        Parameters
        ----------
        tensor_id : object
            Its `str` is the id; None makes a random one.
        shape, f, output_window, args, args_windows, dtype, batch_size
            As for `InfiniteTensor`.
        tile_size : int or tuple of int, optional
            Tiles of this tensor in pixels; without meaning in memory and for ``cache_method="direct"``.
        cache_method : str
            ``indirect`` or ``direct``.
        cache_limit : int or None
            Bytes that a memory store may keep from now on, None for no limit. Default: 10 MiB for
            ``direct``, as before for ``indirect``.

        Returns
        -------
        InfiniteTensor
            For an id that was asked for before, the same object.

        Raises
        ------
        ValidationError
            If the id is taken by a tensor of another configuration.
        """
        _deprecated("TileStore.get_or_create", "InfiniteTensor(..., tile_store=store, tensor_id=...)")
        if cache_method not in ("indirect", "direct"):
            raise ValidationError(f"cache_method must be 'indirect' or 'direct', got {cache_method!r}")
        name = str(uuid.uuid4() if tensor_id is None else tensor_id)
        if cache_limit is not ... or cache_method == "direct":
            self._limit_cache(_checked_limit(_DIRECT_LIMIT if cache_limit is ... else cache_limit))
        is_tiled = tile_size is not None and cache_method == "indirect"
        before = self._set_tile_size(name, tile_size) if is_tiled else None
        try:
            made = self.tensor_type(
                shape,
                f,
                output_window,
                args=args,
                args_windows=args_windows,
                dtype=torch.float32 if dtype is None else dtype,
                tile_store=self,  # type: ignore[arg-type]
                tensor_id=name,
                batch_size=batch_size,
            )
        except BaseException:
            if is_tiled:
                self._set_tile_size(name, before)
            raise
        known = self._made.get(name)
        if known is not None and known._spec.definition.digest == made._spec.definition.digest:
            return known
        self._made[name] = made
        return made

    def clear_direct_caches(self) -> None:
        """Deprecated: call ``tensor.clear_cache()`` or ``store.clear_cache(tensor_id)``."""
        _deprecated("TileStore.clear_direct_caches", "store.clear_cache(tensor_id)")
        for tensor_id in self._registered():
            self.clear_cache(tensor_id)

    @abstractmethod
    def clear_cache(self, tensor_id: str) -> None:
        """Drop from memory what can be had again, after storing what is pending."""

    @abstractmethod
    def _registered(self) -> list[str]:
        """Ids of the tensors that this store object has met."""

    def _limit_cache(self, limit: int | None) -> None:
        """Take over ``cache_limit``, where it has a meaning."""

    def _set_tile_size(self, tensor_id: str, tile_size: int | Sequence[int] | None) -> int | Sequence[int] | None:  # noqa: ARG002
        """Take over ``tile_size``, where it has a meaning; returns the one before."""
        return None


def accepts_old_keywords(
    constructor: Callable[Concatenate[S, P], None],
) -> Callable[Concatenate[S, P], None]:
    """Have a store's constructor take ``tile_cache_size=``, now ``cache_size_tiles=``."""

    @functools.wraps(constructor)
    def construct(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if "tile_cache_size" in kwargs:
            _deprecated("tile_cache_size=", "cache_size_tiles=")
            kwargs["cache_size_tiles"] = kwargs.pop("tile_cache_size")
        constructor(self, *args, **kwargs)

    return construct


def _checked_limit(limit: object) -> int | None:
    number = as_index(limit)
    if limit is not None and (number is None or number < 0):
        raise ValidationError(f"cache_limit must be a number of bytes or None for no limit, got {limit!r}")
    return number


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)
