"""What an `InfiniteTensor` tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from infinite_tensor.definition import Blend, Json, Number
from infinite_tensor.engine.node import Node
from infinite_tensor.nested import show
from infinite_tensor.spec import TensorSpec
from infinite_tensor.tilestore import TileStore
from infinite_tensor.window import Shape, TensorWindow

if TYPE_CHECKING:
    from infinite_tensor.tensor import InfiniteTensor


class TensorAttributes:
    """Its definition, and how it is computed and kept; computes nothing."""

    _node: Node
    _args: tuple[InfiniteTensor, ...]

    @property
    def _spec(self) -> TensorSpec:
        return self._node.spec

    @property
    def shape(self) -> Shape:
        """Extent per dimension, None for an unbounded one."""
        return self._spec.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self._spec.dtype

    @property
    def device(self) -> torch.device:
        """Where ``f`` returns windows and reads return results."""
        return self._spec.device

    @property
    def f(self) -> Callable[..., Any] | None:
        """The function that computes windows; None where the tensor was opened without one."""
        return self._node.computation.f

    @property
    def args(self) -> tuple[InfiniteTensor, ...]:
        """Upstream tensors."""
        return self._args

    @property
    def args_windows(self) -> tuple[TensorWindow, ...]:
        """The window through which each arg is read."""
        return tuple(arg.window for arg in self._spec.definition.args)

    @property
    def output_window(self) -> TensorWindow:
        """Which pixels a window covers."""
        return self._spec.definition.output_window

    @property
    def batch_size(self) -> int | tuple[int, ...] | None:
        """Most windows in one call of ``f``, or the allowed numbers."""
        return self._node.batching.given

    @property
    def blend(self) -> Blend | None:
        """How overlapping windows are combined; None sums."""
        return self._spec.blend

    @property
    def blend_init(self) -> Number | None:
        """What a pixel holds before its first window; None is 0."""
        return self._spec.blend_init

    @property
    def version(self) -> Json:
        """The version that was given, as JSON holds it."""
        return self._spec.definition.version

    @property
    def tensor_id(self) -> str:
        """The name under which the store keeps this tensor."""
        return self._spec.tensor_id

    uuid = tensor_id

    @property
    def tile_store(self) -> TileStore:
        """Where windows are kept."""
        return self._node.store

    def dim(self) -> int:
        """Number of dimensions, as `torch.Tensor.dim`."""
        return self.ndim

    def size(self, dim: int | None = None) -> Shape | int | None:
        """The shape, or its entry `dim`, as `torch.Tensor.size`."""
        if dim is None:
            return self.shape
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"dimension {dim} is out of range for a tensor with {self.ndim} dimensions")
        return self.shape[dim]

    def to_json(self) -> dict[str, Json]:
        """The definition, as JSON: what decides the values, and the fingerprints of the functions.

        The device, which is no part of what a store compares, is told as well.
        """
        return self._spec.definition.to_json() | {"device": str(self.device)}

    def __repr__(self) -> str:
        parts = [f"shape={self.shape}", f"dtype={self.dtype}"]
        if self.device.type != "cpu":
            parts.append(f"device={str(self.device)!r}")
        parts += [f"tensor_id={self.tensor_id!r}", f"output_window={self.output_window!r}"]
        if self._spec.definition.output is not None:
            parts.append(f"output={show(self._spec.definition.output)}")
        if self.args:
            parts.append(f"args={[arg.tensor_id for arg in self.args]}")
        return f"InfiniteTensor({', '.join(parts)}, tile_store={self.tile_store!r})"

    def __len__(self) -> int:
        extent = self.shape[0]
        if extent is None:
            raise TypeError("this InfiniteTensor has no len(): dimension 0 is unbounded; see t.shape, or read a region")
        return extent

    def _check_finite(self, action: str) -> None:
        for d, extent in enumerate(self.shape):
            if extent is None:
                raise TypeError(f"cannot {action} an InfiniteTensor: dimension {d} is unbounded; read a region of it")
