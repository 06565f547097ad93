"""Training mode matters for a module whose code reads it, and for no other one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from infinite_tensor import ValidationError, digest
from infinite_tensor.values.digest import Modes, mode_matters

OF_TORCH: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "Dropout": (nn.Dropout, True),
    "AlphaDropout": (nn.AlphaDropout, True),
    "RReLU": (nn.RReLU, True),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2), True),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(2), True),
    "LazyBatchNorm2d": (nn.LazyBatchNorm2d, True),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(2), True),
    "GRU": (lambda: nn.GRU(2, 2), True),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(2, 1), True),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(2, 1), True),
    "Conv2d": (lambda: nn.Conv2d(2, 2, 3), False),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 2, 3), False),
    "Linear": (lambda: nn.Linear(2, 2), False),
    "Embedding": (lambda: nn.Embedding(2, 2), False),
    "GroupNorm": (lambda: nn.GroupNorm(1, 2), False),
    "LayerNorm": (lambda: nn.LayerNorm(2), False),
    "ReLU": (nn.ReLU, False),
    "Upsample": (nn.Upsample, False),
    "Sequential": (lambda: nn.Sequential(nn.Dropout()), False),
    "ModuleList": (lambda: nn.ModuleList([nn.Dropout()]), False),
}


def decorated(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(*args: Any) -> Any:
        return method(*args)

    return called


class Reading(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.training else x


class Inheriting(Reading):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


class Helping(nn.Module):
    def forward(this, x: torch.Tensor) -> torch.Tensor:  # noqa: N805  (graphs of TorchScript have that name)
        return this.shifted(x) * 2

    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.training else x


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.selfish = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.selfish(x)  # type: ignore[no-any-return]


class ByName(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if getattr(self, "training") else x  # noqa: B009


class Decorated(nn.Module):
    @decorated
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.training else x


class Property(nn.Module):
    @property
    def gain(self) -> int:
        return 2 if self.training else 1


class Setting(nn.Module):
    """Names it where objects are made, and where it is set, alone."""

    def __init__(self) -> None:
        super().__init__()
        self.was = self.training

    def train(self, mode: bool = True) -> Setting:
        self.was = self.training
        super().train(mode)
        return self


def hooked() -> nn.Module:
    net = nn.Conv2d(2, 2, 3)
    net.register_forward_hook(lambda module, _given, output: output * 2 if module.training else output)
    return net


OF_USERS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "its code": (Reading, True),
    "the code of a base": (Inheriting, True),
    "a name in a string": (ByName, True),
    "a decorated method": (Decorated, True),
    "a property": (Property, True),
    "a hook": (hooked, True),
    "a hook of torch": (lambda: spectral_norm(nn.Conv2d(2, 2, 3)), True),
    "a parametrization": (
        lambda: parametrizations.spectral_norm(nn.Conv2d(2, 2, 3)).get_submodule("parametrizations.weight.0"),
        True,
    ),
    "only what sets it": (Setting, False),
    "what wraps another": (lambda: nn.DataParallel(nn.Dropout()), False),
    "a compiled module": (lambda: torch.compile(nn.Dropout(), backend="eager"), False),  # type: ignore[dict-item,return-value]
}


@pytest.mark.parametrize(("make", "matters"), [*OF_TORCH.values(), *OF_USERS.values()], ids=[*OF_TORCH, *OF_USERS])
def test_the_mode_matters_where_code_of_torch_or_of_a_user_reads_it(
    make: Callable[[], nn.Module], matters: bool
) -> None:
    assert mode_matters(make()) == matters


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_mode_of_torchscript_matters_where_its_code_reads_it() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(2, 2, 3), nn.Sequential(Helping(), Holding())))
    found = {name: mode_matters(module) for name, module in scripted.named_modules()}
    assert found == {"": False, "0": False, "1": False, "1.0": True, "1.1": False, "1.1.selfish": True}
    frozen = torch.jit.freeze(scripted.eval())
    assert [mode_matters(module) for module in frozen.modules()] == [False]


def test_the_part_that_is_in_training_mode_is_named() -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Sequential(nn.Dropout(), nn.Dropout()))
    modes = Modes([net])
    net[1][0].eval()  # type: ignore[index]
    with pytest.raises(ValidationError, match=r"'1\.1', a Dropout in the network Sequential .*call net\.eval\(\)"):
        modes.check()
    with pytest.raises(ValidationError, match=r"^the network Dropout is in training mode"):
        Modes([nn.Dropout()]).check()
    net.eval()
    modes.check()


@pytest.mark.parametrize("name", sorted(OF_TORCH.keys() - {"LazyBatchNorm2d", "Sequential", "ModuleList"}))
def test_the_mode_is_part_of_a_digest_where_it_matters(name: str) -> None:
    make, matters = OF_TORCH[name]
    net = make()
    assert (digest(net.train()) != digest(net.eval())) == matters
