"""Small networks whose weights are always the same ones, and functions of tensors that hold them.

The functions stand in stores that were written before (tests/stores/stored): to edit one is a `FunctionChangedWarning`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from infinite_tensor import InfiniteTensor, TensorWindow, TileStore

WINDOW = TensorWindow((4,))


def filled(module: nn.Module, value: float = 0.5) -> nn.Module:
    """The module, every weight of which is `value`."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(value)
    return module


class Net(nn.Module):
    """Has parameters, buffers of both kinds, settings, and a submodule of each depth."""

    def __init__(self, value: float = 0.5) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout(0.25))
        self.out = nn.Linear(4, 4)
        self.register_buffer("mean", torch.arange(3.0))
        self.register_buffer("shift", torch.arange(4.0), persistent=False)
        filled(self, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x) + self.get_buffer("shift")  # type: ignore[no-any-return]

    def sample(self, ctx: tuple[int, ...]) -> torch.Tensor:
        return self(torch.full((4,), float(ctx[0])))  # type: ignore[no-any-return]


class Painter:
    """Holds networks, and has a method that paints with them."""

    def __init__(self, *nets: nn.Module) -> None:
        self.nets = list(nets)

    def paint(self, ctx: tuple[int, ...]) -> torch.Tensor:
        x = torch.full((4,), float(ctx[0]))
        for net in self.nets:
            x = net(x)
        return x


def closing_over(net: Any) -> Callable[[tuple[int, ...]], torch.Tensor]:
    """A function that has a network in its closure."""
    return lambda ctx: net(torch.full((4,), float(ctx[0])))


def with_net(net: nn.Module, ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.as_tensor(net(torch.full((4,), float(ctx[0]))))


def halved(_ctx: tuple[int, ...], region: torch.Tensor) -> torch.Tensor:
    return region / 2


def build(store: TileStore, net: nn.Module) -> list[InfiniteTensor]:
    """Tensors of functions that hold a network in three ways, and one that is computed from the first."""
    kinds: dict[str, Callable[..., Any]] = {
        "closure": closing_over(net),
        "partial": functools.partial(with_net, net),
        "method": Painter(net).paint,
    }
    made = [InfiniteTensor((None,), f, WINDOW, tile_store=store, tensor_id=name) for name, f in kinds.items()]
    return [
        *made,
        InfiniteTensor((None,), halved, WINDOW, [made[0]], [WINDOW], tile_store=store, tensor_id="below"),
    ]
