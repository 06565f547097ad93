"""What torch, numpy and the file system refuse reaches a user as an error of the library that says what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from infinite_tensor import (
    GridDataset,
    InfiniteTensor,
    InfiniteTensorError,
    OutOfMemoryError,
    ShapeMismatchError,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    sl,
)
from tests.support.building import built, each_store
from tests.support.interpreters import run

FOUR = TensorWindow((4,))
# 2**62 bytes and 2**66: no address space holds these, and of the second torch cannot even count the bytes.
HUGE = pytest.mark.parametrize("side", [2**30, 2**32])


store = each_store("memory", "zarr")


def plane(shape: tuple[int | None, ...] = (None, None), store: TileStore | None = None) -> InfiniteTensor:
    window = TensorWindow((64,) * len(shape))
    return built(lambda _ctx: torch.ones(window.size), window, shape=shape, store=store)


# Results of f that are no dense tensor of values.

UNUSABLE: dict[str, tuple[Callable[[], object], str]] = {
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(4), torch.ones(4)]), "dense tensor.*nested"),
    "jagged": (lambda: torch.nested.nested_tensor([torch.ones(4)], layout=torch.jagged), "dense tensor.*nested"),
    "sparse": (lambda: torch.ones(4).to_sparse(), r"layout torch\.sparse_coo; return result\.to_dense\(\)"),
    "sparse rows": (lambda: torch.ones(4, 4).to_sparse_csr(), r"sparse_csr; return result\.to_dense\(\)"),
    "opaque": (lambda: torch.ones(4).to_mkldnn(), r"_mkldnn; return result\.to_dense\(\)"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8), "torch.quint8"),
    "meta": (lambda: torch.ones(4, device="meta"), "on meta.*declared on cpu; return a tensor with values"),
    "fake": (lambda: FakeTensorMode().from_tensor(torch.ones(4)), "with values, got FakeTensor"),
    "an array": (lambda: np.ones(4), "must return a torch.Tensor, got ndarray"),
}


@pytest.mark.filterwarnings("ignore:.*(prototype|beta|deprecated)")
@pytest.mark.parametrize("kind", UNUSABLE)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_result_that_holds_no_dense_values_is_named(kind: str, batch_size: int | None, store: TileStore) -> None:
    make, said = UNUSABLE[kind]

    def f(ctx: Any) -> object:
        return make() if batch_size is None else [make() for _ in ctx]

    t = built(f, FOUR, store=store, name="t", batch_size=batch_size)
    with pytest.raises(ValidationError, match=said) as caught:
        t[0:16]
    (note,) = caught.value.__notes__
    assert "of tensor 't'" in note
    assert f"defined in {__file__}:" in note


# The last window is as long as the batch.
@pytest.mark.parametrize(
    ("shape", "size"), [*((shape, 64) for shape in [(64, 64), (1, 64, 64), (5, 64, 64), (), (4, 64)]), ((4, 4), 4)]
)
def test_a_forgotten_batch_dimension_is_told_with_the_shape_to_return(shape: tuple[int, ...], size: int) -> None:
    t = built(lambda _contexts: torch.ones(shape), (size, size), batch_size=4)
    message = f"for 4 windows, f returned shape {shape}; return (4, {size}, {size})"
    with pytest.raises(ShapeMismatchError, match=re.escape(message)):
        t[0 : 2 * size, 0 : 2 * size]


# Results that fit into no memory.


def told(size: str, shape: tuple[int, ...]) -> str:
    return rf"{re.escape(str(shape))} and torch\.float32 takes {size} GiB, .* in parts with iter_regions, .* fill"


@HUGE
def test_a_region_that_no_memory_holds_is_told_with_its_size(side: int, store: TileStore) -> None:
    t = plane(store=store)
    size = f"{4 * side**2 // 2**30:,}.0"
    with pytest.raises(OutOfMemoryError, match=told(size, (side, side))) as caught:
        t[0:side, 0:side]
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, InfiniteTensorError)
    assert t[0:2, 0:2].tolist() == [[1, 1], [1, 1]]


@HUGE
@pytest.mark.parametrize("stored", [False, True])
def test_every_way_to_read_a_region_tells_it(side: int, stored: bool, tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path) if stored else None
    infinite, finite = plane(store=store), plane((side, side))
    reads: list[Callable[[], object]] = [
        lambda: infinite[[sl[0:2, 0:2], sl[0:side, 0:side]]],
        lambda: infinite[0:side:2, 0:side],
        lambda: infinite.read(sl[0:side, 0:side], workers=2),
        lambda: np.asarray(finite),
        lambda: 3 in finite,
        lambda: GridDataset(finite, (side, side))[0],
    ]
    for read in reads:
        with pytest.raises(OutOfMemoryError, match="iter_regions"):
            read()


REVERSED = """
import resource, warnings
from pathlib import Path
import torch
warnings.simplefilter("ignore")
from infinite_tensor import InfiniteTensor, OutOfMemoryError, TensorWindow
torch.set_num_threads(1)
SIDE = 2**28
t = InfiniteTensor((None,), lambda _ctx: torch.ones(1, dtype=torch.uint8), TensorWindow((1,), stride=2**40),
    dtype=torch.uint8)
t[0:8:-1], t[8:0:-1]
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + SIDE + SIDE // 2,) * 2)
try:
    t[SIDE:0:-1]
except OutOfMemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and a limit that Linux keeps")
@pytest.mark.slow
def test_a_step_whose_copy_does_not_fit_is_told() -> None:
    done = run("-c", REVERSED)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"takes 0\.2 GiB.*iter_regions", done.stdout)


# Targets that are none.


# What users meet first: each message ends with what to do.


def test_a_read_only_store_tells_how_to_open_it_for_writing(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path) as store:
        built(lambda _ctx: torch.ones(4), FOUR, store=store, name="t")[0:4]
    with ZarrTileStore(tmp_path, mode="r") as store:
        forbidden: list[Callable[[], object]] = [
            lambda: store.clear_tensor("t"),
            lambda: store.open("t").invalidate(),
            lambda: store.verify("t", repair=True),
            store.gc,
            lambda: store.clear_group("g"),
        ]
        for change in forbidden:
            with pytest.raises(ValidationError, match=r"mode='r\+'"):
                change()


def test_an_attribute_error_within_a_property_is_raised_as_it_is() -> None:
    class Named(InfiniteTensor):
        @property
        def mean(self) -> object:
            return self.tile_store.nothing  # type: ignore[attr-defined]

    t = Named((None,), lambda _ctx: torch.ones(4), FOUR)
    with pytest.raises(AttributeError, match="'MemoryTileStore'"):
        t.mean  # noqa: B018  (reading it is what fails)
