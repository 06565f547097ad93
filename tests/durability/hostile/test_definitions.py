"""Definitions that no honest tensor has: refused with our own errors, before anything is made of them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import MemoryTileStore, StoreError, ValidationError
from infinite_tensor.errors import DependantsRemainWarning

# Inside: definitions with the right digest.
from infinite_tensor.tilestore.stored_definition import StoredTensor
from tests.durability.hostile.honest import EXPECTED, REGION, Storage, change, make_base, nested, opened
from tests.support.bounds import bounded
from tests.support.reference import same_bits

_WINDOW: dict[str, Any] = {"size": [4, 4], "stride": [3, 3], "offset": [0, 0], "dimension_map": None}
_ARG: dict[str, Any] = {"window": _WINDOW, "digest": "0" * 64, "tensor_id": None}
_WRONG_IN_A_WINDOW: dict[str, list[Any]] = {
    "size": [[4], [4, 0], [4, -4], [4, 2**70], [4, "4"], 4],
    "stride": [[0, 3], [3], [3, 3, 3], [3, math.inf], "33"],
    "offset": [[0], [0, 2**70], [0, None], [0, 0.5], {}],
    "dimension_map": [[0], [0, 2], [0, -1], [0, "1"], {}, 0],
}
_WRONG_IN_AN_ARG: dict[str, list[Any]] = {
    "digest": [None, 0, "", "0" * 63, "G" * 64, ["0"]],
    "tensor_id": [0, "", "\ud800", [], {}],
    "window": [None, [], {}, _WINDOW | {"dimension_map": [0, 7]}],
}
_WRONG_SCALES: list[Any] = [
    *(0, -1, "1", True, None, 10**400, math.nan, [], {}),
    *([0.1], [0.1, 0.2, 0.3], [0.1, None], [[0.1]]),
]
_FUNCTIONS: dict[str, Any] = {"scheme": 6, "python": "3.11", "code": {}, "values": [], "opaque": []}

_MISSING = "(missing)"
_WRONG: dict[str, list[Any]] = {
    "format": [None, "1", 0, -1, True, 1.0, math.nan, [1], {}],
    "tensor_id": [None, "top", 3, ["base"], {}],
    "shape": [
        *(None, 8, "ab", [], {}, [0, 8], [-1, 8], [True, 8], [8.0, 8], ["8", 8], [[8], 8], [8] * 100_000),
        *([2**53 + 1, 8], [2**70, 8], [10**400, 8], [-(10**400), 8], [math.nan, 8], [nested(90), 8]),
    ],
    "dtype": [None, 3, "float8_e4m3fn", "quint8", "object", "torch.float32", "<f4", [], {}],
    "output_window": [
        *(None, [], "w", {}, {"size": []}, {"size": {}}, {"size": [4] * 33}),
        *(_WINDOW | {field: wrong} for field, values in _WRONG_IN_A_WINDOW.items() for wrong in values),
        _WINDOW | {"size": [2**53, 2**53], "stride": [1, 1]},
    ],
    "args": [
        *(None, {}, "args", [None], [[]], [{}], [_ARG, 3], 10**400),
        *([_ARG | {field: wrong}] for field, values in _WRONG_IN_AN_ARG.items() for wrong in values),
    ],
    "blend": [
        *(0, True, [], {}, ["add"], {"weights": None}, {"weights": "bell"}, {"weights": ["hann"]}),
        {"weights": nested(90)},
        *({"weights": "sha256:0"}, {"weights": "sha256:" + "G" * 64}, {"weights": "hann", "more": 1}),
        *({"weights": "hann", "sigma_scale": 0.125}, {"weights": "sha256:" + "0" * 64, "sigma_scale": 0.125}),
        *({"weights": "gaussian"}, {"weights": "gaussian", "sigma_scale": [0.1] * 2}),
        *({"weights": "gaussian", "sigma_scale": wrong} for wrong in _WRONG_SCALES),
        # The tensor has a blend_init, with which there is no mean.
        {"weights": "hann"},
    ],
    "blend_init": ["nan", "1", "1e5", [], [1], [0, 1], {}, 10**400, True, "9" * 5000],
    "version": [nested(101), nested(500)],
    "dims": [
        *("yx", {}, 0, False, [], ["y"], ["y", "x", "z"], ["y", "y"], ["", "x"], ["y", 3], ["y", None], [["y"], "x"]),
        *(["y", "x\0"], ["y", "\ud800"], ["y", "x" * 101], ["dim_1", "dim_0"], ["dim_01", "x"], [nested(90), "x"]),
    ],
    "functions": [
        *(None, [], "f", {"scheme": 6}, _FUNCTIONS | {"python": 3}, _FUNCTIONS | {"code": []}),
        _FUNCTIONS | {"code": {"f": 1}},
        *(
            _FUNCTIONS | {"values": each}
            for each in (None, "abc", [1], [["a", "b"]], [["a", "b", 3]], [[[], "b", "c"]])
        ),
        *(_FUNCTIONS | {"opaque": each} for each in (None, 1, [1], [None])),
    ],
    "tile_size": [
        *(8, "88", [], [8], [8, 8, 8], [0, 8], [-8, 8], [8, True], [8, 8.0], [8, math.nan], {}),
        *([8, 2**70], [8, 10**400], [10**6, 10**6], [2**31, 1]),
    ],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field, values in _WRONG.items() for value in values),
        *((field, _MISSING) for field in ("shape", "dtype", "output_window", "args", "blend", "blend_init", "version")),
    ],
    ids=lambda value: f"{value!r:.40}",
)
def test_a_field_of_the_wrong_kind_is_refused(storage: Storage, field: str, value: Any) -> None:
    if value is _MISSING:
        stored = json.loads(storage["base", "definition"])
        del stored[field]
        storage["base", "definition"] = json.dumps(stored)
    else:
        change(storage, "base", **{field: value})
    store = opened(storage)
    for use in (store.tensor_definition, store.tensor_info, store.open):
        with bounded(), pytest.raises(StoreError, match="'base'"):
            use("base")
    with bounded():
        assert [damage.kind for damage in store.verify("base")] == ["definition"]
    with bounded(), pytest.raises((StoreError, ValidationError), match="'base'"):
        make_base(store)


@pytest.mark.parametrize("text", ["", "{", "null x", "[]", "3", '"x"', "true", "[" * 100_000, '{"a":' * 100_000])
def test_what_is_no_json_object_is_refused(storage: Storage, text: str) -> None:
    storage["base", "definition"] = text
    with bounded(), pytest.raises(StoreError, match="'base'"):
        opened(storage).open("base")


def test_a_dictionary_that_is_no_json_is_refused() -> None:
    honest = make_base(MemoryTileStore()).to_json()
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    for wrong in (b"", object(), {"f": object()}, loop, 10**5000, [10**5000], {"x": {1, 2}}):
        with bounded(), pytest.raises(ValidationError):
            StoredTensor.from_json(honest | {"version": wrong})
        with bounded(), pytest.raises(ValidationError):
            StoredTensor.from_json(wrong)


def test_the_format_of_a_later_version_asks_for_an_upgrade_whatever_else_it_holds(storage: Storage) -> None:
    storage["base", "definition"] = json.dumps({"format": 4, "form": "new", "tensor_id": "base"})
    with pytest.raises(StoreError, match="use a later version"):
        opened(storage).open("base")


def test_a_damaged_definition_does_not_stand_in_the_way_of_a_new_beginning(storage: Storage) -> None:
    storage["base", "definition"] = "{"
    store = opened(storage)
    with pytest.warns(DependantsRemainWarning, match="'top'"):
        store.clear_tensor("base")
    assert same_bits(make_base(store)[REGION], EXPECTED["base"])


# Blends.


def test_the_name_of_a_blend_is_never_imported(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_blend.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil_blend.evil", "evil_blend", "os.system", "builtins.exec", "torch.load", "__import__('os')"):
        change(storage, "top", blend=name)
        store = opened(storage)
        assert same_bits(store.open("top")[0:8, 0:7], EXPECTED["top"][0:8])
        with pytest.raises(ValidationError, match=r"needs .*; give blend="):
            store.open("top", f=lambda _ctx, below: below)
    assert "evil_blend" not in sys.modules


@pytest.mark.parametrize(
    "fields",
    [
        {"blend": "torch._VariableFunctionsClass.maximum", "dtype": "complex64", "blend_init": None},
        *(
            {"blend": blend, "blend_init": None, **wrong}
            for blend in ({"weights": "hann"}, {"weights": "sha256:" + "0" * 64})
            for wrong in ({"dtype": "int32"}, {"dtype": "bool"}, {"blend_init": 0.5})
        ),
    ],
)
def test_a_blend_that_does_not_fit_the_rest_is_refused(storage: Storage, fields: dict[str, Any]) -> None:
    change(storage, "base", **fields)
    with bounded(), pytest.raises((StoreError, ValidationError), match=r"'base'|does not work"):
        opened(storage).open("base")


def test_nothing_is_allocated_for_the_weights_of_windows_that_nobody_can_hold(storage: Storage) -> None:
    window = {"size": [2**40, 2**40], "stride": [2**39, 2**39], "offset": [0, 0], "dimension_map": None}
    for blend in (
        {"weights": "hann"},
        {"weights": "gaussian", "sigma_scale": 0.125},
        {"weights": "sha256:" + "0" * 64},
    ):
        change(storage, "base", blend=blend, blend_init=None, output_window=window, functions={})
        with bounded():
            assert opened(storage).open("base").output_window.size == (2**40, 2**40)


# Args.


def test_tensors_that_name_themselves_and_each_other_as_args_are_not_followed_for_ever(storage: Storage) -> None:
    arg = json.loads(storage["top", "definition"])["args"][0]
    for name, upstream in (("top", "base"), ("base", "top")):
        change(storage, name, args=[{**arg, "tensor_id": name}, {**arg, "tensor_id": upstream}])
    store = opened(storage)
    with bounded():
        for name in ("top", "base"):
            assert store.open(name).args == ()
            assert same_bits(store.open(name)[0:8, 0:7], EXPECTED[name][0:8])
            with pytest.raises(ValidationError, match="does not contain all args"):
                store.open(name, f=lambda _ctx, a, _b: a)


def _digest_of(stored: Mapping[str, Any]) -> str:
    return StoredTensor.from_json(stored).definition.digest


def test_a_thousand_args_open_in_time(storage: Storage) -> None:
    base, count = json.loads(storage["base", "definition"]), 1000
    args = []
    for number in range(count):
        stored = base | {"tensor_id": f"arg {number}", "version": number}
        storage[f"arg {number}", "definition"] = json.dumps(stored)
        args.append({"window": _WINDOW, "tensor_id": f"arg {number}", "digest": _digest_of(stored)})
    change(storage, "top", args=args)
    with bounded():
        assert len(opened(storage).open("top").args) == count


def test_a_chain_a_thousand_deep_opens_in_time(storage: Storage) -> None:
    below = json.loads(storage["base", "definition"])
    for number in range(1000):
        arg = {"window": _WINDOW, "tensor_id": below["tensor_id"], "digest": _digest_of(below)}
        below = below | {"tensor_id": f"link {number}", "args": [arg]}
        storage[f"link {number}", "definition"] = json.dumps(below)
    with bounded():
        tensor, depth = opened(storage).open("link 999"), 0
        while tensor.args:
            (tensor,), depth = tensor.args, depth + 1
    assert (tensor.tensor_id, depth) == ("base", 1000)


@pytest.mark.parametrize(
    "window",
    [
        {**_WINDOW, "size": [4]},
        {**_WINDOW, "size": [2**40, 2**40]},
        {**_WINDOW, "size": [2**53, 1]},
        {**_WINDOW, "offset": [2**53, 0]},
        {**_WINDOW, "stride": [2**53, 2**53], "offset": [2**53, 2**53]},
        {"size": [4], "stride": [3], "offset": [0], "dimension_map": None},
        {"size": [4] * 3, "stride": [3] * 3, "offset": [0] * 3, "dimension_map": [0, 1, 0]},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::infinite_tensor.FunctionChangedWarning")
def test_an_arg_window_that_cannot_be_is_refused_before_it_is_computed(storage: Storage, window: Any) -> None:
    stored = json.loads(storage["top", "definition"])
    change(storage, "top", args=[{**stored["args"][0], "window": window}])

    def f(*_: object) -> torch.Tensor:
        raise AssertionError("computed")

    with bounded(), pytest.raises((StoreError, ValidationError)):
        opened(storage).open("top", f=f)[90:100, 0:10]
    with bounded(), pytest.raises((StoreError, ValidationError)):
        opened(storage).open("top", f=f, args=[make_base(opened(storage))])[90:100, 0:10]
