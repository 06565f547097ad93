"""Reads that are interrupted, and stores that change under a read."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    StoreError,
    TensorGroup,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    sl,
)
from tests.support.building import line, ones
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index

OVERLAP = TensorWindow((4,), stride=2)


@pytest.mark.parametrize(
    "make", [lambda _path: MemoryTileStore(), lambda path: ZarrTileStore(path, tile_size=8)], ids=["memory", "zarr"]
)
def test_a_read_goes_on_with_its_own_tensor_when_the_id_is_recreated(
    make: Callable[[Path], TileStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infinite_tensor.engine.assemble._BLOCK_BYTES", 16)
    store = make(tmp_path)
    replaced = False

    def replaces(_ctx: tuple[int, ...]) -> torch.Tensor:
        nonlocal replaced
        if not replaced:
            replaced = True
            store.clear_tensor("t")
            new = line(store, lambda _c: torch.full((4,), 9.0), version=2)
            new[0:32]
        return torch.ones(4)

    old = InfiniteTensor((None,), replaces, TensorWindow((4,)), tile_store=store, tensor_id="t", version=1)
    assert old[0:32].unique().tolist() == [1]
    with pytest.raises(ValidationError, match="version: stored 2, given 1"):
        old[0:4]


def test_stored_regions_do_not_pile_up_behind_a_batch_that_never_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_tensor.engine.assemble._MOST_WAITING", 5)
    t = InfiniteTensor((None,), lambda contexts: torch.ones(len(contexts), 4), TensorWindow((4,)), batch_size=4)
    t[8:12]

    def regions() -> Any:
        yield sl[0:4]
        while True:
            yield sl[8:12]

    assert len(next(t.iter_regions(regions()))) == 5


def test_an_abandoned_stream_leaves_everything_usable(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=4, cache_size_tiles=1)
    t = InfiniteTensor((None,), ones, OVERLAP, tile_store=store, tensor_id="t")
    stream = t.iter_regions(sl[x : x + 4] for x in range(0, 400, 4))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not store._contents.tiles._pins
    assert t[0:40].unique().tolist() == [2]


def test_a_read_never_shows_a_tile_that_another_read_has_dropped(tmp_path: Path) -> None:
    store, fails = ZarrTileStore(tmp_path, tile_size=16), False

    def blend(existing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        if fails:
            raise ArithmeticError
        return existing + incoming

    source = InfiniteTensor((None,), ones, OVERLAP, tile_store=store, tensor_id="source", blend=blend)
    source[0:6]

    def f(ctx: tuple[int, ...], region: torch.Tensor) -> torch.Tensor:
        nonlocal fails
        if ctx == (0,):
            fails = True
            with pytest.raises(ArithmeticError):
                source[-4:8]
            fails = False
        return region

    t = InfiniteTensor((None,), f, TensorWindow((2,)), args=[source], args_windows=[TensorWindow((2,))])
    with pytest.raises(StoreError, match="dropped while it was being read"):
        t[0:6]
    assert t[0:6].tolist() == [2] * 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reads_in_inference_mode_leave_ordinary_tensors(tmp_path: Path, dtype: torch.dtype) -> None:
    for store in (MemoryTileStore(), ZarrTileStore(tmp_path / str(dtype), tile_size=16)):
        t = InfiniteTensor((None,), lambda _c: torch.ones(4, dtype=dtype), OVERLAP, dtype=dtype, tile_store=store)
        with torch.inference_mode():
            first = t[0:8]
            streamed = next(t.iter_regions([sl[0:8]]))[0]
        assert not first.is_inference()
        assert not streamed.is_inference()
        assert t[0:16].unique().tolist() == [2]


def test_a_default_device_does_not_reach_into_a_store(tmp_path: Path) -> None:
    with torch.device("meta"):
        store = ZarrTileStore(tmp_path, tile_size=8)
        t = InfiniteTensor((None,), lambda _c: torch.ones(4, device="cpu"), OVERLAP, tile_store=store, blend_init=0)
        pixels = t[0:16]
    assert pixels.tolist() == [2] * 16


def test_a_stored_tensor_does_not_mix_what_its_arg_was_with_what_it_became(tmp_path: Path) -> None:
    dtype = torch.float64
    source = InfiniteTensor((None,), lambda _c: torch.ones(4, dtype=dtype), TensorWindow((4,)), dtype=dtype)

    def make(store: TileStore) -> InfiniteTensor:
        return InfiniteTensor(
            (None,),
            lambda _c, a: a.float(),
            TensorWindow((4,)),
            args=[source],
            args_windows=[TensorWindow((4,))],
            tile_store=store,
        )

    stored, kept = make(ZarrTileStore(tmp_path)), make(MemoryTileStore())
    stored[0:4]
    dtype = torch.float32
    source.to(dtype)
    with pytest.raises(ValidationError, match=r"args\[0\] .* has been moved to torch.float32"):
        stored[4:8]
    assert kept[4:8].tolist() == [1] * 4


def test_batches_are_filled_across_the_blocks_of_a_large_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infinite_tensor.engine.assemble._BLOCK_BYTES", 3 * 16)
    sizes: list[int] = []

    def f(contexts: list[tuple[int, ...]]) -> torch.Tensor:
        sizes.append(len(contexts))
        return torch.stack([torch.full((4,), float(x)) for (x,) in contexts])

    t = InfiniteTensor((None,), f, TensorWindow((4,)), batch_size=8, tile_store=MemoryTileStore(cache_size_windows=1))
    assert t[0:84].tolist() == [float(x // 4) for x in range(84)]
    assert sizes == [8, 8, 5]


class Broken(DictTileStore):
    """Nothing can be read from it."""

    def _read_tiles(self, tensor_id: str, tile_indices: Sequence[Index]) -> list[torch.Tensor | None]:
        raise OSError(f"no disk has {tile_indices} of {tensor_id}")


@pytest.mark.parametrize("earlier", [KeyboardInterrupt(), SystemExit(0), GeneratorExit()], ids=repr)
def test_an_error_is_told_whatever_its_caller_has_caught(earlier: BaseException) -> None:
    def fails(_ctx: tuple[int]) -> torch.Tensor:
        raise ValueError("f fails")

    failing = InfiniteTensor((None,), fails, TensorWindow((4,)))
    broken = InfiniteTensor((None,), fails, TensorWindow((4,)), tile_store=Broken({}, tile_size=8), tensor_id="t")
    try:
        raise earlier
    except BaseException:  # noqa: BLE001  (any)
        with pytest.raises(ValueError, match="f fails"):
            failing.read(slice(0, 20), workers=2)
        with pytest.raises(StoreError, match="no disk"):
            broken[0:8]


# Fills: they say that what is done is kept, and how to continue.


NOTE = r"Finished work is kept: to continue, call fill again with the same region\."
REGION = sl[0:64]


def pressed_line(store: TileStore, name: str, pressed_at: int = 0) -> tuple[InfiniteTensor, Counted]:
    """A tensor, and its ``f``; during one of its calls the user presses Ctrl-C."""

    def ones(_ctx: object) -> torch.Tensor:
        if len(f.calls) == pressed_at:
            signal.raise_signal(signal.SIGINT)
        return torch.ones(4)

    f = Counted(ones)
    return InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=store, tensor_id=name), f


@pytest.mark.parametrize("kind", ["memory", "zarr"])
def test_a_fill_that_is_interrupted_says_how_to_continue_and_does(kind: str, tmp_path: Path) -> None:
    store = MemoryTileStore() if kind == "memory" else ZarrTileStore(tmp_path, tile_size=8)
    t, f = pressed_line(store, "t", pressed_at=6)
    with pytest.raises(KeyboardInterrupt, match=NOTE):
        t.fill(REGION, progress=False)
    assert len(f.calls) == 6
    t.fill(REGION, progress=False)
    assert len(f.calls) == 17  # The call that was interrupted is made again.


def test_a_group_that_is_interrupted_says_so_too(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path, tile_size=8)
    (a, f), (b, g) = pressed_line(store, "a", pressed_at=6), pressed_line(store, "b")
    group = TensorGroup({"a": a, "b": b})
    with pytest.raises(KeyboardInterrupt, match=NOTE):
        group.fill(REGION, progress=False)
    group.fill(REGION, progress=False)
    assert (len(f.calls), len(g.calls)) == (17, 16)


def test_an_error_of_f_has_no_such_note() -> None:
    def fails(_ctx: object) -> torch.Tensor:
        raise ArithmeticError

    t = InfiniteTensor((None,), fails, TensorWindow((4,)))
    with pytest.raises(ArithmeticError) as caught:
        t.fill(REGION, progress=False)
    assert not any("was interrupted" in note for note in caught.value.__notes__)
