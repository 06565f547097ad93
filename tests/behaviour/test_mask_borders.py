"""What is stored of windows that lie across the border of what a fill is for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    Mask,
    MemoryTileStore,
    Output,
    TensorGroup,
    TensorWindow,
    TileStore,
    ZarrTileStore,
    predict,
    sl,
)
from tests.support.building import built, each_store
from tests.support.counting import Counted
from tests.support.files_of_a_store import Files
from tests.support.interpreters import Team
from tests.support.reference import Index, same_bits
from tests.support.stores import sample

TILE = 8
WINDOW = TensorWindow((8, 8), stride=4, offset=-2)
REGION = sl[0:48, 0:48]
WANTED = np.random.default_rng(3).random((6, 6)) < 0.4
WHERE = Mask(WANTED, scale=TILE)


def value(ctx: Index) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash(ctx) % 2**31)
    return torch.rand(WINDOW.size, generator=generator)


def overlapping(store: Any, f: Callable[..., Any], name: str = "t") -> InfiniteTensor:
    return built(f, WINDOW, store=store, name=name, blend="gaussian")


def windows_over(wanted: np.ndarray[Any, Any]) -> set[Index]:
    """The windows that touch a wanted tile."""
    size = TILE * len(wanted)
    pixels = np.pad(np.kron(wanted, np.ones((TILE, TILE), dtype=bool)), TILE)
    found = set()
    for index in itertools.product(range(-1, size // 4 + 1), repeat=2):
        row, column = (start + TILE for start in WINDOW.start(index))
        if pixels[row : row + 8, column : column + 8].any():
            found.add(index)
    return found


store = each_store("zarr", "hdf5", tile_size=TILE, default=("zarr",))


@pytest.fixture(scope="module")
def truth() -> torch.Tensor:
    found: torch.Tensor = overlapping(MemoryTileStore(), value)[REGION]
    return found


def tiles_of(store: TileStore, name: str = "t") -> tuple[int, int]:
    """How many tiles are stored whole, and in part."""
    info = store.tensor_info(name)
    return info.tiles_complete, info.tiles_partial


class TestAMask:
    def test_tiles_that_are_taken_are_stored_and_nothing_of_others(self, store: TileStore, truth: torch.Tensor) -> None:
        t = overlapping(store, value)
        plan = t.plan(REGION, where=WHERE)
        t.fill(REGION, where=WHERE, progress=False)
        assert tiles_of(store) == (WANTED.sum(), 0)
        assert plan.bytes_written == WANTED.sum() * TILE * TILE * 4
        taken = torch.from_numpy(np.kron(WANTED, np.ones((TILE, TILE), dtype=bool)))
        assert same_bits(t.stored_only(-1)[REGION], torch.where(taken, truth, -1.0))

    def test_windows_on_its_border_alone_run_again_for_the_rest(self, store: TileStore, truth: torch.Tensor) -> None:
        f = Counted(value)
        t = overlapping(store, f)
        t.fill(REGION, where=WHERE, progress=False)
        assert sorted(f.calls) == sorted(windows_over(WANTED))
        t.fill(REGION, progress=False)
        assert same_bits(t[REGION], truth)
        assert {index for index, count in f.counts.items() if count > 1} == windows_over(WANTED) & windows_over(~WANTED)
        assert max(f.counts.values()) == 2

    @pytest.mark.parametrize("count", [2, 3, 5])
    @pytest.mark.parametrize("where", [WHERE, None])
    def test_shards_keep_to_tiles(self, store: TileStore, count: int, where: Mask | None, truth: torch.Tensor) -> None:
        f = Counted(value)
        t = overlapping(store, f)
        for rank in range(count):
            before = len(f.calls)
            t.fill(REGION, where=where, shard=(rank, count), progress=False)
            assert store.tensor_info("t").tiles_partial == 0
            assert len(f.calls[before:]) == len({*f.calls[before:]})
        wanted = WANTED if where is not None else np.ones_like(WANTED)
        assert {*f.calls} == windows_over(wanted)
        assert store.tensor_info("t").tiles_complete == int(wanted.sum())
        assert same_bits(t[REGION], truth)

    def test_outputs_of_one_f_keep_to_their_own_tiles(self, store: TileStore) -> None:
        def f(ctx: Index) -> dict[str, torch.Tensor]:
            return {"fine": value(ctx), "coarse": value(ctx)[::2, ::2].contiguous()}

        half = TensorWindow((4, 4), stride=2, offset=-1)
        outputs = {"fine": Output((None, None), "float32", WINDOW), "coarse": Output((None, None), "float32", half)}
        group = InfiniteTensor.from_multi(f, outputs, tile_store=store, tensor_id="g")
        fine_and_coarse = TensorGroup({name: group[name] for name in outputs}, scale={"coarse": 0.5})
        fine_and_coarse.fill(REGION, where=WHERE, progress=False)
        coarse = WANTED.reshape(3, 2, 3, 2).any(axis=(1, 3))
        for name, wanted in (("fine", WANTED), ("coarse", coarse)):
            assert tiles_of(store, f"g/{name}") == (wanted.sum(), 0)

    def test_a_tensor_that_another_one_reads_keeps_what_that_needs(self, store: TileStore) -> None:
        f = Counted(value)
        source = overlapping(store, f, "source")
        around = TensorWindow((24, 24), stride=8, offset=-8)
        t = built(lambda _ctx, region: region[8:16, 8:16], (8, 8), (source, around), store=store, name="t")
        group = TensorGroup({"source": source, "t": t})
        group.fill(REGION, where=WHERE, progress=False)
        assert store.tensor_info("t").tiles_partial == 0
        assert set(f.counts.values()) == {1}
        assert torch.equal(t[REGION], source[REGION])

    def test_a_read_that_waits_for_a_window_of_a_masked_fill_computes_it_itself(self, store: TileStore) -> None:
        """The window lies over a tile that the mask takes, and over one that the read is for."""
        shared, own = (1, 2), (1, 4)
        begun, read = threading.Event(), threading.Event()

        def told(ctx: Index) -> None:
            if ctx == shared:
                begun.set()
                assert read.wait(30)
            if ctx == own:
                read.set()

        f = Counted(value, told)
        t = overlapping(store, f)
        with ThreadPoolExecutor() as threads:
            filled = threads.submit(t.fill, sl[0:8, 0:16], where=Mask([[1, 0]], scale=TILE), progress=False)
            assert begun.wait(30)
            pixels = threads.submit(t.__getitem__, sl[0:8, 8:16]).result()
            filled.result()
        assert f.counts[shared] == 2
        assert same_bits(pixels, overlapping(MemoryTileStore(), value)[0:8, 8:16])


NET = torch.nn.Conv2d(3, 10, 3, padding=1)
PICTURE = torch.rand(3, 256, 256)
SCORES: dict[str, Any] = {"window": 32, "overlap": 0.5, "reduce": "argmax", "dims": ("c", "y", "x"), "progress": False}


def predict_shard(net: Any, picture: torch.Tensor, path: Path, options: dict[str, Any]) -> None:
    with ZarrTileStore(path, tile_size=32) as store:
        predict(net, picture, store, **SCORES, **options)


class TestAPrediction:
    @pytest.mark.parametrize("only", ["where", "region"])
    def test_it_stores_labels_and_no_scores_beside_them(self, only: str, tmp_path: Path) -> None:
        wanted = torch.zeros(256, 256, dtype=torch.bool)
        wanted[64:128, 96:192] = True
        options = {"where": wanted} if only == "where" else {"region": sl[64:128, 96:192]}
        with ZarrTileStore(tmp_path / "s.zarr", tile_size=32) as store:
            labels = predict(NET, PICTURE, store, **SCORES, **options)
            assert isinstance(labels, InfiniteTensor)
            whole = predict(NET, PICTURE, **SCORES)
            expected = torch.where(wanted, whole[...], torch.tensor(255, dtype=torch.uint8))
            assert torch.equal(labels.stored_only(255)[...], expected)
            assert tiles_of(store, "prediction") == (6, 0)
        assert Files(tmp_path / "s.zarr").tensors["prediction"].size <= 2 * 64 * 96

    @pytest.mark.parametrize("together", sample([True, False], True))
    @pytest.mark.parametrize("masked", [True, False])
    def test_shards_store_labels_and_no_scores(self, masked: bool, together: bool, tmp_path: Path) -> None:
        mask = torch.rand(256, 256, generator=torch.Generator().manual_seed(1)) > 0.999
        calls = [
            (predict_shard, NET, PICTURE, tmp_path, {"shard": (rank, 3), "where": mask if masked else None})
            for rank in range(3)
        ]
        with Team(3 if together else 1) as team:
            for part in [calls] if together else [[call] for call in calls]:
                team.together(*part)
        files = Files(tmp_path)
        prediction = files.tensors["prediction"]
        tiles = mask.reshape(8, 32, 8, 32).any(dim=3).any(dim=1)
        assert (prediction.logs, files.leavings) == (set(), [])
        assert len(prediction.chunks) == (int(tiles.sum()) if masked else tiles.numel())
        assert prediction.size <= 2 * 32 * 32 * len(prediction.chunks)
