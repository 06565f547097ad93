"""What identifies a stored tensor."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError
from infinite_tensor.tilestore.stored_definition import definition_of
from infinite_tensor.values.definition import (
    blend_name,
    blend_of,
    differences,
    json_scalar,
    json_value,
    resolved_blend,
    scalar_from_json,
)

WINDOW = TensorWindow((4,))


def tensor(**options: Any) -> InfiniteTensor:
    return InfiniteTensor((None,), lambda _ctx: torch.zeros(4), WINDOW, **options)


def test_definition_survives_json() -> None:
    base = tensor(tensor_id="base", version={"seed": 3})
    t = tensor(args=[base], args_windows=[WINDOW], blend=torch.maximum, blend_init=-math.inf)
    stored = json.loads(json.dumps(t.to_json(), allow_nan=False))
    assert definition_of(stored) == t._spec.definition
    assert stored["blend_init"] == "-Infinity"
    assert stored["args"][0]["tensor_id"] == "base"


def test_a_generated_id_is_no_part_of_the_definition() -> None:
    one, other = (tensor(args=[tensor()], args_windows=[WINDOW]) for _ in range(2))
    assert one._spec.definition.digest == other._spec.definition.digest


def test_a_change_far_upstream_is_a_change_here() -> None:
    def chain(version: int) -> str:
        t = tensor(version=version)
        for _ in range(3):
            t = tensor(args=[t], args_windows=[WINDOW])
        return t._spec.definition.digest

    assert chain(1) == chain(1) != chain(2)


def test_batch_size_and_device_are_no_part_of_the_definition() -> None:
    assert tensor(batch_size=4).to_json().keys() == tensor().to_json().keys()
    assert tensor(batch_size=4)._spec.definition.digest == tensor()._spec.definition.digest


def test_differences_name_every_field_and_key() -> None:
    stored: dict[str, Any] = {
        "dtype": "float32",
        "version": {"seed": 1, "name": "a"},
        "args": [{"digest": "x"}],
        "blend_init": "NaN",
    }
    given: dict[str, Any] = {
        "dtype": "int8",
        "version": {"seed": 2, "name": "a", "new": 0},
        "args": [{"digest": "y"}],
        "blend_init": "NaN",
    }
    assert differences(stored, given) == [
        "dtype: stored 'float32', given 'int8'",
        "version.seed: stored 1, given 2",
        "version.new: stored nothing, given 0",
        "args[0].digest: stored 'x', given 'y'",
    ]


def test_differences_tell_the_defaults_of_edges_and_paddings() -> None:
    told: dict[str, Any] = {"edge": ["clip"], "args": [{"padding": ["wrap"]}], "version": {}}
    plain: dict[str, Any] = {"args": [{}], "version": {"edge": 1}}
    assert differences(told, plain) == [
        "edge: stored ['clip'], given 'drop'",
        "args[0].padding: stored ['wrap'], given 'error'",
        "version.edge: stored nothing, given 1",
    ]
    assert differences(plain, told)[-1] == "edge: stored 'drop', given ['clip']"


def test_version_takes_json_only() -> None:
    assert json_value("version", {"a": (1, math.nan)}) == {"a": [1, "NaN"]}
    for wrong in ({1: 2}, {"a": object()}, {1, 2}):
        with pytest.raises(ValidationError, match="version"):
            json_value("version", wrong)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.5, torch.int8),
        (300, torch.uint8),
        (-1, torch.uint16),
        (math.inf, torch.int64),
        (1j, torch.float32),
        (True, torch.float32),
        (1e300, torch.float32),
        ("0", torch.float32),
    ],
)
def test_a_blend_init_that_does_not_fit_is_refused(value: object, dtype: torch.dtype) -> None:
    with pytest.raises(ValidationError, match="blend_init"):
        json_scalar("blend_init", value, dtype)


@pytest.mark.parametrize("value", [0.25, math.inf, -math.inf, 3, 1 + 2j])
def test_scalars_survive_json(value: complex) -> None:
    dtype = torch.complex64 if isinstance(value, complex) else torch.float64
    stored = json.loads(json.dumps(json_scalar("x", value, dtype), allow_nan=False))
    assert scalar_from_json(stored) == value


def test_numbers_of_numpy_are_numbers() -> None:
    assert json_scalar("x", np.float32(0.5), torch.float32) == 0.5


def test_an_int_of_any_size_is_json() -> None:
    assert json_value("version", 10**400) == 10**400


def test_an_int_and_a_float_of_one_value_are_the_same_blend_init() -> None:
    assert json_scalar("x", 1, torch.float32) == json_scalar("x", 1.0, torch.float32)


def test_only_blends_of_torch_come_back_from_their_name() -> None:
    assert blend_of("torch._VariableFunctionsClass.maximum") is torch.maximum
    with pytest.raises(ValidationError, match=r"os\.system"):
        blend_of("os.system")(torch.zeros(1), torch.zeros(1))  # type: ignore[misc, operator]


def test_a_name_of_a_blend_is_the_blend_itself() -> None:
    assert resolved_blend("max") is torch.maximum
    assert resolved_blend("min") is torch.minimum
    assert resolved_blend("first") == blend_name("first") == blend_of("first") == "first"
    assert resolved_blend("last") == blend_name("last") == blend_of("last") == "last"
    assert resolved_blend(torch.fmax) is torch.fmax
    assert resolved_blend(None) is None


@pytest.mark.parametrize("given", ["sum", "Max", "", "first ", "torch.maximum", "a" * 10_000, "\ud800", 3, ["max"]])
def test_a_blend_of_another_name_is_refused(given: object) -> None:
    with pytest.raises(
        ValidationError,
        match=r"blend must be one of 'max', 'min', 'first', 'last', 'mean', 'linear', 'hann', 'gaussian', a Weigh",
    ) as caught:
        resolved_blend(given)
    assert len(str(caught.value)) < 400
