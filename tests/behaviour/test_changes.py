"""A function that has changed: a table of what has changed, of what calls it, and of what is said of it."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from infinite_tensor import (
    FunctionChangedWarning,
    InfiniteTensor,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    digest,
    from_array,
    map_windows,
    noise,
    predict,
    sl,
)

# Inside: which digests are known.
from infinite_tensor.values import arrays
from tests.support.building import built
from tests.support.networks import filled

IMAGE = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(0))
DIMS = ("c", "y", "x")
PART = (slice(0, 8), slice(0, 8))
SCALE: Any = 0.25
models = types.ModuleType("tests.behaviour.models")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ZarrTileStore]:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        yield store


def predicted(store: Any, net: Any, **options: Any) -> InfiniteTensor:
    made: InfiniteTensor = predict(net, IMAGE, store, window=(32, 32), dims=DIMS, progress=False, **options)
    return made


def mapped(store: Any, f: Callable[..., Any], **options: Any) -> InfiniteTensor:
    return from_array(IMAGE, dims=DIMS).map(f, window=40, store=store, **options)


def untouched(x: torch.Tensor) -> torch.Tensor:
    return x + 0


def plain(store: TileStore, f: Callable[..., Any]) -> InfiniteTensor:
    window = TensorWindow((3, 40, 40), dimension_map=(None, 0, 1))
    return built(_of_image(f), window, shape=(3, 40, 40), store=store, name="t")


def _of_image(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _ctx: f(IMAGE)[:1].expand(3, 40, 40)


# What has changed: functions of a value.


def norm(x: torch.Tensor) -> torch.Tensor:
    return x - float(SCALE)


class Threshold:
    def __init__(self, t: float) -> None:
        self.t = t

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x > self.t).to(torch.float32)


def scorer(value: float = 0.5) -> nn.Module:
    return filled(nn.Conv2d(3, 2, 3, padding=1), value).eval()


class Shifted(nn.Module):
    """Keeps a tensor as a plain attribute."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.mean = torch.full((1,), mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.mean


class Holder:
    net = scorer()


def adapted(value: float) -> nn.Module:
    net, adapter = scorer(), filled(nn.Conv2d(3, 2, 1), value)
    net.register_forward_hook(lambda _net, args, output: output + adapter(args[0]))
    return net


def by_module(x: torch.Tensor) -> torch.Tensor:
    return models.net(x)  # type: ignore[no-any-return]


def by_class(x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(Holder.net(x))


def in_list(value: float) -> Callable[..., Any]:
    nets = [scorer(value)]
    return lambda x: nets[0](x) + 0


def under_autocast(value: float) -> Any:
    net = scorer(value)
    return torch.autocast("cpu", dtype=torch.bfloat16)(lambda x: net(x + SCALE))


def autocast(value: float) -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16 if value == 0.5 else torch.float16)(scorer())


def traced(value: float) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.trace(lambda x: x * value, torch.ones(4, 3, 32, 32))


CHANGES: dict[str, tuple[Callable[[float], Callable[..., Any]], str]] = {
    "a constant": (lambda value: _with(globals(), "SCALE", value, norm), r"`SCALE`, .* was 0.5 and is 0.25"),
    "an attribute": (Threshold, r"t`.* was 0.5 and is 0.25"),
    "a script of torch": (traced, "has changed"),
    "weights": (scorer, "weights"),
    "a tensor of a network": (Shifted, "weights"),
    "a hook": (adapted, "weights|hooks"),
    "a network in a list": (in_list, "weights of `nets"),
    "a network in a module": (lambda value: _with(vars(models), "net", scorer(value), by_module), "weights"),
    "a network in a class": (lambda value: _set(Holder, "net", scorer(value), by_class), "weights"),
    "autocast": (autocast, "autocast to torch.bfloat16 and is autocast to torch.float16"),
    "a network under autocast": (under_autocast, "weights of `net`"),
}


def _with(where: dict[str, Any], name: str, value: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    where[name] = value
    return f


def _set(where: Any, name: str, value: Any, f: Callable[..., Any]) -> Callable[..., Any]:
    setattr(where, name, value)
    return f


# Where it is seen.

REFUSED = functools.partial(pytest.raises, ValidationError)
CALLERS: dict[str, tuple[Callable[[Any, Any], InfiniteTensor], Callable[..., AbstractContextManager[Any]]]] = {
    "a prediction": (predicted, REFUSED),
    "its reduction": (lambda store, f: predicted(store, untouched, reduce=f), REFUSED),
    "a map": (lambda store, f: mapped(store, f, tensor_id="t", channels=None), REFUSED),
    "upstream of a map": (lambda store, f: mapped(None, f).map(untouched, store=store, tensor_id="t"), REFUSED),
    "a map without an id": (mapped, lambda match: nullcontext()),  # noqa: ARG005
    "a tensor": (plain, functools.partial(pytest.warns, FunctionChangedWarning)),
}


@pytest.mark.parametrize(
    ("change", "caller"),
    [(c, name) for c in CHANGES for name in CALLERS if name != "its reduction" or c in ("a constant", "an attribute")],
)
def test_a_change_is_seen_wherever_a_function_is_used(
    change: str, caller: str, store: ZarrTileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where, name in ((HERE, "SCALE"), (Holder, "net")):
        monkeypatch.setattr(where, name, getattr(where, name))
    (make, word), (use, seen) = CHANGES[change], CALLERS[caller]
    first = use(store, make(0.5))
    assert use(store, make(0.5)).tensor_id == first.tensor_id
    with seen(match=word):
        assert use(store, make(0.25)).tensor_id != first.tensor_id or caller == "a tensor"


HERE = sys.modules[__name__]


def test_a_refused_prediction_says_what_to_do_and_is_overwritten(store: ZarrTileStore) -> None:
    first = predicted(store, scorer())[...]
    assert torch.equal(predicted(store, scorer())[...], first)
    with REFUSED(match="overwrite=True"):
        predicted(store, scorer(0.25))
    assert torch.equal(predicted(store, scorer(0.25), overwrite=True)[...], predicted(None, scorer(0.25))[...])


def test_the_pixels_of_a_tensor_that_warns_stay(store: ZarrTileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> InfiniteTensor:
        return built(lambda _ctx: torch.full((4,), float(SCALE)), 4, store=store, name="t")

    assert made()[0] == 0.25
    monkeypatch.setattr(HERE, "SCALE", 0.75)
    with pytest.warns(FunctionChangedWarning, match="was 0.25 and is 0.75") as found:
        assert made()[0] == 0.25
    assert len(found) == 1


def test_a_renamed_variable_does_not_hide_other_weights(store: ZarrTileStore) -> None:
    def before(net: nn.Module) -> Any:
        return lambda x: net(x)  # noqa: PLW0108

    def after(model: nn.Module) -> Any:
        return lambda x: model(x)  # noqa: PLW0108

    predicted(store, before(scorer()))
    with REFUSED(match="weights of `net`"):
        predicted(store, after(scorer(0.25)))


class Estimator:
    """Stands for a fitted estimator: an object of an installed package."""

    def __init__(self, value: float) -> None:
        self.coef_ = np.full(3, value)

    def transform(self, values: torch.Tensor) -> torch.Tensor:
        return values * torch.as_tensor(self.coef_, dtype=torch.float32)[:, None]


def test_another_fitted_estimator_is_a_warning(store: ZarrTileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Estimator, "__module__", "torchgen.estimator")
    monkeypatch.setattr(Estimator.transform, "__module__", "torchgen.estimator")
    for _ in range(2):
        predicted(store, untouched, reduce=Estimator(1.0).transform)
    with pytest.warns(FunctionChangedWarning, match="coef_"):
        predicted(store, untouched, reduce=Estimator(2.0).transform)


def test_what_cannot_be_looked_into_asks_for_a_version(store: ZarrTileStore) -> None:
    engine = np.nditer(np.zeros(2))

    def net(x: torch.Tensor) -> torch.Tensor:
        return x * float(engine.ndim)

    with pytest.warns(FunctionChangedWarning, match=r"`engine`.*numpy\.nditer.*version="):
        predicted(store, net)
    predicted(store, net, version="engine 7", tensor_id="other")
    predicted(None, net)
    with pytest.warns(FunctionChangedWarning, match="random id"):
        assert mapped(store, net).tensor_id != mapped(store, net).tensor_id
    assert mapped(store, net, version=1).tensor_id == mapped(store, net, version=1).tensor_id


def late_import(x: torch.Tensor) -> torch.Tensor:
    from late_models import net  # type: ignore[import-not-found]  # noqa: PLC0415

    return net(x)  # type: ignore[no-any-return]


def test_a_module_that_the_network_imports_may_be_there_later(
    store: ZarrTileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "late_models.py").write_text("def net(batch):\n    return batch * GAIN\n\n\nGAIN = 0.5\n")
    try:
        for name in ("t", "t", "other"):
            predicted(store, late_import, tensor_id=name)
        sys.modules["late_models"].GAIN = 0.25  # type: ignore[attr-defined]
        with REFUSED(match="`GAIN`.* was 0.5 and is 0.25"):
            predicted(store, late_import, tensor_id="other")
    finally:
        del sys.modules["late_models"]


def lazy(value: float) -> nn.Module:
    class Lazy(nn.LazyLinear):
        def reset_parameters(self) -> None:
            for parameter in () if self.has_uninitialized_params() else self.parameters():
                nn.init.constant_(parameter, value)

    return nn.Sequential(nn.Flatten(1), Lazy(32 * 32), nn.Unflatten(1, (1, 32, 32)))


def test_a_lazy_network_is_looked_at_after_its_first_call(store: ZarrTileStore) -> None:
    predicted(store, lazy(0.5), region=PART)
    predicted(store, lazy(0.5))
    with REFUSED(match="weights"):
        predicted(store, lazy(0.25))


def test_another_seed_upstream_is_named(store: ZarrTileStore) -> None:
    noise((None, None), seed=7).map(norm).map(untouched, store=store, tensor_id="t")
    with REFUSED(match="seed: stored 7, given 8"):
        noise((None, None), seed=8).map(norm).map(untouched, store=store, tensor_id="t")


# What is no change.


class Remembering(nn.Module):
    """Makes a buffer, an attribute, and an entry of a dict, when it is called first."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = {"kept": 1}
        self.rows: torch.Tensor | None = None
        self.register_buffer("table", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes["last"] = 2
        self.table = self.rows = torch.ones(1)
        return x * self.table


class Stepping:
    step = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        self.latest = types.SimpleNamespace(size=len(x), count=self.step)
        return x * float(config.step)


class Processor(Stepping):
    """Stands for an object of an installed package that notes what it has done."""


Processor.__module__ = "torchgen.processor"


def normed(norm: Callable[..., Any], *, used: bool = False) -> nn.Module:
    """A network whose weights are computed before each call."""
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):
        net: nn.Module = norm(nn.Conv2d(3, 2, 3, padding=1)).eval()
    if used:
        net(IMAGE[None])
    else:
        next(net.parameters()).data.mul_(1)
    return net


def used(f: Any) -> Any:
    """As in a process that has used its objects for something else."""
    f(IMAGE)
    return f


NORMS: list[Any] = [
    *(nn.utils.weight_norm, nn.utils.spectral_norm),
    *(parametrizations.weight_norm, parametrizations.spectral_norm),
]
SAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "compiled": (lambda: torch.compile(scorer(), backend="eager"), scorer),
    "spread over devices": (lambda: nn.DataParallel(scorer()), scorer),
    "an object that was used": (Stepping, lambda: used(Stepping())),
    "a network that was used": (Remembering, lambda: used(Remembering())),
    "an object of a package": (Processor, Processor),
    **{
        f"{norm.__module__}.{norm.__name__}": (
            functools.partial(normed, norm, used=True),
            functools.partial(normed, norm),
        )
        for norm in NORMS
    },
}


@pytest.mark.parametrize("name", SAME)
def test_a_job_is_continued_by_what_is_the_same(name: str, store: ZarrTileStore) -> None:
    first, other = (make() for make in SAME[name])
    predicted(store, first, region=PART)
    predicted(store, first)
    predicted(store, other)
    if "used" not in name:
        assert len({mapped(store, make()).tensor_id for make in SAME[name]}) == 1


@pytest.mark.parametrize("norm", NORMS)
def test_weights_computed_before_each_call_count_by_what_they_are_computed_from(norm: Callable[..., Any]) -> None:
    other = normed(norm)
    other.get_parameter("bias").data.fill_(1)
    assert digest(normed(norm, used=True)) == digest(normed(norm)) != digest(other)


# What calls change.

TABLE = np.zeros((3, 3), int)
BUFFER = torch.empty(40, 40)
SEEN: dict[str, int] = {}
config: Any = types.SimpleNamespace(step=1.0)


def counted_in_an_array(x: torch.Tensor) -> torch.Tensor:
    TABLE[1, 2] += 1
    return x * float(config.step)


def buffered(x: torch.Tensor) -> torch.Tensor:
    BUFFER[: x.shape[-2], : x.shape[-1]] = x[0, 0]
    return x * float(config.step)


def remembered(x: torch.Tensor) -> torch.Tensor:
    SEEN[f"call {len(SEEN)}"] = 1
    return x * float(config.step)


@pytest.mark.parametrize("f", [counted_in_an_array, buffered, remembered, Stepping()])
def test_what_calls_change_is_no_change_and_other_values_still_are(
    f: Callable[..., Any], store: ZarrTileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = mapped(store, f).tensor_id
    for _ in range(2):
        predicted(store, f)
    mapped(store, f, tensor_id="named").fill()
    assert mapped(store, f, tensor_id="named").is_filled(...)
    assert mapped(store, f).tensor_id == first
    monkeypatch.setattr(config, "step", 2.0)
    with REFUSED(match=r"`config.step`, .* was 1.0 and is 2.0"):
        predicted(store, f)
    assert mapped(store, f).tensor_id != first


def test_a_fill_that_computes_nothing_does_not_hide_what_later_calls_change(store: ZarrTileStore) -> None:
    seen: dict[tuple[int, ...], int] = {}

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        seen[ctx] = 1
        return torch.ones(4)

    t = built(f, 4, store=store, name="t")
    t.fill(sl[0:8], where=torch.zeros(8, dtype=torch.bool))
    t[0:8]
    with warnings.catch_warnings(action="error"):
        built(f, 4, store=store, name="t")


def test_what_is_known_of_a_state_keeps_no_object_alive() -> None:
    f = Stepping()
    t = mapped(None, f)
    t[...]
    assert mapped(None, f).to_json() == t.to_json()
    freed = weakref.ref(f)
    del f, t
    gc.collect()
    assert freed() is None


def test_a_user_s_change_between_building_and_reading_is_seen(
    store: ZarrTileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = mapped(store, norm, tensor_id="t")
    monkeypatch.setattr(HERE, "SCALE", 2.0)
    t[:, 0:4, 0:4]
    with REFUSED(match="`SCALE`"):
        mapped(store, norm, tensor_id="t")


def test_what_a_call_that_raises_has_changed_does_not_count(store: ZarrTileStore) -> None:
    calls = itertools.count()
    tried: list[int] = []

    def failing(x: torch.Tensor) -> torch.Tensor:
        tried.append(1)
        if next(calls) == 0:
            raise OSError("once")
        return x

    t = mapped(store, failing)
    with pytest.raises(OSError, match="once"):
        t[...]
    assert mapped(store, failing).tensor_id == t.tensor_id


def test_code_that_is_replaced_in_place_warns_at_the_next_read() -> None:
    def f(_ctx: object) -> torch.Tensor:
        return torch.zeros(4)

    t = built(f, 4)
    t[0:4]
    f.__code__ = (lambda _ctx: torch.ones(4)).__code__
    with pytest.warns(FunctionChangedWarning, match="code") as found:
        t[0:4]
    t[0:4]
    assert len(found) == 1


def test_in_memory_no_weights_are_hashed() -> None:
    net = scorer()
    predicted(None, net)
    from_array(IMAGE, dims=DIMS).map(net, halo=1, channels=2)[...]
    built(lambda ctx: net(torch.full((1, 3, 4, 4), float(ctx[0])))[0, 0, 0], 4, name="t")[0:4]
    assert id(net.weight) not in arrays._hashes
    digest(net)
    assert id(net.weight) in arrays._hashes


calls = 0


def counted(_: object) -> torch.Tensor:
    global calls  # noqa: PLW0603  (such counters are common)
    calls += 1
    return torch.zeros(16, 16)


def test_state_that_two_args_lead_to_is_no_change(store: ZarrTileStore) -> None:
    for _ in range(2):
        below = built(counted, (16, 16))
        both = map_windows(torch.sub, below.map(torch.neg), below, store=store, tensor_id="t")
        assert torch.equal(both[0:3, 0:3], torch.zeros(3, 3))
