"""Whether the mode of a network, training or eval, matters for what it computes."""

from __future__ import annotations

import types
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from infinite_tensor.errors import ValidationError
from infinite_tensor.values.bytecode import uses_of
from infinite_tensor.values.holding import bare, parts_of_attribute


class Modes:
    """The parts of networks that compute otherwise in training mode than in eval mode.

    Parameters
    ----------
    networks : iterable of torch.nn.Module
        They are looked through now, so that a check takes no time.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        self._parts = [
            (network, name, part)
            for network in networks
            # By the class: some networks have such a method of their own.
            for name, part in nn.Module.named_modules(network)
            if mode_matters(part)
        ]

    def check(self) -> None:
        """ValidationError where one of them is in training mode."""
        for network, name, part in self._parts:
            if part.training:
                within = f"{name!r}, a {_name_of(part)} in " if name else ""
                raise ValidationError(
                    f"{within}the network {_name_of(network)} is in training mode, in which results may differ from "
                    "call to call, and a call may change it; call net.eval() first, and net.train() to train on"
                )


def mode_matters(module: nn.Module) -> bool:
    """Whether a module, by itself and not what is in it, computes otherwise in training mode than in eval mode."""
    # TorchScript that was frozen has no mode. What is wrapped around a module has one of its own.
    if not hasattr(module, "training") or bare(module) is not module:
        return False
    if isinstance(module, torch.jit.ScriptModule):
        return _graph_reads_mode(module)
    # Hooks of torch make weights anew in training mode.
    parts: list[Any] = [module, *module._forward_pre_hooks.values(), *module._forward_hooks.values()]  # noqa: SLF001
    return any(map(_names_mode, parts)) or any(map(_reads_mode, map(type, parts)))


def _graph_reads_mode(scripted: Any) -> bool:
    """Whether the code of TorchScript, which has no bytecode, reads `training` of the module itself."""
    if not hasattr(scripted, "inlined_graph"):  # nor a `forward`
        return False
    graph = scripted.inlined_graph
    itself = next(graph.inputs()).debugName()
    read = graph.findAllNodes("prim::GetAttr")
    return any(node.s("name") == "training" and node.input().debugName() == itself for node in read)


@lru_cache(maxsize=4096)
def _reads_mode(kind: type) -> bool:
    """Whether the code of a class names `training`, beside what makes objects and what sets it."""
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
    # Decorators stand around it.
    return "training" in uses_of(function.__code__).attributes or _names_mode(function.__dict__.get("__wrapped__"))


def _name_of(module: nn.Module) -> str:
    return str(getattr(module, "original_name", type(module).__name__))
