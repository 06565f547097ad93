"""A tensor that was opened without ``f``, beside the same one that has it: the one with ``f`` computes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    Output,
    TensorGroup,
    TensorWindow,
    TileAccessError,
    TileStore,
)
from tests.support.building import built, each_store

WINDOW = TensorWindow((4,))
HALO = TensorWindow((6,), stride=4, offset=-1)


store = each_store(tile_size=5, default=("memory", "hdf5"))


class Middle:
    """A ``ground``, and a ``middle`` over it, which are there with ``f`` and opened without."""

    def __init__(self, store: TileStore) -> None:
        self.calls: Counter[tuple[str, tuple[int, ...]]] = Counter()
        # In a store of its own, so that the middle one is opened without what it reads.
        self.ground = built(self._ground, WINDOW, store=MemoryTileStore(), name="ground")
        self.store = store
        self.built = self.reads([self.ground], "middle", HALO)
        self.opened = store.open("middle")
        assert self.opened.f is None
        assert self.opened.args == ()

    def _ground(self, ctx: tuple[int, ...]) -> torch.Tensor:
        self.calls["ground", ctx] += 1
        return torch.arange(4.0) + 4 * ctx[0]

    def reads(self, args: Sequence[InfiniteTensor], tensor_id: str, window: TensorWindow = WINDOW) -> InfiniteTensor:
        """A tensor that adds up the middle four pixels of what it reads of others."""

        def f(ctx: tuple[int, ...], *regions: torch.Tensor) -> torch.Tensor:
            self.calls[tensor_id, ctx] += 1
            return torch.stack([region[(len(region) - 4) // 2 :][:4] for region in regions]).sum(0)

        return built(f, WINDOW, *((arg, window) for arg in args), store=self.store, name=tensor_id)

    def check(self, names: Sequence[str]) -> None:
        """All that was needed for 8 pixels ran once."""
        windows = {("ground", (i,)) for i in range(-1, 3)} | {(name, (i,)) for name in names for i in range(2)}
        assert self.calls == Counter(dict.fromkeys(windows, 1))


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1])))
def test_it_computes_for_a_tensor_that_reads_both(store: TileStore, order: Sequence[int]) -> None:
    middle = Middle(store)
    args = [middle.opened, middle.built]
    top = middle.reads([args[i] for i in order], "top")
    assert top[0:8].tolist() == [2.0 * pixel for pixel in range(8)]
    middle.check(["middle", "top"])


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
@pytest.mark.parametrize("fill", [False, True])
def test_it_computes_wherever_in_the_chain_it_is(store: TileStore, order: Sequence[int], fill: bool) -> None:
    middle = Middle(store)
    # Each of these is opened or built at another depth of the chain.
    args = [
        middle.reads([middle.opened], "side"),
        middle.reads([middle.reads([middle.opened], "a")], "b"),
        middle.built,
    ]
    top = middle.reads([args[i] for i in order], "top")
    if fill:
        # By whole tiles.
        assert top.fill(slice(0, 8)).windows == sum(middle.calls.values()) == len(middle.calls)
    assert top[0:8].tolist() == [3.0 * pixel for pixel in range(8)]
    if not fill:
        middle.check(["middle", "side", "a", "b", "top"])


@pytest.mark.parametrize("names", list(itertools.permutations(["opened", "built"])))
@pytest.mark.parametrize("fill", [False, True])
def test_it_computes_where_both_are_read_together(store: TileStore, names: Sequence[str], fill: bool) -> None:
    middle = Middle(store)
    group = TensorGroup({name: getattr(middle, name) for name in names})
    if fill:
        assert group.plan(slice(0, 8)).windows == group.fill(slice(0, 8)).windows == sum(middle.calls.values())
    found = group[0:8]
    assert [found[name].tolist() for name in names] == [list(map(float, range(8)))] * 2
    assert set(middle.calls.values()) == {1}


@pytest.mark.parametrize("names", list(itertools.permutations(["opened", "top"])))
def test_it_computes_where_one_is_read_with_what_reads_the_other(store: TileStore, names: Sequence[str]) -> None:
    middle = Middle(store)
    tensors = {"opened": middle.opened, "top": middle.reads([middle.built], "top")}
    found = TensorGroup({name: tensors[name] for name in names})[0:8]
    assert [found[name].tolist() for name in names] == [list(map(float, range(8)))] * 2
    assert set(middle.calls.values()) == {1}


def test_of_two_with_f_the_first_computes(store: TileStore) -> None:
    middle = Middle(store)
    with pytest.warns(UserWarning, match="different"):
        other = built(lambda _ctx, region: region[1:5] + 0, WINDOW, (middle.ground, HALO), store=store, name="middle")
    assert middle.reads([middle.opened, middle.built, other], "top")[0:4].tolist() == [0.0, 3.0, 6.0, 9.0]
    assert middle.calls["middle", (0,)] == 1
    assert middle.reads([middle.opened, other, middle.built], "next")[4:8].tolist() == [12.0, 15.0, 18.0, 21.0]
    assert middle.calls["middle", (1,)] == 0


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1])))
def test_an_output_that_was_opened_is_computed_beside_the_others(store: TileStore, order: Sequence[int]) -> None:
    outputs = {name: Output((None,), torch.float32, WINDOW) for name in ("a", "b")}
    f = lambda ctx: {name: torch.full((4,), float(ctx[0])) for name in outputs}  # noqa: E731
    group: Any = InfiniteTensor.from_multi(f, outputs, tile_store=store, tensor_id="t")
    with pytest.raises(TileAccessError, match="outputs"):
        store.open("t/a")[0:4]
    args = [store.open("t/a"), group["b"]]
    top = built(lambda _ctx, a, b: a + b, WINDOW, *(args[i] for i in order), store=store, name="top")
    assert top[4:12].tolist() == [2.0] * 4 + [4.0] * 4


def test_alone_it_is_not_computed(store: TileStore) -> None:
    middle = Middle(store)
    middle.built[0:4]
    assert middle.reads([middle.opened], "top")[0:4].tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(TileAccessError, match="without f"):
        middle.reads([middle.opened], "top")[4:8]
