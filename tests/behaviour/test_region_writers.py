"""An ``f`` that can write any region of its tensor is asked for that, where nothing is to be kept of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
    from_image,
    sl,
)

# Inside: functions of this kind are made by the library alone.
from infinite_tensor.support.functions import RegionWriter
from tests.support.building import built
from tests.support.reference import Index

SIZE = (4, 6)
NEGATIVE = sl[-7:10, -9:5]


def ramp(start: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    rows, columns = (torch.arange(first, first + n) for first, n in zip(start, shape, strict=True))
    return (1000 * rows[:, None] + columns).float()


class Ramp(RegionWriter):
    """Numbers that tell their place.

    Attributes
    ----------
    regions : list of tuple of int
        The first pixels of the regions that it was asked to write.
    windows : list of tuple of int
        The windows that it was asked to compute.
    """

    def __init__(self) -> None:
        self.regions: list[Index] = []
        self.windows: list[Index] = []

    def __call__(self, ctx: Index) -> torch.Tensor:
        self.windows.append(ctx)
        return ramp([at * n for at, n in zip(ctx, SIZE, strict=True)], SIZE)

    def instead(self, dtype: torch.dtype, device: torch.device) -> str:
        return f"a ramp is no {dtype} on {device}"

    def writes(self, size: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
        return (size, dtype, device.type) == (SIZE, torch.float32, "cpu")

    def write(self, start: Sequence[int], out: torch.Tensor) -> None:
        assert out.is_contiguous()
        self.regions.append(tuple(start))
        out.copy_(ramp(start, out.shape))


def tensor(f: Ramp, shape: Any = (None, None), window: TensorWindow | None = None, **options: Any) -> InfiniteTensor:
    return built(f, window or TensorWindow(SIZE), shape=shape, **options)


def test_a_read_has_just_its_pixels_written_and_keeps_none() -> None:
    f = Ramp()
    t = tensor(f)
    assert torch.equal(t[NEGATIVE], ramp((-7, -9), (17, 14)))
    assert (f.regions, f.windows) == ([(-7, -9)], [])
    assert t.tile_store.tensor_info(t.tensor_id).bytes_stored == 0


def test_steps_ints_and_lists_of_regions_are_read_as_ever() -> None:
    f = Ramp()
    t = tensor(f)
    backwards, number, nothing = t[[sl[8:-3:-2, 3], sl[5, 7], sl[3:3, 0:5]]]
    assert backwards.tolist() == [8003, 6003, 4003, 2003, 3, -1997]
    assert (number.item(), nothing.shape) == (5007, (0, 5))
    assert f.regions == [(-2, 3), (5, 7)]


def test_a_store_that_outlives_the_process_is_given_windows(tmp_path: Path) -> None:
    f = Ramp()
    with ZarrTileStore(tmp_path / "store.zarr") as store:
        t = tensor(f, store=store, name="ramp")
        assert torch.equal(t[0:4, 0:6], ramp((0, 0), SIZE))
    with ZarrTileStore(tmp_path / "store.zarr") as store:
        assert torch.equal(store.open("ramp")[0:4, 0:6], ramp((0, 0), SIZE))
    assert (f.windows, f.regions) == ([(0, 0)], [])


@pytest.mark.parametrize(("of_store", "of_read"), [(2, None), (1, 2)])
def test_several_workers_compute_windows(of_store: int, of_read: int | None) -> None:
    f = Ramp()
    read = tensor(f, store=MemoryTileStore(workers=of_store)).read(NEGATIVE, workers=of_read)
    assert torch.equal(read, ramp((-7, -9), (17, 14)))
    assert (len(f.windows), f.regions) == (15, [])


OTHERS: dict[str, dict[str, Any]] = {
    "overlapping": {"window": TensorWindow(SIZE, stride=(2, 6))},
    "moved": {"window": TensorWindow(SIZE, offset=1)},
    "begun elsewhere": {"blend_init": 5},
    "combined": {"blend": "max"},
    "not covered": {"shape": (9, 12)},
}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
def test_a_tensor_whose_pixels_are_not_those_of_one_window_is_made_of_windows(options: dict[str, Any]) -> None:
    f = Ramp()
    found = tensor(f, **options)[0:9, 0:12]
    assert f.regions == []
    # By a function that can do nothing else.
    plain = tensor(f.__call__, **options)  # type: ignore[arg-type]
    assert torch.equal(found, plain[0:9, 0:12])


@pytest.mark.parametrize("target", [torch.float64, "meta"])
def test_its_tensor_is_not_moved(target: Any) -> None:
    t = tensor(Ramp())
    with pytest.raises(ValidationError, match=r"torch.float32"):
        t.to(target)
    assert t.to(torch.float32) is t
    assert torch.equal(t[NEGATIVE], ramp((-7, -9), (17, 14)))


class Copy(Ramp):
    """What lies in memory already."""

    @property
    def copies(self) -> bool:
        return True


def above(source: InfiniteTensor, **options: Any) -> InfiniteTensor:
    window = TensorWindow((4, 4), stride=2)
    return built(lambda _ctx, x: x[1:-1, 1:-1] + 1, window, (source, window.padded(1)), **options)


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_takes_windows_of_what_is_copied(workers: int, tmp_path: Path) -> None:
    f, g = Copy(), Ramp()
    with ZarrTileStore(tmp_path / "store.zarr", tile_size=8) as store:
        for source, name in ((tensor(f), "copied"), (tensor(g), "computed")):
            t = above(source, store=store, name=name)
            t.fill(sl[0:16, 0:16], workers=workers, progress=False)
            t.read(sl[-20:-10, 0:4], workers=workers)
        assert torch.equal(store.open("copied")[0:16, 0:16], store.open("computed")[0:16, 0:16])
        assert torch.equal(store.open("copied")[-20:-10, 0:4], store.open("computed")[-20:-10, 0:4])
    t = tensor(f)
    t.fill(NEGATIVE, workers=workers, progress=False)
    (streamed,) = t.iter_regions([NEGATIVE], workers=workers)
    assert torch.equal(streamed[0], ramp((-7, -9), (17, 14)))
    assert torch.equal(t.read(NEGATIVE, workers=workers), streamed[0])
    assert f.windows == []
    assert f.regions
    assert g.windows


def test_a_plan_counts_no_window_of_what_is_copied() -> None:
    f, g = Copy(), Ramp()
    plans = [above(tensor(each)).plan(sl[0:64, 0:96]) for each in (f, g)]
    of_copied, of_computed = (plan.tensors[0] for plan in plans)
    assert (of_copied.needed, of_copied.windows, of_copied.calls) == (of_computed.windows, 0, 0)
    assert of_computed.calls == of_computed.windows == 18 * 18
    # A strip of windows that no other step reads.
    assert plans[0].peak_memory < plans[1].peak_memory
    t = tensor(f)
    assert t.is_filled(NEGATIVE)
    t.fill(NEGATIVE, progress=False)
    assert (t.plan(NEGATIVE).windows, above(t).plan(NEGATIVE).tensors[0].windows) == (0, 0)


def test_what_is_computed_from_pixels_that_change_meanwhile_is_not_stored() -> None:
    array = np.zeros((8, 8), np.float32)
    source = from_array(array)
    calls: list[Index] = []

    def doubled(ctx: Index, x: torch.Tensor) -> torch.Tensor:
        calls.append(ctx)
        if len(calls) == 1:
            array[...] = 1
            changing = threading.Thread(target=source.invalidate, args=(...,))
            changing.start()
            changing.join()
        return 2 * x

    window = TensorWindow((8, 8))
    t = built(doubled, window, source, shape=(8, 8))
    assert t[...].unique().tolist() == [0.0]
    assert t[...].unique().tolist() == [2.0]
    assert t[...].unique().tolist() == [2.0]
    assert len(calls) == 2


def test_arrays_and_images_in_memory_are_copied(tmp_path: Path) -> None:
    pixels = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / "image.png")
    for source in (from_array(pixels), from_array(pixels.numpy()[:, :, ::-1]), from_image(tmp_path / "image.png")):
        mapped = source.map(lambda x: x.clone(), halo=2, dims=("dim_1", "dim_2") if source.dims[0] == "dim_0" else None)
        read = mapped[:, 1:39, 1:49]
        assert torch.equal(read, source[:, 1:39, 1:49])
        assert mapped.plan(...).tensors[0].windows == 0
        assert source.tile_store.tensor_info(source.tensor_id).bytes_stored == 0
