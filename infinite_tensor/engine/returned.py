"""Checks what ``f`` returns."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from infinite_tensor.engine.chain import Computation
from infinite_tensor.errors import DeviceMismatchError, DtypeMismatchError, ShapeMismatchError, ValidationError
from infinite_tensor.support.allocation import Array, as_array
from infinite_tensor.support.given import quoted
from infinite_tensor.support.nested import Key, leaves, show
from infinite_tensor.values.spec import TensorSpec


class Check:
    """Checks what ``f`` returns for one tensor: windows, or a region of `size` pixels.

    Attributes
    ----------
    dtype : torch.dtype
        The declared dtype.
    device : torch.device
        The declared device.
    size : tuple of int
        The size of a window or region in pixels.
    window_bytes : int
        Its size in bytes.
    key : tuple of str or None
        The key of the output, if ``f`` has several.
    """

    def __init__(self, spec: TensorSpec, size: Sequence[int] | None = None) -> None:
        self.dtype, self.device = spec.definition.dtype, spec.device
        self.size = spec.definition.output_window.size if size is None else tuple(size)
        self.window_bytes = math.prod(self.size) * self.dtype.itemsize
        self._numpy_dtype = spec.numpy_dtype
        self.key = spec.definition.output
        self._named = "" if self.key is None else f" for {show(self.key)}"

    def array_of(self, output: object) -> Array:
        """Check one window, and return an array sharing its memory."""
        if self._numpy_dtype is not None and type(output) is torch.Tensor:
            try:
                array = output.numpy()
            except (RuntimeError, TypeError):
                # For example, the output requires a gradient or is on another device.
                return self._slow(output)
            if array.dtype == self._numpy_dtype and array.shape == self.size:
                return array
        return self._slow(output)

    def arrays_of(self, returned: object, count: int) -> Sequence[Array]:
        """Check the windows of a batch, and return one array per window.

        `returned` is a list or a stacked tensor for `count` windows.
        """
        if self._numpy_dtype is not None and type(returned) is torch.Tensor and returned.shape == (count, *self.size):
            with contextlib.suppress(RuntimeError, TypeError):
                stacked = returned.numpy()
                if stacked.dtype == self._numpy_dtype:
                    return list(stacked)
        return [self.array_of(each) for each in self._windows_of(returned, count)]

    def _windows_of(self, returned: object, count: int) -> Sequence[object]:
        if isinstance(returned, torch.Tensor) and not returned.is_nested:
            self._check_dense(returned)
            stacked = (count, *self.size)
            if returned.shape != stacked:
                raise ShapeMismatchError(
                    f"for {_windows(count)}, f returned{self._named} shape {tuple(returned.shape)}; return {stacked}"
                )
        return as_list(returned, count)

    def _slow(self, output: object) -> Array:
        tensor = self._checked(output)
        try:
            return as_array(tensor)
        except (RuntimeError, TypeError) as error:
            raise ValidationError(
                f"f must return a tensor{self._named} with values, got {type(output).__name__}: {error}"
            ) from error

    def _checked(self, output: object) -> torch.Tensor:
        size, dtype, device, named = self.size, self.dtype, self.device, self._named
        if not isinstance(output, torch.Tensor):
            advice = "end it with return result" if output is None else "return torch.as_tensor(result)"
            raise ValidationError(
                f"f must return a torch.Tensor{named}, got {type(output).__name__}: {quoted(output)}; {advice}"
            )
        self._check_dense(output)
        if output.shape != size:
            raise ShapeMismatchError(
                f"f returned{named} shape {tuple(output.shape)}, but the output window has size {size}; return {size}"
            )
        if output.dtype != dtype:
            raise DtypeMismatchError(
                f"f returned{named} {output.dtype}, but the tensor has dtype {dtype}; return "
                f"result.to({dtype}), or declare dtype={output.dtype}"
            )
        if output.device != device:
            here, there = str(device), str(output.device)
            advice = f"return result.to({here!r}), or declare device={there!r}"
            raise DeviceMismatchError(
                f"f returned{named} a tensor on {there}, but the tensor is declared on {here}; "
                + ("return a tensor with values" if output.is_meta else advice)
            )
        return output.detach().resolve_conj().resolve_neg()

    def _check_dense(self, output: torch.Tensor) -> None:
        if output.is_nested:
            raise ValidationError(f"f must return a dense tensor{self._named}, got a nested tensor")
        if output.layout is not torch.strided:
            raise ValidationError(
                f"f must return a dense tensor{self._named}, got layout {output.layout}; return result.to_dense()"
            )


def entries_of(output: object, keys: Sequence[Key]) -> list[Any]:
    """Return the entries of a returned dict, in the order of `keys`."""
    listed = ", ".join(map(show, keys))
    if not isinstance(output, Mapping):
        raise ValidationError(f"f must return a dict with the keys {listed}, got {type(output).__name__}")
    found = dict(leaves(output))
    missing, extra = [key for key in keys if key not in found], [key for key in found if key not in keys]
    if missing or extra:
        differing = [f"{show(key)} is missing" for key in missing] + [f"{show(key)} is not an output" for key in extra]
        raise ValidationError(
            f"f must return a dict with the keys {listed}; in the returned dict, {', '.join(differing)}"
        )
    return [found[key] for key in keys]


def as_list(returned: object, count: int) -> Sequence[object]:
    """Return the results of a batch of `count` windows as a list."""
    if isinstance(returned, torch.Tensor) and returned.ndim > 0:
        returned = returned.unbind(0)
    if not isinstance(returned, list | tuple):
        raise ValidationError(
            f"f with a batch_size must return a list of tensors or one stacked tensor, got {type(returned).__name__}"
        )
    if len(returned) != count:
        raise ShapeMismatchError(
            f"for {_windows(count)}, f returned {len(returned)} results; return one tensor for each window"
        )
    return returned


def named(computation: Computation) -> str:
    """Describe a computation for messages: its tensors, and the user's function with file and line."""
    f = computation.function
    kind, code = type(f), getattr(f, "__code__", None)
    if code is not None:
        return f"{computation.names}, by {f.__name__} defined in {code.co_filename}:{code.co_firstlineno}"
    # For example, a network or a function of torch.
    is_ours = str(kind.__module__).startswith("infinite_tensor.")
    return computation.names if is_ours else f"{computation.names}, by {getattr(f, '__name__', kind.__name__)}"


def _windows(count: int) -> str:
    return f"{count} window{'s' * (count > 1)}"
