"""Wrong input is named: what was given, what was expected."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, InfiniteTensorError, MemoryTileStore, Output, TensorWindow, ValidationError
from tests.support.stored import DTYPES

WINDOW = TensorWindow((4, 4))


def base() -> InfiniteTensor:
    return InfiniteTensor((None, None), lambda _ctx: torch.zeros(4, 4), WINDOW)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(({"shape": wrong}, "shape") for wrong in ((), 4)),
        *(({"shape": (None, wrong)}, "ints") for wrong in (0, 2.5, True)),
        ({"shape": (None,)}, "output_window"),
        ({"f": None}, r"store.open"),
        ({"output_window": (4, 4)}, "output_window"),
        ({"output_window": TensorWindow((4, 4), dimension_map=(0, 2))}, "coordinate"),
        ({"dtype": "float"}, "supported"),
        ({"dtype": "torch.torch.int8"}, "unknown dtype"),
        ({"dtype": np.float32}, "dtype"),
        ({"dtype": torch.qint8}, "dtype"),
        ({"device": "gpu"}, "device 'gpu'"),
        ({"device": 1.5}, "device"),
        *(({"tensor_id": wrong}, f"non-empty str, got {wrong!r}") for wrong in ("", 7)),
        ({"tensor_id": "\ud800"}, "Unicode"),
        ({"tile_store": b"store.zarr"}, "tile_store"),
        ({"args": 3}, "tuple"),
        ({"args": [torch.zeros(4, 4)], "args_windows": [WINDOW]}, "InfiniteTensor"),
        ({"args": [base()]}, "args"),
        ({"args": [base()], "args_windows": [WINDOW, WINDOW]}, "args"),
        ({"args": [base()], "args_windows": [None]}, r"args_windows\[0\]"),
        ({"args": [base()], "args_windows": [TensorWindow((4,))]}, r"args_windows\[0\]"),
        ({"args": [base()], "args_windows": [TensorWindow((4, 4), None, None, (2, 0))]}, "coordinate"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": (2, 4)}, "including 1"),
        ({"blend": 3}, "function"),
        ({"blend": "sum"}, "'first'"),
        ({"blend": lambda a, b: (a + b).double()}, "elementwise"),
        ({"blend": lambda a, _b: a.sum()}, "elementwise"),
        ({"blend": lambda a, b: a[:, 0] + b}, r"torch.float32"),
        ({"blend": lambda a, b: a.reshape(4, 4) + b}, r"torch.float32"),
        ({"blend": torch.maximum, "dtype": torch.complex64}, r"torch.complex64"),
        ({"blend": torch.fmax, "dtype": torch.uint16}, r"torch.uint16"),
        ({"blend_init": "0"}, "blend_init"),
        ({"blend_init": 0.5, "dtype": torch.int32}, r"torch.int32"),
        ({"version": object()}, "version"),
    ],
)
def test_a_wrong_argument_is_refused(change: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"shape": (None, None), "f": lambda _ctx: torch.zeros(4, 4), "output_window": WINDOW}
    with pytest.raises(ValidationError, match=said) as caught:
        InfiniteTensor(**(arguments | change))
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, InfiniteTensorError)


def test_a_refused_tensor_leaves_no_trace_in_its_store() -> None:
    store = MemoryTileStore()
    with pytest.raises(ValidationError):
        InfiniteTensor((None, None), base, WINDOW, tile_store=store, tensor_id="t", blend_init="x")  # type: ignore[arg-type]
    assert store.tensor_ids() == []


def test_properties_give_back_what_was_given() -> None:
    def f(_ctx: object, _region: torch.Tensor) -> torch.Tensor:
        return torch.zeros(4, 4)

    source, store = base(), MemoryTileStore()
    options: dict[str, Any] = {"batch_size": (4, 1), "blend": torch.maximum, "blend_init": -1, "version": {"seed": 1}}
    t = InfiniteTensor([None, 8], f, WINDOW, [source], [WINDOW], tile_store=store, tensor_id="x", **options)
    assert (t.shape, t.f, t.args, t.args_windows, t.output_window) == ((None, 8), f, (source,), (WINDOW,), WINDOW)
    assert (t.tensor_id, t.uuid, t.tile_store, t.batch_size) == ("x", "x", store, (1, 4))
    assert (t.blend, t.blend_init, t.version) == (torch.maximum, -1, {"seed": 1})
    assert (t.dtype, t.device) == (torch.float32, torch.device("cpu"))
    assert base().tensor_id != base().tensor_id


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_is_given_by_its_name(dtype: torch.dtype) -> None:
    for name in (str(dtype), str(dtype).removeprefix("torch.")):
        assert InfiniteTensor((None, None), lambda _ctx: None, WINDOW, dtype=name).dtype is dtype
        outputs = {"a": Output((None, None), name, WINDOW)}
        made: Any = InfiniteTensor.from_multi(lambda _ctx: None, outputs)["a"]
        assert made.dtype is dtype


def test_a_uuid_stands_for_its_str() -> None:
    name = uuid.uuid4()
    t = InfiniteTensor((None, None), lambda _ctx: torch.zeros(4, 4), WINDOW, tensor_id=name)
    assert t.tensor_id == str(name)


class Slip:
    """Its `__getattr__` raises an error that is no AttributeError, for each attribute that it lacks."""

    def __init__(self) -> None:
        self.settings: dict[str, object] = {}

    def __getattr__(self, name: str) -> object:
        return self.__dict__["settings"][name]

    def __call__(self, _ctx: object) -> torch.Tensor:
        return torch.zeros(8)


def named(name: str) -> Callable[[object], torch.Tensor]:
    def f(_ctx: object) -> torch.Tensor:
        return torch.zeros(8)

    f.__name__ = name
    return f


@pytest.mark.parametrize(
    ("f", "beginning"),
    [
        (named("Blur"), "blur-"),
        (named("<lambda>"), ""),
        (named("x" * 100_000), "x" * 40 + "-"),
        (partial(named("octave"), 3), "octave-"),
        (Slip(), "slip-"),
    ],
    ids=["function", "lambda", "long", "partial", "object"],
)
def test_an_id_that_nobody_gives_begins_with_the_name_of_f(f: Any, beginning: str) -> None:
    t = InfiniteTensor((None,), f, TensorWindow((8,)))
    assert str(uuid.UUID(t.tensor_id.removeprefix(beginning))) == t.tensor_id.removeprefix(beginning)
    assert t.tensor_id.startswith(beginning)
