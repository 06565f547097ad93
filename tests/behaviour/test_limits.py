"""At the first and the last pixel of an unbounded dimension, everything is as it is elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from infinite_tensor import InfiniteTensor, Output, TensorWindow, TileStore, ZarrTileStore
from infinite_tensor.errors import RegionError
from tests.support.building import built, store_of
from tests.support.counting import Counted
from tests.support.stores import sample

LIMIT = 2**51


# Tiles of 3 do not end at the limit.
TILE_SIZES = {"zarr": 4, "zarr, tiles of 3": 3, "hdf5": 4}


@pytest.fixture(params=sample(["memory", *TILE_SIZES], "memory", "zarr, tiles of 3"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> TileStore:
    return store_of(request.param.split(",")[0], tmp_path, TILE_SIZES.get(request.param))


def position(ctx: tuple[int, ...], size: int, stride: int) -> torch.Tensor:
    return torch.arange(size) + ctx[0] * stride


def chain(store: TileStore) -> tuple[InfiniteTensor, InfiniteTensor]:
    """The number of each pixel, in windows that end beyond the limits; and sums over what is up to 9 pixels away."""
    ground = built(lambda ctx: position(ctx, 6, 6), 6, store=store, name="ground", dtype=torch.int64)
    f, around = lambda _ctx, region: region.unfold(0, 19, 1).sum(-1), TensorWindow((22,), stride=4, offset=-9)
    return ground, built(f, 4, (ground, around), store=store, name="top", dtype=torch.int64)


def test_the_first_and_the_last_pixels_are_read(store: TileStore) -> None:
    ground, top = chain(store)
    for start in (-LIMIT, LIMIT - 7):
        expected = list(range(start, start + 7))
        assert ground[start : start + 7].tolist() == expected
        assert top[start : start + 7].tolist() == [19 * pixel for pixel in expected]
        store.flush()
        for t in (ground, top):
            t.clear_cache()
        assert top[start : start + 7].tolist() == [19 * pixel for pixel in expected]


def test_pixels_beyond_are_refused_by_every_method(store: TileStore) -> None:
    ground, _ = chain(store)
    for region in (slice(LIMIT - 2, LIMIT + 1), slice(-LIMIT - 1, -LIMIT + 2)):
        for use in (ground.__getitem__, ground.fill, ground.plan, ground.is_filled, ground.invalidate):
            with pytest.raises(RegionError, match=rf"limit of 2\*\*51: coordinates go from -{LIMIT} to {LIMIT - 1}"):
                use(region)


@pytest.mark.parametrize(("tile_size", "cached"), [(4, None), (3, None), (4, 1)])
def test_all_chunks_lie_in_the_zarr_array(tile_size: int, cached: int | None, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=tile_size, cache_size_tiles=cached) as store:
        tensors = chain(store)
        for start in (-LIMIT, LIMIT - 7):
            tensors[1].fill(slice(start, start + 7))
            tensors[0][start : start + 7]
        store.flush()
        for t in tensors:
            info = store.tensor_info(t.tensor_id)
            folder = tmp_path / "s.zarr" / info.location
            array = zarr.open_array(folder, mode="r")
            (size,), (count,) = array.chunks, array.cdata_shape
            numbers = sorted(int(chunk.name) for chunk in (folder / "c").iterdir())
            assert numbers[0] == (info.definition["origin"][0] - LIMIT) // size
            assert numbers[-1] == count - 1
            logs = [int(log.name.removeprefix("0.")) for log in folder.parent.glob("partial-*/0.*")]
            assert all(-count // 2 <= tile < count // 2 for tile in logs)
            last = array[info.definition["origin"][0] + LIMIT - 4 : info.definition["origin"][0] + LIMIT]
            assert np.array_equal(last, t[LIMIT - 4 : LIMIT].numpy())
        assert all(store.verify(t.tensor_id) == [] for t in tensors)


def test_an_output_has_the_windows_that_begin_below_the_limit(store: TileStore) -> None:
    f = Counted(lambda ctx: {"a": position(ctx, 2, 2), "b": position(ctx, 3, 3)})
    outputs = {name: Output((None,), torch.int64, TensorWindow((n,))) for name, n in (("a", 2), ("b", 3))}
    world = InfiniteTensor.from_multi(f, outputs, tile_store=store, tensor_id="t")
    last = (LIMIT - 1) // 3
    assert world["b"][LIMIT - 1] == LIMIT - 1
    assert f.calls == [(last,)]
    assert world["a"][2 * last : 2 * last + 2].tolist() == [2 * last, 2 * last + 1]
    assert f.calls == [(last,)]
