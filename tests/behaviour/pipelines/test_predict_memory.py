"""What a prediction takes of memory: a strip across the image, and a few batches, however long the image is."""

from __future__ import annotations

import functools
import math
import re
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    TensorGroup,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
    predict,
    sl,
)
from infinite_tensor.filling import Progress
from tests.behaviour.pipelines.arrays import Recorded
from tests.support.interpreters import CONTEXT

MIB = 2**20
BATCH = 4

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units")


def growth(folder: Path, shape: tuple[int, int], window: int, classes: int, max_memory: int | None) -> int:
    """By how much the most memory that this process has held grows while an image is worked through."""
    net = torch.nn.Conv2d(3, classes, 1)
    how: dict[str, Any] = {"overlap": 0.5, "batch_size": BATCH, "reduce": "argmax", "progress": False}
    small = np.zeros((3, window, window), np.uint8)
    predict(net, small, folder / "warm", window=(window, window), max_memory=max_memory, **how)
    image = np.zeros((3, *shape), np.uint8)
    image[...] = 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    predict(net, image, folder / "labels", window=(window, window), max_memory=max_memory, **how)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def held(folder: Path, shape: tuple[int, int], window: int = 128, classes: int = 30, most: int | None = None) -> int:
    with ProcessPoolExecutor(1, CONTEXT) as child:
        return child.submit(growth, folder, shape, window, classes, most).result()


def allowed(act: Callable[[], object], message: str = "") -> int:
    """How many MiB the error asks for that there is not enough memory."""
    with pytest.raises(ValidationError, match=rf"must be at least \d+ MiB, {message}") as caught:
        act()
    return int(re.findall(r"at least (\d+) MiB", str(caught.value))[0])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_longer_side(tmp_path: Path) -> None:
    # Labels, the image and holes; where tiles lie between other things, holes alone are 400 MiB.
    assert held(tmp_path, (512, 16384)) < 250 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("most", [None, 300 * MIB])
def test_labels_do_not_make_holes_between_batches(most: int | None, tmp_path: Path) -> None:
    # Where they were kept in memory, it was 350 to 400 MB: the more labels, the more holes.
    assert held(tmp_path, (2048, 8192), 256, 10, most) < 200 * MIB


def growth_over_a_map(folder: Path, longer: int) -> int:
    source = from_array(np.zeros((3, 512, longer), np.uint8), dims=("c", "y", "x")).map(torch.clone, window=64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    predict(torch.nn.Conv2d(3, 5, 1), source, folder, window=64, reduce="argmax", progress=False)
    # Those of the first batch.
    assert source.tile_store.tensor_info(source.tensor_id).bytes_stored < MIB
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.mark.slow
def test_memory_does_not_grow_with_the_windows_of_tensors_upstream(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, CONTEXT) as child:
        # Where windows were kept, up to 64 MiB of them, it was 116 MiB.
        assert child.submit(growth_over_a_map, tmp_path / "labels", 65536).result() < 80 * MIB


@pytest.mark.slow
@pytest.mark.parametrize("longer", [2048, 16384])
def test_memory_is_a_strip_of_scores_and_a_few_batches(longer: int, tmp_path: Path) -> None:
    window, shorter, classes = 256, 2048, 100
    strip, batch = window * shorter * classes * 4, BATCH * window**2 * classes * 4
    assert held(tmp_path, (shorter, longer), window, classes) < 1.3 * strip + 3 * batch


def test_less_memory_makes_narrower_bands(tmp_path: Path) -> None:
    most = 200 * MIB
    assert held(tmp_path, (2048, 2048), 256, 30, most) < 1.2 * most


def test_an_array_is_read_once_and_nothing_is_kept_of_it_but_what_the_first_batch_has_read(tmp_path: Path) -> None:
    image = Recorded(np.zeros((3, 400, 1200), np.uint8))
    made = predict(torch.nn.Conv2d(3, 5, 1), image, tmp_path / "s.zarr", window=(64, 64), overlap=0.5, progress=False)
    assert isinstance(made, InfiniteTensor)
    source = made.args[0]
    assert source.tile_store.tensor_info(source.tensor_id).tiles_complete == 1
    # Its content is looked at for the digest. What the first batch has read may be read again.
    first = math.prod(source.output_window.size)
    assert image.elements <= 2 * image.values.size + 2 * first
    source[...]
    assert source.tile_store.tensor_info(source.tensor_id).tiles_complete == 3


@pytest.mark.parametrize("most", ["1 MiB", "2 MiB", "70 MiB"])
def test_memory_that_is_not_enough_is_refused_with_what_is(most: str, tmp_path: Path) -> None:
    def run(most: str) -> None:
        options: dict[str, Any] = {"window": (80, 80), "overwrite": True, "progress": False, "max_memory": most}
        predict(torch.nn.Conv2d(3, 5, 1), torch.zeros(3, 100, 100), tmp_path / "s.zarr", **options)

    needed = allowed(lambda: run(most), r".*a batch of 4 windows and its output take 1.3 MiB")
    run(f"{needed} MiB")
    assert allowed(lambda: run(f"{needed - 2} MiB")) == needed


def test_what_is_stored_stays_where_memory_is_not_enough_to_replace_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"window": (80, 80), "progress": False}
    net, path = torch.nn.Conv2d(3, 5, 1), tmp_path / "s.zarr"
    with ZarrTileStore(path, tile_size=700) as store:
        predict(net, torch.zeros(3, 1000, 1000), store, **options)
        before = store.tensor_info("prediction").bytes_stored
        with pytest.raises(ValidationError, match="must be at least"):
            predict(net, torch.ones(3, 1000, 1000), store, **options, overwrite=True, max_memory="85 MiB")
        assert store.tensor_info("prediction").bytes_stored == before


def test_memory_that_an_error_asks_for_is_enough_for_a_tensor_and_for_all_of_a_group(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s", tile_size=64) as store:

        def made(side: int) -> InfiniteTensor:
            return InfiniteTensor((None, None), lambda _: torch.ones(1), TensorWindow((side, side)), tile_store=store)

        group = TensorGroup({str(side): made(side) for side in (100, 18_000, 500)})
        for each, least in ((made(64), 1), (group, 1025)):
            needed = allowed(functools.partial(each.plan, sl[0:64, 0:64], max_memory=1))
            assert needed >= least
            each.plan(sl[0:64, 0:64], max_memory=f"{needed} MiB")
            less = functools.partial(each.plan, sl[0:64, 0:64], max_memory=f"{needed - 1} MiB")
            assert allowed(less) == needed


def test_a_fill_in_bands_computes_each_window_once(tmp_path: Path) -> None:
    calls, told = [], list[Progress]()

    def net(batch: torch.Tensor) -> torch.Tensor:
        calls.append(len(batch))
        return batch.repeat(1, 30, 1, 1)

    image = np.zeros((1, 1024, 2048), np.float32)
    how: dict[str, Any] = {"reduce": "argmax", "max_memory": 155 * MIB}
    predict(net, image, tmp_path / "s.zarr", window=(256, 256), overlap=0.5, progress=told.append, **how)
    report = told[-1].report
    assert report is not None
    # Bands are half as high as a window, of which there are 7 rows of 15: each lies across one border.
    assert (report.bands, report.windows) == (8, 7 * 15)
    assert len(calls) == 7 * math.ceil(15 / BATCH)
