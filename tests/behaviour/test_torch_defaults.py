"""Where torch puts tensors by default, and what it makes them of: nothing of it reaches into the library."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    TensorBlob,
    TensorWindow,
    TileStore,
    sl,
)
from tests.support.building import built, store_of
from tests.support.stored import DTYPES
from tests.support.stores import sample

WINDOW = TensorWindow((4, 4), stride=(2, 2))


@contextmanager
def another_device() -> Iterator[None]:
    with torch.device("meta"):
        yield


@contextmanager
def another_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def ramp(dtype: torch.dtype, ctx: tuple[int, ...], *regions: torch.Tensor) -> torch.Tensor:
    # On the CPU in every thread, and in no default dtype.
    pixels = torch.arange(16, device="cpu").reshape(4, 4) % 5 + ctx[0] % 3
    return sum((region.to(dtype) for region in regions), pixels.to(dtype))


def plane(
    store: TileStore, name: str = "plane", dtype: torch.dtype = torch.float32, *reads: InfiniteTensor, **options: Any
) -> InfiniteTensor:
    f = lambda *given: ramp(dtype, *given)  # noqa: E731
    return built(f, WINDOW, *reads, store=store, name=name, dtype=dtype, **options)


STORES: dict[str, Callable[[Path], TileStore]] = {
    **{kind: partial(store_of, kind) for kind in ("memory", "zarr", "hdf5")},
    "little memory": lambda _: MemoryTileStore(cache_size_bytes=1),
}


def reads_and_fills(open_store: Callable[[Path], TileStore], path: Path) -> Iterator[Any]:
    with open_store(path) as store:
        source = plane(store, "source", blend=operator.add, blend_init=1)
        t = plane(store, "plane", torch.float32, source)
        yield from (t[-3:9, 0], t[4:4, 0:3], t[8:0:-3, 0:4], *t[[sl[0:3, 0:3], sl[20, 20:22]]])
        yield list(t.iter_regions([sl[0:3, 3:9], sl[30:33, 0:3]]))
        yield from (str(t.plan(sl[0:20, 0:20])), t.is_filled(sl[0:20, 0:20]))
        t.fill(sl[0:20, 0:20], workers=2, progress=False)
        yield from (t.coverage(sl[0:20, 0:20]), t.coverage(sl[0:0, 0:3]), t.is_filled(sl[0:20, 0:20]))
        t.invalidate(sl[0:2, 0:2])
        yield from (t[0:9, 0:9], t.to("cpu")[0:2, 0:2], t.to(device="cpu").dtype)
        store.flush()
    with open_store(path) as store:
        yield plane(store, "source", blend=operator.add, blend_init=1)[0:9, 0:9]


def every_dtype(open_store: Callable[[Path], TileStore], path: Path) -> Iterator[Any]:
    with open_store(path) as store:
        for dtype in DTYPES:
            yield plane(store, str(dtype), dtype, blend=lambda a, b: torch.where(a == b, a, b))[0:9, 0:9]


def blobs(path: Path) -> Iterator[Any]:
    rows = torch.arange(30, dtype=torch.float32, device="cpu").reshape(10, 3)
    # Mapped, and compressed.
    for target in (path / "blob", "memory://torch-defaults"):
        with TensorBlob.open(target, "w+", dtype="float32", shape=3, block_size=4) as blob:
            blob.write(rows)
            blob.write(rows.numpy()[:3])
            blob[2], blob[4:6], blob[-1] = 7.0, rows[:2], rows[0]
            blob.flush()
            blob.seek(0)
            yield from (
                blob.read(2),
                blob.read(),
                blob[1],
                blob[::-2],
                blob[[1, 9, 3]],
                blob[3:3],
                blob[[]],
                blob.read(0),
            )
            yield from (blob[np.array([2, 0])], blob[torch.tensor([True, False] * 6 + [True], device="cpu")])
            blob.truncate(11)
        with TensorBlob.open(target, "r+") as blob:
            yield from (list(blob), blob.as_tensor()[2:9, 0:2], len(blob))
            blob.extend(blob)
            blob[0:2] = 1
            yield blob[0:20]
        TensorBlob.unlink(target)


USES: dict[str, Callable[[Path], Iterator[Any]]] = {
    **{f"reads and fills in {name}": partial(reads_and_fills, open_store) for name, open_store in STORES.items()},
    **{f"every dtype in {name}": partial(every_dtype, STORES[name]) for name in ("memory", "zarr")},
    "blobs": blobs,
}


def plain(found: Any) -> Any:
    """What was found, comparable: of tensors what they hold, of what, and where."""
    if isinstance(found, list | tuple):
        return [plain(each) for each in found]
    if isinstance(found, torch.Tensor):
        return found.dtype, str(found.device), found.cpu().tolist()
    return found.tolist() if isinstance(found, np.ndarray) else found


SLOW = {"reads and fills in little memory", "reads and fills in hdf5", "every dtype in memory"}


@pytest.mark.parametrize("name", sample(USES, *(USES.keys() - SLOW)))
def test_the_defaults_of_torch_change_nothing(name: str, tmp_path: Path) -> None:
    use = USES[name]
    expected = [plain(each) for each in use(tmp_path / "ordinary")]
    for defaults in (another_device, another_dtype):
        with defaults():
            found = list(use(tmp_path / defaults.__name__))
        assert [plain(each) for each in found] == expected, defaults.__name__
