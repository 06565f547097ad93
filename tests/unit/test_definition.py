"""What identifies a stored tensor."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, WeightedMean

WINDOW = TensorWindow((4,))


def tensor(**options: Any) -> InfiniteTensor:
    return InfiniteTensor((None,), lambda _ctx: torch.zeros(4), WINDOW, **options)


def digest_of(t: InfiniteTensor) -> str:
    """By which those downstream know it."""
    below: Any = tensor(args=[t], args_windows=[WINDOW]).to_json()
    return str(below["args"][0]["digest"])


def test_what_is_and_what_is_no_part_of_the_definition() -> None:
    base = tensor(tensor_id="base", version={"seed": 3})
    t = tensor(args=[base], args_windows=[WINDOW], blend=torch.maximum, blend_init=-math.inf)
    stored = json.loads(json.dumps(t.to_json(), allow_nan=False))
    assert stored["blend_init"] == "-Infinity"
    assert stored["args"][0]["tensor_id"] == "base"
    assert digest_of(tensor()) == digest_of(tensor(batch_size=4)) != digest_of(tensor(blend_init=1))
    # Nor is a generated id.
    assert len({digest_of(tensor(args=[tensor()], args_windows=[WINDOW])) for _ in range(2)}) == 1


def test_a_change_far_upstream_is_a_change_here() -> None:
    def chain(version: int) -> str:
        t = tensor(version=version)
        for _ in range(3):
            t = tensor(args=[t], args_windows=[WINDOW])
        return digest_of(t)

    assert chain(1) == chain(1) != chain(2)


@pytest.mark.parametrize(("given", "stored"), [({"a": (1, math.nan)}, {"a": [1, "NaN"]}), (10**400, 10**400)])
def test_a_version_is_any_json(given: object, stored: object) -> None:
    assert tensor(version=given).to_json()["version"] == stored


@pytest.mark.parametrize(
    ("given", "stored", "dtype"),
    [
        (0.25, 0.25, torch.float64),
        (-math.inf, "-Infinity", torch.float64),
        (3, 3, torch.int8),
        (1, 1.0, torch.float32),
        (np.float32(0.5), 0.5, torch.float32),
        (1 + 2j, [1.0, 2.0], torch.complex64),
    ],
)
def test_a_blend_init_is_a_number_of_the_dtype(given: Any, stored: object, dtype: torch.dtype) -> None:
    assert tensor(blend_init=given, dtype=dtype).to_json()["blend_init"] == stored


def test_a_name_of_a_blend_is_the_blend_itself() -> None:
    for name, blend in {"max": torch.maximum, "min": torch.minimum, "first": "first", "last": "last"}.items():
        assert tensor(blend=name).blend == blend
    assert tensor(blend=torch.fmax).blend is torch.fmax
    assert tensor(blend="gaussian").blend == WeightedMean("gaussian", sigma_scale=0.125)


WRONG: list[tuple[str, Any, torch.dtype]] = [
    *(("version", wrong, torch.float32) for wrong in ({1: 2}, {"a": object()}, {1, 2})),
    *(
        ("blend_init", wrong, dtype)
        for wrong, dtype in [
            *((0.5, torch.int8), (300, torch.uint8), (-1, torch.uint16), (math.inf, torch.int64), (1j, torch.float32)),
            *((True, torch.float32), (1e300, torch.float32), ("0", torch.float32)),
        ]
    ),
    *(
        ("blend", wrong, torch.float32)
        for wrong in ("sum", "Max", "", "first ", "torch.maximum", "hamming", "a" * 10_000, "\ud800", 3, ["max"])
    ),
]


@pytest.mark.parametrize(("name", "wrong", "dtype"), WRONG)
def test_what_cannot_be_stored_is_refused(name: str, wrong: object, dtype: torch.dtype) -> None:
    with pytest.raises(ValidationError, match=name) as caught:
        tensor(dtype=dtype, **{name: wrong})
    assert len(str(caught.value)) < 500
