"""A program as a user with a strict type checker writes it. It is checked, not run: `assert_type` says what is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack, assert_type

import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from infinite_tensor import (
    FillOptions,
    GridDataset,
    InfiniteTensor,
    Mask,
    Output,
    PatchDataset,
    Reduction,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    ZarrTileStore,
    map_windows,
    noise,
    open_store,
    overlay,
    placed,
    predict,
    sl,
)
from infinite_tensor.filling import FillReport, Progress

WINDOW = TensorWindow((64, 64))
REGION = sl[0:512, 0:512]
NET = torch.nn.Conv2d(3, 10, 3, padding=1)
IMAGE = torch.rand(3, 600, 800)


def ones(_ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(64, 64)


def smooth(region: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(region[None], 5, stride=1)[0]


def scored(batch: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(NET(batch / 255))


def both(batch: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"scores": scored(batch), "edges": batch.diff(dim=-1)}


def watch(progress: Progress) -> None:
    print(progress.done, progress.total)  # noqa: T201


def refreshed(t: InfiniteTensor, **options: Unpack[FillOptions]) -> FillReport:
    t.invalidate(REGION)
    return t.fill(REGION, **options)


def tensors(path: Path) -> TensorGroup:
    with ZarrTileStore(path, mode="a", tile_size=256, cache_size_bytes="100 MB") as store:
        world = InfiniteTensor(
            (None, None), ones, WINDOW, tile_store=store, tensor_id="world", blend="hann", edge="clip"
        )
        rough = noise((None, None), seed=3)
        hills = rough.map(smooth, halo=2, store=store, batch_size=None)
        summed = map_windows(torch.add, hills, world, dtype="float32")
    assert_type(world[0:64, -5], torch.Tensor)
    assert_type(world[REGION], torch.Tensor)
    assert_type(world[[REGION, sl[9, 0:4]]], list[torch.Tensor])
    assert_type(summed.coarsen(4, "max").pyramid(2), list[InfiniteTensor])
    pixels: list[torch.Tensor] = [pixel for part in world.iter_regions([REGION]) for pixel in part]
    print(torch.stack(pixels).mean(), world.coverage(REGION, "missing").sum())  # noqa: T201
    return TensorGroup({"world": world, "hills": {"rough": rough, "summed": summed}})


def lazily(t: InfiniteTensor) -> list[InfiniteTensor]:
    assert_type(t + 1, InfiniteTensor)
    assert_type(2 * t > IMAGE, InfiniteTensor)
    assert_type(t == t, InfiniteTensor)  # noqa: PLR0124  (a lazy tensor)
    assert_type(placed(IMAGE, (5, -3)).crop(REGION).describe(units="m"), InfiniteTensor)
    print(t.map(smooth, halo=2, window=64).check(REGION).share)  # noqa: T201
    return [-t, abs(t), t.astype(torch.float16), overlay(t, 0.0), t.or_else(t)]


def groups(group: TensorGroup) -> torch.Tensor:
    made = InfiniteTensor.from_multi(
        lambda ctx: {"a": ones(ctx)}, {"a": Output((None, None), "float32", WINDOW, "max")}
    )
    assert_type(made, TensorGroup)
    assert_type(group[REGION], TensorDict)
    assert_type(group[[REGION]], list[TensorDict])
    assert_type(group["world"], InfiniteTensor | Any)
    assert_type(group.get("hills"), InfiniteTensor | Any | None)
    rough: InfiniteTensor = group["hills", "rough"]
    return rough[REGION]


def filled(t: InfiniteTensor, group: TensorGroup) -> float | None:
    report = t.fill(REGION, workers=2, max_memory="400 MB", progress=watch, where=Mask(torch.ones(512, 512)))
    group.fill(REGION, shard=(0, 4), progress="always")
    print(report.windows, refreshed(t, pyramid="mode", progress=False).tiles, t.plan(REGION).windows)  # noqa: T201
    return t.stats(REGION, compute=True).mean


def predicted(path: Path) -> None:
    assert_type(predict(scored, IMAGE, path, window=(256, 256), reduce="argmax", workers=2), InfiniteTensor)
    assert_type(predict(both, IMAGE, window=64, overlap=0.5, blend="mean"), TensorGroup)
    assert_type(predict(NET, IMAGE, window=64, reduce={"labels": "argmax"}), TensorGroup)
    # What a module returns is not known to its caller.
    assert_type(predict(NET, IMAGE, window=64, reduce=Reduction("softmax", 10)), InfiniteTensor | Any)
    labels = predict(lambda batch: NET(batch / 255), IMAGE, window=64, reduce="argmax")
    labels.export(..., "labels.tif", format="tiff", pyramid=False)


def trained(t: InfiniteTensor, group: TensorGroup) -> None:
    patches = PatchDataset(t, 64, REGION, seed=1, length=500)
    assert_type(patches[0], torch.Tensor)
    assert_type(GridDataset(group, 64, region=REGION)[0], TensorDict)
    first, second = GridDataset((t, t), 64, region=REGION)[0]
    print(first.shape, second[GridDataset(t, 64, region=REGION).region(4)])  # noqa: T201
    assert_type(PatchDataset(t, 64, REGION, transform=lambda patch: float(patch.mean()))[0], float)
    for batch in DataLoader(patches, batch_size=8, num_workers=2):
        print(NET(batch).shape)  # noqa: T201


def stored(path: Path) -> torch.Tensor:
    with open_store(path, mode="r") as store:
        print(store.tensor_ids(), store.tensor_info("world").bytes_stored)  # noqa: T201
        kept = store.open("world").stored_only(-1)[REGION]
    with TensorBlob.open(path / "embeddings", "w", dtype=torch.float32, shape=(3,)) as blob:
        blob.write(torch.ones(5, 3))
        assert_type(blob[0], torch.Tensor)
    return torch.cat([kept.flatten(), blob[1:3].flatten()])
