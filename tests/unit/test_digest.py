"""The digest of a network goes by its weights and settings, and not by where and how they are kept.

Two tables: networks all of which differ, and networks that are the same.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.quantization import DeQuantStub, QuantStub, convert, get_default_qconfig, prepare, quantize_dynamic
from torch.nn.utils import parametrizations, spectral_norm

from infinite_tensor import InfiniteBuffer, InfiniteTensor, TensorWindow, ValidationError, digest
from tests.support.networks import Net, filled
from tests.support.stores import sample

# Of torch, where it is used as users use it.
pytestmark = pytest.mark.filterwarnings("ignore:.*(jit|quantiz|prototype|experimental|weight_norm|[Ss]parse|lazy).*")

Make = Callable[[], Any]


# Networks.


class Other(Net):
    """Another class, with all that the first one has."""


def with_weight(value: float, at: int = 0) -> Net:
    net = Net()
    with torch.no_grad():
        net.out.weight[at, at] = value
    return net


def with_layer(name: str, layer: nn.Module) -> Net:
    net = Net()
    net.layers.register_module(name, layer)
    return net


def trained() -> Net:
    """Run in training mode, which changes statistics and no weights."""
    net = Net()
    net.layers(torch.ones(2, 2, 4, 4))
    return net


def buffered(name: str, persistent: bool = True) -> Net:
    net = Net()
    net.register_buffer(name, net.get_buffer(name) + 1, persistent)
    return net


def holding(*tensors: torch.Tensor) -> nn.Module:
    net = nn.Module()
    for at, tensor in enumerate(tensors):
        net.register_buffer(f"b{at}", tensor)
    return net


def named(*names: str) -> nn.Module:
    """Networks under names, in this order."""
    net = nn.Module()
    for name in names:
        net.register_module(name, Net() if name in ("module", "_orig_mod") else nn.PReLU())
    return net


def tied(value: float = 0.5) -> nn.Module:
    net = filled(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), value)
    net[1].weight = net[0].weight  # type: ignore[index]
    return net


class Stateful(nn.Module):
    """Keeps something in the ``state_dict`` that is no tensor."""

    def __init__(self, state: object) -> None:
        super().__init__()
        self.state = state

    def get_extra_state(self) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state


class Described(nn.Module):
    """Tells of itself what another process would not."""

    def __init__(self, activation: object = torch.relu) -> None:
        super().__init__()
        self.activation = activation

    def extra_repr(self) -> str:
        return f"{self.activation}, {object()}, {Described.forward}"


class Undescribed(nn.Module):
    def extra_repr(self) -> str:
        raise RuntimeError(f"{self.training} is not known")


def odd() -> nn.Module:
    """Of which each process must find the same digest: see `test_identity`."""
    return nn.ModuleList([Net(), Described(), Undescribed(), nn.ParameterList([torch.ones(3)])])


def held_by_its_part() -> nn.Module:
    net, part = Net(), nn.Module()
    net.register_module("part", part)
    part.register_module("whole", net)
    return net


# Tensors.

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int64, torch.uint16, torch.uint64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.complex32),
]


def per_channel(tensor: torch.Tensor, scale: float = 0.1) -> torch.Tensor:
    return torch.quantize_per_channel(tensor, torch.full((4,), scale), torch.zeros(4), 0, torch.qint8)


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
    "mkldnn": lambda t: t.to_mkldnn(),
    "quantized": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    "quantized by channel": per_channel,
    "nested": lambda t: torch.nested.nested_tensor([t, t[:2]], layout=torch.jagged),
}
VALUES = torch.arange(16.0).reshape(4, 4).remainder(5)
INTS = torch.arange(4.0)
SHAPES: list[list[Any]] = [[4], [(2, 2)], [(4, 1)], [(1, 3), 1], [3, 1], [0], []]


def twice() -> torch.Tensor:
    """A sparse tensor with two values for one place."""
    return torch.sparse_coo_tensor(
        torch.tensor([[2, 0, 2]]), torch.tensor([1.0, 4.0, 2.0]), (4,), check_invariants=True
    )


LEAF = 2**20
"""Of float32: a tensor of three leaves and some bytes is hashed in pieces."""


def large(*changed: int) -> torch.Tensor:
    values = torch.arange(3 * LEAF + 5.0)
    values[list(changed)] += 0.5
    return values


# Modules of all kinds.


class Quantizable(nn.Module):
    """A layer between what quantizes and what does the reverse."""

    def __init__(self, layer: nn.Module, value: float) -> None:
        super().__init__()
        self.quantize, self.layer, self.dequantize = QuantStub(), filled(layer, 0.5), DeQuantStub()
        with torch.no_grad():
            layer.get_parameter("weight")[0].fill_(value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dequantize(self.layer(self.quantize(x)))  # type: ignore[no-any-return]


def quantized(layer: Callable[[], nn.Module], value: float) -> nn.Module:
    """A layer whose weights have the same scale, whatever the value up to 0.5."""
    net = Quantizable(layer(), value).eval()
    net.qconfig = get_default_qconfig("qnnpack")
    prepared = prepare(net)
    for at in (0.0, 1.0):
        prepared(torch.full((1, 1, 4, 4), at))
    return convert(prepared)  # type: ignore[no-any-return]


def parametrized(name: str, value: float) -> nn.Module:
    """A weight that is computed from others."""
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    getattr(parametrizations, name)(net)
    with torch.no_grad():
        net.get_parameter("bias").fill_(0)
        next(net.get_submodule("parametrizations.weight").parameters()).add_(value)
    return net


def within(levels: int, wrap: Callable[[nn.Module], nn.Module], value: float) -> nn.Module:
    net: nn.Module = filled(nn.Linear(1, 1), value)
    for _ in range(levels):
        net = wrap(net)
    return net


def buffer(version: float) -> nn.Module:
    """Of a tensor that gets a random id."""
    t = InfiniteTensor((None,), lambda _ctx: torch.ones(4), TensorWindow((4,)), version=version)
    return nn.ModuleList([InfiniteBuffer(t), InfiniteBuffer()])


KINDS: dict[str, Callable[[float], Any]] = {
    "script": lambda value: torch.jit.script(filled(nn.Linear(2, 2), value)),
    "quantized linear": partial(quantized, lambda: nn.Linear(4, 4)),
    "quantized convolution": partial(quantized, lambda: nn.Conv2d(1, 4, 3, padding=1)),
    "quantized for each input": lambda value: quantize_dynamic(Quantizable(nn.Linear(4, 4), value), {nn.Linear}),
    "weight_norm": partial(parametrized, "weight_norm"),
    "spectral_norm": partial(parametrized, "spectral_norm"),
    "orthogonal": partial(parametrized, "orthogonal"),
    "modules deep in each other": partial(within, 1500, nn.Sequential),
    # It is looked at once.
    "a module that is met again": partial(within, 50, lambda net: nn.ModuleList([net, net])),
    "an infinite buffer": buffer,
}

# The mode counts where code of torch, or of a user, reads it.


def decorated(method: Callable[..., Any]) -> Callable[..., Any]:
    return wraps(method)(lambda *args: method(*args))  # noqa: PLW0108  (a closure)


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


class ByName(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if getattr(self, "training") else x  # noqa: B009


class Decorated(nn.Module):
    @decorated
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if self.training else x


class Property(nn.Module):
    gain = property(lambda self: 2 if self.training else 1)


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


READ_IT: dict[str, Make] = {
    "Dropout": nn.Dropout,
    "AlphaDropout": nn.AlphaDropout,
    "RReLU": nn.RReLU,
    "BatchNorm2d": lambda: nn.BatchNorm2d(2),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm(2),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(2),
    "GRU": lambda: nn.GRU(2, 2),
    "MultiheadAttention": lambda: nn.MultiheadAttention(2, 1),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(2, 1),
    "its code": Reading,
    "the code of a base": Inheriting,
    "a name in a string": ByName,
    "a decorated method": Decorated,
    "a property": Property,
    "a method in TorchScript": lambda: torch.jit.script(nn.Sequential(Helping())),
    "a hook": hooked,
    "a hook of torch": lambda: spectral_norm(nn.Conv2d(2, 2, 3)),
    "a parametrization": lambda: parametrizations.spectral_norm(nn.Conv2d(2, 2, 3)),
    "a part of what wraps another": lambda: nn.DataParallel(nn.Dropout()),
}
READ_IT_NOT: dict[str, Make] = {
    "Conv2d": lambda: nn.Conv2d(2, 2, 3),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(2, 2, 3),
    "Linear": lambda: nn.Linear(2, 2),
    "Embedding": lambda: nn.Embedding(2, 2),
    "GroupNorm": lambda: nn.GroupNorm(1, 2),
    "LayerNorm": lambda: nn.LayerNorm(2),
    "Upsample": nn.Upsample,
    "containers": lambda: nn.ModuleList([nn.Sequential(nn.ReLU())]),
    "only what sets it": Setting,
    "what wraps another": lambda: nn.DataParallel(nn.ReLU()),
}


def of_modes(makes: dict[str, Make]) -> dict[str, list[Make]]:
    """A network in training mode, and the same one in evaluation."""

    return {
        f"modes of {name}": [lambda make=make: make().train(), lambda make=make: make().eval()]  # type: ignore[misc]
        for name, make in makes.items()
    }


DIFFERENT: dict[str, list[Make]] = {
    "networks": [
        Net,
        partial(with_weight, 0.5 + 1e-6, 3),
        # Where the network has none, zeros of either sign.
        partial(with_weight, 0.0),
        partial(with_weight, -0.0),
        partial(with_weight, torch.nan),
        partial(buffered, "mean"),
        partial(buffered, "shift", persistent=False),
        trained,
        lambda: Net().eval(),
        lambda: with_layer("1", nn.BatchNorm2d(3).eval()),
        lambda: with_layer("2", nn.Dropout(0.5)),
        Other,
        lambda: with_layer("2", nn.Dropout1d(0.25)),
        lambda: with_layer("3", nn.Identity()),
        lambda: with_layer("3", nn.Dropout(0.25)),
        lambda: Net().double(),
        lambda: Net().to(torch.bfloat16),
        # Settings that the `extra_repr` of a layer leaves out.
        lambda: with_layer("2", nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)),
        lambda: with_layer("2", nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)),
        lambda: with_layer("2", nn.AvgPool2d(3, 1, 1, count_include_pad=True)),
        lambda: with_layer("2", nn.AvgPool2d(3, 1, 1, count_include_pad=False)),
        lambda: with_layer("2", filled(nn.RNN(2, 2, nonlinearity="tanh"))),
        lambda: with_layer("2", filled(nn.RNN(2, 2, nonlinearity="relu"))),
        partial(named, "module"),
        partial(named, "_orig_mod"),
        held_by_its_part,
    ],
    "names and their order": [partial(named, "a", "b"), partial(named, "b", "a"), named],
    "where tensors end": [
        *(partial(holding, *[torch.zeros(shape) for shape in shapes]) for shapes in SHAPES),
        partial(holding, torch.zeros(4, dtype=torch.int32)),
    ],
    "shared weights": [tied, partial(tied, 0.25)],
    "how a tensor is quantized": [
        *(
            lambda scale=scale, zero=zero: holding(
                torch.quantize_per_tensor((INTS - zero) * scale, scale, zero, torch.qint8)
            )
            for scale, zero in [(0.1, 0), (0.2, 0), (0.1, 1)]
        ),
        *(lambda scale=scale: holding(per_channel(INTS * scale, scale)) for scale in (0.1, 0.2)),
    ],
    "extra state": [
        partial(Stateful, state)
        for state in [None, 1, 1.0, "1", b"1", (1,), [1], {"a": 1}, {"a": torch.ones(2)}, {"a": torch.zeros(2)}]
    ]
    + [lambda: Stateful(object())],
    "descriptions": [Described, lambda: Described(torch.tanh), Undescribed, nn.Module],
    "large tensors": [
        *(lambda at=at: holding(large(*at)) for at in ([], [0], [LEAF - 1], [LEAF], [-1])),
        lambda: holding(torch.cat([large()[LEAF : 2 * LEAF], large()[:LEAF], large()[2 * LEAF :]])),
    ],
    **{
        f"buffers of {dtype}": [
            lambda at=at, one=one, dtype=dtype: holding(torch.eye(5)[one].to(dtype)[at])  # type: ignore[misc]
            for at in (slice(None), 4)
            for one in (0, 4)
        ]
        for dtype in DTYPES
    },
    **of_modes(READ_IT),
}


def digest_of(make: Make) -> str:
    torch.manual_seed(0)
    return digest(make())


@pytest.mark.parametrize("name", DIFFERENT)
def test_each_of_these_has_a_digest_of_its_own(name: str) -> None:
    digests = [*map(digest_of, DIFFERENT[name])]
    assert len(set(digests)) == len(digests)
    assert digests == [*map(digest_of, DIFFERENT[name])]
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in digests)


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_of_any_form_counts_by_its_values(form: str) -> None:
    changed = VALUES.clone()
    changed[3, 1] += 1
    makes = [partial(holding, FORMS[form](each)) for each in (VALUES, VALUES.roll(1, 0), changed)]
    digests = [digest(make()) for make in makes]
    assert len({*digests, digest(holding(VALUES))}) == (3 if form == "mkldnn" else 4)
    assert digest(holding(FORMS[form](VALUES.clone()))) == digests[0]


@pytest.mark.parametrize("kind", sample(KINDS, *KINDS.keys() - {"quantized linear", "quantized convolution"}))
def test_modules_of_all_kinds_count_by_what_they_compute_from(kind: str) -> None:
    make = KINDS[kind]
    assert digest(make(0.25)) == digest(make(0.25)) != digest(make(0.125))


# What does not count.


def strided(net: Net) -> nn.Module:
    for layer in net.modules():
        for name, parameter in [*layer.named_parameters(recurse=False)]:
            room = torch.zeros(*parameter.shape, 3)
            room[..., 1] = parameter.detach()
            layer.register_parameter(name, nn.Parameter(room[..., 1]))
    assert not net.out.weight.is_contiguous()
    return net


def loaded(net: Net) -> nn.Module:
    other = Net(0.25)
    other.load_state_dict(net.state_dict())
    return other


def compiled(net: nn.Module) -> Any:
    # Generating code would take seconds, and a compiler.
    return torch.compile(net, backend="eager")


def compiled_in_place(net: nn.Module) -> nn.Module:
    net.compile(backend="eager")
    return net


KEPT: list[Any] = [
    copy.deepcopy,
    lambda net: net.to(memory_format=torch.channels_last),
    strided,
    lambda net: net.requires_grad_(False),
    loaded,
    lambda net: net.share_memory(),
    compiled,
    compiled_in_place,
    lambda net: with_layer("0", compiled(net.layers[0])),
    nn.DataParallel,
    lambda net: compiled(nn.DataParallel(compiled(net))),
    lambda net: net.cuda() if torch.cuda.is_available() else net,
]
SAME: dict[str, list[Make]] = {
    "a network, whatever keeps it": [Net, *(lambda keep=keep: keep(Net()) for keep in KEPT)],
    "shared weights": [tied, lambda: filled(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))],
    "a conjugate": [
        lambda: holding(torch.full((3,), 1 + 2j).conj()),
        lambda: holding(torch.full((3,), 1 - 2j)),
    ],
    "a sparse tensor": [lambda: holding(twice()), lambda: holding(torch.tensor([4.0, 0, 3, 0]).to_sparse())],
    "a large tensor": [lambda: holding(large()), lambda: holding(torch.stack([large(), large()], 1)[:, 0])],
    **of_modes(READ_IT_NOT),
}


@pytest.mark.parametrize("name", SAME)
def test_these_have_one_digest(name: str) -> None:
    assert len({*map(digest_of, SAME[name])}) == 1


@pytest.fixture
def _process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_process_group")
def test_what_spreads_a_network_over_processes_does_not_count() -> None:
    assert digest(nn.parallel.DistributedDataParallel(Net())) == digest(Net())


def test_the_number_of_threads_does_not_count() -> None:
    before, found = torch.get_num_threads(), set()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.add(digest(holding(large())))
    torch.set_num_threads(before)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Net().layers.to("meta"), "load the weights"),
        (lambda: nn.LazyLinear(3), "lazy"),
        (nn.LazyBatchNorm1d, "lazy"),
        (lambda: holding(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])), "version="),
        (lambda: "resnet50", r"torch\.nn\.Module"),
        (lambda: Net, r"torch\.nn\.Module"),
        (lambda: Stateful(LookupError("no state here")), "version="),
        (lambda: nn.Linear.__new__(nn.Linear), "version="),
    ],
)
def test_what_has_no_values_is_refused(make: Make, word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        digest(make())


def test_a_network_that_cannot_be_inspected_counts_by_its_class_in_an_f() -> None:
    net = Stateful(LookupError("no state here"))
    t = InfiniteTensor((None,), lambda ctx: net(torch.full((1,), float(ctx[0]))), TensorWindow((4,)))
    functions: Any = t.to_json()["functions"]
    assert functions["values"]
    assert not functions["opaque"]
