"""The digest of a network goes by its weights and settings, and not by where and how they are kept."""

from __future__ import annotations

import copy
import hashlib
import re
import time
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
from infinite_tensor.values.code import Modes, mode_matters
from tests.support.networks import Net, filled
from tests.support.stores import sample

ROOT = Path(__file__).parents[2]

of_torch = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*experimental:UserWarning")
"""Warnings of torch's own, where it is used as users use it."""


def test_equal_networks_have_one_digest_of_64_digits() -> None:
    assert digest(Net()) == digest(Net())
    assert re.fullmatch("[0-9a-f]{64}", digest(Net()))


# What is noticed.


class Other(Net):
    """Another class, with all that the first one has."""


def with_weight(net: Net, change: Callable[[torch.Tensor], object]) -> Net:
    with torch.no_grad():
        change(net.out.weight)
    return net


def with_layer(net: Net, name: str, layer: nn.Module) -> Net:
    net.layers.register_module(name, layer)
    return net


def trained(net: Net) -> Net:
    """Run in training mode, which changes statistics and no weights."""
    net.layers(torch.ones(2, 2, 4, 4))
    return net


def buffered(net: Net, name: str, persistent: bool = True) -> Net:
    net.register_buffer(name, net.get_buffer(name) + 1, persistent)
    return net


LAYERS: dict[str, Callable[[Any], nn.Module]] = {
    "corners": lambda given: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=given),
    "padding": lambda given: nn.AvgPool2d(3, 1, 1, count_include_pad=given),
    "kind": lambda given: filled(nn.RNN(2, 2, nonlinearity=given)),
}
"""Layers with settings that their `extra_repr` leaves out."""

CHANGES: dict[str, Callable[[], nn.Module]] = {
    "one weight": lambda: with_weight(Net(), lambda w: w[3, 3].add_(1e-6)),
    "the sign of a zero": lambda: with_weight(Net(), lambda w: w[0, 0].fill_(-0.0)),
    "not a number": lambda: with_weight(Net(), lambda w: w[0, 0].fill_(torch.nan)),
    "a buffer": lambda: buffered(Net(), "mean"),
    "a buffer that is not persistent": lambda: buffered(Net(), "shift", persistent=False),
    "statistics of a submodule": lambda: trained(Net()),
    "evaluation": lambda: Net().eval(),
    "evaluation of one submodule": lambda: with_layer(Net(), "1", nn.BatchNorm2d(3).eval()),
    "a setting": lambda: with_layer(Net(), "2", nn.Dropout(0.5)),
    "the class": Other,
    "the class of a submodule": lambda: with_layer(Net(), "2", nn.Dropout1d(0.25)),
    "one more submodule": lambda: with_layer(Net(), "3", nn.Identity()),
    "the name of a submodule": lambda: with_layer(Net(), "3", nn.Dropout(0.25)),
    "the dtype": lambda: Net().double(),
    "half precision": lambda: Net().to(torch.bfloat16),
    **{
        f"{name}={value}": lambda name=name, value=value: with_layer(Net(), "2", LAYERS[name](value))  # type: ignore[misc]
        for name, values in {"corners": (True, False), "padding": (True, False), "kind": ("tanh", "relu")}.items()
        for value in values
    },
}


def test_each_change_gives_another_digest() -> None:
    digests = {name: digest(make()) for name, make in CHANGES.items()} | {"none": digest(Net())}
    # A zero of either sign stands at a place where the network has none.
    digests["zero"] = digest(with_weight(Net(), lambda w: w[0, 0].fill_(0.0)))
    assert len(set(digests.values())) == len(digests)


def test_the_order_of_submodules_counts() -> None:
    one, other = nn.Sequential(), nn.Sequential()
    for name in ("scale", "bound"):
        one.register_module(name, nn.Hardtanh() if name == "bound" else nn.PReLU())
    for name in ("bound", "scale"):
        other.register_module(name, nn.Hardtanh() if name == "bound" else nn.PReLU())
    assert digest(one) != digest(other)


def test_dtype_and_shape_count_and_so_does_where_one_tensor_ends_and_the_next_begins() -> None:
    def of(*tensors: torch.Tensor) -> str:
        net = nn.Module()
        for at, tensor in enumerate(tensors):
            net.register_buffer(f"b{at}", tensor)
        return digest(net)

    zeros = torch.zeros
    cases = [
        [zeros(4)],
        [zeros(4, dtype=torch.int32)],
        [zeros(2, 2)],
        [zeros(4, 1)],
        [zeros(1, 3), zeros(1)],
        [zeros(3), zeros(1)],
        [zeros(0)],
        [],
    ]
    assert len({of(*case) for case in cases}) == len(cases)


# What does not count.


def compiled(net: nn.Module) -> Any:
    # Generating code would take seconds, and a compiler.
    return torch.compile(net, backend="eager")


def channels_last(net: Net) -> nn.Module:
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


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


def with_compiled_part(net: Net) -> nn.Module:
    return with_layer(net, "0", torch.compile(net.layers[0]))  # type: ignore[arg-type]


def compiled_in_place(net: Net) -> nn.Module:
    net.compile(backend="eager")
    return net


def wrapped_twice(net: Net) -> nn.Module:
    wrapped: Any = net
    for wrap in (compiled, nn.DataParallel, compiled):
        wrapped = wrap(wrapped)
    return wrapped  # type: ignore[no-any-return]


@pytest.fixture
def _process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


SAME: dict[str, Callable[[Net], object]] = {
    "a copy": copy.deepcopy,
    "channels last": channels_last,
    "weights that lie apart": strided,
    "weights that need no gradient": lambda net: net.requires_grad_(False),
    "weights that were loaded": loaded,
    "weights in shared memory": lambda net: net.share_memory(),
    "compiled": compiled,
    "compiled in place": compiled_in_place,
    "with a compiled part": with_compiled_part,
    "spread over devices": nn.DataParallel,
    "wrapped several times": wrapped_twice,
}


@of_torch
@pytest.mark.parametrize("name", SAME)
def test_how_a_network_is_kept_does_not_count(name: str) -> None:
    net = SAME[name](Net())
    assert isinstance(net, nn.Module)
    assert digest(net) == digest(Net())


@pytest.mark.usefixtures("_process_group")
def test_what_spreads_a_network_over_processes_does_not_count() -> None:
    assert digest(nn.parallel.DistributedDataParallel(Net())) == digest(Net())


def test_a_submodule_that_is_named_as_a_wrapper_s_is_none() -> None:
    class Holder(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.register_module(name, Net())

    assert len({digest(Net()), digest(Holder("module")), digest(Holder("_orig_mod"))}) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_device_does_not_count() -> None:
    net = nn.ModuleList([Net(), nn.ParameterList([torch.ones(3), torch.ones(2)])])
    before = digest(net)
    assert digest(net.cuda()) == before


def test_weights_that_several_names_share_count_by_their_values() -> None:
    tied, untied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    filled(tied)
    filled(untied)
    tied[1].weight = tied[0].weight
    assert digest(tied) == digest(untied)
    filled(untied[1], 0.25)
    assert digest(tied) != digest(untied)


def test_a_conjugate_counts_by_its_values() -> None:
    net, other = nn.Module(), nn.Module()
    net.register_buffer("b", torch.full((3,), 1 + 2j).conj())
    other.register_buffer("b", torch.full((3,), 1 - 2j))
    assert net.get_buffer("b").is_conj()
    assert digest(net) == digest(other)


# Tensors of all kinds.

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int64, torch.uint16, torch.uint64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.complex32),
]


def holding(tensor: torch.Tensor) -> nn.Module:
    net = nn.Module()
    net.register_buffer("held", tensor)
    return net


@of_torch
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_buffer_may_have_any_dtype(dtype: torch.dtype) -> None:
    zeros, one = torch.zeros(5).to(dtype), torch.tensor([0, 0, 0, 0, 1.0]).to(dtype)
    assert digest(holding(zeros)) == digest(holding(zeros.clone())) != digest(holding(one))
    assert digest(holding(one[4])) == digest(holding(one[4].clone())) != digest(holding(zeros[4]))


def per_channel(tensor: torch.Tensor, scale: float = 0.1) -> torch.Tensor:
    return torch.quantize_per_channel(tensor, torch.full((4,), scale), torch.zeros(4), 0, torch.qint8)


MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
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


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.filterwarnings("ignore")
def test_a_buffer_may_be_made_of_others(kind: str) -> None:
    values = torch.arange(16.0).reshape(4, 4).remainder(5)
    moved, changed = values.roll(1, 0), values.clone()
    changed[3, 1] += 1
    make = MADE[kind]
    digests = [digest(holding(make(each))) for each in (values, moved, changed)]
    assert len({*digests, digest(holding(values))}) == (3 if kind == "mkldnn" else 4)
    assert digest(holding(make(values.clone()))) == digests[0]


@pytest.mark.filterwarnings("ignore")
def test_how_a_tensor_is_quantized_counts() -> None:
    ints = torch.arange(4.0)
    by = [(0.1, 0), (0.2, 0), (0.1, 1)]
    kinds = [torch.quantize_per_tensor((ints - zero) * scale, scale, zero, torch.qint8) for scale, zero in by]
    kinds += [per_channel(ints * scale, scale) for scale in (0.1, 0.2)]
    assert all(each.int_repr().tolist() == ints.tolist() for each in kinds)
    assert len({digest(holding(each)) for each in kinds}) == 5


def test_a_sparse_tensor_counts_by_its_values() -> None:
    at, values = torch.tensor([[2, 0, 2]]), torch.tensor([1.0, 4.0, 2.0])
    twice = torch.sparse_coo_tensor(at, values, (4,), check_invariants=True)
    assert digest(holding(twice)) == digest(holding(torch.tensor([4.0, 0, 3, 0]).to_sparse()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Net().layers.to("meta"),
            "'0.weight' is on the device meta, and has no values; load the weights first",
        ),
        (lambda: nn.LazyLinear(3), "'weight' belongs to a lazy module that was not called yet"),
        (nn.LazyBatchNorm1d, "'weight' belongs to a lazy module"),
        (
            lambda: holding(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
            r"the bytes of 'held' \(Tensor, torch.float32, torch.strided\) cannot be read: .*set version=",
        ),
        (lambda: "resnet50", "digest takes a torch.nn.Module, got 'resnet50'"),
        (lambda: Net, "digest takes a torch.nn.Module, got <class"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_values_is_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        digest(make())


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


def deep(value: float) -> nn.Module:
    net: nn.Module = filled(nn.Linear(1, 1), value)
    for _ in range(1500):
        outer = nn.Module()
        outer.register_module("inner", net)
        net = outer
    return net


def grown(value: float) -> nn.Module:
    """The same module again and again, which is to be looked at once."""
    net: nn.Module = filled(nn.Linear(1, 1), value)
    for _ in range(50):
        net = nn.ModuleList([net, net])
    return net


def buffer(version: float) -> nn.Module:
    """Of a tensor that gets a random id."""
    t = InfiniteTensor((None,), lambda _ctx: torch.ones(4), TensorWindow((4,)), version=version)
    return nn.ModuleList([InfiniteBuffer(t), InfiniteBuffer()])


KINDS: dict[str, Callable[[float], Any]] = {
    "script": lambda value: torch.jit.script(filled(nn.Linear(2, 2), value)),
    "quantized linear": lambda value: quantized(lambda: nn.Linear(4, 4), value),
    "quantized convolution": lambda value: quantized(lambda: nn.Conv2d(1, 4, 3, padding=1), value),
    "quantized for each input": lambda value: quantize_dynamic(Quantizable(nn.Linear(4, 4), value), {nn.Linear}),
    "weight_norm": partial(parametrized, "weight_norm"),
    "spectral_norm": partial(parametrized, "spectral_norm"),
    "orthogonal": partial(parametrized, "orthogonal"),
    "modules deep in each other": deep,
    "a module that is met again": grown,
    "an infinite buffer": buffer,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sample(KINDS, *KINDS.keys() - {"quantized linear", "quantized convolution"}))
def test_modules_of_all_kinds_count_by_what_they_compute_from(kind: str) -> None:
    make = KINDS[kind]
    assert digest(make(0.25)) == digest(make(0.25)) != digest(make(0.125))


class Stateful(nn.Module):
    """Keeps something in the ``state_dict`` that is no tensor."""

    def __init__(self, state: object) -> None:
        super().__init__()
        self.state = state

    def get_extra_state(self) -> Any:
        """What torch puts into the ``state_dict``."""
        return self.state


def test_extra_state_counts() -> None:
    states = [None, 1, 1.0, "1", b"1", (1,), [1], {"a": 1}, {"a": torch.ones(2)}, {"a": torch.zeros(2)}, object()]
    digests = [digest(Stateful(state)) for state in states]
    assert len(set(digests)) == len(states)
    assert digests[-1] == digest(Stateful(object()))


class Raising(Stateful):
    """Has no state."""

    def get_extra_state(self) -> Any:
        """Fail."""
        raise LookupError("no state here")


@of_torch
@pytest.mark.parametrize("make", [lambda: Raising(1), lambda: nn.Linear.__new__(nn.Linear)])
def test_a_module_that_does_not_tell_what_it_is_made_of_is_refused(make: Callable[[], nn.Module]) -> None:
    net = make()
    with pytest.raises(ValidationError, match=r"digest: \S+ cannot be inspected: .*set version="):
        digest(net)
    # In a fingerprint it counts by its class.
    InfiniteTensor((None,), lambda ctx: net(torch.full((1,), float(ctx[0]))), TensorWindow((4,)))


def test_a_module_may_hold_the_one_that_holds_it() -> None:
    net, part = Net(), nn.Module()
    net.register_module("part", part)
    part.register_module("whole", net)
    assert digest(net) != digest(Net())


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
    """Of which each process must find the same digest: see `test_fingerprint`."""
    return nn.ModuleList([Net(), Described(), Undescribed(), nn.ParameterList([torch.ones(3)])])


def test_addresses_in_the_description_do_not_count_and_the_rest_does() -> None:
    assert digest(Described()) == digest(Described())
    assert digest(Described(torch.tanh)) != digest(Described())
    assert digest(Undescribed()) == digest(Undescribed()) != digest(nn.Module())


# Large tensors.


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


LEAF = 2**20
LARGE = 3 * LEAF + 5
"""Of float32: in a leaf, and in three leaves and some bytes."""


def test_every_byte_of_a_large_tensor_counts_with_any_number_of_threads(threads: int) -> None:
    assert torch.get_num_threads() == threads
    values = torch.arange(float(LARGE))
    apart = torch.stack([values, values], 1)[:, 0]
    assert not apart.is_contiguous()
    changed = [values.clone() for _ in range(4)]
    for at, each in zip((0, LEAF - 1, LEAF, -1), changed, strict=True):
        each[at] += 0.5
    swapped = torch.cat([values[LEAF : 2 * LEAF], values[:LEAF], values[2 * LEAF :]])
    assert digest(holding(values)) == digest(holding(apart))
    assert len({digest(holding(each)) for each in (values, swapped, *changed)}) == 6


@pytest.mark.benchmark
def test_a_digest_costs_little_more_than_to_hash_the_bytes() -> None:
    net = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(16)))
    data = torch.ones(sum(each.nbytes for each in net.parameters()), dtype=torch.uint8).numpy().data

    def best(run: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            # Of all threads: other processes count less in it.
            before = time.process_time()
            run()
            times.append(time.process_time() - before)
        return min(times)

    assert best(lambda: digest(net)) < 1.4 * best(lambda: hashlib.sha256(data).digest())


# Training mode matters for a module whose code reads it, and for no other one.


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
