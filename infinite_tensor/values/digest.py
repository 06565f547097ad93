"""Digests of networks and tensors, and checks of training mode."""

from __future__ import annotations

import hashlib
import io
import pickletools
import re
import types
import weakref
import zipfile
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain, islice
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from infinite_tensor.errors import ValidationError
from infinite_tensor.support.given import quoted
from infinite_tensor.support.threads import on_threads
from infinite_tensor.values.arrays import checksum
from infinite_tensor.values.objects import assigned_by, bare, name_of, parts_of_attribute, sha256_of, uses_of

_LEAF = 1 << 22
"""Bytes of a part. Parts are hashed separately, to share the work among threads."""
_MOST_LISTED = 1000
"""Maximum number of modules and tensors to cover in a list or dict of a module."""

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_MANGLED = re.compile(rb"[./]?___torch_mangle_\d+")
"""Numbers added by TorchScript to equal class names, different in each process."""
_NOT_CODE = (".debug_pkl", "version", "serialization_id")
"""Files of a TorchScript archive without effect on results."""

OF_MODULES = frozenset(vars(nn.Module()))
"""Attributes set by torch on every module."""

_OF_SPARSE = {
    torch.sparse_coo: ("indices", "values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""Methods for the parts of a sparse tensor, by layout."""


def digest(module: nn.Module) -> str:
    """Return the SHA-256 of a network's structure and weights.

    Networks with different weights have different digests.

    For each submodule, the digest covers its class name, its `extra_repr`, and `training` if its code reads that. It
    covers the name, dtype, shape and bytes of each parameter, of each buffer (even if it is not in the ``state_dict``),
    and of each tensor among the attributes. It also covers other entries of the ``state_dict``, such as the packed
    weights of a quantized layer, and modules and tensors in lists and dicts. For TorchScript, it covers everything in a
    saved file. Buffers and tensors assigned by `forward` are not covered, because they are caches.

    The digest does not depend on the device, on strides, on `requires_grad`, or on the process. It stays the same if
    ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel`` wraps a module or a submodule.

    Parameters
    ----------
    module : torch.nn.Module
        The network.

    Returns
    -------
    str
        64 hexadecimal digits, the same in every process and on all machines with the same byte order.

    Raises
    ------
    ValidationError
        If `module` is not a module, or if the parts of a submodule cannot be read. Also if a parameter or buffer has no
        readable values, because it is on the device ``meta`` or belongs to a lazy module that was not called yet.

    Notes
    -----
    Tensors are cut into leaves of 4 MiB, which ``torch.get_num_threads()`` threads hash in parallel. The digest is
    computed from the digests of all leaves, in order. A process hashes a tensor again only if its storage, its version,
    or, on the CPU, a CRC-32C of its bytes has changed.

    Code, hooks and plain attributes are not covered, unless they appear in `extra_repr`. An `InfiniteBuffer` is covered
    by the definition of its tensor.

    Examples
    --------
    With this `version`, changed weights are an error, instead of a `FunctionChangedWarning`:

    >>> net = torch.nn.Conv2d(1, 1, 3, padding=1).eval()
    >>> def f(ctx):
    ...     return net(torch.full((1, 4, 4), float(ctx[1])))
    >>> window = TensorWindow((1, 4, 4))
    >>> t = InfiniteTensor((1, 4, None), f, window, version=digest(net))
    >>> t.version == digest(torch.nn.DataParallel(net))
    True
    """
    if not isinstance(module, nn.Module):
        raise ValidationError(f"digest takes a torch.nn.Module, got {quoted(module)}; give the network itself")
    return digest_of_module(module)


def digest_of_module(module: nn.Module, filled: AbstractSet[str] = frozenset()) -> str:
    """Return the `digest` of a network.

    `filled` has names of lists and dicts. Tensors in these lists and dicts are not covered.
    """
    try:
        return _Modules(filled).digest(module, "")
    except ValidationError:
        raise
    except Exception as error:
        # Attributes and state of a module may be computed by a user's code.
        raise ValidationError(
            f"digest: {name_of(type(module))} cannot be inspected: {type(error).__name__}: {error}; set "
            "version= to a text for the weights, such as the name of a checkpoint"
        ) from error


def digest_of_script(scripted: Any) -> str:
    """Return the SHA-256 of a TorchScript module or function.

    The digest covers code, constants, parameters and attributes.
    """
    said = []
    with zipfile.ZipFile(io.BytesIO(scripted.save_to_buffer())) as archive:
        for name in archive.namelist():
            # All files are in a folder with an arbitrary name.
            inside = name.partition("/")[2]
            if not inside.endswith(_NOT_CODE) and not inside.startswith("traced_inputs"):
                said.append(_MANGLED.sub(b"", inside.encode()) + b"\0" + _unmangled(inside, archive.read(name)))
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in sorted(said))).hexdigest()


def _unmangled(name: str, content: bytes) -> bytes:
    """Make the content of a TorchScript file the same in all processes."""
    if name.endswith(".pkl"):
        # A pickle stores string lengths, so disassemble the pickle before removing numbers. Nothing is run.
        content = "\n".join(f"{op.name} {arg!r}" for op, arg, _ in pickletools.genops(content)).encode()
        return _MANGLED.sub(b"", content)
    return b"\n".join(sorted(_MANGLED.sub(b"", content).split(b"\n"))) if name.endswith(".py") else content


class _Modules:
    """Computes digests of modules, once per module."""

    def __init__(self, filled: AbstractSet[str]) -> None:
        self._filled = filled
        self._known: dict[int, str] = {}

    def digest(self, module: nn.Module, path: str) -> str:
        """Compute the digests of the submodules, then of the module.

        The computation is not recursive, because modules may nest deeply.
        """
        waiting: list[tuple[nn.Module, str, tuple[_Named, _Named] | None]] = [(bare(module), path, None)]
        while waiting:
            net, path, held = waiting.pop()
            if held is not None:
                self._known[id(net)] = sha256_of(self._said(net, path, *held))
            elif isinstance(net, torch.jit.ScriptModule):
                self._known[id(net)] = digest_of_script(net)
            elif id(net) not in self._known:
                # A placeholder until the digest is known, because a submodule may contain this module.
                self._known[id(net)] = "circle"
                held = _held(net, path)
                waiting.append((net, path, held))
                waiting += [(bare(child), where, None) for _, where, child in reversed(held[1])]
        return self._known[id(bare(module))]

    def _said(self, net: nn.Module, path: str, tensors: _Named, modules: _Named) -> Iterator[str]:
        kind: Any = type(net)
        yield from (name_of(kind), _extra(net))
        if net.training and mode_matters(net):
            yield "in training mode"
        made = assigned_by(kind)
        # Parameters are always covered.
        for name, where, each in tensors:
            container, is_in_one, _ = name.partition("[")
            is_made = container in made or (is_in_one and container in self._filled)
            if name in net._parameters or not is_made:  # noqa: SLF001
                yield from (f"tensor {name}", digest_of_tensor(each, where))
        for name, value in _rest_of_state(net, [name for name, _, _ in tensors]):
            yield from (f"tensor {name}", *_state(f"{path}.{name}", value))
        for name, _, child in modules:
            yield from (f"module {name}", self._known[id(bare(child))])


_Named: TypeAlias = list[tuple[str, str, Any]]
"""Tensors or modules, each with a name in the module and a path from the outermost module."""


def _held(net: nn.Module, path: str) -> tuple[_Named, _Named]:
    """Return the tensors and the submodules of a module.

    Members of lists and dicts among the attributes are included.
    """
    found: tuple[_Named, _Named] = [], []

    def put(name: str, value: object) -> None:
        if isinstance(value, torch.Tensor | nn.Module):
            found[isinstance(value, nn.Module)].append((name, f"{path}.{name}", value))

    # The public methods leave out members with two names, and some networks override the methods.
    for each in (net._parameters, net._buffers, net._modules):  # noqa: SLF001
        for name, value in each.items():
            put(name, value)
    for name, value in vars(net).items():
        if name in OF_MODULES:
            continue
        if isinstance(value, torch.Tensor):
            put(name, value)
        elif isinstance(value, list | tuple | dict) and name[0] != "_":
            items = enumerate(value) if isinstance(value, list | tuple) else tuple(value.items())
            for key, member in islice(items, _MOST_LISTED):
                put(f"{name}[{key!r:.100}]" if isinstance(key, int | str) else name, member)
    return found


def _extra(module: nn.Module) -> str:
    """Return the `extra_repr` of a module, without addresses.

    Addresses vary between processes.
    """
    if isinstance(module, nn.ParameterList | nn.ParameterDict):
        # The extra_repr contains only devices of parameters, and facts covered elsewhere.
        return ""
    described = getattr(type(module), "_digested", type(module).extra_repr)
    try:
        return _ADDRESS.sub("", str(described(module)))
    except Exception as error:  # noqa: BLE001  (a user's extra_repr, which is only for people)
        return f"raises {name_of(type(error))}"


def _rest_of_state(module: nn.Module, tensors: Collection[str]) -> Iterator[tuple[str, object]]:
    kind = type(module)
    own = (kind._save_to_state_dict, kind.get_extra_state)  # noqa: SLF001  (what modules override)
    if own == (nn.Module._save_to_state_dict, nn.Module.get_extra_state) or hasattr(kind, "_digested"):  # noqa: SLF001
        return
    saved: dict[str, object] = {}
    module._save_to_state_dict(saved, "", True)  # noqa: SLF001
    yield from ((name, value) for name, value in saved.items() if name not in tensors and name not in module._buffers)  # noqa: SLF001


def _state(name: str, value: object) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        yield digest_of_tensor(value, name)
    elif isinstance(value, list | tuple | dict):
        yield f"{type(value).__name__}[{len(value)}]"
        for each in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
            yield from _state(name, each)
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype):
        yield repr(value)
    else:
        yield name_of(type(value))


def digest_of_tensor(tensor: torch.Tensor, name: str = ".a tensor") -> str:
    """Return dtype, shape and hashes of a tensor, as a text.

    `name` is the name of the tensor in messages, with a dot in front: ``.conv.weight``. Raise ValidationError if the
    tensor has no readable values.
    """
    if is_lazy(tensor) or tensor.is_meta:
        state = "belongs to a lazy module that was not called yet" if is_lazy(tensor) else "is on the device meta"
        raise ValidationError(f"digest: {name[1:]!r} {state}, and has no values; load the weights first")
    try:
        return _hashed(tensor)
    except (RuntimeError, TypeError) as error:
        raise ValidationError(
            f"digest: the bytes of {name[1:]!r} ({type(tensor).__name__}, {tensor.dtype}, {tensor.layout}) "
            f"cannot be read: {error}; set version= to a text for the weights, such as the name of a checkpoint"
        ) from error


_hashes: dict[int, tuple[weakref.ref[torch.Tensor], tuple[Any, ...], str]] = {}
"""Known digests by tensor id, each with the tensor's `state_of` at the time of hashing."""


def _hashed(tensor: torch.Tensor) -> str:
    state = state_of(tensor)
    known = _hashes.get(id(tensor))
    if known is not None and known[0]() is tensor and state is not None and known[1] == state:
        return known[2]
    # The extent of a nested dimension is a symbol, valid only in this process.
    shape = [extent if isinstance(extent, int) else "nested" for extent in tensor.shape]
    said = " ".join((str(tensor.dtype), str(shape), *_parts_said(tensor.detach())))
    if state is not None:
        key = id(tensor)
        _hashes[key] = weakref.ref(tensor, lambda _: _hashes.pop(key, None)), state, said
    return said


def state_of(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return a value for detecting changes of a tensor's content.

    The value has the address and the version of the tensor and, on the CPU, a checksum. Return None if only a full hash
    can detect changes.
    """
    if tensor.layout != torch.strided or tensor.is_inference() or type(tensor) not in (torch.Tensor, nn.Parameter):
        return None
    checked = None
    if tensor.device.type == "cpu" and (dense := _dense(tensor.detach())) is not None:
        # Writing through `tensor.data` or a numpy view does not change the version.
        checked = checksum(dense.contiguous().reshape(-1).view(torch.uint8).numpy())
    return tensor.data_ptr(), tensor._version, tensor.shape, tensor.stride(), tensor.dtype, checked  # noqa: SLF001


def _parts_said(tensor: torch.Tensor) -> list[str]:
    dense = _dense(tensor)
    if dense is None:
        kind, parts = _parts(tensor)
        return [kind, *(digest_of_tensor(part) for part in parts)]
    if not dense.is_contiguous():
        # Leaves must be contiguous. Copy on the CPU, to take no memory of a device.
        dense = dense.cpu().contiguous()
    flat = dense.reshape(-1).view(torch.uint8)
    leaves = [flat[start : start + _LEAF] for start in range(0, len(flat), _LEAF)]
    return on_threads(_sha256, leaves, torch.get_num_threads())


def _sha256(leaf: torch.Tensor) -> str:
    return hashlib.sha256(leaf.cpu().numpy().data).hexdigest()


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """Convert a tensor to a dense tensor.

    Return None for a tensor made of several tensors, such as a sparse tensor.
    """
    if tensor.is_mkldnn:
        return tensor.to_dense()
    if tensor.is_quantized or tensor.layout != torch.strided or hasattr(tensor, "__tensor_flatten__"):
        return None
    return tensor.resolve_conj().resolve_neg()


def _parts(tensor: torch.Tensor) -> tuple[str, list[torch.Tensor]]:
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


class Modes:
    """Parts of networks with different results in training mode and eval mode.

    Parameters
    ----------
    networks : iterable of torch.nn.Module
        The networks. They are searched once, at construction, so that each check is fast.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        self._parts = [
            (network, name, part)
            for network in networks
            # Called on nn.Module, because some networks override this method.
            for name, part in nn.Module.named_modules(network)
            if mode_matters(part)
        ]

    def check(self) -> None:
        """Raise ValidationError if any part is in training mode."""
        for network, name, part in self._parts:
            if part.training:
                within = f"{name!r}, a {_name_of(part)} in " if name else ""
                raise ValidationError(
                    f"{within}the network {_name_of(network)} is in training mode: results may differ between "
                    "calls, and calls may change the network; call net.eval() first, and net.train() to resume training"
                )


def mode_matters(module: nn.Module) -> bool:
    """Whether a module's results differ between training mode and eval mode.

    Submodules are not considered.
    """
    # Frozen TorchScript has no mode. The mode of a wrapper around a module does not matter.
    if not hasattr(module, "training") or bare(module) is not module:
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return _graph_reads_mode(module)
    # Some hooks of torch recompute weights in training mode.
    parts: list[Any] = [module, *module._forward_pre_hooks.values(), *module._forward_hooks.values()]  # noqa: SLF001
    return any(map(_names_mode, parts)) or any(map(_reads_mode, map(type, parts)))


def _graph_reads_mode(scripted: Any) -> bool:
    if not hasattr(scripted, "inlined_graph"):  # so it has no `forward`
        return False
    graph = scripted.inlined_graph
    itself = next(graph.inputs()).debugName()
    read = graph.findAllNodes("prim::GetAttr")
    return any(node.s("name") == "training" and node.input().debugName() == itself for node in read)


@lru_cache(maxsize=4096)
def _reads_mode(kind: type) -> bool:
    return any(
        _names_mode(part)
        for each in kind.__mro__
        if each is not nn.Module
        for name, value in vars(each).items()
        if name not in ("__init__", "train")
        for part in parts_of_attribute(value)
    )


def _names_mode(function: object) -> bool:
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return False
    # The function may be decorated.
    return "training" in uses_of(function.__code__).attributes or _names_mode(function.__dict__.get("__wrapped__"))


def _name_of(module: nn.Module) -> str:
    return str(getattr(module, "original_name", type(module).__name__))
