"""Fingerprints stay what they were, and take bounded work whatever a function holds."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import FunctionChangedWarning, InfiniteTensor, TensorWindow, TileStore, ZarrTileStore, no_digest
from infinite_tensor.values.definition import changed_functions, functions_of
from infinite_tensor.values.fingerprint import PYTHON, differ, fingerprint
from tests.support.networks import Net
from tests.unit.fingerprinted import FUNCTIONS, closure, deep, halved, looked_up, square

HERE = Path(__file__).parent
WINDOW = TensorWindow((4,))

of_this_bytecode = pytest.mark.skipif(PYTHON != "3.11", reason="the bytecode of Python 3.11 is what was fingerprinted")


BEFORE = json.loads((HERE / "fingerprints.json").read_text())
NETWORKS = ("module", "linear")
"""Which of the functions are networks."""


@of_this_bytecode
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in NETWORKS])
def test_a_fingerprint_is_what_it_was_before_there_were_schemes(name: str) -> None:
    assert fingerprint(FUNCTIONS[name]) == BEFORE[name]


@of_this_bytecode
@pytest.mark.parametrize("name", NETWORKS)
def test_the_fingerprint_of_a_network_ends_in_what_it_was_before(name: str) -> None:
    assert re.fullmatch(f"3:[0-9a-f]{{64}}:{BEFORE[name]}", fingerprint(FUNCTIONS[name]))
    with no_digest():
        assert fingerprint(FUNCTIONS[name]) == BEFORE[name]


def test_a_function_with_10_000_values_has_a_fingerprint_of_the_second_scheme() -> None:
    assert ":" not in fingerprint(closure(list(range(9989))))
    assert fingerprint(closure(list(range(9990)))).startswith("2:")


# Bounded work.


class Counted(list[int]):
    """A list that counts how often one of its members is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        for value in super().__iter__():
            Counted.looks += 1
            yield value

    def __getitem__(self, at: Any) -> Any:
        Counted.looks += 1
        return super().__getitem__(at)


def test_of_a_million_values_some_are_looked_at() -> None:
    Counted.looks = 0
    assert fingerprint(closure(Counted(range(10**6)))).startswith("2:")
    assert 1000 <= Counted.looks < 12_000


def looped_set() -> Callable[..., object]:
    """A function in a set that it holds, together with others in no particular order."""
    values: set[object] = {"b", "a", ("c", 1)}

    def inner(*_args: object) -> object:
        return values, sorted(map(str, values))

    values |= {inner, FUNCTIONS["nested"], functools.partial(inner, 1)}
    return inner


class Endless:
    """Something that is always wrapped around something else."""

    @property
    def __wrapped__(self) -> Endless:
        return Endless()

    def __call__(self, ctx: object) -> object:
        return ctx


class Unlisted(list[int]):
    """A list that fails when it is looked into."""

    def __iter__(self) -> Iterator[int]:
        raise OSError("it was on a disk that is gone")


class Unwritten(int):
    """A number that fails when it is written."""

    def __repr__(self) -> str:
        raise LookupError("no name for it")


class Lazy:
    """An object that loads what it is asked for, and fails."""

    def __getattr__(self, name: str) -> object:
        raise OSError(f"cannot load {name}")


def dead() -> object:
    """What stands for an object that is gone."""
    return weakref.proxy(Endless())


MANY: dict[str, Callable[[], Callable[..., Any]]] = {
    "a set that holds the function": looped_set,
    "a default of a set of sets": lambda: closure({frozenset({(i, j) for j in range(90)}) for i in range(300)}),
    "a million ints": lambda: closure(list(range(10**6))),
    "a large set": lambda: closure({str(i) for i in range(10**5)}),
    "a large mapping": lambda: closure({str(i): [i] for i in range(10**5)}),
    "many lists": lambda: closure([[str(i), {i}] for i in range(10**4)]),
    "lists 1,000 deep": lambda: closure(deep(1000)),
    "lists 20,000 deep": lambda: closure(deep(20_000)),
    "tuples deep": lambda: closure(deep(20_000, lambda inner: (inner,))),
    "mappings deep": lambda: closure(deep(20_000, lambda inner: {"in": inner})),
    "sets deep": lambda: closure(deep(20_000, lambda inner: frozenset({inner, "x"}))),
    "closures deep": lambda: deep(10**4, closure),
    "partials deep": lambda: deep(10**4, lambda inner: functools.partial(closure, inner)),
    "wrapped without end": Endless,
    "an int of 5,000 digits": lambda: closure(10**5000),
    "a list that fails": lambda: closure(Unlisted([1])),
    "a number that fails": lambda: closure([Unwritten(1), {Unwritten(2)}]),
    "an object that fails": lambda: closure(Lazy()),
    "a reference to nothing": lambda: closure([dead(), {"it": dead()}]),
}


@functools.cache
def fingerprint_of(name: str) -> str:
    return fingerprint(MANY[name]())


@pytest.mark.parametrize("name", MANY)
def test_whatever_a_function_holds_it_has_a_fingerprint(name: str) -> None:
    assert fingerprint_of(name) == fingerprint(MANY[name]())


def test_a_value_that_fails_hides_nothing_beside_it() -> None:
    for fails in (Unlisted([1]), Unwritten(1), Lazy(), dead()):
        assert fingerprint(closure([fails, 1])) != fingerprint(closure([fails, 2]))
        assert differ(fingerprint(closure([fails, Net(0.5)])), fingerprint(closure([fails, Net(0.25)])))


def of_sets(x: list[str], names: frozenset[str] = frozenset({"a", "b", "c"})) -> list[str]:
    return [y for y in x if y in {"p", "q", "r"} or y in names]


def in_another_process(seed: int, *names: str) -> tuple[dict[str, str], list[str]]:
    """Fingerprints there, that of `of_sets` among them; and the order of a set, which goes by the seed of hashes."""
    code = (
        "import json, sys\nfrom infinite_tensor.values.fingerprint import fingerprint\n"
        "from tests.unit.test_fingerprint import MANY, of_sets\n"
        "found = {name: fingerprint(MANY[name]()) for name in sys.argv[1:]}\n"
        "print(json.dumps([found | {'of sets': fingerprint(of_sets)}, [*{'a', 'b', 'c'}]]))"
    )
    command, environment = [sys.executable, "-c", code, *names], {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run(command, cwd=HERE.parents[1], env=environment, check=True, capture_output=True, text=True)
    found, order = json.loads(done.stdout)
    return found, order


@pytest.fixture(scope="module")
def elsewhere() -> tuple[dict[str, str], list[str]]:
    """All of them in another process."""
    return in_another_process(1, *MANY)


@pytest.mark.parametrize("name", MANY)
def test_it_is_the_same_in_every_process(name: str, elsewhere: tuple[dict[str, str], list[str]]) -> None:
    assert elsewhere[0][name] == fingerprint_of(name)


def test_it_does_not_go_by_the_order_of_sets(elsewhere: tuple[dict[str, str], list[str]]) -> None:
    (first, order), (second, other_order) = elsewhere, in_another_process(2)
    assert order != other_order
    assert first["of sets"] == second["of sets"] == fingerprint(of_sets)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (closure(list(range(10**5))), closure(list(range(10**5 + 1)))),
        (closure([0] * 10**5), closure([0] * (10**5 - 1) + [1])),
        (closure([set(range(10**4)), {1}]), closure([set(range(10**4)), {2}])),
        (closure([[0] * 10**5, closure(1)]), closure([[0] * 10**5, closure(2)])),
        (closure(10**5000), closure(10**5000 + 1)),
        (closure([*range(10**5), len]), closure([*range(10**5), max])),
    ],
)
def test_a_change_near_the_function_is_seen(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_code_is_nearer_than_the_tables_beside_it() -> None:
    def sine(x: Any, table: tuple[int, ...] = tuple(range(20_000))) -> Any:
        return torch.sin(x), table

    def cosine(x: Any, table: tuple[int, ...] = tuple(range(20_000))) -> Any:
        return torch.cos(x), table

    assert fingerprint(sine) != fingerprint(cosine)


# Schemes, in stores.


def test_fingerprints_compare_within_one_scheme() -> None:
    few, many, more = ({"python": PYTHON, "f": text} for text in ("ab", "2:ab", "2:cd"))
    assert changed_functions(few, many) == changed_functions(many, few) == []
    assert changed_functions(many, more) == changed_functions(few, {**few, "f": "cd"}) == ["f"]


def test_fingerprints_compare_by_the_highest_scheme_that_both_have() -> None:
    code, other_code, table, weights, other_weights, alone = (
        {"python": PYTHON, "f": text} for text in ("ab", "cd", "2:ab", "3:ef:ab", "3:gh:ab", "3:ef:2:ab")
    )
    assert changed_functions(weights, other_weights) == changed_functions(code, alone | {"f": "3:ef:cd"}) == ["f"]
    assert changed_functions(other_code, weights) == changed_functions(weights, other_code) == ["f"]
    assert changed_functions(table, alone | {"f": "3:ef:2:cd"}) == ["f"]
    for one, other in [(code, weights), (other_weights, code), (weights, alone), (table, alone), (table, weights)]:
        assert changed_functions(one, other) == []


def test_what_is_computed_from_a_tensor_of_the_second_scheme_is_of_it_too() -> None:
    upstream = functions_of(fingerprint(looked_up), None, ())
    below = functions_of(fingerprint(halved), None, (upstream,))
    assert [name for name in ("f", "upstream") if below[name].startswith("2:")] == ["upstream"]
    assert functions_of(fingerprint(halved), None, (below,))["upstream"].startswith("2:")


def build(store: TileStore, of_square: Callable[..., Any] = square, of_table: Callable[..., Any] = looked_up) -> Any:
    options: dict[str, Any] = {"tile_store": store}
    squares = InfiniteTensor((None,), of_square, WINDOW, tensor_id="square", **options)
    table = InfiniteTensor((None,), of_table, WINDOW, tensor_id="looked up", **options)
    half = InfiniteTensor((None,), halved, WINDOW, [table], [WINDOW], tensor_id="halved", **options)
    return squares, table, half


@pytest.fixture
def written_before(tmp_path: Path) -> Path:
    """A store that was written before there were schemes; the fingerprint of `looked_up` is of 20,000 values."""
    return Path(shutil.copytree(HERE / "written_before.zarr", tmp_path / "store.zarr"))


def test_a_store_written_before_there_were_schemes_opens_without_a_warning(written_before: Path) -> None:
    with ZarrTileStore(written_before, tile_size=8) as store:
        squares, table, half = build(store)
        assert squares[-4:12].tolist() == [1.0] * 4 + [0.0] * 4 + [1.0] * 4 + [4.0] * 4
        assert table[0:16].tolist() == [2.0 * i for i in range(16)]
        assert half[0:8].tolist() == [float(i) for i in range(8)]


@of_this_bytecode
def test_a_function_of_few_values_that_has_changed_since_is_a_warning(written_before: Path) -> None:
    with (
        ZarrTileStore(written_before, tile_size=8) as store,
        pytest.warns(FunctionChangedWarning, match="f of tensor 'square'"),
    ):
        build(store, of_square=lambda _ctx: torch.ones(4))


def test_a_change_among_many_values_is_a_warning_in_a_store_of_today(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "store.zarr") as store:
        build(store)
    with ZarrTileStore(tmp_path / "store.zarr") as store:
        build(store)
    changed = functools.partial(looked_up, table=tuple(range(20_000)))
    with ZarrTileStore(tmp_path / "store.zarr") as store, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(store, of_table=changed)
    assert [str(each.message).split(" is not")[0] for each in caught] == [
        "f of tensor 'looked up'",
        "A function upstream of tensor 'halved'",
    ]
