"""An infinite tensor as an attribute of a module: where it follows, and what of it is in the state."""

from __future__ import annotations

import copy
import io
import json
import pickle
import warnings
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import nn

from infinite_tensor import (
    FunctionChangedWarning,
    HDF5TileStore,
    InfiniteBuffer,
    InfiniteTensor,
    StoreError,
    TensorWindow,
    TileAccessError,
    ValidationError,
    ZarrTileStore,
)
from tests.behaviour.modules.nets import Field, plane, ramp
from tests.support.stores import sample

KEY = "field._extra_state"


def other_ramp(ctx: tuple[int, ...]) -> torch.Tensor:
    return ramp(ctx) + 1


def through_a_file(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_it_is_indexed_like_the_tensor_and_adds_no_parameters_and_no_buffers() -> None:
    tensor = plane()
    module = Field(tensor)
    assert module.field.tensor is tensor
    assert torch.equal(module.field[-1:1, 0:3], tensor[-1:1, 0:3])
    assert "tensor_id=" in repr(module)
    assert [*module.field.parameters(), *module.field.buffers()] == []


def test_it_follows_its_module_to_a_device() -> None:
    moved: list[object] = []

    class Watched(InfiniteTensor):
        def to(self, *args: Any, **kwargs: Any) -> Self:
            moved.append((args, kwargs))
            return super().to(*args, **kwargs)

    tensor = Watched((None, None), ramp, TensorWindow((4, 4)))
    nn.Sequential(Field(tensor)).to("cpu", torch.float64)
    assert moved == [((torch.device("cpu"),), {})]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_follows_its_module_to_a_gpu_and_back() -> None:
    tensor = InfiniteTensor((None, None), lambda ctx: ramp(ctx).to(tensor.device), TensorWindow((4, 4)))
    module = Field(tensor)
    for device in ("cuda", "cpu"):
        module.to(device)
        assert tensor.device.type == device
        assert module.field[0:9, 0:9].device.type == device
        assert module.weight.value.device.type == device


def test_its_dtype_stays_and_a_virtual_tensor_of_it_follows() -> None:
    module = Field(plane()).half()
    assert module.field[0:1, 0:1].dtype == torch.float32
    assert module.weight.value.dtype == torch.float16


def test_it_stays_where_its_module_goes_to_meta_and_comes_back() -> None:
    module = Field(plane()).to("meta")
    assert module.field.tensor.device.type == "cpu"
    assert torch.equal(module.weight.value, plane()[-1:1, 0:3])
    module.to_empty(device="cpu")
    assert torch.equal(module.weight.value, plane()[-1:1, 0:3])


def test_its_state_is_its_definition_and_where_it_is_found(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path / "world.zarr")
    state = Field(plane(tile_store=store, tensor_id="world")).state_dict()
    assert set(state) == {KEY}
    assert state[KEY]["tensor_id"] == "world"
    assert state[KEY]["store"] == str(tmp_path / "world.zarr")
    assert state[KEY]["definition"]["shape"] == [None, None]
    assert json.loads(json.dumps(state[KEY])) == state[KEY]
    store.close()


def test_a_state_says_nothing_of_a_generated_id_nor_of_memory() -> None:
    state = Field(plane()).state_dict()[KEY]
    assert (state["tensor_id"], state["store"]) == (None, None)


def test_a_state_holds_no_credentials() -> None:
    store = ZarrTileStore("memory://key:secret@bucket/world")
    state = Field(plane(tile_store=store, tensor_id="world")).state_dict()[KEY]
    assert state["store"].startswith("memory://")
    assert "secret" not in json.dumps(state)


@pytest.mark.parametrize(
    ("name", "stored", "given", "told"),
    [("version", 1, 2, "version: stored 1, given 2"), ("tensor_id", "a", "b", "tensor_id: stored 'a', given 'b'")],
)
def test_a_state_that_defines_another_tensor_is_refused(name: str, stored: Any, given: Any, told: str) -> None:
    state = Field(plane(**{name: stored})).state_dict()
    with pytest.raises(ValidationError, match=told):
        Field(plane(**{name: given})).load_state_dict(state)


def test_a_function_that_has_changed_since_is_a_warning() -> None:
    state = Field(plane()).state_dict()
    changed = Field(InfiniteTensor((None, None), other_ramp, TensorWindow((4, 4))))
    with pytest.warns(FunctionChangedWarning, match="the code"):
        changed.load_state_dict(state)


@pytest.fixture(params=sample(["world.zarr", "world.h5"], "world.zarr"))
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The state of a module whose tensor is stored, as far as its weight needs it."""
    kind = HDF5TileStore if request.param.endswith(".h5") else ZarrTileStore
    with kind(str(tmp_path / request.param), tile_size=4) as store:
        module = Field(plane(tile_store=store, tensor_id="world"))
        module.weight.sum()
        state: dict[str, Any] = through_a_file(module.state_dict())
    return state


def test_a_module_without_the_tensor_opens_it(stored: dict[str, Any]) -> None:
    module = Field(None)
    with pytest.raises(ValidationError, match="has no tensor yet"):
        _ = module.weight.value
    assert module.load_state_dict(stored) == ([], [])
    assert torch.equal(module.weight.value, plane()[-1:1, 0:3])
    assert module.field.tensor.tile_store.read_only
    assert module.state_dict() == stored
    with pytest.raises(TileAccessError):
        module.field[100:104, 0:4]
    module.field.tensor.tile_store.close()


def test_what_is_opened_is_compared_with_the_state(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "world.zarr") as store:
        state = Field(plane(tile_store=store, tensor_id="world", version=1)).state_dict()
        store.clear_tensor("world")
        plane(tile_store=store, tensor_id="world", version=2)
    module = Field(None)
    with pytest.raises(ValidationError, match="version: stored 1, given 2"):
        module.load_state_dict(state)
    with pytest.raises(ValidationError, match="has no tensor yet"):
        _ = module.field.tensor


def test_a_store_that_is_gone_is_a_store_error(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "world.zarr") as store:
        state = Field(plane(tile_store=store, tensor_id="world")).state_dict()
    state[KEY]["store"] = str(tmp_path / "elsewhere.zarr")
    with pytest.raises(StoreError, match=r"elsewhere\.zarr"):
        Field(None).load_state_dict(state)
    assert not (tmp_path / "elsewhere.zarr").exists()


@pytest.mark.parametrize(("options", "reason"), [({}, "tensor_id"), ({"tensor_id": "a"}, "path or URL")])
def test_a_tensor_that_cannot_be_found_again_must_be_given(options: dict[str, Any], reason: str) -> None:
    state = Field(plane(**options)).state_dict()
    with pytest.raises(ValidationError, match=reason):
        Field(None).load_state_dict(state)


@pytest.mark.parametrize(
    "state",
    [None, 3, {}, {"definition": None}, {"definition": {"shape": "x"}}, {"definition": {}, "tensor_id": 3}],
)
def test_a_state_that_is_none_of_ours_is_refused(state: object) -> None:
    with pytest.raises(ValidationError):
        Field(plane()).load_state_dict({KEY: state})


def test_what_is_no_infinite_tensor_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="InfiniteTensor"):
        InfiniteBuffer(torch.ones(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])  # noqa: S301
def test_a_module_is_copied_and_pickled_with_it(duplicate: Any, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "world.zarr") as store:
        module = Field(plane(tile_store=store, tensor_id="world"))
        other = duplicate(module)
        assert other.field is not module.field
        assert torch.equal(other.weight.value, module.weight.value)
        other.field.tensor.tile_store.close()


def test_a_region_is_computed_again_once_the_tensor_is_another() -> None:
    module = Field(plane())
    module.weight.value.sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.field = InfiniteBuffer(InfiniteTensor((None, None), other_ramp, TensorWindow((4, 4))))
    assert torch.equal(module.weight.value, 1 + plane()[-1:1, 0:3])


def test_a_module_with_it_compiles_into_one_graph_and_follows_a_dtype() -> None:
    module = Field(plane())
    run, x = torch.compile(module, fullgraph=True, backend="aot_eager"), torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(run(x), module(x))
    module.to(torch.float64)
    assert torch.equal(run(x.double()), module(x.double()))
    torch.compiler.reset()


@pytest.mark.parametrize("strict", [True, False])
def test_a_module_with_it_is_exported(strict: bool) -> None:
    module, x = Field(plane()), torch.ones(1, 3)
    program = torch.export.export(module, (x,), strict=strict)
    assert "infinite_tensor.read" in str(program.graph)
    assert torch.equal(program.module()(x), module(x))
