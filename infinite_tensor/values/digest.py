"""A digest of a network: the same for the same weights, wherever and however they are kept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import quoted

Values: TypeAlias = "torch.Tensor | np.ndarray[Any, Any] | np.generic"
"""Numbers that a function may hold."""

_LEAF = 1 << 22
"""Bytes of a tensor that are hashed by themselves, so that threads share the work."""

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")

_OF_SPARSE = {
    torch.sparse_coo: ("indices", "values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""The methods that return what a sparse tensor is made of."""


def digest(module: nn.Module) -> str:
    """SHA-256 of what a network is, as hexadecimal digits: other weights give another digest.

    Covered are, for each submodule, its class by name, its `extra_repr` and whether it is in training mode, and of each
    parameter and buffer (also of those that are not in the ``state_dict``) its name, dtype, shape and bytes. What a
    submodule has in the ``state_dict`` beside these counts too: the packed weights of a quantized layer, say.

    It does not depend on the device, on strides, on `requires_grad`, or on the process. ``torch.compile``,
    ``DataParallel`` and ``DistributedDataParallel`` around a module or a submodule do not count.

    Parameters
    ----------
    module : torch.nn.Module
        The network.

    Returns
    -------
    str
        64 hexadecimal digits, the same in every process and on all machines of one byte order.

    Raises
    ------
    ValidationError
        If `module` is no module, or a parameter or buffer has no values that can be read: it is on the device ``meta``,
        or of a lazy module that has not been called yet; or a submodule does not tell what it is made of.

    Notes
    -----
    Tensors are cut into leaves of 4 MiB, which ``torch.get_num_threads()`` threads hash at the same time; the digest is
    that of the digests of all leaves, in order. SHA-256 is the fastest hash of Python's own on processors that have
    instructions for it: about 1 GB/s and more on each thread. Leaves are copied from a device one by one.

    Code, hooks and plain attributes do not count, unless `extra_repr` tells of them. An `InfiniteBuffer` counts by the
    definition of its tensor.

    Examples
    --------
    Other weights are another version of the tensor, instead of a `FunctionChangedWarning`:

    >>> net = torch.nn.Conv2d(1, 1, 3, padding=1).eval()
    >>> def f(ctx):
    ...     return net(torch.full((1, 4, 4), float(ctx[1])))
    >>> t = InfiniteTensor((1, 4, None), f, TensorWindow((1, 4, 4)), version=digest(net))
    >>> t.version == digest(torch.nn.DataParallel(net))
    True
    """
    if not isinstance(module, nn.Module):
        raise ValidationError(f"digest takes a torch.nn.Module, got {quoted(module)}; give the network itself")
    return Digests().of(module)


class Digests:
    """Digests of networks that may share tensors: each tensor is hashed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, str]] = {}

    def of(self, module: nn.Module) -> str:
        """`digest` of one."""
        try:
            with self._bytes() as bytes_of:
                return sha256_of(_said(module, bytes_of))
        except ValidationError:
            raise
        except Exception as error:
            # Attributes and the state of a module may be computed by code of a user.
            raise ValidationError(
                f"digest: {name_of(type(module))} cannot be looked through: {type(error).__name__}: {error}; set "
                "version= to something else that identifies the weights"
            ) from error

    def of_values(self, values: Values) -> str:
        """SHA-256 of dtype, shape and values; ValidationError where there are none to be had."""
        if isinstance(values, torch.Tensor):
            with self._bytes() as bytes_of:
                return sha256_of([bytes_of.tensor(".a tensor", values)])
        # Not as a tensor: some dtypes of numpy have no counterpart.
        content = hashlib.sha256(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data).hexdigest()
        return sha256_of([values.dtype.str, str(values.shape), content])

    @contextmanager
    def _bytes(self) -> Iterator[_Bytes]:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            yield _Bytes(pool, self._known)


def bare(module: nn.Module) -> nn.Module:
    """The module that others are wrapped around to compile it, or to spread it over devices."""
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif name_of(type(module)) == "torch._dynamo.eval_frame.OptimizedModule":
            # By name: importing the class would import the compiler.
            module = module.get_submodule("_orig_mod")
        else:
            return module


def name_of(kind: type) -> str:
    """Module and qualified name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def sha256_of(said: Iterable[str]) -> str:
    """One digest of several texts, which tells where one ends and the next one begins."""
    digest = hashlib.sha256()
    for part in said:
        digest.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _said(module: nn.Module, bytes_of: _Bytes) -> Iterator[str]:
    """What there is to say of a module and of all in it, each before the next one beside it.

    A loop instead of recursion: modules may lie deep in each other. What was met before stands as a reference.
    """
    seen: dict[int, str] = {}
    rest = [("", module)]
    while rest:
        path, wrapped = rest.pop()
        net = bare(wrapped)
        yield f"module {path}"
        if id(net) in seen:
            yield f"is {seen[id(net)]}"
            continue
        seen[id(net)] = path
        yield from (name_of(type(net)), _extra(net), f"training={net.training}")
        # As torch has them: some networks have such methods of their own.
        parameters = nn.Module.named_parameters(net, recurse=False, remove_duplicate=False)
        tensors = dict(chain(parameters, nn.Module.named_buffers(net, recurse=False, remove_duplicate=False)))
        for name, value in chain(tensors.items(), _rest_of_state(net, tensors)):
            yield f"tensor {name}"
            yield from bytes_of.state(f"{path}.{name}", value)
        # Private to torch, but `named_children` leaves out a child that has two names.
        children = net._modules.items()  # noqa: SLF001
        rest += [(f"{path}.{name}", child) for name, child in reversed(children) if child is not None]


def _extra(module: nn.Module) -> str:
    """The settings of a module, as it tells them; the same in every process."""
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        # It tells of the devices of its parameters, and of nothing else that does not count anyhow.
        return ""
    described = getattr(type(module), "_digested", type(module).extra_repr)
    try:
        return _ADDRESS.sub("", str(described(module)))
    except Exception as error:  # noqa: BLE001  (a user's own, and of use to people only)
        return f"raises {name_of(type(error))}"


def _rest_of_state(module: nn.Module, tensors: Collection[str]) -> Iterator[tuple[str, object]]:
    """What a module has in its ``state_dict`` beside `tensors`, its parameters and buffers."""
    kind = type(module)
    own = (kind._save_to_state_dict, kind.get_extra_state)  # noqa: SLF001  (what modules override)
    if own == (nn.Module._save_to_state_dict, nn.Module.get_extra_state) or hasattr(kind, "_digested"):  # noqa: SLF001
        return
    saved: dict[str, object] = {}
    module._save_to_state_dict(saved, "", True)  # noqa: SLF001
    yield from ((name, value) for name, value in saved.items() if name not in tensors)


class _Bytes:
    """Says what tensors hold; what it has said of which is in `known`."""

    def __init__(self, pool: Executor, known: dict[int, tuple[torch.Tensor, str]]) -> None:
        self._pool = pool
        self._known = known

    def state(self, name: str, value: object) -> Iterator[str]:
        """What an entry of a ``state_dict`` is; of one that is neither a tensor nor plain, its class."""
        if isinstance(value, torch.Tensor):
            yield self.tensor(name, value)
        elif isinstance(value, list | tuple | dict):
            yield f"{type(value).__name__}[{len(value)}]"
            for each in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
                yield from self.state(name, each)
        elif value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype):
            yield repr(value)
        else:
            yield name_of(type(value))

    def tensor(self, name: str, tensor: torch.Tensor) -> str:
        """Dtype, shape, and the digest of the bytes; ValidationError where there are none to be had."""
        if id(tensor) not in self._known:
            if is_lazy(tensor) or tensor.is_meta:
                state = "is of a lazy module that has not been called yet" if is_lazy(tensor) else "is on meta"
                raise ValidationError(f"digest: {name[1:]!r} {state}, and has no values; load the weights first")
            try:
                said = self._said(tensor.detach())
            except (RuntimeError, TypeError) as error:
                raise ValidationError(
                    f"digest: the bytes of {name[1:]!r} ({type(tensor).__name__}, {tensor.dtype}, {tensor.layout}) "
                    f"cannot be read: {error}; set version= to something else that identifies the weights"
                ) from error
            # Keeping the tensor keeps its id from being given to another one.
            self._known[id(tensor)] = tensor, said
        return self._known[id(tensor)][1]

    def _said(self, tensor: torch.Tensor) -> str:
        dense = _dense(tensor)
        if dense is None:
            kind, parts = _parts(tensor)
            said = [kind, *map(self._said, parts)]
        else:
            said = self._leaves(dense)
        # The extent of a dimension in which others are nested is a number of this process.
        shape = [extent if isinstance(extent, int) else "nested" for extent in tensor.shape]
        return " ".join((str(tensor.dtype), str(shape), *said))

    def _leaves(self, tensor: torch.Tensor) -> list[str]:
        if not tensor.is_contiguous():
            # Only what stands in a row is cut into leaves; the copy takes no memory of a device.
            tensor = tensor.cpu().contiguous()
        flat = tensor.reshape(-1).view(torch.uint8)
        leaves = [flat[start : start + _LEAF] for start in range(0, len(flat), _LEAF)]
        return list(map(_sha256, leaves) if len(leaves) < 2 else self._pool.map(_sha256, leaves))


def _sha256(leaf: torch.Tensor) -> str:
    return hashlib.sha256(leaf.cpu().numpy().data).hexdigest()


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor with the same values that lie in memory as its dtype says; None for one that is made of others."""
    if tensor.is_mkldnn:
        return tensor.to_dense()
    if tensor.is_quantized or tensor.layout != torch.strided or hasattr(tensor, "__tensor_flatten__"):
        return None
    return tensor.resolve_conj().resolve_neg()


def _parts(tensor: torch.Tensor) -> tuple[str, list[torch.Tensor]]:
    """What a tensor is made of, and how."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return name_of(type(tensor)), [getattr(tensor, name) for name in names]
    if tensor.layout in _OF_SPARSE:
        if tensor.layout == torch.sparse_coo:
            tensor = tensor.coalesce()
        return str(tensor.layout), [getattr(tensor, method)() for method in _OF_SPARSE[tensor.layout]]
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{tensor.qscheme()} {tensor.q_scale()!r} {tensor.q_zero_point()}", [tensor.int_repr()]
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return f"{tensor.qscheme()} {tensor.q_per_channel_axis()}", [tensor.int_repr(), scales, zeros]
