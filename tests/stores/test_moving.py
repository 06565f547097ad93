"""``t.to(...)``: device and dtype change in place, with what is stored."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    DtypeMismatchError,
    InfiniteTensor,
    MemoryTileStore,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
)
from infinite_tensor.engine.assemble import read_together
from infinite_tensor.engine.chain import node_of
from infinite_tensor.geometry.regions import parse
from infinite_tensor.tilestore.memory import MemoryContents
from infinite_tensor.values.spec import TensorSpec
from tests.support.counting import Counted


class Typed(Counted):
    def __init__(self) -> None:
        super().__init__(self.window)
        self.dtype = torch.float32
        self.device = "cpu"

    def window(self, ctx: tuple[int, ...]) -> torch.Tensor:
        return torch.full((4,), float(ctx[0]) + 0.5, dtype=self.dtype, device=self.device)


def made(f: Callable[..., torch.Tensor], store: TileStore | None = None, **options: Any) -> InfiniteTensor:
    return InfiniteTensor((None,), f, TensorWindow((4,)), tile_store=store, **options)


def built_as_float64() -> InfiniteTensor:
    return made(Typed(), dtype=torch.float64)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((torch.float64,), {}),
        (("cpu", torch.float64), {}),
        ((torch.device("cpu"), torch.float64, True), {}),
        ((torch.zeros(1, dtype=torch.float64),), {}),
        ((built_as_float64(),), {}),
        ((), {"tensor": built_as_float64()}),
        ((), {"dtype": torch.float64}),
        ((), {"device": "cpu", "dtype": torch.float64, "non_blocking": True}),
        ((None, torch.float64), {"copy": False}),
    ],
)
def test_every_form_that_torch_takes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    f = Typed()
    t = made(f)
    before = t[0:8]
    assert t.to(*args, **kwargs) is t
    assert t.dtype == torch.float64
    assert torch.equal(t[0:8], before.double())
    assert len(f.calls) == 2


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("cpu", "cpu"), {}),
        (("cpu",), {"device": "cpu"}),
        ((torch.float64,), {"dtype": torch.float64}),
        ((), {"colour": 1}),
        ((3.5,), {}),
        ((True,), {}),
        ((), {"device": False}),
        ((torch.float64,), {"copy": True}),
        ((torch.float64, False, True), {}),
        ((), {"memory_format": torch.contiguous_format}),
    ],
)
def test_what_torch_refuses_is_a_type_error(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    t = made(Typed())
    with pytest.raises(TypeError):
        t.to(*args, **kwargs)
    assert t.dtype == torch.float32


def test_from_then_on_f_must_return_the_new_dtype() -> None:
    f = Typed()
    t = made(f).to(torch.float64)
    with pytest.raises(DtypeMismatchError):
        t[0:4]
    f.dtype = torch.float64
    assert t[0:4].tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("options", "wrong", "said"),
    [
        ({"blend_init": float("inf")}, "int32", "does not fit"),
        ({}, "float8_e4m3fn", "dtype"),
        ({"blend": "max"}, "complex64", "does not work on"),
        ({"blend": "hann"}, "int32", "fractions"),
    ],
)
def test_a_move_that_cannot_be_changes_nothing(options: dict[str, Any], wrong: str, said: str) -> None:
    t = made(Typed(), **options)
    before = t[0:4]
    with pytest.raises(ValidationError, match=said):
        t.to(getattr(torch, wrong))
    assert t.dtype == torch.float32
    assert torch.equal(t[0:4], before)


def test_a_move_that_fails_midway_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    f = Typed()
    t = made(f)
    before = t[0:8]

    def failing(*_args: object) -> TileStore:
        raise MemoryError("no room")

    monkeypatch.setattr("infinite_tensor.tilestore.memory._moved", failing)
    with pytest.raises(MemoryError):
        t.to(torch.float64)
    monkeypatch.undo()
    assert t.dtype == torch.float32
    assert torch.equal(t[0:8], before)
    assert len(f.calls) == 2


def test_a_persistent_store_keeps_its_dtype_and_follows_a_device(tmp_path: Path) -> None:
    f = Typed()
    t = made(f, ZarrTileStore(tmp_path / "s", tile_size=8), tensor_id="t")
    before = t[0:8]
    with pytest.raises(ValidationError, match=r"torch.float32.*cannot be moved to torch.float64"):
        t.to(torch.float64)
    assert (t.dtype, t.device.type) == (torch.float32, "cpu")
    t.to("meta")
    assert t.device.type == "meta"
    t.to("cpu")
    assert torch.equal(t[0:8], before)
    assert len(f.calls) == 2


def test_one_id_on_two_devices_is_refused_and_pointed_to_move() -> None:
    store = MemoryTileStore()
    made(Typed(), store, tensor_id="t")
    with pytest.raises(ValidationError, match=r"kept on cpu, but device=meta was given; move it with tensor.to"):
        made(Typed(), store, tensor_id="t", device="meta")


def test_one_stored_tensor_is_read_on_two_devices_at_once(tmp_path: Path) -> None:
    store, f = ZarrTileStore(tmp_path / "s", tile_size=8), Typed()
    here = made(f, store, tensor_id="t")
    here[0:8]
    store.flush()
    # It has no f of its own, so that the one here computes for it.
    elsewhere = store.open("t", device="meta")
    selection = parse(slice(0, 16), (None,))
    (first,), (second,) = read_together([(node_of(tensor), [selection]) for tensor in (elsewhere, here)])
    assert (first.device.type, second.tolist()) == ("meta", [x // 4 + 0.5 for x in range(16)])
    assert len(f.calls) == 4


class MovedInBetween(MemoryContents):
    """Somebody else moves a tensor in the middle of each read."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.move: Callable[[], object] = lambda: None

    def serve(self, spec: TensorSpec, start: Sequence[int], out: torch.Tensor) -> bool:
        move, self.move = self.move, lambda: None
        with ThreadPoolExecutor(1) as other:
            other.submit(move).result()
        return super().serve(spec, start, out)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float32, torch.int16)])
def test_a_read_of_a_tensor_that_is_moved_in_between_gives_what_it_has_become(dtypes: tuple[torch.dtype, ...]) -> None:
    contents, dtype = MovedInBetween(), dtypes[0]
    t = made(lambda ctx: torch.full((4,), ctx[0], dtype=dtype), TileStore(contents))
    t[0:8]
    contents.move, dtype = lambda: t.to(dtypes[1]), dtypes[1]
    found = t[2:12]
    assert found.dtype == t.dtype == dtypes[1]
    assert found.tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_a_read_of_a_tensor_that_is_moved_while_f_runs_begins_again() -> None:
    calls: list[tuple[int, ...]] = []

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        calls.append(ctx)
        if len(calls) == 1:
            with ThreadPoolExecutor(1) as other:
                other.submit(t.to, torch.float64).result()
        return torch.full((4,), float(ctx[0]), dtype=t.dtype)

    t = made(f)
    found = t[2:6]
    assert (found.dtype, found.tolist()) == (torch.float64, [0, 0, 1, 1])
    assert calls == [(0,), (0,), (1,)]


def test_reads_beside_moves_succeed() -> None:
    t = made(lambda ctx: torch.full((4,), float(ctx[0]), dtype=t.dtype))
    t[0:8]
    ended = threading.Event()

    def move() -> None:
        try:
            for number in range(500):
                t.to((torch.float64, torch.float32)[number % 2])
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as other:
        moves = other.submit(move)
        while not ended.is_set():
            assert t[2:6].tolist() == [0, 0, 1, 1]
        moves.result()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a cuda device")
def test_a_cuda_tensor_reads_and_stores_like_one_on_the_cpu(tmp_path: Path) -> None:
    for store in (MemoryTileStore(), ZarrTileStore(tmp_path / "s", tile_size=8)):
        f = Typed()
        f.device = "cuda"
        t = made(f, store, tensor_id="t", device="cuda")
        on_device = t[-3:9]
        assert on_device.device.type == "cuda"
        t.to("cpu")
        assert torch.equal(t[-3:9], on_device.cpu())
        assert len(f.calls) == 4
