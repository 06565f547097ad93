"""What a stored tensor was computed from has changed: it is told before a stored pixel is returned."""

from __future__ import annotations

import functools
import gc
import sys
import types
import warnings
import weakref
from collections.abc import Callable
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
    MemoryTileStore,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    digest,
    from_array,
    map_windows,
    noise,
    predict,
    sl,
)
from infinite_tensor.values import arrays
from tests.support.building import built
from tests.support.networks import filled

IMAGE = torch.rand(3, 40, 40, generator=torch.Generator().manual_seed(0))
DIMS = ("c", "y", "x")

MEAN: Any = 0.25
GAIN = 1.0
models = types.ModuleType("tests.behaviour.models")


calls = 0


def counted(_: object) -> torch.Tensor:
    global calls  # noqa: PLW0603  (such counters are common)
    calls += 1
    return torch.zeros(16, 16)


def norm(x: torch.Tensor) -> torch.Tensor:
    return x - float(MEAN)


def amp(x: torch.Tensor) -> torch.Tensor:
    return x * GAIN


def soft(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(0, 1)


class Threshold:
    def __init__(self, t: float) -> None:
        self.t = t

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x > self.t).to(torch.float32)


def scorer(value: float = 0.5) -> nn.Module:
    return filled(nn.Conv2d(3, 2, 3, padding=1), value).eval()


class Holder:
    net = scorer()


class Shifted(nn.Module):
    """Keeps a tensor as a plain attribute."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.mean = torch.full((1,), mean)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.mean


def adapted(value: float) -> nn.Module:
    net, adapter = scorer(), filled(nn.Conv2d(3, 2, 1), value)
    net.register_forward_hook(lambda _net, args, output: output + adapter(args[0]))
    return net


def by_module(batch: torch.Tensor) -> torch.Tensor:
    return models.net(batch)  # type: ignore[no-any-return]


def by_class(batch: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(Holder.net(batch))


def in_list(value: float) -> Callable[..., Any]:
    nets = [scorer(value)]
    return lambda batch: nets[0](batch) + 0


def traced(value: float) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.trace(lambda x: x * value, torch.ones(4, 3, 32, 32))


def predicted(store: Any, net: Any, **options: Any) -> Any:
    return predict(net, IMAGE, store, window=(32, 32), dims=DIMS, progress=False, **options)


# A prediction.


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (traced, "`net` has changed"),
        (Threshold, "`Threshold.t` was 0.5 and is 0.25"),
        (scorer, "the weights of `net` have changed"),
        (Shifted, "the weights of `net` have changed"),
        (
            adapted,
            "the weights of `net.hooks\\[0\\].*, have changed|`adapter`, a variable around `<lambda>`, have changed",
        ),
        (in_list, "the weights of `nets\\[0\\]`, a variable around `<lambda>`, have changed"),
    ],
)
def test_a_prediction_by_other_values_is_refused(make: Callable[[float], Any], line: str, tmp_path: Path) -> None:
    first = predicted(tmp_path / "s.zarr", make(0.5))[...]
    assert torch.equal(predicted(tmp_path / "s.zarr", make(0.5))[...], first)
    with pytest.raises(ValidationError, match=f"(?s)(?:{line}).*Give predict another tensor_id, or overwrite=True"):
        predicted(tmp_path / "s.zarr", make(0.25))
    again = predicted(tmp_path / "s.zarr", make(0.25), overwrite=True)
    assert torch.equal(again[...], predicted(None, make(0.25))[...])


@pytest.mark.parametrize("kind", ["net", "reduce"])
def test_a_constant_counts_in_each_function_given(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = scorer()
    given: dict[str, dict[str, Any]] = {
        "net": {"net": lambda batch: net(norm(batch))},
        "reduce": {"net": net, "reduce": norm},
    }
    options = given[kind]
    predicted(tmp_path / "s.zarr", **options)
    monkeypatch.setitem(globals(), "MEAN", 0.75)
    with pytest.raises(ValidationError, match=r"`MEAN`, a global of `norm`, was 0.25 and is 0.75"):
        predicted(tmp_path / "s.zarr", **options)


@pytest.mark.parametrize(("net", "holder"), [(by_module, models), (by_class, Holder)])
def test_a_network_is_found_in_a_module_and_in_a_class(
    net: Callable[..., Any], holder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, "net", scorer(), raising=False)
    predicted(tmp_path / "s.zarr", net)
    monkeypatch.setattr(holder, "net", scorer(0.25))
    with pytest.raises(ValidationError, match=r"the weights of .* have changed"):
        predicted(tmp_path / "s.zarr", net)


class Estimator:
    """Stands for a fitted estimator: an object of an installed package."""

    def __init__(self, value: float) -> None:
        self.coef_ = np.full(2, value)

    def transform(self, values: torch.Tensor) -> torch.Tensor:
        return values * torch.as_tensor(self.coef_, dtype=torch.float32)[:, None]


def test_another_fitted_estimator_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Estimator, "__module__", "torchgen.estimator")
    monkeypatch.setattr(Estimator.transform, "__module__", "torchgen.estimator")
    predicted(tmp_path / "s.zarr", scorer(), reduce=Estimator(1.0).transform)
    predicted(tmp_path / "s.zarr", scorer(), reduce=Estimator(1.0).transform)
    with pytest.warns(FunctionChangedWarning, match=r"`Estimator.coef_` has changed"):
        predicted(tmp_path / "s.zarr", scorer(), reduce=Estimator(2.0).transform)


def test_what_cannot_be_looked_into_asks_for_a_version_once(tmp_path: Path) -> None:
    engine = np.nditer(np.zeros(2))

    def net(batch: torch.Tensor) -> torch.Tensor:
        return batch * float(engine.ndim)

    with pytest.warns(FunctionChangedWarning, match=r"`engine`, a variable around `net` \(numpy.nditer\).*version="):
        predicted(tmp_path / "s.zarr", net)
    predicted(tmp_path / "s.zarr", net, version="engine 7", tensor_id="other")
    predicted(None, net)


def test_a_prediction_resumes_after_its_network_has_made_tables(tmp_path: Path) -> None:
    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table: torch.Tensor | None = None
            self.register_buffer("cached", None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.ones(1)
                self.register_buffer("cached", torch.ones(1))
            return x + self.table

    net = Rotary()
    predicted(tmp_path / "s.zarr", net, region=(slice(0, 8), slice(0, 8)))
    predicted(tmp_path / "s.zarr", net)


def late_import(batch: torch.Tensor) -> torch.Tensor:
    from late_models import net  # type: ignore[import-not-found]  # noqa: PLC0415

    return net(batch)  # type: ignore[no-any-return]


def test_a_module_that_the_network_imports_may_be_there_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "late_models.py").write_text("def net(batch):\n    return batch * GAIN\n\n\nGAIN = 0.5\n")
    try:
        predicted(tmp_path / "s.zarr", late_import)
        predicted(tmp_path / "s.zarr", late_import)
        predicted(tmp_path / "other.zarr", late_import)
        sys.modules["late_models"].GAIN = 0.25  # type: ignore[attr-defined]
        with pytest.raises(ValidationError, match=r"`GAIN`, a global of `net`, was 0.5 and is 0.25"):
            predicted(tmp_path / "other.zarr", late_import)
    finally:
        del sys.modules["late_models"]


def lazy(value: float) -> nn.Module:
    class Lazy(nn.LazyLinear):
        def reset_parameters(self) -> None:
            for parameter in () if self.has_uninitialized_params() else self.parameters():
                nn.init.constant_(parameter, value)

    return nn.Sequential(nn.Flatten(1), Lazy(32 * 32), nn.Unflatten(1, (1, 32, 32)))


def test_a_lazy_network_is_looked_at_after_its_first_call(tmp_path: Path) -> None:
    predicted(tmp_path / "s.zarr", lazy(0.5), region=(slice(0, 8), slice(0, 8)))
    predicted(tmp_path / "s.zarr", lazy(0.5))
    with pytest.raises(ValidationError, match=r"the weights of .* have changed"):
        predicted(tmp_path / "s.zarr", lazy(0.25))


class Processor:
    """Stands for an object of an installed package that notes what it has done."""

    def __init__(self) -> None:
        self.notes: dict[str, int] = {}

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        self.notes["calls"] = self.notes.get("calls", 0) + 1
        return batch


def test_an_object_that_a_call_changes_is_looked_at_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processor, "__module__", "torchgen.processor")
    predicted(tmp_path / "s.zarr", Processor(), region=(slice(0, 8), slice(0, 8)))
    predicted(tmp_path / "s.zarr", Processor())


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_the_network_continues_what_it_began_in_a_wrapper(wrap: Callable[..., Any], tmp_path: Path) -> None:
    net = scorer()
    predicted(tmp_path / "s.zarr", wrap(net) if wrap is nn.DataParallel else torch.compile(net, backend="eager"))
    predicted(tmp_path / "s.zarr", net)


def autocast(dtype: torch.dtype, net: Callable[..., Any] | None = None) -> Any:
    return torch.autocast("cpu", dtype=dtype)(net or scorer())


def test_autocast_around_a_network_counts(tmp_path: Path) -> None:
    half = autocast(torch.bfloat16)
    predicted(tmp_path / "s.zarr", half, region=(slice(0, 8), slice(0, 8)))
    # It has been entered, and a new one has not.
    predicted(tmp_path / "s.zarr", half)
    predicted(tmp_path / "s.zarr", autocast(torch.bfloat16))
    told = "`.*autocast_instance`.* was autocast to torch.bfloat16 and is autocast to torch.float16"
    with pytest.raises(ValidationError, match=told):
        predicted(tmp_path / "s.zarr", autocast(torch.float16))
    with pytest.raises(ValidationError, match=r"the weights of .* have changed"):
        predicted(tmp_path / "s.zarr", autocast(torch.bfloat16, scorer(0.25)))
    with pytest.raises(ValidationError, match="autocast"):
        predicted(tmp_path / "s.zarr", scorer())


def test_a_network_in_a_function_under_autocast_counts(tmp_path: Path) -> None:
    def made(value: float) -> Any:
        net = scorer(value)
        return autocast(torch.bfloat16, lambda batch: net(norm(batch)))

    predicted(tmp_path / "s.zarr", made(0.5))
    predicted(tmp_path / "s.zarr", made(0.5))
    with pytest.raises(ValidationError, match="the weights of `net`, a variable around `<lambda>`, have changed"):
        predicted(tmp_path / "s.zarr", made(0.25))


# What calls change.

TABLE = np.zeros((3, 3), int)
BUFFER = torch.empty(32, 32)
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


class Stepping:
    step = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        self.latest = types.SimpleNamespace(size=len(x), count=self.step)
        return x * float(config.step)


class Remembering(nn.Module):
    """Makes a buffer, and an entry of a dict, when it is called first."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = {"kept": 1}
        self.register_buffer("table", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes["last"] = 2
        self.table = torch.ones(1)
        return x * self.table


STATEFUL = [counted_in_an_array, buffered, remembered, Stepping()]


@pytest.mark.parametrize("f", STATEFUL, ids=lambda f: getattr(f, "__name__", "Stepping"))
def test_what_calls_change_is_no_change_and_other_values_still_are(
    f: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = from_array(IMAGE, dims=DIMS)
    with ZarrTileStore(tmp_path / "maps.zarr") as store:
        first = world.map(f, window=8, store=store).tensor_id
        predicted(tmp_path / "s.zarr", f)
        predicted(tmp_path / "s.zarr", f)
        named = world.map(f, window=8, store=store, tensor_id="named")
        named.fill()
        assert world.map(f, window=8, store=store, tensor_id="named").is_filled(...)
        assert world.map(f, window=8, store=store).tensor_id == first
        monkeypatch.setattr(config, "step", 2.0)
        with pytest.raises(ValidationError, match=r"`config.step`, .* was 1.0 and is 2.0"):
            predicted(tmp_path / "s.zarr", f)
        assert world.map(f, window=8, store=store).tensor_id != first


def test_a_fill_that_computes_nothing_does_not_hide_what_later_calls_change(tmp_path: Path) -> None:
    seen: dict[tuple[int, ...], int] = {}

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        seen[ctx] = 1
        return torch.ones(4)

    with ZarrTileStore(tmp_path / "s.zarr") as store:
        made = InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=store, tensor_id="t")
        made.fill(sl[0:8], where=torch.zeros(8, dtype=torch.bool))
        made[0:8]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=store, tensor_id="t")
        assert told == []


def test_what_is_known_of_a_state_keeps_no_object_alive() -> None:
    f = Stepping()
    f.step = 0
    made = from_array(IMAGE, dims=DIMS).map(f, window=8)
    made[...]
    assert from_array(IMAGE, dims=DIMS).map(f, window=8).to_json() == made.to_json()
    freed = weakref.ref(f)
    del f, made
    gc.collect()
    assert freed() is None


def test_a_user_s_change_between_building_and_reading_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        made = noise((None, None), seed=1).map(amp, store=store, tensor_id="t")
        monkeypatch.setitem(globals(), "GAIN", 2.0)
        made[0:4, 0:4]
        with pytest.raises(ValidationError, match=r"`GAIN`, a global of `amp`, was 1.0 and is 2.0"):
            noise((None, None), seed=1).map(amp, store=store, tensor_id="t")


def test_what_a_call_that_raises_has_changed_does_not_count(tmp_path: Path) -> None:
    calls = [0]

    def failing(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError("once")
        return x

    with ZarrTileStore(tmp_path / "s.zarr") as store:
        made = [noise((None, None), seed=1).map(failing, store=store)]
        with pytest.raises(OSError, match="once"):
            made[0][0:4, 0:4]
        made.append(noise((None, None), seed=1).map(failing, store=store))
        assert made[0].tensor_id == made[1].tensor_id


def test_a_process_that_used_its_objects_before_continues_a_prediction(tmp_path: Path) -> None:
    kinds: list[Callable[[], Callable[..., Any]]] = [Stepping, Remembering]
    for number, make in enumerate(kinds):
        first, used = make(), make()
        predicted(tmp_path / f"{number}.zarr", first, region=(slice(0, 8), slice(0, 8)))
        used(IMAGE)
        predicted(tmp_path / f"{number}.zarr", used)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "norm",
    [nn.utils.weight_norm, nn.utils.spectral_norm, parametrizations.weight_norm, parametrizations.spectral_norm],
    ids=lambda norm: f"{norm.__module__}.{norm.__name__}",
)
def test_weights_computed_before_each_call_count_by_what_they_are_computed_from(
    norm: Callable[..., Any], tmp_path: Path
) -> None:
    def build(value: float = 0.0) -> nn.Module:
        torch.manual_seed(0)
        net = norm(nn.Conv2d(3, 2, 3, padding=1)).eval()
        net.bias.data.fill_(value)
        return net  # type: ignore[no-any-return]

    validated, fresh = build(), build()
    next(fresh.parameters()).data.mul_(1)
    validated(IMAGE[None])
    assert digest(validated) == digest(fresh) != digest(build(1.0))
    predicted(tmp_path / "s.zarr", validated, region=(slice(0, 8), slice(0, 8)))
    predicted(tmp_path / "s.zarr", fresh)


# A map.


def test_a_map_under_an_id_is_refused_and_without_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = noise((None, None), seed=1)
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        named = world.map(norm, store=store, tensor_id="t")
        unnamed, below = world.map(norm, store=store), world.map(amp).map(soft, store=store)
        assert world.map(amp).map(soft, store=store).tensor_id == below.tensor_id
        assert world.map(norm, store=store, tensor_id="t").tensor_id == named.tensor_id
        monkeypatch.setitem(globals(), "MEAN", 0.75)
        monkeypatch.setitem(globals(), "GAIN", 2.0)
        with pytest.raises(
            ValidationError, match=r"(?s)`MEAN`, .* was 0.25 and is 0.75.*clear_tensor\('t', dependants"
        ):
            world.map(norm, store=store, tensor_id="t")
        assert world.map(norm, store=store).tensor_id != unnamed.tensor_id
        assert world.map(amp).map(soft, store=store).tensor_id != below.tensor_id


def test_a_change_upstream_of_a_map_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> InfiniteTensor:
        return noise((None, None), seed=1).map(amp).map(soft, store=store, tensor_id="t")

    with ZarrTileStore(tmp_path / "s.zarr") as store:
        made()
        monkeypatch.setitem(globals(), "GAIN", 2.0)
        with pytest.raises(ValidationError, match=r"`GAIN`, a global of `amp`, was 1.0 and is 2.0"):
            made()


def test_an_opaque_function_gets_another_id_each_time(tmp_path: Path) -> None:
    engine = np.nditer(np.zeros(2))
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        with pytest.warns(FunctionChangedWarning, match="`engine`.*random id.*version="):
            one, other = (noise((None,), seed=1).map(lambda x: x * engine.ndim, store=store) for _ in range(2))
        assert one.tensor_id != other.tensor_id
        ids = {
            noise((None,), seed=1).map(lambda x: x * engine.ndim, store=store, version=1).tensor_id for _ in range(2)
        }
        assert len(ids) == 1


def test_another_seed_upstream_is_named(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        noise((None, None), seed=7).map(soft).map(amp, store=store, tensor_id="t")
        with pytest.raises(ValidationError, match="seed: stored 7, given 8") as raised:
            noise((None, None), seed=8).map(soft).map(amp, store=store, tensor_id="t")
        assert "digest" not in str(raised.value)


@pytest.mark.parametrize("wrap", [functools.partial(torch.compile, backend="eager"), nn.DataParallel])
def test_a_wrapper_around_a_network_does_not_change_the_id(wrap: Callable[..., Any], tmp_path: Path) -> None:
    image, net = from_array(IMAGE, dims=DIMS), scorer()
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        ids = {image.map(each, halo=1, channels=2, store=store).tensor_id for each in (net, wrap(net))}
    assert len(ids) == 1


# An InfiniteTensor.


def constant(_ctx: object) -> torch.Tensor:
    return torch.full((4,), float(MEAN))


@pytest.mark.parametrize("kind", ["zarr", "memory"])
def test_a_plain_tensor_warns_and_its_pixels_stay(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> InfiniteTensor:
        return built(constant, 4, store=store, name="t")

    with ZarrTileStore(tmp_path / "s.zarr") if kind == "zarr" else MemoryTileStore() as store:
        assert made()[0] == 0.25
        monkeypatch.setitem(globals(), "MEAN", 0.75)
        with pytest.warns(FunctionChangedWarning, match=r"`MEAN`, a global of .*, was 0.25 and is 0.75") as told:
            again = made()
        assert again[0] == 0.25
        assert len(told) == 1


def test_code_that_is_replaced_in_place_warns_at_the_next_read() -> None:
    def f(_ctx: object) -> torch.Tensor:
        return torch.zeros(4)

    def after(_ctx: object) -> torch.Tensor:
        return torch.ones(4)

    t = built(f, 4)
    t[0:4]
    f.__code__ = after.__code__
    with pytest.warns(FunctionChangedWarning, match="the code of its f has been replaced") as told:
        t[0:4]
    t[0:4]
    assert len(told) == 1


def test_in_memory_no_weights_are_hashed() -> None:
    net = scorer()
    predicted(None, net)
    from_array(IMAGE, dims=DIMS).map(net, halo=1, channels=2)[...]
    built(lambda ctx: net(torch.full((1, 3, 4, 4), float(ctx[0])))[0, 0, 0], 4, name="t")[0:4]
    assert id(net.weight) not in arrays._hashes
    digest(net)
    assert id(net.weight) in arrays._hashes


def test_state_that_two_args_lead_to_is_no_change(tmp_path: Path) -> None:
    for number in range(2):
        below = InfiniteTensor((None, None), counted, TensorWindow((16, 16)))
        both = map_windows(torch.sub, below.map(torch.neg), below, store=tmp_path / f"{number}.zarr")
        assert torch.equal(both[0:3, 0:3], torch.zeros(3, 3))
        both.tile_store.close()
