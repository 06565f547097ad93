"""Sources that read from a TensorDict, in memory or in one of its stored forms."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from infinite_tensor.errors import ValidationError
from infinite_tensor.groups.tensordicts import import_tensordict
from infinite_tensor.pipelines.readers import Reader
from infinite_tensor.pipelines.sources import tensor_over
from infinite_tensor.support.nested import Key, as_key, show
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import MemoryTileStore, TileStore
from infinite_tensor.values import stamps
from infinite_tensor.values.arrays import Box, contiguous_box
from infinite_tensor.values.stamps import Stamps

if TYPE_CHECKING:
    from tensordict import TensorDictBase

_BLOCK_BYTES = 2**20
"""How much one window reads. It decides the windows, which are part of what a tensor is: it stays as it is."""
_CACHE_BYTES = 2**26


def tensors_of(
    td: TensorDictBase,
    version: object,
    tile_store: TileStore | str | os.PathLike[str] | None,
    tensor_id: str | None,
) -> dict[Key, InfiniteTensor]:
    """The tensors of a TensorDict by their keys; `TensorGroup.from_tensordict` says what the arguments are."""
    package = import_tensordict()
    if not isinstance(td, package.TensorDictBase):
        raise ValidationError(f"from_tensordict takes a TensorDict, got {type(td).__name__} {td!r:.200}")
    keys = [as_key(key) for key in td.keys(True, True)]
    above = {key[:depth] for key in keys for depth in range(1, len(key) + 1)}
    others = [key for key in map(as_key, td.keys(True)) if key not in above]
    if others:
        raise ValidationError(
            f"{', '.join(map(show, others))} of the TensorDict hold no tensor; leave them out: "
            f"td.exclude({', '.join(map(show, others))})"
        )
    if not keys:
        raise ValidationError("the TensorDict holds no tensor")
    store = MemoryTileStore(cache_size_bytes=_CACHE_BYTES) if tile_store is None else tile_store
    return {key: _tensor(TensorDictReader(td, key), version, store, tensor_id) for key in keys}


class TensorDictReader(Reader):
    """Reads from one tensor of a TensorDict.

    Parameters
    ----------
    td : TensorDictBase
        It stays open.
    key : tuple of str
        Of a tensor in it.
    """

    def __init__(self, td: Any, key: Key) -> None:
        self._td, self.key = td, key
        self.shape = tuple(td.get_item_shape(key))
        if not self.shape or not all(self.shape):
            raise ValidationError(
                f"{show(key)} of the TensorDict has shape {self.shape}: a tensor needs dimensions, and pixels along "
                f"each; leave it out: td.exclude({show(key)})"
            )
        sample = td.get_at(key, (slice(0, 0),))
        self.dtype, self.device = sample.dtype, sample.device
        self.chunks = tuple(contiguous_box(self.shape, self.dtype.itemsize, _BLOCK_BYTES))
        # To get a tensor of a PersistentTensorDict is to read all of it.
        is_one_file = isinstance(td, import_tensordict().PersistentTensorDict)
        self._file = getattr(td if is_one_file else td.get(key), "filename", None)
        self.in_file = is_one_file or self._file is not None

    def _read(self, region: Box) -> torch.Tensor:
        return self._td.get_at(self.key, region).clone()  # type: ignore[no-any-return]

    def _stamps(self) -> Stamps:
        return stamps.of_file(self._file) if isinstance(self._file, str | os.PathLike) else {}

    def __repr__(self) -> str:
        return f"{show(self.key)} of the TensorDict"


def _tensor(
    reader: TensorDictReader, version: object, store: TileStore | str | os.PathLike[str], tensor_id: str | None
) -> InfiniteTensor:
    assert reader.chunks is not None
    known = None if version is None else {"tensordict": list(reader.key), "version": version}
    name = None if tensor_id is None else "/".join((tensor_id, *reader.key))
    try:
        return tensor_over(InfiniteTensor, reader, reader.chunks, known, tile_store=store, tensor_id=name)
    except ValidationError as error:
        raise ValidationError(f"{reader!r}: {error}") from error
