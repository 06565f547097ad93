"""`predict` and `map` leave networks as they are: their mode, what they keep, and how they are trained afterwards."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from infinite_tensor import Reduction, ValidationError, ZarrTileStore, digest, from_array, predict, sl
from tests.support.stores import sample

IMAGE = torch.rand((3, 40, 56), generator=torch.Generator().manual_seed(0))


def predicted(net: Any, **options: Any) -> Any:
    return predict(net, IMAGE, window=(16, 16), overlap=0, batch_size=1, progress=False, **options)


def mapped(net: Any, **options: Any) -> Any:
    return from_array(IMAGE, dims=("c", "y", "x")).map(net, window=8, batch_size=1, channels=2, **options)


BOTH = pytest.mark.parametrize("made", [predicted, mapped], ids=["predict", "map"])


def classifier(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 2, 1), *layers)


def normalising() -> tuple[nn.Sequential, torch.Tensor]:
    """A network that training changes, and what it changes."""
    net = classifier(nn.BatchNorm2d(2))
    mean = net[1].running_mean
    assert isinstance(mean, torch.Tensor)
    return net, mean


@BOTH
@pytest.mark.parametrize("within", ["network", "function", "partial"])
def test_a_network_in_training_mode_is_refused_and_not_trained(made: Any, within: str) -> None:
    net, mean = normalising()
    functions = {"network": net, "function": lambda x: net(x) * 1, "partial": functools.partial(lambda n, x: n(x), net)}
    with pytest.raises(ValidationError, match=r"'1', a BatchNorm2d in the network Sequential .*net\.eval\(\)"):
        made(functions[within])
    assert net.training
    assert not mean.any()


@BOTH
def test_a_network_that_is_trained_on_before_the_rest_is_read_is_refused_then(made: Any, tmp_path: Path) -> None:
    net, mean = normalising()
    store = ZarrTileStore(tmp_path / "s.zarr", tile_size=16)
    options = {"store": store} | ({"region": sl[0:1, 0:1]} if made is predicted else {})
    tensor = made(net.eval(), **options)
    net.train()
    with pytest.raises(ValidationError, match=r"training mode.*net\.eval\(\)"):
        tensor[...]
    assert not mean.any()
    net.eval()
    assert torch.equal(tensor[...], made(net)[...])


def test_a_network_before_the_network_is_refused_in_training_mode() -> None:
    net, _ = normalising()
    with pytest.raises(ValidationError, match=r"BatchNorm2d .*net\.eval\(\)"):
        predicted(lambda batch: SCORER(net(batch).repeat(1, 2, 1, 1)[:, :3]))


@pytest.mark.parametrize("kind", ["function", "dict", "Reduction"])
def test_a_network_in_a_reduction_is_refused_in_training_mode(kind: str, tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(2)

    def scaled(values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = norm(values.T)
        return found.T

    net = (lambda batch: {"scores": SCORER(batch)}) if kind == "dict" else SCORER
    reduce = {"function": scaled, "dict": {"scores": scaled}, "Reduction": Reduction(scaled, 2, 2)}[kind]
    with pytest.raises(ValidationError, match=r"the network BatchNorm1d .*net\.eval\(\)"):
        predicted(net, store=tmp_path / "s.zarr", reduce=reduce)
    assert not (tmp_path / "s.zarr").exists()
    norm.eval()
    predicted(net, store=tmp_path / "s.zarr", reduce=reduce)
    assert norm.num_batches_tracked == 0


SCORER = classifier()


@BOTH
def test_a_mode_that_does_not_matter_is_no_part_of_what_is_stored(made: Any, tmp_path: Path) -> None:
    net = classifier(nn.ReLU())
    options = {"tensor_id": "t", "store": tmp_path / "s.zarr"}
    first = made(net.train(), **options)[...]
    assert net.training
    assert digest(net) == digest(net.eval())
    assert torch.equal(made(net, **options)[...], first)


class Biased(nn.Module):
    """Keeps in eval mode what it makes of a weight, and drops it in `train`, as torch says to do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bias = nn.Conv2d(3, 2, 1), nn.Parameter(torch.zeros(2, 1, 1))
        self.kept: torch.Tensor | None = None

    def train(self, mode: bool = True) -> Biased:
        if mode:
            self.kept = None
        super().train(mode)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.conv(x) + self.bias  # type: ignore[no-any-return]
        if self.kept is None:
            self.kept = self.bias.detach().clone()
        return self.conv(x) + self.kept  # type: ignore[no-any-return]


@BOTH
def test_a_network_that_keeps_something_between_modes_is_validated_as_it_is(made: Any) -> None:
    net, found = Biased(), []
    for _ in range(2):
        with pytest.raises(ValidationError, match=r"net\.eval\(\)"):
            made(net)
        found.append(made(net.eval())[...])
        with torch.no_grad():
            net.train().bias.add_(5)
    torch.testing.assert_close(found[1], found[0] + 5)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
class TestTorchScript:
    @BOTH
    @pytest.mark.parametrize("deploy", [torch.jit.freeze, torch.jit.optimize_for_inference])
    @pytest.mark.parametrize("inside", sample([False, True], True), ids=["alone", "in a network"])
    def test_what_has_no_mode_is_taken(self, made: Any, deploy: Callable[..., Any], inside: bool) -> None:
        net, _ = normalising()
        scripted = deploy(torch.jit.script(net.eval()))
        torch.testing.assert_close(made(nn.Sequential(scripted) if inside else scripted)[...], made(net)[...])
        assert len(digest(scripted)) == 64

    @BOTH
    def test_only_a_part_whose_mode_matters_is_refused(self, made: Any) -> None:
        net, mean = normalising()
        scripted = torch.jit.script(net)
        with pytest.raises(ValidationError, match=r"'1', a BatchNorm2d in the network Sequential .*net\.eval\(\)"):
            made(scripted)
        dict(scripted.named_modules())["1"].eval()
        assert torch.equal(made(scripted)[...], made(net.eval())[...])
        assert scripted.training
        assert not mean.any()


class Rotary(nn.Module):
    """Turns by a table that the first call makes, and keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(x.shape[-1], dtype=x.dtype).cos()
        return self.conv(x) * self.table  # type: ignore[no-any-return]


@BOTH
@pytest.mark.parametrize("kind", [Rotary, lambda: nn.Sequential(nn.LazyConv2d(2, 1))], ids=["a cache", "a lazy layer"])
def test_a_network_that_keeps_what_a_call_makes_can_be_trained_afterwards(made: Any, kind: Any) -> None:
    net = kind()
    made(net)[...]
    size = 16 if made is predicted else 8
    net(IMAGE[None, :, :size, :size]).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@BOTH
@pytest.mark.parametrize("inference", [False, True], ids=["", "in inference mode"])
def test_a_network_may_compute_gradients_within(made: Any, inference: bool) -> None:
    def guided(batch: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = batch.clone().requires_grad_()
            energy = (SCORER(x) ** 2).sum()
            (by,) = torch.autograd.grad(energy, x, create_graph=True)
            return (x - by)[:, :2]

    with torch.inference_mode(inference):
        found = made(guided)[...]
    assert not found.requires_grad
    assert not found.is_inference()
    torch.testing.assert_close(found, guided(IMAGE[None])[0].detach())
    assert all(parameter.grad is None for parameter in SCORER.parameters())


LARGE = nn.Conv2d(3, 2, 1)
LARGE.register_buffer("bytes", torch.zeros(2**18))


def by_name(batch: torch.Tensor) -> torch.Tensor:
    return LARGE(batch)  # type: ignore[no-any-return]


@BOTH
def test_a_network_that_a_function_names_is_not_pickled_with_it(made: Any) -> None:
    f = made(by_name).f
    assert len(pickle.dumps(f)) < 2**16


def quantized(batch: torch.Tensor) -> torch.Tensor:
    """Rounds to steps that follow the largest value of a batch, as dynamic quantization does."""
    step = batch.abs().max() / 127
    return torch.round(batch / step) * step


class Steps(nn.Module):
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return quantized(batch)


COMPANY = "other windows in its batch"


@pytest.mark.parametrize("blank", [0, 64])
@pytest.mark.parametrize(
    ("net", "told"),
    [
        (nn.BatchNorm2d(2, track_running_stats=False), True),
        (Steps(), True),
        (nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)), False),
        (nn.InstanceNorm2d(2), False),
        (nn.GroupNorm(1, 2), False),
    ],
)
def test_a_network_that_sees_the_other_windows_of_its_batch_is_told_so(net: nn.Module, told: bool, blank: int) -> None:
    torch.manual_seed(2)
    image = torch.rand(2, 16, 128) * torch.linspace(0.1, 5, 128)
    # No difference shows where all windows of a batch are alike.
    image[..., :blank] = 0
    how: Any = {"window": (16, 16), "overlap": 0, "progress": False}
    source = from_array(image, dims=("c", "y", "x"))
    for make in (
        lambda size: predict(net.eval(), image, batch_size=size, **how),
        lambda size: source.map(net.eval(), window=(16, 16), batch_size=size)[...],
    ):
        with pytest.warns(UserWarning, match=COMPANY) if told else nullcontext():
            make(4)
        make(1)


def test_labels_that_depend_on_a_batch_are_told(tmp_path: Path) -> None:
    image = torch.rand(3, 32, 64) * torch.linspace(0.1, 5, 64)
    how: Any = {"window": (16, 16), "progress": False}
    with pytest.warns(UserWarning, match=COMPANY):
        predict(lambda batch: quantized(batch).argmax(1), image, tmp_path / "s", overlap=0, **how)
    # Nothing is told again where nothing is computed.
    predict(lambda batch: quantized(batch).argmax(1), image, tmp_path / "s", overlap=0, **how)
